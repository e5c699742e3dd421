// All entries of a header are checked against the file's size and against each other before use. base/json
// refuses duplicate keys and bounds the nesting. The machine must be little-endian, like the format.
#include "model/formats/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors data is little-endian and is not converted");

#define LENGTH_BYTES     sizeof(uint64_t) // the header's length, at the start of the file
#define HEADER_ALIGNMENT 8
#define LONGEST_NAME     512 // bytes; names must fit in messages

// ---- entries of the header

// Returns the bytes per element; 0 for an unknown dtype, and for one with elements smaller than a byte.
static size_t element_bytes(const char *dtype) {
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{"F32", 4},     {"F16", 2},     {"BF16", 2},    {"F64", 8}, {"I64", 8}, {"I32", 4},
                 {"I16", 2},     {"I8", 1},      {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},
                 {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"C64", 8}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, dtype) == 0)
            return types[i].bytes;
    return 0;
}

// Reads an integer from 0 to 2^53, up to which a double represents all integers. Returns false for any
// other item; no valid file has a larger integer.
static bool whole_number(const cJSON *item, uint64_t *out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53) ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *out = (uint64_t)item->valuedouble;
    return true;
}

static enum status read_shape(struct safetensor *tensor, const cJSON *entry, const char *path) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *item;
    if (!cJSON_IsArray(shape))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" has no \"shape\", expected a list of sizes", path,
                    tensor->name);
    tensor->elements = 1;
    cJSON_ArrayForEach(item, shape) {
        uint64_t size;
        if (tensor->n_dims == SAFETENSORS_MAX_DIMS)
            return FAIL(STATUS_INVALID, "%s: tensor \"%s\" has more than %d dimensions", path, tensor->name,
                        SAFETENSORS_MAX_DIMS);
        if (!whole_number(item, &size))
            return FAIL(STATUS_INVALID,
                        "%s: tensor \"%s\": dimension %d of its shape is not a whole number from 0 to 2^53",
                        path, tensor->name, tensor->n_dims);
        if (__builtin_mul_overflow(tensor->elements, size, &tensor->elements))
            return FAIL(STATUS_INVALID, "%s: tensor \"%s\": the product of its shape overflows", path,
                        tensor->name);
        tensor->shape[tensor->n_dims++] = (int64_t)size;
    }
    return STATUS_OK;
}

// Reads and checks a tensor's "data_offsets".
//   data        offset in the file at which the data of all tensors begins
//   data_bytes  size of the data of all tensors
static enum status read_offsets(struct safetensor *tensor, const cJSON *entry, const char *path,
                                uint64_t data, uint64_t data_bytes) {
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    uint64_t begin, end;
    if (!cJSON_IsArray(offsets) || !offsets->child || !offsets->child->next || offsets->child->next->next ||
        !whole_number(offsets->child, &begin) || !whole_number(offsets->child->next, &end))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\": expected \"data_offsets\" of two whole numbers", path,
                    tensor->name);
    if (begin > end)
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" begins at %" PRIu64 ", after its end at %" PRIu64,
                    path, tensor->name, begin, end);
    if (end > data_bytes)
        return FAIL(STATUS_INVALID,
                    "%s: tensor \"%s\" ends at %" PRIu64 ", beyond the file's %" PRIu64 " bytes of data; "
                    "the file may be cut short",
                    path, tensor->name, end, data_bytes);
    size_t expected;
    if (__builtin_mul_overflow(tensor->elements, element_bytes(tensor->dtype), &expected))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\": its size in bytes overflows", path, tensor->name);
    if (end - begin != expected)
        return FAIL(STATUS_INVALID,
                    "%s: tensor \"%s\" has %" PRIu64 " bytes of data, expected %zu for %zu elements of %s",
                    path, tensor->name, end - begin, expected, tensor->elements, tensor->dtype);
    tensor->offset = data + begin;
    tensor->element_bytes = element_bytes(tensor->dtype);
    tensor->bytes = expected;
    return STATUS_OK;
}

static enum status read_tensor(struct safetensor *tensor, const cJSON *entry, const char *path, uint64_t data,
                               uint64_t data_bytes) {
    size_t length = strlen(entry->string);
    if (length > LONGEST_NAME)
        return FAIL(STATUS_INVALID, "%s: a tensor's name has %zu bytes, at most %d allowed", path, length,
                    LONGEST_NAME);
    for (const char *c = entry->string; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return FAIL(STATUS_INVALID, "%s: a tensor's name holds control characters", path);
    tensor->name = copy_string(entry->string);
    if (!cJSON_IsObject(entry))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\": expected an object with dtype, shape, data_offsets",
                    path, tensor->name);
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype))
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" has no \"dtype\"", path, tensor->name);
    if (element_bytes(dtype->valuestring) == 0)
        return FAIL(STATUS_INVALID, "%s: tensor \"%s\" has the unknown dtype \"%.20s\"", path, tensor->name,
                    dtype->valuestring);
    memcpy(tensor->dtype, dtype->valuestring, strlen(dtype->valuestring) + 1); // a known name: it fits
    TRY(read_shape(tensor, entry, path));
    return read_offsets(tensor, entry, path, data, data_bytes);
}

// ---- reading and checking the header

// Orders tensors by offset, for qsort. An empty tensor comes before the other tensor with the same offset.
static int by_data(const void *a, const void *b) {
    const struct safetensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

// Checks that the tensors, in order of their offsets, cover the file's data without gaps or overlaps.
//   data, data_bytes  offset and size of the data in the file
static enum status check_coverage(const struct safetensors *file, uint64_t data, uint64_t data_bytes) {
    uint64_t covered = 0;
    for (int i = 0; i < file->n_tensors; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        uint64_t begin = tensor->offset - data;
        if (begin < covered)
            return FAIL(STATUS_INVALID,
                        "%s: tensor \"%s\" begins at %" PRIu64 " and overlaps \"%s\", which ends at %" PRIu64,
                        file->path, tensor->name, begin, file->tensors[i - 1].name, covered);
        if (begin > covered)
            return FAIL(STATUS_INVALID, "%s: %" PRIu64 " bytes before tensor \"%s\" belong to no tensor",
                        file->path, begin - covered, tensor->name);
        covered = begin + tensor->bytes;
    }
    if (covered < data_bytes)
        return FAIL(STATUS_INVALID, "%s: %" PRIu64 " bytes after the last tensor%s%s%s belong to no tensor",
                    file->path, data_bytes - covered, file->n_tensors ? " \"" : "",
                    file->n_tensors ? file->tensors[file->n_tensors - 1].name : "",
                    file->n_tensors ? "\"" : "");
    return STATUS_OK;
}

static enum status read_tensors(struct safetensors *file, const cJSON *header, uint64_t data,
                                uint64_t data_bytes) {
    int n_entries = cJSON_GetArraySize(header);
    file->tensors = allocate((size_t)n_entries, sizeof *file->tensors);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") == 0) {
            if (!cJSON_IsObject(entry) && !cJSON_IsNull(entry))
                return FAIL(STATUS_INVALID, "%s: \"__metadata__\" is not an object", file->path);
            continue;
        }
        // Count the tensor before reading it, so that its name is freed in any case.
        struct safetensor *tensor = &file->tensors[file->n_tensors++];
        TRY(read_tensor(tensor, entry, file->path, data, data_bytes));
    }
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_data);
    return check_coverage(file, data, data_bytes);
}

static enum status read_at(const struct safetensors *file, uint64_t offset, size_t bytes, void *out) {
    int error = file_read_at(file->descriptor, offset, bytes, out);
    if (error == FILE_READ_SHORT)
        return FAIL(STATUS_FAILED, "%s was truncated while it was read; restore the file and start again",
                    file->path);
    return error ? FAIL(STATUS_FAILED, "cannot read %s: %s", file->path, strerror(error)) : STATUS_OK;
}

static enum status check_length(const struct safetensors *file, uint64_t length) {
    if (length > SAFETENSORS_MAX_HEADER)
        return FAIL(STATUS_INVALID,
                    "%s is not a safetensors file: its header would have %" PRIu64
                    " bytes, at most %d are allowed",
                    file->path, length, SAFETENSORS_MAX_HEADER);
    if (length > file->bytes - LENGTH_BYTES)
        return FAIL(STATUS_INVALID,
                    "%s: the header of %" PRIu64 " bytes is longer than the file of %" PRIu64
                    " bytes, which may be cut short",
                    file->path, length, file->bytes);
    return STATUS_OK;
}

static enum status parse_header(struct safetensors *file, const char *text, size_t length) {
    cJSON *header;
    if (length == 0 || text[0] != '{')
        return FAIL(STATUS_INVALID, "%s: the header is not a JSON object", file->path);
    TRY(json_parse(text, length, file->path, &header));
    uint64_t before = LENGTH_BYTES + length;
    enum status status = read_tensors(file, header, before, file->bytes - before);
    cJSON_Delete(header);
    return status;
}

static enum status read_file(struct safetensors *file) {
    uint64_t length;
    if (file->bytes < LENGTH_BYTES)
        return FAIL(STATUS_INVALID, "%s has %" PRIu64 " bytes: too short for a safetensors file", file->path,
                    file->bytes);
    TRY(read_at(file, 0, sizeof length, &length));
    TRY(check_length(file, length));
    char *text = allocate((size_t)length + 1, 1);
    enum status status = read_at(file, LENGTH_BYTES, (size_t)length, text);
    if (status == STATUS_OK)
        status = parse_header(file, text, (size_t)length);
    free(text);
    return status;
}

enum status safetensors_open(struct safetensors *file, const char *path) {
    struct stat info;
    *file = (struct safetensors){.path = copy_string(path), .descriptor = -1};
    enum status status = file_open_regular(path, O_RDONLY, &file->descriptor);
    if (status == STATUS_OK && fstat(file->descriptor, &info) != 0)
        status = FAIL(STATUS_FAILED, "cannot stat %s: %s", path, strerror(errno));
    if (status == STATUS_OK) {
        file->bytes = (uint64_t)info.st_size;
        status = read_file(file);
    }
    if (status != STATUS_OK)
        safetensors_close(file);
    return status;
}

void safetensors_close(struct safetensors *file) {
    for (int i = 0; i < file->n_tensors; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    if (file->path && file->descriptor >= 0) // a zero-initialized struct has no file
        close(file->descriptor);
    free(file->path);
    *file = (struct safetensors){.descriptor = -1};
}

// ---- reading elements

enum status safetensors_read(const struct safetensors *file, const struct safetensor *tensor, size_t first,
                             size_t n, void *out) {
    return read_at(file, tensor->offset + first * tensor->element_bytes, n * tensor->element_bytes, out);
}

float safetensor_value(const struct safetensor *tensor, const uint8_t *elements, size_t i) {
    // The second letter of the dtype distinguishes F32, F64 and the 16-bit types. The data is unaligned, so
    // it is copied.
    switch (tensor->dtype[1]) {
    case '3': {
        float value;
        memcpy(&value, elements + i * sizeof value, sizeof value);
        return value;
    }
    case '6': {
        double value;
        memcpy(&value, elements + i * sizeof value, sizeof value);
        return (float)value;
    }
    default: {
        uint16_t value;
        memcpy(&value, elements + i * sizeof value, sizeof value);
        return tensor->dtype[0] == 'B' ? bf16_to_float(value) : f16_to_float(value);
    }
    }
}

// ---- writing

static const char *const written_types[N_COMPUTE_DTYPES] = {
    [DTYPE_F32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_F16] = "F16"};

// Computes how many bytes a tensor to be written has. STATUS_INVALID: the number overflows.
static enum status source_bytes(const char *path, const struct safetensors_source *source, size_t *bytes) {
    *bytes = dtype_size(source->type);
    for (int i = 0; i < source->n_dims; i++)
        if (source->shape[i] < 0 || __builtin_mul_overflow(*bytes, (size_t)source->shape[i], bytes))
            return FAIL(STATUS_INVALID, "cannot write %s: the shape of tensor \"%s\" is too large", path,
                        source->name);
    return STATUS_OK;
}

static enum status make_header(struct text *header, const char *path,
                               const struct safetensors_source *tensors, int n_tensors) {
    text_add(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    size_t begin = 0;
    for (int i = 0; i < n_tensors; i++) {
        size_t bytes, end;
        TRY(source_bytes(path, &tensors[i], &bytes));
        if (__builtin_add_overflow(begin, bytes, &end))
            return FAIL(STATUS_INVALID, "cannot write %s: its tensors are too large", path);
        text_add(header, ",");
        json_add_string(header, tensors[i].name);
        text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", written_types[tensors[i].type]);
        for (int d = 0; d < tensors[i].n_dims; d++)
            text_add(header, "%s%" PRId64, d ? "," : "", tensors[i].shape[d]);
        text_add(header, "],\"data_offsets\":[%zu,%zu]}", begin, end);
        begin = end;
    }
    text_add(header, "}");
    while (header->length % HEADER_ALIGNMENT != 0)
        text_add(header, " ");
    if (header->length > SAFETENSORS_MAX_HEADER)
        return FAIL(STATUS_INVALID, "cannot write %s: its header has %zu bytes, at most %d are allowed", path,
                    header->length, SAFETENSORS_MAX_HEADER);
    return STATUS_OK;
}

enum status safetensors_write(const char *path, const struct safetensors_source *tensors, int n_tensors,
                              enum status (*write)(void *context, int tensor, struct file_writer *writer),
                              void *context) {
    struct text header = {0};
    struct file_writer writer = {0};
    enum status status = make_header(&header, path, tensors, n_tensors);
    if (status == STATUS_OK)
        status = file_writer_open(&writer, path);
    if (status == STATUS_OK) {
        const uint64_t length = header.length;
        file_write(&writer, &length, sizeof length);
        file_write(&writer, header.data, header.length);
    }
    for (int i = 0; i < n_tensors && status == STATUS_OK; i++)
        status = write(context, i, &writer);
    if (status == STATUS_OK)
        status = file_commit(&writer);
    else
        file_discard(&writer);
    text_free(&header);
    return status;
}
