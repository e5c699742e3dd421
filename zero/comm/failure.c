// See zero/comm/backend.h, and comm_abort in zero/comm/comm.h.
#include "zero/comm/backend.h"

void comm_note_known_failure(struct comm *comm) {
    atomic_store(&comm->failures.known, status_serial());
    atomic_store(&comm->failures.known_at, atomic_load(&comm->state->n_issued));
}

bool comm_is_known_failure(struct comm *comm) {
    return atomic_load(&comm->failures.known) == status_serial() &&
           atomic_load(&comm->failures.known_at) == atomic_load(&comm->state->n_issued);
}

void comm_abort(struct comm *comm, enum status status) {
    if (comm->world == 1 || comm_is_known_failure(comm))
        return;
    comm->backend->abort(comm, status, status_message());
    comm_note_known_failure(comm);
}
