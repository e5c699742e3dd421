// Checks of optimizer_step with moments in bf16 and int8. The expected result follows from the same device's
// step with fp32 moments, which op_check_optimizer.c checks: the moments are upcast, updated, and rounded as
// kernels/moments.h defines, to the bit. Also that no bit depends on how a span is split into calls, or on
// whether the step is in place.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/moments.h"
#include "tests/ops/op_check_optimizer.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)
#define GUARD          64
#define POISON         0xa5

enum { GRAD, PARAM, MASTER, M, V, M_SCALES, V_SCALES, N_ARRAYS };
static const char *const array_names[N_ARRAYS] = {"grad", "param",      "master",    "m",
                                                  "v",    "m's scales", "v's scales"};

// One span's arrays in host memory.
struct span {
    const struct op_optimizer *optimizer;
    size_t n;
    uint64_t first;
    enum dtype type, grad_type, state_type;
    unsigned char *arrays[N_ARRAYS];
};

static enum dtype array_type(const struct span *span, int k) {
    return k == GRAD          ? span->grad_type
           : k == PARAM       ? span->type
           : k == M || k == V ? span->state_type
                              : DTYPE_F32;
}

static size_t array_bytes(const struct span *span, int k) {
    bool scales = k >= M_SCALES, absent = ((k == V || k == V_SCALES) && span->optimizer->n_moments < 2) ||
                                          (scales && span->state_type != DTYPE_I8);
    size_t n = scales ? (span->n + MOMENT_BLOCK - 1) / MOMENT_BLOCK : span->n;
    return absent ? 0 : n * dtype_size(array_type(span, k));
}

static struct span span_new(const struct span *like, enum dtype state_type) {
    struct span span = *like;
    span.state_type = state_type;
    for (int k = 0; k < N_ARRAYS; k++) {
        span.arrays[k] = calloc(1, array_bytes(&span, k) + 1);
        assert_non_null(span.arrays[k]);
    }
    return span;
}

static void span_delete(struct span *span) {
    for (int k = 0; k < N_ARRAYS; k++)
        free(span->arrays[k]);
}

static void put(unsigned char *array, enum dtype type, size_t i, float value) {
    uint16_t half = type == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
    memcpy(array + i * dtype_size(type), type == DTYPE_F32 ? (const void *)&value : (const void *)&half,
           dtype_size(type));
}

// Ordinary numbers, zeros, tiny and subnormal ones; the third block of 128 is all zero, and the fourth has
// gradients that are infinite or NaN.
static float value_of(int k, size_t i) {
    double value = rng_normal(51, (uint32_t)k, i);
    size_t kind = (i + (size_t)k) % 11; // so that all combinations occur
    value *= kind == 3 ? 1e-16 : kind == 5 ? 0x1p-130 : kind == 7 ? 0 : i % 13 == 1 ? 1e-4 : 1;
    if (i / MOMENT_BLOCK == 2)
        return 0;
    if (k == GRAD && i / MOMENT_BLOCK == 3)
        return i % 3 ? (float)value : i % 2 ? INFINITY : NAN;
    return (float)(k == V ? value * value : value);
}

static void span_fill(struct span *span) {
    float *values = malloc(span->n * sizeof *values);
    assert_non_null(values);
    for (int k = GRAD; k <= V; k++) {
        if (array_bytes(span, k) == 0)
            continue;
        for (size_t i = 0; i < span->n; i++) {
            values[i] = value_of(k, i);
            if (k < M)
                put(span->arrays[k], array_type(span, k), i, values[i]);
        }
        if (k >= M)
            moments_store(span->state_type, k == M ? FIRST_MOMENT : SECOND_MOMENT, values, span->n,
                          span->arrays[k], (float *)(void *)span->arrays[k == M ? M_SCALES : V_SCALES]);
    }
    free(values);
}

// The same span with its moments upcast to fp32; and back, rounded as a step rounds them.
static struct span span_upcast(const struct span *span) {
    struct span wide = span_new(span, DTYPE_F32);
    for (int k = GRAD; k <= MASTER; k++)
        memcpy(wide.arrays[k], span->arrays[k], array_bytes(span, k));
    for (int k = 0; k < span->optimizer->n_moments; k++)
        moments_load(span->state_type, (enum moment)k, span->arrays[M + k],
                     (const float *)(void *)span->arrays[M_SCALES + k], span->n,
                     (float *)(void *)wide.arrays[M + k]);
    return wide;
}

static struct span span_downcast(const struct span *wide, enum dtype state_type, int64_t step) {
    struct span span = span_new(wide, state_type);
    for (int k = GRAD; k <= MASTER; k++)
        memcpy(span.arrays[k], wide->arrays[k], array_bytes(wide, k));
    for (int k = 0; k < wide->optimizer->n_moments; k++)
        moments_store_step(state_type, (enum moment)k, (const float *)(void *)wide->arrays[M + k], wide->n,
                           moment_noise_key(step), wide->first, span.arrays[M + k],
                           (float *)(void *)span.arrays[M_SCALES + k]);
    return span;
}

// ---- on the device

// A way to run a step, which must not change its bits.
struct manner {
    bool guarded;  // poison around each array, aligned to its element only
    size_t length; // elements per call, a multiple of MOMENT_BLOCK; 0: all
};

struct placed_span {
    char *memory[N_ARRAYS];
    size_t offset[N_ARRAYS], bytes[N_ARRAYS];
};

static void place(struct stream *stream, const struct span *span, const struct manner *manner,
                  struct placed_span *placed) {
    struct device *device = stream->device;
    for (int k = 0; k < N_ARRAYS; k++) {
        size_t bytes = array_bytes(span, k);
        placed->offset[k] = manner->guarded ? GUARD + dtype_size(array_type(span, k)) : 0;
        placed->bytes[k] = bytes == 0 ? 0 : placed->offset[k] + bytes + (manner->guarded ? GUARD : 0);
        void *memory = NULL;
        EXPECT_OK(device->memory_new(device, placed->bytes[k], "tests", &memory));
        placed->memory[k] = memory;
        char *image = malloc(placed->bytes[k] + 1);
        assert_non_null(image);
        memset(image, POISON, placed->bytes[k] + 1);
        if (bytes > 0)
            memcpy(image + placed->offset[k], span->arrays[k], bytes);
        EXPECT_OK(device->copy(stream, memory, image, placed->bytes[k]));
        EXPECT_OK(device->synchronize(stream));
        free(image);
    }
}

// Copies an array from the device and frees it.
static void take(struct stream *stream, struct span *span, struct placed_span *placed) {
    struct device *device = stream->device;
    for (int k = 0; k < N_ARRAYS; k++) {
        size_t bytes = array_bytes(span, k);
        unsigned char *image = malloc(placed->bytes[k] + 1);
        assert_non_null(image);
        EXPECT_OK(device->copy(stream, image, placed->memory[k], placed->bytes[k]));
        EXPECT_OK(device->synchronize(stream));
        for (size_t i = 0; i < placed->bytes[k]; i++)
            if ((i < placed->offset[k] || i >= placed->offset[k] + bytes) && image[i] != POISON)
                fail_msg("%s: byte %td outside the span was overwritten", array_names[k],
                         (ptrdiff_t)i - (ptrdiff_t)placed->offset[k]);
        if (bytes > 0)
            memcpy(span->arrays[k], image + placed->offset[k], bytes);
        device->memory_delete(device, placed->memory[k], placed->bytes[k]);
        free(image);
    }
}

static void *element(const struct span *span, const struct placed_span *placed, int k, size_t i) {
    if (placed->bytes[k] == 0)
        return NULL;
    return placed->memory[k] + placed->offset[k] +
           (k >= M_SCALES ? i / MOMENT_BLOCK : i) * dtype_size(array_type(span, k));
}

static struct optimizer_state state_at(const struct span *span, const struct placed_span *placed, size_t i) {
    return (struct optimizer_state){.master = element(span, placed, MASTER, i),
                                    .m = element(span, placed, M, i),
                                    .v = element(span, placed, V, i),
                                    .m_scales = element(span, placed, M_SCALES, i),
                                    .v_scales = element(span, placed, V_SCALES, i)};
}

// The span after a step.
static struct span stepped(struct op_bench *bench, const struct span *span,
                           const struct op_optimizer_setting *setting, const struct manner *manner) {
    struct stream stream;
    struct placed_span placed;
    struct span after = span_new(span, span->state_type);
    EXPECT_OK(stream_init(&stream, bench->device));
    place(&stream, span, manner, &placed);
    size_t length = manner->length ? manner->length : span->n;
    for (size_t i = 0; i < span->n; i += length) {
        struct optimizer_step_args args =
            op_optimizer_args(span->optimizer, setting, span->n - i < length ? span->n - i : length);
        args.state = state_at(span, &placed, i);
        args.param = element(span, &placed, PARAM, i);
        args.grad = element(span, &placed, GRAD, i);
        args.first = span->first + i;
        args.type = span->type;
        args.grad_type = span->grad_type;
        args.state_type = span->state_type;
        EXPECT_OK(bench->device->ops->optimizer_step(&stream, &args));
        bench->n_calls[OP_optimizer_step]++;
    }
    take(&stream, &after, &placed);
    stream_free(&stream);
    if (memcmp(after.arrays[GRAD], span->arrays[GRAD], array_bytes(span, GRAD)) != 0)
        fail_msg("the gradients were changed");
    return after;
}

// Compares bits. Any two NaN are equal in weights and in fp32 moments, where the contract does not define
// their bits.
static bool same_element(const struct span *a, const struct span *b, int k, size_t i) {
    size_t size = dtype_size(array_type(a, k));
    if (memcmp(a->arrays[k] + i * size, b->arrays[k] + i * size, size) == 0)
        return true;
    if (k != MASTER && k != PARAM && (k >= M_SCALES || a->state_type != DTYPE_F32))
        return false;
    float values[2];
    for (int j = 0; j < 2; j++) {
        const unsigned char *at = (j ? b : a)->arrays[k] + i * size;
        uint16_t half;
        memcpy(&half, at, sizeof half);
        memcpy(&values[j], at, size);
        if (size == sizeof half)
            values[j] = a->type == DTYPE_F16 ? f16_to_float(half) : bf16_to_float(half);
    }
    return isnan(values[0]) && isnan(values[1]);
}

static void compare(const struct op_bench *bench, const struct span *got, const struct span *wanted,
                    const char *what) {
    for (int k = PARAM; k < N_ARRAYS; k++)
        for (size_t i = 0; i < array_bytes(got, k) / dtype_size(array_type(got, k)); i++)
            if (!same_element(got, wanted, k, i))
                fail_msg("%s: %s, %s moments, %s parameters, %s gradients, n %zu: %s[%zu] has different bits "
                         "than %s",
                         bench->device->description, got->optimizer->name, dtype_name(got->state_type),
                         dtype_name(got->type), dtype_name(got->grad_type), got->n, array_names[k], i, what);
}

static void check_span(struct op_bench *bench, const struct span *like, enum dtype state_type,
                       const struct op_optimizer_setting *setting) {
    static const struct manner plain = {0};
    static const struct manner others[] = {{.guarded = true}, {.guarded = true, .length = 128}};
    struct span span = span_new(like, state_type);
    span_fill(&span);
    struct span wide = span_upcast(&span);
    struct span wide_after = stepped(bench, &wide, setting, &plain);
    struct span wanted = span_downcast(&wide_after, state_type, setting->step);
    struct span got = stepped(bench, &span, setting, &plain);
    compare(bench, &got, &wanted, "the fp32 step, rounded");
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        struct span again = stepped(bench, &span, setting, &others[k]);
        compare(bench, &again, &got, "the same step in one call");
        span_delete(&again);
    }
    span_delete(&span), span_delete(&wide), span_delete(&wide_after), span_delete(&wanted), span_delete(&got);
}

// Where the run is short, each fifth tail, as of optimizer_step.
void op_check_small_moments(struct op_bench *bench) {
    const size_t every_length = op_is_short(bench) ? 5 : 1;
    for (int rule = 0; rule < N_OP_OPTIMIZERS; rule++)
        for (size_t n = 1; n <= 259 && op_optimizers[rule].n_moments > 0; n += n < 256 ? every_length : 1)
            for (int state = 0; state < 2; state++) {
                struct span span = {.optimizer = &op_optimizers[rule],
                                    .n = n < 258    ? n
                                         : n == 258 ? 1021
                                                    : 5003,
                                    .first = n % 3 * 0xffffff80u, // element numbers beyond 32 bits too
                                    .type = (enum dtype)(n % N_COMPUTE_DTYPES),
                                    .grad_type = (enum dtype)(n / 3 % N_COMPUTE_DTYPES)};
                check_span(bench, &span, state ? DTYPE_I8 : DTYPE_BF16,
                           &op_optimizer_settings[n % N_OP_OPTIMIZER_SETTINGS]);
            }
}

void op_check_same_steps(struct op_bench *bench, struct op_bench *other) {
    static const size_t lengths[] = {1, 7, 257, 1021};
    static const enum dtype state_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I8};
    static const struct manner manners[] = {{0}, {.guarded = true}};
    for (int k = 0; k < 4 * N_OP_OPTIMIZERS * 3 * 9; k++) {
        struct span like = {.optimizer = &op_optimizers[k / 4 % N_OP_OPTIMIZERS],
                            .n = lengths[k % 4],
                            .first = 1u << 20,
                            .type = (enum dtype)(k / 60 % 3),
                            .grad_type = (enum dtype)(k / 180)};
        struct span span = span_new(&like, state_types[k / 20 % 3]);
        span_fill(&span);
        for (int way = 0; way < 2; way++) {
            const struct op_optimizer_setting *setting = &op_optimizer_settings[(k + way) % 3];
            struct span here = stepped(bench, &span, setting, &manners[way]);
            struct span there = stepped(other, &span, setting, &manners[way]);
            compare(bench, &here, &there, other->device->description);
            span_delete(&here), span_delete(&there);
        }
        span_delete(&span);
    }
    op_check_same_schedule_free(bench, other);
}
