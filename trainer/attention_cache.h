// Measured times of attention, kept between runs: a file of the user's, so that a GPU is measured once for
// each shape and version of cuDNN. Lines that cannot be read count as absent; runs that write at the same
// time may lose each other's entries, which are then measured again.
#ifndef ZERO_TRAINER_ATTENTION_CACHE_H
#define ZERO_TRAINER_ATTENTION_CACHE_H

#include "kernels/device.h"

// All that the times depend on: the GPU and CUDA, the version of cuDNN, the shape.
struct attention_cache_key {
    const char *gpu, *cudnn;
    struct attention_shape shape;
};

// Whether the file has times for the key.
bool attention_cache_find(const struct attention_cache_key *key, struct attention_times *out);
// Adds an entry to the file, or replaces it. Does nothing where no file can be written.
void attention_cache_add(const struct attention_cache_key *key, const struct attention_times *times);

#endif
