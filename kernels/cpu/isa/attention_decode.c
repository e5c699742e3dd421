// Attention of one new position per sequence (kernels/ops_layers.h: attention_decode).
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/single_query.h"

struct decode_call {
    const struct stream *stream;
    const struct attention_decode_args *args;
    int group;             // query heads per key-value head
    int n_parts;           // tasks per key-value head
    size_t scratch_floats; // floats of struct scratch per thread
    atomic_size_t *next;   // number of the next task to take
};

// A thread's scratch. If rope.table is NULL, it has no `queries`.
struct scratch {
    float *attention; // scratch of attend_single_query
    void *queries;    // rotated queries: (heads of a task, D) type
};

static struct scratch scratch_at(float *memory, const struct attention_decode_args *args, int n_heads) {
    struct scratch scratch = {.attention = memory};
    scratch.queries = memory + CPU_OP(single_query_floats)(n_heads, args->D);
    return scratch;
}

static size_t scratch_floats(const struct attention_decode_args *args, int n_heads) {
    const size_t queries = (size_t)n_heads * (size_t)args->D; // in floats, enough for any type
    return CPU_OP(single_query_floats)(n_heads, args->D) + (args->rope.table ? round_up_to(queries, 16) : 0);
}

static struct decode_call plan_decode(const struct device *device, const struct attention_decode_args *args,
                                      int *n_threads) {
    struct decode_call call = {.args = args, .group = args->H / args->K};
    *n_threads = cpu_threads(device, args->n_keys * (size_t)args->H * (size_t)args->D);
    call.n_parts = group_parts((size_t)args->B * (size_t)args->K, call.group, *n_threads);
    call.scratch_floats = scratch_floats(args, group_part_heads(call.group, call.n_parts));
    return call;
}

size_t CPU_OP(attention_decode_workspace)(const struct device *device,
                                          const struct attention_decode_args *args) {
    int n_threads;
    const struct decode_call call = plan_decode(device, args, &n_threads);
    return (size_t)n_threads * call.scratch_floats * sizeof(float);
}

// Normalizes and rotates the new queries or keys of n_heads consecutive heads of sequence b, from element
// x_at of x to `out`.
static void rotate(const struct attention_decode_args *args, size_t b, const void *x, size_t x_at,
                   const void *weight, int n_heads, void *out) {
    const size_t size = dtype_size(args->type);
    const struct rope_forward_args rope = {.out = out,
                                           .x = (const char *)x + x_at * size,
                                           .q_weight = weight,
                                           .table = args->rope.table,
                                           .B = 1,
                                           .T = 1,
                                           .H = n_heads,
                                           .D = args->D,
                                           .position = args->lengths[b],
                                           .norm = args->rope.norm,
                                           .epsilon = args->rope.epsilon,
                                           .type = args->type};
    const struct parallel_span row = {0, 1}, heads = {0, (size_t)n_heads};
    CPU_OP(rotate_part)(&rope, row, heads);
}

// Writes the new key and value of head g of sequence b to the cache.
static void append(const struct attention_decode_args *args, size_t b, size_t g) {
    const size_t size = dtype_size(args->type), at = g * (size_t)args->D, bytes = (size_t)args->D * size;
    const size_t to = (size_t)args->sequences[b] * args->cache_batch_stride +
                      (size_t)args->lengths[b] * args->cache_stride + at;
    char *key = (char *)args->keys + to * size;
    if (args->rope.table)
        rotate(args, b, args->k, b * args->k_stride + at, args->rope.k_weight, 1, key);
    else
        memcpy(key, (const char *)args->k + (b * args->k_stride + at) * size, bytes);
    memcpy((char *)args->values + to * size, (const char *)args->v + (b * args->v_stride + at) * size, bytes);
}

static void decode_heads(const struct decode_call *call, size_t b, size_t g, struct group_span heads,
                         const struct scratch *scratch) {
    const struct attention_decode_args *args = call->args;
    const size_t D = (size_t)args->D, head = g * (size_t)call->group + (size_t)heads.begin;
    const size_t cache = (size_t)args->sequences[b] * args->cache_batch_stride + g * D;
    const int end = args->lengths[b] + 1;
    struct single_query query = {.q = args->q,
                                 .k = args->keys,
                                 .v = args->values,
                                 .out = args->out,
                                 .q_at = b * args->q_stride + head * D,
                                 .k_at = cache,
                                 .v_at = cache,
                                 .out_at = (b * (size_t)args->H + head) * D,
                                 .k_stride = args->cache_stride,
                                 .v_stride = args->cache_stride,
                                 .n_heads = heads.end - heads.begin,
                                 .first =
                                     first_in_window(args->first ? args->first[b] : 0, args->window, end - 1),
                                 .end = end,
                                 .D = args->D};
    if (args->rope.table) {
        rotate(args, b, args->q, query.q_at, args->rope.q_weight, query.n_heads, scratch->queries);
        query.q = scratch->queries;
        query.q_at = 0;
    }
    CPU_OP(attend_single_query)(&query, args->type, scratch->attention);
}

// Threads take one task at a time, since sequences differ in length.
static void decode_part(const void *context, int part, int n_threads) {
    (void)n_threads;
    const struct decode_call *call = context;
    const struct attention_decode_args *args = call->args;
    float *memory = (float *)call->stream->workspace + (size_t)part * call->scratch_floats;
    const struct scratch scratch = scratch_at(memory, args, group_part_heads(call->group, call->n_parts));
    const size_t parts = (size_t)call->n_parts, K = (size_t)args->K;
    for (size_t task; (task = atomic_fetch_add(call->next, 1)) < (size_t)args->B * K * parts;) {
        const size_t b = task / parts / K, g = task / parts % K;
        if (parts == 1)
            append(args, b, g);
        decode_heads(call, b, g, group_span_of(call->group, (int)(task % parts), call->n_parts), &scratch);
    }
}

enum status CPU_OP(attention_decode)(struct stream *stream, const struct attention_decode_args *args) {
    atomic_size_t next = 0;
    int n_threads;
    struct decode_call call = plan_decode(stream->device, args, &n_threads);
    call.stream = stream;
    call.next = &next;
    // If several tasks share a key-value head, they all read its new key and value, so these are appended
    // first. There are fewer such heads than threads.
    for (size_t i = 0; call.n_parts > 1 && i < (size_t)args->B * (size_t)args->K; i++)
        append(args, i / (size_t)args->K, i % (size_t)args->K);
    parallel_run(n_threads, decode_part, &call);
    return STATUS_OK;
}
