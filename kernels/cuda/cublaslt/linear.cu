// Linear layers. Products run in cuBLASLt (matmul.cuh), with bias, GELU, residual and the gradient of the
// bias fused into the epilogue where cuBLASLt offers that fusion. Otherwise a kernel of this file applies
// the epilogue after the product. cuBLASLt is column-major, so it sees a row-major matrix as its transpose,
// and the operands are exchanged: out^T = weight x^T, dx^T = weight^T dout^T, dweight^T = x^T dout.
#include "kernels/cuda/cublaslt/matmul.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/span.cuh"

#include <assert.h>

namespace {

size_t times(int rows, int columns) {
    return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

// How to find the plan of a product. measure: time the candidate algorithms; true only before the first
// step.
struct search {
    struct device *device;
    bool measure;
};

search ahead(struct device *device) {
    return {device, true};
}

search for_stream(const struct stream *stream) {
    return {stream->device, false};
}

// Chooses the fused problem if may_fuse is set and cuBLASLt offers it, otherwise the plain one. Makes the
// chosen problem's plan.
enum status choose(const search &how, const matmul &plain, const matmul &fused, bool may_fuse,
                   matmul *problem, bool *is_fused) {
    *is_fused = false;
    if (may_fuse)
        TRY(matmul_find(how.device, fused, how.measure, is_fused));
    *problem = *is_fused ? fused : plain;
    bool supported; // if not, matmul_run reports it
    return *is_fused ? STATUS_OK : matmul_find(how.device, plain, how.measure, &supported);
}

// True if cuBLASLt's epilogue can access these tensors. Its kernels access them 16 bytes at a time, and
// cuBLASLt has no attribute that would declare a lower alignment.
bool suits_epilogue(const void *bias, const void *aux) {
    return is_aligned(bias) && is_aligned(aux);
}

// True if cuBLASLt's epilogue may compute the activation. cuBLASLt approximates tanh in GELU: with 16-bit
// operands, results on an H200 are off by up to |x| / 2 times the error of PTX's tanh.approx. That is within
// the rounding error of a 16-bit x, but would show in an fp32 result. cuBLASLt has no squared ReLU.
// With a 16-bit result, cuBLASLt also rounds between the terms of an epilogue, as PyTorch does. It rounds
// the product before it adds the bias, if a residual or GELU is fused as well. It also rounds GELU's
// argument.
bool activation_fuses(enum activation activation, enum dtype result) {
    return activation == ACTIVATION_NONE || (activation == ACTIVATION_GELU && result != DTYPE_F32);
}

// ---- forward

// The epilogue: out = activation(sums + bias) + residual.
template <class T, class Out> struct epilogue_step {
    Out *out;          // rows out_stride apart; may alias `sums`
    const float *sums; // the product; rows sums_stride apart
    T *pre_activation; // dense, like residual; NULL if the call has none
    const T *bias, *residual;
    size_t columns, sums_stride, out_stride;
    activation applied;

    template <int WIDTH> __device__ void at(size_t i) const {
        size_t row = i / columns, column = i - row * columns;
        floats<WIDTH> value = load<WIDTH>(sums + row * sums_stride + column);
        if (bias)
            add(&value, load<WIDTH>(bias + column));
        if (pre_activation)
            store(pre_activation + i, value);
        for (int k = 0; k < WIDTH && applied != ACTIVATION_NONE; k++)
            value.x[k] = activate(applied, value.x[k]);
        if (residual)
            add(&value, load<WIDTH>(residual + i));
        store(out + row * out_stride + column, value);
    }

    template <int WIDTH> static __device__ void add(floats<WIDTH> *sum, const floats<WIDTH> &x) {
        for (int k = 0; k < WIDTH; k++)
            sum->x[k] += x.x[k];
    }
};

// Applies the epilogue to rows [row, row + rows) of the output. `sums` holds these rows of the product.
enum status apply_epilogue(struct stream *stream, const struct linear_forward_args *args, const float *sums,
                           size_t sums_stride, int row, int rows) {
    return with_type(args->type, [&](auto element) {
        return with_type(args->out_type, [&](auto out_element) {
            using T = decltype(element);
            using Out = decltype(out_element);
            constexpr int width = widest_access<float>();
            size_t columns = static_cast<size_t>(args->OC),
                   out_stride = static_cast<size_t>(args->out_stride);
            size_t dense = times(row, args->OC);
            epilogue_step<T, Out> step = {};
            step.out = static_cast<Out *>(args->out) + static_cast<size_t>(row) * out_stride;
            step.sums = sums;
            step.pre_activation =
                args->pre_activation ? static_cast<T *>(args->pre_activation) + dense : nullptr;
            step.bias = static_cast<const T *>(args->bias);
            step.residual = args->residual ? static_cast<const T *>(args->residual) + dense : nullptr;
            step.columns = columns;
            step.sums_stride = sums_stride;
            step.out_stride = out_stride;
            step.applied = args->activation;
            bool aligned = is_aligned(step.out) && is_aligned(sums) && is_aligned(step.pre_activation) &&
                           is_aligned(step.bias) && is_aligned(step.residual) &&
                           (columns | out_stride | sums_stride) % width == 0;
            return over_span<width>("linear_epilogue", stream, step, times(rows, args->OC), aligned);
        });
    });
}

// The product without an epilogue: `rows` rows of x weight^T in fp32.
matmul sums_product(const struct linear_forward_args *args, int rows, const void *sums) {
    matmul problem = matmul_of(args->OC, rows, args->IC, args->type, DTYPE_F32);
    problem.transpose_a = 1;
    problem.a_stride = problem.b_stride = args->IC;
    problem.c_stride = problem.d_stride = linear_sums_in_out(args) ? args->out_stride : args->OC;
    matmul_align(&problem, args->weight, problem.a_stride, args->type);
    matmul_align(&problem, args->x, problem.b_stride, args->type);
    matmul_align(&problem, sums, problem.d_stride, DTYPE_F32);
    return problem;
}

matmul forward_product(const struct linear_forward_args *args) {
    matmul problem = matmul_of(args->OC, args->N, args->IC, args->type, args->out_type);
    problem.transpose_a = 1;
    problem.a_stride = problem.b_stride = args->IC;
    problem.c_stride = problem.d_stride = args->out_stride;
    matmul_align(&problem, args->weight, problem.a_stride, args->type);
    matmul_align(&problem, args->x, problem.b_stride, args->type);
    matmul_align(&problem, args->out, problem.d_stride, args->out_type);
    int epilogue = args->activation == ACTIVATION_GELU
                       ? args->pre_activation ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU
                       : 0;
    if (args->bias)
        epilogue |= CUBLASLT_EPILOGUE_BIAS;
    problem.epilogue = epilogue ? epilogue : CUBLASLT_EPILOGUE_DEFAULT;
    if (args->bias)
        problem.bias_type = args->type;
    if (args->pre_activation) {
        problem.aux_type = args->type;
        problem.aux_stride = args->OC;
    }
    if (args->residual) {
        problem.addend = MATMUL_ADDS_C;
        problem.c_type = args->type;
        problem.c_stride = args->OC;
        matmul_align(&problem, args->residual, problem.c_stride, args->type);
    }
    return problem;
}

struct forward_scratch {
    scratch_layout taken;
    void *workspace;
    float *sums; // for the product; NULL if `out` itself holds it
};

forward_scratch take_forward(struct device *device, const struct linear_forward_args *args, void *base) {
    linear_scratch wanted = linear_forward_scratch(properties_of(device), args);
    forward_scratch scratch = {};
    scratch.taken.base = static_cast<char *>(base);
    scratch.workspace = scratch.taken.take(wanted.product_bytes);
    if (wanted.sums_bytes)
        scratch.sums = static_cast<float *>(scratch.taken.take(wanted.sums_bytes));
    return scratch;
}

enum status choose_forward(const search &how, const struct linear_forward_args *args, const float *sums,
                           matmul *problem, bool *is_fused) {
    bool may_fuse = suits_epilogue(args->bias, args->pre_activation) &&
                    activation_fuses(args->activation, args->out_type);
    return choose(how, sums_product(args, linear_rows_at_a_time(args), sums), forward_product(args), may_fuse,
                  problem, is_fused);
}

// True for squared ReLU with pre_activation: the product writes pre_activation, and another kernel applies
// the activation. Unlike forward_unfused, this keeps the bias fused and computes all rows in one product.
//   product   [out] the call that computes pre_activation; *args if the function returns false
bool is_split(const struct linear_forward_args *args, struct linear_forward_args *product) {
    *product = *args;
    if (args->activation != ACTIVATION_RELU_SQUARED || !args->pre_activation)
        return false;
    product->activation = ACTIVATION_NONE;
    product->out = args->pre_activation;
    product->pre_activation = nullptr;
    return true;
}

enum status apply_relu_squared(struct stream *stream, const struct linear_forward_args *args) {
    struct relu_squared_forward_args activation = {};
    activation.out = args->out;
    activation.x = args->pre_activation;
    activation.n = times(args->N, args->OC);
    activation.type = args->type;
    return cuda_relu_squared_forward(stream, &activation);
}

// Computes the product, then applies the epilogue, for linear_rows_at_a_time rows at a time.
enum status forward_unfused(struct stream *stream, const struct linear_forward_args *args,
                            const forward_scratch &scratch) {
    int step = linear_rows_at_a_time(args);
    for (int row = 0; row < args->N; row += step) {
        int rows = args->N - row < step ? args->N - row : step;
        float *sums = scratch.sums ? scratch.sums : static_cast<float *>(args->out);
        const matmul problem = sums_product(args, rows, sums);
        matmul_operands operands = {};
        operands.a = args->weight;
        operands.b = static_cast<const char *>(args->x) + times(row, args->IC) * dtype_size(args->type);
        operands.d = sums;
        TRY(matmul_run(stream, problem, operands, scratch.workspace));
        TRY(apply_epilogue(stream, args, sums, static_cast<size_t>(problem.d_stride), row, rows));
    }
    return STATUS_OK;
}

} // namespace

extern "C" enum status cuda_linear_forward_prepare(struct device *device,
                                                   const struct linear_forward_args *args) {
    matmul problem;
    bool is_fused;
    struct linear_forward_args product;
    if (is_split(args, &product))
        args = &product;
    return choose_forward(ahead(device), args,
                          linear_sums_in_out(args) ? static_cast<float *>(args->out) : nullptr, &problem,
                          &is_fused);
}

extern "C" enum status cuda_linear_forward(struct stream *stream, const struct linear_forward_args *args) {
    assert(!args->residual || (args->activation == ACTIVATION_NONE && args->out_stride == args->OC));
    assert(args->activation == ACTIVATION_NONE || args->out_stride == args->OC);
    assert(!args->pre_activation || (args->activation != ACTIVATION_NONE && args->out_type == args->type));
    struct linear_forward_args product;
    if (is_split(args, &product)) {
        TRY(cuda_linear_forward(stream, &product));
        return apply_relu_squared(stream, args);
    }
    forward_scratch scratch = take_forward(stream->device, args, stream->workspace);
    assert(scratch.taken.used <= stream->workspace_bytes);
    matmul problem;
    bool is_fused;
    TRY(choose_forward(for_stream(stream), args,
                       scratch.sums ? scratch.sums : static_cast<float *>(args->out), &problem, &is_fused));
    if (!is_fused)
        return forward_unfused(stream, args, scratch);
    matmul_operands operands = {};
    operands.a = args->weight;
    operands.b = args->x;
    operands.c = args->residual;
    operands.d = args->out;
    operands.bias = const_cast<void *>(args->bias);
    operands.aux = args->pre_activation;
    return matmul_run(stream, problem, operands, scratch.workspace);
}

// ---- backward

namespace {

// Column sums in two kernels. In column_sums, a block sums each column of a tile of LINEAR_SUMMED_ROWS rows
// and WARP * WIDTH columns; its warps take rows in turn. add_partial_sums then adds the sums of all tiles
// of a column. The order of summation depends on the sizes only.
constexpr int SUMMING_WARPS = 8;

template <class T, int WIDTH>
__global__ void __launch_bounds__(WARP *SUMMING_WARPS)
    column_sums(float *partial, const T *x, int rows, int columns, size_t stride) {
    constexpr int block_columns = WARP * WIDTH;
    static_assert(block_columns <= WARP * SUMMING_WARPS, "one thread per column for the last sum");
    __shared__ float sums[SUMMING_WARPS][block_columns];
    int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
    int first = static_cast<int>(blockIdx.x) * block_columns, column = first + lane * WIDTH;
    int begin = static_cast<int>(blockIdx.y) * LINEAR_SUMMED_ROWS;
    int end = rows - begin < LINEAR_SUMMED_ROWS ? rows : begin + LINEAR_SUMMED_ROWS;
    floats<WIDTH> sum = {};
    if (column < columns)
        for (int row = begin + warp; row < end; row += SUMMING_WARPS) {
            floats<WIDTH> value = load<WIDTH>(x + static_cast<size_t>(row) * stride + column);
            for (int k = 0; k < WIDTH; k++)
                sum.x[k] += value.x[k];
        }
    for (int k = 0; k < WIDTH; k++)
        sums[warp][lane * WIDTH + k] = sum.x[k];
    __syncthreads();
    int mine = warp * WARP + lane;
    if (mine >= block_columns || first + mine >= columns)
        return;
    float total = 0;
    for (int i = 0; i < SUMMING_WARPS; i++)
        total += sums[i][mine];
    partial[static_cast<size_t>(blockIdx.y) * static_cast<size_t>(columns) + first + mine] = total;
}

constexpr int ADDING_THREADS = 256;

__global__ void __launch_bounds__(ADDING_THREADS)
    add_partial_sums(float *out, const float *partial, int n_partial, int columns, bool beta_zero) {
    int column = static_cast<int>(blockIdx.x) * ADDING_THREADS + static_cast<int>(threadIdx.x);
    if (column >= columns)
        return;
    float total = 0;
    for (int i = 0; i < n_partial; i++)
        total += partial[static_cast<size_t>(i) * static_cast<size_t>(columns) + column];
    out[column] = beta_zero ? total : out[column] + total;
}

bool writes_dbias(const struct linear_backward_args *args) {
    return args->beta_zero || args->writes_dbias;
}

enum status add_to_dbias(struct stream *stream, const struct linear_backward_args *args, const float *partial,
                         int n_partial) {
    return LAUNCH(stream, add_partial_sums, ceil_divide(static_cast<size_t>(args->OC), ADDING_THREADS),
                  ADDING_THREADS, 0, static_cast<float *>(args->dbias), partial, n_partial, args->OC,
                  writes_dbias(args));
}

enum status sum_columns(struct stream *stream, const struct linear_backward_args *args, float *partial) {
    TRY(with_type(args->type, [&](auto element) {
        using T = decltype(element);
        constexpr int widest = widest_access<T>();
        bool aligned = is_aligned(args->dout) && (args->dout_stride | args->OC) % widest == 0;
        size_t block_columns = static_cast<size_t>(WARP) * (aligned ? widest : 1);
        dim3 grid(static_cast<unsigned>(ceil_divide(static_cast<size_t>(args->OC), block_columns)),
                  static_cast<unsigned>(linear_partial_sums(args)));
        return LAUNCH(stream, (aligned ? column_sums<T, widest> : column_sums<T, 1>), grid,
                      dim3(WARP, SUMMING_WARPS), 0, partial, static_cast<const T *>(args->dout), args->N,
                      args->OC, static_cast<size_t>(args->dout_stride));
    }));
    return add_to_dbias(stream, args, partial, linear_partial_sums(args));
}

matmul dx_product(const struct linear_backward_args *args) {
    matmul problem = matmul_of(args->IC, args->N, args->OC, args->type, args->type);
    problem.a_stride = args->IC;
    problem.b_stride = args->dout_stride;
    problem.c_stride = problem.d_stride = args->IC;
    matmul_align(&problem, args->weight, problem.a_stride, args->type);
    matmul_align(&problem, args->dout, problem.b_stride, args->type);
    matmul_align(&problem, args->dx, problem.d_stride, args->type);
    return problem;
}

matmul dweight_product(const struct linear_backward_args *args) {
    matmul problem = matmul_of(args->IC, args->OC, args->N, args->type, DTYPE_F32);
    problem.transpose_b = 1;
    problem.a_stride = args->IC;
    problem.b_stride = args->dout_stride;
    problem.c_stride = problem.d_stride = args->IC;
    problem.addend = args->beta_zero ? MATMUL_ADDS_NOTHING : MATMUL_ADDS_D;
    matmul_align(&problem, args->x, problem.a_stride, args->type);
    matmul_align(&problem, args->dout, problem.b_stride, args->type);
    matmul_align(&problem, args->dweight, problem.d_stride, DTYPE_F32);
    return problem;
}

enum status choose_dx(const search &how, const struct linear_backward_args *args, matmul *problem,
                      bool *is_fused) {
    matmul plain = dx_product(args), fused = plain;
    fused.epilogue = CUBLASLT_EPILOGUE_DGELU;
    fused.aux_stride = args->IC;
    bool may_fuse = args->pre_activation && activation_fuses(args->activation, args->type) &&
                    suits_epilogue(nullptr, args->pre_activation);
    return choose(how, plain, fused, may_fuse, problem, is_fused);
}

enum status choose_dweight(const search &how, const struct linear_backward_args *args, matmul *problem,
                           bool *is_fused) {
    matmul plain = dweight_product(args), fused = plain;
    fused.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    bool may_fuse = args->dbias && suits_epilogue(writes_dbias(args) ? args->dbias : nullptr, nullptr);
    return choose(how, plain, fused, may_fuse, problem, is_fused);
}

struct backward_scratch {
    scratch_layout taken;
    void *workspace;
    float *partial; // (n, OC) partial column sums of dout; n: 1 if fused, otherwise linear_partial_sums
};

backward_scratch take_backward(struct device *device, const struct linear_backward_args *args, void *base) {
    linear_scratch wanted = linear_backward_scratch(properties_of(device), args);
    backward_scratch scratch = {};
    scratch.taken.base = static_cast<char *>(base);
    scratch.workspace = scratch.taken.take(wanted.product_bytes);
    if (wanted.sums_bytes)
        scratch.partial = static_cast<float *>(scratch.taken.take(wanted.sums_bytes));
    return scratch;
}

// Multiplies dx by f'(pre_activation), where f is the activation. backward: the operation that computes f's
// gradient.
template <class Args>
enum status multiply_by_slope(struct stream *stream, const struct linear_backward_args *args,
                              enum status (*backward)(struct stream *, const Args *)) {
    Args call = {};
    call.dx = args->dx;
    call.dout = args->dx;
    call.x = args->pre_activation;
    call.n = times(args->N, args->IC);
    call.type = args->type;
    return backward(stream, &call);
}

enum status backward_dx(struct stream *stream, const struct linear_backward_args *args, void *workspace) {
    matmul problem;
    bool is_fused;
    TRY(choose_dx(for_stream(stream), args, &problem, &is_fused));
    matmul_operands operands = {};
    operands.a = args->weight;
    operands.b = args->dout;
    operands.d = args->dx;
    operands.aux = const_cast<void *>(args->pre_activation);
    TRY(matmul_run(stream, problem, operands, workspace));
    if (is_fused || !args->pre_activation)
        return STATUS_OK;
    return args->activation == ACTIVATION_GELU
               ? multiply_by_slope<gelu_backward_args>(stream, args, cuda_gelu_backward)
               : multiply_by_slope<relu_squared_backward_args>(stream, args, cuda_relu_squared_backward);
}

// Computes dweight and, if it is wanted and the product's epilogue offers it, the gradient of the bias.
//   has_dbias   [out] true if the gradient of the bias was computed too
enum status backward_dweight(struct stream *stream, const struct linear_backward_args *args,
                             const backward_scratch &scratch, bool *has_dbias) {
    matmul problem;
    TRY(choose_dweight(for_stream(stream), args, &problem, has_dbias));
    matmul_operands operands = {};
    operands.a = args->x;
    operands.b = args->dout;
    operands.d = args->dweight;
    // The epilogue overwrites its output, even if the product is added to dweight. So a bias gradient that
    // must be added goes to scratch memory first.
    operands.bias = writes_dbias(args) ? static_cast<float *>(args->dbias) : scratch.partial;
    TRY(matmul_run(stream, problem, operands, scratch.workspace));
    return *has_dbias && !writes_dbias(args) ? add_to_dbias(stream, args, scratch.partial, 1) : STATUS_OK;
}

} // namespace

extern "C" enum status cuda_linear_backward_prepare(struct device *device,
                                                    const struct linear_backward_args *args) {
    matmul problem;
    bool is_fused;
    if (args->dx)
        TRY(choose_dx(ahead(device), args, &problem, &is_fused));
    // The first micro-batch's call has beta = 0 and later calls accumulate, so both plans are needed.
    linear_backward_args other = *args;
    other.beta_zero = !args->beta_zero;
    if (args->dweight)
        TRY(choose_dweight(ahead(device), &other, &problem, &is_fused));
    return args->dweight ? choose_dweight(ahead(device), args, &problem, &is_fused) : STATUS_OK;
}

extern "C" enum status cuda_linear_backward(struct stream *stream, const struct linear_backward_args *args) {
    backward_scratch scratch = take_backward(stream->device, args, stream->workspace);
    assert(scratch.taken.used <= stream->workspace_bytes);
    bool has_dbias = false;
    if (args->dx)
        TRY(backward_dx(stream, args, scratch.workspace));
    if (args->dweight)
        TRY(backward_dweight(stream, args, scratch, &has_dbias));
    return args->dbias && !has_dbias ? sum_columns(stream, args, scratch.partial) : STATUS_OK;
}
