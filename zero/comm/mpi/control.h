// Control collectives among ranks: comm_backend.gather, .broadcast and .agree.
#ifndef ZERO_ZERO_COMM_MPI_CONTROL_H
#define ZERO_ZERO_COMM_MPI_CONTROL_H

#include "zero/comm/backend.h"

enum status mpi_gather(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                       void *all) MUST_CHECK;
enum status mpi_broadcast(struct comm *comm, const struct comm_id *id, void *data, size_t bytes,
                          int root) MUST_CHECK;
enum status mpi_agree(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict) MUST_CHECK;

#endif
