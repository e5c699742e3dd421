// A first signal requests a stop, a second one ends the process at once. Runs in child processes, as signal
// handlers outlive a test.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/signals.h"

#define STOP_REQUESTED 3
#define PAUSE_US       550000   // longer than signals of one request are apart
#define ENDS_US        30000000 // time in which a signal ends the process, which has not ended otherwise
#define STAYS_US       300000   // time in which a signal would have ended it

// The exit code of a process that receives these signals, `pause_us` apart (second 0: only the first). It
// exits by itself `wait_us` after the second one.
static int exit_code_after(int first, int pause_us, int second, int wait_us) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGHUP, SIG_DFL); // also under nohup
        signals_catch();
        if (signals_stop_requested())
            _exit(1);
        kill(getpid(), first);
        for (int i = 0; i < 500 && !signals_stop_requested(); i++)
            usleep(10000);
        if (!signals_stop_requested())
            _exit(2);
        usleep((useconds_t)pause_us);
        if (second)
            kill(getpid(), second);
        usleep((useconds_t)wait_us);
        _exit(STOP_REQUESTED);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

static void test_the_first_signal_requests_a_stop(void **unused) {
    (void)unused;
    assert_int_equal(exit_code_after(SIGINT, 0, 0, 0), STOP_REQUESTED);
    assert_int_equal(exit_code_after(SIGTERM, 0, 0, 0), STOP_REQUESTED);
    assert_int_equal(exit_code_after(SIGHUP, 0, 0, 0), STOP_REQUESTED);
}

static void test_the_second_signal_ends_the_process(void **unused) {
    (void)unused;
    assert_int_equal(exit_code_after(SIGINT, PAUSE_US, SIGINT, ENDS_US), 128 + SIGINT);
    assert_int_equal(exit_code_after(SIGTERM, PAUSE_US, SIGTERM, ENDS_US), 128 + SIGTERM);
    assert_int_equal(exit_code_after(SIGTERM, PAUSE_US, SIGINT, ENDS_US), 128 + SIGINT);
}

// As timeout(1) does: a signal for the process, and the same for its group.
static void test_signals_of_one_request(void **unused) {
    (void)unused;
    assert_int_equal(exit_code_after(SIGTERM, 0, SIGTERM, STAYS_US), STOP_REQUESTED);
    assert_int_equal(exit_code_after(SIGINT, 0, SIGTERM, STAYS_US), STOP_REQUESTED);
}

static void test_a_hangup_only_requests_a_stop(void **unused) {
    (void)unused;
    assert_int_equal(exit_code_after(SIGTERM, PAUSE_US, SIGHUP, STAYS_US), STOP_REQUESTED);
    assert_int_equal(exit_code_after(SIGHUP, PAUSE_US, SIGTERM, STAYS_US), STOP_REQUESTED);
}

static void say_it(void *context, int number) {
    dprintf(STDERR_FILENO, "%s %d\n", (const char *)context, number);
}

// The first signal is answered by a call, the second by a line that was set before.
static void test_both_signals_are_answered(void **unused) {
    (void)unused;
    static char first[] = "finishing";
    char said[200] = "";
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signals_catch();
        signals_on_stop(say_it, first);
        signals_set_farewell("nothing is kept");
        signals_set_farewell("step 5 is kept");
        kill(getpid(), SIGINT);
        usleep(PAUSE_US);
        kill(getpid(), SIGINT);
        usleep(ENDS_US);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], said + length, sizeof said - 1 - length)) > 0;)
        length += (size_t)n;
    close(ends[0]);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(WEXITSTATUS(result), 128 + SIGINT);
    assert_string_equal(said, "finishing 2\nstep 5 is kept\n");
}

// The caller of signals_catch and the threads that it starts are never interrupted.
static void test_signals_are_blocked_in_the_caller(void **unused) {
    (void)unused;
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sigset_t blocked;
        signal(SIGHUP, SIG_DFL);
        signals_catch();
        if (pthread_sigmask(SIG_SETMASK, NULL, &blocked) != 0)
            _exit(1);
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            if (!sigismember(&blocked, numbers[i]))
                _exit(2);
        _exit(0);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_signal_requests_a_stop),
        cmocka_unit_test(test_the_second_signal_ends_the_process),
        cmocka_unit_test(test_signals_of_one_request),
        cmocka_unit_test(test_a_hangup_only_requests_a_stop),
        cmocka_unit_test(test_both_signals_are_answered),
        cmocka_unit_test(test_signals_are_blocked_in_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
