// Internals of the CPU backend: its device, the operations that are compiled once per instruction set
// (kernels/cpu/isa, with -DISA=portable|avx2|avx512|avx512_bf16|amx), and the division of work among threads.
#ifndef ZERO_KERNELS_CPU_CPU_H
#define ZERO_KERNELS_CPU_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "base/parallel.h"
#include "kernels/device.h"
#include "kernels/ops.h"

struct product_cache;

// Copies a tile of an operand of a linear layer to fp32.
struct linear_upcast_args {
    const void *from; // [r] (rows, columns) type, rows from_stride apart
    // [w] (rows, columns), or (columns, rows) if `transposes`, rows to_stride apart. Then to_stride is a
    // multiple of 16, and the rest of each row is filled with zeros.
    float *to;
    int64_t rows, columns, from_stride, to_stride;
    bool transposes;
    enum dtype type;
};

// The epilogue of a linear layer's GEMM on one tile c (rows, columns) in fp32, in one pass. All pointers but
// c and out may be NULL; their terms are then left out.
//   v = alpha c + bias + beta residual
//   with an activation f and no activation_input: v is rounded and stored to pre_activation, if that is not
//   NULL; then v = f(v)
//   with activation_input: v = v f'(activation_input)
//   out = v, or out + v with accumulate
struct linear_epilogue_args {
    const float *c; // [r] rows c_stride apart; may be pre_activation or out where those are fp32
    float alpha, beta;
    void *out;                    // [w] out_type; rows of out and of the next three are out_stride apart
    void *pre_activation;         // [w] type
    const void *residual;         // [r] type
    const void *activation_input; // [r] type
    const void *bias;             // [r] (columns) type
    int64_t rows, columns, c_stride, out_stride;
    enum activation activation;
    bool accumulate;           // add v to out, which is fp32
    enum dtype type, out_type; // out_type: type, or fp32
};

// A bf16 product on AMX: sums = a b, or sums + a b with `add`, for a (m, k) and b (k, n). Strides are in
// elements; one stride of each operand is 1. The sums are dense blocks of AMX_PRODUCT_GRAIN rows and columns,
// one row of blocks after another, and extend past m and n. If keeps_sums is false, only two rows of blocks
// are used, alternately, and each lasts until its epilogue is done.
#define AMX_PRODUCT_GRAIN 32
struct amx_product_args {
    const void *a, *b; // [r]
    int64_t a_row, a_column, b_row, b_column;
    int64_t m, n, k;
    float *sums; // [rw] m x n, both rounded up to the grain; without keeps_sums, only two rows of blocks
    bool keeps_sums, add;
    // Epilogue of the whole m x n product; its c, c_stride, rows and columns are not read. NULL: none.
    const struct linear_epilogue_args *epilogue;
    float *left; // scratch of amx_product_left_bytes(k) bytes
    // b as amx_product_pack packs it: amx_product_right_bytes(k, n) bytes. It serves products of any m.
    float *right;
};

// The table of operations of one instruction set, and helpers for kernels/cpu/matmul.c compiled for it.
struct cpu_isa {
    const char *name;
    struct ops ops;
    // sums[c] += the sum over rows of x[row, c], added in an order that depends on the shape only. With
    // beta_zero the contents of sums are not read.
    void (*add_column_sums)(struct stream *stream, float *sums, const void *x, int n_rows, int n_columns,
                            int stride, bool beta_zero, enum dtype type);
    // linear_upcast and linear_epilogue run on the calling thread.
    void (*linear_upcast)(const struct linear_upcast_args *args);
    void (*linear_epilogue)(const struct linear_epilogue_args *args);
    // An AMX product on the calling thread: amx_product_pack packs b, amx_product_run multiplies a by the
    // packed b. All four are NULL if the instruction set lacks AMX.
    void (*amx_product_pack)(const struct amx_product_args *args);
    void (*amx_product_run)(const struct amx_product_args *args);
    size_t (*amx_product_left_bytes)(int64_t k);
    size_t (*amx_product_right_bytes)(int64_t k, int64_t n);
};

struct cpu_device {
    struct device device; // must be first: a struct device * of this backend points to a struct cpu_device
    const struct cpu_isa *isa;
    struct product_cache **products; // (n_threads) each thread's cache of oneDNN products
};

static inline const struct cpu_isa *cpu_isa_of(const struct device *device) {
    return ((const struct cpu_device *)device)->isa;
}

// ---- division of work among threads

// The number of threads for a call: one if there is too little work to repay waking other threads, otherwise
// all threads of the device.
//   work_elements   roughly the number of elements that the call processes, or of its multiply-adds
static inline int cpu_threads(const struct device *device, size_t work_elements) {
    return work_elements < 16384 ? 1 : device->n_threads;
}

// Runs function(context, span) on cpu_threads(device, work_elements) threads (base/parallel.h). Each thread
// gets a span of [0, n), in multiples of `grain`. The spans depend on n, grain and the number of threads
// only.
typedef void cpu_span_function(const void *context, struct parallel_span span);
void cpu_parallel(const struct device *device, size_t work_elements, size_t n, size_t grain,
                  cpu_span_function *function, const void *context);

// ---- functions of common.c, which is compiled once

enum status cpu_sample(struct stream *stream, const struct sample_args *args) MUST_CHECK;
size_t cpu_sample_workspace(const struct device *device, const struct sample_args *args);
enum status cpu_sum(struct stream *stream, const struct sum_args *args) MUST_CHECK;
enum status cpu_optimizer_spans(struct stream *stream, const struct optimizer_spans_args *args) MUST_CHECK;
enum status cpu_update_decide(struct stream *stream, const struct update_decide_args *args) MUST_CHECK;

extern const struct cpu_isa cpu_portable_isa, cpu_avx2_isa, cpu_avx512_isa, cpu_avx512_bf16_isa, cpu_amx_isa;

// ---- functions that are compiled once per instruction set

// CPU_OP(gelu_forward) expands to cpu_avx512_gelu_forward, and so on.
#ifdef ISA
#    define CPU_PASTE_NAMES(isa, name)    cpu_##isa##_##name
#    define CPU_PASTE_EXPANDED(isa, name) CPU_PASTE_NAMES(isa, name)
#    define CPU_OP(name)                  CPU_PASTE_EXPANDED(ISA, name)
#    define CPU_OPERATION_PROTOTYPE(name)                                                                    \
        enum status CPU_OP(name)(struct stream * stream, const struct name##_args *args) MUST_CHECK;
OPERATIONS(CPU_OPERATION_PROTOTYPE)
#    undef CPU_OPERATION_PROTOTYPE

// Functions NAME_workspace return the bytes of the stream's workspace that a call of NAME needs.
size_t CPU_OP(attention_forward_workspace)(const struct device *device,
                                           const struct attention_forward_args *args);
size_t CPU_OP(attention_decode_workspace)(const struct device *device,
                                          const struct attention_decode_args *args);
size_t CPU_OP(attention_backward_workspace)(const struct device *device,
                                            const struct attention_backward_args *args);
size_t CPU_OP(cross_entropy_workspace)(const struct device *device, const struct cross_entropy_args *args);
size_t CPU_OP(layernorm_backward_workspace)(const struct layernorm_backward_args *args);
size_t CPU_OP(rmsnorm_backward_workspace)(const struct rmsnorm_backward_args *args);
size_t CPU_OP(rope_backward_workspace)(const struct rope_backward_args *args);
size_t CPU_OP(mix_backward_workspace)(const struct device *device, const struct mix_backward_args *args);
// matrix_product with a strip, for one matrix. Whatever the strip's width, only one triangle is computed.
void CPU_OP(symmetric_product)(struct stream *stream, const struct matrix_product_args *args);
size_t CPU_OP(symmetric_product_workspace)(const struct device *device,
                                           const struct matrix_product_args *args);
// rope_forward of some of the B T rows and H + K heads, on the calling thread. The bits are those of the
// whole call.
void CPU_OP(rotate_part)(const struct rope_forward_args *args, struct parallel_span rows,
                         struct parallel_span heads);
void CPU_OP(amx_product_pack)(const struct amx_product_args *args);
void CPU_OP(amx_product_run)(const struct amx_product_args *args);
size_t CPU_OP(amx_product_left_bytes)(int64_t k);
size_t CPU_OP(amx_product_right_bytes)(int64_t k, int64_t n);
void CPU_OP(add_column_sums)(struct stream *stream, float *sums, const void *x, int n_rows, int n_columns,
                             int stride, bool beta_zero, enum dtype type);
void CPU_OP(linear_upcast)(const struct linear_upcast_args *args);
void CPU_OP(linear_epilogue)(const struct linear_epilogue_args *args);
// linear_forward of at most CPU_SKINNY_ROWS rows. A row's bits depend neither on the number of rows nor on
// the number of threads.
enum status CPU_OP(skinny_gemm_forward)(struct stream *stream,
                                        const struct linear_forward_args *args) MUST_CHECK;
size_t CPU_OP(skinny_gemm_workspace)(const struct linear_forward_args *args);
#endif

#endif
