// Tests each kind of fault with a program that has it, which must report it and exit with a failure, and the
// same program without it, which must run clean. Each runs as a process (this program with the fault's name),
// because some faults end it. A fault is tested in the builds that can find it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudasim/kernel_test.h"
#include "tests/cudasim/sanitizer.h"

namespace {

constexpr unsigned ALL = 0xffffffff;

enum builds { PLAIN = 1, ASAN = 2, RACE = 4, EVERY = PLAIN | ASAN | RACE };

builds this_build() {
    return cudasim_sees_accesses() ? RACE : __asan_poison_memory_region ? ASAN : PLAIN;
}

// `program` runs with true for the fault, and with false without it.
struct fault {
    const char *name;
    int builds;          // those that find it
    const char *message; // a substring of the message in the plain and race builds
    const char *asan;    // the same in the address sanitizer's build; NULL: as `message`
    void (*program)(bool faulty);
};

// Launches two blocks of a kernel that takes an array of n ints and whether to have the fault.
template <class Kernel> void run(Kernel kernel, bool faulty, unsigned threads, size_t n = 64) {
    test_stream stream;
    device_array<int> out(stream, std::vector<int>(n));
    launch(stream, kernel, 2, threads, out.at, faulty);
}

// ---- barriers and warps

__global__ void exit_before_barrier(int *out, bool faulty) {
    if (faulty && threadIdx.x >= 40)
        return;
    __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void exit_while_others_wait(int *out, bool faulty) {
    if (threadIdx.x != 63 || !faulty)
        __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void different_barriers(int *out, bool faulty) {
    if (faulty && threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    if (faulty && threadIdx.x >= 32)
        __syncthreads();
    out[threadIdx.x] = 1;
}

__global__ void lanes_at_different_barriers(int *out, bool faulty) {
    if (faulty && threadIdx.x < 8)
        __syncthreads();
    else
        __syncwarp();
    out[threadIdx.x] = 1;
}

__global__ void mask_without_the_caller(int *out, bool faulty) {
    out[threadIdx.x] = __shfl_sync(faulty ? ALL - 1 : ALL, int(threadIdx.x), 3);
}

__global__ void mask_with_an_exited_lane(int *out, bool faulty) {
    if (threadIdx.x == 5)
        return;
    out[threadIdx.x] = __ballot_sync(faulty ? ALL : ALL & ~32u, 1);
}

__global__ void exit_while_in_a_mask(int *out, bool faulty) {
    if (threadIdx.x == 31)
        return;
    out[threadIdx.x] = __ballot_sync(faulty ? ALL : ALL >> 1, 1);
}

__global__ void deadlock_of_overlapping_masks(int *out, bool faulty) {
    unsigned mask = threadIdx.x < 16 ? 0x0000ffff : 0xffff0000;
    __syncwarp(faulty ? mask | 1u << 16 | 1u : mask);
    out[threadIdx.x] = 1;
}

__global__ void mixed_instructions(int *out, bool faulty) {
    if (faulty && threadIdx.x < 16)
        out[threadIdx.x] = __ballot_sync(ALL, 1);
    else
        out[threadIdx.x] = __shfl_sync(ALL, 1, 0);
    if (!faulty)
        __syncwarp();
}

__global__ void invalid_shuffle_width(int *out, bool faulty) {
    out[threadIdx.x] = __shfl_sync(ALL, 1, 0, faulty ? 12 : 8);
}

// ---- bounds

__global__ void write_from(int *out, int first) {
    out[first + int(threadIdx.x)] = 1;
}

__global__ void read_from(const int *in, int *out, int first) {
    out[threadIdx.x] = in[first + int(threadIdx.x)];
}

void write_with_offset(int first) {
    test_stream stream;
    device_array<int> out(64);
    launch(stream, write_from, 1, 64, out.at, first);
}

void write_past_the_end(bool faulty) {
    write_with_offset(faulty);
}

void write_before_start(bool faulty) {
    write_with_offset(-int(faulty));
}

void write_far_away(bool faulty) {
    write_with_offset(faulty ? 1 << 20 : 0);
}

void read_past_the_end(bool faulty) {
    test_stream stream;
    device_array<int> in(64), out(64);
    launch(stream, read_from, 1, 64, in.at, out.at, faulty);
}

__global__ void write_dynamic(int *out, int first) {
    int *shared = static_cast<int *>(cudasim::dynamic_shared_memory());
    shared[first + int(threadIdx.x)] = 1;
    out[threadIdx.x] = shared[first + int(threadIdx.x)];
}

void write_past_dynamic_shared_memory(bool faulty) {
    test_stream stream;
    device_array<int> out(64);
    launch_shared(stream, 256, write_dynamic, 1, 64, out.at, faulty);
}

void instruction_past_dynamic_shared_memory(bool faulty) {
    test_stream stream;
    auto kernel = +[](int past) {
        char *shared = static_cast<char *>(cudasim::dynamic_shared_memory());
        cudasim::shared_written(shared + past, 16);
    };
    launch_shared(stream, 16, kernel, 1, 1, faulty);
}

__global__ void write_past_static(int *out, bool faulty) {
    __shared__ int values[64];
    values[threadIdx.x + faulty] = 1;
    out[threadIdx.x] = values[threadIdx.x + faulty];
}

__global__ void misaligned_float4(int *out, bool faulty) {
    float4 four = *reinterpret_cast<float4 *>(out + faulty);
    reinterpret_cast<float4 *>(out + 16)[threadIdx.x] = four;
}

void use_after_free(bool faulty) {
    test_stream stream;
    int *memory;
    cudaMalloc(&memory, 256);
    if (faulty)
        cudaFree(memory);
    launch(stream, write_from, 1, 64, memory, 0);
    if (!faulty)
        cudaFree(memory);
}

void free_twice(bool faulty) {
    int *memory;
    cudaMalloc(&memory, 256);
    cudaFree(memory);
    if (faulty)
        cudaFree(memory);
}

void free_another_pointer(bool faulty) {
    int *memory;
    cudaMalloc(&memory, 256);
    if (faulty)
        cudaFree(memory + 1);
    cudaFree(memory);
}

void never_free(bool faulty) {
    int *memory;
    cudaMalloc(&memory, 256);
    if (!faulty)
        cudaFree(memory);
}

void pass_a_host_pointer(bool faulty) {
    test_stream stream;
    device_array<int> out(64);
    std::vector<int> host(64);
    launch(stream, write_from, 1, 64, faulty ? host.data() : out.at, 0);
}

void pass_a_null_pointer(bool faulty) {
    test_stream stream;
    device_array<int> out(64);
    launch(stream, write_from, 1, 64, faulty ? nullptr : out.at, 0);
}

void read_on_the_host(bool faulty) {
    device_array<int> device(64);
    volatile int here[1] = {1};
    volatile int *from = faulty ? device.at : here;
    if (*from == 12345)
        puts("unlikely");
}

void write_protected_memory(bool faulty) {
    setenv("CUDASIM_PROTECT", "1", 1);
    test_stream stream;
    device_array<int> device(stream, std::vector<int>(64));
    launch(stream, write_from, 1, 64, device.at, 0);
    device.read(stream);
    volatile int *to = device.at;
    if (faulty)
        *to = 1;
}

__global__ void write_foreign_local(int *out, bool faulty) {
    __shared__ int *pointer;
    int local = int(threadIdx.x);
    if (threadIdx.x == 0)
        pointer = faulty ? &local : out;
    __syncthreads();
    if (threadIdx.x == 1)
        *pointer = 7;
    __syncthreads();
    out[threadIdx.x] = local;
}

__device__ int descend(int n, volatile char *above) {
    volatile char room[1000];
    room[0] = *above;
    return n ? descend(n - 1, room) + room[0] : 0;
}

__global__ void overflow_the_stack(int *out, bool faulty) {
    volatile char first = 0;
    out[threadIdx.x] = descend(faulty ? 1000000 : 10, &first);
}

// ---- shared memory: uninitialized reads and races

__global__ void read_uninitialized(int *out, bool faulty) {
    __shared__ int values[64];
    if (threadIdx.x != 40 || !faulty)
        values[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = values[63 - threadIdx.x];
}

// A second block must not see the shared memory of the first.
__global__ void read_without_writing(int *out, bool faulty) {
    int *values = static_cast<int *>(cudasim::dynamic_shared_memory());
    if (blockIdx.x == 0 || !faulty)
        values[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

void read_shared_memory_of_an_earlier_block(bool faulty) {
    test_stream stream;
    device_array<int> out(64);
    launch_shared(stream, 256, read_without_writing, 2, 64, out.at, faulty);
}

__global__ void read_after_write(int *out, bool faulty) {
    __shared__ int values[64];
    values[threadIdx.x] = int(threadIdx.x);
    if (!faulty)
        __syncthreads();
    out[threadIdx.x] = threadIdx.x ? values[threadIdx.x - 1] : 0;
}

__global__ void write_after_read(int *out, bool faulty) {
    __shared__ int values[64];
    values[threadIdx.x] = 0;
    for (int round = 0; round < 3; round++) {
        __syncthreads();
        int next = values[(threadIdx.x + 1) % 64];
        if (!faulty)
            __syncthreads();
        values[threadIdx.x] = next + 1;
    }
    out[threadIdx.x] = values[threadIdx.x];
}

__global__ void write_after_write(int *out, bool faulty) {
    __shared__ int value;
    if (threadIdx.x == 0 || faulty)
        value = 1;
    __syncthreads();
    out[threadIdx.x] = value;
}

__global__ void neighbours_in_a_word(int *out, bool faulty) {
    __shared__ short values[128];
    values[threadIdx.x] = 1;
    if (faulty)
        values[threadIdx.x + 1] = 2;
    __syncthreads();
    out[threadIdx.x] = values[threadIdx.x];
}

__global__ void lanes_without_a_barrier(int *out, bool faulty) {
    __shared__ int values[64];
    values[threadIdx.x] = int(threadIdx.x);
    if (faulty)
        __ballot_sync(ALL, 1); // the lanes meet, but their memory accesses are not ordered
    else
        __syncwarp();
    out[threadIdx.x] = values[threadIdx.x ^ 1];
    __syncwarp();
    values[threadIdx.x ^ 2] = 3;
    __syncwarp();
    out[threadIdx.x] += values[threadIdx.x];
}

__global__ void half_warp_barrier(int *out, bool faulty) {
    __shared__ int values[32];
    unsigned half = threadIdx.x < 16 ? 0x0000ffff : 0xffff0000;
    values[threadIdx.x] = 1;
    __syncwarp(half);
    out[threadIdx.x] = values[threadIdx.x ^ (faulty ? 16 : 8)];
    __syncwarp();
    values[31 - threadIdx.x] = 2;
}

__global__ void warps_without_a_barrier(int *out, bool faulty) {
    __shared__ int values[64];
    values[threadIdx.x] = int(threadIdx.x);
    __syncwarp();
    if (!faulty)
        __syncthreads();
    out[threadIdx.x] = values[threadIdx.x ^ 32];
}

__global__ void plain_and_atomic(int *out, bool faulty) {
    __shared__ int sum;
    if (threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    atomicAdd(&sum, 1);
    if (!faulty)
        __syncthreads();
    out[threadIdx.x] = sum;
}

// ---- the host's calls

void use_the_default_stream(bool faulty) {
    test_stream stream;
    device_array<int> out(64);
    launch(faulty ? nullptr : stream.at, write_from, 1, 64, out.at, 0);
}

void never_destroy_a_stream(bool faulty) {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!faulty)
        cudaStreamDestroy(stream);
}

void never_destroy_an_event(bool faulty) {
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (!faulty)
        cudaEventDestroy(event);
}

void use_a_destroyed_stream(bool faulty) {
    cudaStream_t stream;
    device_array<int> out(64);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (faulty)
        cudaStreamDestroy(stream);
    cudaMemsetAsync(out, 0, 256, stream);
    if (!faulty)
        cudaStreamDestroy(stream);
}

void free_before_the_copy(bool faulty) {
    cudasim_reorder(1);
    test_stream stream;
    int *from;
    device_array<int> to(64);
    cudaHostAlloc(reinterpret_cast<void **>(&from), 256, cudaHostAllocDefault);
    cudaMemcpyAsync(to, from, 256, cudaMemcpyHostToDevice, stream);
    if (!faulty)
        stream.finish();
    cudaFreeHost(from);
    stream.finish();
}

void unregister_before_the_copy(bool faulty) {
    cudasim_reorder(1);
    test_stream stream;
    std::vector<int> from(64);
    device_array<int> to(64);
    cudaHostRegister(from.data(), 256, cudaHostRegisterDefault);
    cudaMemcpyAsync(to, from.data(), 256, cudaMemcpyHostToDevice, stream);
    if (!faulty)
        stream.finish();
    cudaHostUnregister(from.data());
    stream.finish();
}

void free_without_a_wait(bool faulty) {
    cudasim_reorder(1);
    cudaStream_t stream;
    device_array<int> from(64), to(64);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMemcpyAsync(to, from, 256, cudaMemcpyDeviceToDevice, stream);
    if (!faulty)
        cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}

void copy_past_the_end(bool faulty) {
    test_stream stream;
    device_array<int> device(64);
    std::vector<int> host(128);
    cudaMemcpyAsync(device, host.data(), faulty ? 257 : 256, cudaMemcpyHostToDevice, stream);
}

void copy_the_wrong_way(bool faulty) {
    test_stream stream;
    device_array<int> device(64);
    std::vector<int> host(64);
    cudaMemcpyAsync(device, host.data(), 256, faulty ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                    stream);
}

template <auto kernel, unsigned threads = 64> void launched(bool faulty) {
    run(kernel, faulty, threads);
}

const fault faults[] = {
    {"exit_before_barrier", EVERY, "divergent barrier", nullptr, launched<exit_before_barrier>},
    {"exit_while_others_wait", EVERY, "leaves the kernel while threads 0-62 wait at", nullptr,
     launched<exit_while_others_wait>},
    {"different_barriers", EVERY, "while threads 0-31 wait at", nullptr, launched<different_barriers>},
    {"lanes_at_different_barriers", EVERY, "threads 8-31 wait in __syncwarp with mask ffffffff", nullptr,
     launched<lanes_at_different_barriers>},
    {"mask_without_the_caller", EVERY, "which leaves out the calling lane 0", nullptr,
     launched<mask_without_the_caller, 32>},
    {"mask_with_an_exited_lane", EVERY, "__ballot_sync", nullptr, launched<mask_with_an_exited_lane, 32>},
    {"exit_while_in_a_mask", EVERY, "waits for its lane 31", nullptr, launched<exit_while_in_a_mask, 32>},
    {"deadlock_of_overlapping_masks", EVERY,
     "deadlock: threads 0-15 wait in __syncwarp with mask 0001ffff; threads 16-31 wait", nullptr,
     launched<deadlock_of_overlapping_masks, 32>},
    {"mixed_instructions", EVERY, "__shfl_sync meets __ballot_sync", nullptr,
     launched<mixed_instructions, 32>},
    {"invalid_shuffle_width", EVERY, "width 12", nullptr, launched<invalid_shuffle_width, 32>},
    {"write_past_the_end", EVERY, "0 bytes past the end of allocation 1 (cudaMalloc, 256 bytes)",
     "write_from, block (0,0,0), thread (63,0,0)", write_past_the_end},
    {"write_before_start", EVERY, "4 bytes before allocation 1", "use-after-poison", write_before_start},
    {"write_far_away", EVERY, "far outside any allocation", "AddressSanitizer", write_far_away},
    {"read_past_the_end", ASAN | RACE, "reads 4 bytes", "use-after-poison", read_past_the_end},
    {"write_past_dynamic_shared_memory", ASAN | RACE, "byte 256 of dynamic shared memory", "use-after-poison",
     write_past_dynamic_shared_memory},
    {"instruction_past_dynamic_shared_memory", EVERY, "byte 1 of dynamic shared memory", nullptr,
     instruction_past_dynamic_shared_memory},
    {"write_past_static", ASAN, nullptr, "index 64 out of bounds", launched<write_past_static>},
    {"misaligned_float4", ASAN, nullptr, "misaligned address", launched<misaligned_float4, 1>},
    {"use_after_free", EVERY, "which was freed", "use-after-poison", use_after_free},
    {"free_twice", EVERY, "is freed twice", nullptr, free_twice},
    {"free_another_pointer", EVERY, "is not a pointer that can be freed here", nullptr, free_another_pointer},
    {"never_free", EVERY, "allocation 1 (cudaMalloc, 256 bytes) was never freed", nullptr, never_free},
    {"pass_a_host_pointer", RACE, "memory unknown to the device", nullptr, pass_a_host_pointer},
    {"pass_a_null_pointer", EVERY, "write_from, block (0,0,0), thread (0,0,0)", nullptr, pass_a_null_pointer},
    {"read_on_the_host", RACE, "host: reads device memory", nullptr, read_on_the_host},
    {"write_protected_memory", EVERY, "which only the device may access", "SEGV on unknown address",
     write_protected_memory},
    {"write_foreign_local", RACE, "memory unknown to the device", nullptr, launched<write_foreign_local>},
    {"overflow_the_stack", EVERY, "overflowed its stack of 256 KiB", "stack-overflow",
     launched<overflow_the_stack, 1>},
    {"read_uninitialized", RACE, "reads values at byte 160, which no thread of the block wrote", nullptr,
     launched<read_uninitialized>},
    {"read_shared_memory_of_an_earlier_block", RACE, "which no thread of the block wrote", nullptr,
     read_shared_memory_of_an_earlier_block},
    {"read_after_write", RACE, "race on shared memory: ", nullptr, launched<read_after_write>},
    {"write_after_read", RACE, "race on shared memory: ", nullptr, launched<write_after_read>},
    {"write_after_write", RACE, "writes value at byte 0, which thread (0,0,0) wrote at ", nullptr,
     launched<write_after_write>},
    {"neighbours_in_a_word", RACE, "race on shared memory: writes values at byte 2", nullptr,
     launched<neighbours_in_a_word>},
    {"lanes_without_a_barrier", RACE, "race on shared memory: ", nullptr,
     launched<lanes_without_a_barrier, 32>},
    {"half_warp_barrier", RACE, "race on shared memory: ", nullptr, launched<half_warp_barrier, 32>},
    {"warps_without_a_barrier", RACE, "race on shared memory: ", nullptr, launched<warps_without_a_barrier>},
    {"plain_and_atomic", RACE, "race on shared memory: ", nullptr, launched<plain_and_atomic>},
    {"use_the_default_stream", EVERY, "uses the default stream", nullptr, use_the_default_stream},
    {"never_destroy_a_stream", EVERY, "streams never destroyed: 1", nullptr, never_destroy_a_stream},
    {"never_destroy_an_event", EVERY, "events never destroyed: 1", nullptr, never_destroy_an_event},
    {"use_a_destroyed_stream", EVERY, "the stream does not exist", nullptr, use_a_destroyed_stream},
    {"free_before_the_copy", EVERY, "which was freed", nullptr, free_before_the_copy},
    {"unregister_before_the_copy", EVERY, "memory unknown to the device", nullptr,
     unregister_before_the_copy},
    {"free_without_a_wait", EVERY, "which was freed", nullptr, free_without_a_wait},
    {"copy_past_the_end", EVERY, "cudaMemcpyAsync: 257 bytes", nullptr, copy_past_the_end},
    {"copy_the_wrong_way", EVERY, "the direction does not match the pointers", nullptr, copy_the_wrong_way},
};

// ---- running them

std::string own_path() {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    return std::string(path, n > 0 ? size_t(n) : 0);
}

// Runs this program with two arguments. Returns its exit code, and what it printed.
int run_child(const char *name, const char *which, std::string *printed) {
    std::string command = own_path() + " " + name + " " + which + " 2>&1";
    FILE *pipe = popen(command.c_str(), "r");
    assert_non_null(pipe);
    printed->clear();
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
        printed->append(buffer, n);
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void fault_is_found_and_correct_program_is_clean(void **state) {
    const fault &f = *static_cast<const fault *>(*state);
    std::string printed;
    int code = run_child(f.name, "correct", &printed);
    if (code || !printed.empty())
        fail_msg("without the fault it ends with %d and prints:\n%s", code, printed.c_str());
    const char *message = this_build() == ASAN && f.asan ? f.asan : f.message;
    if (!(f.builds & this_build()))
        return;
    code = run_child(f.name, "fault", &printed);
    if (code == 0 || printed.find(message) == std::string::npos)
        fail_msg("expected a failure and \"%s\", but it ends with %d and prints:\n%s", message, code,
                 printed.c_str());
}

// A finding is reported once, however many threads have it; the launch and all later calls fail until the
// reset.
void findings_are_sticky_and_reported_once(void **) {
    test_stream stream;
    device_array<int> out(stream, std::vector<int>(64));
    assert_int_equal(cudasim_findings(), 0);
    assert_int_equal(launch(stream, invalid_shuffle_width, 1, 64, out.at, true), cudaSuccess);
    assert_int_equal(cudasim_findings(), 1);
    assert_non_null(strstr(cudasim_last_finding(), "invalid_shuffle_width, block (0,0,0), thread (0,0,0): "));
    assert_non_null(strstr(cudasim_last_finding(), "test_cudasim_faults.cpp:"));
    assert_int_equal(stream.finish(), cudaErrorLaunchFailure);
    assert_int_equal(launch(stream, invalid_shuffle_width, 1, 64, out.at, false), cudaErrorLaunchFailure);
    void *memory;
    assert_int_equal(cudaMalloc(&memory, 16), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    cudasim_reset();
    assert_int_equal(cudasim_findings(), 0);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(launch(stream, invalid_shuffle_width, 1, 64, out.at, false), cudaSuccess);
    assert_int_equal(stream.finish(), cudaSuccess);
}

} // namespace

int main(int argc, char **argv) {
    for (const fault &f : faults)
        if (argc == 3 && !strcmp(argv[1], f.name)) {
            f.program(!strcmp(argv[2], "fault"));
            return 0;
        }
    std::vector<CMUnitTest> tests = {cmocka_unit_test(findings_are_sticky_and_reported_once)};
    for (const fault &f : faults)
        tests.push_back(
            {f.name, fault_is_found_and_correct_program_is_clean, nullptr, nullptr, const_cast<fault *>(&f)});
    return _cmocka_run_group_tests("faults", tests.data(), tests.size(), nullptr, nullptr);
}
