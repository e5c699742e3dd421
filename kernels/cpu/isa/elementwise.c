// Operations on flat spans, and the column sums of linear_backward. All are bound by memory bandwidth. The
// order of sums does not depend on the number of threads.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"
#include "kernels/matrix.h"

#include <math.h>

// ---- sum_squares

// Rows of SUM_SQUARES_LANES elements are summed two at a time. Meanwhile the next two rows are prefetched
// into the second-level cache, GROUP_LANES elements at a time, since the sums and the current rows fill the
// first-level cache. That reaches the speed of a plain read; hardware prefetching alone reaches two thirds
// of it.
#define ROWS        2
#define GROUP_LANES 64

VF_INLINE void prefetch_next(const float *x) {
    for (size_t row = 0; row < ROWS; row++)
        for (size_t lane = 0; lane < GROUP_LANES; lane += 16)
            __builtin_prefetch(x + (ROWS + row) * SUM_SQUARES_LANES + lane, 0, 2);
}

// Sums in the order that kernels/ops.h prescribes, so every build and device gives the same bits.
static double block_sum_squares(const float *x, size_t n) {
    double sums[SUM_SQUARES_LANES] = {0};
    size_t i = 0;
    for (; i + ROWS * SUM_SQUARES_LANES <= n; i += ROWS * SUM_SQUARES_LANES)
        for (size_t group = 0; group < SUM_SQUARES_LANES; group += GROUP_LANES) {
            prefetch_next(x + i + group);
            for (size_t lane = group; lane < group + GROUP_LANES; lane++) {
                double first = x[i + lane], second = x[i + SUM_SQUARES_LANES + lane];
                sums[lane] = (sums[lane] + first * first) + second * second;
            }
        }
    for (; i < n; i++)
        sums[i % SUM_SQUARES_LANES] += (double)x[i] * (double)x[i];
    for (size_t half = SUM_SQUARES_LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

VF_INLINE double block_sum_squares_of(enum dtype type, const void *x, size_t begin, size_t n) {
    if (type == DTYPE_F32)
        return block_sum_squares((const float *)x + begin, n);
    float upcast[SUM_SQUARES_BLOCK];
    for (size_t i = 0; i < n; i += VF_WIDTH) {
        int lanes = n - i < VF_WIDTH ? (int)(n - i) : VF_WIDTH;
        vf_store_part(upcast + i, vf_get_part(type, x, begin + i, lanes), lanes);
    }
    return block_sum_squares(upcast, n);
}

VF_INLINE void sum_squares_blocks(enum dtype type, const struct sum_squares_args *args,
                                  struct parallel_span blocks) {
    for (size_t block = blocks.begin; block < blocks.end; block++) {
        size_t begin = block * SUM_SQUARES_BLOCK, left = args->n - begin;
        args->partial[block] =
            block_sum_squares_of(type, args->x, begin, left < SUM_SQUARES_BLOCK ? left : SUM_SQUARES_BLOCK);
    }
}

static void sum_squares_span(const void *context, struct parallel_span blocks) {
    const struct sum_squares_args *args = context;
    VF_DISPATCH(args->type, sum_squares_blocks, args, blocks);
}

enum status CPU_OP(sum_squares)(struct stream *stream, const struct sum_squares_args *args) {
    size_t n_blocks = sum_squares_partials(args->n);
    cpu_parallel(stream->device, args->n, n_blocks, 1, sum_squares_span, args);
    return STATUS_OK;
}

// ---- add_squares

static double leaf_squares(const float *x, size_t n) {
    double sums[SQUARES_LANES] = {0};
    if (n == SQUARES_LEAF)
        for (size_t lane = 0; lane < SQUARES_LANES; lane++)
            for (size_t i = lane; i < SQUARES_LEAF; i += SQUARES_LANES)
                sums[lane] += (double)x[i] * (double)x[i];
    else
        for (size_t i = 0; i < n; i++)
            sums[i % SQUARES_LANES] += (double)x[i] * (double)x[i];
    for (size_t half = SQUARES_LANES / 2; half > 0; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

static void add_squares_span(const void *context, struct parallel_span leaves) {
    const struct add_squares_args *args = context;
    int64_t words[EXACT_WORDS] = {0};
    for (size_t leaf = leaves.begin; leaf < leaves.end; leaf++) {
        const size_t begin = leaf * SQUARES_LEAF, left = args->n - begin;
        const struct exact_parts parts =
            exact_parts_of(leaf_squares(args->x + begin, left < SQUARES_LEAF ? left : SQUARES_LEAF));
        for (int i = 0; i < parts.n; i++)
            words[parts.first + i] += (int64_t)parts.part[i];
    }
    for (int i = 0; i < EXACT_WORDS; i++)
        __atomic_fetch_add(&args->sum[i], words[i], __ATOMIC_RELAXED);
}

enum status CPU_OP(add_squares)(struct stream *stream, const struct add_squares_args *args) {
    const size_t leaves = (args->n + SQUARES_LEAF - 1) / SQUARES_LEAF;
    cpu_parallel(stream->device, args->n, leaves, 64, add_squares_span, args);
    return STATUS_OK;
}

// ---- matrix_normalize and matrix_add_diagonal

struct normalization {
    const struct matrix_normalize_args *args;
    float factor;
};

VF_INLINE void scale_range(enum dtype type, const struct normalization *call, struct parallel_span range) {
    for (size_t i = range.begin; i < range.end; i += VF_WIDTH) {
        int lanes = range.end - i < VF_WIDTH ? (int)(range.end - i) : VF_WIDTH;
        vf_put_part(type, call->args->out, i, vf_get_part(type, call->args->x, i, lanes) * call->factor,
                    lanes);
    }
}

static void normalize_span(const void *context, struct parallel_span span) {
    const struct normalization *call = context;
    VF_DISPATCH(call->args->type, scale_range, call, span);
}

static enum status normalize_one(struct stream *stream, const struct matrix_normalize_args *args) {
    const struct sum_squares_args squares = {
        .partial = args->partial, .x = args->x, .n = args->n, .type = args->type};
    double sum = 0;
    TRY(CPU_OP(sum_squares)(stream, &squares));
    for (size_t i = 0; i < sum_squares_partials(args->n); i++)
        sum += args->partial[i];
    const struct normalization call = {args, (float)(1 / fmax(sqrt(sum), args->epsilon))};
    cpu_parallel(stream->device, args->n, args->n, 1024, normalize_span, &call);
    return STATUS_OK;
}

enum status CPU_OP(matrix_normalize)(struct stream *stream, const struct matrix_normalize_args *args) {
    for (int i = 0; i < args->n_matrices; i++) {
        const struct matrix_normalize_args one = matrix_normalize_of(args, i);
        TRY(normalize_one(stream, &one));
    }
    return STATUS_OK;
}

VF_INLINE void add_diagonal(enum dtype type, const struct matrix_add_diagonal_args *args) {
    const size_t n = (size_t)args->n;
    for (int matrix = 0; matrix < args->n_matrices; matrix++)
        for (size_t i = 0; i < n; i++) {
            const size_t at = (size_t)matrix * args->distance + i * (n + 1);
            vf_put_part(type, args->x, at, vf_get_part(type, args->x, at, 1) + (float)args->value, 1);
        }
}

// Runs on one thread, as there are few elements.
enum status CPU_OP(matrix_add_diagonal)(struct stream *stream, const struct matrix_add_diagonal_args *args) {
    (void)stream;
    VF_DISPATCH(args->type, add_diagonal, args);
    return STATUS_OK;
}

// ---- fill and cast

// fp32 outputs of more bytes than this are filled by non-temporal stores, which do not read the old contents
// into the caches. That raises the rate from 14 to 42 GB/s.
#define STREAMED_BYTES ((size_t)4 << 20)

VF_INLINE void fill_range(enum dtype type, const struct fill_args *args, struct parallel_span range) {
    vf value = vf_set1(args->value);
    size_t i = range.begin;
    if (type == DTYPE_F32 && args->n * sizeof(float) > STREAMED_BYTES &&
        (uintptr_t)args->out % sizeof value == 0) {
        for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
            vf_stream((float *)args->out + i, value);
        stream_fence();
    }
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_put(type, args->out, i, value);
    if (i < range.end)
        vf_put_part(type, args->out, i, value, (int)(range.end - i));
}

static void fill_span(const void *context, struct parallel_span span) {
    const struct fill_args *args = context;
    VF_DISPATCH(args->type, fill_range, args, span);
}

enum status CPU_OP(fill)(struct stream *stream, const struct fill_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, fill_span, args);
    return STATUS_OK;
}

VF_INLINE void cast_range(enum dtype out_type, enum dtype type, const struct cast_args *args,
                          struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_put(out_type, args->out, i, vf_get(type, args->x, i));
    if (i < range.end) {
        int lanes = (int)(range.end - i);
        vf_put_part(out_type, args->out, i, vf_get_part(type, args->x, i, lanes), lanes);
    }
}

VF_INLINE void cast_from(enum dtype type, const struct cast_args *args, struct parallel_span range) {
    VF_DISPATCH(args->out_type, cast_range, type, args, range);
}

VF_INLINE void round_range(enum dtype through, const struct cast_args *args, struct parallel_span range) {
    float rounded[VF_WIDTH]; // in the type `through`
    for (size_t i = range.begin; i < range.end; i += VF_WIDTH) {
        const size_t left = range.end - i;
        const int lanes = left < VF_WIDTH ? (int)left : VF_WIDTH;
        vf_put_part(through, rounded, 0, vf_get_part(DTYPE_F32, args->x, i, lanes), lanes);
        vf_put_part(DTYPE_F32, args->out, i, vf_get_part(through, rounded, 0, lanes), lanes);
    }
}

static void cast_span(const void *context, struct parallel_span span) {
    const struct cast_args *args = context;
    if (args->through != DTYPE_F32)
        VF_DISPATCH(args->through, round_range, args, span);
    else
        VF_DISPATCH(args->type, cast_from, args, span);
}

enum status CPU_OP(cast)(struct stream *stream, const struct cast_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, cast_span, args);
    return STATUS_OK;
}

// ---- lerp

VF_INLINE void lerp_vector(enum dtype out_type, const struct lerp_args *args, size_t i, int lanes) {
    const vf x = vf_get_part(DTYPE_F32, args->x, i, lanes), y = vf_get_part(DTYPE_F32, args->y, i, lanes);
    vf_put_part(out_type, args->out, i, args->weight == 1 ? y : vf_fma(y - x, vf_set1(args->weight), x),
                lanes);
}

VF_INLINE void lerp_range(enum dtype out_type, const struct lerp_args *args, struct parallel_span range) {
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        lerp_vector(out_type, args, i, VF_WIDTH);
    if (i < range.end)
        lerp_vector(out_type, args, i, (int)(range.end - i));
}

static void lerp_span(const void *context, struct parallel_span span) {
    const struct lerp_args args = *(const struct lerp_args *)context; // local, so no store aliases it
    VF_DISPATCH(args.out_type, lerp_range, &args, span);
}

enum status CPU_OP(lerp)(struct stream *stream, const struct lerp_args *args) {
    struct lerp_args call = *args;
    if (args->plan) {
        call.weight = args->plan->average_weight;
        if (args->result->skipped || call.weight == 0)
            return STATUS_OK;
    }
    cpu_parallel(stream->device, args->n, args->n, 1024, lerp_span, &call);
    return STATUS_OK;
}

// ---- add and add_spans

VF_INLINE void add_range(enum dtype type, const struct add_args *args, struct parallel_span range) {
    float *out = args->out;
    const float *x = args->x;
    size_t i = range.begin;
    for (; i + VF_WIDTH <= range.end; i += VF_WIDTH)
        vf_store(out + i, vf_load(x + i) + vf_get(type, args->y, i));
    if (i < range.end) {
        int lanes = (int)(range.end - i);
        vf_store_part(out + i, vf_load_part(x + i, lanes) + vf_get_part(type, args->y, i, lanes), lanes);
    }
}

static void add_span(const void *context, struct parallel_span span) {
    const struct add_args *args = context;
    VF_DISPATCH(args->type, add_range, args, span);
}

enum status CPU_OP(add)(struct stream *stream, const struct add_args *args) {
    cpu_parallel(stream->device, args->n, args->n, 1024, add_span, args);
    return STATUS_OK;
}

enum status CPU_OP(add_spans)(struct stream *stream, const struct add_spans_args *args) {
    const float *x = args->x;
    for (int i = 0; i < args->n_spans; x += args->spans[i++].n) {
        const struct add_span *span = &args->spans[i];
        const struct add_args add = {
            .out = span->out, .x = span->out, .y = x, .n = span->n, .type = DTYPE_F32};
        TRY(CPU_OP(add)(stream, &add));
    }
    return STATUS_OK;
}

// ---- sum_tree

#define TREE_LEVELS 16  // number of bits of SUM_TREE_MOST
#define TREE_BLOCK  512 // elements at a time, so that their partial sums stay in the cache

// Computes n elements from `at` on. Partial sums of complete subtrees are kept as in a binary counter: after
// r ranks, held[k] is the sum of 2^k consecutive ranks if bit k of r is set. The last rank is added to all
// held sums, smallest subtree first. Only then is `out` written, since it may be one of the inputs.
static void sum_tree_block(const struct sum_tree_args *args, size_t at, size_t n) {
    float sums[TREE_LEVELS + 1][TREE_BLOCK];
    const float *held[TREE_LEVELS];
    const struct parallel_span all = {0, n};
    float *out = (float *)args->out + at;
    for (int rank = 0; rank < args->count; rank++) {
        const bool last = rank == args->count - 1;
        const int n_carries = __builtin_ctz(~(unsigned)rank);
        float *to = !last ? sums[n_carries] : args->accumulate ? sums[TREE_LEVELS] : out;
        struct add_args add = {
            .out = to, .y = (const char *)args->x[rank] + at * dtype_size(args->type), .type = args->type};
        for (int level = 0; last ? rank >> level : level < n_carries; level++)
            if (rank >> level & 1) {
                add.x = held[level];
                add_span(&add, all);
                add.y = to;
                add.type = DTYPE_F32;
            }
        if (add.type != DTYPE_F32) {
            const struct cast_args cast = {.out = to, .x = add.y, .type = add.type, .out_type = DTYPE_F32};
            cast_span(&cast, all);
            add.y = to;
        }
        if (!last)
            held[n_carries] = add.y;
    }
    if (args->accumulate)
        add_span(&(struct add_args){.out = out, .x = out, .y = sums[TREE_LEVELS], .type = DTYPE_F32}, all);
}

static void sum_tree_span(const void *context, struct parallel_span span) {
    for (size_t at = span.begin; at < span.end; at += TREE_BLOCK)
        sum_tree_block(context, at, span.end - at < TREE_BLOCK ? span.end - at : TREE_BLOCK);
}

enum status CPU_OP(sum_tree)(struct stream *stream, const struct sum_tree_args *args) {
    cpu_parallel(stream->device, args->n * (size_t)args->count, args->n, 1024, sum_tree_span, args);
    return STATUS_OK;
}

// ---- column sums: the gradient of the bias

#define TILE_ROWS    64 // rows that stay in the cache while their columns are summed
#define TILE_VECTORS 4  // vectors of columns that are summed at a time

VF_INLINE void add_tile(enum dtype type, float *sums, const void *x, size_t first, size_t stride,
                        size_t n_rows) {
    vf total[TILE_VECTORS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (size_t row = 0; row < n_rows; row++)
        for (size_t j = 0; j < TILE_VECTORS; j++)
            total[j] += vf_get(type, x, first + row * stride + j * VF_WIDTH);
    for (size_t j = 0; j < TILE_VECTORS; j++)
        vf_store(sums + j * VF_WIDTH, vf_load(sums + j * VF_WIDTH) + total[j]);
}

VF_INLINE void add_vector(enum dtype type, float *sums, const void *x, size_t first, size_t stride,
                          size_t n_rows, int lanes) {
    vf total = vf_zero();
    for (size_t row = 0; row < n_rows; row++)
        total += vf_get_part(type, x, first + row * stride, lanes);
    vf_store_part(sums, vf_load_part(sums, lanes) + total, lanes);
}

VF_INLINE void add_columns(enum dtype type, float *sums, const void *x, size_t n_rows, size_t stride,
                           bool beta_zero, struct parallel_span columns) {
    if (beta_zero)
        memset(sums + columns.begin, 0, (columns.end - columns.begin) * sizeof *sums);
    for (size_t row = 0; row < n_rows; row += TILE_ROWS) {
        size_t n = n_rows - row < TILE_ROWS ? n_rows - row : TILE_ROWS, c = columns.begin;
        for (; c + TILE_VECTORS * VF_WIDTH <= columns.end; c += TILE_VECTORS * VF_WIDTH)
            add_tile(type, sums + c, x, row * stride + c, stride, n);
        for (; c < columns.end; c += VF_WIDTH)
            add_vector(type, sums + c, x, row * stride + c, stride, n,
                       columns.end - c < VF_WIDTH ? (int)(columns.end - c) : VF_WIDTH);
    }
}

struct column_sums {
    float *sums;
    const void *x;
    size_t n_rows, stride;
    bool beta_zero;
    enum dtype type;
};

static void column_sums_span(const void *context, struct parallel_span columns) {
    const struct column_sums *call = context;
    VF_DISPATCH(call->type, add_columns, call->sums, call->x, call->n_rows, call->stride, call->beta_zero,
                columns);
}

void CPU_OP(add_column_sums)(struct stream *stream, float *sums, const void *x, int n_rows, int n_columns,
                             int stride, bool beta_zero, enum dtype type) {
    const struct column_sums call = {sums, x, (size_t)n_rows, (size_t)stride, beta_zero, type};
    cpu_parallel(stream->device, call.n_rows * (size_t)n_columns, (size_t)n_columns, 16, column_sums_span,
                 &call);
}
