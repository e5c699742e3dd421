// Writes the values of parameters to files of other programs: converted to the file's type, transposed if the
// file has the other order, one chunk at a time. Used by the writers of safetensors and GGUF.
#ifndef ZERO_MODEL_PARAM_VALUES_H
#define ZERO_MODEL_PARAM_VALUES_H

#include "base/file.h"
#include "model/params.h"

enum value_type {
    VALUE_F32,
    VALUE_BF16,
    VALUE_F16,
    VALUE_Q8_0, // ggml's: blocks of 32 values, each with an fp16 scale and 32 int8
    N_VALUE_TYPES
};
#define VALUE_BLOCK 32                             // values per Q8_0 block
const char *value_type_name(enum value_type type); // "fp32", "bf16", "fp16", "q8_0"
// Bytes of n values; for VALUE_Q8_0, n must be a multiple of VALUE_BLOCK.
size_t value_bytes(enum value_type type, size_t n);

// The source of the values. `read` copies the fp32 values of elements [first, first + n) of a parameter.
struct param_source {
    const struct params *params;
    const char *name; // a path, for messages
    void *context;
    enum status (*read)(void *context, int param, size_t first, size_t n, float *out);
};

// Writes all elements of a parameter, rounded to nearest with ties to even.
//   transposed   write a (rows, columns) matrix as (columns, rows). Takes memory for the whole tensor instead
//                of one chunk
// STATUS_INVALID: a value is not finite, or too large for the type; the message names the tensor. The writer
// reports failed writes (file_commit); after one, the rest is not written.
enum status param_values_write(const struct param_source *source, int param, bool transposed,
                               enum value_type type, struct file_writer *writer) MUST_CHECK;
// Likewise for a part (named rows) of a fused tensor (struct param_part).
enum status param_values_write_part(const struct param_source *source, int param, int part,
                                    enum value_type type, struct file_writer *writer) MUST_CHECK;
// Writes a matrix whose rows belong to `heads` heads. The upper and lower half of each head's rows are
// interleaved, so that neighboring rows are rotated together.
enum status param_values_write_heads(const struct param_source *source, int param, int part, int heads,
                                     enum value_type type, struct file_writer *writer) MUST_CHECK;

#endif
