// One block's threads as fibers of one thread of the operating system: who runs, who waits for whom, and what
// happens when nobody can go on.
#ifndef CUDASIM_BLOCK_H
#define CUDASIM_BLOCK_H

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cudasim/api.h"
#include "tests/cudasim/fiber.h"
#include "tests/cudasim/symbols.h"

namespace cudasim {

constexpr unsigned threads_per_warp = 32, max_threads = 1024, max_warps = max_threads / threads_per_warp;
constexpr size_t default_shared_limit = 48 * 1024, shared_limit = 227 * 1024;

// What is known of a kernel from its first launch on.
struct kernel_facts {
    std::vector<thread_variable> shared; // its own __shared__ variables
    size_t shared_bytes = 0;             // of them together
    size_t dynamic_limit = 0;            // of dynamic shared memory, 0: the default
};

// One launch as every block of it sees it.
struct grid_launch {
    const kernel_facts *facts;
    const void *kernel;
    thread_call call;
    const void *arguments;
    size_t arguments_bytes;
    dim3 grid, block;
    size_t shared_bytes;
    unsigned seed;            // of the order of threads and blocks; 0: in order
    std::atomic<bool> failed; // a finding gave up the launch
};

// What a lane waits with in a collective instruction of its warp.
struct lane_wait {
    unsigned mask;
    const char *what;
    void *record;
    void (*apply)(void *const records[threads_per_warp], unsigned mask, void *context);
    void *context;
};

struct warp_state {
    uint32_t ready = 0;   // lanes that may run; a lane that has not begun is ready
    uint32_t live = 0;    // lanes that have not left the kernel
    uint32_t waiting = 0; // lanes in a collective
    lane_wait waits[threads_per_warp];
};

struct thread_state {
    fiber *on; // NULL until it first runs
    uint3 index;
    void *slot;
    void (*slot_end)(void *);
};

// All that a thread of the operating system needs to run blocks. It outlives the thread: the next one to come
// takes it over.
struct block_runner {
    const grid_launch *launch = nullptr;
    uint3 block = {};
    dim3 shape = dim3(0); // of the threads' indices below
    unsigned n_threads = 0, n_warps = 0, n_exited = 0;
    unsigned running = 0;      // the thread that runs
    bool in_kernel = false;    // a thread of the block runs, not the simulator's own code around it
    uint32_t ready_warps = 0;  // warps with a lane that is ready
    uint64_t random = 0;       // state of the order's generator, 0: in order
    unsigned n_at_barrier = 0; // threads that wait at the barrier
    const char *barrier_file = nullptr;
    int barrier_line = 0;
    uint32_t at_barrier[max_warps] = {}; // their lanes
    fiber main;
    fiber *crash_reporter = nullptr;   // crash.cpp
    struct race_state *race = nullptr; // race.cpp
    fiber *current = nullptr;          // the running thread's
    fiber *given_up_on = nullptr;      // the one that gave up the block
    fiber *crashed_on = nullptr;       // the one whose thread faulted
    fiber *free_fibers = nullptr;
    char *shared = nullptr;   // dynamic shared memory, shared_limit bytes
    thread_memory fixed = {}; // where static shared memory lies
    warp_state warps[max_warps];
    thread_state threads[max_threads];
};

// The calling thread's runner; made on first use.
block_runner &runner();
// The one that runs a kernel now on this thread, or NULL.
block_runner *running_block();

// Runs one block from start to end; sets launch.failed where a finding gave it up.
void run_block(grid_launch &launch, uint3 block);

// The running thread lets others run until it is made ready again.
void wait_until_ready();
void make_ready(block_runner &r, unsigned warp, uint32_t lanes);

// Leaves the block's threads where they stand. A statement of its own: nothing is destroyed on the way.
[[noreturn]] void give_up_block();
// "threads 0-31 wait at ...": everyone who waits, for messages.
std::string who_waits(const block_runner &r);

} // namespace cudasim

#endif
