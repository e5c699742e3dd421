// What a bulk collective moves: a transfer is a list of spans, each owned by one rank. The functions only
// compute offsets on the host; they access no device memory and send no messages.
#ifndef ZERO_ZERO_COMM_TRANSFER_H
#define ZERO_ZERO_COMM_TRANSFER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The kinds of communication that are counted separately.
enum comm_operation {
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_EXCHANGE,
    COMM_BROADCAST,
    COMM_CONTROL, // gather, sum, barrier, agreement
    N_COMM_OPERATIONS
};
// Work handle of a bulk collective, for comm_wait. 0: it is done.
typedef uint64_t comm_work;
#define COMM_WORK_ALL UINT64_MAX // for comm_wait: all collectives issued so far

// Consecutive elements that one rank owns. Offsets are in elements, from the collective's `in` and `out`.
// The comments on the collectives in zero/comm/comm.h state which ranks read and write them.
struct comm_span {
    int owner;
    int to;   // comm_exchange only: the receiving rank; may be the owner
    int next; // index of the owner's next span in the same transfer, -1 for none; set by comm_spans_link
    size_t in, out, elements;
};
// The spans of one bulk collective: the same list on every rank.
struct comm_transfer {
    const struct comm_span *spans;
    int n_spans;
    size_t elements; // total of all spans
};

// Sets `next` of each span, so that a collective visits every span once, however many ranks there are.
void comm_spans_link(struct comm_span *spans, int n_spans);

// Finds each owner's elements in a transfer.
//   first   (world) [out] index of the owner's first span, -1 for none
//   owned   (world) [out] number of elements that each rank owns; NULL: not wanted
void comm_transfer_owners(const struct comm_transfer *transfer, int world, int *first, size_t *owned);

// A position in the spans of one owner.
struct comm_cursor {
    const struct comm_transfer *transfer;
    int span;    // index in transfer->spans; -1 after the owner's last span
    size_t done; // number of elements of this span already visited
};
// Advances by at most `most` elements within one span, and returns those elements (with .next = -1). Returns
// 0 elements at the end.
struct comm_span comm_transfer_next(struct comm_cursor *cursor, size_t most);

// A position in the spans that one rank sends to another in an exchange. Begin with {transfer, from, to}.
struct comm_route {
    const struct comm_transfer *transfer;
    int from, to; // the sending and the receiving rank
    int span;     // index in transfer->spans
    size_t done;  // number of elements of this span already visited
};
// Returns the number of elements that rank `from` sends to rank `to`.
size_t comm_route_elements(const struct comm_transfer *transfer, int from, int to);
// Advances as comm_transfer_next does.
struct comm_span comm_route_next(struct comm_route *route, size_t most);

#endif
