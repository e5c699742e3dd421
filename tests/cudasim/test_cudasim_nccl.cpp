// Tests the simulated NCCL: what a group moves between processes, and that each misuse which hangs or
// corrupts on a GPU is found. Each rank is a process of its own; it exits with 0 if what it saw is right.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudasim/kernel_test.h"
extern "C" {
#include "zero/comm/nccl/api.h"
#define DECLARE(name, result, parameters) result nccl##name parameters;
NCCL_FUNCTIONS(DECLARE, int, nccl_comm, nccl_id, int, nccl_stream)
#undef DECLARE
}

namespace {

constexpr int RANKS = 3, N = 100000; // more than a pipe holds

// One rank within its process.
struct rank_test {
    int rank;
    nccl_comm comm;
    cudaStream_t stream;
    float *numbers, *others; // (RANKS * N) on the device

    void put(float value) const {
        std::vector<float> x(RANKS * N, value);
        cudaMemcpyAsync(numbers, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice, stream);
    }
    std::vector<float> get(const float *from) const {
        std::vector<float> x(RANKS * N);
        cudaMemcpyAsync(x.data(), from, x.size() * sizeof(float), cudaMemcpyDeviceToHost, stream);
        cudaStreamSynchronize(stream);
        return x;
    }
};

// Which GPU each rank uses.
using devices = int[RANKS];
constexpr devices OWN = {0, 1, 2};

[[noreturn]] void run_rank(int rank, const nccl_id &id, const devices &device, int expected,
                           bool (*body)(const rank_test &)) {
    rank_test test = {rank, nullptr, nullptr, nullptr, nullptr};
    alarm(60);
    setenv("CUDASIM_DEVICES", "3", 1);
    if (!freopen("/dev/null", "w", stderr)) // findings are compared, not printed
        _exit(1);
    cudaSetDevice(device[rank]);
    const int result = ncclCommInitRank(&test.comm, RANKS, id, rank);
    if (result != NCCL_SUCCESS || expected != NCCL_SUCCESS)
        _exit(result != expected);
    cudaStreamCreateWithFlags(&test.stream, cudaStreamNonBlocking);
    cudaMalloc(&test.numbers, RANKS * N * sizeof(float));
    cudaMalloc(&test.others, RANKS * N * sizeof(float));
    _exit(!body(test));
}

void on_ranks(const devices &device, int expected, bool (*body)(const rank_test &)) {
    nccl_id id = {};
    ncclGetUniqueId(&id);
    pid_t processes[RANKS];
    fflush(stdout);
    for (int rank = 0; rank < RANKS; rank++)
        if ((processes[rank] = fork()) == 0)
            run_rank(rank, id, device, expected, body);
    for (int rank = 0; rank < RANKS; rank++) {
        int status = -1;
        waitpid(processes[rank], &status, 0);
        if (status != 0)
            print_error("rank %d: status %d\n", rank, status);
        assert_int_equal(status, 0);
    }
}

bool is(const std::vector<float> &x, size_t begin, size_t n, float value) {
    for (size_t i = begin; i < begin + n; i++)
        if (x[i] != value)
            return false;
    return true;
}

bool finding_says(const char *a, const char *b) {
    return cudasim_findings() > 0 && strstr(cudasim_last_finding(), a) && strstr(cudasim_last_finding(), b);
}

void a_group_sends_and_receives_at_once(void **) {
    on_ranks(OWN, NCCL_SUCCESS, [](const rank_test &t) {
        t.put(float(t.rank));
        ncclGroupStart();
        for (int other = 0; other < RANKS; other++) {
            if (other == t.rank)
                continue;
            ncclSend(t.numbers, N, NCCL_FLOAT32, other, t.comm, t.stream);
            ncclRecv(t.others + other * N, N, NCCL_FLOAT32, other, t.comm, t.stream);
        }
        bool good = ncclGroupEnd() == NCCL_SUCCESS;
        const std::vector<float> x = t.get(t.others);
        for (int other = 0; other < RANKS; other++)
            good &= other == t.rank || is(x, size_t(other) * N, N, float(other));
        return good && ncclCommDestroy(t.comm) == NCCL_SUCCESS && cudasim_findings() == 0;
    });
}

void collectives_follow_the_work_of_their_stream(void **) {
    on_ranks(OWN, NCCL_SUCCESS, [](const rank_test &t) {
        t.put(float(t.rank + 1));
        ncclAllGather(t.numbers, t.others, N, NCCL_FLOAT32, t.comm, t.stream);
        ncclAllGather(t.others + (RANKS - 1) * N, t.numbers, N, NCCL_FLOAT32, t.comm, t.stream);
        return is(t.get(t.numbers), 0, RANKS * N, RANKS) && ncclCommDestroy(t.comm) == NCCL_SUCCESS &&
               cudasim_findings() == 0;
    });
}

std::atomic<int> *n_finished; // in memory that all ranks share

// Rank 0 does not wait for its stream until the others are done: its communicator drives the stream.
void a_host_that_does_not_wait_holds_nobody_up(void **) {
    *n_finished = 0;
    on_ranks(OWN, NCCL_SUCCESS, [](const rank_test &t) {
        t.put(1);
        ncclAllGather(t.numbers, t.others, N, NCCL_FLOAT32, t.comm, t.stream);
        while (t.rank == 0 && *n_finished < RANKS - 1)
            usleep(1000);
        const bool good = is(t.get(t.others), 0, RANKS * N, 1);
        (*n_finished)++;
        return good && ncclCommDestroy(t.comm) == NCCL_SUCCESS;
    });
}

void calls_that_do_not_match_are_found(void **) {
    on_ranks(OWN, NCCL_SUCCESS, [](const rank_test &t) {
        int error = NCCL_SUCCESS;
        t.put(1);
        if (t.rank == 0)
            ncclAllGather(t.numbers, t.others, N, NCCL_FLOAT32, t.comm, t.stream);
        else
            ncclAllGather(t.numbers, t.others, N, NCCL_FLOAT16, t.comm, t.stream);
        while (error == NCCL_SUCCESS && t.rank < 2) { // rank 0 and one of the others see it
            cudaStreamQuery(t.stream);
            ncclCommGetAsyncError(t.comm, &error);
        }
        const bool good = t.rank == 2 || finding_says("calls do not match", "of type 6");
        sleep(1);
        ncclCommAbort(t.comm);
        return good;
    });
}

void a_message_that_is_never_received_is_found(void **) {
    on_ranks(OWN, NCCL_SUCCESS, [](const rank_test &t) {
        t.put(1);
        if (t.rank == 0) {
            ncclSend(t.numbers, 10, NCCL_FLOAT32, 1, t.comm, t.stream);
            cudaStreamSynchronize(t.stream);
        }
        sleep(1);
        ncclCommDestroy(t.comm);
        return t.rank == 1 ? finding_says("rank 0 sent", "rank 1 never received") : cudasim_findings() == 0;
    });
}

void an_abort_ends_a_collective_that_waits(void **) {
    on_ranks(OWN, NCCL_SUCCESS, [](const rank_test &t) {
        t.put(1);
        if (t.rank == 0)
            _exit(0); // dead
        ncclAllGather(t.numbers, t.others, N, NCCL_FLOAT32, t.comm, t.stream);
        cudaStreamQuery(t.stream);
        ncclCommAbort(t.comm);
        return cudaStreamSynchronize(t.stream) == cudaSuccess &&
               ncclSend(t.numbers, 1, NCCL_FLOAT32, 2 - t.rank, t.comm, t.stream) != NCCL_SUCCESS;
    });
}

void two_ranks_of_a_gpu_are_refused(void **) {
    constexpr devices shared = {0, 1, 0};
    on_ranks(shared, 5, nullptr); // ncclInvalidUsage
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_group_sends_and_receives_at_once),
        cmocka_unit_test(collectives_follow_the_work_of_their_stream),
        cmocka_unit_test(a_host_that_does_not_wait_holds_nobody_up),
        cmocka_unit_test(calls_that_do_not_match_are_found),
        cmocka_unit_test(a_message_that_is_never_received_is_found),
        cmocka_unit_test(an_abort_ends_a_collective_that_waits),
        cmocka_unit_test(two_ranks_of_a_gpu_are_refused),
    };
    void *shared =
        mmap(nullptr, sizeof *n_finished, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    n_finished = static_cast<std::atomic<int> *>(shared);
    return cmocka_run_group_tests_name("NCCL in the simulator", tests, nullptr, nullptr);
}
