// Attention on CUDA cores, forward and backward: fp32 without TF32, and heads of any type that are too wide
// for the tensor-core kernels. A block multiplies tiles of 64 queries and 64 keys in float. It walks the
// head's width in tiles of columns, so every width up to ATTENTION_WIDTH fits in shared memory. Backward
// computes dq in one kernel and dk, dv in another. Each block owns the rows it sums, so no sum depends on the
// order of blocks.
//
// attention.cuh loads the tiles and has the online softmax. The products differ from those of
// attention_tensor.cuh: here a thread multiplies floats from shared memory, there a warp multiplies fragments
// by mma.
#include "kernels/cuda/attention.cuh"

namespace {

// A block has 16 x 16 threads. In a tile of scores, thread (y, x) owns the rows y + 16 r and columns x + 16
// c. Rows of operands in shared memory are DEPTH + 4 floats apart, so that a warp's 16-byte reads of
// different rows hit different banks.
constexpr int TILE = 64;
constexpr int SIDE = 16;
constexpr int THREADS = SIDE * SIDE;
constexpr int OWN = TILE / SIDE;

// Columns of a head that are in shared memory at a time: DEPTH while scores are computed (multiply_rows),
// GROUP while rows are summed (add_rows).
constexpr int DEPTH = 32;
constexpr int DEPTH_STRIDE = DEPTH + 4;
constexpr int GROUP = 64;
constexpr int WEIGHTS_STRIDE = TILE + 4;

struct alignas(16) shared_tiles {
    union {
        struct {
            float a[TILE * DEPTH_STRIDE], b[TILE * DEPTH_STRIDE];
        } operands;
        float rows[TILE * GROUP];
    };
    float weights[TILE * WEIGHTS_STRIDE];
};

// The scores of a tile that this thread owns.
struct scores {
    float x[OWN][OWN];
};

// Each of the block's TILE rows is a weighted sum of a head's rows. These are the elements of the sums that
// thread (y, x) owns: x[r][g] holds columns 64 g + 4 x to 64 g + 4 x + 3 of row y + 16 r. GROUPS is the
// number of groups of 64 columns.
template <int GROUPS> struct row_sums { float x[OWN][GROUPS][4]; };

__device__ inline int own_row(int r) {
    return static_cast<int>(threadIdx.x) / SIDE + SIDE * r;
}

__device__ inline int own_column(int c) {
    return static_cast<int>(threadIdx.x) % SIDE + SIDE * c;
}

__device__ inline float4 load_four(const float *from) {
    return *reinterpret_cast<const float4 *>(from);
}

// Copies COLUMNS columns of TILE rows, from `column` on, to shared memory as floats.
template <int COLUMNS, int STRIDE, class T>
__device__ void load_tile(float *tile, const attention_rows<const T> &from, int column, int D, bool packed) {
    copy_to_tile<copy_upcast, TILE, COLUMNS, STRIDE, THREADS>(tile, from, column, D, packed);
}

// Returns the thread's elements of a b^T: dot products of rows of a with rows of b.
template <class T>
__device__ scores multiply_rows(shared_tiles &shared, const attention_rows<const T> &a,
                                const attention_rows<const T> &b, int D, bool packed) {
    scores sums = {};
    for (int column = 0; column < D; column += DEPTH) {
        __syncthreads(); // all threads have read shared.operands
        load_tile<DEPTH, DEPTH_STRIDE>(shared.operands.a, a, column, D, packed);
        load_tile<DEPTH, DEPTH_STRIDE>(shared.operands.b, b, column, D, packed);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < DEPTH && column + k < D; k += 4) {
            float4 left[OWN], right[OWN];
            for (int i = 0; i < OWN; i++) {
                left[i] = load_four(shared.operands.a + own_row(i) * DEPTH_STRIDE + k);
                right[i] = load_four(shared.operands.b + own_column(i) * DEPTH_STRIDE + k);
            }
            for (int r = 0; r < OWN; r++)
                for (int c = 0; c < OWN; c++) {
                    float &sum = sums.x[r][c];
                    sum += left[r].x * right[c].x;
                    sum += left[r].y * right[c].y;
                    sum += left[r].z * right[c].z;
                    sum += left[r].w * right[c].w;
                }
        }
    }
    return sums;
}

// Adds the product of shared.weights and the n rows in shared.rows to columns 64 g to 64 g + 63 of the
// sums.
template <int GROUPS>
__device__ inline void add_group(const shared_tiles &shared, row_sums<GROUPS> &sums, int g, int n, int D) {
    int column = static_cast<int>(threadIdx.x) % SIDE * 4;
    const float *rows = shared.rows + column;
    if (g * GROUP + column >= D)
        return;
#pragma unroll 1
    for (int j = 0; j < TILE && j < n; j += 4) {
        float4 left[OWN], right[4];
        for (int i = 0; i < OWN; i++)
            left[i] = load_four(shared.weights + own_row(i) * WEIGHTS_STRIDE + j);
        for (int i = 0; i < 4; i++)
            right[i] = load_four(rows + (j + i) * GROUP);
        for (int r = 0; r < OWN; r++) {
            const float weight[4] = {left[r].x, left[r].y, left[r].z, left[r].w};
            for (int i = 0; i < 4; i++) {
                float(&sum)[4] = sums.x[r][g];
                sum[0] += weight[i] * right[i].x;
                sum[1] += weight[i] * right[i].y;
                sum[2] += weight[i] * right[i].z;
                sum[3] += weight[i] * right[i].w;
            }
        }
    }
}

// sums[row] += the sum over j of weights[row][j] * rows[j].
template <int GROUPS, class T>
__device__ void add_rows(shared_tiles &shared, row_sums<GROUPS> &sums, const scores &weights,
                         const attention_rows<const T> &rows, int D, bool packed) {
    __syncthreads(); // all threads have read shared.weights
    for (int r = 0; r < OWN; r++)
        for (int c = 0; c < OWN; c++)
            shared.weights[own_row(r) * WEIGHTS_STRIDE + own_column(c)] = weights.x[r][c];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (g * GROUP < D) {
            __syncthreads(); // all threads have read shared.rows
            load_tile<GROUP, GROUP>(shared.rows, rows, g * GROUP, D, packed);
            __syncthreads();
            add_group(shared, sums, g, rows.n, D);
        }
    }
}

template <class T> struct alignas(4 * sizeof(T)) four { T x[4]; };

// Writes the thread's sums to a head's rows: row r multiplied by factors[r] and rounded to T.
template <int GROUPS, class T>
__device__ void store_rows(const attention_rows<T> &to, const row_sums<GROUPS> &sums,
                           const float (&factors)[OWN], int D, bool packed) {
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        if (own_row(r) >= to.n)
            continue;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            int column = g * GROUP + static_cast<int>(threadIdx.x) % SIDE * 4;
            T *at = to.x + own_row(r) * to.stride + column;
            four<T> values;
            for (int k = 0; k < 4; k++)
                values.x[k] = downcast<T>(sums.x[r][g][k] * factors[r]);
            if (packed && column < D)
                *reinterpret_cast<four<T> *>(at) = values;
            for (int k = 0; k < 4 && !packed; k++)
                if (column + k < D)
                    at[k] = values.x[k];
        }
    }
}

// ---- forward

// Replaces scores by softmax weights, exp(scaled score - shift), and rescales `out`, which was summed with
// the previous shift. Row r of the thread sees the tile's columns [n_hidden[r], n_visible[r]), possibly
// none. The SIDE threads that share a row are adjacent in a warp.
template <bool BOUNDED, int GROUPS>
__device__ void apply_softmax(scores &tile, online_softmax (&rows)[OWN], row_sums<GROUPS> &out, float scale,
                              const int (&n_hidden)[OWN], const int (&n_visible)[OWN]) {
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        for (int c = 0; c < OWN; c++)
            tile.x[r][c] = BOUNDED && own_column(c) < n_hidden[r] ? HIDDEN_SCORE
                           : own_column(c) < n_visible[r]         ? tile.x[r][c] * scale
                                                                  : -INFINITY;
        auto score = [&](int c) -> float & { return tile.x[r][c]; };
        float factor = add_scores<OWN, SIDE>(rows[r], score, 1.0f, [](float x) { return expf(x); });
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            for (int k = 0; k < 4; k++)
                out.x[r][g][k] *= factor;
    }
}

template <class T, int GROUPS, bool BOUNDED>
__global__ void __launch_bounds__(THREADS, GROUPS <= 2 ? 2 : 1)
    forward(attention_forward_args args, float scale, bool packed) {
    __shared__ shared_tiles shared;
    int D = args.D, first = tile_counted_down() * TILE, cached = args.S - args.T;
    const int head = own_head(), kv_head = head / (args.H / args.K);
    attention_rows<const T> q =
        strided_rows<const T>(args.q, args.q_batch_stride, args.q_stride, D, head, first, args.T);
    const first_keys<BOUNDED> starts(args, cached);
    online_softmax rows[OWN];
    row_sums<GROUPS> out = {};
    for (int r = 0; r < OWN; r++)
        rows[r] = {-INFINITY, 0};
    for (int key = starts.tile_of(first, TILE); key < args.S && key < cached + first + TILE; key += TILE) {
        attention_rows<const T> k =
            strided_rows<const T>(args.k, args.k_batch_stride, args.k_stride, D, kv_head, key, args.S);
        attention_rows<const T> v =
            strided_rows<const T>(args.v, args.v_batch_stride, args.v_stride, D, kv_head, key, args.S);
        int n_hidden[OWN], n_visible[OWN];
        for (int r = 0; r < OWN; r++) {
            n_visible[r] = cached + first + own_row(r) + 1 - key;
            n_hidden[r] = starts.of(first + own_row(r)) - key;
        }
        scores tile = multiply_rows(shared, q, k, D, packed);
        apply_softmax<BOUNDED>(tile, rows, out, scale, n_hidden, n_visible);
        add_rows(shared, out, tile, v, D, packed);
    }
    float factors[OWN];
    for (int r = 0; r < OWN; r++) {
        float sum = lanes_sum<SIDE>(rows[r].sum);
        factors[r] = 1 / sum;
        if (args.lse && own_column(0) == 0 && first + own_row(r) < args.T)
            static_cast<float *>(args.lse)[head_offset(args.H, head, args.T) + first + own_row(r)] =
                rows[r].shift + logf(sum);
    }
    store_rows(dense_rows<T>(args.out, args.H, D, head, first, args.T), out, factors, D, packed);
}

// ---- backward

// On entry, dscore holds dp = dout v^T. On return, score holds p = exp(scaled score - lse), or 0 if not
// `visible`, and dscore holds p (dp - delta).
__device__ inline void differentiate(float &score, float &dscore, float scale, float lse, float delta,
                                     bool visible) {
    score = visible ? expf(fmaf(score, scale, -lse)) : 0.0f;
    dscore = score * (dscore - delta);
}

template <bool BOUNDED>
__device__ inline bool is_visible(const first_keys<BOUNDED> &starts, int query, int key) {
    return key <= query && (!BOUNDED || key >= starts.of(query));
}

// row_values: lse or delta of a head's rows from `first` on. row_value: the value of one of these rows; 0
// past the last one.
__device__ inline attention_rows<const float> row_values(const void *values, int H, int head, int T_positions,
                                                         int first) {
    return {static_cast<const float *>(values) + head_offset(H, head, T_positions) + first, 1,
            T_positions - first};
}

__device__ inline float row_value(const attention_rows<const float> &values, int row) {
    return row < values.n ? values.x[row] : 0.0f;
}

template <class T, int GROUPS, bool BOUNDED>
__global__ void __launch_bounds__(THREADS, GROUPS == 1 ? 2 : 1)
    queries_backward(attention_backward_args args, const float *delta, float scale, bool packed) {
    __shared__ shared_tiles shared;
    int D = args.D, n = args.T, first = tile_counted_down() * TILE;
    const int head = own_head(), kv_head = head / (args.H / args.K);
    attention_rows<const T> q =
        strided_rows<const T>(args.q, args.q_batch_stride, args.q_stride, D, head, first, n);
    attention_rows<const T> dout = dense_rows<const T>(args.dout, args.H, D, head, first, n);
    attention_rows<const float> lse = row_values(args.lse, args.H, head, n, first);
    attention_rows<const float> deltas = row_values(delta, args.H, head, n, first);
    const first_keys<BOUNDED> starts(args, 0);
    row_sums<GROUPS> dq = {};
    for (int key = starts.tile_of(first, TILE); key <= first; key += TILE) {
        attention_rows<const T> k =
            strided_rows<const T>(args.k, args.k_batch_stride, args.k_stride, D, kv_head, key, n);
        attention_rows<const T> v =
            strided_rows<const T>(args.v, args.v_batch_stride, args.v_stride, D, kv_head, key, n);
        scores p = multiply_rows(shared, q, k, D, packed);
        scores ds = multiply_rows(shared, dout, v, D, packed);
        for (int r = 0; r < OWN; r++)
            for (int c = 0; c < OWN; c++)
                differentiate(p.x[r][c], ds.x[r][c], scale, row_value(lse, own_row(r)),
                              row_value(deltas, own_row(r)),
                              is_visible(starts, first + own_row(r), key + own_column(c)));
        add_rows(shared, dq, ds, k, D, packed);
    }
    const float factors[OWN] = {scale, scale, scale, scale};
    store_rows(strided_rows<T>(args.dq, args.q_batch_stride, args.q_stride, D, head, first, n), dq, factors,
               D, packed);
}

// Computes dk and dv. Tiles are transposed: rows are keys; columns are queries of all heads that read the
// block's key-value head, one head after another.
//   group   the number of these heads, H / K. It is a parameter, since computing it would take a register
template <class T, int GROUPS, bool BOUNDED>
__global__ void __launch_bounds__(THREADS, GROUPS == 1 ? 2 : 1)
    keys_backward(attention_backward_args args, const float *delta, int group, float scale, bool packed) {
    __shared__ shared_tiles shared;
    int D = args.D, n = args.T, first = static_cast<int>(blockIdx.x) * TILE;
    const int kv_head = own_head();
    const first_keys<BOUNDED> starts(args, 0);
    row_sums<GROUPS> dk = {}, dv = {};
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        // Once a query's document or window begins after the block's last key, no later query sees a key of
        // the block.
        for (int query = first; query < n && !starts.hide(query, first + TILE - 1); query += TILE) {
            attention_rows<const T> k =
                strided_rows<const T>(args.k, args.k_batch_stride, args.k_stride, D, kv_head, first, n);
            attention_rows<const T> v =
                strided_rows<const T>(args.v, args.v_batch_stride, args.v_stride, D, kv_head, first, n);
            attention_rows<const T> q =
                strided_rows<const T>(args.q, args.q_batch_stride, args.q_stride, D, head, query, n);
            attention_rows<const T> dout = dense_rows<const T>(args.dout, args.H, D, head, query, n);
            attention_rows<const float> lse = row_values(args.lse, args.H, head, n, query);
            attention_rows<const float> deltas = row_values(delta, args.H, head, n, query);
            scores p = multiply_rows(shared, k, q, D, packed);
            scores ds = multiply_rows(shared, v, dout, D, packed);
            for (int r = 0; r < OWN; r++)
                for (int c = 0; c < OWN; c++)
                    differentiate(p.x[r][c], ds.x[r][c], scale, row_value(lse, own_column(c)),
                                  row_value(deltas, own_column(c)),
                                  is_visible(starts, query + own_column(c), first + own_row(r)));
            add_rows(shared, dv, p, dout, D, packed);
            add_rows(shared, dk, ds, q, D, packed);
        }
    const float scales[OWN] = {scale, scale, scale, scale}, ones[OWN] = {1, 1, 1, 1};
    store_rows(strided_rows<T>(args.dk, args.k_batch_stride, args.k_stride, D, kv_head, first, n), dk, scales,
               D, packed);
    store_rows(strided_rows<T>(args.dv, args.v_batch_stride, args.v_stride, D, kv_head, first, n), dv, ones,
               D, packed);
}

// ---- launching

template <int GROUPS> struct head_groups { static constexpr int value = GROUPS; };

// Calls f(T(), head_groups<GROUPS>()) for the narrowest kernel that supports heads of D elements. 16-bit
// types always use the widest kernel, since their narrower heads run on tensor cores.
template <class F> enum status with_type_and_groups(enum dtype type, int D, F f) {
    switch (type) {
    case DTYPE_BF16:
        return f(bf16(), head_groups<ATTENTION_WIDTH / GROUP>());
    case DTYPE_F16:
        return f(half(), head_groups<ATTENTION_WIDTH / GROUP>());
    default:
        return D <= GROUP       ? f(float(), head_groups<1>())
               : D <= 2 * GROUP ? f(float(), head_groups<2>())
                                : f(float(), head_groups<ATTENTION_WIDTH / GROUP>());
    }
}

// Like with_or_without_bound, but 16-bit types always use the bounded kernels: unbounded ones would need
// more registers than a thread can have.
template <class T, class Args, class F> enum status with_bound_of(const Args *args, int S, F f) {
    if constexpr (sizeof(T) < sizeof(float))
        return f(with_bound<true>());
    else
        return with_or_without_bound(args, S, f);
}

dim3 grid_of(int n_positions, int n_heads, int B) {
    return dim3(ceil_divide(n_positions, TILE), n_heads, B);
}

} // namespace

enum status attention_forward_on_cores(struct stream *stream, const struct attention_forward_args *args,
                                       bool packed) {
    return with_type_and_groups(args->type, args->D, [=](auto type, auto groups) {
        using T = decltype(type);
        constexpr int n_groups = decltype(groups)::value;
        return with_bound_of<T>(args, args->S, [=](auto bound) {
            constexpr bool BOUNDED = decltype(bound)::value;
            return LAUNCH(stream, (forward<T, n_groups, BOUNDED>), grid_of(args->T, args->H, args->B),
                          dim3(THREADS), 0, *args, attention_scale(args->D), packed);
        });
    });
}

enum status attention_backward_on_cores(struct stream *stream, const struct attention_backward_args *args,
                                        const float *delta, bool packed) {
    return with_type_and_groups(args->type, args->D, [=](auto type, auto groups) {
        using T = decltype(type);
        constexpr int n_groups = decltype(groups)::value;
        float scale = attention_scale(args->D);
        return with_bound_of<T>(args, args->T, [=](auto bound) {
            constexpr bool BOUNDED = decltype(bound)::value;
            TRY(LAUNCH(stream, (queries_backward<T, n_groups, BOUNDED>), grid_of(args->T, args->H, args->B),
                       dim3(THREADS), 0, *args, delta, scale, packed));
            return LAUNCH(stream, (keys_backward<T, n_groups, BOUNDED>), grid_of(args->T, args->K, args->B),
                          dim3(THREADS), 0, *args, delta, args->H / args->K, scale, packed);
        });
    });
}
