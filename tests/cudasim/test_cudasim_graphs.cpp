// Tests graphs in the simulator: what is captured runs when it is launched, as often as it is, after what it
// depends on; and what must not be captured is found and named.
#include <cstring>

#include "tests/cudasim/kernel_test.h"

namespace {

constexpr int N = 64;

__global__ void add(int *out, int value) {
    out[threadIdx.x] += value;
}

__global__ void twice(int *out) {
    out[threadIdx.x] *= 2;
}

struct test_event {
    cudaEvent_t at = nullptr;
    test_event() {
        assert_int_equal(cudaEventCreateWithFlags(&at, cudaEventDisableTiming), cudaSuccess);
    }
    ~test_event() {
        cudaEventDestroy(at);
    }
    test_event(const test_event &) = delete;
};

void begin(cudaStream_t stream) {
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
}

cudaGraphExec_t end(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiateWithFlags(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
}

int first_of(cudaStream_t stream, const int *array) {
    int *host = nullptr, value;
    assert_int_equal(cudaHostAlloc(reinterpret_cast<void **>(&host), sizeof *host, cudaHostAllocDefault),
                     cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(host, array, sizeof *host, cudaMemcpyDefault, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    value = *host;
    cudaFreeHost(host);
    return value;
}

// Captured work does not run; each launch runs all of it, with the arguments of the capture.
void work_runs_when_it_is_launched(void **) {
    for (unsigned seed = 0; seed < 8; seed++) {
        cudasim_reorder(seed);
        {
            test_stream stream;
            device_array<int> x(N);
            cudaMemsetAsync(x, 0, N * sizeof(int), stream);
            begin(stream);
            for (int value = 1; value <= 3; value++) {
                launch(stream, add, 1, N, x.at, value);
                launch(stream, twice, 1, N, x.at);
            }
            cudaGraphExec_t exec = end(stream);
            assert_int_equal(first_of(stream, x), 0);
            assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
            launch(stream, add, 1, N, x.at, 100);
            assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
            assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess); // pending launches keep the work
            // ((0 + 1) 2 + 2) 2 + 3) 2 = 22; from 122 on: 8 times that and 22
            assert_int_equal(first_of(stream, x), 8 * 122 + 22);
        }
    }
    cudasim_reorder(0);
}

// Work of another stream, forked and joined by events, is part of the graph and ordered by them.
void other_streams_take_part(void **) {
    for (unsigned seed = 0; seed < 20; seed++) {
        cudasim_reorder(seed);
        {
            test_stream origin, other;
            test_event fork, join;
            device_array<int> x(N);
            cudaMemsetAsync(x, 0, N * sizeof(int), origin);
            begin(origin);
            launch(origin, add, 1, N, x.at, 1);
            cudaEventRecord(fork.at, origin);
            assert_int_equal(cudaStreamWaitEvent(other, fork.at, 0), cudaSuccess);
            launch(other, twice, 1, N, x.at);
            cudaEventRecord(join.at, other);
            assert_int_equal(cudaStreamWaitEvent(origin, join.at, 0), cudaSuccess);
            launch(origin, add, 1, N, x.at, 5);
            cudaGraphExec_t exec = end(origin);
            for (int i = 0; i < 3; i++)
                assert_int_equal(cudaGraphLaunch(exec, origin), cudaSuccess);
            launch(other, add, 1, N, x.at, 0); // the stream is free again
            assert_int_equal(other.finish(), cudaSuccess);
            assert_int_equal(first_of(origin, x), 7 + 14 + 28);
            cudaGraphExecDestroy(exec);
        }
    }
    cudasim_reorder(0);
}

// Without the join's order, some seed shows it.
void missing_dependencies_show(void **) {
    int n_wrong = 0;
    for (unsigned seed = 1; seed <= 30; seed++) {
        cudasim_reorder(seed);
        {
            test_stream origin, other;
            test_event fork, join;
            device_array<int> x(N);
            cudaMemsetAsync(x, 0, N * sizeof(int), origin);
            begin(origin);
            cudaEventRecord(fork.at, origin);
            cudaStreamWaitEvent(other, fork.at, 0);
            launch(other, twice, 1, N, x.at); // nothing orders it with the addition
            launch(origin, add, 1, N, x.at, 1);
            cudaEventRecord(join.at, other);
            cudaStreamWaitEvent(origin, join.at, 0);
            cudaGraphExec_t exec = end(origin);
            cudaGraphLaunch(exec, origin);
            n_wrong += first_of(origin, x) != 1;
            cudaGraphExecDestroy(exec);
        }
    }
    cudasim_reorder(0);
    assert_in_range(n_wrong, 1, 29);
}

// A call that must not be made while `stream` is captured: it fails, names itself, and the capture is
// invalid.
template <class Call> void is_refused(const char *says, Call call) {
    test_stream stream;
    test_event event, recorded;
    device_array<int> x(N);
    cudaGraph_t graph;
    cudaEventRecord(recorded.at, stream); // before the capture
    begin(stream);
    cudaEventRecord(event.at, stream);
    assert_int_not_equal(call(static_cast<cudaStream_t>(stream), event.at, recorded.at, x.at), cudaSuccess);
    assert_non_null(strstr(cudasim_last_finding(), says));
    assert_int_equal(cudasim_findings(), 1);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    cudasim_reset();
    launch(stream, add, 1, N, x.at, 1); // the stream is usable again
    assert_int_equal(stream.finish(), cudaSuccess);
}

void what_must_not_be_captured_is_found(void **) {
    static int pageable[N];
    is_refused("cudaStreamSynchronize",
               [](cudaStream_t s, cudaEvent_t, cudaEvent_t, int *) { return cudaStreamSynchronize(s); });
    is_refused("cudaStreamQuery",
               [](cudaStream_t s, cudaEvent_t, cudaEvent_t, int *) { return cudaStreamQuery(s); });
    is_refused("cudaDeviceSynchronize",
               [](cudaStream_t, cudaEvent_t, cudaEvent_t, int *) { return cudaDeviceSynchronize(); });
    is_refused("cudaEventSynchronize",
               [](cudaStream_t, cudaEvent_t e, cudaEvent_t, int *) { return cudaEventSynchronize(e); });
    is_refused("cudaEventQuery",
               [](cudaStream_t, cudaEvent_t e, cudaEvent_t, int *) { return cudaEventQuery(e); });
    is_refused("not recorded in the capture", [](cudaStream_t s, cudaEvent_t, cudaEvent_t before, int *) {
        return cudaStreamWaitEvent(s, before, 0);
    });
    is_refused("pageable memory", [](cudaStream_t s, cudaEvent_t, cudaEvent_t, int *x) {
        return cudaMemcpyAsync(x, pageable, sizeof pageable, cudaMemcpyDefault, s);
    });
    is_refused("pageable memory", [](cudaStream_t s, cudaEvent_t, cudaEvent_t, int *x) {
        return cudaMemcpyAsync(pageable, x, sizeof pageable, cudaMemcpyDefault, s);
    });
    is_refused("cudaMalloc", [](cudaStream_t, cudaEvent_t, cudaEvent_t, int *) {
        void *memory;
        return cudaMalloc(&memory, 64);
    });
    is_refused("cudaStreamBeginCapture", [](cudaStream_t s, cudaEvent_t, cudaEvent_t, int *) {
        return cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    });
}

void unjoined_work_is_found(void **) {
    test_stream origin, other;
    test_event fork;
    device_array<int> x(N);
    cudaGraph_t graph;
    begin(origin);
    cudaEventRecord(fork.at, origin);
    cudaStreamWaitEvent(other, fork.at, 0);
    launch(other, add, 1, N, x.at, 1);
    assert_int_equal(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnjoined);
    assert_non_null(strstr(cudasim_last_finding(), "not joined"));
    cudasim_reset();
    assert_int_equal(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnmatched);
    cudasim_reset();
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(work_runs_when_it_is_launched), cmocka_unit_test(other_streams_take_part),
        cmocka_unit_test(missing_dependencies_show),     cmocka_unit_test(what_must_not_be_captured_is_found),
        cmocka_unit_test(unjoined_work_is_found),
    };
    return cmocka_run_group_tests_name("graphs in the simulator", tests, nullptr, nullptr);
}
