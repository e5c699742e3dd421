// The ledger's history: what is kept, compared, appended and dropped when sessions follow each other.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "tests/support/expect.h"
#include "tests/support/temporary.h"
#include "trainer/runs/ledger.h"

static struct temporary temporary;
static char path[300];

// A state and a step whose digests follow from the step and the history that it belongs to.
static struct ledger_state state_of(int64_t step, int history) {
    struct ledger_state state = {.step = step};
    memset(state.root.bytes, (int)(step + 50 * history), DIGEST_BYTES);
    return state;
}

static struct ledger_step step_of(int64_t step, int history) {
    struct ledger_step figures = {.step = step, .figures = {1e-3, 5.0 / (double)step + history, 0.1, 1}};
    memset(figures.data.bytes, (int)step, DIGEST_BYTES);
    return figures;
}

static enum status read_ledger(struct ledger *ledger) {
    char *text = NULL;
    size_t bytes = 0;
    if (file_exists(path))
        EXPECT_OK(file_read(path, 1 << 20, &text, &bytes));
    const enum status status = ledger_parse(ledger, path, text ? text : "", bytes);
    free(text);
    return status;
}

// Trains steps from + 1 to `to`, with an entry at each even step. Returns the first failure.
static enum status session(int64_t from, int64_t to, int history, const char *bound) {
    struct ledger ledger;
    struct text text = {0};
    text_add(&text, "{\"program\":\"p\",\"history\":\"%s\"}", bound);
    enum status status = read_ledger(&ledger);
    if (status == STATUS_OK)
        status = ledger_open(&ledger, NULL);
    const struct ledger_state start = state_of(from, from > 2 ? history : 0);
    if (status == STATUS_OK)
        status = ledger_begin_session(&ledger, &start, text.data, from > 0 ? "the checkpoint" : NULL);
    for (int64_t i = from + 1; i <= to && status == STATUS_OK; i++) {
        const struct ledger_step step = step_of(i, history);
        const struct ledger_state state = state_of(i, history);
        status = ledger_add_step(&ledger, &step);
        if (status == STATUS_OK && i % 2 == 0)
            status = ledger_add_state(&ledger, &state);
    }
    ledger_free(&ledger);
    text_free(&text);
    return status;
}

static void expect_history(int n_lines, int n_sessions, int64_t last_step, int history) {
    struct ledger ledger;
    EXPECT_OK(read_ledger(&ledger));
    assert_int_equal(ledger.n_lines, n_lines);
    assert_int_equal(ledger.n_sessions, n_sessions);
    assert_int_equal(ledger.n_steps, last_step);
    for (int64_t i = 1; i <= last_step; i++) {
        const struct ledger_step *step = ledger_step_at(&ledger, i), wanted = step_of(i, i > 2 ? history : 0);
        assert_non_null(step);
        assert_true(step->figures[LEDGER_LOSS] == wanted.figures[LEDGER_LOSS]);
        assert_int_equal(ledger_state_at(&ledger, i) != NULL, i % 2 == 0);
    }
    assert_null(ledger_step_at(&ledger, last_step + 1));
    ledger_free(&ledger);
}

static void begin(void) {
    EXPECT_OK(file_remove_tree(path));
    EXPECT_OK(session(0, 6, 0, "a"));
    expect_history(4, 1, 6, 0);
}

static void test_repeated_steps_are_compared(void **state) {
    (void)state;
    begin();
    EXPECT_OK(session(2, 8, 0, "a"));
    expect_history(6, 1, 8, 0); // a resume, and the entry of step 8
    EXPECT_FAILURE(STATUS_FAILED, session(2, 8, 1, "a"), "step 3 differs in its loss");
    EXPECT_FAILURE(STATUS_FAILED, session(4, 8, 1, "a"), "step 4 differs in its weights", "the checkpoint");
    EXPECT_OK(session(2, 3, 0, "a")); // killed between two entries
    EXPECT_OK(session(2, 10, 0, "a"));
    expect_history(10, 1, 10, 0);
}

static void test_a_change_makes_another_history(void **state) {
    (void)state;
    begin();
    EXPECT_OK(session(2, 6, 1, "b"));
    expect_history(7, 2, 6, 1);
    EXPECT_OK(session(2, 6, 1, "b")); // the session at step 2 is the one that changed
    expect_history(8, 2, 6, 1);
    EXPECT_OK(session(0, 4, 0, "a")); // without the change, from before it: what follows is dropped
    expect_history(10, 1, 4, 0);
}

static void test_torn_and_altered_lines(void **state) {
    char *text;
    size_t bytes;
    struct ledger ledger;
    (void)state;
    begin();
    EXPECT_OK(file_read(path, 1 << 20, &text, &bytes));
    EXPECT_OK(file_write_all(path, text, bytes - 20)); // killed while it wrote the entry of step 6
    EXPECT_OK(session(4, 6, 0, "a"));
    expect_history(5, 1, 6, 0);
    char *digit = strstr(text, "\"step\":2") + strlen("\"step\":");
    *digit = '1';
    EXPECT_OK(file_write_all(path, text, bytes));
    EXPECT_FAILURE(STATUS_FAILED, read_ledger(&ledger), "line 2 of", "altered");
    ledger_free(&ledger);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_repeated_steps_are_compared),
                                       cmocka_unit_test(test_a_change_makes_another_history),
                                       cmocka_unit_test(test_torn_and_altered_lines)};
    if (!temporary_init(&temporary))
        return 1;
    temporary_path(&temporary, "audit.jsonl", path, sizeof path);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return temporary_free(&temporary) ? failed : 1;
}
