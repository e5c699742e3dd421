// The tensors that a span of a unit overlaps, for code that works on less than a unit: a rank's shard, a
// gathered group, a checkpoint's span.
#ifndef ZERO_MODEL_PARAM_OVERLAP_H
#define ZERO_MODEL_PARAM_OVERLAP_H

#include "model/params.h"

// Elements [begin, end) of a unit, never empty: what a tensor and the span have in common.
struct param_overlap {
    int param; // index of the tensor in params->params
    size_t begin, end;
};

// Iterates over the tensors that overlap elements [begin, end) of `unit`, in order; padding belongs to none.
// Start with a zeroed `overlap`; each call moves it to the next one and returns false when there is none.
//
//   for (struct param_overlap it = {0}; params_next_overlap(params, unit, begin, end, &it);)
bool params_next_overlap(const struct params *params, int unit, size_t begin, size_t end,
                         struct param_overlap *overlap);

#endif
