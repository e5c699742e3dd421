// Writes the values of parameters in other programs' file formats. The values are converted to the file's
// type. Matrices are transposed if the format stores them as (in, out). Used by the writers of safetensors
// and GGUF.
#ifndef ZERO_MODEL_PARAM_VALUES_H
#define ZERO_MODEL_PARAM_VALUES_H

#include "base/file.h"
#include "model/params.h"

enum value_type {
    VALUE_F32,
    VALUE_BF16,
    VALUE_F16,
    VALUE_Q8_0, // ggml's Q8_0: a block of 32 values is stored as an fp16 scale and 32 int8
    N_VALUE_TYPES
};
#define VALUE_BLOCK 32                             // values per Q8_0 block
const char *value_type_name(enum value_type type); // "fp32", "bf16", "fp16", "q8_0"
// Returns how many bytes n values take; for VALUE_Q8_0, n must be a multiple of VALUE_BLOCK.
size_t value_bytes(enum value_type type, size_t n);

// The source of the values. `read` copies the fp32 values of elements [first, first + n) of a parameter to
// out[0 ..].
struct param_source {
    const struct params *params;
    const char *name; // path of the source, for messages
    void *context;
    enum status (*read)(void *context, int param, size_t first, size_t n, float *out);
};

// Writes all elements of a parameter, converted to `type`; bf16 and fp16 are rounded to nearest even.
//   transposed  true: write a (rows, columns) matrix as (columns, rows). This needs memory for the whole
//               tensor in fp32 instead of for one chunk of it
// STATUS_INVALID: a value is not finite, or too large for the type; the message names the tensor. If
// writing to the file fails, the function ends early with STATUS_OK; file_commit then reports the failure.
enum status param_values_write(const struct param_source *source, int param, bool transposed,
                               enum value_type type, struct file_writer *writer) MUST_CHECK;
// Like param_values_write, for one part of a fused tensor (struct param_part). Not transposed.
enum status param_values_write_part(const struct param_source *source, int param, int part,
                                    enum value_type type, struct file_writer *writer) MUST_CHECK;
// Like param_values_write_part, for a part whose rows belong to `heads` heads. Interleaves the first and
// the second half of each head's rows, because llama.cpp rotates neighboring rows together.
enum status param_values_write_heads(const struct param_source *source, int param, int part, int heads,
                                     enum value_type type, struct file_writer *writer) MUST_CHECK;

#endif
