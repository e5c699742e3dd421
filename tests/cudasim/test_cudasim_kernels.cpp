// Tests what kernels compute in the simulator against plain computations: places in the grid, barriers,
// shuffles, votes, atomics and shared memory, in order and with threads and blocks permuted; and store_words,
// exp2_approximate and reciprocal_approximate.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "kernels/cuda/ptx.cuh"
#include "tests/cudasim/kernel_test.h"

namespace {

constexpr unsigned ALL = 0xffffffff;

// ---- the grid

__global__ void write_places(uint3 *threads, uint3 *blocks, unsigned *counts) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
    threads[at] = threadIdx;
    blocks[at] = blockIdx;
    atomicAdd(counts + at, 1);
}

void every_thread_runs_once(void **) {
    test_stream stream;
    const dim3 grid(3, 4, 2), block(5, 3, 7);
    const unsigned n = 3 * 4 * 2 * 5 * 3 * 7;
    device_array<uint3> threads(n), blocks(n);
    device_array<unsigned> counts(stream, std::vector<unsigned>(n));
    assert_int_equal(launch(stream, write_places, grid, block, threads.at, blocks.at, counts.at),
                     cudaSuccess);
    std::vector<uint3> thread = threads.read(stream), of = blocks.read(stream);
    std::vector<unsigned> count = counts.read(stream);
    for (unsigned i = 0; i < n; i++) {
        unsigned t = i % 105, b = i / 105;
        assert_int_equal(count[i], 1);
        assert_int_equal(thread[i].x, t % 5);
        assert_int_equal(thread[i].y, t / 5 % 3);
        assert_int_equal(thread[i].z, t / 15);
        assert_int_equal(of[i].x, b % 3);
        assert_int_equal(of[i].y, b / 3 % 4);
        assert_int_equal(of[i].z, b / 12);
    }
}

struct odd_arguments {
    char bytes[3];
    double number;
};

__global__ void write_arguments(double *out, odd_arguments odd, float x, short y, const int *__restrict__ z) {
    if (threadIdx.x == 0 && blockIdx.x == 0)
        *out = odd.bytes[2] + odd.number + x + y + *z;
}

void arguments_are_copied_at_launch(void **) {
    test_stream stream;
    cudasim_reorder(1);
    {
        device_array<double> out(1);
        device_array<int> z(stream, {1000});
        odd_arguments odd = {{1, 2, 3}, 0.5};
        float x = 10;
        launch(stream, write_arguments, 2, 2, out.at, odd, x, 100, z.at);
        odd.number = x = -1;
        assert_true(out.read(stream)[0] == 1113.5);
    }
    cudasim_reorder(0);
}

// ---- barriers

// A prefix sum in shared memory, with two barriers per round.
__global__ void prefix_sum(int *x) {
    __shared__ int values[512];
    int i = int(threadIdx.x);
    values[i] = x[blockIdx.x * 512 + i];
    __syncthreads();
    for (int step = 1; step < 512; step *= 2) {
        int before = i >= step ? values[i - step] : 0;
        __syncthreads();
        values[i] += before;
        __syncthreads();
    }
    x[blockIdx.x * 512 + i] = values[i];
}

void barriers_order_shared_memory(void **) {
    test_stream stream;
    std::vector<int> x(16 * 512);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = int(i * 7 % 23);
    device_array<int> device(stream, x);
    launch(stream, prefix_sum, 16, 512, device.at);
    std::vector<int> got = device.read(stream);
    for (size_t block = 0; block < 16; block++)
        std::partial_sum(&x[block * 512], &x[block * 512] + 512, &x[block * 512]);
    assert_memory_equal(got.data(), x.data(), x.size() * sizeof(int));
}

// ---- warps

struct shuffled {
    int index, up, across;
    double wide;
    unsigned short narrow;
};

__global__ void shuffle_all(shuffled *out, int operand, int width, unsigned mask) {
    int lane = int(threadIdx.x) % 32, value = int(threadIdx.x) * 3 + 1;
    shuffled &mine = out[threadIdx.x];
    if (!(mask >> lane & 1))
        return;
    mine.index = __shfl_sync(mask, value, operand, width);
    mine.up = __shfl_up_sync(mask, value, unsigned(operand), width);
    mine.across = __shfl_xor_sync(mask, value, operand, width);
    mine.wide = __shfl_xor_sync(mask, value / 8.0, operand, width);
    mine.narrow = __shfl_sync(mask, (unsigned short)value, operand, width);
}

// The lane that is read, as the programming guide defines it.
int source_of(const char *kind, int lane, int operand, int width) {
    int first = lane / width * width;
    switch (kind[0]) {
    case 'i':
        return first + operand % width;
    case 'u':
        return lane - operand < first ? lane : lane - operand;
    default:
        return (lane ^ operand) >= first + width ? lane : lane ^ operand;
    }
}

void shuffles_read_the_right_lane(void **) {
    test_stream stream;
    for (unsigned mask : {ALL, 0x0000ffffu, 0xf0f0f0f0u})
        for (int width : {32, 16, 8, 4, 2, 1})
            for (int operand : {0, 1, 2, 5, 16, 31}) {
                device_array<shuffled> out(stream, std::vector<shuffled>(64));
                launch(stream, shuffle_all, 1, 64, out.at, operand, width, mask);
                std::vector<shuffled> got = out.read(stream);
                auto expect = [&](int i, const char *kind, int *value) {
                    int source = source_of(kind, i % 32, operand, width);
                    *value = (i / 32 * 32 + source) * 3 + 1;
                    return mask >> source & 1; // lanes outside the mask are undefined
                };
                for (int i = 0; i < 64; i++) {
                    int value;
                    if (!(mask >> i % 32 & 1))
                        continue;
                    if (expect(i, "index", &value)) {
                        assert_int_equal(got[i].index, value);
                        assert_int_equal(got[i].narrow, value);
                    }
                    if (expect(i, "up", &value))
                        assert_int_equal(got[i].up, value);
                    if (expect(i, "xor", &value)) {
                        assert_int_equal(got[i].across, value);
                        assert_true(got[i].wide == value / 8.0);
                    }
                }
            }
}

struct votes {
    unsigned ballot, match, most;
};

__global__ void vote_all(votes *out, unsigned mask) {
    int i = int(threadIdx.x), lane = i % 32;
    if (!(mask >> lane & 1))
        return;
    votes &mine = out[i];
    mine.ballot = __ballot_sync(mask, lane % 3 == 0);
    mine.match = __match_any_sync(mask, lane / 4);
    mine.most = __reduce_max_sync(mask, unsigned(lane));
}

void votes_are_counted(void **) {
    test_stream stream;
    for (unsigned mask : {ALL, 0x00ff00ffu, 0x40u, 0x55555555u}) {
        device_array<votes> out(stream, std::vector<votes>(96));
        launch(stream, vote_all, 1, 96, out.at, mask);
        std::vector<votes> got = out.read(stream);
        unsigned most = 31 - unsigned(__builtin_clz(mask));
        for (unsigned i = 0; i < 96; i++) {
            unsigned lane = i % 32;
            if (!(mask >> lane & 1))
                continue;
            assert_int_equal(got[i].ballot, 0x49249249u & mask);
            assert_int_equal(got[i].match, (15u << lane / 4 * 4) & mask);
            assert_int_equal(got[i].most, most);
        }
    }
}

// The two halves of a warp diverge, each with its own mask, and reconverge.
__global__ void halves(int *out) {
    int lane = int(threadIdx.x), sum = lane;
    if (lane < 16) {
        for (int step = 8; step; step /= 2)
            sum += __shfl_xor_sync(0x0000ffff, sum, step);
    } else {
        for (int step = 1; step < 16; step *= 2)
            sum += __shfl_xor_sync(0xffff0000, sum, step);
        __syncwarp(0xffff0000);
    }
    __syncwarp();
    out[lane] = __shfl_xor_sync(ALL, sum, 16);
}

void halves_of_a_warp_diverge_and_reconverge(void **) {
    test_stream stream;
    device_array<int> out(32);
    launch(stream, halves, 1, 32, out.at);
    std::vector<int> got = out.read(stream);
    for (int lane = 0; lane < 32; lane++)
        assert_int_equal(got[lane], lane < 16 ? 376 : 120);
}

// ---- atomics

struct totals {
    int sum, most, latest, replaced;
    float real;
    double twice;
    unsigned long long wide;
};

__global__ void count(totals *t) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    atomicAdd(&t->sum, i);
    atomicMax(&t->most, i);
    atomicAdd(&t->replaced, atomicExch(&t->latest, i));
    atomicAdd(&t->real, 0.5f);
    atomicAdd(&t->twice, 0.25);
    atomicAdd(&t->wide, 1ull << 33);
}

void atomics_lose_no_update(void **) {
    test_stream stream;
    device_array<totals> device(stream, {totals()});
    const int n = 64 * 96;
    launch(stream, count, 64, 96, device.at);
    totals got = device.read(stream)[0];
    assert_int_equal(got.sum, n * (n - 1) / 2);
    assert_int_equal(got.most, n - 1);
    assert_int_equal(got.replaced + got.latest, got.sum);
    assert_true(got.real == n * 0.5f);
    assert_true(got.twice == n * 0.25);
    assert_true(got.wide == (unsigned long long)n << 33);
}

// Each block writes a number; the last one to finish adds them all up.
__global__ void add_in_last_block(int *numbers, unsigned *ticket, int *sum) {
    __shared__ bool last;
    if (threadIdx.x == 0)
        numbers[blockIdx.x] = int(blockIdx.x) + 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(ticket, 1u) + 1 == gridDim.x;
    __syncthreads();
    if (!last || threadIdx.x > 0)
        return;
    __threadfence();
    for (unsigned i = 0; i < gridDim.x; i++)
        *sum += __ldcg(numbers + i);
}

void the_last_block_sees_what_all_wrote(void **) {
    test_stream stream;
    const int n = 300;
    device_array<int> numbers(stream, std::vector<int>(n)), sum(stream, {0});
    device_array<unsigned> ticket(stream, {0u});
    assert_int_equal(launch(stream, add_in_last_block, n, 64, numbers.at, ticket.at, sum.at), cudaSuccess);
    assert_int_equal(sum.read(stream)[0], n * (n + 1) / 2);
}

// ---- shared memory

__global__ void reverse_dynamic(int *x, int n) {
    int *shared = static_cast<int *>(cudasim::dynamic_shared_memory());
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x))
        shared[i] = x[i];
    __syncthreads();
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x))
        x[i] = shared[n - 1 - i];
}

void dynamic_shared_memory_up_to_the_limit(void **) {
    test_stream stream;
    for (int n : {1, 1000, 12288, 58112}) {
        std::vector<int> x(n);
        std::iota(x.begin(), x.end(), 0);
        device_array<int> device(stream, x);
        size_t bytes = size_t(n) * sizeof(int);
        assert_int_equal(
            cudaFuncSetAttribute(reverse_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
            cudaSuccess);
        assert_int_equal(launch_shared(stream, bytes, reverse_dynamic, 1, 128, device.at, n), cudaSuccess);
        std::reverse(x.begin(), x.end());
        assert_memory_equal(device.read(stream).data(), x.data(), bytes);
    }
}

// ---- permuted threads and blocks

// Appends each thread's number: the list shows the order, which the seed determines.
__global__ void append(int *list, int *n) {
    list[atomicAdd(n, 1)] = int(blockIdx.x * blockDim.x + threadIdx.x);
}

void results_do_not_depend_on_the_order(void **) {
    test_stream stream;
    std::vector<int> in_order, other;
    for (unsigned seed = 0; seed < 6; seed++) {
        cudasim_order(seed);
        device_array<int> list(4 * 64), n(stream, {0});
        launch(stream, append, 4, 64, list.at, n.at);
        std::vector<int> got = list.read(stream);
        (seed ? other : in_order) = got;
        if (seed)
            assert_memory_not_equal(got.data(), in_order.data(), got.size() * sizeof(int));
        std::sort(got.begin(), got.end());
        for (int i = 0; i < 256; i++)
            assert_int_equal(got[size_t(i)], i);
        barriers_order_shared_memory(nullptr);
        votes_are_counted(nullptr);
        halves_of_a_warp_diverge_and_reconverge(nullptr);
    }
    cudasim_order(0);
}

// ---- arithmetic

void arithmetic_follows_the_manual(void **) {
    assert_int_equal(__popc(0xf0f0u), 8);
    assert_int_equal(__ffs(8), 4);
    assert_int_equal(__ffs(0), 0);
    assert_int_equal(__float_as_uint(1.0f), 0x3f800000);
    assert_int_equal(min(3, 2), 2);
    uint4 stored = {};
    store_words(&stored, make_uint4(1, 2, 3, 4));
    assert_true(stored.x == 1 && stored.y == 2 && stored.z == 3 && stored.w == 4);
    assert_true(__fmaf_rn(1.0f + 0x1p-23f, 1.0f + 0x1p-23f, -1.0f - 0x1p-22f) == 0x1p-46f);
    assert_int_equal(sizeof(float4), 16);
    assert_int_equal(alignof(float4), 16);
    assert_int_equal(alignof(float2), 8);
    assert_int_equal(alignof(float3), 4);
    assert_int_equal(alignof(ushort4), 8);
}

// ---- approximations

// The special values and the maximum error that the PTX manual documents for ex2.approx.ftz.f32.
void exp2_approximate_is_as_accurate_as_documented(void **) {
    assert_true(exp2_approximate(-INFINITY) == 0 && exp2_approximate(INFINITY) == INFINITY);
    assert_true(exp2_approximate(0x1p-130f) == 1 && exp2_approximate(-0.0f) == 1);
    assert_true(exp2_approximate(-126) == 0x1p-126f && exp2_approximate(-126.5f) == 0);
    assert_true(std::isnan(exp2_approximate(NAN)));
    for (float x = -125; x < 128; x += 0.37f) {
        double exact = std::exp2(static_cast<double>(x));
        assert_true(std::fabs(exp2_approximate(x) - exact) <= 0x1p-22 * exact);
    }
}

// The same for rcp.approx.ftz.f32: one unit in the last place.
void reciprocal_approximate_is_as_accurate_as_documented(void **) {
    assert_true(reciprocal_approximate(0.0f) == INFINITY && reciprocal_approximate(-0.0f) == -INFINITY);
    assert_true(reciprocal_approximate(0x1p-130f) == INFINITY &&
                reciprocal_approximate(-0x1p-130f) == -INFINITY);
    assert_true(reciprocal_approximate(INFINITY) == 0 && std::signbit(reciprocal_approximate(-INFINITY)));
    assert_true(reciprocal_approximate(0x1p126f) == 0x1p-126f && reciprocal_approximate(0x1p127f) == 0);
    assert_true(std::isnan(reciprocal_approximate(NAN)));
    for (float x = 0x1p-125f; x < 0x1p125f; x *= 1.37f)
        assert_true(std::fabs(reciprocal_approximate(x) * static_cast<double>(x) - 1) <= 0x1p-23);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once),
        cmocka_unit_test(arguments_are_copied_at_launch),

        cmocka_unit_test(exp2_approximate_is_as_accurate_as_documented),
        cmocka_unit_test(reciprocal_approximate_is_as_accurate_as_documented),
        cmocka_unit_test(barriers_order_shared_memory),
        cmocka_unit_test(shuffles_read_the_right_lane),
        cmocka_unit_test(votes_are_counted),
        cmocka_unit_test(halves_of_a_warp_diverge_and_reconverge),
        cmocka_unit_test(atomics_lose_no_update),
        cmocka_unit_test(the_last_block_sees_what_all_wrote),
        cmocka_unit_test(dynamic_shared_memory_up_to_the_limit),
        cmocka_unit_test(results_do_not_depend_on_the_order),
        cmocka_unit_test(arithmetic_follows_the_manual),
    };
    return cmocka_run_group_tests_name("kernels in the simulator", tests, nullptr, nullptr);
}
