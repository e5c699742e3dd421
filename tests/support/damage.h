// For fuzz tests of file readers: a file in memory, reproducible random numbers, damage that suits any kind
// of file, and the loop that tries many damaged files. Header only, like the rest of what tests share.
#ifndef ZERO_TESTS_SUPPORT_DAMAGE_H
#define ZERO_TESTS_SUPPORT_DAMAGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

struct bytes {
    uint8_t data[20480];
    size_t n;
};

struct damage_random {
    uint64_t seed, n_drawn;
};

static inline size_t damage_below(struct damage_random *random, size_t bound) {
    return (size_t)rng_below(random->seed, 1, random->n_drawn++, bound > 0 ? bound : 1);
}

// One of the characters that have a meaning in such files or, one time in four, any byte.
static inline uint8_t damage_byte(struct damage_random *random, const char *meaningful, size_t n_meaningful) {
    return damage_below(random, 4) == 0 ? (uint8_t)damage_below(random, 256)
                                        : (uint8_t)meaningful[damage_below(random, n_meaningful)];
}

// Kinds 0 to 2: truncates at `at`, removes `length` bytes, or repeats them if there is room. Returns false
// for other kinds.
static inline bool damage_length(struct bytes *bytes, size_t kind, size_t at, size_t length) {
    size_t rest = bytes->n - at;
    if (kind == 0) {
        bytes->n = at;
    } else if (kind == 1) {
        memmove(bytes->data + at, bytes->data + at + length, rest - length);
        bytes->n -= length;
    } else if (kind == 2 && bytes->n + length <= sizeof bytes->data) {
        memmove(bytes->data + at + length, bytes->data + at, rest);
        bytes->n += length;
    }
    return kind <= 2;
}

// Writes without flushing, which would take most of the test's time.
static inline void damage_write(const char *path, const struct bytes *bytes) {
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes->data, 1, bytes->n, stream), bytes->n);
    assert_int_equal(fclose(stream), 0);
}

// One kind of damaged file, tried many times, in the same order on every run.
struct damage_trials {
    const char *what;                         // for the report: "shards"
    int n;                                    // files to try; ten times as many with ZERO_TESTS_FULL
    void (*make)(int i, struct bytes *bytes); // makes damaged file i
    bool (*try)(
        const struct bytes *bytes); // returns whether it is well-formed; fails the test if that is wrong
};

// Some files must still be well-formed, so that the code after a successful open runs too. More than a
// quarter must not be, so that the damage reaches the checks.
static inline void damage_try_all(const struct damage_trials *trials) {
    int n = trials->n * (getenv("ZERO_TESTS_FULL") ? 10 : 1), n_good = 0;
    for (int i = 0; i < n; i++) {
        struct bytes bytes;
        trials->make(i, &bytes);
        n_good += trials->try(&bytes);
    }
    print_message("%d damaged %s, of which %d were still well-formed\n", n, trials->what, n_good);
    assert_in_range(n_good, 1, n - n / 4 - 1);
}

#endif
