// Matrix operations outside of layers: dividing matrices by their norms, adding to the diagonal, and
// mirroring a block of a symmetric matrix. Each operation processes a batch of matrices and is
// bandwidth-bound. Products are in cublaslt/matrix_product.cu.
#include "kernels/cuda/span.cuh"

namespace {

// ---- the diagonal

// blockIdx.y selects the matrix.
constexpr int DIAGONAL_THREADS = 256;
template <class T>
__global__ void __launch_bounds__(DIAGONAL_THREADS) add_diagonal(T *x, int n, size_t distance, float value) {
    const int i = static_cast<int>(blockIdx.x) * DIAGONAL_THREADS + static_cast<int>(threadIdx.x);
    T *at = x + blockIdx.y * distance + static_cast<size_t>(i) * static_cast<size_t>(n + 1);
    if (i < n)
        *at = downcast<T>(upcast(*at) + value);
}

// ---- normalization

template <class T> struct scale_step {
    T *out;
    const T *x;
    float factor;

    template <int WIDTH> __device__ void at(size_t i) const {
        floats<WIDTH> value = load<WIDTH>(x + i);
        for (int k = 0; k < WIDTH; k++)
            value.x[k] *= factor;
        store_whole(out + i, value);
    }
};

// blockIdx.y selects the matrix. Every thread block of a matrix adds all partial sums of that matrix, with
// one thread, in order.
template <class T, int WIDTH>
__global__ void __launch_bounds__(SPAN_THREADS)
    normalize(T *out, const T *x, const double *partial, size_t n, size_t out_distance, size_t x_distance,
              double epsilon) {
    __shared__ double tile[SPAN_THREADS];
    __shared__ float factor;
    const int n_partial = static_cast<int>((n + SUM_SQUARES_BLOCK - 1) / SUM_SQUARES_BLOCK),
              thread = static_cast<int>(threadIdx.x);
    double sum = 0;
    partial += blockIdx.y * static_cast<size_t>(n_partial);
    for (int first = 0; first < n_partial; first += SPAN_THREADS) {
        const int length = n_partial - first < SPAN_THREADS ? n_partial - first : SPAN_THREADS;
        __syncthreads(); // thread 0 has added the previous tile
        if (thread < length)
            tile[thread] = partial[first + thread];
        __syncthreads();
        for (int i = 0; thread == 0 && i < length; i++)
            sum += tile[i];
    }
    if (thread == 0)
        factor = static_cast<float>(1 / fmax(sqrt(sum), epsilon));
    __syncthreads();
    walk<WIDTH>(scale_step<T>{out + blockIdx.y * out_distance, x + blockIdx.y * x_distance, factor},
                static_cast<size_t>(blockIdx.x) * SPAN_THREADS + threadIdx.x,
                static_cast<size_t>(gridDim.x) * SPAN_THREADS, n);
}

// Returns the number of thread blocks per matrix. All matrices together get about as many as can run at
// once. More would cost time, since every thread block adds up its matrix's partial sums anew.
constexpr int BLOCKS_AT_A_TIME = 8; // thread blocks that a multiprocessor runs at once
int blocks_of_matrix(const struct stream *stream, size_t n, int width, int n_matrices) {
    const int most = ceil_divide(static_cast<size_t>(BLOCKS_AT_A_TIME * processors_of(stream)),
                                 static_cast<size_t>(n_matrices)),
              blocks = span_blocks(stream, n, width);
    return blocks < most ? blocks : most;
}

// ---- mirrored blocks

// The arguments of cuda_mirror, out = x^T. blockIdx.y selects the matrix. blockIdx.x selects a tile of x;
// tiles are counted along the rows.
template <class T> struct mirrored {
    T *out;
    const T *x;
    int rows, columns;
    size_t stride, distance;

    // The first row (x) and column (y) of the thread block's tile, which has SIDE x SIDE elements.
    template <int SIDE> __device__ int2 tile() const {
        const int across = (columns + SIDE - 1) / SIDE, block = static_cast<int>(blockIdx.x);
        return {block / across * SIDE, block % across * SIDE};
    }
    __device__ const T *from(int row, int column) const {
        return x + blockIdx.y * distance + static_cast<size_t>(row) * stride + static_cast<size_t>(column);
    }
    __device__ T *to(int row, int column) const {
        return out + blockIdx.y * distance + static_cast<size_t>(row) * stride + static_cast<size_t>(column);
    }
};

// A thread block transposes a tile in shared memory, so that both reads and writes are along rows. The
// padding spreads a column of the tile over the banks.
constexpr int NARROW_TILE = 32, NARROW_ROWS = 8; // NARROW_ROWS: rows accessed at a time
template <class T>
__global__ void __launch_bounds__(NARROW_TILE *NARROW_ROWS) mirror_narrow(const mirrored<T> of) {
    __shared__ T tile[NARROW_TILE][NARROW_TILE + 1];
    const int2 at = of.template tile<NARROW_TILE>();
    const int lane = static_cast<int>(threadIdx.x) % NARROW_TILE,
              first = static_cast<int>(threadIdx.x) / NARROW_TILE;
    for (int i = first; i < NARROW_TILE && at.x + i < of.rows; i += NARROW_ROWS)
        if (at.y + lane < of.columns)
            tile[i][lane] = *of.from(at.x + i, at.y + lane);
    __syncthreads();
    for (int i = first; i < NARROW_TILE && at.y + i < of.columns; i += NARROW_ROWS)
        if (at.x + lane < of.rows)
            *of.to(at.y + i, at.x + lane) = tile[lane][i];
}

// Returns a 32-bit word of the transposed tile: element (row, column) and, with 16-bit types, (row + 1,
// column).
template <size_t SIZE, int ROW_WORDS>
__device__ inline uint32_t word_of_column(const uint32_t (*tile)[ROW_WORDS], int row, int column) {
    if (SIZE == 4)
        return tile[row][column];
    const uint32_t first = tile[row][column / 2], second = tile[row + 1][column / 2];
    return column % 2 ? first >> 16 | (second & 0xffff0000) : (first & 0xffff) | second << 16;
}

// Does the same as mirror_narrow, with wider tiles and 16-byte accesses. The rows of x and of out must
// consist of whole, aligned 16-byte accesses.
constexpr int WIDE_TILE = 64, WIDE_THREADS = 256;
template <class T> __global__ void __launch_bounds__(WIDE_THREADS) mirror_wide(const mirrored<T> of) {
    constexpr int WORD = 4 / sizeof(T), WIDTH = 4 * WORD, LANES = WIDE_TILE / WIDTH,
                  ROWS = WIDE_THREADS / LANES, ROW_WORDS = WIDE_TILE / WORD + 1;
    __shared__ uint32_t tile[WIDE_TILE][ROW_WORDS];
    const int2 at = of.template tile<WIDE_TILE>();
    const int lane = static_cast<int>(threadIdx.x) % LANES, first = static_cast<int>(threadIdx.x) / LANES;
#pragma unroll
    for (int i = first; i < WIDE_TILE; i += ROWS)
        if (at.x + i < of.rows && at.y + lane * WIDTH < of.columns) {
            const uint4 words = *reinterpret_cast<const uint4 *>(of.from(at.x + i, at.y + lane * WIDTH));
            uint32_t *to = &tile[i][lane * 4];
            to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
        }
    __syncthreads();
#pragma unroll
    for (int i = first; i < WIDE_TILE; i += ROWS)
        if (at.y + i < of.columns && at.x + lane * WIDTH < of.rows) {
            uint32_t words[4];
            for (int k = 0; k < 4; k++)
                words[k] = word_of_column<sizeof(T), ROW_WORDS>(tile, lane * WIDTH + k * WORD, i);
            *reinterpret_cast<uint4 *>(of.to(at.y + i, at.x + lane * WIDTH)) = {words[0], words[1], words[2],
                                                                                words[3]};
        }
}

template <class T> enum status mirror(struct stream *stream, const struct mirror_args *args, bool aligned) {
    const int side = aligned ? WIDE_TILE : NARROW_TILE,
              tiles = ceil_divide(static_cast<size_t>(args->rows), static_cast<size_t>(side)) *
                      ceil_divide(static_cast<size_t>(args->columns), static_cast<size_t>(side));
    const mirrored<T> of = {static_cast<T *>(args->out),
                            static_cast<const T *>(args->x),
                            args->rows,
                            args->columns,
                            args->stride,
                            args->distance};
    return launch("mirror", stream, aligned ? mirror_wide<T> : mirror_narrow<T>,
                  dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(args->n_matrices)),
                  aligned ? WIDE_THREADS : NARROW_TILE * NARROW_ROWS, 0, of);
}

} // namespace

extern "C" enum status cuda_matrix_normalize(struct stream *stream,
                                             const struct matrix_normalize_args *args) {
    const bool aligned = is_aligned(args->out) && is_aligned(args->x) &&
                         (args->out_distance | args->x_distance) * dtype_size(args->type) % 16 == 0;
    if (args->n == 0)
        return STATUS_OK;
    TRY(cuda_sum_squares_of(stream, args->partial, args->x, args->n, args->n_matrices, args->x_distance,
                            args->type));
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        constexpr int width = widest_access<T>();
        const dim3 grid(
            static_cast<unsigned>(blocks_of_matrix(stream, args->n, aligned ? width : 1, args->n_matrices)),
            static_cast<unsigned>(args->n_matrices));
        return launch("matrix_normalize", stream, aligned ? normalize<T, width> : normalize<T, 1>, grid,
                      SPAN_THREADS, 0, static_cast<T *>(args->out), static_cast<const T *>(args->x),
                      args->partial, args->n, args->out_distance, args->x_distance, args->epsilon);
    });
}

extern "C" enum status cuda_matrix_add_diagonal(struct stream *stream,
                                                const struct matrix_add_diagonal_args *args) {
    const dim3 grid(static_cast<unsigned>(ceil_divide(static_cast<size_t>(args->n), DIAGONAL_THREADS)),
                    static_cast<unsigned>(args->n_matrices));
    return with_type(args->type, [&](auto zero) {
        using T = decltype(zero);
        return LAUNCH(stream, add_diagonal<T>, grid, DIAGONAL_THREADS, 0, static_cast<T *>(args->x), args->n,
                      args->distance, static_cast<float>(args->value));
    });
}

extern "C" enum status cuda_mirror(struct stream *stream, const struct mirror_args *args) {
    const size_t lengths =
        args->distance | static_cast<size_t>(args->rows) | static_cast<size_t>(args->columns) | args->stride;
    const bool aligned =
        is_aligned(args->out) && is_aligned(args->x) && lengths * dtype_size(args->type) % 16 == 0;
    return with_type(args->type, [&](auto zero) { return mirror<decltype(zero)>(stream, args, aligned); });
}
