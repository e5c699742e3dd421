// Writes GGUF files, version 3 (base/gguf.h): the data of each tensor is aligned to GGUF_ALIGNMENT bytes.
#ifndef ZERO_BASE_GGUF_WRITER_H
#define ZERO_BASE_GGUF_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/gguf.h"
#include "base/text.h"

// Key-value pairs, in the order in which they were added. Zero-initialize; an allocation that fails is
// reported by gguf_write.
struct gguf_keys {
    struct text bytes;
    uint64_t n;
};
void gguf_keys_free(struct gguf_keys *keys);
void gguf_add_u32(struct gguf_keys *keys, const char *key, uint32_t value);
void gguf_add_f32(struct gguf_keys *keys, const char *key, float value);
void gguf_add_bool(struct gguf_keys *keys, const char *key, bool value);
void gguf_add_string(struct gguf_keys *keys, const char *key, const char *value);
// An array: its elements follow, as many as announced.
void gguf_begin_strings(struct gguf_keys *keys, const char *key, uint64_t n);
void gguf_put_string(struct gguf_keys *keys, const char *bytes, size_t n);
void gguf_begin_i32s(struct gguf_keys *keys, const char *key, uint64_t n);
void gguf_put_i32(struct gguf_keys *keys, int32_t value);
void gguf_begin_f32s(struct gguf_keys *keys, const char *key, uint64_t n);
void gguf_put_f32(struct gguf_keys *keys, float value);

// Writes the file. Of a tensor, name, type and shape are read; `write` writes its data, as many bytes as they
// make. The file appears under its name only when it is complete.
enum status gguf_write(const char *path, const struct gguf_keys *keys, const struct gguf_tensor *tensors,
                       int n_tensors,
                       enum status (*write)(void *context, int tensor, struct file_writer *writer),
                       void *context) MUST_CHECK;

#endif
