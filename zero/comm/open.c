// Chooses the backend, by how the processes were started and by comm_options.path.
#include <stdlib.h>

#include "zero/comm/comm.h"
#include "zero/comm/mpi/mpi.h"
#include "zero/comm/nccl/nccl.h"

// True if Open MPI, MPICH or one of its derivatives, Slurm or PMIx started this process: they set
// these environment variables.
static bool started_by_launcher(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i]))
            return true;
    return false;
}

// Fails if a launcher started processes that MPI does not connect: each would train the whole run.
// SLURM_NTASKS is not used, because batch scripts and shells of interactive jobs have it too.
// SLURM_STEP_NUM_TASKS describes only the job step of this process.
static enum status check_launcher(const struct comm *comm) {
    static const struct {
        const char *name;
        // True: the value must equal the number of MPI ranks. False: only if MPI sees a single rank.
        bool is_of_mpi;
    } sizes[] = {{"OMPI_COMM_WORLD_SIZE", true},
                 {"PMI_SIZE", true},
                 {"SLURM_STEP_NUM_TASKS", false},
                 {"WORLD_SIZE", false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *value = getenv(sizes[i].name);
        const int n = value ? atoi(value) : 0;
        if (n > 0 && n != comm->world && (sizes[i].is_of_mpi || comm->world == 1))
            return FAIL(STATUS_UNSUPPORTED,
                        "%s=%d, but MPI sees %d rank%s: this launcher does not connect the processes that it "
                        "starts, and each would train alone. Use the mpirun of the MPI that the program was "
                        "built with (./train --version), as in mpirun -n %d ./train, or under Slurm srun "
                        "--mpi=pmix or --mpi=pmi2. To train on one rank, start ./train without a launcher, "
                        "and unset %s",
                        sizes[i].name, n, comm->world, comm->world == 1 ? "" : "s", n, sizes[i].name);
    }
    return STATUS_OK;
}

enum status comm_open(const struct comm_options *options, struct comm **out) {
    if (!started_by_launcher())
        *out = comm_open_self();
    else
        TRY(comm_open_mpi(options, out));
    enum status status = check_launcher(*out);
    if (status != STATUS_OK) {
        status = comm_close(*out, status);
        *out = NULL;
        return status;
    }
    if ((*out)->world > 1 && (*out)->path != COMM_PATH_HOST)
        (*out)->device_backend = &nccl_backend;
    return STATUS_OK;
}
