// Attention with RoPE, on each device: the same bits as rope_forward before attention_forward, and as
// rope_backward after attention_backward, which have checks of their own. What is rotated takes the place of
// q and k, and nothing between rows is written.
#include <stdlib.h>

#include "base/rng.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/ops/op_case.h"
#include "tests/support/expect.h"

static const struct shape {
    int B, T, S, H, K, D, window, document; // document: positions of each; 0: none
    int gap, shift;                         // elements: between rows; before the first of each tensor
} shapes[] = {
    {1, 1, 1, 1, 1, 2, 0, 0, 0, 0},
    {2, 33, 33, 2, 2, 16, 0, 0, 0, 0},
    {2, 65, 65, 4, 2, 64, 0, 0, 8, 0},
    {1, 130, 130, 4, 1, 64, 40, 0, 0, 0},
    {2, 96, 96, 2, 1, 32, 0, 20, 0, 0},
    {1, 70, 70, 2, 2, 80, 0, 0, 16, 0},
    {1, 63, 63, 2, 1, 72, 0, 7, 0, 0},
    {1, 129, 129, 1, 1, 96, 0, 0, 0, 0},
    {2, 66, 66, 3, 1, 128, 33, 0, 0, 0},
    {1, 40, 40, 2, 1, 160, 0, 0, 0, 0}, // too wide for tensor cores
    // not aligned to 16 bytes: by their rows, the gaps between them, the first one
    {2, 35, 35, 2, 1, 20, 0, 0, 0, 0},
    {1, 65, 65, 3, 3, 64, 0, 0, 3, 0},
    {1, 65, 65, 2, 2, 64, 0, 0, 0, 1},
    // after positions in a cache
    {1, 40, 100, 4, 2, 64, 0, 0, 0, 0},
    {1, 3, 9, 2, 1, 24, 0, 0, 0, 0},
    {1, 70, 150, 2, 1, 128, 50, 0, 8, 0},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

enum tensor { Q, K, V, OUT, LSE, DOUT, DQ, DK, DV, TABLE, FIRST, N_TENSORS };

// All tensors of a case, one after the other, each `shift` elements from its aligned start.
struct tensors {
    size_t begin[N_TENSORS], end; // bytes
    size_t stride[N_TENSORS];     // elements between rows
    size_t elements[N_TENSORS];   // between rows, too
    char *data;
};

static size_t aligned(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static struct tensors lay_out(const struct shape *s, enum dtype type) {
    const size_t size = dtype_size(type), gap = (size_t)s->gap, shift = (size_t)s->shift, D = (size_t)s->D;
    const size_t queries = (size_t)(s->B * s->T), keys = (size_t)(s->B * s->S);
    const size_t HD = (size_t)s->H * D, KD = (size_t)s->K * D;
    const struct {
        size_t rows, columns, size;
        bool dense;
    } all[N_TENSORS] = {[Q] = {queries, HD, size, false},
                        [K] = {keys, KD, size, false},
                        [V] = {keys, KD, size, false},
                        [OUT] = {queries, HD, size, true},
                        [LSE] = {queries, (size_t)s->H, sizeof(float), true},
                        [DOUT] = {queries, HD, size, true},
                        [DQ] = {queries, HD, size, false},
                        [DK] = {keys, KD, size, false},
                        [DV] = {keys, KD, size, false},
                        [TABLE] = {(size_t)s->S, D, sizeof(float), true},
                        [FIRST] = {queries, 1, sizeof(int32_t), true}};
    struct tensors t = {0};
    for (int i = 0; i < N_TENSORS; i++) {
        t.stride[i] = all[i].columns + (all[i].dense ? 0 : gap);
        t.elements[i] = all[i].rows * t.stride[i];
        t.begin[i] = aligned(t.end) + shift * all[i].size;
        t.end = t.begin[i] + t.elements[i] * all[i].size;
    }
    t.data = calloc(1, t.end);
    assert_non_null(t.data);
    return t;
}

// Random numbers in each tensor, results and gaps too; angles whose cosine and sine are any numbers.
static void fill(const struct tensors *t, const struct shape *s, enum dtype type) {
    struct device *cpu;
    struct stream stream;
    EXPECT_OK(cpu_device_open("portable", 1, &cpu));
    EXPECT_OK(stream_init(&stream, cpu));
    for (int i = 0; i < FIRST; i++) {
        const enum dtype is = i == LSE || i == TABLE ? DTYPE_F32 : type;
        const size_t n = t->elements[i];
        float *values = malloc(n * sizeof *values);
        assert_non_null(values);
        for (size_t k = 0; k < n; k++)
            values[k] = (float)rng_normal(57, (uint64_t)i, k);
        const struct cast_args cast = {
            .out = t->data + t->begin[i], .x = values, .n = n, .type = DTYPE_F32, .out_type = is};
        EXPECT_OK(cpu->ops->cast(&stream, &cast));
        free(values);
    }
    stream_free(&stream);
    device_close(cpu);
    for (int row = 0; row < s->B * s->T && s->document > 0; row++)
        ((int32_t *)(void *)(t->data + t->begin[FIRST]))[row] = row % s->T / s->document * s->document;
}

static enum attention_kernel by; // of the calls

// Runs an operation with a workspace of its own, in as many launches as announced (by this project's
// kernels). Blocks.
#define RUN_ALONE(device, name, args)                                                                        \
    do {                                                                                                     \
        struct stream stream;                                                                                \
        const uint64_t before = device_launches(device);                                                     \
        EXPECT_OK(stream_init(&stream, (device)));                                                           \
        EXPECT_OK((device)->ops->workspace_bytes((device), OP_##name, (args), &stream.workspace_bytes));     \
        EXPECT_OK((device)->memory_new((device), stream.workspace_bytes, "tests", &stream.workspace));       \
        EXPECT_OK((device)->ops->name(&stream, (args)));                                                     \
        EXPECT_OK((device)->synchronize(&stream));                                                           \
        if ((device)->ops->launches && by == ATTENTION_FLASH)                                                \
            assert_int_equal(device_launches(device) - before,                                               \
                             (device)->ops->launches((device), OP_##name, (args)));                          \
        (device)->memory_delete((device), stream.workspace, stream.workspace_bytes);                         \
        stream.workspace = NULL;                                                                             \
        stream_free(&stream);                                                                                \
    } while (0)

static void turn_back(struct device *device, const struct tensors *t, const struct shape *s, enum dtype type,
                      char *memory, enum tensor which) {
    void *gradient = memory + t->begin[which];
    const struct rope_backward_args args = {.dx = gradient,
                                            .dout = gradient,
                                            .table = memory + t->begin[TABLE],
                                            .B = s->B,
                                            .T = s->T,
                                            .H = which == DQ ? s->H : s->K,
                                            .D = s->D,
                                            .dx_stride = t->stride[which],
                                            .dout_stride = t->stride[which],
                                            .type = type};
    RUN_ALONE(device, rope_backward, &args);
}

// The new positions of q or k, rotated in place.
static void turn(struct device *device, const struct tensors *t, const struct shape *s, enum dtype type,
                 char *memory, enum tensor which) {
    const size_t cached = which == K ? (size_t)(s->S - s->T) * t->stride[K] * dtype_size(type) : 0;
    void *x = memory + t->begin[which] + cached;
    const struct rope_forward_args args = {.out = x,
                                           .x = x,
                                           .table = memory + t->begin[TABLE],
                                           .B = s->B,
                                           .T = s->T,
                                           .H = which == Q ? s->H : s->K,
                                           .D = s->D,
                                           .x_stride = t->stride[which],
                                           .out_stride = t->stride[which],
                                           .position = s->S - s->T,
                                           .type = type};
    RUN_ALONE(device, rope_forward, &args);
}

// Forward, and backward where nothing is cached. fused: by attention with a table.
static void attend(struct device *device, const struct tensors *t, const struct shape *s, enum dtype type,
                   char *memory, bool fused) {
#define AT(tensor) ((void *)(memory + t->begin[tensor]))
    const struct attention_rope rope = {.table = fused ? AT(TABLE) : NULL,
                                        .rotated_q = AT(Q),
                                        .rotated_k = (char *)AT(K) +
                                                     (size_t)(s->S - s->T) * t->stride[K] * dtype_size(type),
                                        .q_stride = t->stride[Q],
                                        .k_stride = t->stride[K],
                                        .drotated_q = AT(DQ),
                                        .drotated_k = AT(DK)};
#define SHARED                                                                                               \
    .q = AT(Q), .k = AT(K), .v = AT(V), .rope = rope, .kernel = by, .q_stride = t->stride[Q],                \
    .k_stride = t->stride[K], .v_stride = t->stride[V], .q_batch_stride = (size_t)s->T * t->stride[Q],       \
    .k_batch_stride = (size_t)s->S * t->stride[K], .v_batch_stride = (size_t)s->S * t->stride[V],            \
    .first = s->document > 0 ? AT(FIRST) : NULL, .B = s->B, .T = s->T, .H = s->H, .D = s->D, .K = s->K,      \
    .window = s->window, .type = type
    const struct attention_forward_args forward = {.out = AT(OUT), .lse = AT(LSE), .S = s->S, SHARED};
    const struct attention_backward_args backward = {
        .dq = AT(DQ), .dk = AT(DK), .dv = AT(DV), .dout = AT(DOUT), .out = AT(OUT), .lse = AT(LSE), SHARED};
#undef SHARED
#undef AT
    for (int which = Q; which <= K && !fused; which++)
        turn(device, t, s, type, memory, (enum tensor)which);
    RUN_ALONE(device, attention_forward, &forward);
    if (s->S != s->T)
        return;
    RUN_ALONE(device, attention_backward, &backward);
    for (int which = DQ; which <= DK && !fused; which++)
        turn_back(device, t, s, type, memory, (enum tensor)which);
}

static void compare(struct device *device, const struct shape *s, enum dtype type) {
    static const char *const names[N_TENSORS] = {"q",  "k",  "v",  "out",   "lse",  "dout",
                                                 "dq", "dk", "dv", "table", "first"};
    struct tensors t = lay_out(s, type);
    char *results[2];
    void *memory;
    struct stream stream;
    fill(&t, s, type);
    EXPECT_OK(stream_init(&stream, device));
    EXPECT_OK(device->memory_new(device, t.end, "tests", &memory));
    for (int fused = 0; fused < 2; fused++) {
        results[fused] = malloc(t.end);
        assert_non_null(results[fused]);
        EXPECT_OK(device->copy(&stream, memory, t.data, t.end));
        EXPECT_OK(device->synchronize(&stream));
        attend(device, &t, s, type, memory, fused);
        EXPECT_OK(device->copy(&stream, results[fused], memory, t.end));
        EXPECT_OK(device->synchronize(&stream));
    }
    device->memory_delete(device, memory, t.end);
    stream_free(&stream);
    bool differs = false;
    for (int i = 0; i < N_TENSORS; i++) {
        const size_t end = i + 1 < N_TENSORS ? t.begin[i + 1] : t.end;
        if (memcmp(results[0] + t.begin[i], results[1] + t.begin[i], end - t.begin[i]) == 0)
            continue;
        differs = true;
        print_error(
            "%s, %s, B %d T %d S %d H %d K %d D %d window %d document %d gap %d shift %d: %s differs\n",
            device->name, dtype_name(type), s->B, s->T, s->S, s->H, s->K, s->D, s->window, s->document,
            s->gap, s->shift, names[i]);
    }
    // What is compared is not nothing: queries and keys have turned.
    assert_true(memcmp(t.data + t.begin[Q], results[0] + t.begin[Q], t.begin[K] - t.begin[Q]) != 0);
    assert_true(memcmp(t.data + t.begin[K], results[0] + t.begin[K], t.begin[V] - t.begin[K]) != 0);
    for (int i = 0; i < 2; i++)
        free(results[i]);
    free(t.data);
    assert_false(differs);
}

// Defined by tests/cudasim, where only what runs on a GPU is of interest, and a call takes long.
void cudasim_reorder(unsigned seed) __attribute__((weak));

// On a simulated GPU each shape has one of the two 16-bit types, which have kernels of their own, and some
// have fp32.
static bool has_turn(enum dtype type, size_t shape) {
    return !cudasim_reorder ||
           (type == DTYPE_F32 ? shape % 4 == 0 : (type == DTYPE_BF16) == (shape % 2 == 0));
}

static void compare_all(struct device *device) {
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
        for (size_t i = 0; i < N_SHAPES; i++)
            if (has_turn(type, i))
                compare(device, &shapes[i], type);
    device_close(device);
}

static void check(void **state) {
    by = ATTENTION_FLASH;
    compare_all(op_device_or_skip(*state, 2));
}

// Those that cuDNN gets; the others by this project's kernels, where the queries are rotated before all the
// same.
static void check_cudnn(void **state) {
    (void)state;
    const struct attention_shape shape = {.B = 1, .T = 64, .H = 2, .K = 2, .D = 64, .type = DTYPE_BF16};
    struct device *device = op_device_or_skip("cuda", 1);
    struct cudnn_support support;
    EXPECT_OK(device->cudnn_support(device, &shape, &support));
    by = ATTENTION_CUDNN;
    if (support.usable) {
        compare_all(device);
        return;
    }
    device_close(device);
    print_message("skipped: cuDNN: %s\n", support.reason);
    skip();
}

// Where attention's kernels rotate, their launches are fewer than with passes of their own.
static void test_where_attention_rotates(void **state) {
    (void)state;
    static const struct {
        enum attention_kernel kernel;
        enum dtype type;
        int D, launches; // of forward: the kernel, and a rotation of the keys, or of queries and keys each
    } cases[] = {{ATTENTION_FLASH, DTYPE_BF16, 128, 2},
                 {ATTENTION_FLASH, DTYPE_F16, 64, 2},
                 {ATTENTION_FLASH, DTYPE_BF16, 130, 3},
                 {ATTENTION_FLASH, DTYPE_F32, 64, 3},
                 {ATTENTION_CUDNN, DTYPE_BF16, 64, 3}};
    struct device *device = cuda_device_plan();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct attention_forward_args args = {.B = 1,
                                                    .T = 8,
                                                    .S = 8,
                                                    .H = 1,
                                                    .K = 1,
                                                    .D = cases[i].D,
                                                    .rope = {.table = &args},
                                                    .kernel = cases[i].kernel,
                                                    .type = cases[i].type};
        assert_int_equal(device->ops->launches(device, OP_attention_forward, &args), cases[i].launches);
    }
    device_close(device);
}

int main(int n_args, char **args) {
    static const struct CMUnitTest tests[] = {
        {"ref", check, NULL, NULL, "ref"},        {"portable", check, NULL, NULL, "portable"},
        {"avx2", check, NULL, NULL, "avx2"},      {"avx512", check, NULL, NULL, "avx512"},
        {"amx", check, NULL, NULL, "amx"},        {"cuda: attention that rotates", check, NULL, NULL, "cuda"},
        {"cuDNN", check_cudnn, NULL, NULL, NULL}, cmocka_unit_test(test_where_attention_rotates)};
    setenv("CUDASIM_CUDNN", "91900", 0); // the simulated machine has cuDNN
    if (n_args > 1 || cudasim_reorder)
        cmocka_set_test_filter(n_args > 1 ? args[1] : "cu*");
    return cmocka_run_group_tests_name("rotation in attention", tests, NULL, NULL);
}
