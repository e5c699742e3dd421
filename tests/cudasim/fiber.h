// Fibers: stacks of their own that take turns on one thread of the operating system. A switch is a handful of
// instructions on x86-64 and aarch64, ucontext elsewhere, and tells the address sanitizer where it goes.
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <cstddef>

namespace cudasim {

struct fiber {
    void *context = nullptr;    // where it stands while another runs
    char *stack = nullptr;      // its lowest byte; a guard page lies below
    size_t stack_bytes = 0;     // of the thread's own stack: known from the first switch away from it
    void *fake_stack = nullptr; // the address sanitizer's
    void (*run)() = nullptr;    // never returns
    fiber *next_free = nullptr;
};

// A stack that begins at `run` when first switched to. Mapped, never freed: callers keep a pool.
fiber *fiber_new(void (*run)());
// Back to the beginning of `run`, whatever it was doing.
void fiber_restart(fiber *fiber);
void fiber_switch(fiber *from, fiber *to);

} // namespace cudasim

#endif
