// Chooses the backend: the only file that knows all of them.
#include <stdlib.h>

#include "zero/comm/comm.h"
#include "zero/comm/mpi/mpi.h"
#include "zero/comm/nccl/nccl.h"

// Set for the processes that they start by Open MPI, by MPICH and its derivatives, by Slurm and by PMIx.
static bool started_by_launcher(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i]))
            return true;
    return false;
}

enum status comm_open(const struct comm_options *options, struct comm **out) {
    if (!started_by_launcher()) {
        *out = comm_open_self();
        return STATUS_OK;
    }
    TRY(comm_open_mpi(options, out));
    if ((*out)->path != COMM_PATH_HOST)
        (*out)->device_backend = &nccl_backend;
    return STATUS_OK;
}
