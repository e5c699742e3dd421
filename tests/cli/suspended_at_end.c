// Preloaded into a rank by tests/cli/test_ranks.py: it is suspended when the run is over, before MPI closes.
// The program calls MPI_Barrier nowhere else.
#include <mpi.h>
#include <signal.h>

int MPI_Barrier(MPI_Comm comm) {
    raise(SIGSTOP);
    return PMPI_Barrier(comm);
}
