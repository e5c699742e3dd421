#include "tests/cudasim/fiber.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>

#include "tests/cudasim/sanitizer.h"

namespace cudasim {

namespace {

// Enough for a kernel's local arrays with the address sanitizer's red zones; only pages that are used take
// memory. With the guard page, an odd number of pages, so that the tops of stacks fall on different cache
// sets.
constexpr size_t page_bytes = 4096, stack_bytes = 256 * 1024, stacks_per_mapping = 32;

__thread fiber *switched_from;

} // namespace

#if defined(__x86_64__)

extern "C" void cudasim_switch(void **save, void *load);
// Saves the registers that a call preserves. Threads of a block mostly wait in the same place, so the
// processor predicts this return, and those of the callers, correctly for the other fiber too.
asm(R"(
    .text
    .globl cudasim_switch
    .type cudasim_switch, @function
cudasim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cudasim_switch, .-cudasim_switch
)");

static void *first_context(fiber *at, char *top, void (*entry)()) {
    (void)at;
    void **sp = reinterpret_cast<void **>(top);
    *--sp = nullptr; // a return address that ends stack walks, and the stack alignment of a call
    *--sp = reinterpret_cast<void *>(entry);
    for (int saved = 0; saved < 6; saved++)
        *--sp = nullptr;
    return sp;
}

static void switch_context(fiber *from, fiber *to) {
    cudasim_switch(&from->context, to->context);
}

#elif defined(__aarch64__)

extern "C" void cudasim_switch(void **save, void *load);
asm(R"(
    .text
    .globl cudasim_switch
    .type cudasim_switch, %function
cudasim_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    br x30
    .size cudasim_switch, .-cudasim_switch
)");

static void *first_context(fiber *at, char *top, void (*entry)()) {
    (void)at;
    void **sp = reinterpret_cast<void **>(top - 160);
    for (int i = 0; i < 20; i++)
        sp[i] = nullptr;
    sp[11] = reinterpret_cast<void *>(entry); // x30
    return sp;
}

static void switch_context(fiber *from, fiber *to) {
    cudasim_switch(&from->context, to->context);
}

#else

} // namespace cudasim
#    include <ucontext.h>
namespace cudasim {

// The context is at the top of the fiber's stack; that of a thread's own stack is allocated on its first
// switch.
static void *first_context(fiber *at, char *top, void (*entry)()) {
    ucontext_t *context = reinterpret_cast<ucontext_t *>(top - (sizeof(ucontext_t) + 63) / 64 * 64);
    getcontext(context);
    context->uc_stack.ss_sp = at->stack;
    context->uc_stack.ss_size = size_t(reinterpret_cast<char *>(context) - at->stack);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}

static void switch_context(fiber *from, fiber *to) {
    if (!from->context)
        from->context = new ucontext_t;
    swapcontext(static_cast<ucontext_t *>(from->context), static_cast<ucontext_t *>(to->context));
}

#endif

namespace {

// Notifies the address sanitizer that a switch is complete; it returns the bounds of the stack that was left.
void arrived(fiber *at) {
    if (!__sanitizer_finish_switch_fiber)
        return;
    const void *bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(at ? at->fake_stack : nullptr, &bottom, &bytes);
    if (switched_from && !switched_from->run) {
        switched_from->stack = static_cast<char *>(const_cast<void *>(bottom));
        switched_from->stack_bytes = bytes;
    }
}

__thread fiber *entering;

void enter() {
    fiber *self = entering;
    arrived(nullptr);
    self->run();
    abort();
}

} // namespace

fiber *fiber_new(void (*run)()) {
    static std::mutex mutex;
    static char *mapping;
    static size_t left;
    std::lock_guard<std::mutex> guard(mutex);
    constexpr size_t stride = page_bytes + stack_bytes;
    if (!left) {
        void *memory = mmap(nullptr, stride * stacks_per_mapping, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            fprintf(stderr, "cudasim: out of memory for the stacks of a kernel's threads\n");
            exit(1);
        }
        mapping = static_cast<char *>(memory);
        left = stacks_per_mapping;
    }
    mprotect(mapping, page_bytes, PROT_NONE);
    fiber *made = new fiber;
    made->stack = mapping + page_bytes;
    made->stack_bytes = stack_bytes;
    made->run = run;
    mapping += stride;
    left--;
    fiber_restart(made);
    return made;
}

void fiber_restart(fiber *at) {
    // Frames that never return have left their red zones poisoned.
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(at->stack, at->stack_bytes);
    // Start at different cache lines of a page; otherwise all stacks share a few sets of the first-level
    // cache.
    size_t color = (reinterpret_cast<uintptr_t>(at->stack) / page_bytes * 5 % 16) * 192;
    at->fake_stack = nullptr;
    at->context = first_context(at, at->stack + at->stack_bytes - color, enter);
}

void fiber_switch(fiber *from, fiber *to) {
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
    switched_from = from;
    entering = to;
    switch_context(from, to);
    arrived(from);
}

} // namespace cudasim
