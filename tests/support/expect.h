// For tests of failures: the status that a call must return, and the facts that its message must name.
#ifndef ZERO_TESTS_SUPPORT_EXPECT_H
#define ZERO_TESTS_SUPPORT_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

// facts: strings that the message must contain, terminated by NULL. Clears the recorded failure.
static inline void expect_status(enum status got, enum status wanted, const char *const *facts,
                                 const char *file, int line) {
    bool right = got == wanted;
    if (!right)
        print_error("%s:%d: status %d, expected %d; message: %s\n", file, line, got, wanted,
                    status_message());
    for (; right && *facts; facts++)
        if (!strstr(status_message(), *facts)) {
            print_error("%s:%d: the message lacks \"%s\": %s\n", file, line, *facts, status_message());
            right = false;
        }
    status_clear(); // also after a failure: the next test starts with nothing recorded
    if (!right)
        _fail(file, line);
}

#define EXPECT_FAILURE(wanted, call, ...)                                                                    \
    expect_status((call), (wanted), (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)
#define EXPECT_OK(call) expect_status((call), STATUS_OK, (const char *const[]){NULL}, __FILE__, __LINE__)

#endif
