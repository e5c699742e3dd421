// A bulk collective in chunks, as the backends share it. What each rank owns is divided into chunks, and the
// collective proceeds in rounds of one chunk per owner, which bounds the memory for what is under way.
#ifndef ZERO_ZERO_COMM_CHUNKS_H
#define ZERO_ZERO_COMM_CHUNKS_H

#include "zero/comm/backend.h"
#include "zero/comm/comm.h"

struct comm_chunks {
    struct comm *comm;
    const struct comm_call *call;
    size_t size, chunk; // bytes per element, elements per chunk
    size_t rounds;
    const size_t *owned;         // (world) elements that each rank owns
    struct comm_cursor *cursors; // (world) the next element of each owner
};

// Fills `owned` and `cursors`, (world) each, to which the result points.
struct comm_chunks comm_chunks_of(struct comm *comm, const struct comm_call *call, size_t chunk_elements,
                                  size_t *owned, struct comm_cursor *cursors);
// Elements of an owner's chunk in this round; 0 when it has no more.
size_t comm_chunk_elements(const struct comm_chunks *chunks, int owner, size_t round);

// to = this rank's next n elements for an owner, in one piece, as they are sent: in a reduce-scatter rounded
// to the communication dtype. Work on comm->stream, as the following.
enum status comm_chunk_pack(const struct comm_chunks *chunks, int owner, size_t n, void *to) MUST_CHECK;
// out = the other way round.
enum status comm_chunk_unpack(const struct comm_chunks *chunks, int owner, size_t n,
                              const void *from) MUST_CHECK;
// Adds all ranks' contributions to the next n elements that this rank owns, along the tree (sum_tree.h), in
// one pass.
//   x         (world) [rw] the contributions as they were received; this rank's own entry is overwritten
//   rounded   room for the chunk of this rank; not used with fp32
enum status comm_chunk_sum(const struct comm_chunks *chunks, size_t n, const void **x,
                           void *rounded) MUST_CHECK;

#endif
