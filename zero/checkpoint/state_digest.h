// The digest of a run's states: a tree of BLAKE2b digests over the values that a checkpoint has, as fp32.
//   chunk    kind of value, tensor, index, and the values of up to 16,384 elements
//   tensor   kind, name, number of elements, and the digests of its chunks
//   root     the digests of all tensors, by kind
// It depends on the values only: not on stage, partition, offload, the states' dtype in memory, or the number
// of ranks. Padding between tensors is left out.
#ifndef ZERO_ZERO_CHECKPOINT_STATE_DIGEST_H
#define ZERO_ZERO_CHECKPOINT_STATE_DIGEST_H

#include "base/digest.h"
#include "zero/checkpoint/format.h"

#define STATE_DIGEST_CHUNK 16384 // elements

struct state_digest {
    struct comm *comm;                 // all its ranks compute the digest together
    const struct params *params;       // the table of tensors
    const struct partition *partition; // decides which rank reads and hashes what, in every stage
    struct checkpoint_kinds kinds;
    struct checkpoint_source source; // `read` is called for elements of one span that this rank owns
    float *scratch;                  // (CHECKPOINT_CHUNK) host memory
};
// Computes the root on every rank. A chunk is hashed by the owner of its first element, to which other owners
// send their parts. Besides `scratch`, this takes memory for the digests of one unit: 32 bytes per chunk on
// each rank. Collective.
enum status state_digest_compute(const struct state_digest *of, struct digest *root) MUST_CHECK;

#endif
