// Inside communication: what a backend provides, and what zero/comm/comm.c makes of it.
#ifndef ZERO_ZERO_COMM_BACKEND_H
#define ZERO_ZERO_COMM_BACKEND_H

#include "zero/comm/comm.h"
#include "zero/comm/rank_state.h"

#define COMM_MESSAGE_BYTES 2048 // of a failure's message, as a rank sends it

// A bulk call.
struct comm_call {
    struct comm_id id;
    enum comm_operation operation;
    const struct comm_transfer *transfer;
    const void *in; // all-gather: `type`; reduce-scatter: fp32, as `out` is
    void *out;
    enum dtype type; // of what is sent
    bool accumulate;
};

// What ranks agree on: the worst status, the lowest rank that has it, and how many have it. Before the call,
// this rank's own (and 1).
struct comm_verdict {
    int32_t status, rank, count;
};

// Each function blocks until its part is done. Bytes sent are counted by the backend, where they leave.
struct comm_backend {
    const char *name;
    // Takes what the device of comm_attach needs; gives it back. NULL: nothing. detach follows a failed
    // attach too.
    enum status (*attach)(struct comm *comm);
    void (*detach)(struct comm *comm);
    enum status (*bulk)(struct comm *comm, const struct comm_call *call); // several ranks only
    // Not called where there is one rank. values[i] becomes the sum over ranks, in rank order.
    enum status (*sum)(struct comm *comm, const struct comm_id *id, double *values, size_t n);
    // Control calls, several ranks only. Each synchronises all ranks, so that ranks which make different
    // calls notice it. Any number of bytes, 0 included.
    enum status (*gather)(struct comm *comm, const struct comm_id *id, const void *mine, size_t bytes,
                          void *all);
    enum status (*broadcast)(struct comm *comm, const struct comm_id *id, void *data, size_t bytes, int root);
    enum status (*agree)(struct comm *comm, const struct comm_id *id, struct comm_verdict *verdict);
    // Tells all ranks, without waiting for them.
    void (*abort)(struct comm *comm, enum status status, const char *message);
    // Every rank comes here that still can, with the status that it ends with.
    void (*close)(struct comm *comm, enum status status);
};

// Where a walk through the spans of one owner is.
struct comm_cursor {
    const struct comm_transfer *transfer;
    int span;    // -1: none is left
    size_t done; // elements of that span
};
// Fills (world) the first span of each owner, -1 where it has none, and, unless NULL, its elements.
void comm_transfer_owners(const struct comm_transfer *transfer, int world, int *first, size_t *owned);
// At most `most` elements; 0 elements when there are no more.
struct comm_span comm_transfer_next(struct comm_cursor *cursor, size_t most);

// The part of n values that a rank sums for all: every value is one rank's. The last rank's is the largest.
struct comm_shard {
    size_t begin, n;
};
struct comm_shard comm_shard_of(int rank, int world, size_t n);

// Every rank knows of the failure that is recorded now.
void comm_note_known_failure(struct comm *comm);

enum status comm_open_mpi(const struct comm_options *options, struct comm **out) MUST_CHECK;

#endif
