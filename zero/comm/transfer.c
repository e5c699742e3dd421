// See zero/comm/transfer.h.
#include "zero/comm/transfer.h"

#include <stdlib.h>

#include "base/alloc.h"

void comm_spans_link(struct comm_span *spans, int n_spans) {
    int n_owners = 0;
    for (int i = 0; i < n_spans; i++)
        n_owners = spans[i].owner < n_owners ? n_owners : spans[i].owner + 1;
    // (n_owners) index of each owner's span after the current one, as spans are visited backwards
    int *next = allocate((size_t)n_owners, sizeof *next);
    for (int owner = 0; owner < n_owners; owner++)
        next[owner] = -1;
    for (int i = n_spans - 1; i >= 0; i--) {
        spans[i].next = next[spans[i].owner];
        next[spans[i].owner] = i;
    }
    free(next);
}

void comm_transfer_owners(const struct comm_transfer *transfer, int world, int *first, size_t *owned) {
    for (int owner = 0; owner < world; owner++) {
        first[owner] = -1;
        if (owned)
            owned[owner] = 0;
    }
    for (int i = transfer->n_spans - 1; i >= 0; i--) {
        const struct comm_span *span = &transfer->spans[i];
        first[span->owner] = i;
        if (owned)
            owned[span->owner] += span->elements;
    }
}

struct comm_span comm_transfer_next(struct comm_cursor *cursor, size_t most) {
    while (cursor->span >= 0) {
        const struct comm_span *span = &cursor->transfer->spans[cursor->span];
        if (cursor->done == span->elements) {
            cursor->span = span->next;
            cursor->done = 0;
            continue;
        }
        size_t left = span->elements - cursor->done, n = left < most ? left : most;
        struct comm_span next = {.owner = span->owner,
                                 .next = -1,
                                 .in = span->in + cursor->done,
                                 .out = span->out + cursor->done,
                                 .elements = n};
        cursor->done += n;
        return next;
    }
    return (struct comm_span){.next = -1};
}

size_t comm_route_elements(const struct comm_transfer *transfer, int from, int to) {
    size_t n = 0;
    for (int i = 0; i < transfer->n_spans; i++)
        if (transfer->spans[i].owner == from && transfer->spans[i].to == to)
            n += transfer->spans[i].elements;
    return n;
}

struct comm_span comm_route_next(struct comm_route *route, size_t most) {
    for (; route->span < route->transfer->n_spans; route->span++, route->done = 0) {
        const struct comm_span *span = &route->transfer->spans[route->span];
        if (span->owner != route->from || span->to != route->to || route->done == span->elements)
            continue;
        size_t left = span->elements - route->done, n = left < most ? left : most;
        struct comm_span next = {.owner = route->from,
                                 .to = route->to,
                                 .next = -1,
                                 .in = span->in + route->done,
                                 .out = span->out + route->done,
                                 .elements = n};
        route->done += n;
        return next;
    }
    return (struct comm_span){.next = -1};
}
