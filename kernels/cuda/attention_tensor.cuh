// Code shared by attention's tensor-core kernels, forward and backward: tiles of rows in shared memory, and
// the products of a warp. A warp owns 16 M rows, as M fragments of mma's A, so each fragment of B that it
// loads is used M times. The result of one product, rounded to 16 bits, is the A of the next, so attention
// weights stay in registers.
#ifndef ZERO_KERNELS_CUDA_ATTENTION_TENSOR_CUH
#define ZERO_KERNELS_CUDA_ATTENTION_TENSOR_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch_bounds.cuh"
#include "kernels/cuda/layers/rope.cuh"

constexpr int ATTENTION_WARPS = 4;
constexpr int ATTENTION_THREADS = ATTENTION_WARPS * WARP;
constexpr float LN_2 = 0.693147181f;

// Returns the factor by which scores are scaled, log2(e) / sqrt(D). Softmax weights are then powers of 2
// instead of e.
static inline float attention_log2_scale(int D) {
    return static_cast<float>(1.4426950408889634 / sqrt(static_cast<double>(D)));
}

// The number of elements in shared memory from one row of a tile to the next: an odd multiple of 16 bytes.
// The eight rows of a matrix that ldmatrix loads are then in different banks.
template <int WIDTH> constexpr int TILE_STRIDE = WIDTH + 8;

// ---- tiles: ROWS x WIDTH elements, stride TILE_STRIDE<WIDTH>

// Starts to copy a head's rows to a tile. The copy is complete after cp_async_commit, cp_async_wait and a
// barrier.
template <int ROWS, int WIDTH, class T>
__device__ __forceinline__ void load_tile(T *tile, const attention_rows<const T> &from, int D, bool packed) {
    copy_to_tile<copy_async, ROWS, WIDTH, TILE_STRIDE<WIDTH>, ATTENTION_THREADS>(tile, from, 0, D, packed);
}

// Copies ROWS rows of a tile to a head's rows. Called by one warp, which must itself have written the
// tile's rows.
template <int ROWS, int WIDTH, class T>
__device__ __forceinline__ void store_tile(const attention_rows<T> &to, const T *tile, int D, bool packed) {
    constexpr int STRIDE = TILE_STRIDE<WIDTH>, PACKS = WIDTH / pack<T>::size;
    int lane = static_cast<int>(threadIdx.x) % WARP;
    if (packed) {
#pragma unroll
        for (int i = lane; i < ROWS * PACKS; i += WARP) {
            int row = i / PACKS, column = i % PACKS * pack<T>::size;
            if (row < to.n && column < D)
                store_pack(to.x + row * to.stride + column, load_pack(tile + row * STRIDE + column));
        }
        return;
    }
#pragma unroll 1
    for (int i = lane; i < ROWS * WIDTH; i += WARP) {
        int row = i / WIDTH, column = i % WIDTH;
        if (row < to.n && column < D)
            to.x[row * to.stride + column] = tile[row * STRIDE + column];
    }
}

// ---- rotation (kernels/ops_layers.h: rope_forward)

// Rotates the first n rows of a tile of ROWS rows; `sign` -1 rotates back. Row r has D elements and is at
// position `position` + r. Called by one warp. In a step, each lane rotates PAIRS pairs of elements. Before
// a group of GROUP steps, it loads the cosines and sines of all of them, to overlap the latencies. The
// compiler cannot do that itself, since it may not move a load across a store to the tile.
template <int PAIRS, int GROUP, int ROWS, int WIDTH, class T>
__device__ __forceinline__ void rotate_pairs_of_rows(T *tile, const float *table, int position, int n, int D,
                                                     float sign) {
    constexpr int PARTS = WIDTH / 2 / PAIRS; // parts of a row; a lane rotates one in a step
    const int lane = static_cast<int>(threadIdx.x) % WARP, half_width = D / 2;
    // Calls f(row, first pair) for part i of the tile, counted row after row, if the part is within the n
    // rows and within the head.
    const auto with_part = [=](int i, auto f) {
        const int row = i / PARTS, pair = i % PARTS * PAIRS;
        if (i < ROWS * PARTS && row < n && pair < half_width)
            f(row, pair);
    };
#pragma unroll 1
    for (int begin = lane; begin < ROWS * PARTS; begin += GROUP * WARP) {
        floats<PAIRS> cosines[GROUP] = {}, sines[GROUP] = {};
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            with_part(begin + k * WARP, [&](int row, int pair) {
                load_pair_angles(table + (static_cast<size_t>(position) + row) * D + 2 * pair, cosines[k],
                                 sines[k]);
            });
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            with_part(begin + k * WARP, [&](int row, int pair) {
                T *const at = tile + row * TILE_STRIDE<WIDTH> + pair;
                floats<PAIRS> low = load<PAIRS>(at), high = load<PAIRS>(at + half_width);
                rotate_pairs(low, high, cosines[k], sines[k], sign);
                store(at, low);
                store(at + half_width, high);
            });
    }
}

// Calls rotate_pairs_of_rows, with four pairs per step if `packed`, otherwise one. The calling warp must
// have written the rows itself, or a barrier must have followed the writes. The warp may read the rows
// afterwards.
template <int ROWS, int WIDTH, class T>
__device__ __forceinline__ void rotate_rows(T *tile, const void *table, int position, int n, int D,
                                            bool packed, float sign) {
    constexpr int GROUP = WIDTH == 80 ? 2 : 4; // at width 80, 4 would spill registers on sm_90
    const auto *angles = static_cast<const float *>(table);
    if (packed)
        rotate_pairs_of_rows<4, GROUP, ROWS, WIDTH>(tile, angles, position, n, D, sign);
    else
        rotate_pairs_of_rows<1, 1, ROWS, WIDTH>(tile, angles, position, n, D, sign);
    __syncwarp();
}

// ---- loading fragments; `tile` points to the fragment's first element

template <int WIDTH, class T> __device__ __forceinline__ void load_a(mma_a &a, const T *tile) {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    ldmatrix_x4(a.x, tile + lane % 16 * TILE_STRIDE<WIDTH> + lane / 16 * 8);
}

// Loads two adjacent fragments of B, together 16 x 16. B's columns are the tile's rows.
template <int WIDTH, class T> __device__ __forceinline__ void load_b_of_rows(mma_b (&b)[2], const T *tile) {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    uint32_t x[4];
    ldmatrix_x4(x, tile + (lane % 8 + lane / 16 * 8) * TILE_STRIDE<WIDTH> + lane / 8 % 2 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
}

// Loads two adjacent fragments of B, together 16 x 16. B's rows are the tile's rows.
template <int WIDTH, class T> __device__ __forceinline__ void load_b(mma_b (&b)[2], const T *tile) {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    uint32_t x[4];
    ldmatrix_x4_transposed(x, tile + lane % 16 * TILE_STRIDE<WIDTH> + lane / 16 * 8);
    b[0] = {{x[0], x[1]}};
    b[1] = {{x[2], x[3]}};
}

// ---- products of a warp

// In each 16 x 8 fragment of results, a thread holds two adjacent elements in each of two rows (h = 0, 1).
// fragment_column is the column of the first of the two.
__device__ __forceinline__ int fragment_row(int h) {
    return static_cast<int>(threadIdx.x) % WARP / 4 + 8 * h;
}

__device__ __forceinline__ int fragment_column() {
    return static_cast<int>(threadIdx.x) % 4 * 2;
}

// c = a b^T: the products of each of a's 16 M rows with each of b's N rows.
template <int WIDTH, int M, int N, class T>
__device__ __forceinline__ void multiply_rows(mma_c (&c)[M][N / 8], const T *a, const T *b) {
    constexpr int STRIDE = TILE_STRIDE<WIDTH>;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            c[m][n] = {};
#pragma unroll 2
    for (int k = 0; k < WIDTH; k += 16) {
        mma_a left[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_a<WIDTH>(left[m], a + m * 16 * STRIDE + k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            mma_b right[2];
            load_b_of_rows<WIDTH>(right, b + n * 16 * STRIDE + k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(c[m][2 * n], left[m], right[0]);
                mma_m16n8k16<T>(c[m][2 * n + 1], left[m], right[1]);
            }
        }
    }
}

// Causal masks of a warp's scores: scores that a row must not see become -infinity. With mask_after, row r
// sees columns below n_visible + r. With mask_before, it sees columns from n_hidden + r on.
template <int M, int TILES>
__device__ __forceinline__ void mask_after(mma_c (&scores)[M][TILES], int n_visible) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (8 * n + fragment_column() + i % 2 >= n_visible + 16 * m + fragment_row(i / 2))
                    scores[m][n].x[i] = -INFINITY;
}

template <int M, int TILES>
__device__ __forceinline__ void mask_before(mma_c (&scores)[M][TILES], int n_hidden) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (8 * n + fragment_column() + i % 2 < n_hidden + 16 * m + fragment_row(i / 2))
                    scores[m][n].x[i] = -INFINITY;
}

// Masks for documents and windows: scores of keys before the first one that a query sees become `hidden`.
// Rows are queries from `query` on, columns are keys from `key` on.
template <bool BOUNDED, int M, int TILES>
__device__ __forceinline__ void hide_keys(mma_c (&scores)[M][TILES], const first_keys<BOUNDED> &starts,
                                          int query, int key, float hidden) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int n_hidden = starts.of(query + 16 * m + fragment_row(h)) - key;
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (8 * n + fragment_column() + i < n_hidden)
                        scores[m][n].x[2 * h + i] = hidden;
        }
}

// Like hide_keys, for tiles whose rows are keys and whose columns are queries.
template <bool BOUNDED, int M, int TILES>
__device__ __forceinline__ void hide_from_queries(mma_c (&scores)[M][TILES],
                                                  const first_keys<BOUNDED> &starts, int query, int key,
                                                  float hidden) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int n_hidden = starts.of(query + 8 * n + fragment_column() + i) - key;
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (16 * m + fragment_row(h) < n_hidden)
                        scores[m][n].x[2 * h + i] = hidden;
        }
}

// Rounds two floats to T and packs them into a register, `low` into its lower half.
template <class T> __device__ __forceinline__ uint32_t pair(float low, float high);
template <> __device__ __forceinline__ uint32_t pair<bf16>(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}
template <> __device__ __forceinline__ uint32_t pair<half>(float low, float high) {
    __half2 both = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}

// sums[row] += the sum over j < N of weights[row][j] * b[j], where b[j] is row j of the tile b. The weights
// are rounded to T.
template <int WIDTH, int M, int N, class T>
__device__ __forceinline__ void add_rows(mma_c (&sums)[M][WIDTH / 8], const mma_c (&weights)[M][N / 8],
                                         const T *b) {
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        mma_a left[M];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const mma_c &first = weights[m][2 * k], &second = weights[m][2 * k + 1];
            left[m] = {{pair<T>(first.x[0], first.x[1]), pair<T>(first.x[2], first.x[3]),
                        pair<T>(second.x[0], second.x[1]), pair<T>(second.x[2], second.x[3])}};
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 16; n++) {
            mma_b right[2];
            load_b<WIDTH>(right, b + k * 16 * TILE_STRIDE<WIDTH> + n * 16);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_m16n8k16<T>(sums[m][2 * n], left[m], right[0]);
                mma_m16n8k16<T>(sums[m][2 * n + 1], left[m], right[1]);
            }
        }
    }
}

template <class T> struct alignas(2 * sizeof(T)) two { T x[2]; };

// Multiplies a warp's sums by `factor`, rounds them to T, and writes them to the warp's own rows of a tile.
template <int WIDTH, int M, class T>
__device__ __forceinline__ void put_rows(T *tile, const mma_c (&sums)[M][WIDTH / 8], float factor) {
    __syncwarp(); // the warp has finished reading the tile
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                T *at = tile + (16 * m + fragment_row(h)) * TILE_STRIDE<WIDTH> + 8 * n + fragment_column();
                two<T> values = {{downcast<T>(sums[m][n].x[2 * h] * factor),
                                  downcast<T>(sums[m][n].x[2 * h + 1] * factor)}};
                *reinterpret_cast<two<T> *>(at) = values;
            }
    __syncwarp();
}

// The number of threads that share a row of a fragment, and the sum over these threads. Adjacent threads
// are added first, unlike in lanes_sum.
constexpr int FRAGMENT_ROW_LANES = 4;
__device__ __forceinline__ float fragment_row_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// ---- choosing a kernel by dtype and head dimension

template <int WIDTH> struct head_width { static constexpr int value = WIDTH; };

// Calls f(T(), head_width<WIDTH>()) for the narrowest kernel that supports heads of D elements.
template <class F> enum status with_type_and_width(enum dtype type, int D, F f) {
    auto with_width = [=](auto element) {
        return D <= 32   ? f(element, head_width<32>())
               : D <= 64 ? f(element, head_width<64>())
               : D <= 80 ? f(element, head_width<80>())
               : D <= 96 ? f(element, head_width<96>())
                         : f(element, head_width<ATTENTION_TENSOR_WIDTH>());
    };
    return type == DTYPE_BF16 ? with_width(bf16()) : with_width(half());
}

#endif
