// Operations of any device against the reference: a check describes one call (its argument struct and the
// tensors that its pointers stand for), has the reference run it in double, says how far a result may be off,
// and op_call_judge runs it on the device. Knows no backend: devices come from outside. Relies on kernels/ref
// through its table of operations only.
#ifndef ZERO_TESTS_OPS_OP_CHECK_H
#define ZERO_TESTS_OPS_OP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ops.h"

struct op_bench {
    struct device *device;    // under test
    struct device *reference; // kernels/ref
    bool multiplies_bf16;     // a CPU whose attention takes bf16 factors as they are
    int n_calls[N_OPERATIONS];
    int n_wrong;                  // findings so far; each is printed
    double worst_share[N_DTYPES]; // by compute type: the largest error as a share of what was allowed
    uint32_t n_tensors;           // so that each tensor gets random numbers of its own
};

// Element (i, j, k) of a tensor is at i * strides[0] + j * strides[1] + k * strides[2].
struct op_layout {
    size_t counts[3], strides[3];
};
struct op_layout op_span(size_t n);
struct op_layout op_rows(size_t rows, size_t columns, size_t stride);

enum op_role {
    OP_READ,   // must come back as it was
    OP_WRITE,  // holds NaN before the call
    OP_UPDATE, // read and written: [+], [rw], and tensors that are input and output
};

struct op_tensor {
    const char *name;
    void *fields[2]; // the argument struct's pointers to it
    int n_fields;
    enum dtype type; // on the device
    enum op_role role;
    struct op_layout layout;
    size_t span;       // elements from the first to the last
    bool *inside;      // (span) is it an element, or does it lie between rows?
    double *given;     // (span) before the call: normal values, representable in `type`; free to change
    double *truth;     // (span) after the call, by op_call_reference
    double *magnitude; // (span) the same with every number's absolute value, by op_call_magnitudes
    double *allowed;   // (span) error of the computation, without rounding the result to `type`; starts at 0
    bool exact;        // the truth must come out correctly rounded
    const struct op_tensor *rounds; // or NULL: after the call this must be that tensor, rounded
};

struct op_call {
    struct op_bench *bench;
    enum operation operation;
    const char *operation_name;
    void *args;
    enum dtype *type, *out_type; // the argument struct's types (out_type: or NULL)
    struct op_tensor tensors[12];
    int n_tensors;
    char label[96];
};

// op_call_begin(&call, bench, gelu_forward, &args, "n %d", n): args.type must be set already.
#define op_call_begin(call, bench, name, args, ...)                                                          \
    op_call_init((call), (bench), OP_##name, #name, (args), &(args)->type, __VA_ARGS__)
void op_call_init(struct op_call *call, struct op_bench *bench, enum operation operation, const char *name,
                  void *args, enum dtype *type, const char *label_format, ...)
    __attribute__((format(printf, 7, 8)));

// Describes the tensor behind a pointer of the argument struct. `field` is the address of that pointer.
struct op_tensor *op_tensor(struct op_call *call, const char *name, void *field, enum dtype type,
                            enum op_role role, struct op_layout layout);
// A further pointer to the same tensor.
void op_alias(struct op_tensor *tensor, void *field);
// Puts a value, rounded to the tensor's type.
void op_give(struct op_tensor *tensor, size_t i, double value);
// Gives a third of the elements zeros of both signs, numbers at and below the smallest normal one, and one
// beyond fp16.
void op_give_extremes(struct op_tensor *tensor);
// given = mean + deviation * given
void op_scale(struct op_tensor *tensor, double mean, double deviation);

void op_call_reference(struct op_call *call);
void op_call_magnitudes(struct op_call *call);
// allowed = roundings * 2^-24 * magnitude: what sums of products in fp32 may be off, in any order, when no
// path from an input to the result has more than `roundings` roundings (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1; first order).
void op_allow_roundings(struct op_tensor *tensor, double roundings);

// After the call `tensor` must hold the elements that `from` then holds, rounded to its type.
void op_same_when_rounded(struct op_tensor *tensor, const struct op_tensor *from);
// Runs an operation on the reference alone, with the pointers that are in args (DTYPE_F64: to doubles).
void op_reference_call(const struct op_bench *bench, enum operation operation, void *args);

// Runs the call on the device: twice at one place, with guards around every tensor and addresses aligned to
// the element only (the same bits must come twice), then once in pieces of memory of the exact size, where
// the address sanitizer watches. Compares and frees the call.
void op_call_judge(struct op_call *call);

#define OP_UNIT 0x1p-24 // of fp32: the largest relative error of one rounding
// Compute types that a backend must have, for loops.
#define FOR_EACH_TYPE(type)                                                                                  \
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
double op_round(enum dtype type, double value);

// How far gelu'(x) may be off in fp32.
double op_gelu_slope_off(double x);

// One check an operation: check_gelu_forward(bench) and so on.
#define OP_CHECK_PROTOTYPE(name) void check_##name(struct op_bench *bench);
OPERATIONS(OP_CHECK_PROTOTYPE)
#undef OP_CHECK_PROTOTYPE

#endif
