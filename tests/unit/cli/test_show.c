// What ./train tokenize shows while it works, in a log.
#include "tests/support/expect.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/tokenize/tokenize.h"
#include "tests/support/temporary.h"

static struct temporary temporary;

// What one call writes to the log, `after_s` seconds after the one before and the beginning.
static char *shown(struct tokenize_shown *show, double after_s, uint64_t done, uint64_t tokens) {
    char path[300], *text;
    size_t n;
    temporary_path(&temporary, "log.txt", path, sizeof path);
    EXPECT_OK(file_write_all(path, "", 0));
    EXPECT_OK(log_open_file(path));
    show->began_s -= after_s;
    show->shown_s -= after_s;
    tokenize_show(show, done, tokens);
    log_live_end();
    log_close_file();
    EXPECT_OK(file_read(path, 10000, &text, &n));
    return text;
}

static void expect_shown(struct tokenize_shown *show, double after_s, uint64_t done, const char *wanted) {
    char *text = shown(show, after_s, done, 12345678);
    if (!strstr(text, wanted))
        fail_msg("\"%s\" lacks \"%s\"", text, wanted);
    free(text);
}

static void test_a_line_per_minute(void **state) {
    (void)state;
    const double now_s = clock_monotonic_s();
    struct tokenize_shown show = {now_s, now_s, 20 << 20, 100 << 20}; // a fifth was done before
    char *text = shown(&show, 59, 30 << 20, 1);
    assert_string_equal(text, "");
    free(text);
    text = shown(&show, 2, 30 << 20, 12345678);
    assert_non_null(strstr(text, " 30 %  30.0 MiB of 100.0 MiB  12.3M tokens  16"));
    assert_non_null(strstr(text, " KiB/s  7:0"));
    free(text);
    text = shown(&show, 59, 40 << 20, 1); // only 59 s after the line before
    assert_string_equal(text, "");
    free(text);
    expect_shown(&show, 2, 100 << 20, "100 %  100.0 MiB of 100.0 MiB  12.3M tokens");
}

static void test_a_pipe_has_no_end(void **state) {
    (void)state;
    const double now_s = clock_monotonic_s();
    struct tokenize_shown show = {now_s, now_s, 0, 0};
    char *text = shown(&show, 100, 50 << 20, 12345678);
    assert_non_null(strstr(text, "50.0 MiB  12.3M tokens  51"));
    assert_non_null(strstr(text, " KiB/s"));
    assert_null(strstr(text, "left"));
    assert_null(strstr(text, "%"));
    free(text);
}

static int set_up(void **state) {
    (void)state;
    unsetenv("TERM"); // no terminal, wherever the test runs
    return temporary_init(&temporary) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_per_minute),
        cmocka_unit_test(test_a_pipe_has_no_end),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
