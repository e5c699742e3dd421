// Reads and writes safetensors files. Such a file has the header's length (u64), a JSON header (name ->
// dtype, shape, data_offsets), and the data of the tensors. Opening a file reads and checks only its
// header: lengths, overlaps, gaps, overflow, duplicate names. A tensor's data is read when safetensors_read
// is called.
#ifndef ZERO_MODEL_FORMATS_SAFETENSORS_H
#define ZERO_MODEL_FORMATS_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"

#define SAFETENSORS_MAX_HEADER 100000000
#define SAFETENSORS_MAX_DIMS   8

struct safetensor {
    char *name;
    char dtype[8]; // as in the file: "F32", "BF16", ...
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    size_t elements;
    size_t element_bytes;
    uint64_t offset; // of its data in the file; the data is little-endian, row-major, unaligned
    size_t bytes;
};

struct safetensors {
    char *path;
    int descriptor;
    uint64_t bytes;             // size of the file
    struct safetensor *tensors; // in order of their data in the file
    int n_tensors;
};

// Opens a file. STATUS_INVALID, with the file and the tensor in the message, for:
// - a header longer than the file or than SAFETENSORS_MAX_HEADER bytes, or malformed JSON
// - an unknown dtype, a negative or overflowing shape
// - offsets that overlap, leave a gap, pass the end of the file, or do not match shape and dtype
enum status safetensors_open(struct safetensors *file, const char *path) MUST_CHECK;
void safetensors_close(struct safetensors *file);
// Reads the bytes of elements [first, first + n) of a tensor of this file. STATUS_FAILED: the file was
// truncated since it was opened, or cannot be read.
enum status safetensors_read(const struct safetensors *file, const struct safetensor *tensor, size_t first,
                             size_t n, void *out) MUST_CHECK;
// Returns an element as fp32. The tensor must be F32, F16, BF16 or F64.
//   elements  bytes that safetensors_read has read from the tensor
//   i         index of the element in them
float safetensor_value(const struct safetensor *tensor, const uint8_t *elements, size_t i);

// A tensor to write.
struct safetensors_source {
    const char *name;
    enum dtype type; // a compute type
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
};
// Writes a file of tensors, in the order given. The file appears under its name only when it is complete.
//   write  called once for each tensor, by its index in `tensors`. Must write the tensor's data: as many
//          bytes as its shape and dtype need, little-endian and row-major
enum status safetensors_write(const char *path, const struct safetensors_source *tensors, int n_tensors,
                              enum status (*write)(void *context, int tensor, struct file_writer *writer),
                              void *context) MUST_CHECK;

#endif
