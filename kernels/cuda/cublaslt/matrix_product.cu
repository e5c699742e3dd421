// Products of matrices that are no layer's, by cuBLASLt (matmul.cuh). Operands are exchanged, as in
// linear.cu: out^T = y^T x^T. cuBLASLt has no symmetric products: a strip is a product of its own, and what
// it has below its diagonal block is transposed to the other side of the diagonal.
#include "kernels/cuda/cublaslt/matmul.cuh"
#include "kernels/symmetric.h"

#include <assert.h>

namespace {

size_t bytes_at(const struct matrix_product_args *args, int row, int column, int stride) {
    return (static_cast<size_t>(row) * static_cast<size_t>(stride) + static_cast<size_t>(column)) *
           dtype_size(args->type);
}

// Rows from `row` on of the columns [column, column + columns). Without strips the whole is one.
struct part {
    int row, column, columns;
};

int columns_of_strips(const struct matrix_product_args *args) {
    return static_cast<int>(symmetric_columns(args->columns, args->strip));
}

part strip_at(const struct matrix_product_args *args, int column) {
    const int columns = columns_of_strips(args), left = args->columns - column;
    return {column, column, left < columns ? left : columns};
}

matmul_operands operands_of(const struct matrix_product_args *args, const part &of) {
    const size_t y_row = args->y_transposed ? static_cast<size_t>(args->inner) : 1;
    matmul_operands operands = {};
    operands.a =
        static_cast<const char *>(args->y) + static_cast<size_t>(of.column) * y_row * dtype_size(args->type);
    operands.b = static_cast<const char *>(args->x) + bytes_at(args, of.row, 0, args->inner);
    operands.d = static_cast<char *>(args->out) + bytes_at(args, of.row, of.column, args->columns);
    if (args->addend)
        operands.c =
            static_cast<const char *>(args->addend) + bytes_at(args, of.row, of.column, args->columns);
    operands.alpha = static_cast<float>(args->alpha);
    operands.beta = static_cast<float>(args->beta);
    return operands;
}

matmul problem_of(const struct matrix_product_args *args, const part &of) {
    const matmul_operands operands = operands_of(args, of);
    matmul problem = matmul_of(of.columns, args->rows - of.row, args->inner, args->type, args->type);
    problem.transpose_a = args->y_transposed;
    problem.a_stride = args->y_transposed ? args->inner : args->columns;
    problem.b_stride = args->inner;
    problem.c_stride = problem.d_stride = args->columns;
    matmul_align(&problem, operands.a, problem.a_stride, args->type);
    matmul_align(&problem, operands.b, problem.b_stride, args->type);
    matmul_align(&problem, operands.d, problem.d_stride, args->type);
    if (args->addend) {
        problem.addend = MATMUL_ADDS_C;
        matmul_align(&problem, operands.c, problem.c_stride, args->type);
    }
    return problem;
}

enum status run_part(struct stream *stream, const struct matrix_product_args *args, const part &of) {
    matmul problem = problem_of(args, of);
    problem.processors = matmul_processors(stream);
    return matmul_run(stream, problem, operands_of(args, of), stream->workspace);
}

enum status mirror(struct stream *stream, const struct matrix_product_args *args, const part &strip) {
    const int below = strip.column + strip.columns;
    struct matrix_transpose_args transpose = {};
    if (args->strip == 0 || below == args->rows)
        return STATUS_OK;
    transpose.out = static_cast<char *>(args->out) + bytes_at(args, strip.column, below, args->columns);
    transpose.x = static_cast<const char *>(args->out) + bytes_at(args, below, strip.column, args->columns);
    transpose.rows = args->rows - below;
    transpose.columns = strip.columns;
    transpose.out_stride = transpose.x_stride = args->columns;
    transpose.type = args->type;
    return cuda_matrix_transpose(stream, &transpose);
}

enum status prepare(struct device *device, const struct matrix_product_args *args, const part &of) {
    bool supported; // if not, matmul_run reports it
    return matmul_find(device, problem_of(args, of), true, &supported);
}

} // namespace

extern "C" enum status cuda_matrix_product_prepare(struct device *device,
                                                   const struct matrix_product_args *args) {
    for (int column = 0; column < args->columns; column += columns_of_strips(args))
        TRY(prepare(device, args, strip_at(args, column)));
    return STATUS_OK;
}

extern "C" enum status cuda_matrix_product(struct stream *stream, const struct matrix_product_args *args) {
    assert(args->strip == 0 || (args->y_transposed && args->rows == args->columns));
    assert(stream->workspace_bytes >=
           cuda_product_workspace(properties_of(stream->device), args->columns, args->rows));
    for (int column = 0; column < args->columns; column += columns_of_strips(args)) {
        const part strip = strip_at(args, column);
        TRY(run_part(stream, args, strip));
        TRY(mirror(stream, args, strip));
    }
    return STATUS_OK;
}
