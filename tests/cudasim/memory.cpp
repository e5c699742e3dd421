#include "tests/cudasim/memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#include "cudasim.h"
#include "tests/cudasim/crash.h"
#include "tests/cudasim/device.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/graph.h"
#include "tests/cudasim/sanitizer.h"

namespace cudasim {

namespace {

// All allocations are in one reserved span of addresses, each on its own pages:
//     no access | red zone (256) | the caller's bytes | red zone (256 and the rest of the page) | no access
// So an address is found by its page, and an access far out of bounds, or after free, traps. A caller's
// pointer is aligned to 256 bytes and to no more, so that no program relies on more. Freed addresses are
// reused only after the whole span has been used once.
constexpr size_t page_bytes = 4096, span_bytes = size_t(1) << 37, red_zone_bytes = 256;
constexpr unsigned char red_zone_byte = 0xcb, poison_byte = 0xff;

struct memory_table {
    std::mutex mutex;
    char *span = nullptr;
    allocation **by_page = nullptr;
    size_t cursor = 0; // pages
    size_t device_bytes = 0, n = 0;
    std::deque<allocation> all;          // freed ones too, for messages
    std::map<size_t, allocation *> live; // by first page
    std::vector<allocation> registered;
    bool is_protected = false;
    int n_open = 0; // nested open_device_memory calls
};

memory_table &table() {
    static memory_table *all = new memory_table;
    return *all;
}

void *reserve(size_t bytes, int protection) {
    void *memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "cudasim: cannot reserve %zu bytes of address space\n", bytes);
        exit(1);
    }
    return memory;
}

void open_span(memory_table &t) {
    if (t.span)
        return;
    catch_crashes();
    const char *value = getenv("CUDASIM_PROTECT");
    t.is_protected = value && strcmp(value, "0");
    t.by_page = static_cast<allocation **>(
        reserve(span_bytes / page_bytes * sizeof(allocation *), PROT_READ | PROT_WRITE));
    t.span = static_cast<char *>(reserve(span_bytes, PROT_NONE));
}

// The first page of a gap for n pages with a guard page before and after them.
bool find_gap(memory_table &t, size_t n, size_t *out) {
    size_t n_all = span_bytes / page_bytes, from = t.cursor;
    for (int round = 0; round < 2; round++, from = 0) {
        auto next = t.live.lower_bound(from);
        if (next != t.live.begin()) {
            const allocation *before = std::prev(next)->second;
            from = std::max(from, std::prev(next)->first + before->pages_bytes / page_bytes);
        }
        for (;; ++next) {
            size_t end = next == t.live.end() ? n_all : next->first;
            if (from + n + 2 <= end) {
                *out = from + 1;
                t.cursor = from + 1 + n;
                return true;
            }
            if (next == t.live.end())
                break;
            from = next->first + next->second->pages_bytes / page_bytes;
        }
    }
    return false;
}

void set_access(const memory_table &t, int access) {
    for (auto &entry : t.live)
        if (entry.second->kind == MEMORY_DEVICE)
            mprotect(entry.second->pages, entry.second->pages_bytes, access);
}

// Makes device memory accessible for its lifetime. The caller holds the table's lock.
struct device_access {
    memory_table &t;

    explicit device_access(memory_table &t_) : t(t_) {
        if (t.is_protected && t.n_open++ == 0)
            set_access(t, PROT_READ | PROT_WRITE);
    }
    ~device_access() {
        if (t.is_protected && --t.n_open == 0)
            set_access(t, PROT_NONE);
    }
};

CUDASIM_UNCHECKED void fill(char *at, unsigned char value, size_t bytes) {
    volatile unsigned char *p = reinterpret_cast<unsigned char *>(at);
    for (size_t i = 0; i < bytes; i++)
        p[i] = value;
}

cudaError_t allocate(void **out, size_t bytes, memory_kind kind) {
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    open_span(t);
    *out = nullptr;
    if (!bytes)
        return cudaSuccess;
    if (kind == MEMORY_DEVICE &&
        bytes > device_memory_bytes() - std::min(t.device_bytes, device_memory_bytes()))
        return cudaErrorMemoryAllocation;
    size_t n_pages = (2 * red_zone_bytes + bytes + page_bytes - 1) / page_bytes, first;
    if (bytes > span_bytes || !find_gap(t, n_pages, &first))
        return cudaErrorMemoryAllocation;
    char *pages = t.span + first * page_bytes;
    size_t pages_bytes = n_pages * page_bytes;
    if (mprotect(pages, pages_bytes, PROT_READ | PROT_WRITE))
        return cudaErrorMemoryAllocation;
    unpoison(pages, pages_bytes);
    t.all.push_back({pages + red_zone_bytes, bytes, kind, true, ++t.n, pages, pages_bytes});
    allocation *made = &t.all.back();
    char *end = made->begin + bytes;
    fill(pages, red_zone_byte, red_zone_bytes);
    memset(made->begin, poison_byte, bytes);
    fill(end, red_zone_byte, size_t(pages + pages_bytes - end));
    poison(pages, red_zone_bytes);
    poison(end, size_t(pages + pages_bytes - end));
    for (size_t i = 0; i < n_pages; i++)
        __atomic_store_n(&t.by_page[first + i], made, __ATOMIC_RELEASE);
    if (kind == MEMORY_DEVICE && t.is_protected && !t.n_open)
        mprotect(pages, pages_bytes, PROT_NONE);
    t.live[first] = made;
    if (kind == MEMORY_DEVICE)
        t.device_bytes += bytes;
    *out = made->begin;
    return cudaSuccess;
}

// Finds the first damaged byte of the red zones, as an offset from the caller's first byte; false when there
// is none.
CUDASIM_UNCHECKED bool find_damage(const allocation &a, ptrdiff_t *out) {
    const unsigned char *p = reinterpret_cast<const unsigned char *>(a.pages);
    size_t before = size_t(a.begin - a.pages), after = before + a.bytes;
    for (size_t i = 0; i < a.pages_bytes; i = i + 1 == before ? after : i + 1)
        if (p[i] != red_zone_byte) {
            *out = ptrdiff_t(i) - ptrdiff_t(before);
            return true;
        }
    return false;
}

const char *allocator_of(const allocation &a) {
    static const char *const names[] = {"cudaMalloc", "cudaHostAlloc", "cudaHostRegister"};
    return names[a.kind];
}

std::string name_of(const allocation &a) {
    return text("allocation %zu (%s, %zu bytes)", a.number, allocator_of(a), a.bytes);
}

void check_red_zones(const char *call, const allocation &a) {
    ptrdiff_t at;
    if (!find_damage(a, &at))
        return;
    report(call, at < 0 ? text("the memory %td bytes before %s was written", -at, name_of(a).c_str())
                        : text("the memory %td bytes past the end of %s was written", at - ptrdiff_t(a.bytes),
                               name_of(a).c_str()));
    set_sticky_error(cudaErrorIllegalAddress);
}

cudaError_t release(const char *call, void *pointer, memory_kind kind) {
    if (!pointer)
        return remember(device_error());
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    allocation *a = const_cast<allocation *>(find_allocation(pointer));
    if (!a || a->begin != pointer || a->kind != kind)
        return refuse(call, cudaErrorInvalidValue,
                      text("%p is not a pointer that can be freed here: %s", pointer,
                           describe_address(pointer).c_str()));
    if (!a->live)
        return refuse(call, cudaErrorInvalidValue, name_of(*a) + " is freed twice");
    {
        device_access open(t);
        check_red_zones(call, *a);
    }
    a->live = false;
    t.live.erase(size_t(a->pages - t.span) / page_bytes);
    if (kind == MEMORY_DEVICE)
        t.device_bytes -= a->bytes;
    poison(a->pages, a->pages_bytes);
    madvise(a->pages, a->pages_bytes, MADV_DONTNEED);
    mprotect(a->pages, a->pages_bytes, PROT_NONE);
    return remember(device_error());
}

} // namespace

const allocation *find_allocation(const void *address) {
    memory_table &t = table();
    size_t offset = size_t(static_cast<const char *>(address) - t.span);
    if (t.span && offset < span_bytes)
        return __atomic_load_n(&t.by_page[offset / page_bytes], __ATOMIC_ACQUIRE);
    return nullptr;
}

static const allocation *find_registered(const void *address) {
    memory_table &t = table();
    for (const allocation &a : t.registered)
        if (size_t(static_cast<const char *>(address) - a.begin) < a.bytes)
            return &a;
    return nullptr;
}

bool memory_is_live(const void *address, size_t bytes) {
    const allocation *a = find_allocation(address);
    if (!a) {
        std::lock_guard<std::mutex> guard(table().mutex);
        a = find_registered(address);
    }
    if (!a || !a->live)
        return false;
    size_t offset = size_t(static_cast<const char *>(address) - a->begin);
    return offset <= a->bytes && bytes <= a->bytes - offset;
}

std::string describe_address(const void *address) {
    const allocation *a = find_allocation(address);
    const char *p = static_cast<const char *>(address);
    if (!a) {
        memory_table &t = table();
        if (t.span && size_t(p - t.span) < span_bytes)
            return "far outside any allocation";
        return "memory unknown to the device";
    }
    std::string name = name_of(*a);
    if (!a->live)
        return text("in %s, which was freed", name.c_str());
    if (p < a->begin)
        return text("%td bytes before %s", a->begin - p, name.c_str());
    if (p >= a->begin + a->bytes)
        return text("%td bytes past the end of %s", p - (a->begin + a->bytes), name.c_str());
    return text("at byte %td of %s", p - a->begin, name.c_str());
}

bool check_device_memory(const char *what, const void *address, size_t bytes) {
    if (!bytes || memory_is_live(address, bytes))
        return true;
    report(what, text("%zu bytes at %p: %s", bytes, address, describe_address(address).c_str()));
    set_sticky_error(cudaErrorIllegalAddress);
    return false;
}

void open_device_memory() {
    memory_table &t = table();
    if (!t.is_protected)
        return;
    std::lock_guard<std::mutex> guard(t.mutex);
    if (t.n_open++ == 0)
        set_access(t, PROT_READ | PROT_WRITE);
}

void close_device_memory() {
    memory_table &t = table();
    if (!t.is_protected)
        return;
    std::lock_guard<std::mutex> guard(t.mutex);
    if (--t.n_open == 0)
        set_access(t, PROT_NONE);
}

void report_leaked_memory() {
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    for (auto &entry : t.live)
        report("exit", name_of(*entry.second) + " was never freed");
    for (const allocation &a : t.registered)
        report("exit", name_of(a) + " was never unregistered");
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

void cudasim_check_memory(void) {
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    device_access open(t);
    for (auto &entry : t.live)
        check_red_zones("red zones", *entry.second);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    *total_bytes = device_memory_bytes();
    *free_bytes = *total_bytes - std::min(t.device_bytes, *total_bytes);
    return remember(device_error());
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    if (check_unsafe("cudaMalloc") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    cudaError_t error = device_error();
    return remember(error != cudaSuccess ? error : allocate(pointer, bytes, MEMORY_DEVICE));
}

cudaError_t cudaFree(void *pointer) {
    if (check_unsafe("cudaFree") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    return release("cudaFree", pointer, MEMORY_DEVICE);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned) {
    if (check_unsafe("cudaHostAlloc") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    cudaError_t error = device_error();
    return remember(error != cudaSuccess ? error : allocate(pointer, bytes, MEMORY_PINNED));
}

cudaError_t cudaFreeHost(void *pointer) {
    if (check_unsafe("cudaFreeHost") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    return release("cudaFreeHost", pointer, MEMORY_PINNED);
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned) {
    if (check_unsafe("cudaHostRegister") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    cudaError_t error = device_error();
    if (error != cudaSuccess || !pointer || !bytes)
        return remember(error != cudaSuccess ? error : cudaErrorInvalidValue);
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    char *begin = static_cast<char *>(pointer);
    for (const allocation &a : t.registered)
        if (begin < a.begin + a.bytes && a.begin < begin + bytes)
            return remember(cudaErrorHostMemoryAlreadyRegistered);
    t.registered.push_back({begin, bytes, MEMORY_REGISTERED, true, ++t.n, begin, bytes});
    return remember(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *pointer) {
    if (check_unsafe("cudaHostUnregister") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    memory_table &t = table();
    std::lock_guard<std::mutex> guard(t.mutex);
    for (size_t i = 0; i < t.registered.size(); i++)
        if (t.registered[i].begin == pointer) {
            t.registered.erase(t.registered.begin() + ptrdiff_t(i));
            return remember(device_error());
        }
    return refuse("cudaHostUnregister", cudaErrorHostMemoryNotRegistered,
                  text("%p is not registered", pointer));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, nullptr};
    if (!memory_is_live(pointer, 1))
        return remember(device_error());
    const allocation *a = find_allocation(pointer);
    void *same = const_cast<void *>(pointer);
    if (a && a->kind == MEMORY_DEVICE)
        *attributes = {cudaMemoryTypeDevice, 0, same, nullptr};
    else
        *attributes = {cudaMemoryTypeHost, 0, same, same};
    return remember(device_error());
}

} // extern "C"
