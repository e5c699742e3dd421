// Checks of lerp: the formula, and with an update's plan in the device's memory.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/ops/op_check.h"

#define EXPECT_OK(...) assert_int_equal((__VA_ARGS__), STATUS_OK)

// Roundings: of the difference, of its product unless that is fused, and of the sum.
static void lerp_call(struct op_bench *bench, enum dtype out_type, size_t n, float weight, bool in_place) {
    struct lerp_args args = {.n = n, .weight = weight, .type = DTYPE_F32, .out_type = out_type};
    struct op_call call;
    op_call_begin(&call, bench, lerp, &args, "to %s n %zu weight %g%s", dtype_name(out_type), n,
                  (double)weight, in_place ? " in place" : "");
    call.types[1] = &args.out_type;
    struct op_tensor *x = op_add_tensor(&call, "x", &args.x, DTYPE_F32, in_place ? OP_UPDATE : OP_READ,
                                        op_span(n)),
                     *y = op_add_tensor(&call, "y", &args.y, DTYPE_F32, OP_READ, op_span(n)), *out = x;
    if (in_place)
        op_alias(x, &args.out);
    else
        out = op_add_tensor(&call, "out", &args.out, out_type, OP_WRITE, op_span(n));
    op_give_extremes(x);
    if (weight == 1) // what x holds must not matter
        op_give(x, 0, (double)NAN);
    op_call_reference(&call);
    for (size_t i = 0; i < n; i++)
        out->allowed[i] = weight == 1 ? 0
                                      : 2 * OP_UNIT * fabs((double)weight * (y->given[i] - x->given[i])) +
                                            OP_UNIT * fabs(out->truth[i]) + 0x1p-149;
    op_call_judge(&call);
}

static void *put(struct stream *stream, const void *from, size_t bytes) {
    void *memory;
    EXPECT_OK(stream->device->memory_new(stream->device, bytes, "tests", &memory));
    EXPECT_OK(stream->device->copy(stream, memory, from, bytes));
    return memory;
}

static void take(struct stream *stream, void *to, const void *memory, size_t bytes) {
    EXPECT_OK(stream->device->copy(stream, to, memory, bytes));
    EXPECT_OK(stream->device->synchronize(stream));
    stream->device->memory_delete(stream->device, (void *)(uintptr_t)memory, bytes);
}

// The average after an update: unchanged where the update is skipped, or has no weight in it.
static void planned_call(struct op_bench *bench, float weight, bool skipped) {
    enum { N = 1003 };
    struct stream stream;
    struct update_plan plan = {.average_weight = weight};
    struct update_result result = {.skipped = skipped ? UPDATE_SPIKE : UPDATE_DONE};
    float average[N], master[N], got[N];
    for (int i = 0; i < N; i++) {
        average[i] = (float)(i % 31 - 15) * 0.013f;
        master[i] = (float)(i % 17 - 8) * 0.021f;
    }
    EXPECT_OK(stream_init(&stream, bench->device));
    void *there = put(&stream, average, sizeof average);
    const struct lerp_args args = {.out = there,
                                   .x = there,
                                   .y = put(&stream, master, sizeof master),
                                   .n = N,
                                   .plan = put(&stream, &plan, sizeof plan),
                                   .result = put(&stream, &result, sizeof result),
                                   .type = DTYPE_F32,
                                   .out_type = DTYPE_F32};
    EXPECT_OK(bench->device->ops->lerp(&stream, &args));
    bench->n_calls[OP_lerp]++;
    take(&stream, got, there, sizeof got);
    take(&stream, master, args.y, sizeof master);
    take(&stream, &plan, args.plan, sizeof plan);
    take(&stream, &result, args.result, sizeof result);
    stream_free(&stream);
    for (int i = 0; i < N; i++) {
        const double x = (double)average[i], y = (double)master[i],
                     wanted = skipped ? x : x + (double)weight * (y - x),
                     allowed = weight == 0 || weight == 1 || skipped ? 0 : 4 * OP_UNIT * (fabs(x) + fabs(y));
        if (!(fabs((double)got[i] - wanted) <= allowed))
            fail_msg("lerp, weight %g%s, element %d: %.9g, expected %.9g", (double)weight,
                     skipped ? ", skipped" : "", i, (double)got[i], wanted);
    }
}

void check_lerp(struct op_bench *bench) {
    static const size_t lengths[] = {1, 3, 7, 48, 257, 20011};
    static const float weights[] = {0, 0.001f, 1.0f / 3, 1, -1.0f / 9};
    FOR_EACH_TYPE(type)
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (size_t w = 0; w < sizeof weights / sizeof *weights; w++)
            for (int in_place = 0; in_place < (type == DTYPE_F32 ? 2 : 1); in_place++)
                lerp_call(bench, type, lengths[k], weights[w], in_place);
    for (size_t w = 0; w < 4; w++)
        for (int skipped = 0; skipped < 2; skipped++)
            planned_call(bench, weights[w], skipped);
}
