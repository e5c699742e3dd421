#include "model/rope_table.h"

#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "model/runner.h"

#define PI          3.14159265358979323846
#define CHUNK_BYTES ((size_t)1 << 20) // bytes of the table that are computed and copied at a time

// Returns the mean of the frequency (weight 1 - ramp) and the frequency divided by factor (weight ramp).
static double blend(double frequency, double factor, double ramp) {
    return frequency / factor * ramp + frequency * (1 - ramp);
}

static double llama3_ramp(const struct rope_config *rope, double frequency) {
    double turns = rope->original_positions * frequency / (2 * PI); // original_positions / wavelength
    if (turns < rope->low_freq_factor)
        return 1;
    if (turns > rope->high_freq_factor)
        return 0;
    return 1 - (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
}

// Returns the fractional index of the pair that turns `turns` times within the original context.
static double yarn_pair(const struct rope_config *rope, int D, double turns) {
    return D * log(rope->original_positions / (turns * 2 * PI)) / (2 * log(rope->theta));
}

static double yarn_ramp(const struct rope_config *rope, int D, int pair) {
    double low = floor(yarn_pair(rope, D, rope->beta_fast)), high = ceil(yarn_pair(rope, D, rope->beta_slow));
    low = fmax(low, 0);
    high = fmin(high, D - 1);
    if (high <= low)
        high = low + 0.001; // as in transformers: avoids a division by zero
    return fmin(fmax((pair - low) / (high - low), 0), 1);
}

void rope_frequencies(const struct gpt_config *config, double *frequencies, double *scale) {
    const struct rope_config *rope = &config->rope;
    const int pairs = gpt_rotated_pairs(config), D = 2 * pairs;
    *scale = 1;
    if (rope->type == ROPE_YARN)
        *scale = rope->attention_factor > 0 ? rope->attention_factor
                 : rope->factor > 1         ? 0.1 * log(rope->factor) + 1
                                            : 1;
    for (int i = 0; i < pairs; i++) {
        double frequency = pow(rope->theta, -2.0 * i / D);
        double ramp = rope->type == ROPE_LINEAR   ? 1
                      : rope->type == ROPE_LLAMA3 ? llama3_ramp(rope, frequency)
                      : rope->type == ROPE_YARN   ? yarn_ramp(rope, D, i)
                                                  : 0;
        frequencies[i] = ramp > 0 ? blend(frequency, rope->factor, ramp) : frequency;
    }
}

enum status rope_table_init(struct rope_table *rope, const struct gpt_config *config, enum dtype type,
                            int positions, struct device *device, struct region_table *table,
                            const char *label) {
    *rope = (struct rope_table){
        .config = config, .type = accumulation_dtype(type), .positions = positions, .region = -1};
    if (!gpt_has_rope(config))
        return STATUS_OK;
    return region_add(table, REGION_DATA, device->place, rope->type,
                      (size_t)positions * (size_t)config->head_dim, &rope->region, "%s", label);
}

void rope_table_find(struct rope_table *rope, const struct region_table *table) {
    rope->data = buffer_find(table, rope->region);
}

static void fill_rows(const struct rope_table *rope, const double *frequencies, double scale, int first,
                      int n, void *out) {
    const int pairs = rope->config->head_dim / 2, rotated = gpt_rotated_pairs(rope->config);
    for (int i = 0; i < n * pairs; i++) {
        const bool turns = i % pairs < rotated;
        double angle = turns ? (first + i / pairs) * frequencies[i % pairs] : 0;
        double values[2] = {turns ? scale * cos(angle) : 1, turns ? scale * sin(angle) : 0};
        for (int k = 0; k < 2; k++)
            if (rope->type == DTYPE_F64)
                ((double *)out)[2 * i + k] = values[k];
            else
                ((float *)out)[2 * i + k] = (float)values[k];
    }
}

enum status rope_table_fill(const struct rope_table *rope, struct device *device, struct stream *stream) {
    if (!rope->data)
        return STATUS_OK;
    const size_t D = (size_t)rope->config->head_dim, row_bytes = D * dtype_size(rope->type);
    const int chunk = row_bytes < CHUNK_BYTES ? (int)(CHUNK_BYTES / row_bytes) : 1;
    double *frequencies = allocate(D / 2, sizeof *frequencies), scale;
    char *rows = allocate((size_t)chunk, row_bytes);
    enum status status = STATUS_OK;
    rope_frequencies(rope->config, frequencies, &scale);
    for (int first = 0, n; first < rope->positions && status == STATUS_OK; first += n) {
        n = rope->positions - first < chunk ? rope->positions - first : chunk;
        fill_rows(rope, frequencies, scale, first, n, rows);
        status =
            device->copy(stream, (char *)rope->data + (size_t)first * row_bytes, rows, (size_t)n * row_bytes);
        if (status == STATUS_OK)
            status = device->synchronize(stream);
    }
    free(frequencies);
    free(rows);
    return status;
}
