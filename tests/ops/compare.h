// Runs one call on a backend and on the oracle, with the same random operands, and compares what they wrote:
// within a tolerance, to the bit from one run to the next, and nothing outside. Knows no backend: a device is
// all it takes.
#ifndef ZERO_TESTS_COMPARE_H
#define ZERO_TESTS_COMPARE_H

#include "kernels/ops.h"

enum role {
    READ,
    WRITE, // poisoned beforehand
    ADD,   // filled with random values beforehand: they must still be in the sum
    UPDATE // read and written
};

// One tensor of a call. Tolerance of element i: absolute + relative |expected|; see the cases for where they
// come from.
struct operand {
    enum role role;
    enum dtype type;
    size_t n;
    float low, high; // of the random values
    double absolute, relative;
    size_t row, stride; // written elements: the first `row` of every `stride` (0: all)
    const void *fixed;  // READ: these bytes instead of random ones
};

#define MOST_OPERANDS 12

// A call: its operands, and how to make the arguments from their addresses (in the same order).
struct comparison {
    enum operation operation;
    const char *what; // the shape, for messages
    struct operand operands[MOST_OPERANDS];
    int n_operands;
    // Runs the operation; `pointers` are the operands' addresses. `context` is the test's.
    enum status (*run)(struct stream *stream, void *const *pointers, const void *context, size_t *workspace);
    const void *context;
};

// Fails the test with the operand, element, both values and the tolerance.
void ops_compare(struct device *device, struct device *oracle, const struct comparison *comparison);
// The worst error met so far for an operation, as a part of its tolerance; -1 when it was never compared.
double ops_worst(enum operation operation);

#endif
