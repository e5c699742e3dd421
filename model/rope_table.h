// The table of rotary position embedding (Su et al., arXiv 2104.09864) that rope_forward reads: cos and sin
// of position x frequency, computed on the host in double. Internal to model/.
//
// RoPE rotates the first gpt_rotated_pairs pairs (i, i + D / 2) of each head; the others stay unchanged (cos
// 1, sin 0). With R = 2 gpt_rotated_pairs (D without partial_rotary_factor), the frequency of pair i is
// theta^(-2 i / R), or scaled as in Hugging Face's modeling_rope_utils.py:
//   linear  divided by `factor`: positions are interpolated (Chen et al., arXiv 2306.15595)
//   llama3  divided by `factor` for wavelengths above original / low_freq_factor, unchanged for wavelengths
//           below original / high_freq_factor, and blended linearly in between (Llama 3.1)
//   yarn    blended between unchanged and divided, by the pair's number: from the pair that turns beta_fast
//           times within the original context to the pair that turns beta_slow times. cos and sin are
//           multiplied by attention_factor (Peng et al., arXiv 2309.00071)
#ifndef ZERO_MODEL_ROPE_TABLE_H
#define ZERO_MODEL_ROPE_TABLE_H

#include "base/region.h"
#include "kernels/device.h"
#include "model/params.h"

struct rope_table {
    const struct gpt_config *config;
    enum dtype type; // accumulation dtype
    int positions;
    int region; // -1: the family has none
    void *data; // (positions, D / 2, 2) in device memory, or NULL
};

// Computes the frequencies of the rotated pairs, and the factor of their cos and sin.
void rope_frequencies(const struct gpt_config *config, double *frequencies, double *scale);

// Adds the table to the regions (REGION_DATA). No-op for families without rotation.
enum status rope_table_init(struct rope_table *rope, const struct gpt_config *config, enum dtype type,
                            int positions, struct device *device, struct region_table *table,
                            const char *label) MUST_CHECK;
// Finds the table's memory. table NULL: a dry run's buffer.
void rope_table_find(struct rope_table *rope, const struct region_table *table);
// Computes the table, copies it to the device, and waits for the copy.
enum status rope_table_fill(const struct rope_table *rope, struct device *device,
                            struct stream *stream) MUST_CHECK;

#endif
