// Inside communication: links that carry chunks of bytes between two ranks, in order. Ranks on one machine
// share memory: each has a mailbox with one ring for every sender, so a chunk is copied once and summed where
// it lies. Knows nothing of MPI or of collectives.
#ifndef ZERO_ZERO_COMM_LINK_H
#define ZERO_ZERO_COMM_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define LINK_DEPTH     2 // chunks under way in each direction: one being filled, one being read
#define LINK_ALIGNMENT 64
#define LINK_PAGE      65536 // the largest page of any system that this runs on
#define LINK_MESSAGE   2048
#define LINK_SPINS     1000 // some tens of microseconds: what waking up would take

// One sender, one receiver. A count differs from the other by the chunks that lie in the ring.
struct ring {
    _Alignas(LINK_ALIGNMENT) atomic_uint produced;
    _Alignas(LINK_ALIGNMENT) atomic_uint consumed;
    _Alignas(LINK_ALIGNMENT) char chunks[]; // LINK_DEPTH of them
};

// What a rank shows to the others on its machine. The rings of its senders follow.
struct mailbox {
    atomic_int process;   // its process id
    atomic_int finished;  // it is about to end, as it should
    atomic_int failed_by; // rank + 1 of the one that failed, told by that one
    int status;           // of its own failure, if failed_by names itself
    char message[LINK_MESSAGE];
};

size_t link_chunk_bytes(int world);
size_t mailbox_bytes(int local_world, size_t chunk_bytes);
// With the pages that a mailbox has to itself: pinning is by the page.
size_t mailbox_pages_bytes(int local_world, size_t chunk_bytes);
size_t link_pages_bytes(size_t bytes); // in whole pages
struct ring *mailbox_ring(struct mailbox *mailbox, int sender, size_t chunk_bytes);
void mailbox_init(struct mailbox *mailbox, int local_world, size_t chunk_bytes);

// Whether the chunk that comes next can be written (sender) or read (receiver); its place.
bool ring_can_push(const struct ring *ring);
bool ring_can_pull(const struct ring *ring);
void *ring_push_place(struct ring *ring, size_t chunk_bytes);
const void *ring_pull_place(struct ring *ring, size_t chunk_bytes);
void ring_pushed(struct ring *ring);
void ring_pulled(struct ring *ring);
// Looks `spins` times and then sleeps until the other side has moved, at most for some milliseconds.
void ring_wait_to_push(struct ring *ring, int spins);
void ring_wait_to_pull(struct ring *ring, int spins);

#endif
