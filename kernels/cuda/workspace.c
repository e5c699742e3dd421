// Formulas for the workspace and the launches of the CUDA backend's operations (workspace.h), and the
// planning device. Nothing here needs a GPU.
#include "kernels/cuda/workspace.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/cuda/cudnn/attention.h"
#include "kernels/device.h"
#include "kernels/matrix.h"

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t divided(size_t n, size_t by) {
    return (n + by - 1) / by;
}

static size_t padded(size_t bytes) {
    return divided(bytes, CUDA_WORKSPACE_ALIGNMENT) * CUDA_WORKSPACE_ALIGNMENT;
}

size_t cuda_product_workspace(const struct cuda_properties *properties, int64_t m, int64_t n) {
    const size_t least = 64 << 10, splits = 16; // fp32 partial sums of up to 16 splits of k
    size_t bytes = splits * sizeof(float) * (size_t)m * (size_t)n;
    return bytes < least ? least : smaller(bytes, properties->max_product_workspace);
}

static size_t occurrences_bytes(int V, int N) {
    size_t tokens = CUDA_TOKEN_OWNERS * divided((size_t)V, CUDA_TOKEN_OWNERS);
    return (CUDA_TOKEN_OWNERS + (size_t)N) * sizeof(int) + tokens * (sizeof(int) + CUDA_OCCURRENCE_BYTES);
}

static size_t embedding_backward_bytes(const struct embedding_backward_args *args) {
    return occurrences_bytes(args->V, args->B * args->T);
}

// ---- norms and rotary embedding

struct norm_division norm_backward_divide(int N, int C, int n_sums, int width) {
    struct norm_division shape;
    size_t warps = divided((size_t)C, (size_t)width * CUDA_WARP);
    shape.row_threads = (int)smaller(warps * CUDA_WARP, NORM_BACKWARD_THREADS);
    size_t row_bytes = (size_t)n_sums * (size_t)C * sizeof(float);
    shape.staged = row_bytes <= NORM_SHARED_BYTES;
    shape.rows = NORM_BACKWARD_THREADS / shape.row_threads;
    if ((size_t)shape.rows * row_bytes > NORM_SHARED_BYTES)
        shape.rows = shape.staged ? (int)(NORM_SHARED_BYTES / row_bytes) : 1;
    shape.blocks = (int)smaller(divided((size_t)N, (size_t)shape.rows), NORM_BLOCKS);
    return shape;
}

// A call accesses 16 bytes at a time if its tensors are aligned, otherwise one element. Plans do not know
// which, so this returns the larger of the two sizes.
static size_t norm_backward_bytes(int N, int C, int n_sums, enum dtype type) {
    int packed = 16 / (int)dtype_size(type);
    size_t blocks = larger((size_t)norm_backward_divide(N, C, n_sums, 1).blocks,
                           (size_t)norm_backward_divide(N, C, n_sums, packed).blocks);
    return blocks * (size_t)n_sums * (size_t)C * sizeof(float);
}

static size_t layernorm_backward_bytes(const struct layernorm_backward_args *args) {
    return norm_backward_bytes(args->N, args->C, 2, args->type);
}

static size_t rmsnorm_backward_bytes(const struct rmsnorm_backward_args *args) {
    return norm_backward_bytes(args->N, args->C, 1, args->type);
}

int cuda_rope_backward_blocks(const struct rope_backward_args *args) {
    const size_t heads_per_block = CUDA_ROPE_THREADS / CUDA_WARP; // a head takes at most a warp
    size_t heads = (size_t)args->B * (size_t)args->T * (size_t)(args->H + args->K);
    return (int)smaller(divided(heads, heads_per_block), NORM_BLOCKS);
}

static size_t rope_backward_bytes(const struct rope_backward_args *args) {
    if (!args->dq_weight && !args->dk_weight)
        return 0;
    return (size_t)cuda_rope_backward_blocks(args) * 2 * (size_t)args->D * sizeof(float);
}

// ---- linear layers

int linear_rows_at_a_time(const struct linear_forward_args *args) {
    const size_t sums_bytes = 4 << 20; // maximum bytes of sums per launch of the epilogue kernel
    size_t rows = sums_bytes / (sizeof(float) * (size_t)args->OC);
    if (linear_sums_in_out(args) || rows >= (size_t)args->N)
        return args->N;
    return rows > 0 ? (int)rows : 1;
}

int linear_partial_sums(const struct linear_backward_args *args) {
    return (int)divided((size_t)args->N, LINEAR_SUMMED_ROWS);
}

struct linear_scratch linear_forward_scratch(const struct cuda_properties *properties,
                                             const struct linear_forward_args *args) {
    size_t sums = sizeof(float) * (size_t)linear_rows_at_a_time(args) * (size_t)args->OC;
    return (struct linear_scratch){.product_bytes = cuda_product_workspace(properties, args->OC, args->N),
                                   .sums_bytes = linear_sums_in_out(args) ? 0 : sums};
}

struct linear_scratch linear_backward_scratch(const struct cuda_properties *properties,
                                              const struct linear_backward_args *args) {
    size_t dx = args->dx ? cuda_product_workspace(properties, args->IC, args->N) : 0;
    size_t dweight = args->dweight ? cuda_product_workspace(properties, args->IC, args->OC) : 0;
    size_t sums = sizeof(float) * (size_t)linear_partial_sums(args) * (size_t)args->OC;
    return (struct linear_scratch){.product_bytes = larger(dx, dweight),
                                   .sums_bytes = args->dbias ? sums : 0};
}

static size_t linear_bytes(struct linear_scratch scratch) {
    return padded(scratch.product_bytes) + padded(scratch.sums_bytes);
}

// ---- any operation

// rope_backward reuses the memory of delta (dout times out, summed per query and head), since it runs after
// the kernels that read delta.
static size_t attention_backward_bytes(const struct attention_backward_args *args) {
    struct rope_backward_args rotations[ATTENTION_ROPE_CALLS];
    size_t bytes = (size_t)args->B * (size_t)args->T * (size_t)args->H * sizeof(float); // delta
    for (int i = attention_rope_backward(args, rotations) - 1; i >= 0; i--)
        bytes = larger(bytes, rope_backward_bytes(&rotations[i]));
    return bytes;
}

// A product in strips needs no more workspace than the whole product.
static size_t matrix_product_bytes(const struct cuda_properties *properties,
                                   const struct matrix_product_args *args) {
    return cuda_product_workspace(properties, args->columns, args->rows);
}

// Each row has two buffers: a pass of the sort writes one and, after the first pass, reads the other.
static size_t sample_bytes(const struct sample_args *args) {
    return 2 * (size_t)args->N * (size_t)args->V * CUDA_CANDIDATE_BYTES;
}

size_t cuda_workspace_bytes(const struct cuda_properties *properties, enum operation operation,
                            const void *args) {
    switch (operation) {
    case OP_embedding_backward:
        return embedding_backward_bytes(args);
    case OP_layernorm_backward:
        return layernorm_backward_bytes(args);
    case OP_rmsnorm_backward:
        return rmsnorm_backward_bytes(args);
    case OP_rope_backward:
        return rope_backward_bytes(args);
    case OP_mix_backward:
        return (size_t)cuda_mix_blocks(args) * CUDA_MIX_SUMS_BYTES;
    case OP_linear_forward:
        return linear_bytes(linear_forward_scratch(properties, args));
    case OP_linear_backward:
        return linear_bytes(linear_backward_scratch(properties, args));
    case OP_matrix_product:
        return matrix_product_bytes(properties, args);
    case OP_attention_backward:
        return attention_backward_bytes(args);
    case OP_sample:
        return sample_bytes(args);
    default:
        return 0;
    }
}

// ---- numbers of launches

// True if cuBLASLt's epilogue computes the activation: GELU with 16-bit results only, squared ReLU never.
// The launch formulas assume that cuBLASLt fuses everything else of an epilogue.
static bool activation_fuses(enum activation activation, enum dtype result) {
    return activation == ACTIVATION_NONE || (activation == ACTIVATION_GELU && result != DTYPE_F32);
}

static int linear_forward_launches(const struct linear_forward_args *args) {
    if (activation_fuses(args->activation, args->out_type))
        return 1;
    if (args->activation == ACTIVATION_RELU_SQUARED && args->pre_activation)
        return 2; // the product into pre_activation, then squared ReLU
    // Each tile of `rows` rows takes two launches: the product and its epilogue.
    int rows = linear_rows_at_a_time(args);
    return 2 * ((args->N + rows - 1) / rows);
}

// The product for dweight also computes the bias gradient, but can only overwrite a tensor with it. If it
// must be added to earlier gradients, another kernel does that. Without the product for dweight, two kernels
// sum dout's columns.
static int linear_backward_launches(const struct linear_backward_args *args) {
    int dx = args->dx ? 1 + (args->pre_activation && !activation_fuses(args->activation, args->type)) : 0;
    int dbias = !args->dbias ? 0 : !args->dweight ? 2 : !args->beta_zero && !args->writes_dbias;
    return dx + (args->dweight ? 1 : 0) + dbias;
}

// Each strip takes one launch, and each but the last takes another to mirror it. Without strips, the
// product is one launch.
static int matrix_product_launches(const struct matrix_product_args *args) {
    const int64_t columns = symmetric_columns(args->columns, args->strip),
                  strips = (args->columns + columns - 1) / columns;
    return (int)(2 * strips - 1);
}

// When attention's kernels rotate the queries, a launch before them rotates the keys.
static int attention_forward_launches(const struct attention_forward_args *args) {
    struct rope_forward_args rotations[ATTENTION_ROPE_CALLS];
    const bool rotates = cuda_attention_rotates(&args->rope, args->kernel, args->type, args->D);
    return 1 + (rotates ? 1 : attention_rope_forward(args, rotations));
}

// One launch for dq, one for dk and dv. On CUDA cores, another launch computes delta (dout times out,
// summed per row) before them. A cuDNN plan counts as one launch, however many kernels it has.
static int attention_backward_launches(const struct attention_backward_args *args, bool by_cudnn) {
    struct rope_backward_args rotations[ATTENTION_ROPE_CALLS];
    const bool rotates = cuda_attention_rotates(&args->rope, args->kernel, args->type, args->D);
    return (by_cudnn                                     ? 1
            : cuda_attends_on_cores(args->type, args->D) ? 3
                                                         : 2) +
           (rotates ? 0 : attention_rope_backward(args, rotations));
}

int cuda_launches(enum operation operation, const void *args, bool by_cudnn) {
    switch (operation) {
    case OP_linear_forward:
        return linear_forward_launches(args);
    case OP_linear_backward:
        return linear_backward_launches(args);
    case OP_matrix_normalize:
        return 2; // sums of squares, then the division
    case OP_matrix_product:
        return matrix_product_launches(args);
    case OP_attention_forward:
        return attention_forward_launches(args);
    case OP_attention_backward:
        return attention_backward_launches(args, by_cudnn);
    case OP_embedding_backward: // counting tokens together with dwpe, then dwte
        return ((const struct embedding_backward_args *)args)->dwte ? 2 : 1;
    default:
        return 1;
    }
}

// ---- a device for planning that needs no GPU, driver, runtime or CUDA in the build: it answers with the
// formulas above, and refuses everything else

// The largest value that any GPU has today, so that no workspace is planned too small.
static const struct cuda_properties largest_gpu = {
    .max_product_workspace = (size_t)32 << 20,
};

static enum status refuse(void) {
    return FAIL(STATUS_UNSUPPORTED, "this device is for planning only: no operation runs on it");
}

#define REFUSED_OPERATION(name)                                                                              \
    static enum status refuse_##name(struct stream *stream, const struct name##_args *args) {                \
        (void)stream, (void)args;                                                                            \
        return refuse();                                                                                     \
    }
OPERATIONS(REFUSED_OPERATION)
#undef REFUSED_OPERATION

static enum status workspace_bytes(struct device *device, enum operation operation, const void *args,
                                   size_t *bytes) {
    struct cudnn_problem problem;
    (void)device;
    *bytes = cuda_workspace_bytes(&largest_gpu, operation, args);
    if (cudnn_problem_of(operation, args, &problem))
        *bytes = larger(*bytes, cudnn_assumed_workspace(&problem));
    return STATUS_OK;
}

// Assumes this project's attention kernels, which take more launches than cuDNN, so that the number is
// never too low. For the same reason, workspace_bytes returns the larger of the two workspaces.
static int launches(struct device *device, enum operation operation, const void *args) {
    (void)device;
    return cuda_launches(operation, args, false);
}

#define PLAN_ENTRY(name) .name = refuse_##name,
static const struct ops plan_ops = {OPERATIONS(PLAN_ENTRY).workspace_bytes = workspace_bytes,
                                    .launches = launches};
#undef PLAN_ENTRY

static enum status refuse_memory(struct device *device, size_t bytes, const char *purpose, void **out) {
    (void)device, (void)bytes, (void)purpose, (void)out;
    return refuse();
}

static void delete_memory(struct device *device, void *memory, size_t bytes) {
    (void)device, (void)memory, (void)bytes; // refuse_memory allocates none
}

static enum status refuse_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream, (void)to, (void)from, (void)bytes;
    return refuse();
}

static enum status refuse_synchronize(struct stream *stream) {
    (void)stream;
    return refuse();
}

static void close_device(struct device *device) {
    free(device);
}

struct device *cuda_device_plan(void) {
    struct device *device = allocate(1, sizeof *device);
    *device = (struct device){.name = "cuda",
                              .description = "a GPU, for planning only",
                              .ops = &plan_ops,
                              .place = REGION_DEVICE,
                              .n_threads = 1,
                              .capability = 90, // 9.0: attention=auto may choose cuDNN
                              .tensor_core_heads = CUDA_ATTENTION_TENSOR_WIDTH,
                              .memory_new = refuse_memory,
                              .memory_delete = delete_memory,
                              .copy = refuse_copy,
                              .synchronize = refuse_synchronize,
                              .close = close_device};
    return device;
}
