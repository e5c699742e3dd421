// Preloaded into one rank of tests/cli/test_random_faults.py: from its WRONG_MESSAGE_AFTER-th message between
// ranks on, headers carry a wrong call number (zero/comm/ring.h).
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>

#define LAST_TAG_OF_CALLS 2 // zero/comm/mpi.h: chunks and control messages

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    static long n_sent;
    const char *after = getenv("WRONG_MESSAGE_AFTER");
    if (tag <= LAST_TAG_OF_CALLS && after && ++n_sent > atol(after))
        ++*(uint64_t *)(uintptr_t)data;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}
