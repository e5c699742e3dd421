// The race build compiles kernels with -fsanitize=thread, so each memory access calls a function of this
// file, which replaces the sanitizer's library. A kernel may access the thread's own stack, shared memory
// (static, in the program's thread-local memory, or dynamic), live memory that the device can access, and
// constants of the program. Any other access is a finding.
#include "tests/cudasim/race.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#include "cudasim.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/shadow.h"
#include "tests/cudasim/symbols.h"

namespace cudasim {

bool sees_accesses;

struct memory_span {
    const char *begin = nullptr;
    size_t bytes = 0;

    bool has(const void *address) const {
        return size_t(static_cast<const char *>(address) - begin) < bytes;
    }
};

// The state of one block_runner.
struct race_state {
    block_runner *runner = nullptr;
    memory_span stack; // of the running thread
    memory_span fixed; // static shared memory, among the program's other thread-local memory
    const thread_variable *const *variables = nullptr; // at each byte of `fixed`; NULL in a stripped program
    shadow_word *fixed_shadow = nullptr, *dynamic_shadow = nullptr;
    shadow clock;
};

namespace {

__thread race_state *running; // set while a kernel runs on this thread

shadow_word *new_shadow(size_t bytes) {
    void *memory = mmap(nullptr, (bytes / 4 + 1) * sizeof(shadow_word), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        abort();
    return static_cast<shadow_word *>(memory);
}

const char *const program_first = program_begin();

uint32_t relative(const void *return_address) {
    return uint32_t(static_cast<const char *>(return_address) - program_first);
}

std::string place_of(uint32_t place) {
    void *return_address = const_cast<char *>(program_begin() + place);
    std::string line = source_line(&return_address, 1);
    return line.empty() ? "at an unknown place" : "at " + line;
}

std::string some_thread(const block_runner &r, const accesses &of) {
    const uint3 &t = r.threads[of.warp * threads_per_warp + unsigned(__builtin_ctz(of.lanes))].index;
    return text("thread (%u,%u,%u)%s", t.x, t.y, t.z,
                of.many_warps || of.lanes & (of.lanes - 1) ? " and others" : "");
}

std::string name_of_shared(const race_state &s, const char *address) {
    if (!s.fixed.has(address))
        return text("dynamic shared memory at byte %td", address - s.runner->shared);
    size_t offset = size_t(address - s.fixed.begin);
    const thread_variable *variable = s.variables ? s.variables[offset] : nullptr;
    return variable ? text("%s at byte %zu", variable_name(*variable).c_str(), offset - variable->offset)
                    : "shared memory";
}

const char *verb(access_kind kind) {
    return kind == ACCESS_READ || kind == ACCESS_ATOMIC_READ ? "reads"
           : kind == ACCESS_ATOMIC                           ? "updates"
                                                             : "writes";
}

void report_shared(const race_state &s, const char *address, access_kind kind, shadow_verdict verdict,
                   const accesses &other) {
    std::string name = name_of_shared(s, address);
    if (verdict == SHADOW_UNINITIALIZED) {
        kernel_finding("uninitialized shared memory",
                       text("%s %s, which no thread of the block wrote", verb(kind), name.c_str()));
        return;
    }
    if (verdict == SHADOW_UNDER_WAY) {
        kernel_finding("race on shared memory",
                       text("%s %s, while a copy to it that %s began %s is under way", verb(kind),
                            name.c_str(), some_thread(*s.runner, other).c_str(),
                            place_of(other.place).c_str()));
        return;
    }
    kernel_finding("race on shared memory",
                   text("%s %s, which %s %s %s with no barrier in between", verb(kind), name.c_str(),
                        some_thread(*s.runner, other).c_str(),
                        verdict == SHADOW_AFTER_WRITE ? "wrote" : "read", place_of(other.place).c_str()));
}

// Checks an access to n bytes from `offset` on, in the shared memory that starts at `begin`.
void access_shared(race_state &s, shadow_word *words, const char *begin, size_t offset, size_t n,
                   access_kind kind, const void *pc) {
    accesses other;
    size_t at;
    shadow_verdict verdict =
        s.clock.access(words, offset, n, s.runner->running, kind, relative(pc), &at, &other);
    if (verdict != SHADOW_FINE)
        report_shared(s, begin + at, kind, verdict, other);
}

// Callers then abort the block in a separate statement, because abort_block runs no destructors.
void out_of_bounds(const void *address, size_t n, access_kind kind, const std::string &what) {
    kernel_finding("out of bounds", text("%s %zu bytes at %p: ", verb(kind), n, address) + what);
}

void access_static(race_state &s, const char *address, size_t n, access_kind kind, const void *pc) {
    size_t offset = size_t(address - s.fixed.begin);
    const thread_variable *variable = s.variables ? s.variables[offset] : nullptr;
    if (variable && !variable->local)
        return; // not __shared__: threadIdx etc., or the guard variable of GCC for an array of classes
    if (variable && offset + n > variable->offset + variable->bytes) {
        out_of_bounds(address, n, kind,
                      text("past the end of the shared variable %s (%zu bytes)",
                           variable_name(*variable).c_str(), variable->bytes));
        abort_block();
    }
    access_shared(s, s.fixed_shadow, s.fixed.begin, offset, n, kind, pc);
}

void check_dynamic(const block_runner &r, const char *address, size_t n, access_kind kind) {
    size_t offset = size_t(address - r.shared), bytes = r.launch->shared_bytes;
    if (offset + n > bytes) {
        out_of_bounds(
            address, n, kind,
            text("byte %zu of dynamic shared memory, of which the launch requested %zu", offset, bytes));
        abort_block();
    }
}

void access_dynamic(race_state &s, const char *address, size_t n, access_kind kind, const void *pc) {
    check_dynamic(*s.runner, address, n, kind);
    access_shared(s, s.dynamic_shadow, s.runner->shared, size_t(address - s.runner->shared), n, kind, pc);
}

void access_other(race_state &s, const char *address, size_t n, access_kind kind) {
    const grid_launch &launch = *s.runner->launch;
    if (size_t(address - static_cast<const char *>(launch.arguments)) < launch.arguments_bytes)
        return;
    if (in_program(address) || memory_is_live(address, n))
        return;
    out_of_bounds(address, n, kind, describe_address(address));
    abort_block();
}

void access_from_host(const void *address, access_kind kind) {
    const allocation *a = find_allocation(address);
    if (a && a->kind == MEMORY_DEVICE)
        report("host", text("%s device memory: %s", verb(kind), describe_address(address).c_str()));
}

inline void access(const void *at, size_t n, access_kind kind, const void *pc) {
    race_state *s = running;
    const char *address = static_cast<const char *>(at);
    if (!s)
        access_from_host(at, kind);
    else if (s->stack.has(address))
        return;
    else if (s->fixed.has(address))
        access_static(*s, address, n, kind, pc);
    else if (size_t(address - s->runner->shared) < shared_limit)
        access_dynamic(*s, address, n, kind, pc);
    else
        access_other(*s, address, n, kind);
}

void misaligned(const void *address, size_t n, access_kind kind) {
    if (!running)
        return;
    kernel_finding("misaligned address", text("%s %zu bytes at %p", verb(kind), n, address));
    abort_block();
}

inline void check_alignment(const void *address, size_t n, access_kind kind) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(address) & (n - 1), 0))
        misaligned(address, n, kind);
}

} // namespace

// ---- calls from the scheduler

void race_block_begins(block_runner &r) {
    if (!r.race) {
        r.race = new race_state;
        r.race->runner = &r;
        r.race->variables = thread_variables().empty() ? nullptr : thread_variables().data();
        r.race->fixed_shadow = new_shadow(r.fixed.bytes);
        r.race->dynamic_shadow = new_shadow(shared_limit);
    }
    r.race->fixed.begin = r.fixed.begin;
    r.race->fixed.bytes = r.fixed.bytes;
    r.race->clock.begin_block();
}

void race_block_ends(block_runner &) {
    running = nullptr;
}

void race_thread_runs(block_runner &r) {
    running = r.race;
    running->stack.begin = r.current->stack;
    running->stack.bytes = r.current->stack_bytes;
}

void race_block_ordered(block_runner &r) {
    r.race->clock.order_block();
}

void race_lanes_ordered(block_runner &r, unsigned warp, uint32_t lanes) {
    r.race->clock.order_lanes(warp, lanes);
}

// ---- accesses that instructions declare; builds without shadow memory check only their bounds

namespace {

void declared(const void *at, size_t n, access_kind kind, bool shared, const void *place) {
    block_runner &r = runner();
    const char *address = static_cast<const char *>(at);
    bool is_dynamic = size_t(address - r.shared) < shared_limit;
    if (shared != (is_dynamic || size_t(address - r.fixed.begin) < r.fixed.bytes)) {
        out_of_bounds(address, n, kind, shared ? "not shared memory" : "shared memory, not global memory");
        abort_block();
    }
    if (sees_accesses)
        return access(address, n, kind, place);
    if (is_dynamic)
        check_dynamic(r, address, n, kind);
    if (!shared && !memory_is_live(address, n) && !in_program(address)) {
        out_of_bounds(address, n, kind, describe_address(address));
        abort_block();
    }
}

} // namespace

void shared_read(const void *address, size_t bytes, const void *place) {
    declared(address, bytes, ACCESS_READ, true, place);
}
void shared_written(const void *address, size_t bytes, const void *place) {
    declared(address, bytes, ACCESS_WRITE, true, place);
}
void shared_write_begins(const void *address, size_t bytes, const void *place) {
    declared(address, bytes, ACCESS_WRITE_BEGINS, true, place);
}
void shared_write_ends(const void *address, size_t bytes, const void *place) {
    declared(address, bytes, ACCESS_WRITE_ENDS, true, place);
}
void global_read(const void *address, size_t bytes, const void *place) {
    declared(address, bytes, ACCESS_READ, false, place);
}
void global_written(const void *address, size_t bytes, const void *place) {
    declared(address, bytes, ACCESS_WRITE, false, place);
}

} // namespace cudasim

using namespace cudasim;

// ---- calls from compiled code

extern "C" {

int cudasim_sees_accesses(void) {
    return sees_accesses;
}

void __tsan_init(void) {
    sees_accesses = true;
}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}

#define ACCESS_HOOKS(n)                                                                                      \
    void __tsan_read##n(void *address) {                                                                     \
        check_alignment(address, n, ACCESS_READ);                                                            \
        access(address, n, ACCESS_READ, __builtin_return_address(0));                                        \
    }                                                                                                        \
    void __tsan_write##n(void *address) {                                                                    \
        check_alignment(address, n, ACCESS_WRITE);                                                           \
        access(address, n, ACCESS_WRITE, __builtin_return_address(0));                                       \
    }                                                                                                        \
    void __tsan_unaligned_read##n(void *address) {                                                           \
        access(address, n, ACCESS_READ, __builtin_return_address(0));                                        \
    }                                                                                                        \
    void __tsan_unaligned_write##n(void *address) {                                                          \
        access(address, n, ACCESS_WRITE, __builtin_return_address(0));                                       \
    }
ACCESS_HOOKS(1)
ACCESS_HOOKS(2)
ACCESS_HOOKS(4)
ACCESS_HOOKS(8)
ACCESS_HOOKS(16)
#undef ACCESS_HOOKS

void __tsan_read_range(void *address, unsigned long n) {
    access(address, n, ACCESS_READ, __builtin_return_address(0));
}
void __tsan_write_range(void *address, unsigned long n) {
    access(address, n, ACCESS_WRITE, __builtin_return_address(0));
}
void __tsan_vptr_update(void **address, void *) {
    access(address, sizeof(void *), ACCESS_WRITE, __builtin_return_address(0));
}
void __tsan_vptr_read(void **address) {
    access(address, sizeof(void *), ACCESS_READ, __builtin_return_address(0));
}

void *__tsan_memcpy(void *to, const void *from, size_t n) {
    access(from, n, ACCESS_READ, __builtin_return_address(0));
    access(to, n, ACCESS_WRITE, __builtin_return_address(0));
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
    access(from, n, ACCESS_READ, __builtin_return_address(0));
    access(to, n, ACCESS_WRITE, __builtin_return_address(0));
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int value, size_t n) {
    access(to, n, ACCESS_WRITE, __builtin_return_address(0));
    return memset(to, value, n);
}

#define ATOMIC_HOOKS(bits, type)                                                                             \
    type __tsan_atomic##bits##_load(const volatile type *a, int) {                                           \
        access(const_cast<type *>(a), sizeof(type), ACCESS_ATOMIC_READ, __builtin_return_address(0));        \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                                         \
    }                                                                                                        \
    void __tsan_atomic##bits##_store(volatile type *a, type value, int) {                                    \
        access(const_cast<type *>(a), sizeof(type), ACCESS_ATOMIC, __builtin_return_address(0));             \
        __atomic_store_n(a, value, __ATOMIC_SEQ_CST);                                                        \
    }                                                                                                        \
    ATOMIC_CHANGE(bits, type, exchange, __atomic_exchange_n)                                                 \
    ATOMIC_CHANGE(bits, type, fetch_add, __atomic_fetch_add)                                                 \
    ATOMIC_CHANGE(bits, type, fetch_sub, __atomic_fetch_sub)                                                 \
    ATOMIC_CHANGE(bits, type, fetch_and, __atomic_fetch_and)                                                 \
    ATOMIC_CHANGE(bits, type, fetch_or, __atomic_fetch_or)                                                   \
    ATOMIC_CHANGE(bits, type, fetch_xor, __atomic_fetch_xor)                                                 \
    ATOMIC_COMPARE(bits, type, strong)                                                                       \
    ATOMIC_COMPARE(bits, type, weak)                                                                         \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *a, type expected, type value, int, int) { \
        access(const_cast<type *>(a), sizeof(type), ACCESS_ATOMIC, __builtin_return_address(0));             \
        __atomic_compare_exchange_n(a, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);         \
        return expected;                                                                                     \
    }
#define ATOMIC_CHANGE(bits, type, name, builtin)                                                             \
    type __tsan_atomic##bits##_##name(volatile type *a, type value, int) {                                   \
        access(const_cast<type *>(a), sizeof(type), ACCESS_ATOMIC, __builtin_return_address(0));             \
        return builtin(a, value, __ATOMIC_SEQ_CST);                                                          \
    }
#define ATOMIC_COMPARE(bits, type, strength)                                                                 \
    int __tsan_atomic##bits##_compare_exchange_##strength(volatile type *a, type *expected, type value, int, \
                                                          int) {                                             \
        access(const_cast<type *>(a), sizeof(type), ACCESS_ATOMIC, __builtin_return_address(0));             \
        return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
    }
ATOMIC_HOOKS(8, uint8_t)
ATOMIC_HOOKS(16, uint16_t)
ATOMIC_HOOKS(32, uint32_t)
ATOMIC_HOOKS(64, uint64_t)
#undef ATOMIC_HOOKS
#undef ATOMIC_CHANGE
#undef ATOMIC_COMPARE

void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

} // extern "C"
