// The oracle: each operation as plain loops in double, to be read beside its contract in kernels/ops.h.
// Values are converted from the tensors' types and rounded back to them one by one; with DTYPE_F64 nothing is
// rounded.
#ifndef ZERO_TESTS_REF_REF_H
#define ZERO_TESTS_REF_REF_H

#include "kernels/ops.h"

// The oracle as a device: one thread, memory from the heap.
enum status ref_device_open(struct device **out) MUST_CHECK;

static inline double ref_load(const void *tensor, enum dtype type, size_t i) {
    switch (type) {
    case DTYPE_F64:
        return ((const double *)tensor)[i];
    case DTYPE_BF16:
        return (double)bf16_to_float(((const uint16_t *)tensor)[i]);
    case DTYPE_F16:
        return (double)f16_to_float(((const uint16_t *)tensor)[i]);
    default:
        return (double)((const float *)tensor)[i];
    }
}

static inline void ref_store(void *tensor, enum dtype type, size_t i, double value) {
    switch (type) {
    case DTYPE_F64:
        ((double *)tensor)[i] = value;
        break;
    case DTYPE_BF16:
        ((uint16_t *)tensor)[i] = bf16_from_float((float)value);
        break;
    case DTYPE_F16:
        ((uint16_t *)tensor)[i] = f16_from_float((float)value);
        break;
    default:
        ((float *)tensor)[i] = (float)value;
    }
}

static inline void ref_accumulate(void *tensor, enum dtype type, size_t i, double value) {
    ref_store(tensor, type, i, ref_load(tensor, type, i) + value);
}

// The accumulation dtype: of mean, rstd, lse, losses, gradients of parameters, master weights and optimizer
// states.
static inline enum dtype ref_wide(enum dtype type) {
    return type == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

double ref_activate(enum activation activation, double x);
double ref_activation_slope(enum activation activation, double x);

#define REF_PROTOTYPE(name)                                                                                  \
    enum status ref_##name(struct stream *stream, const struct name##_args *args) MUST_CHECK;
OPERATIONS(REF_PROTOTYPE)
#undef REF_PROTOTYPE

#endif
