#include "model/param_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/dtype.h"

#define CHUNK       ((size_t)1 << 20) // elements converted and written at a time; a multiple of VALUE_BLOCK
#define SYNC_SHIFT  28                // flush to disk every 2^28 bytes; else file_commit may take minutes
#define LARGEST_F16 65520.0f          // magnitudes from this on round to infinity in fp16
#define TILE        64                // rows of the matrix that transpose reads at a time

static const struct {
    const char *name;
    size_t elements, bytes; // of a Q8_0 block; for the other types, of one value
    float limit;            // magnitudes from this on are too large for the type
} types[N_VALUE_TYPES] = {
    [VALUE_F32] = {"fp32", 1, 4, INFINITY},
    [VALUE_BF16] = {"bf16", 1, 2, 0x1.ffp127f},
    [VALUE_F16] = {"fp16", 1, 2, LARGEST_F16},
    [VALUE_Q8_0] = {"q8_0", VALUE_BLOCK, sizeof(uint16_t) + VALUE_BLOCK, LARGEST_F16 * 127},
};

const char *value_type_name(enum value_type type) {
    return types[type].name;
}

size_t value_bytes(enum value_type type, size_t n) {
    return n / types[type].elements * types[type].bytes;
}

static void quantize_block(const float *values, uint8_t *out) {
    float largest = 0;
    for (int i = 0; i < VALUE_BLOCK; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    const float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
    const uint16_t stored = f16_from_float(scale);
    memcpy(out, &stored, sizeof stored);
    for (int i = 0; i < VALUE_BLOCK; i++) // store 0 if the inverse of a tiny scale overflows
        out[sizeof stored + (size_t)i] = (uint8_t)(int8_t)(isinf(inverse) ? 0 : roundf(values[i] * inverse));
}

static void convert(enum value_type type, const float *values, size_t n, uint8_t *out) {
    switch (type) {
    case VALUE_Q8_0:
        for (size_t i = 0; i < n; i += VALUE_BLOCK)
            quantize_block(values + i, out + value_bytes(type, i));
        break;
    case VALUE_BF16:
    case VALUE_F16:
        for (size_t i = 0; i < n; i++) {
            const uint16_t value =
                type == VALUE_BF16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
            memcpy(out + i * sizeof value, &value, sizeof value);
        }
        break;
    default:
        memcpy(out, values, n * sizeof *values);
    }
}

static enum status check(const struct param_source *source, int param, enum value_type type,
                         const float *values, size_t n) {
    const char *name = source->params->params[param].name;
    for (size_t i = 0; i < n; i++) {
        if (fabsf(values[i]) < types[type].limit)
            continue;
        return isfinite(values[i])
                   ? FAIL(STATUS_INVALID,
                          "%s: \"%s\" has the value %g, too large for %s; choose another type", source->name,
                          name, (double)values[i], types[type].name)
                   : FAIL(STATUS_INVALID, "%s: \"%s\" has values that are not finite", source->name, name);
    }
    return STATUS_OK;
}

// Checks, converts and writes n values. `converted` is scratch for the n converted values.
static enum status write_chunk(const struct param_source *source, int param, enum value_type type,
                               const float *values, size_t n, uint8_t *converted,
                               struct file_writer *writer) {
    const uint64_t before = writer->bytes;
    TRY(check(source, param, type, values, n));
    convert(type, values, n, converted);
    file_write(writer, converted, value_bytes(type, n));
    if (before >> SYNC_SHIFT != writer->bytes >> SYNC_SHIFT)
        file_sync(writer);
    return STATUS_OK;
}

// Writes rows [first, first + n) of the transposed matrix to `out`.
static void transpose(const float *matrix, size_t rows, size_t columns, size_t first, size_t n, float *out) {
    for (size_t r = 0; r < rows; r += TILE)
        for (size_t c = 0; c < n; c++)
            for (size_t i = r; i < rows && i < r + TILE; i++)
                out[c * rows + i] = matrix[i * columns + first + c];
}

static enum status write_transposed(const struct param_source *source, int index, enum value_type type,
                                    float *values, uint8_t *converted, struct file_writer *writer) {
    const struct param *param = &source->params->params[index];
    const size_t rows = (size_t)param->shape[0], columns = (size_t)param->shape[1];
    const size_t together = rows < CHUNK ? CHUNK / rows : 1;
    float *matrix = allocate(param->elements, sizeof *matrix);
    enum status status = source->read(source->context, index, 0, param->elements, matrix);
    for (size_t c = 0, n; c < columns && status == STATUS_OK && !writer->error; c += n) {
        n = columns - c < together ? columns - c : together;
        transpose(matrix, rows, columns, c, n, values);
        status = write_chunk(source, index, type, values, n * rows, converted, writer);
    }
    free(matrix);
    return status;
}

// Writes elements [first, end) of a parameter, not transposed.
static enum status write_in_order(const struct param_source *source, int index, size_t first, size_t end,
                                  enum value_type type, float *values, uint8_t *converted,
                                  struct file_writer *writer) {
    for (size_t n; first < end && !writer->error; first += n) {
        n = end - first < CHUNK ? end - first : CHUNK;
        TRY(source->read(source->context, index, first, n, values));
        TRY(write_chunk(source, index, type, values, n, converted, writer));
    }
    return STATUS_OK;
}

enum status param_values_write(const struct param_source *source, int param, bool transposed,
                               enum value_type type, struct file_writer *writer) {
    // A row of the transposed matrix may be longer than a chunk.
    const struct param *tensor = &source->params->params[param];
    const size_t rows = (size_t)tensor->shape[0];
    const size_t room = transposed && rows > CHUNK ? rows : CHUNK;
    float *values = allocate(room, sizeof *values);
    uint8_t *converted = allocate(room, sizeof *values);
    const enum status status =
        transposed ? write_transposed(source, param, type, values, converted, writer)
                   : write_in_order(source, param, 0, tensor->elements, type, values, converted, writer);
    free(values);
    free(converted);
    return status;
}

enum status param_values_write_part(const struct param_source *source, int param, int part,
                                    enum value_type type, struct file_writer *writer) {
    const struct param *tensor = &source->params->params[param];
    const size_t columns = (size_t)tensor->shape[1];
    const size_t first = (size_t)tensor->parts[part].first_row * columns;
    const size_t n = (size_t)tensor->parts[part].n_rows * columns;
    float *values = allocate(CHUNK, sizeof *values);
    uint8_t *converted = allocate(CHUNK, sizeof *values);
    const enum status status =
        write_in_order(source, param, first, first + n, type, values, converted, writer);
    free(values);
    free(converted);
    return status;
}

enum status param_values_write_heads(const struct param_source *source, int param, int part, int heads,
                                     enum value_type type, struct file_writer *writer) {
    const struct param *tensor = &source->params->params[param];
    const size_t columns = (size_t)tensor->shape[1], rows = (size_t)tensor->parts[part].n_rows;
    const size_t half = rows / (size_t)heads / 2, n = 2 * half * columns;
    const size_t first = (size_t)tensor->parts[part].first_row * columns;
    float *values = allocate(2 * n, sizeof *values), *ordered = values + n;
    uint8_t *converted = allocate(n, sizeof *values);
    enum status status = STATUS_OK;
    for (size_t head = 0; head < (size_t)heads && status == STATUS_OK && !writer->error; head++) {
        status = source->read(source->context, param, first + head * n, n, values);
        for (size_t row = 0; row < 2 * half && status == STATUS_OK; row++)
            memcpy(ordered + row * columns, values + (row % 2 * half + row / 2) * columns,
                   columns * sizeof *values);
        if (status == STATUS_OK)
            status = write_chunk(source, param, type, ordered, n, converted, writer);
    }
    free(values);
    free(converted);
    return status;
}
