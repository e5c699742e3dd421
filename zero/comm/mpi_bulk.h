// Bulk collectives and the all-reduce among ranks: comm_backend.bulk and .sum.
#ifndef ZERO_ZERO_COMM_MPI_BULK_H
#define ZERO_ZERO_COMM_MPI_BULK_H

#include "zero/comm/backend.h"

enum status mpi_bulk(struct comm *comm, const struct comm_call *call) MUST_CHECK;
enum status mpi_sum(struct comm *comm, const struct comm_id *id, double *values, size_t n) MUST_CHECK;

#endif
