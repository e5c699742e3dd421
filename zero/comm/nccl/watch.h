// Watching NCCL: errors, collectives that do not end, and the time that they take.
#ifndef ZERO_ZERO_COMM_NCCL_WATCH_H
#define ZERO_ZERO_COMM_NCCL_WATCH_H

#include "zero/comm/nccl/data.h"

enum status nccl_intervals_init(struct nccl_intervals *intervals, struct device *device,
                                unsigned size) MUST_CHECK;
void nccl_intervals_free(struct nccl_intervals *intervals);
// Marks the begin of an interval of `stream`; end it with event_record(&(*out)->end, stream). *out is NULL
// while as many as fit are outstanding: that one is not measured. The caller holds nccl->lock.
enum status nccl_interval_begin(struct nccl_intervals *intervals, struct stream *stream, uint64_t call,
                                struct nccl_interval **out) MUST_CHECK;

// comm_device_backend.watch.
void nccl_watch(struct comm *comm);
// Adds the time measured so far to comm->traffic. For the thread that issues collectives.
void nccl_count_time(struct comm *comm);

// The failure of a call of NCCL that returned `result`: that of another rank, if one fails within a moment,
// since its death is what NCCL noticed.
enum status nccl_failure(struct comm *comm, int result, const char *call) MUST_CHECK;

// Returns from the current function unless the call of nccl->api succeeds.
#define TRY_NCCL(comm, call)                                                                                 \
    do {                                                                                                     \
        const int result_ = nccl_of(comm)->api.call;                                                         \
        if (result_ != NCCL_SUCCESS)                                                                         \
            return nccl_failure((comm), result_, #call);                                                     \
    } while (0)

#endif
