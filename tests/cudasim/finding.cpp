#include "tests/cudasim/finding.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <execinfo.h>
#include <mutex>
#include <set>
#include <unistd.h>

#include "cudasim.h"
#include "tests/cudasim/block.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"
#include "tests/cudasim/symbols.h"

namespace cudasim {

namespace {

// Never destroyed, because findings are reported until the end of the process.
struct record {
    std::mutex mutex;
    std::set<std::string> reported;
    std::string last;
    int n = 0;
};

record &findings() {
    static record *all = new record;
    return *all;
}

std::atomic<cudaError_t> sticky{cudaSuccess};
thread_local cudaError_t last_error;

} // namespace

std::string text_list(const char *format, va_list arguments) {
    char buffer[2048];
    vsnprintf(buffer, sizeof buffer, format, arguments);
    return buffer;
}

std::string text(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string made = text_list(format, arguments);
    va_end(arguments);
    return made;
}

namespace {

bool is_new(const std::string &key) {
    record &all = findings();
    std::lock_guard<std::mutex> guard(all.mutex);
    return all.reported.insert(key).second;
}

void add_finding(const std::string &line) {
    record &all = findings();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.n++;
    all.last = line;
    fprintf(stderr, "cudasim: %s\n", line.c_str());
}

} // namespace

void report(const std::string &where, const std::string &what) {
    std::string line = where + ": " + what;
    if (is_new(line))
        add_finding(line);
}

void kernel_finding(const char *kind, const std::string &what) {
    void *frames[16];
    kernel_finding_at(kind, what, frames, backtrace(frames, int(sizeof frames / sizeof *frames)));
}

void kernel_finding_at(const char *kind, const std::string &what, void *const *frames, int n) {
    set_sticky_error(cudaErrorLaunchFailure);
    std::string key = text("%p %s", runner().launch->kernel, kind), place_key = key;
    for (int i = 0; i < n; i++)
        key += text(" %p", frames[i]);
    if (!is_new(key))
        return;
    std::string place = source_line(frames, n);
    if (place.empty() || is_new(place_key + " " + place))
        add_finding(kernel_place() + ": " + kind + ": " + what + (place.empty() ? "" : " (" + place + ")"));
}

std::string kernel_place() {
    const block_runner &r = runner();
    const uint3 &b = r.block, &t = r.threads[r.running].index;
    std::string name = function_name(r.launch->kernel);
    return text("%s, block (%u,%u,%u), thread (%u,%u,%u)", name.empty() ? "kernel" : name.c_str(), b.x, b.y,
                b.z, t.x, t.y, t.z);
}

cudaError_t refuse(const char *call, cudaError_t error, const std::string &what) {
    report(call, what);
    return remember(error);
}

cudaError_t sticky_error() {
    return sticky;
}

void set_sticky_error(cudaError_t error) {
    cudaError_t none = cudaSuccess;
    sticky.compare_exchange_strong(none, error);
}

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

void finding(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string what = text_list(format, arguments);
    va_end(arguments);
    if (running_block())
        kernel_finding("instruction", what);
    else
        report("host", what);
}

void fault(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    kernel_finding("instruction", text_list(format, arguments));
    va_end(arguments);
    abort_block();
}

namespace {

// "0-31, 40" for the set bits of a block's threads.
std::string ranges(const uint32_t *bits) {
    std::string list;
    for (unsigned i = 0; i < max_threads; i++) {
        if (!(bits[i / 32] >> i % 32 & 1))
            continue;
        unsigned last = i;
        while (last + 1 < max_threads && bits[(last + 1) / 32] >> (last + 1) % 32 & 1)
            last++;
        list += (list.empty() ? "" : ", ") + std::to_string(i);
        if (last > i)
            list += "-" + std::to_string(last);
        i = last;
    }
    return list;
}

} // namespace

std::string who_waits(const block_runner &r) {
    std::string list;
    if (r.n_at_barrier)
        list = "threads " + ranges(r.at_barrier) + text(" wait at %s:%d", r.barrier_file, r.barrier_line);
    // Group the lanes of all warps that wait in the same instruction with the same mask.
    uint32_t done[max_warps] = {};
    for (unsigned i = 0; i < r.n_threads; i++) {
        if (!(r.warps[i / 32].waiting & ~done[i / 32] & 1u << i % 32))
            continue;
        const lane_wait &wait = r.warps[i / 32].waits[i % 32];
        uint32_t same[max_warps] = {};
        for (unsigned j = i; j < r.n_threads; j++) {
            const warp_state &w = r.warps[j / 32];
            if (w.waiting >> j % 32 & 1 && w.waits[j % 32].what == wait.what &&
                w.waits[j % 32].mask == wait.mask) {
                same[j / 32] |= 1u << j % 32;
                done[j / 32] |= 1u << j % 32;
            }
        }
        list += (list.empty() ? "threads " : "; threads ") + ranges(same) +
                text(" wait in %s with mask %08x", wait.what, wait.mask);
    }
    return list.empty() ? "no thread waits" : list;
}

namespace {

// Runs when the process ends: reports leaks, and fails the process if there was a finding.
void report_at_exit() {
    report_counts();
    cudasim_check_memory();
    report_leaked_memory();
    report_leaked_streams();
    report_leaked_graphs();
    record &all = findings();
    if (!all.n)
        return;
    fflush(nullptr);
    fprintf(stderr, "cudasim: %d finding%s\n", all.n, all.n == 1 ? "" : "s");
    _exit(EXIT_FAILURE);
}

// Registered first, so that it runs after the program's own exit handlers, which may free their memory.
__attribute__((constructor(101))) void register_exit() {
    atexit(report_at_exit);
}

} // namespace

} // namespace cudasim

using namespace cudasim;

extern "C" {

int cudasim_findings(void) {
    std::lock_guard<std::mutex> guard(findings().mutex);
    return findings().n;
}

const char *cudasim_last_finding(void) {
    return findings().last.c_str();
}

void cudasim_reset(void) {
    record &all = findings();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.n = 0;
    all.reported.clear();
    all.last.clear();
    sticky = cudaSuccess;
    last_error = cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = sticky != cudaSuccess ? sticky.load() : last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define CUDASIM_NAME(constant, value, text)                                                                  \
    case constant:                                                                                           \
        return #constant;
        CUDASIM_ERRORS(CUDASIM_NAME)
#undef CUDASIM_NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define CUDASIM_TEXT(constant, value, text)                                                                  \
    case constant:                                                                                           \
        return text;
        CUDASIM_ERRORS(CUDASIM_TEXT)
#undef CUDASIM_TEXT
    }
    return "unrecognized error code";
}

} // extern "C"
