// Bulk collectives among ranks: comm_backend.bulk.
#ifndef ZERO_ZERO_COMM_MPI_BULK_H
#define ZERO_ZERO_COMM_MPI_BULK_H

#include "zero/comm/backend.h"

enum status mpi_bulk(struct comm *comm, const struct comm_call *call) MUST_CHECK;

#endif
