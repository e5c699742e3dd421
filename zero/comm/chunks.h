// A bulk collective in chunks, for all backends. The elements of each owner are divided into chunks. The
// collective proceeds in rounds, with one chunk per owner, which bounds the memory in use.
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
    struct comm_cursor *cursors; // (world) the position in each owner's spans
};

// Divides a collective into chunks. Also fills `owned` and `cursors`, (world) each; the result points to
// them.
struct comm_chunks comm_chunks_of(struct comm *comm, const struct comm_call *call, size_t chunk_elements,
                                  size_t *owned, struct comm_cursor *cursors);
// Returns the number of elements in an owner's chunk of this round; 0 when the owner has no more.
size_t comm_chunk_elements(const struct comm_chunks *chunks, int owner, size_t round);

// to = this rank's next n elements for an owner, contiguous and as they are sent: a reduce-scatter rounds
// them to the communication dtype. This and the next two functions issue work to comm->stream.
enum status comm_chunk_pack(const struct comm_chunks *chunks, int owner, size_t n, void *to) MUST_CHECK;
// The reverse: writes n received elements to this rank's `out`.
enum status comm_chunk_unpack(const struct comm_chunks *chunks, int owner, size_t n,
                              const void *from) MUST_CHECK;
// Adds all ranks' contributions to the next n elements that this rank owns, along the tree (sum_tree.h), in
// one pass.
//   x         (world) [rw] the received contributions; this rank's own entry is overwritten
//   rounded   room for one chunk of this rank; unused with fp32
enum status comm_chunk_sum(const struct comm_chunks *chunks, size_t n, const void **x,
                           void *rounded) MUST_CHECK;

#endif
