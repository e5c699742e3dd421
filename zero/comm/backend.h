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

#define COMM_MESSAGE_BYTES STATUS_MESSAGE_BYTES // the longest failure message that ranks exchange

// One bulk collective: the arguments of comm_reduce_scatter, comm_all_gather or comm_exchange.
struct comm_call {
    struct comm_id id;
    enum comm_operation operation;
    const struct comm_transfer *transfer;
    const void *in;  // fp32 for a reduce-scatter, else `type`
    void *out;       // same dtype as `in`
    enum dtype type; // dtype of the elements sent
    bool accumulate;
};

// The result of an agreement: the worst status, the lowest rank that has it, and how many ranks have it. As
// input, each rank passes its own status, its own rank number and a count of 1.
struct comm_verdict {
    int32_t status, rank, count;
};

// The functions block until this rank's work is done. The backend adds the bytes that it sends to
// comm->traffic.bytes. Unless noted, a function is called only with several ranks.
struct comm_backend {
    const char *name;
    // Allocates and frees what bulk collectives need on comm->device. detach is also called after a failed
    // attach. Both are NULL if there is nothing to allocate. They are called with one rank too.
    enum status (*attach)(struct comm *comm);
    void (*detach)(struct comm *comm);
    // Runs a bulk collective, with its device work on comm->stream.
    enum status (*bulk)(struct comm *comm, const struct comm_call *call);
    // Control collectives. `bytes` may be any number, including 0. Each one synchronizes all ranks, so ranks
    // that are in different collectives notice it.
    enum status (*gather)(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                          void *all);
    enum status (*broadcast)(struct comm *comm, const struct comm_id *id, void *data, size_t bytes, int root);
    enum status (*agree)(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict);
    // Reports a failure to all ranks, without waiting for them.
    void (*abort)(struct comm *comm, enum status status, const char *message);
    // Ends communication. Called by every rank that still can, with the status that the rank exits with.
    // Called with one rank too.
    void (*close)(struct comm *comm, enum status status);
};

// A backend that runs bulk collectives as work on streams. A comm_backend still does everything else. The
// functions are called only with several ranks; bulk, gather, wait and watch only between an attach that sets
// comm->device_data and detach.
struct comm_device_backend {
    const char *name;
    // All ranks call it together and decide whether they use this backend. Sets comm->device_data if they do.
    // Not using it is a failure only if the user asked for it (comm.backend=nccl).
    enum status (*attach)(struct comm *comm);
    void (*detach)(struct comm *comm); // no-op without comm->device_data
    // Issues a collective to comm->stream, after the work already issued to `stream`. Adds its bytes and
    // calls to comm->traffic.
    enum status (*bulk)(struct comm *comm, struct stream *stream, const struct comm_call *call,
                        comm_work *work);
    // Implements comm_gather_device: `mine` and `all` are in device memory. Also makes `stream` wait for the
    // result.
    enum status (*gather)(struct comm *comm, struct stream *stream, const struct comm_id *id,
                          const void *mine, size_t bytes, void *all);
    // Makes `stream` wait for the collective. With stream NULL, the host waits.
    enum status (*wait)(struct comm *comm, struct stream *stream, comm_work work);
    // Looks for errors and for collectives that do not end. Called by the watchdog, which holds
    // comm->watch_lock.
    void (*watch)(struct comm *comm);
};

#endif
