// The head of a file (header, keys, tensor descriptions) does not state its length. So longer and longer
// prefixes of the file are read until one contains the whole head. Keys point into this prefix. Assumes a
// little-endian machine, like the format.
#include "base/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF files are read in place");

#define FIRST_PIECE  ((uint64_t)1 << 20) // bytes of the first prefix
#define LARGEST_HEAD ((uint64_t)1 << 30) // bytes; a longer head is refused
// Bytes of the smallest key: the length of its name (8), type (4), value (1).
#define LEAST_KEY 13
// Bytes of the smallest tensor description: the length of its name (8), n_dims (4), type (4), offset (8).
#define LEAST_TENSOR  24
#define MOST_PER_BYTE 32 // upper bound of the elements per byte of any type

// ---- types of tensors and values

// ggml's tensor types, indexed by their numbers: name, elements and bytes per block.
static const struct {
    const char *name;
    unsigned elements, bytes;
} types[] = {[0] = {"F32", 1, 4},       [1] = {"F16", 1, 2},       [2] = {"Q4_0", 32, 18},
             [3] = {"Q4_1", 32, 20},    [6] = {"Q5_0", 32, 22},    [7] = {"Q5_1", 32, 24},
             [8] = {"Q8_0", 32, 34},    [9] = {"Q8_1", 32, 36},    [10] = {"Q2_K", 256, 84},
             [11] = {"Q3_K", 256, 110}, [12] = {"Q4_K", 256, 144}, [13] = {"Q5_K", 256, 176},
             [14] = {"Q6_K", 256, 210}, [15] = {"Q8_K", 256, 292}, [20] = {"IQ4_NL", 32, 18},
             [24] = {"I8", 1, 1},       [25] = {"I16", 1, 2},      [26] = {"I32", 1, 4},
             [27] = {"I64", 1, 8},      [28] = {"F64", 1, 8},      [30] = {"BF16", 1, 2}};
#define N_TYPES (sizeof types / sizeof *types)

const char *gguf_type_name(uint32_t type, char buffer[16]) {
    if (type < N_TYPES && types[type].name)
        return types[type].name;
    snprintf(buffer, 16, "type %u", (unsigned)type);
    return buffer;
}

uint64_t gguf_type_bytes(uint32_t type, uint64_t n) {
    if (type >= N_TYPES || !types[type].name || n % types[type].elements != 0)
        return 0;
    return n / types[type].elements * types[type].bytes;
}

// Bytes of a value of each type; 0 for strings and arrays, whose lengths are in the file.
static const uint8_t key_bytes[N_GGUF_KEY_TYPES] = {
    [GGUF_KEY_U8] = 1,  [GGUF_KEY_I8] = 1,  [GGUF_KEY_U16] = 2, [GGUF_KEY_I16] = 2,
    [GGUF_KEY_U32] = 4, [GGUF_KEY_I32] = 4, [GGUF_KEY_F32] = 4, [GGUF_KEY_BOOL] = 1,
    [GGUF_KEY_U64] = 8, [GGUF_KEY_I64] = 8, [GGUF_KEY_F64] = 8,
};

// ---- parsing the head

// A position in the prefix of the file that is in memory. is_short is set once something extends beyond the
// prefix, so that a longer one is needed; all later values read as 0.
struct cursor {
    const char *at, *end;
    bool is_short;
};

static const char *take(struct cursor *cursor, uint64_t bytes) {
    const char *at = cursor->at;
    if (cursor->is_short || bytes > (uint64_t)(cursor->end - at)) {
        cursor->is_short = true;
        return NULL;
    }
    cursor->at += bytes;
    return at;
}

static uint32_t take_u32(struct cursor *cursor) {
    uint32_t value = 0;
    const char *at = take(cursor, sizeof value);
    if (at)
        memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t take_u64(struct cursor *cursor) {
    uint64_t value = 0;
    const char *at = take(cursor, sizeof value);
    if (at)
        memcpy(&value, at, sizeof value);
    return value;
}

static struct gguf_string take_string(struct cursor *cursor) {
    const uint64_t n = take_u64(cursor);
    const char *bytes = take(cursor, n);
    return (struct gguf_string){bytes ? bytes : "", bytes ? (size_t)n : 0};
}

static void take_strings(struct cursor *cursor, uint64_t n) {
    for (uint64_t i = 0; i < n && !cursor->is_short; i++)
        (void)take_string(cursor);
}

// The number of bytes of a name that a message shows.
static int shown(struct gguf_string name) {
    return name.n < 60 ? (int)name.n : 60;
}

static enum status read_key(const struct gguf_file *file, struct cursor *cursor, struct gguf_key *key) {
    key->name = take_string(cursor);
    uint32_t type = take_u32(cursor), element_type = type;
    key->n = 1;
    if (type == GGUF_KEY_ARRAY) {
        element_type = take_u32(cursor);
        key->n = take_u64(cursor);
    }
    if (!cursor->is_short &&
        (type >= N_GGUF_KEY_TYPES || element_type >= N_GGUF_KEY_TYPES || element_type == GGUF_KEY_ARRAY))
        return FAIL(STATUS_INVALID, "%s: the key \"%.*s\" has a value of the unknown type %u", file->path,
                    shown(key->name), key->name.bytes, (unsigned)element_type);
    key->type = (enum gguf_key_type)type;
    key->element_type = (enum gguf_key_type)element_type;
    key->data = cursor->at;
    uint64_t bytes = 0;
    if (cursor->is_short)
        return STATUS_OK;
    if (element_type == GGUF_KEY_STRING)
        take_strings(cursor, key->n);
    else if (__builtin_mul_overflow(key->n, (uint64_t)key_bytes[element_type], &bytes))
        cursor->is_short = true;
    else
        (void)take(cursor, bytes);
    key->end = cursor->at;
    return STATUS_OK;
}

static enum status read_shape(const struct gguf_file *file, struct cursor *cursor,
                              struct gguf_tensor *tensor) {
    const uint32_t n_dims = take_u32(cursor);
    if (!cursor->is_short && (n_dims < 1 || n_dims > GGUF_MOST_DIMS))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" has %u dimensions, expected 1 to %d", file->path,
                    tensor->name, (unsigned)n_dims, GGUF_MOST_DIMS);
    tensor->n_dims = cursor->is_short ? 0 : (int)n_dims;
    tensor->elements = 1;
    for (int d = tensor->n_dims - 1; d >= 0; d--) { // the file has the innermost dimension first
        const uint64_t size = take_u64(cursor);
        if (!cursor->is_short &&
            (size > INT64_MAX || __builtin_mul_overflow(tensor->elements, size, &tensor->elements)))
            return FAIL(STATUS_INVALID, "%s: tensor \"%s\": its number of elements exceeds 64 bits",
                        file->path, tensor->name);
        tensor->shape[d] = (int64_t)size;
    }
    return STATUS_OK;
}

static enum status read_tensor(const struct gguf_file *file, struct cursor *cursor,
                               struct gguf_tensor *tensor) {
    const struct gguf_string name = take_string(cursor);
    if (name.n >= sizeof tensor->name || memchr(name.bytes, '\0', name.n))
        return FAIL(STATUS_INVALID,
                    "%s: a tensor is named \"%.*s\", expected a name of at most %zu characters", file->path,
                    shown(name), name.bytes, sizeof tensor->name - 1);
    memcpy(tensor->name, name.bytes, name.n);
    TRY(read_shape(file, cursor, tensor));
    tensor->type = take_u32(cursor);
    tensor->offset = take_u64(cursor);
    return STATUS_OK;
}

static enum status check_start(const struct gguf_file *file, struct cursor *cursor) {
    const char *magic = take(cursor, strlen(GGUF_MAGIC));
    if (!magic || memcmp(magic, GGUF_MAGIC, strlen(GGUF_MAGIC)) != 0)
        return FAIL(STATUS_INVALID, "%s is not a GGUF file", file->path);
    const uint32_t version = take_u32(cursor);
    if (version == 2 || version == GGUF_VERSION || cursor->is_short)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s is version %u of GGUF%s, expected 2 or 3", file->path,
                (unsigned)(version > 0xffff ? __builtin_bswap32(version) : version),
                version > 0xffff ? ", big-endian" : "");
}

// Parses the head. Sets cursor->is_short if the prefix does not contain all of it. Counts are checked against
// the file's size, which bounds the allocations.
static enum status parse(struct gguf_file *file, struct cursor *cursor) {
    TRY(check_start(file, cursor));
    const uint64_t n_tensors = take_u64(cursor), n_keys = take_u64(cursor);
    if (n_keys > file->bytes / LEAST_KEY || n_tensors > file->bytes / LEAST_TENSOR || n_keys > INT32_MAX ||
        n_tensors > INT32_MAX)
        return FAIL(STATUS_INVALID,
                    "%s: has %" PRIu64 " keys and %" PRIu64 " tensors, more than its %" PRIu64
                    " bytes can hold; it may be cut short",
                    file->path, n_keys, n_tensors, file->bytes);
    if (n_keys > (uint64_t)(cursor->end - cursor->at) / LEAST_KEY ||
        n_tensors > (uint64_t)(cursor->end - cursor->at) / LEAST_TENSOR)
        cursor->is_short = true;
    if (cursor->is_short)
        return STATUS_OK;
    file->keys = allocate((size_t)n_keys, sizeof *file->keys);
    file->tensors = allocate((size_t)n_tensors, sizeof *file->tensors);
    for (uint64_t i = 0; i < n_keys && !cursor->is_short; i++)
        TRY(read_key(file, cursor, &file->keys[i]));
    for (uint64_t i = 0; i < n_tensors && !cursor->is_short; i++)
        TRY(read_tensor(file, cursor, &file->tensors[i]));
    file->n_keys = (int)n_keys;
    file->n_tensors = (int)n_tensors;
    return STATUS_OK;
}

static void forget(struct gguf_file *file) {
    free(file->head);
    free(file->keys);
    free(file->tensors);
    file->head = NULL;
    file->keys = NULL;
    file->tensors = NULL;
    file->n_keys = file->n_tensors = 0;
}

static enum status read_at(const struct gguf_file *file, uint64_t offset, size_t n, void *out) {
    const int error = file_read_at(file->descriptor, offset, n, out);
    if (error == FILE_READ_SHORT)
        return FAIL(STATUS_FAILED, "%s was truncated while it was read; restore the file and start again",
                    file->path);
    return error ? FAIL(STATUS_FAILED, "cannot read %s: %s", file->path, strerror(error)) : STATUS_OK;
}

// Reads and parses the head.
//   head_bytes   [out] its length
static enum status read_head(struct gguf_file *file, uint64_t *head_bytes) {
    for (uint64_t piece = FIRST_PIECE;; piece *= 4) {
        const uint64_t n = piece < file->bytes ? piece : file->bytes;
        struct cursor cursor = {0};
        if (n > LARGEST_HEAD)
            return FAIL(STATUS_INVALID,
                        "%s: its keys and tensor descriptions have more than %" PRIu64 " bytes", file->path,
                        LARGEST_HEAD);
        file->head = allocate((size_t)n, 1);
        TRY(read_at(file, 0, (size_t)n, file->head));
        cursor = (struct cursor){file->head, file->head + n, false};
        TRY(parse(file, &cursor));
        *head_bytes = (uint64_t)(cursor.at - file->head);
        if (!cursor.is_short)
            return STATUS_OK;
        forget(file);
        if (n == file->bytes)
            return FAIL(STATUS_INVALID, "%s ends within its keys and tensor descriptions: it was cut short",
                        file->path);
    }
}

// ---- checking names and tensors

static int compare_strings(const void *a, const void *b) {
    return gguf_string_compare(*(const struct gguf_string *)a, *(const struct gguf_string *)b);
}

static struct gguf_string key_name(const struct gguf_file *file, int i) {
    return file->keys[i].name;
}

static struct gguf_string tensor_name(const struct gguf_file *file, int i) {
    return (struct gguf_string){file->tensors[i].name, strlen(file->tensors[i].name)};
}

static enum status check_names(const struct gguf_file *file, const char *what, int n,
                               struct gguf_string (*name)(const struct gguf_file *file, int i)) {
    struct gguf_string *names = allocate((size_t)n, sizeof *names);
    enum status status = STATUS_OK;
    for (int i = 0; i < n; i++)
        names[i] = name(file, i);
    qsort(names, (size_t)n, sizeof *names, compare_strings);
    for (int i = 1; i < n && status == STATUS_OK; i++)
        if (compare_strings(&names[i - 1], &names[i]) == 0)
            status = FAIL(STATUS_INVALID, "%s: the %s \"%.*s\" appears twice", file->path, what,
                          shown(names[i]), names[i].bytes);
    free(names);
    return status;
}

// Makes the tensors' offsets count from the start of the file, and checks that their data is inside the file.
// In the file, offsets count from the first aligned byte after the head.
static enum status place_tensors(struct gguf_file *file, uint64_t head_bytes) {
    int64_t alignment = GGUF_ALIGNMENT;
    TRY(gguf_get_integer(file, "general.alignment", 1, 1 << 20, &alignment, NULL));
    const uint64_t unit = (uint64_t)alignment, data = (head_bytes + unit - 1) / unit * unit;
    for (int i = 0; i < file->n_tensors; i++) {
        struct gguf_tensor *tensor = &file->tensors[i];
        char type[16];
        const bool fits = tensor->elements / MOST_PER_BYTE <= file->bytes && tensor->offset <= file->bytes;
        tensor->bytes = fits ? gguf_type_bytes(tensor->type, tensor->elements) : 0;
        if (!fits || data + tensor->offset + tensor->bytes > file->bytes)
            return FAIL(STATUS_INVALID,
                        "%s: tensor \"%s\" (%" PRIu64 " elements of %s) ends beyond the file's %" PRIu64
                        " bytes; the file may be cut short",
                        file->path, tensor->name, tensor->elements, gguf_type_name(tensor->type, type),
                        file->bytes);
        if (tensor->offset % unit != 0)
            return FAIL(STATUS_INVALID, "%s: the data of tensor \"%s\" is not aligned to %d bytes",
                        file->path, tensor->name, (int)alignment);
        tensor->offset += data;
    }
    return STATUS_OK;
}

enum status gguf_open(struct gguf_file *file, const char *path) {
    struct stat info;
    uint64_t head_bytes = 0;
    *file = (struct gguf_file){.path = copy_string(path), .descriptor = -1};
    enum status status = file_open_regular(path, O_RDONLY, &file->descriptor);
    if (status == STATUS_OK && fstat(file->descriptor, &info) != 0)
        status = FAIL(STATUS_FAILED, "cannot stat %s: %s", path, strerror(errno));
    if (status == STATUS_OK) {
        file->bytes = (uint64_t)info.st_size;
        status = read_head(file, &head_bytes);
    }
    if (status == STATUS_OK)
        status = check_names(file, "key", file->n_keys, key_name);
    if (status == STATUS_OK)
        status = check_names(file, "tensor", file->n_tensors, tensor_name);
    if (status == STATUS_OK)
        status = place_tensors(file, head_bytes);
    if (status != STATUS_OK)
        gguf_close(file);
    return status;
}

void gguf_close(struct gguf_file *file) {
    forget(file);
    if (file->path && file->descriptor >= 0) // a zero-initialized struct has no open file
        close(file->descriptor);
    free(file->path);
    *file = (struct gguf_file){.descriptor = -1};
}

// ---- reading keys

int gguf_string_compare(struct gguf_string a, struct gguf_string b) {
    const int order = memcmp(a.bytes, b.bytes, a.n < b.n ? a.n : b.n);
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

bool gguf_string_is(struct gguf_string string, const char *text) {
    return string.n == strlen(text) && memcmp(string.bytes, text, string.n) == 0;
}

const struct gguf_key *gguf_find(const struct gguf_file *file, const char *name) {
    for (int i = 0; i < file->n_keys; i++)
        if (gguf_string_is(file->keys[i].name, name))
            return &file->keys[i];
    return NULL;
}

static enum status refuse_type(const struct gguf_file *file, const char *name, const char *expected) {
    return FAIL(STATUS_INVALID, "%s: the key \"%s\" has a value of another type, expected %s", file->path,
                name, expected);
}

// Reads an integer of any integer type: a key's value (i = 0), or element i of its array. Returns false if
// the type is not an integer, the value exceeds INT64_MAX, or there is no element i.
static bool read_integer(const struct gguf_key *key, uint64_t i, int64_t *value) {
    uint64_t bits = 0;
    const size_t bytes = key_bytes[key->element_type];
    if (i >= key->n)
        return false;
    memcpy(&bits, key->data + i * bytes, bytes);
    switch (key->element_type) {
    case GGUF_KEY_I8:
    case GGUF_KEY_I16:
    case GGUF_KEY_I32:
    case GGUF_KEY_I64:
        *value = (int64_t)(bits << (64 - 8 * bytes)) >> (64 - 8 * bytes);
        return true;
    case GGUF_KEY_U8:
    case GGUF_KEY_U16:
    case GGUF_KEY_U32:
    case GGUF_KEY_U64:
        *value = (int64_t)bits;
        return bits <= INT64_MAX;
    default:
        return false;
    }
}

enum status gguf_get_integer(const struct gguf_file *file, const char *name, int64_t least, int64_t most,
                             int64_t *value, bool *found) {
    const struct gguf_key *key = gguf_find(file, name);
    int64_t read = 0;
    if (found)
        *found = key != NULL;
    if (!key)
        return STATUS_OK;
    if (!read_integer(key, 0, &read))
        return refuse_type(file, name, "an integer");
    for (uint64_t i = 1; i < key->n; i++) { // an array has one value per layer; they must be equal
        int64_t other = read;
        if (!read_integer(key, i, &other) || other != read)
            return FAIL(STATUS_INVALID,
                        "%s: the key \"%s\" is %" PRId64 " for the first layer and %" PRId64
                        " for layer %" PRIu64 ", expected the same for all",
                        file->path, name, read, other, i);
    }
    if (read < least || read > most)
        return FAIL(STATUS_INVALID, "%s: the key \"%s\" is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                    file->path, name, read, least, most);
    *value = read;
    return STATUS_OK;
}

enum status gguf_get_number(const struct gguf_file *file, const char *name, double *value, bool *found) {
    const struct gguf_key *key = gguf_find(file, name);
    int64_t integer = 0;
    float number = 0;
    if (found)
        *found = key != NULL;
    if (!key)
        return STATUS_OK;
    if (key->type == GGUF_KEY_F64) {
        memcpy(value, key->data, sizeof *value);
    } else if (key->type == GGUF_KEY_F32) {
        memcpy(&number, key->data, sizeof number);
        *value = (double)number;
    } else if (key->type != GGUF_KEY_ARRAY && read_integer(key, 0, &integer)) {
        *value = (double)integer;
    } else {
        return refuse_type(file, name, "a number");
    }
    return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf_file *file, const char *name, bool *value, bool *found) {
    const struct gguf_key *key = gguf_find(file, name);
    if (found)
        *found = key != NULL;
    if (key && key->type != GGUF_KEY_BOOL)
        return refuse_type(file, name, "true or false");
    if (key)
        *value = key->data[0] != 0;
    return STATUS_OK;
}

enum status gguf_get_string(const struct gguf_file *file, const char *name, struct gguf_string *value,
                            bool *found) {
    const struct gguf_key *key = gguf_find(file, name);
    if (found)
        *found = key != NULL;
    if (key && key->type != GGUF_KEY_STRING)
        return refuse_type(file, name, "text");
    if (key) {
        const char *at = key->data;
        *value = gguf_next_string(&at);
    }
    return STATUS_OK;
}

enum status gguf_get_array(const struct gguf_file *file, const char *name, enum gguf_key_type element_type,
                           const struct gguf_key **key) {
    *key = gguf_find(file, name);
    return !*key || ((*key)->type == GGUF_KEY_ARRAY && (*key)->element_type == element_type)
               ? STATUS_OK
               : refuse_type(file, name, "a list");
}

// Whether the value is 0, false, empty, or a list of such values.
static bool is_zero(const struct gguf_key *key) {
    const char *at = key->data;
    while (at < key->end && *at == 0)
        at++;
    return at == key->end;
}

void gguf_warn_of_unknown(const struct gguf_file *file, const char *prefix, const char *known) {
    const size_t length = strlen(prefix);
    struct text unknown = {0};
    for (int i = 0; i < file->n_keys; i++) {
        const struct gguf_string name = file->keys[i].name;
        if (name.n > length && memcmp(name.bytes, prefix, length) == 0 && !is_zero(&file->keys[i]) &&
            !text_has_word(known, name.bytes + length, name.n - length))
            text_add(&unknown, "%s\"%.*s\"", unknown.length ? ", " : "", shown(name), name.bytes);
    }
    if (unknown.length)
        log_warning_once("%s has keys that this program ignores: %s", file->path, unknown.data);
    text_free(&unknown);
}

struct gguf_string gguf_next_string(const char **at) {
    uint64_t n;
    memcpy(&n, *at, sizeof n);
    const struct gguf_string string = {*at + sizeof n, (size_t)n};
    *at = string.bytes + string.n;
    return string;
}

int32_t gguf_i32_at(const struct gguf_key *key, uint64_t i) {
    int32_t value;
    memcpy(&value, key->data + i * sizeof value, sizeof value);
    return value;
}

float gguf_f32_at(const struct gguf_key *key, uint64_t i) {
    float value;
    memcpy(&value, key->data + i * sizeof value, sizeof value);
    return value;
}

// ---- reading tensors

const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *file, const char *name) {
    for (int i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

enum status gguf_read(const struct gguf_file *file, const struct gguf_tensor *tensor, uint64_t first,
                      size_t n, void *out) {
    return read_at(file, tensor->offset + first, n, out);
}

// ---- writing key-value pairs

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

// ---- writing the file

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
    enum status status = file_writer_open(&writer, path);
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
