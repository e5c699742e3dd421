#include "tests/cudasim/graph.h"

#include <mutex>
#include <set>

#include "cudasim.h"
#include "tests/cudasim/device.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/stream.h"

namespace cudasim {

namespace {

struct node {
    const char *what;
    std::function<int()> run;
    std::vector<size_t> after;
};

using nodes = std::vector<node>;

// Graphs and executable graphs that exist.
struct known {
    std::mutex mutex;
    std::set<const void *> graphs, execs;
};

known &all() {
    static known *made = new known;
    return *made;
}

thread_local std::shared_ptr<capture> own; // of the calling thread

} // namespace

struct capture {
    nodes work;
    cudaStream_t origin;
    std::vector<cudaStream_t> streams;
    bool ended = false, broken = false;
};

} // namespace cudasim

struct CUgraph_st {
    cudasim::nodes work;
};

struct CUgraphExec_st {
    std::shared_ptr<const cudasim::nodes> work;
};

namespace cudasim {

namespace {

void add_all(std::vector<size_t> &to, const std::vector<size_t> &from) {
    std::set<size_t> both(to.begin(), to.end());
    both.insert(from.begin(), from.end());
    to.assign(both.begin(), both.end());
}

// The node of a stream that the end of the origin does not come after, or -1.
long unjoined(const capture &c) {
    std::set<size_t> joined;
    std::vector<size_t> left = place_of(c.origin).after;
    while (!left.empty()) {
        size_t n = left.back();
        left.pop_back();
        if (joined.insert(n).second)
            left.insert(left.end(), c.work[n].after.begin(), c.work[n].after.end());
    }
    for (cudaStream_t stream : c.streams)
        for (size_t n : place_of(stream).after)
            if (!joined.count(n))
                return long(n);
    return -1;
}

int run_nodes(const nodes &work) {
    std::vector<bool> done(work.size());
    for (size_t n_done = 0; n_done < work.size(); n_done++) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < work.size(); i++) {
            bool can_run = !done[i];
            for (size_t before : work[i].after)
                can_run = can_run && done[before];
            if (can_run)
                ready.push_back(i);
            if (can_run && !work_is_delayed())
                break; // in the order of issue
        }
        size_t chosen = ready[draw_order(ready.size())];
        int error = is_failing_task() ? int(cudaErrorIllegalAddress) : work[chosen].run();
        if (error != cudaSuccess)
            return error;
        done[chosen] = true;
    }
    return cudaSuccess;
}

} // namespace

bool is_capturing(const capture_place &place) {
    return place.in && !place.in->ended;
}

void capture_work(capture_place &stream, const char *what, std::function<int()> run) {
    stream.in->work.push_back({what, std::move(run), stream.after});
    stream.after = {stream.in->work.size() - 1};
}

void capture_record(capture_place &event, const capture_place &stream) {
    event = stream;
}

cudaError_t capture_wait(cudaStream_t stream, capture_place &place, const capture_place &event) {
    if (!is_capturing(event))
        return refuse_in_capture(
            "cudaStreamWaitEvent", place,
            "a stream that is being captured waits for an event that was not recorded in the capture");
    if (is_capturing(place) && place.in != event.in)
        return refuse_in_capture("cudaStreamWaitEvent", place, "the event belongs to another capture");
    if (!is_capturing(place)) {
        place = {event.in, {}};
        event.in->streams.push_back(stream);
    }
    add_all(place.after, event.after);
    return cudaSuccess;
}

cudaError_t refuse_in_capture(const char *call, const capture_place &place, const std::string &what) {
    if (place.in)
        place.in->broken = true;
    return refuse(call, cudaErrorStreamCaptureUnsupported, what);
}

cudaError_t check_unsafe(const char *call) {
    if (!own)
        return cudaSuccess;
    own->broken = true;
    return refuse(call, cudaErrorStreamCaptureUnsupported,
                  "is not permitted while this thread captures a stream");
}

void report_leaked_graphs() {
    known &k = all();
    std::lock_guard<std::mutex> guard(k.mutex);
    if (k.graphs.size() + k.execs.size() > 0)
        report("exit", text("graphs never destroyed: %zu", k.graphs.size() + k.execs.size()));
}

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    cudaError_t error = check_stream("cudaStreamBeginCapture", stream);
    if (error != cudaSuccess)
        return error;
    if (mode != cudaStreamCaptureModeThreadLocal)
        return refuse("cudaStreamBeginCapture", cudaErrorInvalidValue,
                      "the simulator has cudaStreamCaptureModeThreadLocal only");
    if (is_capturing(place_of(stream)) || own)
        return refuse_in_capture("cudaStreamBeginCapture", place_of(stream),
                                 "the stream, or another one of this thread, is being captured");
    own = std::make_shared<capture>();
    own->origin = stream;
    own->streams = {stream};
    place_of(stream) = {own, {}};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    *graph = nullptr;
    cudaError_t error = check_stream("cudaStreamEndCapture", stream);
    if (error != cudaSuccess && !own)
        return error;
    if (!own || own->origin != stream)
        return refuse("cudaStreamEndCapture", cudaErrorStreamCaptureUnmatched,
                      "this thread's capture did not begin on the stream");
    std::shared_ptr<capture> ended = own;
    const long left = unjoined(*ended);
    ended->ended = true;
    for (cudaStream_t joined : ended->streams)
        place_of(joined) = {};
    own = nullptr;
    if (error != cudaSuccess || ended->broken)
        return remember(error != cudaSuccess ? error : cudaErrorStreamCaptureInvalidated);
    if (left >= 0)
        return refuse(
            "cudaStreamEndCapture", cudaErrorStreamCaptureUnjoined,
            text("work on another stream (%s) was not joined by an event", ended->work[size_t(left)].what));
    *graph = new CUgraph_st{std::move(ended->work)};
    std::lock_guard<std::mutex> guard(all().mutex);
    all().graphs.insert(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    std::lock_guard<std::mutex> guard(all().mutex);
    if (device_error() != cudaSuccess || !all().graphs.count(graph))
        return remember(device_error() != cudaSuccess ? device_error() : cudaErrorInvalidValue);
    *exec = new CUgraphExec_st{std::make_shared<const nodes>(graph->work)};
    all().execs.insert(*exec);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaError_t error = check_stream("cudaGraphLaunch", stream);
    if (error != cudaSuccess)
        return error;
    {
        std::lock_guard<std::mutex> guard(all().mutex);
        if (!all().execs.count(exec))
            return refuse("cudaGraphLaunch", cudaErrorInvalidResourceHandle,
                          "the graph does not exist (never instantiated, or destroyed)");
    }
    if (is_capturing(place_of(stream)))
        return refuse_in_capture("cudaGraphLaunch", place_of(stream),
                                 "the simulator has no graphs inside graphs");
    std::shared_ptr<const nodes> work = exec->work;
    return cudaError_t(enqueue(stream, "cudaGraphLaunch", [work] { return run_nodes(*work); }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    std::lock_guard<std::mutex> guard(all().mutex);
    if (!all().graphs.erase(graph))
        return refuse("cudaGraphDestroy", cudaErrorInvalidResourceHandle, "the graph does not exist");
    delete graph;
    return remember(device_error());
}

// Launches that have not run yet keep the work.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    std::lock_guard<std::mutex> guard(all().mutex);
    if (!all().execs.erase(exec))
        return refuse("cudaGraphExecDestroy", cudaErrorInvalidResourceHandle, "the graph does not exist");
    delete exec;
    return remember(device_error());
}

} // extern "C"
