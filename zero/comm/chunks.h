// Divides a bulk collective into chunks, for all backends. The elements of each owner are divided into
// chunks. The collective proceeds in rounds. A round moves one chunk per owner, which bounds the memory in
// use.
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

// Divides a collective into chunks. Fills `owned` and `cursors`, (world) each, to which the result points.
struct comm_chunks comm_chunks_of(struct comm *comm, const struct comm_call *call, size_t chunk_elements,
                                  size_t *owned, struct comm_cursor *cursors);
// Returns the number of elements in an owner's chunk of this round; 0 when the owner has no more.
size_t comm_chunk_elements(const struct comm_chunks *chunks, int owner, size_t round);

// Copies the next n elements that this rank has for an owner to `to`, where they are contiguous. A
// reduce-scatter rounds them to the communication dtype. This and the next two functions issue work to
// comm->stream.
enum status comm_chunk_pack(const struct comm_chunks *chunks, int owner, size_t n, void *to) MUST_CHECK;
// The reverse of comm_chunk_pack: copies n elements received from an owner, contiguous at `from`, to this
// rank's `out`.
enum status comm_chunk_unpack(const struct comm_chunks *chunks, int owner, size_t n,
                              const void *from) MUST_CHECK;
// Sums the contributions of all ranks for the next n elements that this rank owns, along the tree of
// zero/comm/sum_tree.h. Writes the sums to the collective's `out`, or adds them to it (call->accumulate).
//   x         (world) [rw] pointers to the received contributions. The call sets this rank's own entry and
//             advances all entries
//   rounded   scratch for one chunk of this rank; unused with fp32
enum status comm_chunk_sum(const struct comm_chunks *chunks, size_t n, const void **x,
                           void *rounded) MUST_CHECK;

#endif
