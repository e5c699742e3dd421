// Recorded traces (model/trace.h), against what is known of GPT-2's passes by formula.
#include "model/trace.h"
#include "tests/support/flops_formula.h"
#include "tests/support/whole_model.h"

#include <stdio.h>

static const struct gpt_config config = {
    .n_layer = 4, .n_head = 2, .n_embd = 16, .vocab_size = 60, .n_positions = 32};

static struct trace record(const struct params *params, enum gpt_recompute recompute, int T,
                           enum trace_kind kind) {
    struct trace trace;
    if (kind == TRACE_PROMPT || kind == TRACE_DECODING)
        assert_ok(generator_trace(params, kind, &trace));
    else
        assert_ok(gpt_trace(params, recompute, T, kind, &trace));
    assert_int_equal(trace.kind, kind);
    return trace;
}

// What is acquired is released, and never more than two units are held.
static void check_balance(const struct params *params, const struct trace *trace) {
    int held[8] = {0}, n = 0;
    for (int i = 0; i < trace->n_events; i++) {
        const struct trace_event *event = &trace->events[i];
        assert_in_range(event->unit, 0, params->n_units - 1);
        held[event->unit] += event->acquires ? 1 : -1;
        n += event->acquires ? 1 : -1;
        assert_in_range(held[event->unit], 0, 1);
        assert_in_range(n, 0, 2);
    }
    assert_int_equal(n, 0);
}

// Units in order: embeddings, blocks, final norm and embeddings again (lm_head); in backward the reverse.
static void check_units(const struct params *params, const struct trace *trace) {
    const int L = params->config.n_layer;
    const bool has_head = trace->kind != TRACE_PROMPT;
    const int n = trace->kind == TRACE_TRAINING ? 2 * L + 4 : L + (has_head ? 3 : 1);
    int k = 0;
    for (int i = 0; i < trace->n_events; i++) {
        const struct trace_event *event = &trace->events[i];
        if (!event->acquires)
            continue;
        const int unit = k <= L + 1 ? k : k == L + 2 ? 0 : 2 * L + 3 - k;
        const bool is_training = trace->kind == TRACE_TRAINING;
        const enum gpt_pass pass = !is_training || k <= L ? GPT_FORWARD
                                   : k == 2 * L + 3       ? GPT_BACKWARD_GRADS
                                                          : GPT_BACKWARD;
        assert_int_equal(event->unit, unit);
        assert_int_equal(event->pass, pass);
        k++;
    }
    assert_int_equal(k, n);
}

static void test_order_of_units(void **state) {
    (void)state;
    struct params params;
    assert_ok(params_init(&params, &config));
    for (int kind = 0; kind < N_TRACES; kind++)
        for (int recompute = 0; recompute < N_RECOMPUTE; recompute++) {
            struct trace trace = record(&params, (enum gpt_recompute)recompute, 8, (enum trace_kind)kind);
            check_units(&params, &trace);
            check_balance(&params, &trace);
            trace_free(&trace);
        }
    params_free(&params);
}

// Weights of matrix products, the tied lm_head counted once and wpe not at all.
static double product_weights(const struct params *params) {
    double sum = 0;
    for (int i = 0; i < params->n_params; i++)
        if (params->params[i].n_dims == 2 && i != PARAM_WPE)
            sum += (double)params->params[i].elements;
    return sum;
}

// Forward: two FLOPs per weight and token, and for attention 4 C per pair of a query and a key. Backward:
// twice that, and the recomputed scores (2 C per pair). Recomputation: per block but the last, the products
// that its level repeats.
static void test_flops(void **state) {
    (void)state;
    struct params params;
    const int T = 24, L = config.n_layer;
    const double C = config.n_embd, pairs = T * (T + 1) / 2.0;
    assert_ok(params_init(&params, &config));
    const double forward = 2 * T * product_weights(&params) + L * 4 * C * pairs;
    const double block = 2 * T * 12 * C * C + 4 * C * pairs;
    const double again[N_RECOMPUTE] = {[RECOMPUTE_ATTENTION] = 2 * T * 3 * C * C + 4 * C * pairs,
                                       [RECOMPUTE_BLOCK] = block - 2 * T * 4 * C * C};
    struct trace evaluation = record(&params, RECOMPUTE_NONE, T, TRACE_EVALUATION);
    assert_true(trace_flops(&evaluation) == forward);
    trace_free(&evaluation);
    for (int recompute = 0; recompute < N_RECOMPUTE; recompute++) {
        struct trace training = record(&params, (enum gpt_recompute)recompute, T, TRACE_TRAINING);
        assert_true(trace_flops(&training) == 3 * forward + L * 2 * C * pairs + (L - 1) * again[recompute]);
        trace_free(&training);
    }
    params_free(&params);
}

// 6 P + 6 L C T counts wpe, norms and biases like products, and each position attends to itself in addition.
static void test_flops_per_token(void **state) {
    (void)state;
    static const struct gpt_config gpt2[] = {
        {.n_layer = 12, .n_head = 12, .n_embd = 768, .vocab_size = 50257, .n_positions = 1024},
        {.n_layer = 48, .n_head = 25, .n_embd = 1600, .vocab_size = 50257, .n_positions = 1024}};
    for (int i = 0; i < 2; i++) {
        struct params params;
        const int T = gpt2[i].n_positions;
        double recorded;
        assert_ok(params_init(&params, &gpt2[i]));
        assert_ok(gpt_flops_per_token(&params, T, &recorded));
        const double others = (double)params.n_weights - product_weights(&params),
                     formula =
                         flops_by_formula(&params, T) - 6 * others + 6.0 * gpt2[i].n_layer * gpt2[i].n_embd;
        assert_true(fabs(recorded / formula - 1) < 1e-15 * gpt2[i].n_layer);
        assert_true(fabs(recorded / flops_by_formula(&params, T) - 1) < 0.01);
        params_free(&params);
    }
}

static void expect_failure(enum status status, const char *first, const char *second) {
    assert_int_equal(status, STATUS_FAILED);
    if (!strstr(status_message(), first) || !strstr(status_message(), second))
        fail_msg("'%s' lacks '%s' or '%s'", status_message(), first, second);
    status_clear();
}

// A mismatch names what came and what the trace has.
static void test_mismatches_are_refused(void **state) {
    (void)state;
    struct params params;
    struct trace_cursor cursor = {.next = 0};
    assert_ok(params_init(&params, &config));
    struct trace trace = record(&params, RECOMPUTE_NONE, 8, TRACE_EVALUATION);
    struct trace prompt = record(&params, RECOMPUTE_NONE, 8, TRACE_PROMPT);
    const struct trace_event first = {true, 0, GPT_FORWARD, 0};
    expect_failure(trace_follow(&cursor, &first), "acquires unit 0 for forward", "before a pass began");
    assert_ok(trace_begin(&cursor, &trace));
    for (int i = 0; i < trace.n_events; i++) {
        struct trace_event other = trace.events[i];
        other.unit++;
        expect_failure(trace_follow(&cursor, &other), "evaluation", other.acquires ? "acquires" : "releases");
        other = trace.events[i];
        other.acquires = !other.acquires;
        expect_failure(trace_follow(&cursor, &other), "acquires", "releases");
        other = trace.events[i];
        other.pass = GPT_BACKWARD;
        expect_failure(trace_follow(&cursor, &other), "for backward", "for forward");
        expect_failure(trace_begin(&cursor, &prompt), "pass of prompt", "pass of evaluation");
        other = trace.events[i];
        other.flops = -1; // is not compared
        assert_ok(trace_follow(&cursor, &other));
        assert_int_equal(cursor.next, i + 1);
    }
    expect_failure(trace_follow(&cursor, &first), "acquires unit 0 for forward", "after the end");
    assert_ok(trace_begin(&cursor, &prompt));
    trace_free(&prompt);
    trace_free(&trace);
    params_free(&params);
}

static void test_bad_lengths_are_refused(void **state) {
    (void)state;
    struct params params;
    struct trace trace;
    assert_ok(params_init(&params, &config));
    assert_int_equal(gpt_trace(&params, RECOMPUTE_NONE, 33, TRACE_TRAINING, &trace), STATUS_INVALID);
    status_clear();
    trace_free(&trace);
    params_free(&params);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_of_units),          cmocka_unit_test(test_flops),
        cmocka_unit_test(test_flops_per_token),         cmocka_unit_test(test_mismatches_are_refused),
        cmocka_unit_test(test_bad_lengths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
