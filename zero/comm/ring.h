// Inside communication: links that carry chunks of bytes between two ranks, in order. Ranks on one machine
// share memory: each has a mailbox with one ring for every sender, so a chunk is copied once and summed where
// it lies. Knows nothing of MPI or of collectives.
#ifndef ZERO_ZERO_COMM_RING_H
#define ZERO_ZERO_COMM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "zero/comm/rank_state.h"

#define LINK_DEPTH     2 // chunks under way in each direction: one being filled, one being read
#define LINK_ALIGNMENT 64
#define LINK_PAGE      65536 // the largest page of any system that this runs on
#define LINK_MESSAGE   2048
#define LINK_SPINS     1000 // some tens of microseconds: what waking up would take

// What heads each chunk: the collective that it is part of, and its payload.
struct link_header {
    uint64_t call;
    uint32_t collective, bytes;
};
#define LINK_HEADER LINK_ALIGNMENT // room for it

// One sender, one receiver. A count differs from the other by the chunks that lie in the ring.
struct ring {
    _Alignas(LINK_ALIGNMENT) atomic_uint produced;
    _Alignas(LINK_ALIGNMENT) atomic_uint consumed;
    _Alignas(LINK_ALIGNMENT) char chunks[]; // LINK_DEPTH of them, each behind its header
};

// A failure as it is told. The rank that failed may not be the one that tells.
struct failure_note {
    int rank, status;
    bool gone; // it takes part in nothing any more: killed, or hanging. Who found it has printed the message
    char message[LINK_MESSAGE];
};

// What a rank shows to the others on its machine. The rings of its senders follow: for bulk calls, then for
// control calls.
struct mailbox {
    struct rank_state state;
    atomic_int failed_by; // rank + 1 of the one whose `note` tells of a failure
    struct failure_note note;
    atomic_int speaker; // of the machine's first rank: who tells the user, rank + 1
};

// Payload of a chunk: of bulk calls, smaller where a rank has many links; of control calls.
size_t link_chunk_bytes(int world);
#define LINK_CONTROL_BYTES ((size_t)4096 - LINK_HEADER)
size_t mailbox_bytes(int linked, size_t chunk_bytes);
// With the pages that a mailbox has to itself: pinning is by the page.
size_t mailbox_pages_bytes(int linked, size_t chunk_bytes);
size_t link_pages_bytes(size_t bytes); // in whole pages
// sender: its place among the others on the machine, 0 to linked - 2.
struct ring *mailbox_ring(struct mailbox *mailbox, int sender, size_t chunk_bytes);
struct ring *mailbox_control_ring(struct mailbox *mailbox, int linked, int sender, size_t chunk_bytes);
void mailbox_init(struct mailbox *mailbox, int linked, size_t chunk_bytes);

// Whether the chunk that comes next can be written (sender) or read (receiver); its place.
bool ring_can_push(const struct ring *ring);
bool ring_can_pull(const struct ring *ring);
struct link_header *ring_push_place(struct ring *ring, size_t chunk_bytes);
const struct link_header *ring_pull_place(struct ring *ring, size_t chunk_bytes);
void ring_pushed(struct ring *ring);
void ring_pulled(struct ring *ring);
// Looks `spins` times and then sleeps until the other side has moved, at most for some milliseconds.
void ring_wait_to_push(struct ring *ring, int spins);
void ring_wait_to_pull(struct ring *ring, int spins);

#endif
