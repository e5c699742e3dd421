// Fully connected layers on few rows, as generation has them: each weight is read once for all rows, and
// memory is what they wait for. Weights are widened in registers and sums kept in fp32. A sum's order follows
// from IC alone: a row's result is the same whatever the other rows, their number and the threads are.
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gelu.h"
#include "kernels/cpu/simd.h"

#define WEIGHT_TILE 4                        // rows of the weight that are read side by side
#define ROW_TILE    (VF_WIDTH == 16 ? 6 : 2) // rows of x at most that share them in registers
#define BLOCK       32                       // outputs that are finished together
#define GRAIN       16                       // of a thread's share
#define AHEAD       12288                    // bytes that are asked for ahead, into the second cache

struct few_rows {
    const struct linear_forward_args *args;
    const float *x; // (N, IC)
};

// sums[r * BLOCK + w] = the product of row r of x and row w of the weight, whose first element is `index`.
VF_INLINE void multiply_tile(enum dtype type, const int n_weights, const int n_rows, float *sums,
                             const float *x, const void *weight, size_t index, size_t IC) {
    vf total[ROW_TILE][WEIGHT_TILE];
    for (int r = 0; r < n_rows; r++)
        for (int w = 0; w < n_weights; w++)
            total[r][w] = vf_zero();
    size_t k = 0;
    for (; k + VF_WIDTH <= IC; k += VF_WIDTH) {
        vf weights[WEIGHT_TILE];
        for (int w = 0; w < n_weights; w++) {
            size_t at = index + (size_t)w * IC + k;
            __builtin_prefetch((const char *)vf_offset(type, weight, at) + AHEAD, 0, 2);
            weights[w] = vf_get(type, weight, at);
        }
        for (int r = 0; r < n_rows; r++) {
            vf row = vf_load(x + (size_t)r * IC + k);
            for (int w = 0; w < n_weights; w++)
                total[r][w] = vf_fma(row, weights[w], total[r][w]);
        }
    }
    if (k < IC)
        for (int r = 0; r < n_rows; r++)
            for (int w = 0; w < n_weights; w++)
                total[r][w] =
                    vf_fma(vf_load_part(x + (size_t)r * IC + k, (int)(IC - k)),
                           vf_get_part(type, weight, index + (size_t)w * IC + k, (int)(IC - k)), total[r][w]);
    for (int r = 0; r < n_rows; r++)
        for (int w = 0; w < n_weights; w++)
            sums[r * BLOCK + w] = vf_reduce_add(total[r][w]);
}

// All rows of x, in tiles of about the same height.
VF_INLINE void multiply_rows(enum dtype type, const int n_weights, float *sums, const struct few_rows *few,
                             size_t index) {
    size_t N = (size_t)few->args->N, IC = (size_t)few->args->IC, n_tiles = (N + ROW_TILE - 1) / ROW_TILE;
    for (size_t tile = 0; tile < n_tiles; tile++) {
        size_t r = N * tile / n_tiles, n_rows = N * (tile + 1) / n_tiles - r;
#define TILE(n)                                                                                              \
    if ((n) <= ROW_TILE && n_rows == (n))                                                                    \
    multiply_tile(type, n_weights, (n), sums + r * BLOCK, few->x + r * IC, few->args->weight, index, IC)
        TILE(1);
        TILE(2);
        TILE(3);
        TILE(4);
        TILE(5);
        TILE(6);
#undef TILE
    }
}

// out = gelu?(sums + bias) + residual
VF_INLINE void finish_block(enum dtype type, const struct linear_forward_args *args, const float *sums,
                            size_t first, size_t n) {
    for (size_t r = 0; r < (size_t)args->N; r++)
        for (VF_LOOP(i, lanes, n)) {
            vf value = vf_load_part(sums + r * BLOCK + i, (int)lanes);
            size_t at = r * (size_t)args->out_stride + first + i;
            if (args->bias)
                value += vf_get_part(type, args->bias, first + i, (int)lanes);
            if (args->pre_gelu) { // which GELU is then of
                if (type != DTYPE_F32)
                    value = vf_widen(type, vf_narrow(type, value));
                vf_put_part(type, args->pre_gelu, at, value, (int)lanes);
            }
            if (args->gelu)
                value = vf_gelu(value);
            if (args->residual)
                value += vf_get_part(type, args->residual, at, (int)lanes);
            if (args->out_type == DTYPE_F32)
                vf_store_part((float *)args->out + at, value, (int)lanes);
            else
                vf_put_part(type, args->out, at, value, (int)lanes);
        }
}

VF_INLINE void multiply_range(enum dtype type, const struct few_rows *few, struct cpu_range range) {
    float sums[CPU_FEW_ROWS * BLOCK];
    size_t IC = (size_t)few->args->IC;
    for (size_t first = range.begin; first < range.end; first += BLOCK) {
        size_t n = range.end - first < BLOCK ? range.end - first : BLOCK, w = 0;
        for (; w + WEIGHT_TILE <= n; w += WEIGHT_TILE)
            multiply_rows(type, WEIGHT_TILE, sums + w, few, (first + w) * IC);
        for (; w < n; w++)
            multiply_rows(type, 1, sums + w, few, (first + w) * IC);
        finish_block(type, few->args, sums, first, n);
    }
}

size_t CPU_OP(few_rows_workspace)(const struct linear_forward_args *args) {
    return args->type == DTYPE_F32 ? 0 : (size_t)args->N * (size_t)args->IC * sizeof(float);
}

enum status CPU_OP(few_rows_forward)(struct stream *stream, const struct linear_forward_args *args) {
    struct few_rows few = {args, args->x};
    size_t OC = (size_t)args->OC, n_inputs = (size_t)args->N * (size_t)args->IC;
    if (args->type != DTYPE_F32) {
        few.x = stream->workspace;
        TRY(CPU_OP(cast)(stream, &(struct cast_args){.out = stream->workspace,
                                                     .x = args->x,
                                                     .n = n_inputs,
                                                     .type = args->type,
                                                     .out_type = DTYPE_F32}));
    }
#pragma omp parallel num_threads(cpu_threads(stream->device, n_inputs *OC))
    {
        struct cpu_range range = cpu_thread_range(OC, GRAIN, omp_get_thread_num(), omp_get_num_threads());
        VF_DISPATCH(args->type, multiply_range, &few, range);
    }
    return STATUS_OK;
}
