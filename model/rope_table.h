// The table of rotary position embedding (Su et al., arXiv 2104.09864) that rope_forward reads: cos and sin
// of position x frequency, computed on the host in double. Internal to model/.
//
// With D = head_dim, RoPE rotates the first gpt_rotated_pairs of the pairs (i, i + D / 2) of each head. The
// other pairs stay unchanged (cos 1, sin 0). Let R = 2 gpt_rotated_pairs, which is D without
// partial_rotary_factor. The frequency of pair i is theta^(-2 i / R) radians per position, unchanged or
// scaled as in Hugging Face's modeling_rope_utils.py:
//   linear  divided by `factor`: positions are interpolated (Chen et al., arXiv 2306.15595)
//   llama3  divided by `factor` for pairs that turn less than low_freq_factor times within
//           original_positions, unchanged for pairs that turn more than high_freq_factor times, and blended
//           linearly by the number of turns in between (Llama 3.1)
//   yarn    unchanged up to the pair that turns beta_fast times within original_positions, divided by
//           `factor` from the pair that turns beta_slow times on, and blended linearly by the pair's index
//           in between. cos and sin are multiplied by attention_factor (Peng et al., arXiv 2309.00071)
#ifndef ZERO_MODEL_ROPE_TABLE_H
#define ZERO_MODEL_ROPE_TABLE_H

#include "base/region.h"
#include "kernels/device.h"
#include "model/params.h"

struct rope_table {
    const struct gpt_config *config;
    enum dtype type; // accumulation dtype
    int positions;
    int region; // index of the table's region; -1: the family has no RoPE
    void *data; // (positions, D / 2, 2) cos and sin, in device memory; NULL: the family has no RoPE
};

// Computes the frequencies of the rotated pairs.
//   frequencies  [out] (gpt_rotated_pairs) in radians per position
//   scale        [out] factor of all cos and sin: YaRN's attention factor, else 1
void rope_frequencies(const struct gpt_config *config, double *frequencies, double *scale);

// Adds a region (REGION_DATA) for the table; none if the family has no RoPE.
//   type       compute type
//   positions  number of rows of the table
//   label      the region's name in the plan
enum status rope_table_init(struct rope_table *rope, const struct gpt_config *config, enum dtype type,
                            int positions, struct device *device, struct region_table *table,
                            const char *label) MUST_CHECK;
// Sets rope->data to the region's memory. table NULL: sets it to DRY_RUN_BUFFER, for a dry run.
void rope_table_find(struct rope_table *rope, const struct region_table *table);
// Computes the table, copies it to the device, and waits for the copy.
enum status rope_table_fill(const struct rope_table *rope, struct device *device,
                            struct stream *stream) MUST_CHECK;

#endif
