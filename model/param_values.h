// The values of parameters, written to files of other programs: converted to their types, transposed where
// they have the other order, a chunk at a time. Used by the writers of safetensors and GGUF.
#ifndef ZERO_MODEL_PARAM_VALUES_H
#define ZERO_MODEL_PARAM_VALUES_H

#include "base/file.h"
#include "model/params.h"

enum value_type {
    VALUE_F32,
    VALUE_BF16,
    VALUE_F16,
    VALUE_Q8_0, // ggml's: blocks of 32 values, each an fp16 scale and 32 int8
    N_VALUE_TYPES
};
#define VALUE_BLOCK 32                             // values of a Q8_0 block
const char *value_type_name(enum value_type type); // "fp32", "bf16", "fp16", "q8_0"
// Of n values; for VALUE_Q8_0, n is a multiple of VALUE_BLOCK.
size_t value_bytes(enum value_type type, size_t n);

// Where the values come from. `read` gives the fp32 values of elements [first, first + n) of a parameter.
struct param_source {
    const struct params *params;
    const char *name; // for messages: a path
    void *context;
    enum status (*read)(void *context, int param, size_t first, size_t n, float *out);
};

// Writes all elements of a parameter, rounded to nearest with ties to even.
//   transposed   of a matrix (rows, columns): as (columns, rows). Takes memory for the whole tensor; without,
//                for a chunk
// STATUS_INVALID names the tensor: a value is not finite, or too large for the type. Failed writes are the
// writer's to report (file_commit); the rest is then not written.
enum status param_values_write(const struct param_source *source, int param, bool transposed,
                               enum value_type type, struct file_writer *writer) MUST_CHECK;
// A part of a fused tensor (struct param_part), likewise.
enum status param_values_write_part(const struct param_source *source, int param, int part,
                                    enum value_type type, struct file_writer *writer) MUST_CHECK;
// A matrix whose rows belong to `heads` heads: the upper and lower half of each head's rows are interleaved,
// the order in which neighboring rows are rotated together.
enum status param_values_write_heads(const struct param_source *source, int param, int part, int heads,
                                     enum value_type type, struct file_writer *writer) MUST_CHECK;

#endif
