// GGUF files (ggml, llama.cpp): a header, key-value pairs, descriptions of tensors, then tensor data.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Versions 2 and 3, little-endian. Every size and
// offset in a file is checked against the file's size before use.
#ifndef ZERO_BASE_GGUF_H
#define ZERO_BASE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/status.h"
#include "base/text.h"

#define GGUF_MAGIC     "GGUF"
#define GGUF_VERSION   3
#define GGUF_ALIGNMENT 32 // alignment of tensor data in bytes, unless the key general.alignment sets another
#define GGUF_MOST_DIMS 4

// Types of values in key-value pairs.
enum gguf_key_type {
    GGUF_KEY_U8,
    GGUF_KEY_I8,
    GGUF_KEY_U16,
    GGUF_KEY_I16,
    GGUF_KEY_U32,
    GGUF_KEY_I32,
    GGUF_KEY_F32,
    GGUF_KEY_BOOL,
    GGUF_KEY_STRING,
    GGUF_KEY_ARRAY,
    GGUF_KEY_U64,
    GGUF_KEY_I64,
    GGUF_KEY_F64,
    N_GGUF_KEY_TYPES
};

// The tensor types used here, with ggml's numbers. ggml has more.
enum gguf_type { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q8_0 = 8, GGUF_BF16 = 30 };
// The name of a type: "F32", "Q4_K"; if its number is unknown, "type 77", formatted into `buffer`.
const char *gguf_type_name(uint32_t type, char buffer[16]);
// Bytes of n elements. 0: the type is unknown, or n is not a multiple of the type's block size.
uint64_t gguf_type_bytes(uint32_t type, uint64_t n);

// A string that points into gguf_file.head; not NUL-terminated.
struct gguf_string {
    const char *bytes;
    size_t n;
};
bool gguf_string_is(struct gguf_string string, const char *text);
int gguf_string_compare(struct gguf_string a, struct gguf_string b); // bytewise, as strcmp

struct gguf_key {
    struct gguf_string name;
    enum gguf_key_type type;
    enum gguf_key_type element_type; // type of an array's elements; if not an array, `type`
    uint64_t n;                      // number of an array's elements; if not an array, 1
    const char *data, *end;          // start and end of the elements' bytes
};

struct gguf_tensor {
    char name[64];
    uint32_t type; // enum gguf_type or another of ggml's
    int n_dims;
    int64_t shape[GGUF_MOST_DIMS]; // (n_dims) outermost dimension first
    uint64_t elements;
    uint64_t offset; // of the data, from the start of the file, in bytes
    uint64_t bytes;  // size of the data; 0 if gguf_type_bytes cannot compute it
};

struct gguf_file {
    char *path;
    int descriptor;
    uint64_t bytes; // size of the file
    char *head;     // the start of the file: header, key-value pairs and tensor descriptions
    struct gguf_key *keys;
    int n_keys;
    struct gguf_tensor *tensors;
    int n_tensors;
};

// Opens the file and reads its keys and tensor descriptions. Close it with gguf_close.
// STATUS_INVALID: it is not a GGUF file, has another version or byte order, is cut short, has a key or tensor
// twice, has data beyond its end or at an unaligned offset, or a shape whose product overflows.
enum status gguf_open(struct gguf_file *file, const char *path) MUST_CHECK;
void gguf_close(struct gguf_file *file);

// The key of this name, or NULL.
const struct gguf_key *gguf_find(const struct gguf_file *file, const char *name);
// Read the value of a key. If the file does not have the key, *value is unchanged and *found (may be NULL) is
// false. gguf_get_integer and gguf_get_number accept every integer type. gguf_get_integer also accepts an
// array with one value per layer, if all values are equal.
//
// STATUS_INVALID, with the key's name: the value has another type, differs between layers, or is outside
// [least, most].
enum status gguf_get_integer(const struct gguf_file *file, const char *name, int64_t least, int64_t most,
                             int64_t *value, bool *found) MUST_CHECK;
enum status gguf_get_number(const struct gguf_file *file, const char *name, double *value,
                            bool *found) MUST_CHECK;
enum status gguf_get_bool(const struct gguf_file *file, const char *name, bool *value,
                          bool *found) MUST_CHECK;
enum status gguf_get_string(const struct gguf_file *file, const char *name, struct gguf_string *value,
                            bool *found) MUST_CHECK;
// Finds the key of an array with elements of this type; *key is NULL if the file does not have it.
// STATUS_INVALID: the key has a value of another type.
enum status gguf_get_array(const struct gguf_file *file, const char *name, enum gguf_key_type element_type,
                           const struct gguf_key **key) MUST_CHECK;
// Warns, once per file, of keys that begin with `prefix` and whose rest is not a word of `known` (separated
// by spaces). Keys whose value is 0, false or empty are not reported.
void gguf_warn_of_unknown(const struct gguf_file *file, const char *prefix, const char *known);
// Returns the next element of an array of strings and advances *at, which starts at key->data.
struct gguf_string gguf_next_string(const char **at);
// Element i of an array of i32 or f32.
int32_t gguf_i32_at(const struct gguf_key *key, uint64_t i);
float gguf_f32_at(const struct gguf_key *key, uint64_t i);

// The tensor of this name, or NULL.
const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *file, const char *name);
// Reads bytes [first, first + n) of a tensor's data. STATUS_FAILED: the file was truncated since it was
// opened, or cannot be read.
enum status gguf_read(const struct gguf_file *file, const struct gguf_tensor *tensor, uint64_t first,
                      size_t n, void *out) MUST_CHECK;

// ---- writing

// Writes GGUF files, version 3. The data of each tensor is aligned to GGUF_ALIGNMENT bytes.

// The key-value pairs of a file to write, in the order in which they were added. Zero-initialize.
struct gguf_keys {
    struct text bytes; // the pairs, encoded as in the file
    uint64_t n;        // number of pairs
};
void gguf_keys_free(struct gguf_keys *keys);
void gguf_add_u32(struct gguf_keys *keys, const char *key, uint32_t value);
void gguf_add_f32(struct gguf_keys *keys, const char *key, float value);
void gguf_add_bool(struct gguf_keys *keys, const char *key, bool value);
void gguf_add_string(struct gguf_keys *keys, const char *key, const char *value);
// An array: call gguf_begin_*, then gguf_put_* exactly n times.
void gguf_begin_strings(struct gguf_keys *keys, const char *key, uint64_t n);
void gguf_put_string(struct gguf_keys *keys, const char *bytes, size_t n);
void gguf_begin_i32s(struct gguf_keys *keys, const char *key, uint64_t n);
void gguf_put_i32(struct gguf_keys *keys, int32_t value);
void gguf_begin_f32s(struct gguf_keys *keys, const char *key, uint64_t n);
void gguf_put_f32(struct gguf_keys *keys, float value);

// Writes the file, atomically: it appears under its name only when it is complete.
//   tensors   only name, type, n_dims and shape of each are read
//   write     called once per tensor, with its index; writes its data of exactly gguf_type_bytes bytes
enum status gguf_write(const char *path, const struct gguf_keys *keys, const struct gguf_tensor *tensors,
                       int n_tensors,
                       enum status (*write)(void *context, int tensor, struct file_writer *writer),
                       void *context) MUST_CHECK;

#endif
