// Runs the threads of a block as fibers of one operating system thread: which thread runs, what the others
// wait for, and what happens when none can continue.
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

// Properties of a kernel, set at its first launch.
struct kernel_facts {
    std::vector<thread_variable> shared; // the kernel's own __shared__ variables
    size_t shared_bytes = 0;             // their total size
    size_t dynamic_limit = 0;            // for dynamic shared memory; 0: the default
};

// One launch: the state that its blocks share.
struct grid_launch {
    const kernel_facts *facts;
    const void *kernel;
    thread_call call;
    const void *arguments;
    size_t arguments_bytes;
    dim3 grid, block;
    size_t shared_bytes;
    unsigned seed;            // for the order of threads and blocks; 0: by number
    std::atomic<bool> failed; // a finding aborted the launch
};

// A lane that waits in a collective instruction of its warp (warp_collective).
struct lane_wait {
    unsigned mask;
    const char *what;
    void *record;
    void (*apply)(void *const records[threads_per_warp], unsigned mask, void *context);
    void *context;
};

struct warp_state {
    uint32_t ready = 0;   // lanes that may run, including those that have not started
    uint32_t live = 0;    // lanes that have not left the kernel
    uint32_t waiting = 0; // lanes in a collective
    lane_wait waits[threads_per_warp];
};

struct thread_state {
    fiber *on; // NULL until the thread first runs
    uint3 index;
    void *slot;
    void (*slot_end)(void *);
};

// Everything that an operating system thread needs to run blocks. It outlives that thread, and a later one
// reuses it.
struct block_runner {
    const grid_launch *launch = nullptr;
    uint3 block = {};
    dim3 shape = dim3(0); // of the block for which the threads' indices below are set
    unsigned n_threads = 0, n_warps = 0, n_exited = 0;
    unsigned running = 0;      // the running thread
    bool in_kernel = false;    // a thread of the block runs, not the simulator's code around it
    uint32_t ready_warps = 0;  // warps with a ready lane
    uint64_t random = 0;       // state of the random order; 0: by number
    unsigned n_at_barrier = 0; // threads that wait at the barrier
    const char *barrier_file = nullptr;
    int barrier_line = 0;
    uint32_t at_barrier[max_warps] = {}; // lanes of each warp that wait at the barrier
    fiber main;
    fiber *crash_reporter = nullptr;   // crash.cpp
    struct race_state *race = nullptr; // race.cpp
    fiber *current = nullptr;          // fiber of the running thread
    fiber *aborted_on = nullptr;       // fiber that aborted the block
    fiber *crashed_on = nullptr;       // fiber that caused a page fault
    fiber *free_fibers = nullptr;
    char *shared = nullptr;   // dynamic shared memory, shared_limit bytes
    thread_memory fixed = {}; // contains static shared memory
    warp_state warps[max_warps];
    thread_state threads[max_threads];
};

// The calling thread's runner, created on first use.
block_runner &runner();
// The runner of the kernel that now runs on this thread, or NULL.
block_runner *running_block();

// Runs one block to its end; sets launch.failed when a finding aborts it.
void run_block(grid_launch &launch, uint3 block);

// Runs other threads until the running one is made ready again.
void wait_until_ready();
void make_ready(block_runner &r, unsigned warp, uint32_t lanes);

// Aborts the block: its threads do not continue, and their stacks are not unwound. Call it as a separate
// statement, while no object with a destructor is live.
[[noreturn]] void abort_block();
// Describes all waiting threads, for messages: "threads 0-31 wait at ...".
std::string who_waits(const block_runner &r);

} // namespace cudasim

#endif
