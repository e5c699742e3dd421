// See zero/comm/ring.h. A wait spins briefly if every rank has a processor of its own, then sleeps on a
// futex. With fewer cores than ranks, a spinning rank would take the core from the rank that it waits for.
#include "zero/comm/ring.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/processors.h"

#define LARGEST_CHUNK  ((size_t)256 << 10) // fits a core's L2 cache
#define LARGEST_OF_GPU ((size_t)2 << 20)   // 80 us at 25 GB/s; a synchronization is short in comparison
#define SMALLEST_CHUNK ((size_t)16 << 10)
#define ALL_CHUNKS     ((size_t)64 << 20) // limit on the bytes of one chunk from every other rank, together
#define NAP_NS         10000000           // longest sleep in a wait; then the caller checks for failures

size_t link_chunk_bytes(int world, bool for_gpu) {
    const size_t largest = for_gpu ? LARGEST_OF_GPU : LARGEST_CHUNK;
    size_t most = ALL_CHUNKS / (size_t)(world > 1 ? world - 1 : 1);
    size_t bytes = most < SMALLEST_CHUNK ? SMALLEST_CHUNK : most > largest ? largest : most;
    return bytes / SMALLEST_CHUNK * SMALLEST_CHUNK;
}

static size_t ring_bytes(size_t chunk_bytes) {
    return sizeof(struct ring) + LINK_DEPTH * (LINK_HEADER + chunk_bytes);
}

static size_t header_bytes(void) {
    return (sizeof(struct mailbox) + LINK_ALIGNMENT - 1) / LINK_ALIGNMENT * LINK_ALIGNMENT;
}

size_t mailbox_bytes(int linked, size_t chunk_bytes) {
    return header_bytes() + (size_t)(linked - 1) * (ring_bytes(chunk_bytes) + ring_bytes(LINK_CONTROL_BYTES));
}

size_t link_pages_bytes(size_t bytes) {
    return (bytes + LINK_PAGE - 1) / LINK_PAGE * LINK_PAGE;
}

size_t mailbox_pages_bytes(int linked, size_t chunk_bytes) {
    return link_pages_bytes(mailbox_bytes(linked, chunk_bytes));
}

struct ring *mailbox_ring(struct mailbox *mailbox, int sender, size_t chunk_bytes) {
    return (struct ring *)(void *)((char *)mailbox + header_bytes() +
                                   (size_t)sender * ring_bytes(chunk_bytes));
}

struct ring *mailbox_control_ring(struct mailbox *mailbox, int linked, int sender, size_t chunk_bytes) {
    return (struct ring *)(void *)((char *)mailbox_ring(mailbox, linked - 1, chunk_bytes) +
                                   (size_t)sender * ring_bytes(LINK_CONTROL_BYTES));
}

void mailbox_init(struct mailbox *mailbox, int linked, size_t chunk_bytes) {
    memset(mailbox, 0, mailbox_bytes(linked, chunk_bytes)); // also touches every page
    rank_state_init(&mailbox->state);
}

bool ring_can_push(const struct ring *ring) {
    unsigned produced = atomic_load_explicit(&ring->produced, memory_order_relaxed);
    return produced - atomic_load_explicit(&ring->consumed, memory_order_acquire) < LINK_DEPTH;
}

bool ring_can_pull(const struct ring *ring) {
    unsigned consumed = atomic_load_explicit(&ring->consumed, memory_order_relaxed);
    return atomic_load_explicit(&ring->produced, memory_order_acquire) != consumed;
}

static void *chunk_place(struct ring *ring, unsigned count, size_t chunk_bytes) {
    return ring->chunks + count % LINK_DEPTH * (LINK_HEADER + chunk_bytes);
}

struct link_header *ring_push_place(struct ring *ring, size_t chunk_bytes) {
    return chunk_place(ring, atomic_load_explicit(&ring->produced, memory_order_relaxed), chunk_bytes);
}

const struct link_header *ring_pull_place(struct ring *ring, size_t chunk_bytes) {
    return chunk_place(ring, atomic_load_explicit(&ring->consumed, memory_order_relaxed), chunk_bytes);
}

// Sleeps until woken, at most NAP_NS, unless *word is no longer `value`. The kernel compares them before it
// sleeps, so no wake-up is lost between the poll and the sleep.
static void sleep_while(atomic_uint *word, unsigned value) {
    const struct timespec most = {.tv_nsec = NAP_NS};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}

static void wake(atomic_uint *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void ring_pushed(struct ring *ring) {
    atomic_fetch_add_explicit(&ring->produced, 1, memory_order_release);
    wake(&ring->produced);
}

void ring_pulled(struct ring *ring) {
    atomic_fetch_add_explicit(&ring->consumed, 1, memory_order_release);
    wake(&ring->consumed);
}

void ring_wait_to_push(struct ring *ring, int spins) {
    for (int i = 0; i < spins && !ring_can_push(ring); i++)
        processor_pause();
    unsigned consumed = atomic_load(&ring->consumed);
    if (!ring_can_push(ring))
        sleep_while(&ring->consumed, consumed);
}

void ring_wait_to_pull(struct ring *ring, int spins) {
    for (int i = 0; i < spins && !ring_can_pull(ring); i++)
        processor_pause();
    unsigned produced = atomic_load(&ring->produced);
    if (!ring_can_pull(ring))
        sleep_while(&ring->produced, produced);
}
