// Checks of the scalars of an update (update_decide) against plain formulas, and of
// optimizer_spans against one optimizer_step per span, all to the bit.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/moments.h"
#include "kernels/update.h"
#include "tests/ops/op_check.h"
#include "tests/ops/op_check_optimizer.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)

// Memory of the device with a copy of `bytes` bytes at `from`.
static void *put(struct stream *stream, const void *from, size_t bytes) {
    void *memory;
    EXPECT_OK(stream->device->memory_new(stream->device, bytes, "tests", &memory));
    EXPECT_OK(stream->device->copy(stream, memory, from, bytes));
    return memory;
}

static void take(struct stream *stream, void *to, void *memory, size_t bytes) {
    EXPECT_OK(stream->device->copy(stream, to, memory, bytes));
    EXPECT_OK(stream->device->synchronize(stream));
    stream->device->memory_delete(stream->device, memory, bytes);
}

// ---- update_decide

enum { MOST_RANKS = 9, MOST_LOSSES = 6 };

// The sum of losses along the tree, by its definition: a left subtree of the largest power of two below n.
static double tree(const double *losses, int n) {
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return n == 1 ? losses[0] : tree(losses, left) + tree(losses + left, n - left);
}

// The sums of a rank that computes one logical rank.
struct sums {
    int64_t squares[EXACT_WORDS];
    double loss;
};

static struct sums sums_of(double loss, double squares) {
    struct sums sums = {.loss = loss};
    const struct exact_parts parts = exact_parts_of(squares);
    for (int i = 0; i < parts.n; i++)
        sums.squares[parts.first + i] = (int64_t)parts.part[i];
    return sums;
}

static struct update_result decide_after(struct op_bench *bench, struct stream *stream, int32_t before,
                                         const struct update_plan *plan, const void *sums, int ranks,
                                         int n_losses, double max_norm) {
    struct update_result result = {.skipped = before};
    struct update_plan unused;
    const size_t bytes = (size_t)ranks * update_sums_bytes(n_losses);
    void *unused_sums = malloc(bytes);
    struct update_decide_args args = {.result = put(stream, &result, sizeof result),
                                      .plan = put(stream, plan, sizeof *plan),
                                      .sums = put(stream, sums, bytes),
                                      .ranks = ranks,
                                      .n_losses = n_losses,
                                      .max_norm = max_norm};
    EXPECT_OK(bench->device->ops->update_decide(stream, &args));
    op_count_call(bench, OP_update_decide, 1);
    take(stream, &result, args.result, sizeof result);
    take(stream, &unused, (void *)args.plan, sizeof unused);
    take(stream, unused_sums, (void *)args.sums, bytes);
    free(unused_sums);
    return result;
}

static struct update_result decide(struct op_bench *bench, struct stream *stream,
                                   const struct update_plan *plan, const struct sums *sums, int ranks,
                                   double max_norm) {
    return decide_after(bench, stream, -1, plan, sums, ranks, 1, max_norm);
}

// Each rank computes n_losses logical ranks: rank r computes r, ranks + r, 2 ranks + r, ...
static void check_numbers(struct op_bench *bench, struct stream *stream, int ranks, int n_losses,
                          double loss_scale, double max_norm) {
    const struct update_plan plan = {.loss_scale = loss_scale};
    double squares = 0, losses[MOST_RANKS * MOST_LOSSES];
    char *sums = malloc((size_t)ranks * update_sums_bytes(n_losses));
    for (int i = 0; i < ranks * n_losses; i++)
        losses[i] = 1e-3 / (7 * i + 3) + i / 3.0;
    for (int rank = 0; rank < ranks; rank++) {
        const double square = 0.125 + rank * 0x1p-40; // whose sums are exact in double
        const struct sums of_rank = sums_of(0, square);
        char *at = sums + (size_t)rank * update_sums_bytes(n_losses);
        memcpy(at, of_rank.squares, sizeof of_rank.squares);
        for (int j = 0; j < n_losses; j++)
            memcpy(at + update_sums_bytes(j), &losses[j * ranks + rank], sizeof *losses);
        squares += square;
    }
    const struct update_result got = decide_after(bench, stream, -1, &plan, sums, ranks, n_losses, max_norm);
    free(sums);
    const double norm = sqrt(squares) / loss_scale, bound = norm + 1e-6,
                 clipping = max_norm > 0 && max_norm < bound ? max_norm / bound : 1;
    const float grad_scale = (float)(clipping / loss_scale);
    assert_true(got.loss_sum == tree(losses, ranks * n_losses) && got.norm == norm);
    assert_memory_equal(&got.grad_scale, &grad_scale, sizeof grad_scale);
    assert_int_equal(got.skipped, 0);
}

void check_update_decide(struct op_bench *bench) {
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    struct stream stream;
    EXPECT_OK(stream_init(&stream, bench->device));
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int k = 0; k < 6; k++)
            check_numbers(bench, &stream, ranks, 1 + (ranks + k) % MOST_LOSSES, k % 2 ? 65536 : 1,
                          k / 2 * 0.3);
    const struct update_plan plan = {.loss_scale = 1}, ahead = {.loss_scale = 1, .is_ahead = 1};
    const struct sums fine[2] = {sums_of(1, 2), sums_of(3, 4)};
    assert_int_equal(decide(bench, &stream, &plan, fine, 2, 0).skipped, 0);
    for (int32_t before = UPDATE_DONE; before <= UPDATE_SPIKE; before++) // how the update before ended
        assert_int_equal(decide_after(bench, &stream, before, &ahead, fine, 2, 1, 0).skipped, before);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            double numbers[4] = {1, 2, 3, 4};
            numbers[i] = bad[k];
            const struct sums sums[2] = {sums_of(numbers[0], numbers[1]), sums_of(numbers[2], numbers[3])};
            assert_int_equal(decide(bench, &stream, &plan, sums, 2, 1).skipped, UPDATE_NOT_FINITE);
        }
    // The sum of losses is 4, the norm sqrt(6) / 2: limits that they reach are not exceeded.
    const double norm = sqrt(6.0) / 2;
    static const struct {
        double loss_below, norm_below; // how far below the figures the limits are
        int ending;
    } limits[] = {
        {0, 0, UPDATE_DONE}, {1e-9, 0, UPDATE_SPIKE}, {0, 1e-9, UPDATE_SPIKE}, {-1, -1, UPDATE_DONE}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const struct update_plan limited = {.loss_scale = 2,
                                            .most_loss_sum = 4 - limits[i].loss_below,
                                            .most_norm = norm - limits[i].norm_below};
        assert_int_equal(decide(bench, &stream, &limited, fine, 2, 0).skipped, limits[i].ending);
    }
    const struct sums infinite[2] = {sums_of(1, INFINITY), sums_of(3, 4)};
    const struct update_plan limited = {.loss_scale = 1, .most_loss_sum = 1};
    assert_int_equal(decide(bench, &stream, &limited, infinite, 2, 0).skipped, UPDATE_NOT_FINITE);
    stream_free(&stream);
}

// ---- optimizer_spans

enum { MASTER, M, V, M_SCALES, V_SCALES, GRAD, PARAM, N_ARRAYS };
static const size_t lengths[] = {1, 3, 128, 4096, 8192, 8193, 20011, 77};
enum { N_SPANS = sizeof lengths / sizeof *lengths, ELEMENTS = 1 << 16 };

// The arrays of all spans, each span's at `offset` elements; for every second one not aligned to 16 bytes
// (int8: all aligned to their blocks).
struct arrays {
    enum dtype types[N_ARRAYS];
    char *on_device[N_ARRAYS];
    size_t offsets[N_SPANS];
};

static size_t array_bytes(const struct arrays *arrays, int k) {
    return (k == M_SCALES || k == V_SCALES ? ELEMENTS / MOMENT_BLOCK : ELEMENTS) *
           dtype_size(arrays->types[k]);
}

// Any bits but those of NaN and infinity: the state of a run is finite.
static void fill(char *bytes, enum dtype type, size_t n, int k, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = moment_mix((uint32_t)i * N_ARRAYS + (uint32_t)k + seed);
        const float value = (k == V || k == V_SCALES ? 1.0f : (float)(bits >> 8 & 1) * 2 - 1) *
                            moment_float((bits & 0x7fffffu) | (100 + bits % 25) << 23);
        const uint16_t half = type == DTYPE_F16 ? f16_from_float(value) : bf16_from_float(value);
        if (type == DTYPE_I8)
            bytes[i] = (char)bits;
        else if (type == DTYPE_F32)
            memcpy(bytes + i * sizeof value, &value, sizeof value);
        else
            memcpy(bytes + i * sizeof half, &half, sizeof half);
    }
}

static struct arrays make_arrays(struct stream *stream, const struct optimizer_spans_args *args,
                                 char *images[N_ARRAYS]) {
    struct arrays arrays = {.types = {DTYPE_F32, args->state_type, args->state_type, DTYPE_F32, DTYPE_F32,
                                      args->grad_type, args->type}};
    for (int k = 0; k < N_ARRAYS; k++) {
        images[k] = malloc(array_bytes(&arrays, k));
        assert_non_null(images[k]);
        fill(images[k], arrays.types[k], array_bytes(&arrays, k) / dtype_size(arrays.types[k]), k, 5);
        arrays.on_device[k] = put(stream, images[k], array_bytes(&arrays, k));
    }
    size_t at = 0;
    for (int i = 0; i < N_SPANS; i++) {
        arrays.offsets[i] = at + (args->state_type != DTYPE_I8 && i % 2 ? 1 : 0);
        at += (lengths[i] + 2 * MOMENT_BLOCK) / MOMENT_BLOCK * MOMENT_BLOCK;
    }
    return arrays;
}

static struct optimizer_span span_at(const struct optimizer_spans_args *args, const struct arrays *arrays,
                                     int i) {
    void *at[N_ARRAYS];
    for (int k = 0; k < N_ARRAYS; k++) {
        const size_t element =
            k == M_SCALES || k == V_SCALES ? arrays->offsets[i] / MOMENT_BLOCK : arrays->offsets[i];
        at[k] = arrays->on_device[k] + element * dtype_size(arrays->types[k]);
    }
    const bool has_m = args->n_moments > 0, has_v = args->n_moments > 1,
               scales = args->state_type == DTYPE_I8;
    return (struct optimizer_span){.state = {.master = at[MASTER],
                                             .m = has_m ? at[M] : NULL,
                                             .v = has_v ? at[V] : NULL,
                                             .m_scales = has_m && scales ? at[M_SCALES] : NULL,
                                             .v_scales = has_v && scales ? at[V_SCALES] : NULL},
                                   .param = args->has_param ? at[PARAM] : NULL,
                                   .grad = at[GRAD],
                                   .n = lengths[i],
                                   .first = (uint64_t)i << 20,
                                   .lr_scale = i % 3 == 0 ? 0.5 : 1,
                                   .weight_decay = i % 3 == 0 ? 0.1 : 0,
                                   .group = i % 3 == 0};
}

// Takes the step on all spans, by one call or by one optimizer_step each; images: [rw] the arrays.
static void step_spans(struct op_bench *bench, struct device *device, struct optimizer_spans_args args,
                       const struct update_plan *plan, const struct update_result *result, bool by_one_call,
                       char *images[N_ARRAYS]) {
    struct stream stream;
    struct optimizer_span spans[N_SPANS];
    EXPECT_OK(stream_init(&stream, device));
    struct arrays arrays = make_arrays(&stream, &args, images);
    args.n_spans = N_SPANS;
    for (int i = 0; i < N_SPANS; i++) {
        spans[i] = span_at(&args, &arrays, i);
        spans[i].first_tile = args.n_tiles;
        args.n_tiles += (lengths[i] + OPTIMIZER_TILE - 1) / OPTIMIZER_TILE;
        args.n += lengths[i];
        const struct optimizer_step_args step = {.rule = args.rule,
                                                 .state = spans[i].state,
                                                 .param = spans[i].param,
                                                 .grad = spans[i].grad,
                                                 .n = spans[i].n,
                                                 .first = spans[i].first,
                                                 .step = plan->step,
                                                 .lr = plan->lr * spans[i].lr_scale,
                                                 .beta1 = args.beta1,
                                                 .beta2 = args.beta2,
                                                 .epsilon = args.epsilon,
                                                 .weight_decay = spans[i].weight_decay,
                                                 .grad_scale = result->grad_scale,
                                                 .type = args.type,
                                                 .grad_type = args.grad_type,
                                                 .state_type = args.state_type};
        if (!by_one_call && !result->skipped)
            EXPECT_OK(device->ops->optimizer_step(&stream, &step));
    }
    void *table = put(&stream, spans, sizeof spans), *planned = put(&stream, plan, sizeof *plan),
         *decided = put(&stream, result, sizeof *result);
    args.spans = table, args.plan = planned, args.result = decided;
    if (by_one_call) {
        EXPECT_OK(device->ops->optimizer_spans(&stream, &args));
        op_count_call(bench, OP_optimizer_spans, ELEMENTS);
    }
    for (int k = 0; k < N_ARRAYS; k++)
        take(&stream, images[k], arrays.on_device[k], array_bytes(&arrays, k));
    struct update_plan unused_plan;
    struct update_result unused_result;
    take(&stream, spans, table, sizeof spans);
    take(&stream, &unused_plan, planned, sizeof unused_plan);
    take(&stream, &unused_result, decided, sizeof unused_result);
    stream_free(&stream);
}

static void check_case(struct op_bench *bench, const struct op_optimizer *optimizer, enum dtype state_type,
                       int k) {
    const struct op_optimizer_setting *setting = &op_optimizer_settings[k % N_OP_OPTIMIZER_SETTINGS];
    const struct optimizer_spans_args args = {.rule = optimizer->rule,
                                              .n_moments = optimizer->n_moments,
                                              .has_param = k % 2,
                                              .beta1 = setting->beta1,
                                              .beta2 = setting->beta2,
                                              .epsilon = setting->epsilon,
                                              .type = (enum dtype)(k % N_COMPUTE_DTYPES),
                                              .grad_type = DTYPE_F32,
                                              .state_type = state_type};
    struct update_plan plan = {.step = setting->step, .lr = setting->lr, .loss_scale = 1};
    for (int group = 0; group < 2; group++) {
        struct optimizer_step_args step = op_optimizer_args(optimizer, setting, 1);
        step.lr *= group ? 0.5 : 1;
        step.weight_decay = group ? 0.1 : 0;
        plan.constants[group] = optimizer_constants_of(&step);
    }
    const struct update_result result = {.grad_scale = setting->grad_scale, .skipped = k == 4};
    char *got[N_ARRAYS], *wanted[N_ARRAYS];
    const struct arrays types = {
        .types = {DTYPE_F32, state_type, state_type, DTYPE_F32, DTYPE_F32, DTYPE_F32, args.type}};
    step_spans(bench, bench->device, args, &plan, &result, false, wanted);
    for (int i = -1; i < OP_OTHERS; i++) {
        struct device *device = i < 0 ? bench->device : bench->others[i];
        if (!device)
            continue;
        step_spans(bench, device, args, &plan, &result, true, got);
        for (int array = 0; array < N_ARRAYS; array++) {
            if (memcmp(got[array], wanted[array], array_bytes(&types, array)) != 0)
                fail_msg("%s, %s moments, case %d: array %d has other bits than by optimizer_step",
                         optimizer->name, dtype_name(state_type), k, array);
            free(got[array]);
        }
    }
    for (int array = 0; array < N_ARRAYS; array++)
        free(wanted[array]);
}

void check_optimizer_spans(struct op_bench *bench) {
    static const enum dtype state_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I8};
    for (int rule = 0; rule < N_OP_OPTIMIZERS; rule++)
        for (int state = 0; state < (op_optimizers[rule].n_moments > 0 ? 3 : 1); state++)
            for (int k = 0; k < 5; k++)
                check_case(bench, &op_optimizers[rule], state_types[state], k);
}
