// Linear layers: how each operation maps to matrix products (matmul.h), and the gradient of the bias. Few
// rows use a kernel of their own (isa/skinny_gemm.c).
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

static struct tiled_matmul forward_product(const struct linear_forward_args *args) {
    return (struct tiled_matmul){
        .m = args->N,
        .n = args->OC,
        .k = args->IC,
        .a = {args->x, args->IC, 1},
        .b = {args->weight, 1, args->IC}, // transposed
        .out = args->out,
        .out_stride = args->out_stride,
        .pre_activation = args->pre_activation,
        .residual = args->residual,
        .bias = args->bias,
        .alpha = 1,
        .beta = 1,
        .activation = args->activation,
        .type = args->type,
        .out_type = args->out_type,
    };
}

enum status cpu_linear_forward_workspace(struct device *device, const struct linear_forward_args *args,
                                         size_t *bytes) {
    struct tiled_matmul product = forward_product(args);
    *bytes = 0;
    if (args->N > CPU_SKINNY_ROWS)
        return tiled_matmul_workspace(device, &product, bytes);
    *bytes = cpu_isa_of(device)->skinny_gemm_workspace(args);
    return STATUS_OK;
}

enum status cpu_linear_forward(struct stream *stream, const struct linear_forward_args *args) {
    assert(!args->residual || (args->activation == ACTIVATION_NONE && args->out_stride == args->OC));
    assert(args->activation == ACTIVATION_NONE || args->out_stride == args->OC);
    assert(!args->pre_activation || (args->activation != ACTIVATION_NONE && args->out_type == args->type));
    if (args->N <= CPU_SKINNY_ROWS)
        return cpu_isa_of(stream->device)->skinny_gemm_forward(stream, args);
    struct tiled_matmul product = forward_product(args);
    return tiled_matmul_run(stream, &product);
}

static struct tiled_matmul qkv_product(const struct qkv_forward_args *args) {
    struct tiled_matmul product = forward_product(&args->linear);
    product.rope = &args->rope;
    return product;
}

// Few rows are in the cache when all are computed.
static bool rotates_tiles(const struct device *device, const struct tiled_matmul *product) {
    return product->m > CPU_SKINNY_ROWS && tiled_matmul_rotates_evenly(device, product);
}

enum status cpu_qkv_forward_workspace(struct device *device, const struct qkv_forward_args *args,
                                      size_t *bytes) {
    const struct tiled_matmul product = qkv_product(args);
    *bytes = 0;
    return rotates_tiles(device, &product) ? tiled_matmul_workspace(device, &product, bytes)
                                           : cpu_linear_forward_workspace(device, &args->linear, bytes);
}

enum status cpu_qkv_forward(struct stream *stream, const struct qkv_forward_args *args) {
    assert(!args->linear.residual && args->linear.activation == ACTIVATION_NONE);
    assert(args->linear.out_type == args->linear.type && args->linear.out == args->rope.x);
    assert((size_t)args->linear.out_stride == args->rope.x_stride);
    const struct tiled_matmul product = qkv_product(args);
    if (rotates_tiles(stream->device, &product))
        return tiled_matmul_run(stream, &product);
    TRY(cpu_linear_forward(stream, &args->linear));
    return stream->device->ops->rope_forward(stream, &args->rope);
}

static struct tiled_matmul dx_product(const struct linear_backward_args *args) {
    return (struct tiled_matmul){
        .m = args->N,
        .n = args->IC,
        .k = args->OC,
        .a = {args->dout, args->dout_stride, 1},
        .b = {args->weight, args->IC, 1},
        .out = args->dx,
        .out_stride = args->IC,
        .activation_input = args->pre_activation,
        .alpha = 1,
        .activation = args->pre_activation ? args->activation : ACTIVATION_NONE,
        .type = args->type,
        .out_type = args->type,
    };
}

static struct tiled_matmul dweight_product(const struct linear_backward_args *args) {
    return (struct tiled_matmul){
        .m = args->OC,
        .n = args->IC,
        .k = args->N,
        .a = {args->dout, 1, args->dout_stride}, // transposed
        .b = {args->x, args->IC, 1},
        .out = args->dweight,
        .out_stride = args->IC,
        .alpha = 1,
        .weight_gradient = true,
        .accumulate = !args->beta_zero,
        .type = args->type,
        .out_type = DTYPE_F32,
    };
}

enum status cpu_linear_backward_workspace(struct device *device, const struct linear_backward_args *args,
                                          size_t *bytes) {
    struct tiled_matmul dx = dx_product(args), dweight = dweight_product(args);
    *bytes = 0;
    if (args->dx)
        TRY(tiled_matmul_workspace(device, &dx, bytes));
    // The caller sizes the workspace once, for calls with and without beta_zero.
    for (int accumulate = 0; accumulate < 2 && args->dweight; accumulate++) {
        dweight.accumulate = accumulate;
        TRY(tiled_matmul_workspace(device, &dweight, bytes));
    }
    return STATUS_OK;
}

enum status cpu_linear_backward(struct stream *stream, const struct linear_backward_args *args) {
    struct tiled_matmul dx = dx_product(args), dweight = dweight_product(args);
    if (args->dx)
        TRY(tiled_matmul_run(stream, &dx));
    if (args->dweight)
        TRY(tiled_matmul_run(stream, &dweight));
    if (args->dbias)
        cpu_isa_of(stream->device)
            ->add_column_sums(stream, args->dbias, args->dout, args->N, args->OC, args->dout_stride,
                              args->beta_zero || args->writes_dbias, args->type);
    return STATUS_OK;
}
