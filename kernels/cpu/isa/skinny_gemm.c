// Skinny GEMM: linear layers with few rows of input, as in generation. Each weight is read once for all rows;
// the product is bandwidth-bound. bf16 is multiplied without upcasting if the processor has bf16 dot
// products. Otherwise weights are upcast in registers, and x beforehand.
// Determinism: sums are fp32, in an order that depends on IC only. A row's result does not depend on the
// other rows, their number or the number of threads.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/simd.h"

// WEIGHT_TILE: weight rows per tile. With up to STREAM_ROWS rows of x, weight rows are read one at a time
// instead. That reaches full memory bandwidth; tiles reach 0.80 to 0.85 of it.
#define WEIGHT_TILE 4
#define STREAM_ROWS 2

#define ROW_TILE       (VF_WIDTH == 16 ? 6 : 2) // rows of x per register tile
#define OUTPUT_TILE    32                       // outputs per call of the epilogue
#define GRAIN          16                       // a thread's number of outputs is a multiple of this
#define PREFETCH_BYTES 12288                    // prefetch distance in bytes, into the second-level cache

struct skinny_gemm {
    const struct linear_forward_args *args;
    const void *x; // (N, IC) in fp32, or in bf16 if pairs are multiplied
};

// ---- loading and multiplying operands

// Operands are loaded as vectors of fp32 or, if vectors_multiply_pairs(type), as vectors of pairs of bf16.

VF_INLINE size_t step_of(enum dtype type) {
    return vectors_multiply_pairs(type) ? 2 * VF_WIDTH : VF_WIDTH;
}

VF_INLINE vu pairs_at(const void *from, size_t i, size_t n) {
    vu pairs = {0};
    memcpy(&pairs, (const uint16_t *)from + i, n * sizeof(uint16_t));
    return pairs;
}

// Loads n <= step_of(type) elements; the remaining lanes are zero.
VF_INLINE vu load_weight(enum dtype type, const void *weight, size_t i, size_t n) {
    return vectors_multiply_pairs(type) ? pairs_at(weight, i, n) : (vu)vf_get_part(type, weight, i, (int)n);
}

VF_INLINE vu load_x(enum dtype type, const void *x, size_t i, size_t n) {
    return vectors_multiply_pairs(type) ? pairs_at(x, i, n) : (vu)vf_load_part((const float *)x + i, (int)n);
}

VF_INLINE vf add_products(enum dtype type, vu a, vu b, vf sum) {
    return vectors_multiply_pairs(type) ? vf_add_pair_products(a, b, sum) : vf_fma((vf)a, (vf)b, sum);
}

// Adds the products of n terms, from term k on, to total[r][w]. Row w of the weight begins at element
// `index` + w IC, row r of x at element r IC.
VF_INLINE void multiply_step(enum dtype type, const int n_weights, const int n_rows,
                             vf total[ROW_TILE][WEIGHT_TILE], const void *x, const void *weight, size_t index,
                             size_t IC, size_t k, const size_t n) {
    vu weights[WEIGHT_TILE];
    FLAT_LOOP(w, n_weights) {
        size_t at = index + (size_t)w * IC + k;
        __builtin_prefetch((const char *)vf_offset(type, weight, at) + PREFETCH_BYTES, 0, 2);
        weights[w] = load_weight(type, weight, at, n);
    }
    FLAT_LOOP(r, n_rows) {
        vu row = load_x(type, x, (size_t)r * IC + k, n);
        FLAT_LOOP(w, n_weights) {
            total[r][w] = add_products(type, row, weights[w], total[r][w]);
        }
    }
}

// sums[r * OUTPUT_TILE + w] = the dot product of row r of x and row w of the weight.
VF_INLINE void multiply_tile(enum dtype type, const int n_weights, const int n_rows, float *sums,
                             const void *x, const void *weight, size_t index, size_t IC) {
    vf total[ROW_TILE][WEIGHT_TILE];
    FLAT_LOOP(r, n_rows) {
        FLAT_LOOP(w, n_weights) {
            total[r][w] = vf_zero();
        }
    }
    const size_t step = step_of(type);
    size_t k = 0;
    for (; k + step <= IC; k += step)
        multiply_step(type, n_weights, n_rows, total, x, weight, index, IC, k, step);
    if (k < IC)
        multiply_step(type, n_weights, n_rows, total, x, weight, index, IC, k, IC - k);
    FLAT_LOOP(r, n_rows) {
        FLAT_LOOP(w, n_weights) {
            sums[r * OUTPUT_TILE + w] = vf_reduce_add(total[r][w]);
        }
    }
}

// Calls multiply_tile for all rows of x, in tiles of nearly equal height.
VF_INLINE void multiply_rows(enum dtype type, const int n_weights, float *sums,
                             const struct skinny_gemm *gemm, size_t index) {
    size_t N = (size_t)gemm->args->N, IC = (size_t)gemm->args->IC, n_tiles = (N + ROW_TILE - 1) / ROW_TILE;
    size_t x_size = dtype_size(vectors_multiply_pairs(type) ? type : DTYPE_F32);
    for (size_t tile = 0; tile < n_tiles; tile++) {
        size_t r = N * tile / n_tiles, n_rows = N * (tile + 1) / n_tiles - r;
        const void *x = (const char *)gemm->x + r * IC * x_size;
#define TILE(n)                                                                                              \
    if ((n) <= ROW_TILE && n_rows == (n))                                                                    \
    multiply_tile(type, n_weights, (n), sums + r * OUTPUT_TILE, x, gemm->args->weight, index, IC)
        TILE(1);
        TILE(2);
        TILE(3);
        TILE(4);
        TILE(5);
        TILE(6);
#undef TILE
    }
}

// Applies the epilogue to outputs [first, first + n).
static void finish_outputs(const struct linear_forward_args *args, const float *sums, size_t first,
                           size_t n) {
    size_t out_size = dtype_size(args->out_type), size = dtype_size(args->type);
    struct linear_epilogue_args epilogue = {
        .c = sums,
        .alpha = 1,
        .beta = 1,
        .out = (char *)args->out + first * out_size,
        .pre_activation = args->pre_activation ? (char *)args->pre_activation + first * size : NULL,
        .residual = args->residual ? (const char *)args->residual + first * size : NULL,
        .bias = args->bias ? (const char *)args->bias + first * size : NULL,
        .rows = args->N,
        .columns = (int64_t)n,
        .c_stride = OUTPUT_TILE,
        .out_stride = args->out_stride,
        .activation = args->activation,
        .type = args->type,
        .out_type = args->out_type,
    };
    CPU_OP(linear_epilogue)(&epilogue);
}

VF_INLINE void multiply_range(enum dtype type, const struct skinny_gemm *gemm, struct parallel_span range) {
    float sums[CPU_SKINNY_ROWS * OUTPUT_TILE];
    size_t IC = (size_t)gemm->args->IC;
    for (size_t first = range.begin; first < range.end; first += OUTPUT_TILE) {
        size_t n = range.end - first < OUTPUT_TILE ? range.end - first : OUTPUT_TILE, w = 0;
        for (; gemm->args->N > STREAM_ROWS && w + WEIGHT_TILE <= n; w += WEIGHT_TILE)
            multiply_rows(type, WEIGHT_TILE, sums + w, gemm, (first + w) * IC);
        for (; w < n; w++)
            multiply_rows(type, 1, sums + w, gemm, (first + w) * IC);
        finish_outputs(gemm->args, sums, first, n);
    }
}

static bool upcasts_x(const struct linear_forward_args *args) {
    return args->type != DTYPE_F32 && !vectors_multiply_pairs(args->type);
}

size_t CPU_OP(skinny_gemm_workspace)(const struct linear_forward_args *args) {
    return upcasts_x(args) ? (size_t)args->N * (size_t)args->IC * sizeof(float) : 0;
}

static void multiply_span(const void *context, struct parallel_span span) {
    const struct skinny_gemm *gemm = context;
    VF_DISPATCH(gemm->args->type, multiply_range, gemm, span);
}

enum status CPU_OP(skinny_gemm_forward)(struct stream *stream, const struct linear_forward_args *args) {
    struct skinny_gemm gemm = {args, args->x};
    size_t OC = (size_t)args->OC, n_inputs = (size_t)args->N * (size_t)args->IC;
    if (upcasts_x(args)) {
        gemm.x = stream->workspace;
        TRY(CPU_OP(cast)(stream, &(struct cast_args){.out = stream->workspace,
                                                     .x = args->x,
                                                     .n = n_inputs,
                                                     .type = args->type,
                                                     .out_type = DTYPE_F32}));
    }
    cpu_parallel(stream->device, n_inputs * OC, OC, GRAIN, multiply_span, &gemm);
    return STATUS_OK;
}
