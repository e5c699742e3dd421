// Statuses: how every fallible function answers, and the one place where the first failure is told.
// A function that can fail returns `enum status`; the first failure on a thread of work records its message
// (what was wrong, where, what was expected, what to do); callers pass the status up with TRY and only main.c
// turns it into an exit code. Valid in C and C++.
#ifndef ZERO_BASE_STATUS_H
#define ZERO_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

// Ordered by severity, so that ranks can agree on the worst by a maximum.
enum status {
    STATUS_OK = 0,
    STATUS_STOPPED,     // asked to stop (a signal); the work so far is saved
    STATUS_INVALID,     // the input is wrong: configuration, arguments, files given (exit code 2)
    STATUS_UNSUPPORTED, // what was asked for cannot be done on this machine or by this build (exit code 2)
    STATUS_FAILED,      // the environment failed: I/O, memory, a library (exit code 1)
};

#define MUST_CHECK __attribute__((warn_unused_result))

// Records the failure if none is recorded yet, and returns `status`, so that `return FAIL(...)` reads well.
// A later failure while cleaning up never hides the first.
#define FAIL(status, ...) status_fail((status), __FILE__, __LINE__, __VA_ARGS__)
enum status status_fail(enum status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Leaves the current function with the status of `expression` unless it is STATUS_OK.
#define TRY(expression)                                                                                      \
    do {                                                                                                     \
        enum status try_status_ = (expression);                                                              \
        if (try_status_ != STATUS_OK)                                                                        \
            return try_status_;                                                                              \
    } while (0)

// As TRY, for a function with one cleanup label: sets `status` (a variable in scope) and jumps there.
#define TRY_GOTO(expression, label)                                                                          \
    do {                                                                                                     \
        status = (expression);                                                                               \
        if (status != STATUS_OK)                                                                             \
            goto label;                                                                                      \
    } while (0)

// The recorded message ("" when there is none) and the source place where it arose ("file.c:12").
// Process-wide and safe to call from any thread; the strings live until status_clear.
const char *status_message(void);
const char *status_place(void);
// Forgets the recorded failure: for tests, and where a failure was expected and dealt with.
void status_clear(void);
// Which record this is: above 0, another one after each status_clear that cleared something.
unsigned status_serial(void);
// 0 for OK and STOPPED, 2 for INVALID and UNSUPPORTED, 1 for FAILED.
int status_exit_code(enum status status);

#ifdef __cplusplus
}
#endif
#endif
