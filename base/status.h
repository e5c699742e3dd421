// Error handling. Every function that can fail returns `enum status`. FAIL records a message (what was wrong,
// where, what was expected, what to do); callers pass the status up with TRY; only main.c turns it into an
// exit code. Only the first failure is recorded. Valid in C and C++.
#ifndef ZERO_BASE_STATUS_H
#define ZERO_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

// Ordered by severity: ranks agree on the worst status by an all-reduce with max.
enum status {
    STATUS_OK = 0,
    STATUS_STOPPED,     // stopped by a signal (exit code 128 + signal) or a closed output pipe (exit code 0)
    STATUS_INVALID,     // wrong input: configuration, arguments or input files (exit code 2)
    STATUS_UNSUPPORTED, // this machine or this build cannot do what was requested (exit code 2)
    STATUS_UNDECIDED,   // what was to be proved is neither proved nor disproved (exit code 3)
    STATUS_FAILED,      // the environment failed: I/O, memory or a library (exit code 1)
};

#define STATUS_MESSAGE_BYTES 8192 // the longest message, with its NUL; longer ones are truncated

#define MUST_CHECK __attribute__((warn_unused_result))

// Records the failure unless one is recorded already, and returns `status`, for `return FAIL(...)`. A second
// failure during cleanup therefore never hides the first.
#define FAIL(status, ...) status_fail((status), __FILE__, __LINE__, __VA_ARGS__)
enum status status_fail(enum status status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Returns the status of `expression` from the current function unless it is STATUS_OK.
#define TRY(expression)                                                                                      \
    do {                                                                                                     \
        enum status try_status_ = (expression);                                                              \
        if (try_status_ != STATUS_OK)                                                                        \
            return try_status_;                                                                              \
    } while (0)

// Like TRY, for functions with a cleanup label: assigns to the local variable `status` and jumps to `label`.
#define TRY_GOTO(expression, label)                                                                          \
    do {                                                                                                     \
        status = (expression);                                                                               \
        if (status != STATUS_OK)                                                                             \
            goto label;                                                                                      \
    } while (0)

// The recorded message ("" when there is none) and its source location ("file.c:12"). Process-wide, safe to
// call from any thread; the strings are valid until status_clear.
const char *status_message(void);
const char *status_place(void);
// Forgets the recorded failure: for tests, and after handling an expected failure.
void status_clear(void);
// A number above 0 that identifies the recorded failure. Each status_clear that clears a message changes it.
unsigned status_serial(void);
// The exit code for a status, as listed above; 0 for STATUS_STOPPED, which main.c replaces after a signal.
int status_exit_code(enum status status);

#ifdef __cplusplus
}
#endif
#endif
