// Links through shared memory: rings that carry chunks of bytes from one rank to another, in order. Each rank
// has a mailbox with one ring per sender. A chunk is copied once, into the receiver's memory, and summed
// there. This file knows nothing of MPI or of collectives.
#ifndef ZERO_ZERO_COMM_RING_H
#define ZERO_ZERO_COMM_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "zero/comm/rank_state.h"

#define LINK_DEPTH     2 // chunks per link and direction: one is filled while the other is read
#define LINK_ALIGNMENT 64
#define LINK_PAGE      65536 // bytes; the largest page size of any supported system
#define LINK_SPINS     1000  // polls before sleeping: some tens of microseconds, the latency of a wake-up

// The header before each chunk, in rings and in messages: number and name of the collective, bytes of
// payload.
struct link_header {
    uint64_t call;
    uint32_t collective, bytes;
};
#define LINK_HEADER LINK_ALIGNMENT // bytes reserved for the header of a chunk

// A ring with one sender and one receiver. `produced` and `consumed` count chunks (modulo 2^32). The ring
// contains the chunks produced and not yet consumed.
struct ring {
    _Alignas(LINK_ALIGNMENT) atomic_uint produced;
    _Alignas(LINK_ALIGNMENT) atomic_uint consumed;
    _Alignas(LINK_ALIGNMENT) char chunks[]; // (LINK_DEPTH) each a link_header, then the payload
};

// The memory that a rank shares with the others on its machine. The rings of its senders follow the struct:
// first those for bulk collectives, then those for control collectives.
struct mailbox {
    struct rank_state state;
};

// Returns the payload bytes of a bulk chunk. Bulk chunks are smaller with many ranks, which bounds the memory
// of all links. They are larger for GPU memory, because each chunk costs a synchronization there.
size_t link_chunk_bytes(int world, bool for_gpu);
// Payload bytes of a control chunk.
#define LINK_CONTROL_BYTES ((size_t)4096 - LINK_HEADER)

// ---- mailboxes
//
// Parameters of the functions below:
//   linked        number of ranks of the machine that share memory, this one included
//   chunk_bytes   payload bytes of a bulk chunk (link_chunk_bytes)
//   sender        the sender's index among the other ranks of the machine, 0 to linked - 2

// Returns the bytes of a mailbox with its rings.
size_t mailbox_bytes(int linked, size_t chunk_bytes);
// Returns these bytes, rounded up to whole pages. A mailbox shares no page with other data, because memory is
// page-locked by the page.
size_t mailbox_pages_bytes(int linked, size_t chunk_bytes);
size_t link_pages_bytes(size_t bytes); // rounds up to whole pages
// Return the ring of a sender: for bulk collectives, and for control collectives.
struct ring *mailbox_ring(struct mailbox *mailbox, int sender, size_t chunk_bytes);
struct ring *mailbox_control_ring(struct mailbox *mailbox, int linked, int sender, size_t chunk_bytes);
void mailbox_init(struct mailbox *mailbox, int linked, size_t chunk_bytes);

// ---- rings
//
// The sender waits until it can push, fills the header and payload at the push place, and calls ring_pushed.
// The receiver waits until it can pull, reads at the pull place, and calls ring_pulled.

bool ring_can_push(const struct ring *ring);
bool ring_can_pull(const struct ring *ring);
struct link_header *ring_push_place(struct ring *ring, size_t chunk_bytes);
const struct link_header *ring_pull_place(struct ring *ring, size_t chunk_bytes);
void ring_pushed(struct ring *ring);
void ring_pulled(struct ring *ring);
// Polls `spins` times, then sleeps until the other side pulls or pushes, 10 ms at most. May return earlier,
// so call ring_can_push or ring_can_pull again.
void ring_wait_to_push(struct ring *ring, int spins);
void ring_wait_to_pull(struct ring *ring, int spins);

#endif
