// The history of a run, printed as JSON and parsed again; wrong members are refused by name.
#include "tests/support/expect.h"

#include <stdio.h>

#include "base/json.h"
#include "zero/checkpoint/run_state.h"

static enum status parse(const char *json, struct run_state *history) {
    cJSON *root;
    EXPECT_OK(json_parse(json, strlen(json), "json", &root));
    *history = (struct run_state){0};
    enum status status = run_state_parse(history, root, 20, "manifest.json");
    cJSON_Delete(root);
    return status;
}

// The output of run_state_print, as a complete JSON object.
static void print(const struct run_state *history, struct text *out) {
    text_add(out, "{\n");
    run_state_print(history, out);
    text_add(out, "  \"end\": 0}");
}

static struct run_state make_history(void) {
    struct run_state history = {.best = {15, 40, 0.1 + 0.2},
                                .warmup_steps = 7,
                                .pacing = {5, 123.456789012345678, {12, 800, 1.0 / 3, 6.25}}};
    run_state_add_change(&history, 3, "optimizer.lr", "0.0006", "0.0003");
    run_state_add_change(&history, 9, "scheduler.type", "\"cosine\"", "\"linear\"");
    return history;
}

static void test_print_and_parse(void **state) {
    (void)state;
    struct run_state history = make_history(), back;
    struct text json = {0}, again = {0};
    print(&history, &json);
    EXPECT_OK(parse(json.data, &back));
    assert_int_equal(back.n_changes, 2);
    assert_int_equal(back.changes[1].step, 9);
    assert_string_equal(back.changes[1].option, "scheduler.type");
    assert_string_equal(back.changes[1].was, "\"cosine\"");
    assert_true(back.best.step == 15 && back.best.sequences == 40 && back.best.loss == history.best.loss);
    assert_int_equal(back.warmup_steps, 7);
    assert_true(back.pacing.max_minutes == 5 && back.pacing.spent_s == history.pacing.spent_s);
    assert_true(back.pacing.decision.step == 12 && back.pacing.decision.total == 800);
    assert_true(back.pacing.decision.position == 1.0 / 3 && back.pacing.decision.spent_s == 6.25);
    print(&back, &again);
    assert_string_equal(again.data, json.data);
    text_free(&json);
    text_free(&again);
    run_state_free(&history);
    run_state_free(&back);
}

static void test_nothing_recorded(void **state) {
    (void)state;
    struct text json = {0};
    struct run_state history = {0};
    print(&history, &json);
    assert_string_equal(json.data, "{\n  \"end\": 0}");
    EXPECT_OK(parse(json.data, &history));
    assert_true(history.n_changes == 0 && history.best.sequences == 0 && history.pacing.max_minutes == 0);
    text_free(&json);
}

// Each case changes one thing in a good history.
static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"step\": 9", "\"step\": 21", "step"}, // after the checkpoint's step
        {"\"step\": 12", "\"step\": 21", "step"},
        {"\"total\": 800", "\"total\": 11", "total"}, // less than was done
        {"\"position\": 0", "\"position\": 1", "position is 1.3"},
        {"\"decided_s\": 6", "\"decided_s\": -6", "decided_s"},
        {"\"was\": \"0.0006\"", "\"was\": 0.0006", "was"},
        {"\"val_sequences\": 40", "\"val_sequences\": 0", "val_sequences"},
        {"\"spent_s\": 123", "\"spent_s\": -123", "spent_s"},
        {"\"warmup_steps\": 7", "\"warmup_steps\": -7", "warmup_steps"},
        {"\"history\": [", "\"history\": 5, \"rest\": [", "history"},
        {"\"best\": {", "\"best\": 5, \"rest\": {", "best"},
        {"\"pacing\": {", "\"pacing\": 5, \"rest\": {", "pacing"},
    };
    struct run_state history = make_history(), back;
    struct text json = {0};
    print(&history, &json);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = strstr(json.data, cases[i].from);
        assert_non_null(at);
        struct text bad = {0};
        text_add_bytes(&bad, json.data, (size_t)(at - json.data));
        text_add(&bad, "%s%s", cases[i].to, at + strlen(cases[i].from));
        EXPECT_FAILURE(STATUS_INVALID, parse(bad.data, &back), "manifest.json", cases[i].says);
        run_state_free(&back);
        text_free(&bad);
    }
    text_free(&json);
    run_state_free(&history);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print_and_parse),
        cmocka_unit_test(test_nothing_recorded),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
