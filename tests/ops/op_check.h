// Compares operations of any device with the reference. A check describes one call (its argument struct and
// the tensors behind its pointers), lets the reference compute it in double, and bounds the error of each
// result; op_call_judge runs the call on the device. Devices, including the reference, are passed in and used
// only through their table of operations, so nothing here depends on a backend.
#ifndef ZERO_TESTS_OPS_OP_CHECK_H
#define ZERO_TESTS_OPS_OP_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ops.h"

#define OP_OTHERS 3

// A test bench: a device, the reference, and the results so far.
struct op_bench {
    struct device *device; // under test
    // Devices that must give the same bits: a CPU with other numbers of threads, otherwise the one under test
    // again. NULL: no more.
    struct device *others[OP_OTHERS];
    struct device *reference; // tests/ref
    bool multiplies_bf16;     // the device's attention multiplies bf16 without upcasting
    bool by_cudnn; // attention: only calls that cuDNN computes, whose tensors are aligned to 16 bytes
    int n_calls[N_OPERATIONS];
    size_t most_elements;         // of a tensor of any call
    int n_judged;                 // calls that op_call_judge has judged
    int n_wrong;                  // errors found so far; each is printed
    double worst_ratio[N_DTYPES]; // by compute type: the largest error / allowed error
    uint32_t n_tensors;           // seeds each tensor's random numbers
};

// Counts a call on a tensor of n elements.
static inline void op_count_call(struct op_bench *bench, enum operation operation, size_t n) {
    bench->n_calls[operation]++;
    bench->most_elements = n > bench->most_elements ? n : bench->most_elements;
}
// A CPU computes calls on fewer elements by one thread (kernels/cpu/cpu.h).
#define OP_THREADED 16384

// True for a short run with fewer calls, where another build makes all of them: on a simulated GPU, where a
// call costs more than its reference; with clang; and for the reference itself, whose code is the same for
// all types.
bool op_is_short(const struct op_bench *bench);
// Whether this build leaves out, in the short run, tests that would only repeat gcc's release builds: it has
// the address sanitizer, or is built by clang.
bool op_leaves_repeats(void);
// For checks with many calls, numbered by the sum of the numbers of their shape and variant. In the short run
// each call has one type, in turn. So every shape is combined with every variant, and both with every type.
bool op_has_turn(enum dtype type, size_t number);

// Element (i, j, k) of a tensor is at i * strides[0] + j * strides[1] + k * strides[2].
struct op_layout {
    size_t counts[3], strides[3];
};
struct op_layout op_span(size_t n);
struct op_layout op_rows(size_t rows, size_t columns, size_t stride);

enum op_role {
    OP_READ,   // must not change
    OP_WRITE,  // holds NaN before the call
    OP_UPDATE, // read and written: [+], [rw], and tensors that are input and output
};

struct op_tensor {
    const char *name;
    void *fields[3]; // addresses of the argument struct's pointers to it
    int n_fields;
    enum dtype type; // on the device
    enum op_role role;
    struct op_layout layout;
    size_t span;   // elements from the first to the last
    bool *inside;  // (span) true for elements, false between rows
    double *given; // (span) before the call: normal values, representable in `type`; a check may change them
    double *truth; // (span) after the call, by op_call_reference
    double *magnitude; // (span) the result with every number replaced by its absolute value, by
                       // op_call_magnitudes
    double *allowed;   // (span) bound of the error before the result is rounded to `type`; starts at 0.
                       // Infinity: any result, NaN too
    bool exact;        // the result must be the truth, correctly rounded
    const struct op_tensor *rounds; // or NULL: the result must be that tensor, rounded
};

struct op_call {
    struct op_bench *bench;
    enum operation operation;
    const char *operation_name;
    void *args;
    enum dtype *types[3]; // the argument struct's: the compute type, and others or NULL
    struct op_tensor tensors[12];
    int n_tensors;
    char label[96];
    void (*arrange)(
        void *args); // NULL, or called before each run: sets what depends on the tensors' addresses
};

// op_call_begin(&call, bench, gelu_forward, &args, "n %d", n): args.type must be set already.
#define op_call_begin(call, bench, name, args, ...)                                                          \
    op_call_init((call), (bench), OP_##name, #name, (args), &(args)->type, __VA_ARGS__)
void op_call_init(struct op_call *call, struct op_bench *bench, enum operation operation, const char *name,
                  void *args, enum dtype *type, const char *label_format, ...)
    __attribute__((format(printf, 7, 8)));

// Describes the tensor behind a pointer of the argument struct. `field` is the address of that pointer.
struct op_tensor *op_add_tensor(struct op_call *call, const char *name, void *field, enum dtype type,
                                enum op_role role, struct op_layout layout);
// Adds a second pointer to the same tensor.
void op_alias(struct op_tensor *tensor, void *field);
// Sets a value before the call, rounded to the tensor's type.
void op_give(struct op_tensor *tensor, size_t i, double value);
// Sets a third of the elements to zeros of both signs, numbers at and below the smallest normal one, and one
// beyond fp16's range.
void op_give_extremes(struct op_tensor *tensor);
// given = mean + deviation * given
void op_scale(struct op_tensor *tensor, double mean, double deviation);

void op_call_reference(struct op_call *call);
void op_call_magnitudes(struct op_call *call);
// allowed = roundings * 2^-24 * magnitude: the error bound of sums of products in fp32, in any order, when no
// path from an input to the result has more than `roundings` roundings (Higham, Accuracy and Stability of
// Numerical Algorithms, section 3.1; first order).
void op_allow_roundings(struct op_tensor *tensor, double roundings);

// After the call, `tensor` must equal `from` (as computed by the device), rounded to its type.
void op_same_when_rounded(struct op_tensor *tensor, const struct op_tensor *from);
// Runs an operation on the reference only, with the pointers in args (DTYPE_F64: to doubles).
void op_reference_call(const struct op_bench *bench, enum operation operation, void *args);

// Runs the call on the device, compares, and frees the call. One run, and one on each of bench->others, are
// at one address, with guard bytes around every tensor and addresses aligned to the element only; their bits
// must be equal. The last run uses allocations of the exact size, for the address sanitizer.
void op_call_judge(struct op_call *call);

#define OP_UNIT 0x1p-24 // largest relative error of one rounding to fp32
// Loops over the compute types that every backend must support.
#define FOR_EACH_TYPE(type)                                                                                  \
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
double op_round(enum dtype type, double value);
// The magnitude from which a number rounds to infinity: half a unit beyond the largest one.
double op_overflow(enum dtype type);

// Error bound of gelu'(x) in fp32.
double op_gelu_slope_off(double x);

// One check per operation: check_gelu_forward(bench) and so on.
#define OP_CHECK_PROTOTYPE(name) void check_##name(struct op_bench *bench);
OPERATIONS(OP_CHECK_PROTOTYPE)
#undef OP_CHECK_PROTOTYPE

#endif
