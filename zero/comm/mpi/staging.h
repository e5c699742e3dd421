// Memory of the device for reduce-scatter: partial sums, and, where the device has memory of its own,
// buffers for the other ranks' contributions. There the links' memory is page-locked too, so that copies to
// and from them use DMA.
#ifndef ZERO_ZERO_COMM_MPI_STAGING_H
#define ZERO_ZERO_COMM_MPI_STAGING_H

#include "zero/comm/backend.h"

// comm_backend.attach and .detach. Sizes: comm_sums_bytes.
enum status mpi_attach(struct comm *comm) MUST_CHECK;
void mpi_detach(struct comm *comm);

// The partial sum of a level of the tree, below sum_tree_depth(world).
float *staging_sum(const struct comm *comm, int depth);

// Another rank's contribution to a sum, in memory that the device can read.
struct contribution {
    const void *data;
    int buffer; // index of the staging buffer; -1: read in place, from the link
};
// Makes `bytes` of a link readable to work on comm->stream. At most N_STAGING_BUFFERS are loaded at a time.
enum status contribution_load(struct comm *comm, const void *link, size_t bytes,
                              struct contribution *out) MUST_CHECK;
// Frees the buffer once the work issued to comm->stream so far has read it.
enum status contribution_release(struct comm *comm, const struct contribution *contribution) MUST_CHECK;

#endif
