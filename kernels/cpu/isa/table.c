// The table of operations of one instruction set. Some operations are compiled only once, since vector code
// would not speed them up: most matrix products (matmul.h; oneDNN selects instructions itself), and
// sampling, sums in order and the scalar part of updates (common.c).
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/simd.h"
#include "kernels/matrix.h"

enum status CPU_OP(linear_forward)(struct stream *stream, const struct linear_forward_args *args) {
    assert(!args->residual || (args->activation == ACTIVATION_NONE && args->out_stride == args->OC));
    assert(args->activation == ACTIVATION_NONE || args->out_stride == args->OC);
    assert(!args->pre_activation || (args->activation != ACTIVATION_NONE && args->out_type == args->type));
    return args->N <= CPU_SKINNY_ROWS ? CPU_OP(skinny_gemm_forward)(stream, args)
                                      : cpu_linear_forward(stream, args);
}

enum status CPU_OP(linear_backward)(struct stream *stream, const struct linear_backward_args *args) {
    return cpu_linear_backward(stream, args);
}

enum status CPU_OP(matrix_product)(struct stream *stream, const struct matrix_product_args *args) {
    assert(args->strip == 0 || (args->x_transposed != args->y_transposed && args->rows == args->columns));
    for (int i = 0; i < args->n_matrices; i++) {
        const struct matrix_product_args one = matrix_product_of(args, i);
        if (args->strip > 0)
            CPU_OP(symmetric_product)(stream, &one);
        else
            TRY(cpu_matrix_product(stream, &one));
    }
    return STATUS_OK;
}

enum status CPU_OP(sample)(struct stream *stream, const struct sample_args *args) {
    return cpu_sample(stream, args);
}

enum status CPU_OP(sum)(struct stream *stream, const struct sum_args *args) {
    return cpu_sum(stream, args);
}

enum status CPU_OP(optimizer_spans)(struct stream *stream, const struct optimizer_spans_args *args) {
    return cpu_optimizer_spans(stream, args);
}

enum status CPU_OP(update_decide)(struct stream *stream, const struct update_decide_args *args) {
    return cpu_update_decide(stream, args);
}

static enum status linear_forward_workspace(struct device *device, const struct linear_forward_args *args,
                                            size_t *bytes) {
    if (args->N > CPU_SKINNY_ROWS)
        return cpu_linear_forward_workspace(device, args, bytes);
    *bytes = CPU_OP(skinny_gemm_workspace)(args);
    return STATUS_OK;
}

static enum status matrix_product_workspace(struct device *device, const struct matrix_product_args *args,
                                            size_t *bytes) {
    if (args->strip == 0)
        return cpu_matrix_product_workspace(device, args, bytes);
    *bytes = CPU_OP(symmetric_product_workspace)(device, args);
    return STATUS_OK;
}

static enum status workspace_bytes(struct device *device, enum operation operation, const void *args,
                                   size_t *bytes) {
    *bytes = 0;
    switch (operation) {
    case OP_linear_forward:
        return linear_forward_workspace(device, args, bytes);
    case OP_linear_backward:
        return cpu_linear_backward_workspace(device, args, bytes);
    case OP_matrix_product:
        return matrix_product_workspace(device, args, bytes);
    case OP_layernorm_backward:
        *bytes = CPU_OP(layernorm_backward_workspace)(args);
        return STATUS_OK;
    case OP_rmsnorm_backward:
        *bytes = CPU_OP(rmsnorm_backward_workspace)(args);
        return STATUS_OK;
    case OP_rope_backward:
        *bytes = CPU_OP(rope_backward_workspace)(args);
        return STATUS_OK;
    case OP_mix_backward:
        *bytes = CPU_OP(mix_backward_workspace)(device, args);
        return STATUS_OK;
    case OP_attention_forward:
        *bytes = CPU_OP(attention_forward_workspace)(device, args);
        return STATUS_OK;
    case OP_attention_decode:
        *bytes = CPU_OP(attention_decode_workspace)(device, args);
        return STATUS_OK;
    case OP_attention_backward:
        *bytes = CPU_OP(attention_backward_workspace)(device, args);
        return STATUS_OK;
    case OP_cross_entropy:
        *bytes = CPU_OP(cross_entropy_workspace)(device, args);
        return STATUS_OK;
    case OP_sample:
        *bytes = cpu_sample_workspace(device, args);
        return STATUS_OK;
    default:
        return STATUS_OK; // all other operations need no workspace
    }
}

#define TEXT_OF(name)       #name
#define TEXT_OF_VALUE(name) TEXT_OF(name)
#define ENTRY(name)         .name = CPU_OP(name),

const struct cpu_isa CPU_OP(isa) = {
    .name = TEXT_OF_VALUE(ISA),
    .ops = {OPERATIONS(ENTRY).workspace_bytes = workspace_bytes},
    .add_column_sums = CPU_OP(add_column_sums),
    .linear_upcast = CPU_OP(linear_upcast),
    .linear_epilogue = CPU_OP(linear_epilogue),
#if VF_AMX
    .amx_product_pack = CPU_OP(amx_product_pack),
    .amx_product_run = CPU_OP(amx_product_run),
    .amx_product_left_bytes = CPU_OP(amx_product_left_bytes),
    .amx_product_right_bytes = CPU_OP(amx_product_right_bytes),
#endif
};
