// The state of the NCCL path, shared by the zero/comm/nccl/*.c files. zero/comm/nccl/nccl.h has the overview.
#ifndef ZERO_ZERO_COMM_NCCL_DATA_H
#define ZERO_ZERO_COMM_NCCL_DATA_H

#include <pthread.h>
#include <stdatomic.h>

#include "zero/comm/backend.h"
#include "zero/comm/nccl/api.h"

#define NCCL_WORKS    64  // work handles with an event of their own; a later one stands in for an older one
#define NCCL_WATCHED  128 // collectives whose ends are watched at a time
#define NCCL_INTERVAL 64  // waits whose time is measured at a time

// The time between two points of a stream, read after both have happened.
struct nccl_interval {
    struct event begin, end; // timed
    uint64_t call;           // the collective's number
};
// Intervals in order: those from n_done to n_begun - 1 have not been read.
struct nccl_intervals {
    struct nccl_interval *entries; // (size)
    unsigned size, n_begun, n_done;
};

struct nccl {
    struct nccl_api api;
    nccl_comm handle; // NULL: closed
    int version;
    // Staging, in chunks of chunk_bytes: what this rank sends to each rank (its own slice too), and what it
    // receives from each other rank.
    size_t chunk_bytes;
    char *send, *receive; // (world), (world - 1)
    struct event done[NCCL_WORKS];
    uint64_t n_works;    // issued; the handle of the last one
    atomic_bool aborted; // by the watchdog: the handle is not used any more
    // For the watchdog while the main thread holds the lock: how often it took it, and 1 + the number of the
    // collective that it began to issue last (0: none).
    atomic_uint n_locked;
    _Atomic uint64_t begun_call;
    unsigned stuck_in;   // the watchdog's: n_locked when it found the lock taken,
    int64_t stuck_ms;    // and since when (0: it was free)
    int64_t error_ms;    // the watchdog's: when an asynchronous error was first seen; 0: none
    uint64_t shown_call; // the watchdog's: 1 + the one that this rank is shown to wait for; 0: none
    // Guards the handle and the following: the watchdog aborts and looks while the main thread issues.
    pthread_mutex_t lock;
    struct nccl_intervals works; // of comm->stream: the collectives
    struct nccl_intervals waits; // of the callers' streams: until a collective's end
    double busy_s, waited_s;     // read so far, not yet in comm->traffic
    uint64_t n_issued;           // collectives, watched or not
    uint64_t n_watched;          // of which an event tells the end
    uint64_t last_call;          // number of the last one
};

static inline struct nccl *nccl_of(const struct comm *comm) {
    return comm->device_data;
}

static inline nccl_stream nccl_queue(const struct stream *stream) {
    return stream->queue;
}

static inline enum nccl_type nccl_type_of(enum dtype type) {
    return type == DTYPE_BF16 ? NCCL_BFLOAT16 : type == DTYPE_F16 ? NCCL_FLOAT16 : NCCL_FLOAT32;
}

#endif
