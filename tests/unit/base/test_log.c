// Log messages and statuses: what is printed where, on a (pseudo-)terminal and elsewhere.
#include "tests/support/expect.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

static int standard_error = -1;

static void redirect(int descriptor) {
    fflush(stderr);
    standard_error = dup(STDERR_FILENO);
    assert_true(standard_error >= 0 && dup2(descriptor, STDERR_FILENO) >= 0);
}

static void restore(void) {
    fflush(stderr);
    dup2(standard_error, STDERR_FILENO);
    close(standard_error);
}

static void test_messages(void **state) {
    (void)state;
    FILE *file = tmpfile();
    char log_path[256], printed[512] = "";
    const char *parent = getenv("TMPDIR");
    snprintf(log_path, sizeof log_path, "%s/zero-log-XXXXXX", parent ? parent : "/tmp");
    int log_descriptor = mkstemp(log_path);
    assert_true(file && log_descriptor >= 0);
    close(log_descriptor);
    redirect(fileno(file));
    log_warning("zero");
    enum status status = log_open_file(log_path);
    log_info("one %d", 1);
    log_debug("hidden");
    log_live(&(struct log_field){"never off a terminal", 0}, 1);
    for (int i = 0; i < 2; i++)
        log_warning_once("two");
    log_set_level(LOG_ERROR);
    log_info("quiet");
    log_error("three");
    log_set_level(LOG_INFO);
    log_close_file();
    log_info("after");
    restore();
    EXPECT_OK(status);
    rewind(file);
    assert_true(fread(printed, 1, sizeof printed - 1, file) > 0);
    assert_string_equal(printed,
                        "train: warning: zero\none 1\ntrain: warning: two\ntrain: error: three\nafter\n");
    fclose(file);

    char *logged;
    size_t bytes;
    EXPECT_OK(file_read(log_path, 10000, &logged, &bytes));
    static const char *const lines[] = {" train: warning: zero\n", " one 1\n", " hidden\n",
                                        " train: warning: two\n",  " quiet\n", " train: error: three\n"};
    const char *at = logged;
    for (int i = 0; i < 6; i++) {
        at = strstr(at, lines[i]);
        assert_non_null(at);
    }
    assert_null(strstr(logged, "after"));
    free(logged);
    unlink(log_path);
    EXPECT_FAILURE(STATUS_FAILED, log_open_file("/no-such-folder/log"), "/no-such-folder/log", "No such");
}

static void test_live_line(void **state) {
    (void)state;
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
        skip(); // no pseudo-terminals here
    int line = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(line >= 0);
    struct winsize size = {.ws_row = 24, .ws_col = 20};
    ioctl(line, TIOCSWINSZ, &size);
    setenv("TERM", "xterm", 1);
    redirect(line);
    bool is_terminal = log_is_terminal();
    const struct log_field one = {"step 1", 0};
    const struct log_field many[] = {{"step 2", 0}, {"norm 1", 2}, {"loss 3.12", 1}, {"", 0}};
    log_live(&one, 1);
    log_live(many, 4);
    log_info("message");
    log_live(many, 4);
    size.ws_col = 10; // narrower than the line: it is left as it is
    ioctl(line, TIOCSWINSZ, &size);
    log_live(many, 4);
    size.ws_col = 40;
    ioctl(line, TIOCSWINSZ, &size);
    log_live(many, 4);
    log_live_end();
    setenv("TERM", "dumb", 1);
    bool is_dumb_terminal = log_is_terminal();
    restore();
    char printed[512] = "";
    size_t length = 0;
    while (length < sizeof printed - 1 && poll(&(struct pollfd){terminal, POLLIN, 0}, 1, 0) == 1) {
        ssize_t n = read(terminal, printed + length, sizeof printed - 1 - length);
        if (n <= 0)
            break;
        length += (size_t)n;
    }
    close(line);
    close(terminal);
    assert_true(is_terminal && !is_dumb_terminal);
    assert_string_equal(printed, "\rstep 1\033[K\rstep 2  loss 3.12\033[K"
                                 "\r\033[Kmessage\r\n\rstep 2  loss 3.12\033[K"
                                 "\r\n\rstep 2\033[K\rstep 2  norm 1  loss 3.12\033[K\r\n");
}

static void test_fields(void **state) {
    (void)state;
    static const struct log_field fields[] = {{"aaaa", 0}, {"bb", 3}, {"cc", 1}, {"dd", 3}};
    static const struct {
        size_t columns;
        const char *line;
    } cases[] = {
        {100, "aaaa  bb  cc  dd"}, {16, "aaaa  bb  cc  dd"}, {15, "aaaa  bb  cc"}, {12, "aaaa  bb  cc"},
        {11, "aaaa  cc"},          {8, "aaaa  cc"},          {7, "aaaa"},          {3, ""}};
    char line[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(log_join_fields(fields, 4, cases[i].columns, line, sizeof line), cases[i].line);
    assert_string_equal(log_join_fields(fields, 4, 100, line, 9), "aaaa  cc"); // the buffer is a limit too
}

static void test_status(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, FAIL(STATUS_INVALID, "first %s", "failure"), "first failure");
    assert_string_equal(status_message(), "");
    assert_int_equal(FAIL(STATUS_FAILED, "first"), STATUS_FAILED);
    assert_int_equal(FAIL(STATUS_INVALID, "second"), STATUS_INVALID);
    assert_string_equal(status_message(), "first"); // later failures never hide it
    assert_non_null(strstr(status_place(), "test_log.c:"));
    status_clear();
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(FAIL(STATUS_FAILED, "%s", longest), STATUS_FAILED);
    assert_true(strlen(status_message()) > 1000);
    status_clear();
    static const int codes[][2] = {{STATUS_OK, 0},
                                   {STATUS_STOPPED, 0},
                                   {STATUS_INVALID, 2},
                                   {STATUS_UNSUPPORTED, 2},
                                   {STATUS_FAILED, 1}};
    for (int i = 0; i < 5; i++)
        assert_int_equal(status_exit_code((enum status)codes[i][0]), codes[i][1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_live_line),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
