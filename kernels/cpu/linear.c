// Fully connected layers: what each operation asks of oneDNN's matrix products, and the passes around them
// that oneDNN cannot fuse (GELU beside its own input, the bias's gradient) or does not have (bf16 and
// fp16 on older processors: the operands are widened, which changes no product and no sum).
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/product.h"

#define WORKSPACE_ALIGNMENT 256

static struct cpu_device *cpu_of(struct device *device) {
    return (struct cpu_device *)device;
}

// ---- scratch: pieces of the stream's workspace, one after the other. With base NULL it only counts.

struct scratch {
    char *base;
    size_t used;
};

static void *scratch_take(struct scratch *scratch, size_t bytes) {
    void *piece = scratch->base ? scratch->base + scratch->used : NULL;
    scratch->used += (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return piece;
}

// ---- a product in the type that the processor has

static size_t span_of(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    return (size_t)((rows - 1) * row_stride + (columns - 1) * column_stride + 1);
}

static enum status cast(struct stream *stream, const void *from, enum dtype type, void *to,
                        enum dtype out_type, size_t n) {
    struct cast_args args = {.out = to, .x = from, .n = n, .type = type, .out_type = out_type};
    return cpu_of(stream->device)->isa->ops.cast(stream, &args);
}

// The fp32 copies of a narrow product's operands, laid out as they are.
struct widened {
    struct product_shape shape;
    struct product_operands operands;
    size_t a_elements, b_elements, c_elements;
};

static struct widened widened_take(const struct product_shape *shape, struct scratch *scratch) {
    struct widened wide = {.shape = *shape};
    wide.shape.type = DTYPE_F32;
    wide.shape.c_type = DTYPE_F32;
    wide.a_elements = span_of(shape->m, shape->k, shape->a_row, shape->a_column);
    wide.b_elements = span_of(shape->k, shape->n, shape->b_row, shape->b_column);
    wide.c_elements = span_of(shape->m, shape->n, shape->c_row, 1);
    wide.operands.a = scratch_take(scratch, wide.a_elements * sizeof(float));
    wide.operands.b = scratch_take(scratch, wide.b_elements * sizeof(float));
    if (shape->has_bias)
        wide.operands.bias = scratch_take(scratch, (size_t)shape->n * sizeof(float));
    if (shape->finish == PRODUCT_RESIDUAL)
        wide.operands.residual = scratch_take(scratch, (size_t)(shape->m * shape->n) * sizeof(float));
    if (shape->c_type != DTYPE_F32)
        wide.operands.c = scratch_take(scratch, wide.c_elements * sizeof(float));
    return wide;
}

static enum status find_supported(struct product_cache *products, const struct product_shape *shape,
                                  struct product **product) {
    TRY(product_find(products, shape, product));
    char library[32];
    if (!product_is_supported(*product))
        return FAIL(STATUS_UNSUPPORTED, "%s has no %s matrix product for this processor",
                    product_library(library, sizeof library), dtype_name((enum dtype)shape->type));
    return STATUS_OK;
}

static enum status run_widened(struct stream *stream, const struct product_shape *shape,
                               const struct product_operands *operands) {
    struct product_cache *products = cpu_of(stream->device)->products;
    struct scratch scratch = {stream->workspace, 0};
    struct widened wide = widened_take(shape, &scratch);
    struct product *product;
    TRY(find_supported(products, &wide.shape, &product));
    enum dtype type = (enum dtype)shape->type;
    TRY(cast(stream, operands->a, type, (void *)wide.operands.a, DTYPE_F32, wide.a_elements));
    TRY(cast(stream, operands->b, type, (void *)wide.operands.b, DTYPE_F32, wide.b_elements));
    if (shape->has_bias)
        TRY(cast(stream, operands->bias, type, (void *)wide.operands.bias, DTYPE_F32, (size_t)shape->n));
    if (shape->finish == PRODUCT_RESIDUAL)
        TRY(cast(stream, operands->residual, type, (void *)wide.operands.residual, DTYPE_F32,
                 (size_t)(shape->m * shape->n)));
    if (shape->c_type == DTYPE_F32)
        wide.operands.c = operands->c;
    TRY(product_run(products, product, &wide.operands,
                    scratch_take(&scratch, product_workspace_bytes(product))));
    if (shape->c_type == DTYPE_F32)
        return STATUS_OK;
    if (shape->c_row == shape->n)
        return cast(stream, wide.operands.c, DTYPE_F32, operands->c, type, wide.c_elements);
    for (int64_t row = 0; row < shape->m; row++) // what lies between the rows is not ours to write
        TRY(cast(stream, (float *)wide.operands.c + row * shape->c_row, DTYPE_F32,
                 (uint16_t *)operands->c + row * shape->c_row, type, (size_t)shape->n));
    return STATUS_OK;
}

static enum status run(struct stream *stream, const struct product_shape *shape,
                       const struct product_operands *operands) {
    struct product_cache *products = cpu_of(stream->device)->products;
    struct product *product;
    TRY(product_find(products, shape, &product));
    if (!product_is_supported(product) && shape->type != DTYPE_F32)
        return run_widened(stream, shape, operands);
    TRY(find_supported(products, shape, &product));
    return product_run(products, product, operands, stream->workspace);
}

// Raises *bytes to what `run` will take.
static enum status count_workspace(struct device *device, const struct product_shape *shape, size_t *bytes) {
    struct product_cache *products = cpu_of(device)->products;
    struct scratch scratch = {NULL, 0};
    struct product *product;
    TRY(product_find(products, shape, &product));
    if (!product_is_supported(product) && shape->type != DTYPE_F32) {
        struct widened wide = widened_take(shape, &scratch);
        TRY(find_supported(products, &wide.shape, &product));
    } else {
        TRY(find_supported(products, shape, &product));
    }
    scratch_take(&scratch, product_workspace_bytes(product));
    if (scratch.used > *bytes)
        *bytes = scratch.used;
    return STATUS_OK;
}

// ---- forward

static struct product_shape forward_shape(const struct device *device,
                                          const struct linear_forward_args *args) {
    enum product_finish finish = PRODUCT_PLAIN;
    if (args->residual)
        finish = PRODUCT_RESIDUAL;
    else if (args->gelu && !args->pre_gelu)
        finish = PRODUCT_GELU;
    return (struct product_shape){
        .m = args->N,
        .n = args->OC,
        .k = args->IC,
        .a_row = args->IC,
        .a_column = 1,
        .b_row = 1, // the weight, transposed
        .b_column = args->IC,
        .c_row = args->out_stride,
        .type = args->type,
        .c_type = args->out_type,
        .has_bias = args->bias != NULL,
        .finish = finish,
        .n_threads = device->n_threads,
    };
}

enum status cpu_linear_forward_workspace(struct device *device, const struct linear_forward_args *args,
                                         size_t *bytes) {
    struct product_shape shape = forward_shape(device, args);
    *bytes = 0;
    return count_workspace(device, &shape, bytes);
}

enum status cpu_linear_forward(struct stream *stream, const struct linear_forward_args *args) {
    assert(!args->residual || (!args->gelu && args->out_stride == args->OC));
    assert(!args->gelu || args->out_stride == args->OC);
    assert(!args->pre_gelu || (args->gelu && args->out_type == args->type));
    struct product_shape shape = forward_shape(stream->device, args);
    struct product_operands operands = {args->x, args->weight, args->bias, args->residual,
                                        args->pre_gelu ? args->pre_gelu : args->out};
    TRY(run(stream, &shape, &operands));
    if (!args->pre_gelu)
        return STATUS_OK;
    struct gelu_forward_args gelu = {
        .out = args->out, .x = args->pre_gelu, .n = (size_t)args->N * (size_t)args->OC, .type = args->type};
    return cpu_of(stream->device)->isa->ops.gelu_forward(stream, &gelu);
}

// ---- backward

static struct product_shape dx_shape(const struct device *device, const struct linear_backward_args *args) {
    return (struct product_shape){
        .m = args->N,
        .n = args->IC,
        .k = args->OC,
        .a_row = args->dout_stride,
        .a_column = 1,
        .b_row = args->IC,
        .b_column = 1,
        .c_row = args->IC,
        .type = args->type,
        .c_type = args->type,
        .finish = PRODUCT_PLAIN,
        .n_threads = device->n_threads,
    };
}

static struct product_shape dweight_shape(const struct device *device,
                                          const struct linear_backward_args *args) {
    return (struct product_shape){
        .m = args->OC,
        .n = args->IC,
        .k = args->N,
        .a_row = 1, // dout, transposed
        .a_column = args->dout_stride,
        .b_row = args->IC,
        .b_column = 1,
        .c_row = args->IC,
        .type = args->type,
        .c_type = DTYPE_F32,
        .finish = PRODUCT_ACCUMULATE,
        .n_threads = device->n_threads,
    };
}

enum status cpu_linear_backward_workspace(struct device *device, const struct linear_backward_args *args,
                                          size_t *bytes) {
    *bytes = 0;
    if (args->dx) {
        struct product_shape shape = dx_shape(device, args);
        TRY(count_workspace(device, &shape, bytes));
    }
    if (args->dweight) {
        struct product_shape shape = dweight_shape(device, args);
        TRY(count_workspace(device, &shape, bytes));
    }
    return STATUS_OK;
}

enum status cpu_linear_backward(struct stream *stream, const struct linear_backward_args *args) {
    if (args->dx) {
        struct product_shape shape = dx_shape(stream->device, args);
        struct product_operands operands = {.a = args->dout, .b = args->weight, .c = args->dx};
        TRY(run(stream, &shape, &operands));
    }
    if (args->dx && args->pre_gelu) {
        struct gelu_backward_args gelu = {.dx = args->dx,
                                          .dout = args->dx,
                                          .x = args->pre_gelu,
                                          .n = (size_t)args->N * (size_t)args->IC,
                                          .type = args->type};
        TRY(cpu_of(stream->device)->isa->ops.gelu_backward(stream, &gelu));
    }
    if (args->dweight) {
        struct product_shape shape = dweight_shape(stream->device, args);
        struct product_operands operands = {.a = args->dout, .b = args->x, .c = args->dweight};
        TRY(run(stream, &shape, &operands));
    }
    if (args->dbias)
        cpu_of(stream->device)
            ->isa->add_column_sums(stream, args->dbias, args->dout, args->N, args->OC, args->dout_stride,
                                   args->type);
    return STATUS_OK;
}
