// Tests the emulated instructions of kernels/cuda/ptx.cuh against NVIDIA's "Parallel Thread Execution ISA":
// the places of each lane's elements in the matrices, by the manual's formulas, written out here a second
// time; when the bytes of cp.async arrive; and that each misuse is found.
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cudasim.h"
#include "kernels/cuda/ptx.cuh"

namespace {

// ---- fixtures

cudaStream_t stream;

int open_stream(void **) {
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? 0 : -1;
}

int close_stream(void **) {
    return cudaStreamDestroy(stream) == cudaSuccess ? 0 : -1;
}

template <class T> class device_array {
  public:
    explicit device_array(const std::vector<T> &values) : size(values.size()) {
        assert_int_equal(cudaMalloc(reinterpret_cast<void **>(&at), size * sizeof(T)), cudaSuccess);
        copy(at, values.data(), cudaMemcpyHostToDevice);
    }
    explicit device_array(size_t n) : device_array(std::vector<T>(n)) {}
    ~device_array() {
        cudaFree(at);
    }
    device_array(const device_array &) = delete;
    device_array &operator=(const device_array &) = delete;
    operator T *() const {
        return at;
    }
    std::vector<T> read() const {
        std::vector<T> values(size);
        copy(values.data(), at, cudaMemcpyDeviceToHost);
        return values;
    }

  private:
    void copy(void *to, const void *from, cudaMemcpyKind kind) const {
        assert_int_equal(cudaMemcpyAsync(to, from, size * sizeof(T), kind, stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    }

    T *at = nullptr;
    size_t size;
};

template <class... Parameters, class... Arguments>
cudaError_t run(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t shared_bytes,
                const Arguments &...arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

// Checks that there was a finding and that the last one contains these words.
void assert_found(const char *words) {
    assert_int_not_equal(cudasim_findings(), 0);
    if (std::strstr(cudasim_last_finding(), words) == nullptr)
        fail_msg("expected a finding with \"%s\", got: %s", words, cudasim_last_finding());
    cudasim_reset();
}

template <class T> uint16_t bits_of(float value) {
    const T x = value;
    uint16_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

// ---- mma.m16n8k16: "Matrix Fragments for mma.m16n8k16 with floating point type"

// Loads the fragments from whole matrices, element by element, as the manual places them: A is [16, 16], B
// [16, 8], C and D [16, 8], all row-major; one product per block.
template <class T> __global__ void multiply(const uint16_t *a, const uint16_t *b, const float *c, float *d) {
    const unsigned group = threadIdx.x >> 2, in_group = threadIdx.x % 4;
    a += blockIdx.x * 256;
    b += blockIdx.x * 128;
    c += blockIdx.x * 128;
    d += blockIdx.x * 128;
    mma_a of_a = {};
    for (unsigned i = 0; i < 8; i++) {
        const unsigned row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        const unsigned column = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
        of_a.x[i / 2] |= uint32_t(a[row * 16 + column]) << i % 2 * 16;
    }
    mma_b of_b = {};
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
        of_b.x[i / 2] |= uint32_t(b[row * 8 + group]) << i % 2 * 16;
    }
    mma_c of_c;
    unsigned places[4];
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = i < 2 ? group : group + 8;
        places[i] = row * 8 + in_group * 2 + (i & 1);
        of_c.x[i] = c[places[i]];
    }
    mma_m16n8k16<T>(of_c, of_a, of_b);
    for (unsigned i = 0; i < 4; i++)
        d[places[i]] = of_c.x[i];
}

struct products {
    std::vector<float> a, b, c; // n matrices each, one after the other
};

template <class T> std::vector<float> multiply_on_device(const products &p) {
    std::vector<uint16_t> a, b;
    for (float x : p.a)
        a.push_back(bits_of<T>(x));
    for (float x : p.b)
        b.push_back(bits_of<T>(x));
    const device_array<uint16_t> device_a(a), device_b(b);
    const device_array<float> device_c(p.c), device_d(p.c.size());
    const unsigned n = static_cast<unsigned>(p.c.size() / 128);
    assert_int_equal(run(multiply<T>, n, 32, 0, device_a, device_b, device_c, device_d), cudaSuccess);
    return device_d.read();
}

// One product for each place of A, then of B: that place alone holds a 1, while the other matrix and C hold a
// different number in each place. So every element of D shows which elements it was computed from.
template <class T> void test_mma_places(void **) {
    products p = {std::vector<float>((256 + 128) * 256), std::vector<float>((256 + 128) * 128),
                  std::vector<float>((256 + 128) * 128)};
    for (size_t n = 0; n < 256 + 128; n++) {
        for (size_t i = 0; i < 256; i++)
            p.a[n * 256 + i] = n < 256 ? i == n : static_cast<float>(i);
        for (size_t i = 0; i < 128; i++) {
            p.b[n * 128 + i] = n < 256 ? static_cast<float>(i) : i == n - 256;
            p.c[n * 128 + i] = static_cast<float>(1000 * i);
        }
    }
    const std::vector<float> d = multiply_on_device<T>(p);
    for (size_t n = 0; n < 256 + 128; n++)
        for (size_t row = 0; row < 16; row++)
            for (size_t column = 0; column < 8; column++) {
                size_t expected = 1000 * (row * 8 + column);
                if (n < 256)
                    expected += row == n / 16 ? n % 16 * 8 + column : 0;
                else
                    expected += column == (n - 256) % 8 ? row * 16 + (n - 256) / 8 : 0;
                assert_true(d[n * 128 + row * 8 + column] == static_cast<float>(expected));
            }
}

// Small integers: every sum is exact, in any order.
template <class T> void test_mma_sums(void **) {
    products p;
    uint32_t seed = 1;
    auto next = [&] {
        return static_cast<float>(static_cast<int>((seed = seed * 1664525 + 1013904223) >> 28) - 8);
    };
    for (size_t i = 0; i < 20 * 128; i++) {
        p.a.push_back(next());
        p.a.push_back(next());
        p.b.push_back(next());
        p.c.push_back(next());
    }
    const std::vector<float> d = multiply_on_device<T>(p);
    for (size_t i = 0; i < d.size(); i++) {
        const size_t n = i / 128, row = i / 8 % 16, column = i % 8;
        float sum = p.c[i];
        for (size_t k = 0; k < 16; k++)
            sum += p.a[n * 256 + row * 16 + k] * p.b[n * 128 + k * 8 + column];
        assert_true(d[i] == sum);
    }
}

// Products are exact and sums are floats: nothing is rounded to 16 bits, subnormal operands count, and
// infinities and NaNs reach the elements they should and no others.
template <class T> void test_mma_values(void **) {
    const float smallest = sizeof(T) == 2 && bits_of<T>(1) == 0x3c00 ? 0x1p-24f : 0x1p-133f;
    products p = {std::vector<float>(256), std::vector<float>(128), std::vector<float>(128)};
    auto row_times_column = [&](size_t place, float a, float b, float c) {
        p.a[place * 16 + place] = a;
        p.b[place * 8 + place] = b;
        p.c[place * 8 + place] = c;
    };
    const float next = bits_of<T>(1) == 0x3c00 ? 1 + 0x1p-10f : 1 + 0x1p-7f;
    row_times_column(0, next, next, 0);
    row_times_column(1, smallest, 1, 0);
    row_times_column(2, -smallest, 3, 0);
    row_times_column(3, 1, 0x1p-14f, 1024);
    row_times_column(4, 1, 0x1p-14f, 1024 + 0x1p-13f);
    const std::vector<float> d = multiply_on_device<T>(p);
    assert_true(d[0] == next * next);
    assert_true(d[9] == smallest);
    assert_true(d[18] == -3 * smallest);
    assert_true(d[27] == 1024); // an accumulator of 24 bits: half of its last bit is a tie, and 1024 is even
    assert_true(d[1] == 0 && d[8] == 0 && d[120] == 0);

    p = {std::vector<float>(256), std::vector<float>(128, 1), std::vector<float>(128)};
    p.a[3 * 16 + 5] = INFINITY;
    p.a[4 * 16 + 5] = NAN;
    p.a[5 * 16 + 6] = INFINITY;
    p.a[5 * 16 + 7] = -INFINITY;
    const std::vector<float> special = multiply_on_device<T>(p);
    for (size_t i = 0; i < 128; i++) {
        const size_t row = i / 8;
        assert_true(row == 3               ? special[i] == INFINITY
                    : row == 4 || row == 5 ? std::isnan(special[i])
                                           : special[i] == 0);
    }
}

// ---- ldmatrix

constexpr unsigned row_stride = 24; // elements between rows in shared memory: aligned, not dense

__device__ void fill_shared(uint16_t *shared, unsigned n) {
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        shared[i] = static_cast<uint16_t>(i);
    __syncthreads();
}

// Element e of shared memory is e. Matrix m's row r is the row 5 (8 m + r) mod 32 of the tile: rows that
// belong together need not be neighbours.
__global__ void load_matrices(uint32_t *out, bool transposed) {
    uint16_t *shared = dynamic_shared<uint16_t>();
    fill_shared(shared, 32 * row_stride);
    const uint16_t *row = shared + 5 * threadIdx.x % 32 * row_stride + 8;
    uint32_t r[4] = {};
    transposed ? ldmatrix_x4_transposed(r, row) : ldmatrix_x4(r, row);
    for (unsigned i = 0; i < 4; i++)
        out[threadIdx.x * 4 + i] = r[i];
}

unsigned element(unsigned matrix, unsigned row, unsigned column) {
    return 5 * (8 * matrix + row) % 32 * row_stride + 8 + column;
}

// "Each thread in a warp holds a fragment of a row, with thread 0 holding the first": four threads per row,
// two elements each; with .trans the matrix is loaded in column-major format.
void test_ldmatrix(void **) {
    for (int transposed = 0; transposed < 2; transposed++) {
        const device_array<uint32_t> out(32 * 4);
        assert_int_equal(run(load_matrices, 1, 32, 32 * row_stride * 2 + 16, out, transposed != 0),
                         cudaSuccess);
        const std::vector<uint32_t> r = out.read();
        for (unsigned lane = 0; lane < 32; lane++)
            for (unsigned matrix = 0; matrix < 4; matrix++) {
                const unsigned row = lane / 4, first = lane % 4 * 2;
                const unsigned low = transposed ? element(matrix, first, row) : element(matrix, row, first);
                const unsigned high =
                    transposed ? element(matrix, first + 1, row) : element(matrix, row, first + 1);
                assert_int_equal(r[lane * 4 + matrix] & 0xffff, low);
                assert_int_equal(r[lane * 4 + matrix] >> 16, high);
            }
    }
}

// d = A B, as kernels use it: A in shared memory by rows, B by rows or by columns.
template <class T, bool b_by_columns> __global__ void multiply_shared(const T *a, const T *b, float *d) {
    alignas(16) __shared__ T shared_a[16][16];
    alignas(16) __shared__ T shared_b[b_by_columns ? 8 : 16][b_by_columns ? 16 : 8];
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32)
        shared_a[i / 16][i % 16] = a[i];
    for (unsigned i = lane; i < 128; i += 32) {
        if (b_by_columns)
            shared_b[i % 8][i / 8] = b[i];
        else
            shared_b[i / 8][i % 8] = b[i];
    }
    __syncthreads();
    mma_a of_a;
    mma_b of_b;
    mma_c of_c = {};
    ldmatrix_x4(of_a.x, &shared_a[lane % 16][lane / 16 * 8]);
    uint32_t twice[4]; // ldmatrix.x4 loads four matrices: the two of B twice
    if (b_by_columns)
        ldmatrix_x4(twice, &shared_b[lane % 8][lane / 8 % 2 * 8]);
    else
        ldmatrix_x4_transposed(twice, &shared_b[lane % 16][0]);
    of_b = {{twice[2], twice[3]}};
    mma_m16n8k16<T>(of_c, of_a, of_b);
    for (unsigned i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = of_c.x[i];
}

template <class T, bool b_by_columns> void test_ldmatrix_feeds_mma(void **) {
    std::vector<T> a(256), b(128);
    for (size_t i = 0; i < 256; i++)
        a[i] = static_cast<float>(static_cast<int>(i * 7 % 17) - 8);
    for (size_t i = 0; i < 128; i++)
        b[i] = static_cast<float>(static_cast<int>(i * 5 % 13) - 6);
    const device_array<T> device_a(a), device_b(b);
    const device_array<float> out(128);
    assert_int_equal(run(multiply_shared<T, b_by_columns>, 1, 32, 0, device_a, device_b, out), cudaSuccess);
    const std::vector<float> d = out.read();
    for (size_t i = 0; i < 128; i++) {
        float sum = 0;
        for (size_t k = 0; k < 16; k++)
            sum += float(a[i / 8 * 16 + k]) * float(b[k * 8 + i % 8]);
        assert_true(d[i] == sum);
    }
}

// ---- cp.async

constexpr uint32_t not_yet = 0xffffffffu; // the destination's content until the bytes of cp.async arrive

// out[thread] holds the first word of the thread's destination at each stage: three groups in flight, then at
// most one, then none; then with a copy that was never committed, before and after a wait.
__global__ void copy_in_groups(const uint4 *from, uint4 *out) {
    uint4 *shared = dynamic_shared<uint4>() + threadIdx.x * 4;
    for (unsigned i = 0; i < 4; i++)
        shared[i] = make_uint4(7, 7, 7, 7);
    for (unsigned i = 0; i < 3; i++) {
        cp_async_16(&shared[i], &from[threadIdx.x * 4 + i], i != 1);
        cp_async_commit();
    }
    out += threadIdx.x * 5;
    out[0] = make_uint4(shared[0].x, shared[1].x, shared[2].x, shared[3].x);
    cp_async_wait<1>();
    out[1] = make_uint4(shared[0].x, shared[1].x, shared[2].x, shared[3].x);
    cp_async_wait<0>();
    out[2] = make_uint4(shared[0].x, shared[1].x, shared[2].x, shared[3].x);
    cp_async_16(&shared[3], &from[threadIdx.x * 4 + 3], true);
    cp_async_wait<0>();
    out[3] = make_uint4(shared[0].x, shared[1].x, shared[2].x, shared[3].x);
    cp_async_commit();
    cp_async_commit();
    cp_async_wait<1>();
    out[4] = shared[3];
}

std::vector<uint4> numbered(size_t n) {
    std::vector<uint4> values(n);
    for (size_t i = 0; i < n; i++) {
        const unsigned x = static_cast<unsigned>(i * 4);
        values[i] = make_uint4(1000 + x, 1001 + x, 1002 + x, 1003 + x);
    }
    return values;
}

void assert_words(uint4 got, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    if (got.x != x || got.y != y || got.z != z || got.w != w)
        fail_msg("expected %x %x %x %x, got %x %x %x %x", x, y, z, w, got.x, got.y, got.z, got.w);
}

void test_groups_arrive_in_order(void **) {
    if (cudasim_sees_accesses())
        skip(); // reading a destination too early is a finding there: test_read_before_wait
    const unsigned n_threads = 48;
    const device_array<uint4> from(numbered(n_threads * 4)), out(n_threads * 5);
    assert_int_equal(run(copy_in_groups, 1, n_threads, n_threads * 64, from, out), cudaSuccess);
    const std::vector<uint4> got = out.read();
    for (unsigned thread = 0; thread < n_threads; thread++) {
        const uint4 *stages = &got[thread * 5];
        const uint32_t first = 1000 + thread * 16;
        assert_words(stages[0], not_yet, not_yet, not_yet, 7);
        assert_words(stages[1], first, 0, not_yet, 7);
        assert_words(stages[2], first, 0, first + 8, 7);
        assert_words(stages[3], first, 0, first + 8, not_yet); // in no group, so no wait covers it
        assert_words(stages[4], first + 12, first + 13, first + 14, first + 15);
    }
}

// Correct double buffering: two stages, a barrier, and each thread reads what its neighbour copied. Beyond n
// elements it copies zeros without reading the source, where nothing is allocated.
__global__ void copy_and_pass_on(const uint4 *from, uint4 *to, int n) {
    uint4 *shared = dynamic_shared<uint4>();
    const int n_threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    const int n_rounds = (n + n_threads - 1) / n_threads;
    cp_async_16(&shared[thread], &from[thread], thread < n);
    cp_async_commit();
    for (int round = 0; round < n_rounds; round++) {
        const int ahead = (round + 1) * n_threads + thread;
        cp_async_16(&shared[(round + 1) % 2 * n_threads + thread], &from[ahead], ahead < n);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        to[round * n_threads + thread] = shared[round % 2 * n_threads + (thread + 1) % n_threads];
        __syncthreads();
    }
}

void test_double_buffer(void **) {
    const unsigned n_threads = 64, n_rounds = 5, n = n_threads * n_rounds - 30;
    const std::vector<uint4> values = numbered(n);
    const device_array<uint4> from(values), to(n_threads * n_rounds);
    assert_int_equal(run(copy_and_pass_on, 1, n_threads, 2 * n_threads * 16, from, to, static_cast<int>(n)),
                     cudaSuccess);
    const std::vector<uint4> got = to.read();
    for (unsigned i = 0; i < n_threads * n_rounds; i++) {
        const unsigned source = i / n_threads * n_threads + (i + 1) % n_threads;
        const uint4 expected = source < n ? values[source] : make_uint4(0, 0, 0, 0);
        assert_words(got[i], expected.x, expected.y, expected.z, expected.w);
    }
    assert_int_equal(cudasim_findings(), 0);
}

// A source that changes while the copy is in flight is read as late as allowed.
__global__ void change_source(uint4 *from, uint4 *to) {
    uint4 *shared = dynamic_shared<uint4>();
    cp_async_16(shared, from, true);
    cp_async_commit();
    from[0] = make_uint4(1, 2, 3, 4);
    cp_async_wait<0>();
    to[0] = shared[0];
}

void test_source_is_read_late(void **) {
    const device_array<uint4> from(numbered(1)), to(1);
    assert_int_equal(run(change_source, 1, 1, 16, from, to), cudaSuccess);
    assert_words(to.read()[0], 1, 2, 3, 4);
}

// ---- faults

__global__ void read_before_wait(const uint4 *from, uint4 *to) {
    uint4 *shared = dynamic_shared<uint4>();
    shared[threadIdx.x] = make_uint4(0, 0, 0, 0);
    cp_async_16(&shared[threadIdx.x], &from[threadIdx.x], true);
    cp_async_commit();
    to[threadIdx.x] = shared[threadIdx.x];
    cp_async_wait<0>();
}

// A barrier does not order a copy that is still in flight.
__global__ void barrier_before_wait(const uint4 *from, uint4 *to) {
    uint4 *shared = dynamic_shared<uint4>();
    shared[threadIdx.x] = make_uint4(0, 0, 0, 0);
    cp_async_16(&shared[threadIdx.x], &from[threadIdx.x], true);
    cp_async_commit();
    __syncthreads();
    to[threadIdx.x] = shared[threadIdx.x ^ 1];
    __syncthreads();
    cp_async_wait<0>();
}

// Reading early gives neither the old nor the new contents; in the race build it is a finding.
void test_read_before_wait(void **) {
    const device_array<uint4> from(numbered(32)), to(32);
    for (auto kernel : {read_before_wait, barrier_before_wait}) {
        run(kernel, 1, 32, 32 * 16, from, to);
        if (cudasim_sees_accesses())
            assert_found("under way");
        for (const uint4 &got : to.read())
            assert_words(got, not_yet, not_yet, not_yet, not_yet);
    }
}

__global__ void read_without_barrier(const uint4 *from, uint4 *to) {
    uint4 *shared = dynamic_shared<uint4>();
    cp_async_16(&shared[threadIdx.x], &from[threadIdx.x], true);
    cp_async_commit();
    cp_async_wait<0>();
    to[threadIdx.x] = shared[threadIdx.x ^ 1];
}

void test_read_without_barrier(void **) {
    if (!cudasim_sees_accesses())
        skip();
    const device_array<uint4> from(numbered(32)), to(32);
    run(read_without_barrier, 1, 32, 32 * 16, from, to);
    assert_found("race");
}

__global__ void copy_from(const char *from, unsigned to_offset) {
    cp_async_16(dynamic_shared<char>() + to_offset, from, true);
    cp_async_commit();
    cp_async_wait<0>();
}

__global__ void copy_to_global(const uint4 *from, uint4 *to) {
    cp_async_16(to, from, true);
    cp_async_commit();
    cp_async_wait<0>();
}

void test_cp_async_addresses(void **) {
    const device_array<char> from(64);
    const device_array<uint4> to(1);
    run(copy_from, 1, 1, 64, from, 0);
    assert_int_equal(cudasim_findings(), 0);
    run(copy_from, 1, 1, 64, from + 8, 0);
    assert_found("cp.async: the source");
    run(copy_from, 1, 1, 64, from, 4);
    assert_found("cp.async: the destination");
    run(copy_from, 1, 1, 64, from, 64);
    assert_found("byte 64 of dynamic shared memory");
    run(copy_from, 1, 1, 64, from + 64, 0);
    assert_found("past the end");
    run(copy_to_global, 1, 1, 64, reinterpret_cast<uint4 *>(static_cast<char *>(from)), to);
    assert_found("not shared memory");
}

__global__ void load_from(const char *elsewhere, unsigned offset) {
    const char *shared = dynamic_shared<char>();
    fill_shared(dynamic_shared<uint16_t>(), 256);
    uint32_t r[4];
    ldmatrix_x4(r, (elsewhere ? elsewhere : shared) + threadIdx.x * 16 + (threadIdx.x == 9 ? offset : 0));
}

void test_ldmatrix_addresses(void **) {
    const device_array<char> elsewhere(32 * 16);
    const char *none = nullptr;
    run(load_from, 1, 32, 512, none, 0);
    assert_int_equal(cudasim_findings(), 0);
    run(load_from, 1, 32, 512, none, 8);
    assert_found("ldmatrix.x4: the row's address");
    run(load_from, 1, 32, 512, none, 512 - 9 * 16);
    assert_found("byte 512 of dynamic shared memory");
    run(load_from, 1, 32, 512, static_cast<const char *>(elsewhere), 0);
    assert_found("not shared memory");
}

enum absence { lane_left, lane_elsewhere, lane_with_another, warp_too_small };

__global__ void without_a_lane(absence how) {
    const char *row = dynamic_shared<char>() + threadIdx.x * 16;
    fill_shared(dynamic_shared<uint16_t>(), 256);
    uint32_t r[4];
    if (threadIdx.x == 5 && how == lane_left)
        return;
    if (threadIdx.x == 5 && how == lane_elsewhere) {
        __syncthreads();
        return;
    }
    if (threadIdx.x == 5 && how == lane_with_another)
        ldmatrix_x4_transposed(r, row);
    else
        ldmatrix_x4(r, row);
    mma_c d = {};
    mma_m16n8k16<__half>(d, {{r[0], r[1], r[2], r[3]}}, {{r[0], r[1]}});
    __syncthreads();
}

void test_all_lanes_take_part(void **) {
    for (absence how : {lane_left, lane_elsewhere, lane_with_another, warp_too_small}) {
        run(without_a_lane, 1, how == warp_too_small ? 31 : 32, 512, how);
        assert_found("ldmatrix.x4");
    }
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mma_places<__nv_bfloat16>),
        cmocka_unit_test(test_mma_places<__half>),
        cmocka_unit_test(test_mma_sums<__nv_bfloat16>),
        cmocka_unit_test(test_mma_sums<__half>),
        cmocka_unit_test(test_mma_values<__nv_bfloat16>),
        cmocka_unit_test(test_mma_values<__half>),
        cmocka_unit_test(test_ldmatrix),
        cmocka_unit_test((test_ldmatrix_feeds_mma<__nv_bfloat16, false>)),
        cmocka_unit_test((test_ldmatrix_feeds_mma<__nv_bfloat16, true>)),
        cmocka_unit_test((test_ldmatrix_feeds_mma<__half, false>)),
        cmocka_unit_test((test_ldmatrix_feeds_mma<__half, true>)),
        cmocka_unit_test(test_groups_arrive_in_order),
        cmocka_unit_test(test_double_buffer),
        cmocka_unit_test(test_source_is_read_late),
        cmocka_unit_test(test_read_before_wait),
        cmocka_unit_test(test_read_without_barrier),
        cmocka_unit_test(test_cp_async_addresses),
        cmocka_unit_test(test_ldmatrix_addresses),
        cmocka_unit_test(test_all_lanes_take_part),
    };
    return cmocka_run_group_tests(tests, open_stream, close_stream);
}
