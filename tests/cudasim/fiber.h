// Fibers: several stacks that take turns on one thread of the operating system. A switch takes a few
// instructions on x86-64 and aarch64 and uses ucontext elsewhere; the address sanitizer is notified of it.
#ifndef CUDASIM_FIBER_H
#define CUDASIM_FIBER_H

#include <cstddef>

namespace cudasim {

struct fiber {
    void *context = nullptr;    // the saved state while another fiber runs
    char *stack = nullptr;      // lowest byte; a guard page is below it
    size_t stack_bytes = 0;     // for the thread's own stack: known from the first switch away from it
    void *fake_stack = nullptr; // the address sanitizer's
    void (*run)() = nullptr;    // never returns
    fiber *next_free = nullptr;
};

// A fiber that starts `run` when first switched to. Its stack is never freed; callers keep a pool.
fiber *fiber_new(void (*run)());
// Makes the fiber start `run` again, whatever it was doing.
void fiber_restart(fiber *fiber);
void fiber_switch(fiber *from, fiber *to);

} // namespace cudasim

#endif
