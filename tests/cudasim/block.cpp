#include "tests/cudasim/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sys/mman.h>

#include "cudasim.h"
#include "cudasim/collectives.h"
#include "tests/cudasim/crash.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/race.h"
#include "tests/cudasim/sanitizer.h"

// Kernels see these as constants (cudasim/kernel.h), because they do not change for a running thread.
extern "C" {
__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim(1), gridDim(1);
}

namespace cudasim {

namespace {

__thread block_runner *own_runner;

std::mutex spare_mutex;
std::vector<block_runner *> &spare_runners() {
    static auto *spare = new std::vector<block_runner *>;
    return *spare;
}

// Returns the runner to the pool when its thread ends.
struct runner_holder {
    ~runner_holder() {
        uncatch_crashes();
        std::lock_guard<std::mutex> guard(spare_mutex);
        spare_runners().push_back(own_runner);
        own_runner = nullptr;
    }
};

block_runner *make_runner() {
    block_runner *made = new block_runner;
    void *memory = mmap(nullptr, shared_limit + 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    made->shared = static_cast<char *>(memory);
    return made;
}

block_runner *take_runner() {
    static thread_local runner_holder holder;
    (void)holder;
    std::lock_guard<std::mutex> guard(spare_mutex);
    std::vector<block_runner *> &spare = spare_runners();
    if (spare.empty())
        return make_runner();
    block_runner *taken = spare.back();
    spare.pop_back();
    return taken;
}

uint64_t next_random(block_runner &r) {
    // xorshift64* (Vigna, arXiv 1402.6246)
    r.random ^= r.random >> 12;
    r.random ^= r.random << 25;
    r.random ^= r.random >> 27;
    return r.random * 0x2545f4914f6cdd1dull;
}

unsigned random_bit(block_runner &r, uint32_t bits) {
    unsigned skip = unsigned((next_random(r) >> 32) * unsigned(__builtin_popcount(bits)) >> 32);
    while (skip--)
        bits &= bits - 1;
    return unsigned(__builtin_ctz(bits));
}

// Picks a ready thread, first from the warp of the running one: its lanes then reach their collectives soon,
// with their stacks in cache. Returns -1 if none is ready.
int take_ready(block_runner &r) {
    if (!r.ready_warps)
        return -1;
    unsigned warp = r.running / threads_per_warp;
    if (r.random)
        warp = random_bit(r, r.ready_warps);
    else if (!(r.ready_warps >> warp & 1))
        warp = unsigned(__builtin_ctz(r.ready_warps));
    warp_state &w = r.warps[warp];
    unsigned lane = r.random ? random_bit(r, w.ready) : unsigned(__builtin_ctz(w.ready));
    w.ready &= ~(1u << lane);
    if (!w.ready)
        r.ready_warps &= ~(1u << warp);
    return int(warp * threads_per_warp + lane);
}

void become(block_runner &r, unsigned thread) {
    r.running = thread;
    threadIdx = r.threads[thread].index;
}

void leave_kernel(block_runner &r) {
    thread_state &t = r.threads[r.running];
    if (t.slot)
        t.slot_end(t.slot);
    unsigned warp = r.running / threads_per_warp, lane = r.running % threads_per_warp;
    warp_state &w = r.warps[warp];
    for (uint32_t waiting = w.waiting; waiting; waiting &= waiting - 1) {
        const lane_wait &wait = w.waits[__builtin_ctz(waiting)];
        if (wait.mask >> lane & 1) {
            kernel_finding("divergent warp",
                           text("leaves the kernel, but %s with mask %08x waits for its lane %u: %s",
                                wait.what, wait.mask, lane, who_waits(r).c_str()));
            abort_block();
        }
    }
    if (r.n_at_barrier) {
        kernel_finding("divergent barrier", "leaves the kernel while " + who_waits(r));
        abort_block();
    }
    w.live &= ~(1u << lane);
    r.n_exited++;
}

fiber *take_fiber(block_runner &r);

// Switches to a ready thread. Returns to run_block when all threads have left the kernel. Aborts the block
// when none can continue.
void run_another(block_runner &r, fiber *self) {
    int next = take_ready(r);
    if (next < 0) {
        if (r.n_exited < r.n_threads) {
            kernel_finding("deadlock", who_waits(r));
            abort_block();
        }
        fiber_switch(self, &r.main);
        return;
    }
    become(r, unsigned(next));
    thread_state &t = r.threads[next];
    if (!t.on)
        t.on = take_fiber(r);
    r.current = t.on;
    race_thread(r);
    if (t.on != self)
        fiber_switch(self, t.on);
}

// The body of a fiber: runs threads one after the other, as long as none of them waits.
void fiber_body() {
    block_runner &r = runner();
    fiber *self = r.threads[r.running].on;
    for (;;) {
        r.launch->call(r.launch->kernel, r.launch->arguments);
        leave_kernel(r);
        r.threads[r.running].on = nullptr;
        self->next_free = r.free_fibers;
        r.free_fibers = self;
        run_another(r, self);
    }
}

fiber *take_fiber(block_runner &r) {
    fiber *taken = r.free_fibers;
    if (!taken)
        return fiber_new(fiber_body);
    r.free_fibers = taken->next_free;
    return taken;
}

void begin_block(block_runner &r, const grid_launch &launch, uint3 block) {
    unsigned n_threads = launch.block.x * launch.block.y * launch.block.z;
    bool same_shape = r.shape.x == launch.block.x && r.shape.y == launch.block.y && r.n_threads == n_threads;
    r.launch = &launch;
    r.shape = launch.block;
    r.block = block;
    r.n_threads = n_threads;
    r.n_warps = (n_threads + threads_per_warp - 1) / threads_per_warp;
    r.n_exited = r.n_at_barrier = 0;
    r.running = 0;
    r.random = 0;
    if (launch.seed) {
        uint64_t number = (uint64_t(block.z) * launch.grid.y + block.y) * launch.grid.x + block.x;
        r.random = (launch.seed + (number << 20)) * 0x9e3779b97f4a7c15ull | 1;
    }
    for (unsigned warp = 0; warp < r.n_warps; warp++) {
        unsigned lanes = std::min(threads_per_warp, n_threads - warp * threads_per_warp);
        r.warps[warp].ready = r.warps[warp].live = lanes == 32 ? ~0u : (1u << lanes) - 1;
        r.warps[warp].waiting = 0;
        r.at_barrier[warp] = 0;
    }
    r.ready_warps = r.n_warps == 32 ? ~0u : (1u << r.n_warps) - 1;
    for (unsigned i = 0; i < n_threads; i++) {
        thread_state &t = r.threads[i];
        t.on = nullptr;
        t.slot = nullptr;
        if (!same_shape)
            t.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                       i / (launch.block.x * launch.block.y)};
    }
    blockIdx = block;
    blockDim = launch.block;
    gridDim = launch.grid;
}

// Fills shared memory with NaN, and poisons dynamic shared memory beyond the launch's size.
void begin_shared(block_runner &r, const grid_launch &launch) {
    for (const thread_variable &variable : launch.facts->shared)
        memset(r.fixed.begin + variable.offset, 0xff, variable.bytes);
    size_t bytes = launch.shared_bytes;
    if (!bytes)
        return;
    unpoison(r.shared, shared_limit);
    memset(r.shared, 0xff, bytes);
    poison(r.shared + bytes, shared_limit - bytes);
}

} // namespace

block_runner &runner() {
    if (!own_runner) {
        own_runner = take_runner();
        own_runner->fixed = thread_local_memory();
        catch_crashes();
    }
    return *own_runner;
}

block_runner *running_block() {
    return own_runner && own_runner->in_kernel ? own_runner : nullptr;
}

void run_block(grid_launch &launch, uint3 block) {
    block_runner &r = runner();
    begin_block(r, launch, block);
    begin_shared(r, launch);
    race_block(r);
    r.in_kernel = true;
    run_another(r, &r.main);
    r.in_kernel = false;
    race_end(r);
    if (!r.aborted_on)
        return;
    // Aborted: drop the unfinished threads.
    launch.failed = true;
    fiber_restart(r.aborted_on);
    for (unsigned i = 0; i < r.n_threads; i++) {
        fiber *on = r.threads[i].on;
        if (!on)
            continue;
        fiber_restart(on);
        on->next_free = r.free_fibers;
        r.free_fibers = on;
    }
    r.aborted_on = nullptr;
}

void wait_until_ready() {
    block_runner &r = runner();
    run_another(r, r.threads[r.running].on);
}

void make_ready(block_runner &r, unsigned warp, uint32_t lanes) {
    if (!lanes)
        return;
    r.warps[warp].ready |= lanes;
    r.ready_warps |= 1u << warp;
}

void abort_block() {
    block_runner &r = runner();
    r.aborted_on = r.current;
    fiber_switch(r.current, &r.main);
    abort();
}

void block_barrier(const char *file, int line) {
    block_runner &r = runner();
    unsigned warp = r.running / threads_per_warp, lane = r.running % threads_per_warp;
    if (r.n_exited) {
        kernel_finding("divergent barrier",
                       text("waits at %s:%d, but %u threads of the block left the kernel before this barrier",
                            file, line, r.n_exited));
        abort_block();
    }
    if (r.n_at_barrier &&
        (line != r.barrier_line || (file != r.barrier_file && strcmp(file, r.barrier_file)))) {
        kernel_finding("divergent barrier",
                       text("waits at %s:%d while %s", file, line, who_waits(r).c_str()));
        abort_block();
    }
    r.barrier_file = file;
    r.barrier_line = line;
    r.at_barrier[warp] |= 1u << lane;
    if (++r.n_at_barrier < r.n_threads) {
        wait_until_ready();
        return;
    }
    r.n_at_barrier = 0;
    race_block_barrier(r);
    r.at_barrier[warp] &= ~(1u << lane);
    for (unsigned i = 0; i < r.n_warps; i++) {
        make_ready(r, i, r.at_barrier[i]);
        r.at_barrier[i] = 0;
    }
    if (r.random) {
        make_ready(r, warp, 1u << lane);
        wait_until_ready();
    }
}

// ---- for instructions (cudasim.h)

unsigned lane() {
    return runner().running % threads_per_warp;
}

unsigned thread() {
    return runner().running;
}

// Not inline: the sanitizer of the race build has no fences.
void fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void *dynamic_shared_memory() {
    block_runner &r = runner();
    return r.launch->shared_bytes ? r.shared : nullptr;
}

size_t dynamic_shared_bytes() {
    return runner().launch->shared_bytes;
}

void *&thread_slot(void (*at_end)(void *pointer)) {
    block_runner &r = runner();
    thread_state &t = r.threads[r.running];
    t.slot_end = at_end;
    return t.slot;
}

} // namespace cudasim
