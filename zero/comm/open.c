// Chooses the backend, by how the processes were started and by comm_options.path.
#include <stdlib.h>

#include "zero/comm/comm.h"
#include "zero/comm/mpi/mpi.h"
#include "zero/comm/nccl/nccl.h"

// The environment variables of launchers that give the number of processes. SLURM_NTASKS is not among them,
// because batch scripts and shells of interactive jobs have it too. SLURM_STEP_NUM_TASKS describes only the
// job step of this process.
static const struct {
    const char *name;
    // True: the value must equal the number of MPI ranks. False: only if MPI sees a single rank.
    bool is_of_mpi;
} sizes[] = {{"OMPI_COMM_WORLD_SIZE", true},
             {"PMI_SIZE", true},
             {"SLURM_STEP_NUM_TASKS", false},
             {"WORLD_SIZE", false}};

// Returns an environment variable by which Open MPI, MPICH or one of its derivatives, Slurm or PMIx shows
// that it started this process; NULL: none.
static const char *sign_of_mpi(void) {
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i]))
            return signs[i];
    return NULL;
}

static int size_of(size_t i) {
    const char *value = getenv(sizes[i].name);
    return value ? atoi(value) : 0;
}

const char *comm_launcher_sign(void) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (size_of(i) > 1)
            return sizes[i].name;
    return sign_of_mpi();
}

// Fails if a launcher started processes that MPI does not connect: each would train the whole run.
static enum status check_launcher(const struct comm *comm) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int n = size_of(i);
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
    if (!sign_of_mpi())
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
