// Operands lie between guard bytes, at addresses aligned to their element only.
#include "tests/ops/compare.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define GUARD_BYTES 64
#define GUARD       0xA5
#define POISON      0xFF // a NaN in every type

// Each tensor four times: initial values, the oracle's, the device's, and the device's again.
enum copy { INITIAL, EXPECTED, FIRST, SECOND, N_COPIES };
struct placed {
    unsigned char *block[N_COPIES];
    void *data[N_COPIES];
    size_t bytes;
};

static double worst[N_OPERATIONS];
static uint64_t drawn;

double ops_worst(enum operation operation) {
    return worst[operation] > 0 ? worst[operation] - 1 : -1; // kept with 1 added: 0 is "never"
}

static double value_at(const void *data, enum dtype type, size_t i) {
    return type == DTYPE_BF16  ? (double)bf16_to_float(((const uint16_t *)data)[i])
           : type == DTYPE_F64 ? ((const double *)data)[i]
                               : (double)((const float *)data)[i];
}

static void fill_random(const struct operand *operand, void *data) {
    for (size_t i = 0; i < operand->n; i++) {
        float value = operand->low + (operand->high - operand->low) * (float)rng_uniform(7, 3, drawn++);
        if (operand->type == DTYPE_BF16)
            ((uint16_t *)data)[i] = bf16_from_float(value);
        else
            ((float *)data)[i] = value;
    }
}

static void place(const struct operand *operand, struct placed *placed) {
    size_t size = dtype_size(operand->type);
    placed->bytes = operand->n * size;
    for (int copy = 0; copy < N_COPIES; copy++) {
        placed->block[copy] = malloc(placed->bytes + 2 * GUARD_BYTES + size);
        assert_non_null(placed->block[copy]);
        memset(placed->block[copy], GUARD, placed->bytes + 2 * GUARD_BYTES + size);
        placed->data[copy] = placed->block[copy] + GUARD_BYTES + size; // one element off any alignment
    }
    if (operand->fixed)
        memcpy(placed->data[INITIAL], operand->fixed, placed->bytes);
    else if (operand->role == WRITE)
        memset(placed->data[INITIAL], POISON, placed->bytes);
    else
        fill_random(operand, placed->data[INITIAL]);
    for (int copy = EXPECTED; copy < N_COPIES; copy++)
        memcpy(placed->data[copy], placed->data[INITIAL], placed->bytes);
}

static void run_copy(struct device *device, const struct comparison *comparison, const struct placed *placed,
                     enum copy copy) {
    void *pointers[MOST_OPERANDS];
    size_t workspace = 0;
    struct stream stream = {.device = device};
    for (int k = 0; k < comparison->n_operands; k++)
        pointers[k] = comparison->operands[k].n ? placed[k].data[copy] : NULL;
    assert_int_equal(comparison->run(&stream, pointers, comparison->context, &workspace), STATUS_OK);
    void *scratch = malloc(workspace + 1);
    assert_non_null(scratch);
    memset(scratch, POISON, workspace);
    stream.workspace = scratch;
    stream.workspace_bytes = workspace;
    assert_int_equal(comparison->run(&stream, pointers, comparison->context, NULL), STATUS_OK);
    assert_int_equal(device->synchronize(&stream), STATUS_OK);
    free(scratch);
}

static void check_guards(const struct comparison *comparison, int k, const struct placed *placed,
                         enum copy copy) {
    const unsigned char *before = placed->block[copy],
                        *after = (unsigned char *)placed->data[copy] + placed->bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (before[i] != GUARD || after[i] != GUARD)
            fail_msg("%s %s: operand %d written out of bounds", operation_name(comparison->operation),
                     comparison->what, k);
    bool unchanged = comparison->operands[k].role != READ ||
                     memcmp(placed->data[copy], placed->data[INITIAL], placed->bytes) == 0;
    if (!unchanged)
        fail_msg("%s %s: operand %d is only to be read", operation_name(comparison->operation),
                 comparison->what, k);
}

static void check_values(const struct comparison *comparison, int k, const struct placed *placed) {
    const struct operand *operand = &comparison->operands[k];
    size_t row = operand->stride ? operand->row : 1, stride = operand->stride ? operand->stride : 1;
    for (size_t i = 0; i < operand->n; i++) {
        double expected = value_at(placed->data[EXPECTED], operand->type, i),
               got = value_at(placed->data[FIRST], operand->type, i);
        double tolerance = operand->absolute + operand->relative * fabs(expected),
               error = fabs(got - expected);
        if (i % stride >= row) // between rows: must be as it was, to the bit
            continue;
        if (!(error <= tolerance) && !(got == expected))
            fail_msg("%s %s: operand %d element %zu is %.9g, expected %.9g within %.3g",
                     operation_name(comparison->operation), comparison->what, k, i, got, expected, tolerance);
        double part = tolerance > 0 ? error / tolerance : 0;
        if (part + 1 > worst[comparison->operation])
            worst[comparison->operation] = part + 1;
    }
    size_t size = dtype_size(operand->type);
    for (size_t i = 0; i < operand->n; i++)
        if (i % stride >= row && memcmp((char *)placed->data[FIRST] + i * size,
                                        (char *)placed->data[INITIAL] + i * size, size) != 0)
            fail_msg("%s %s: operand %d element %zu, between rows, was written",
                     operation_name(comparison->operation), comparison->what, k, i);
}

void ops_compare(struct device *device, struct device *oracle, const struct comparison *comparison) {
    struct placed placed[MOST_OPERANDS] = {0};
    for (int k = 0; k < comparison->n_operands; k++)
        place(&comparison->operands[k], &placed[k]);
    run_copy(oracle, comparison, placed, EXPECTED);
    run_copy(device, comparison, placed, FIRST);
    run_copy(device, comparison, placed, SECOND);
    for (int k = 0; k < comparison->n_operands; k++) {
        for (int copy = EXPECTED; copy < N_COPIES; copy++)
            check_guards(comparison, k, &placed[k], (enum copy)copy);
        if (comparison->operands[k].role != READ)
            check_values(comparison, k, &placed[k]);
        if (memcmp(placed[k].data[FIRST], placed[k].data[SECOND], placed[k].bytes) != 0)
            fail_msg("%s %s: operand %d differs from run to run", operation_name(comparison->operation),
                     comparison->what, k);
        for (int copy = 0; copy < N_COPIES; copy++)
            free(placed[k].block[copy]);
    }
}
