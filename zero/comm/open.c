// Chooses the backend, by how the processes were started and by comm_options.path.
#include <stdlib.h>

#include "zero/comm/comm.h"
#include "zero/comm/mpi/mpi.h"
#include "zero/comm/nccl/nccl.h"

// Environment variables that Open MPI, MPICH and its derivatives, Slurm and PMIx set for the processes that
// they start.
static bool started_by_launcher(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i]))
            return true;
    return false;
}

// Processes that a launcher starts but MPI does not connect would each train the whole run. Batch scripts and
// shells of interactive jobs inherit some of these variables. SLURM_STEP_NUM_TASKS describes the own step
// only; SLURM_NTASKS is set in all of them and shows nothing.
static enum status check_launcher(const struct comm *comm) {
    static const struct {
        const char *name;
        bool is_of_mpi; // counts the ranks of any MPI world
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
