// See base/gguf_writer.h. Numbers are little-endian, like the machine (base/gguf.c requires it).
#include "base/gguf_writer.h"

#include <string.h>

// ---- key-value pairs

static void add_u32(struct text *out, uint32_t value) {
    text_add_bytes(out, &value, sizeof value);
}

static void add_u64(struct text *out, uint64_t value) {
    text_add_bytes(out, &value, sizeof value);
}

static void add_string(struct text *out, const char *bytes, size_t n) {
    add_u64(out, n);
    text_add_bytes(out, bytes, n);
}

static void begin_pair(struct gguf_keys *keys, const char *key, enum gguf_key_type type) {
    add_string(&keys->bytes, key, strlen(key));
    add_u32(&keys->bytes, type);
    keys->n++;
}

void gguf_keys_free(struct gguf_keys *keys) {
    text_free(&keys->bytes);
}

void gguf_add_u32(struct gguf_keys *keys, const char *key, uint32_t value) {
    begin_pair(keys, key, GGUF_KEY_U32);
    add_u32(&keys->bytes, value);
}

void gguf_add_f32(struct gguf_keys *keys, const char *key, float value) {
    begin_pair(keys, key, GGUF_KEY_F32);
    text_add_bytes(&keys->bytes, &value, sizeof value);
}

void gguf_add_bool(struct gguf_keys *keys, const char *key, bool value) {
    begin_pair(keys, key, GGUF_KEY_BOOL);
    text_add_bytes(&keys->bytes, value ? "\1" : "\0", 1);
}

void gguf_add_string(struct gguf_keys *keys, const char *key, const char *value) {
    begin_pair(keys, key, GGUF_KEY_STRING);
    add_string(&keys->bytes, value, strlen(value));
}

static void begin_array(struct gguf_keys *keys, const char *key, enum gguf_key_type type, uint64_t n) {
    begin_pair(keys, key, GGUF_KEY_ARRAY);
    add_u32(&keys->bytes, type);
    add_u64(&keys->bytes, n);
}

void gguf_begin_strings(struct gguf_keys *keys, const char *key, uint64_t n) {
    begin_array(keys, key, GGUF_KEY_STRING, n);
}

void gguf_put_string(struct gguf_keys *keys, const char *bytes, size_t n) {
    add_string(&keys->bytes, bytes, n);
}

void gguf_begin_i32s(struct gguf_keys *keys, const char *key, uint64_t n) {
    begin_array(keys, key, GGUF_KEY_I32, n);
}

void gguf_put_i32(struct gguf_keys *keys, int32_t value) {
    add_u32(&keys->bytes, (uint32_t)value);
}

void gguf_begin_f32s(struct gguf_keys *keys, const char *key, uint64_t n) {
    begin_array(keys, key, GGUF_KEY_F32, n);
}

void gguf_put_f32(struct gguf_keys *keys, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_u32(&keys->bytes, bits);
}

// ---- the file

static uint64_t aligned(uint64_t bytes) {
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

static uint64_t tensor_bytes(const struct gguf_tensor *tensor) {
    uint64_t elements = 1;
    for (int d = 0; d < tensor->n_dims; d++)
        elements *= (uint64_t)tensor->shape[d];
    return gguf_type_bytes(tensor->type, elements);
}

static void add_tensors(struct text *out, const struct gguf_tensor *tensors, int n_tensors) {
    uint64_t offset = 0;
    for (int i = 0; i < n_tensors; i++) {
        const struct gguf_tensor *tensor = &tensors[i];
        add_string(out, tensor->name, strlen(tensor->name));
        add_u32(out, (uint32_t)tensor->n_dims);
        for (int d = tensor->n_dims - 1; d >= 0; d--)
            add_u64(out, (uint64_t)tensor->shape[d]);
        add_u32(out, tensor->type);
        add_u64(out, offset);
        offset += aligned(tensor_bytes(tensor));
    }
}

static void write_padding(struct file_writer *writer) {
    static const char zeros[GGUF_ALIGNMENT];
    file_write(writer, zeros, aligned(writer->bytes) - writer->bytes);
}

enum status gguf_write(const char *path, const struct gguf_keys *keys, const struct gguf_tensor *tensors,
                       int n_tensors,
                       enum status (*write)(void *context, int tensor, struct file_writer *writer),
                       void *context) {
    struct text start = {0};
    struct file_writer writer = {0};
    text_add(&start, GGUF_MAGIC);
    add_u32(&start, GGUF_VERSION);
    add_u64(&start, (uint64_t)n_tensors);
    add_u64(&start, keys->n);
    text_add_bytes(&start, keys->bytes.data, keys->bytes.length);
    add_tensors(&start, tensors, n_tensors);
    enum status status = text_status(&keys->bytes);
    if (status == STATUS_OK)
        status = text_status(&start);
    if (status == STATUS_OK)
        status = file_writer_open(&writer, path);
    if (status == STATUS_OK)
        file_write(&writer, start.data, start.length);
    for (int i = 0; i < n_tensors && status == STATUS_OK && !writer.error; i++) {
        write_padding(&writer);
        status = write(context, i, &writer);
    }
    if (status == STATUS_OK) {
        write_padding(&writer);
        status = file_commit(&writer);
    } else {
        file_discard(&writer);
    }
    text_free(&start);
    return status;
}
