// Products of matrices that are no layer's: matrix_product (kernels/ops.h), as products of matmul.h, or by a
// kernel of its own where an element of a symmetric one is computed at a time (isa/symmetric_product.c).
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"
#include "kernels/matrix_batch.h"

static struct tiled_matmul matmul_of(const struct matrix_product_args *args) {
    return (struct tiled_matmul){
        .m = args->rows,
        .n = args->columns,
        .k = args->inner,
        .a = {args->x, args->x_transposed ? 1 : args->inner, args->x_transposed ? args->rows : 1},
        .b = {args->y, args->y_transposed ? 1 : args->columns, args->y_transposed ? args->inner : 1},
        .out = args->out,
        .out_stride = args->columns,
        .residual = args->addend,
        .alpha = (float)args->alpha,
        .beta = (float)args->beta,
        .is_cached = true,
        .type = args->type,
        .out_type = args->type,
    };
}

enum status cpu_matrix_product_workspace(struct device *device, const struct matrix_product_args *args,
                                         size_t *bytes) {
    const struct tiled_matmul matmul = matmul_of(args);
    *bytes = 0;
    if (args->strip > 0) {
        *bytes = cpu_isa_of(device)->symmetric_product_workspace(device, args);
        return STATUS_OK;
    }
    return tiled_matmul_workspace(device, &matmul, bytes);
}

static enum status multiply(struct stream *stream, const struct matrix_product_args *args) {
    const struct tiled_matmul matmul = matmul_of(args);
    assert(args->strip == 0 || (args->x_transposed != args->y_transposed && args->rows == args->columns));
    if (args->strip > 0) {
        cpu_isa_of(stream->device)->symmetric_product(stream, args);
        return STATUS_OK;
    }
    return tiled_matmul_run(stream, &matmul);
}

enum status cpu_matrix_product(struct stream *stream, const struct matrix_product_args *args) {
    for (int i = 0; i < args->n_matrices; i++) {
        const struct matrix_product_args one = matrix_product_of(args, i);
        TRY(multiply(stream, &one));
    }
    return STATUS_OK;
}
