// Tests streams, events and copies: what CUDA's rules guarantee holds for every seed of the reordering mode,
// and what they do not guarantee fails for some seed, so that programs relying on it are found.
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/cudasim/kernel_test.h"

namespace {

constexpr unsigned SEEDS = 50;
constexpr int N = 256;

__global__ void fill(int *out, int value) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

__global__ void add(int *out, const int *in) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    out[i] += in[i];
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

struct pinned_array {
    int *at = nullptr;
    explicit pinned_array(int value) {
        assert_int_equal(cudaHostAlloc(reinterpret_cast<void **>(&at), N * sizeof(int), cudaHostAllocDefault),
                         cudaSuccess);
        set(value);
    }
    ~pinned_array() {
        cudaFreeHost(at);
    }
    pinned_array(const pinned_array &) = delete;
    void set(int value) {
        for (int i = 0; i < N; i++)
            at[i] = value;
    }
    bool all(int value) const {
        for (int i = 0; i < N; i++)
            if (at[i] != value)
                return false;
        return true;
    }
};

void copy(cudaStream_t stream, void *to, const void *from) {
    assert_int_equal(cudaMemcpyAsync(to, from, N * sizeof(int), cudaMemcpyDefault, stream), cudaSuccess);
}

// The number of seeds for which the program gives the right result. Waits for all of its work.
unsigned n_right(const std::function<bool()> &program) {
    unsigned right = 0;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        cudasim_reorder(seed);
        right += program();
        cudaDeviceSynchronize();
    }
    cudasim_reorder(0);
    assert_true(program()); // in issue order a missing dependency does no harm
    return right;
}

void assert_always(const std::function<bool()> &program) {
    assert_int_equal(n_right(program), SEEDS);
}

void assert_sometimes_wrong(const std::function<bool()> &program) {
    assert_in_range(n_right(program), 0, SEEDS - 1);
}

// ---- orders

void one_stream_keeps_its_order(void **) {
    assert_always([] {
        test_stream stream;
        device_array<int> x(N), y(N);
        pinned_array out(0);
        launch(stream, fill, 1, N, x.at, 3);
        launch(stream, fill, 1, N, y.at, 4);
        launch(stream, add, 1, N, x.at, y.at);
        copy(stream, y, x);
        launch(stream, fill, 1, N, x.at, 0);
        copy(stream, out.at, y);
        stream.finish();
        return out.all(7);
    });
}

// A producer and a consumer on two streams, with or without an event between them.
bool produce_and_consume(bool with_event) {
    test_stream producer, consumer;
    device_array<int> x(N);
    pinned_array out(0);
    test_event produced;
    cudaMemsetAsync(x, 0, N * sizeof(int), producer);
    producer.finish();
    launch(producer, fill, 1, N, x.at, 5);
    cudaEventRecord(produced.at, producer);
    if (with_event)
        cudaStreamWaitEvent(consumer, produced.at, 0);
    copy(consumer, out.at, x);
    consumer.finish();
    producer.finish();
    return out.all(5);
}

void an_event_orders_two_streams(void **) {
    assert_always([] { return produce_and_consume(true); });
    assert_sometimes_wrong([] { return produce_and_consume(false); });
}

// Another stream reuses memory that the first may still read.
bool reuse_memory(bool with_event) {
    test_stream reader, writer;
    device_array<int> x(N);
    pinned_array out(0);
    test_event read;
    cudaMemsetAsync(x, 0, N * sizeof(int), reader);
    reader.finish();
    copy(reader, out.at, x);
    cudaEventRecord(read.at, reader);
    if (with_event)
        cudaStreamWaitEvent(writer, read.at, 0);
    launch(writer, fill, 1, N, x.at, 9);
    writer.finish();
    reader.finish();
    return out.all(0);
}

void memory_is_reused_after_an_event(void **) {
    assert_always([] { return reuse_memory(true); });
    assert_sometimes_wrong([] { return reuse_memory(false); });
}

// A wait refers to the recording of the event when the wait was issued, not to a later one.
void a_wait_refers_to_the_latest_recording(void **) {
    auto program = [](bool record_first) {
        test_stream first, second;
        device_array<int> x(N);
        pinned_array out(0);
        test_event event;
        cudaMemsetAsync(x, 0, N * sizeof(int), first);
        first.finish();
        if (!record_first)
            cudaStreamWaitEvent(second, event.at, 0);
        launch(first, fill, 1, N, x.at, 2);
        cudaEventRecord(event.at, first);
        if (record_first)
            cudaStreamWaitEvent(second, event.at, 0);
        copy(second, out.at, x);
        second.finish();
        first.finish();
        return out.all(2);
    };
    assert_always([=] { return program(true); });
    assert_sometimes_wrong([=] { return program(false); });
}

void events_order_three_streams(void **) {
    assert_always([] {
        test_stream streams[3];
        device_array<int> x(N), y(N);
        pinned_array out(0);
        test_event events[3];
        launch(streams[0], fill, 1, N, x.at, 1);
        launch(streams[0], fill, 1, N, y.at, 1);
        for (int hop = 0; hop < 12; hop++) {
            cudaEventRecord(events[hop % 3].at, streams[hop % 3]);
            cudaStreamWaitEvent(streams[(hop + 1) % 3], events[hop % 3].at, 0);
            launch(streams[(hop + 1) % 3], add, 1, N, hop % 2 ? x.at : y.at, hop % 2 ? y.at : x.at);
        }
        cudaEventRecord(events[0].at, streams[0]);
        copy(streams[0], out.at, x);
        streams[0].finish();
        return out.all(377); // Fibonacci
    });
}

// ---- the host and its memory

// The host reads or overwrites pinned memory, which is correct only after a synchronization.
void copies_of_pinned_memory_are_asynchronous(void **) {
    auto download = [](bool wait) {
        test_stream stream;
        device_array<int> x(N);
        pinned_array out(0);
        launch(stream, fill, 1, N, x.at, 6);
        copy(stream, out.at, x);
        if (wait)
            stream.finish();
        bool right = out.all(6);
        stream.finish();
        return right;
    };
    auto upload = [](bool wait) {
        test_stream stream;
        device_array<int> x(N);
        pinned_array in(6), out(0);
        copy(stream, x, in.at);
        if (wait)
            stream.finish();
        in.set(7);
        copy(stream, out.at, x);
        stream.finish();
        return out.all(6);
    };
    assert_always([=] { return download(true); });
    assert_int_equal(n_right([=] { return download(false); }), 0);
    assert_always([=] { return upload(true); });
    // Without a wait the result is correct only where work runs immediately.
    assert_int_equal(n_right([=] { return upload(false); }), 0);
}

void registered_memory_is_pinned(void **) {
    assert_int_equal(n_right([] {
                         test_stream stream;
                         device_array<int> x(N);
                         std::vector<int> out(N);
                         cudaHostRegister(out.data(), N * sizeof(int), cudaHostRegisterPortable);
                         launch(stream, fill, 1, N, x.at, 6);
                         copy(stream, out.data(), x);
                         bool right = out[0] == 6;
                         stream.finish();
                         cudaHostUnregister(out.data());
                         return right;
                     }),
                     0);
}

void copies_of_pageable_memory_need_no_wait(void **) {
    assert_always([] {
        test_stream stream;
        device_array<int> x(N);
        std::vector<int> in(N, 8), out(N, 0);
        copy(stream, x, in.data());
        in.assign(N, 0);
        copy(stream, out.data(), x);
        return out[0] == 8 && out[N - 1] == 8;
    });
}

void event_synchronize_waits_for_the_event(void **) {
    assert_always([] {
        test_stream stream;
        device_array<int> x(N);
        pinned_array out(0);
        test_event done;
        launch(stream, fill, 1, N, x.at, 6);
        copy(stream, out.at, x);
        cudaEventRecord(done.at, stream);
        launch(stream, fill, 1, N, x.at, 7);
        cudaEventSynchronize(done.at);
        bool right = out.all(6);
        stream.finish();
        return right;
    });
}

void queries_make_progress(void **) {
    assert_always([] {
        test_stream stream, other;
        device_array<int> x(N), y(N);
        pinned_array out(0);
        test_event done;
        assert_int_equal(cudaEventQuery(done.at), cudaSuccess); // never recorded
        launch(other, fill, 1, N, y.at, 7);
        launch(stream, fill, 1, N, x.at, 6);
        copy(stream, out.at, x);
        cudaEventRecord(done.at, stream);
        int n_queries = 0;
        while (cudaEventQuery(done.at) == cudaErrorNotReady)
            if (++n_queries > 1000)
                return false;
        if (!out.all(6))
            return false;
        while (cudaStreamQuery(other) == cudaErrorNotReady)
            if (++n_queries > 2000)
                return false;
        return true;
    });
}

void a_destroyed_stream_finishes_its_work(void **) {
    assert_always([] {
        cudaStream_t stream;
        device_array<int> x(N);
        pinned_array out(0);
        test_event done;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        launch(stream, fill, 1, N, x.at, 6);
        copy(stream, out.at, x);
        cudaEventRecord(done.at, stream);
        cudaStreamDestroy(stream);
        cudaEventSynchronize(done.at);
        return out.all(6);
    });
}

void rows_are_copied_with_their_pitches(void **) {
    test_stream stream;
    std::vector<int> in(6 * 10), out(6 * 7, -1);
    std::iota(in.begin(), in.end(), 0);
    device_array<int> x(6 * 8);
    assert_int_equal(cudaMemcpy2DAsync(x, 32, in.data(), 40, 20, 6, cudaMemcpyHostToDevice, stream),
                     cudaSuccess);
    assert_int_equal(cudaMemcpy2DAsync(out.data(), 28, x, 32, 20, 6, cudaMemcpyDeviceToHost, stream),
                     cudaSuccess);
    for (int row = 0; row < 6; row++)
        for (int i = 0; i < 7; i++)
            assert_int_equal(out[size_t(row * 7 + i)], i < 5 ? row * 10 + i : -1);
}

void elapsed_time_is_measured(void **) {
    test_stream stream;
    cudaEvent_t begin, end;
    device_array<int> x(N);
    float ms = -1;
    assert_int_equal(cudaEventCreate(&begin), cudaSuccess);
    assert_int_equal(cudaEventCreate(&end), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&ms, begin, end), cudaErrorInvalidResourceHandle);
    cudaEventRecord(begin, stream);
    launch(stream, fill, 1, N, x.at, 1);
    cudaEventRecord(end, stream);
    stream.finish();
    assert_int_equal(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
    assert_true(ms >= 0 && ms < 60000);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGetLastError();
}

// ---- several threads of the host

// Each host thread has its own streams; an event passes from each thread to the next.
void host_threads_issue_work_concurrently(void **) {
    for (unsigned seed = 0; seed <= 10; seed++) {
        cudasim_reorder(seed);
        {
            constexpr int n_threads = 4;
            test_stream streams[n_threads];
            test_event events[n_threads];
            device_array<int> x(N), one(N);
            pinned_array out(0);
            std::atomic<int> turn{0};
            cudaMemsetAsync(x, 0, N * sizeof(int), streams[0]);
            launch(streams[0], fill, 1, N, one.at, 1);
            cudaEventRecord(events[n_threads - 1].at, streams[0]);
            std::vector<std::thread> threads;
            for (int i = 0; i < n_threads; i++)
                threads.emplace_back([&, i] {
                    device_array<int> own(N);
                    for (int round = 0; round < 5; round++) {
                        launch(streams[i], fill, 1, N, own.at, round);
                        while (turn != round * n_threads + i)
                            std::this_thread::yield();
                        cudaStreamWaitEvent(streams[i], events[(i + n_threads - 1) % n_threads].at, 0);
                        launch(streams[i], add, 1, N, x.at, one.at);
                        cudaEventRecord(events[i].at, streams[i]);
                        turn++;
                        if (round % 2)
                            cudaStreamSynchronize(streams[i]);
                    }
                    cudaStreamSynchronize(streams[i]);
                });
            for (std::thread &thread : threads)
                thread.join();
            copy(streams[n_threads - 1], out.at, x);
            assert_int_equal(streams[n_threads - 1].finish(), cudaSuccess);
            assert_true(out.all(5 * n_threads));
        }
    }
    cudasim_reorder(0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(one_stream_keeps_its_order),
        cmocka_unit_test(an_event_orders_two_streams),
        cmocka_unit_test(memory_is_reused_after_an_event),
        cmocka_unit_test(a_wait_refers_to_the_latest_recording),
        cmocka_unit_test(events_order_three_streams),
        cmocka_unit_test(copies_of_pinned_memory_are_asynchronous),
        cmocka_unit_test(registered_memory_is_pinned),
        cmocka_unit_test(copies_of_pageable_memory_need_no_wait),
        cmocka_unit_test(event_synchronize_waits_for_the_event),
        cmocka_unit_test(queries_make_progress),
        cmocka_unit_test(a_destroyed_stream_finishes_its_work),
        cmocka_unit_test(rows_are_copied_with_their_pitches),
        cmocka_unit_test(elapsed_time_is_measured),
        cmocka_unit_test(host_threads_issue_work_concurrently),
    };
    return cmocka_run_group_tests_name("streams in the simulator", tests, nullptr, nullptr);
}
