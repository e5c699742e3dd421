// What a communication backend implements, and what zero/comm/comm.c passes to it.
// To add a backend: implement these functions as zero/comm/mpi/mpi.c does, and choose it in zero/comm/open.c.
#ifndef ZERO_ZERO_COMM_BACKEND_H
#define ZERO_ZERO_COMM_BACKEND_H

#include <stdbool.h>

#include "base/dtype.h"
#include "kernels/device.h"
#include "zero/comm/rank_state.h"
#include "zero/comm/transfer.h"

struct comm; // zero/comm/comm.h

#define COMM_MESSAGE_BYTES STATUS_MESSAGE_BYTES // a failure's message, as ranks send it

// One bulk collective: the arguments of comm_reduce_scatter, comm_all_gather or comm_exchange.
struct comm_call {
    struct comm_id id;
    enum comm_operation operation;
    const struct comm_transfer *transfer;
    const void *in;  // fp32 for a reduce-scatter, else `type`
    void *out;       // as `in`
    enum dtype type; // of what is sent
    bool accumulate;
};

// The result of an agreement: the worst status, the lowest rank that has it, and how many ranks have it. Each
// rank starts with its own status, its own number and 1.
struct comm_verdict {
    int32_t status, rank, count;
};

// Functions block until this rank's work is done. The backend adds what it sends to comm->traffic.bytes.
// Unless noted, they are called only with several ranks.
struct comm_backend {
    const char *name;
    // Allocates and frees what bulk collectives need on comm->device. detach also follows a failed attach.
    // NULL: there is nothing to do. Called with one rank too.
    enum status (*attach)(struct comm *comm);
    void (*detach)(struct comm *comm);
    // A bulk collective, on comm->stream.
    enum status (*bulk)(struct comm *comm, const struct comm_call *call);
    // Control collectives, of any number of bytes, 0 included. Each synchronizes all ranks, so that ranks in
    // different collectives notice it.
    enum status (*gather)(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                          void *all);
    enum status (*broadcast)(struct comm *comm, const struct comm_id *id, void *data, size_t bytes, int root);
    enum status (*agree)(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict);
    // Reports a failure to all ranks, without waiting for them.
    void (*abort)(struct comm *comm, enum status status, const char *message);
    // Ends communication. Every rank that still can calls it, with the status that it exits with. Called with
    // one rank too.
    void (*close)(struct comm *comm, enum status status);
};

// Bulk collectives as work on streams, beside a backend that does everything else. Called with several ranks
// only, and between attach and detach only where attach set comm->device_data.
struct comm_device_backend {
    const char *name;
    // Decides with all ranks, which call it together, whether they use it. Sets comm->device_data if they do;
    // STATUS_OK also if they do not.
    enum status (*attach)(struct comm *comm);
    void (*detach)(struct comm *comm); // no-op without comm->device_data
    // Issues a collective to comm->stream, behind the work of `stream`. Adds to comm->traffic.
    enum status (*bulk)(struct comm *comm, struct stream *stream, const struct comm_call *call,
                        comm_work *work);
    enum status (*gather)(struct comm *comm, struct stream *stream, const struct comm_id *id,
                          const void *mine, size_t bytes, void *all);
    // `stream` waits; NULL: the host does.
    enum status (*wait)(struct comm *comm, struct stream *stream, comm_work work);
    // Looks for errors and for collectives that do not end. The watchdog calls it, with comm->watch_lock.
    void (*watch)(struct comm *comm);
};

#endif
