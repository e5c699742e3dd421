// Preloaded into one rank by tests/cli/test_random_faults.py. After WRONG_MESSAGE_AFTER messages to other
// ranks, headers (struct link_header, zero/comm/ring.h) carry a wrong call number.
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>

#define LAST_TAG_OF_CALLS 2 // TAG_CHUNK and TAG_CONTROL of zero/comm/mpi/mpi_internal.h

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    static long n_sent;
    const char *after = getenv("WRONG_MESSAGE_AFTER");
    if (tag <= LAST_TAG_OF_CALLS && after && ++n_sent > atol(after))
        ++*(uint64_t *)(uintptr_t)data;
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}
