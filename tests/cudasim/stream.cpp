#include "tests/cudasim/stream.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cudasim.h"
#include "tests/cudasim/block.h"
#include "tests/cudasim/device.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"

namespace cudasim {

namespace {

// One recording of an event. A wait refers to the recording that was the latest when the wait was issued.
struct mark {
    cudaStream_t stream;
    bool happened = false;
    timespec time = {};
};

struct task {
    const char *what;
    std::function<int()> run;
    std::function<void()> begin;   // instead: returns at once, and finish_begun ends the task
    std::shared_ptr<mark> after;   // runs only after this has happened; may be NULL
    std::shared_ptr<mark> records; // happens when it has run; may be NULL
};

} // namespace

} // namespace cudasim

struct CUstream_st {
    std::mutex order; // held while a task runs immediately, in issue order
    std::deque<cudasim::task> queue;
    bool busy = false; // one of its tasks runs now
    cudasim::capture_place place;
};

struct CUevent_st {
    std::shared_ptr<cudasim::mark> last;
    bool timed;
    cudasim::capture_place place;
};

namespace cudasim {

namespace {

struct scheduler {
    std::mutex mutex;
    std::condition_variable done;
    std::set<cudaStream_t> streams, destroyed; // destroyed ones still finish their queues
    std::set<cudaEvent_t> events;
    unsigned seed = 0, lateness = 2;
    uint64_t random = 1;

    scheduler() {
        const char *value = getenv("CUDASIM_REORDER");
        start(value ? unsigned(strtoul(value, nullptr, 0)) : 0);
    }
    void start(unsigned new_seed) {
        // Some seeds delay work that nothing waits for by much more than others. Otherwise a copy without a
        // wait, behind which many kernels run, would always finish in time.
        static const unsigned latenesses[] = {32, 2, 8};
        seed = new_seed;
        lateness = latenesses[seed % 3];
        random = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    }
    unsigned draw(size_t n) {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        return unsigned((random * 0x2545f4914f6cdd1dull >> 33) % n);
    }
};

scheduler &streams() {
    static scheduler *all = new scheduler;
    return *all;
}

void run_task(const task &w) {
    // After a fault the remaining tasks are dropped, but their events must still happen.
    if (w.run && sticky_error() == cudaSuccess) {
        open_device_memory();
        cudaError_t error = is_failing_task() ? cudaErrorIllegalAddress : cudaError_t(w.run());
        close_device_memory();
        if (error != cudaSuccess)
            set_sticky_error(error);
    }
    if (w.records) {
        clock_gettime(CLOCK_MONOTONIC, &w.records->time);
        w.records->happened = true;
    }
}

bool can_run(const CUstream_st *stream) {
    return !stream->busy && !stream->queue.empty() &&
           (!stream->queue.front().after || stream->queue.front().after->happened);
}

// A stream that `wanted` needs and whose next task can run: itself, or one whose event it waits for.
cudaStream_t needed(cudaStream_t wanted) {
    while (wanted && !can_run(wanted)) {
        if (wanted->busy || wanted->queue.empty() || !wanted->queue.front().after)
            return nullptr;
        wanted = wanted->queue.front().after->stream;
    }
    return wanted;
}

// Runs one task: usually one that `wanted` needs, else any that could run on a device. If none can run, waits
// for one that is running, where it may. Returns false if there is nothing to do or to wait for.
bool step(scheduler &s, std::unique_lock<std::mutex> &lock, cudaStream_t wanted, bool may_wait = true) {
    std::vector<cudaStream_t> ready;
    bool busy = false;
    for (const std::set<cudaStream_t> *set : {&s.streams, &s.destroyed})
        for (cudaStream_t stream : *set) {
            busy |= stream->busy;
            if (can_run(stream))
                ready.push_back(stream);
        }
    if (ready.empty()) {
        if (busy && may_wait)
            s.done.wait(lock);
        return busy && may_wait;
    }
    cudaStream_t chosen = s.draw(s.lateness) ? needed(wanted) : nullptr;
    if (!chosen)
        chosen = ready[s.draw(ready.size())];
    task w = std::move(chosen->queue.front());
    chosen->queue.pop_front();
    chosen->busy = true;
    lock.unlock();
    if (w.begin && sticky_error() == cudaSuccess) {
        w.begin();
        lock.lock();
        return true;
    }
    run_task(w);
    lock.lock();
    chosen->busy = false;
    s.done.notify_all();
    return true;
}

void finish_all() {
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    while (step(s, lock, nullptr)) {
    }
}

void finish_mark(const std::shared_ptr<mark> &m) {
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    while (!m->happened && step(s, lock, m->stream)) {
    }
}

// True if nothing was issued to the stream after the mark: a host that waits for it leaves the stream idle.
bool is_newest(const std::shared_ptr<mark> &m) {
    std::lock_guard<std::mutex> guard(streams().mutex);
    return !m->stream->queue.empty() && m->stream->queue.back().records == m;
}

// CUDASIM_QUEUE: how many pieces of work a stream holds; 0: any number.
size_t queue_limit() {
    static const char *value = getenv("CUDASIM_QUEUE");
    static const size_t limit = value ? strtoull(value, nullptr, 0) : 0;
    return limit;
}

// In reordering mode a call waits while the stream's queue is full, as a launch does on a device.
void submit(cudaStream_t stream, task w) {
    scheduler &s = streams();
    if (is_capturing(stream->place)) {
        capture_work(stream->place, w.what, std::move(w.run));
        return;
    }
    if (work_is_delayed()) {
        std::unique_lock<std::mutex> lock(s.mutex);
        while (queue_limit() && stream->queue.size() >= queue_limit() && step(s, lock, stream)) {
        }
        stream->queue.push_back(std::move(w));
        return;
    }
    std::lock_guard<std::mutex> order(stream->order);
    run_task(w);
}

cudaError_t check_event(const char *call, cudaEvent_t event) {
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    if (s.events.count(event))
        return cudaSuccess;
    lock.unlock();
    return refuse(call, cudaErrorInvalidResourceHandle,
                  "the event does not exist (never created, or destroyed)");
}

// For calls by which the host waits for an event or looks at it.
cudaError_t check_event_of_host(const char *call, cudaEvent_t event) {
    cudaError_t error = check_event(call, event);
    if (error != cudaSuccess || !event->place.in)
        return error;
    refuse_in_capture(call, event->place, "the event was recorded in a capture");
    return cudaErrorCapturedEvent;
}

std::shared_ptr<mark> last_mark(cudaEvent_t event) {
    std::lock_guard<std::mutex> guard(streams().mutex);
    return event->last;
}

} // namespace

namespace {

struct counters {
    std::mutex mutex;
    std::map<std::string, int> waits;
    int n_waits = 0, n_launches = 0, n_graphs = 0;
};

counters &counts() {
    static counters *all = new counters;
    return *all;
}

} // namespace

void count_host_wait(const char *call) {
    counters &all = counts();
    std::lock_guard<std::mutex> guard(all.mutex);
    all.n_waits++;
    all.waits[call]++;
}

void report_counts() {
    counters &all = counts();
    if (!getenv("CUDASIM_COUNTS"))
        return;
    std::string line;
    for (const auto &entry : all.waits)
        line += ", " + std::to_string(entry.second) + " in " + entry.first;
    fprintf(stderr, "cudasim: counted %d launches, %d graph launches, %d host waits%s\n", all.n_launches,
            all.n_graphs, all.n_waits, line.c_str());
}

// CUDASIM_FAIL: the number of the task that fails, counted from 1.
bool is_failing_task() {
    static const char *value = getenv("CUDASIM_FAIL");
    static const uint64_t chosen = value ? strtoull(value, nullptr, 0) : 0;
    static std::atomic<uint64_t> n{0};
    return chosen && ++n == chosen;
}

capture_place &place_of(cudaStream_t stream) {
    return stream->place;
}

bool is_captured(cudaStream_t stream) {
    scheduler &s = streams();
    std::lock_guard<std::mutex> guard(s.mutex);
    return s.streams.count(stream) && is_capturing(stream->place);
}

unsigned draw_order(size_t n) {
    scheduler &s = streams();
    std::lock_guard<std::mutex> guard(s.mutex);
    return s.seed ? s.draw(n) : 0;
}

bool work_is_delayed() {
    return streams().seed != 0;
}

cudaError_t check_stream(const char *call, cudaStream_t stream) {
    if (device_error() != cudaSuccess)
        return remember(device_error());
    if (!stream)
        return refuse(call, cudaErrorInvalidResourceHandle,
                      "uses the default stream, which synchronizes with all others; pass another stream");
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    if (s.streams.count(stream))
        return cudaSuccess;
    lock.unlock();
    return refuse(call, cudaErrorInvalidResourceHandle,
                  "the stream does not exist (never created, or destroyed)");
}

int enqueue(CUstream_st *stream, const char *what, std::function<int()> run) {
    cudaError_t error = check_stream(what, stream);
    if (error == cudaSuccess && !is_capturing(stream->place)) {
        std::lock_guard<std::mutex> guard(counts().mutex);
        counts().n_launches += !strcmp(what, "launch");
        counts().n_graphs += !strcmp(what, "cudaGraphLaunch");
    }
    if (error == cudaSuccess)
        submit(stream, {what, std::move(run), nullptr, nullptr, nullptr});
    return error;
}

void enqueue_begun(cudaStream_t stream, const char *what, std::function<void()> begin) {
    submit(stream, {what, nullptr, std::move(begin), nullptr, nullptr});
}

void finish_begun(cudaStream_t stream, cudaError_t error) {
    scheduler &s = streams();
    if (error != cudaSuccess)
        set_sticky_error(error);
    std::lock_guard<std::mutex> guard(s.mutex);
    stream->busy = false;
    s.done.notify_all();
}

bool drive_stream(cudaStream_t stream) {
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    return step(s, lock, stream, false);
}

cudaError_t finish_stream(cudaStream_t stream) {
    if (work_is_delayed()) {
        auto end = std::make_shared<mark>();
        end->stream = stream;
        submit(stream, {"end", nullptr, nullptr, nullptr, end});
        finish_mark(end);
    } else {
        std::lock_guard<std::mutex> order(stream->order);
    }
    return remember(sticky_error());
}

void report_leaked_streams() {
    if (work_is_delayed()) // pending work runs now, so that its use of freed memory is found
        finish_all();
    scheduler &s = streams();
    std::lock_guard<std::mutex> guard(s.mutex);
    if (!s.streams.empty())
        report("exit", text("streams never destroyed: %zu", s.streams.size()));
    if (!s.events.empty())
        report("exit", text("events never destroyed: %zu", s.events.size()));
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

void cudasim_reorder(unsigned seed) {
    finish_all();
    streams().start(seed);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    if (device_error() != cudaSuccess)
        return remember(device_error());
    if (flags != cudaStreamNonBlocking)
        return refuse(
            "cudaStreamCreate", cudaErrorInvalidValue,
            "creates a stream that synchronizes with the default stream; use cudaStreamNonBlocking");
    scheduler &s = streams();
    std::lock_guard<std::mutex> guard(s.mutex);
    *stream = new CUstream_st;
    s.streams.insert(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    if (!s.streams.erase(stream)) {
        lock.unlock();
        return refuse("cudaStreamDestroy", cudaErrorInvalidResourceHandle,
                      "the stream does not exist (never created, or destroyed)");
    }
    s.destroyed.insert(stream);
    return remember(device_error());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = check_stream("cudaStreamSynchronize", stream);
    if (error == cudaSuccess && is_capturing(stream->place))
        return refuse_in_capture("cudaStreamSynchronize", stream->place, "the stream is being captured");
    count_host_wait("cudaStreamSynchronize");
    return error != cudaSuccess ? error : finish_stream(stream);
}

cudaError_t cudaDeviceSynchronize(void) {
    if (device_error() != cudaSuccess)
        return remember(device_error());
    if (check_unsafe("cudaDeviceSynchronize") != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    count_host_wait("cudaDeviceSynchronize");
    if (work_is_delayed()) {
        finish_all();
    } else {
        std::unique_lock<std::mutex> lock(streams().mutex);
        std::set<cudaStream_t> all = streams().streams;
        lock.unlock();
        for (cudaStream_t stream : all)
            finish_stream(stream);
    }
    return remember(sticky_error());
}

// A caller may poll in a loop, so each query runs one task.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t error = check_stream("cudaStreamQuery", stream);
    if (error != cudaSuccess)
        return error;
    if (is_capturing(stream->place))
        return refuse_in_capture("cudaStreamQuery", stream->place, "the stream is being captured");
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    bool idle = stream->queue.empty() && !stream->busy;
    if (!idle)
        step(s, lock, stream, false);
    lock.unlock();
    return remember(sticky_error() != cudaSuccess ? sticky_error() : idle ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    cudaError_t error = check_stream("cudaStreamWaitEvent", stream);
    if (error == cudaSuccess)
        error = check_event("cudaStreamWaitEvent", event);
    if (error != cudaSuccess)
        return error;
    if (is_capturing(stream->place) || is_capturing(event->place))
        return capture_wait(stream, stream->place, event->place);
    std::shared_ptr<mark> after = last_mark(event);
    if (after)
        submit(stream, {"cudaStreamWaitEvent", nullptr, nullptr, after, nullptr});
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    if (device_error() != cudaSuccess)
        return remember(device_error());
    scheduler &s = streams();
    std::lock_guard<std::mutex> guard(s.mutex);
    *event = new CUevent_st{nullptr, !(flags & cudaEventDisableTiming), {}};
    s.events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cudaError_t error = check_stream("cudaEventRecord", stream);
    if (error == cudaSuccess)
        error = check_event("cudaEventRecord", event);
    if (error != cudaSuccess)
        return error;
    event->place = {};
    if (is_capturing(stream->place)) {
        capture_record(event->place, stream->place);
        return cudaSuccess;
    }
    auto made = std::make_shared<mark>();
    made->stream = stream;
    {
        std::lock_guard<std::mutex> guard(streams().mutex);
        event->last = made;
    }
    submit(stream, {"cudaEventRecord", nullptr, nullptr, nullptr, made});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    cudaError_t error = check_event_of_host("cudaEventSynchronize", event);
    if (error != cudaSuccess)
        return error;
    std::shared_ptr<mark> last = last_mark(event);
    if (last && !last->happened)
        count_host_wait(is_newest(last) ? "cudaEventSynchronize_of_newest" : "cudaEventSynchronize");
    if (last && work_is_delayed())
        finish_mark(last);
    else if (last)
        std::lock_guard<std::mutex> order(last->stream->order);
    return remember(device_error());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    cudaError_t error = check_event_of_host("cudaEventQuery", event);
    if (error != cudaSuccess)
        return error;
    scheduler &s = streams();
    std::unique_lock<std::mutex> lock(s.mutex);
    std::shared_ptr<mark> last = event->last;
    bool happened = !last || last->happened;
    if (!happened)
        step(s, lock, last->stream, false);
    lock.unlock();
    cudaError_t sticky = device_error();
    return remember(sticky != cudaSuccess ? sticky : happened ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    cudaError_t error = check_event_of_host("cudaEventElapsedTime", begin);
    if (error == cudaSuccess)
        error = check_event_of_host("cudaEventElapsedTime", end);
    if (error != cudaSuccess)
        return error;
    std::shared_ptr<mark> first = last_mark(begin), second = last_mark(end);
    if (!begin->timed || !end->timed || !first || !second)
        return remember(cudaErrorInvalidResourceHandle);
    if (!first->happened || !second->happened)
        return cudaErrorNotReady;
    *ms = float(second->time.tv_sec - first->time.tv_sec) * 1e3f +
          float(second->time.tv_nsec - first->time.tv_nsec) * 1e-6f;
    return remember(device_error());
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cudaError_t error = check_event("cudaEventDestroy", event);
    if (error != cudaSuccess)
        return error;
    std::lock_guard<std::mutex> guard(streams().mutex);
    streams().events.erase(event);
    delete event;
    return remember(device_error());
}

} // extern "C"
