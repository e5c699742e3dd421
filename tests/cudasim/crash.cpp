#include "tests/cudasim/crash.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/cudasim/block.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/sanitizer.h"

namespace cudasim {

namespace {

constexpr size_t stack_bytes = 128 * 1024;

// A page fault in a kernel. A fiber of its own reports it, because the stack of the faulting thread may have
// overflowed; that fiber is restarted for each fault.
struct crash_state {
    void *signal_stack = nullptr;
    const char *address = nullptr;
    void *frames[16] = {};
    int n_frames = 0;
};

thread_local crash_state crash;
struct sigaction before[2]; // of SIGSEGV and SIGBUS

struct machine_state {
    uintptr_t pc, frame;
};

#if defined(__x86_64__)
machine_state state_of(const ucontext_t *context) {
    return {uintptr_t(context->uc_mcontext.gregs[REG_RIP]), uintptr_t(context->uc_mcontext.gregs[REG_RBP])};
}
#elif defined(__aarch64__)
machine_state state_of(const ucontext_t *context) {
    return {uintptr_t(context->uc_mcontext.pc), uintptr_t(context->uc_mcontext.regs[29])};
}
#else
machine_state state_of(const ucontext_t *) {
    return {0, 0};
}
#endif

// The callers of the faulting instruction, from the frame chain on the fiber's stack.
CUDASIM_UNCHECKED int walk(machine_state at, const fiber &on, void **frames, int n) {
    int found = 0;
    frames[found++] = reinterpret_cast<void *>(at.pc + 1);
    uintptr_t low = reinterpret_cast<uintptr_t>(on.stack), frame = at.frame;
    while (found < n && frame % 8 == 0 && frame >= low && frame - low < on.stack_bytes - 16) {
        uintptr_t *pair = reinterpret_cast<uintptr_t *>(frame);
        if (!pair[1])
            break;
        frames[found++] = reinterpret_cast<void *>(pair[1]);
        if (pair[0] <= frame)
            break;
        frame = pair[0];
    }
    return found;
}

void report_crash() {
    {
        const fiber &on = *runner().crashed_on;
        std::string what = size_t(crash.address + 4096 - on.stack) < 2 * 4096
                               ? text("the thread overflowed its stack of %zu KiB", on.stack_bytes / 1024)
                               : text("accesses %p: ", crash.address) + describe_address(crash.address);
        kernel_finding_at("out of bounds", what, crash.frames, crash.n_frames);
    }
    abort_block();
}

void caught(int signal, siginfo_t *info, void *context) {
    block_runner *r = running_block();
    const char *address = static_cast<const char *>(info->si_addr);
    if (r && r->current != r->crash_reporter) {
        crash.address = address;
        crash.n_frames = walk(state_of(static_cast<ucontext_t *>(context)), *r->current, crash.frames, 16);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, signal);
        pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
        // Does not return: the handler's frame is dropped with the block.
        fiber_restart(r->crash_reporter);
        r->crashed_on = r->current;
        r->current = r->crash_reporter;
        fiber_switch(r->crashed_on, r->crash_reporter);
    }
    const allocation *a = find_allocation(address);
    if (a)
        fprintf(stderr, "cudasim: host: accesses %p, which only the device may access: %s\n", info->si_addr,
                describe_address(address).c_str());
    sigaction(signal, &before[signal == SIGBUS], nullptr);
}

// Installs `caught` as the handler. `before` keeps the one that other code installed since; `caught` restores
// it for faults that are not a kernel's.
void install() {
    struct sigaction now;
    if (sigaction(SIGSEGV, nullptr, &now) || now.sa_sigaction == caught)
        return;
    struct sigaction action = {};
    action.sa_sigaction = caught;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
}

void install_signal_stack() {
    void *memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return;
    stack_t stack = {};
    stack.ss_sp = memory;
    stack.ss_size = stack_bytes;
    sigaltstack(&stack, nullptr);
    crash.signal_stack = memory;
}

} // namespace

void catch_crashes() {
    // The address sanitizer has a handler of its own, which reports more than this one.
    if (__asan_poison_memory_region)
        return;
    install();
    if (!crash.signal_stack)
        install_signal_stack();
    block_runner &r = runner();
    if (!r.crash_reporter)
        r.crash_reporter = fiber_new(report_crash);
}

void uncatch_crashes() {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    if (!crash.signal_stack || sigaltstack(&none, nullptr))
        return;
    munmap(crash.signal_stack, stack_bytes);
    crash.signal_stack = nullptr;
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

// The sanitizers call these before they report an error and end the process.
void __asan_on_error(void) {
    if (running_block())
        fprintf(stderr, "cudasim: %s: the address sanitizer found:\n", kernel_place().c_str());
}

void __ubsan_on_report(void) {
    if (running_block())
        fprintf(stderr, "cudasim: %s: the undefined behavior sanitizer reported the error above\n",
                kernel_place().c_str());
}

} // extern "C"
