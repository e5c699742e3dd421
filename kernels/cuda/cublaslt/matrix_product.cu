// matrix_product by cuBLASLt (matmul.cuh). cuBLASLt is column-major, so operands are exchanged: out^T = y^T
// x^T. A batch is one launch, or one per matrix if a batched launch would change a matrix's bits. cuBLASLt
// has no symmetric products. So each strip is a product of its own, and the part below its diagonal block
// is copied, transposed, to the other side of the diagonal.
#include "kernels/cuda/cublaslt/matmul.cuh"
#include "kernels/matrix.h"

#include <assert.h>

namespace {

size_t bytes_at(const struct matrix_product_args *args, int row, int column, int stride) {
    return (static_cast<size_t>(row) * static_cast<size_t>(stride) + static_cast<size_t>(column)) *
           dtype_size(args->type);
}

// The part of out that one product computes: rows from `row` on of columns [column, column + columns).
// Without strips, it is the whole of out.
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

// x_distance_of_rows: the number of elements in x from one row of the (rows, inner) operand to the next.
// y_distance_of_columns: the number in y from one column of the (inner, columns) operand to the next.
int x_distance_of_rows(const struct matrix_product_args *args) {
    return args->x_transposed ? 1 : args->inner;
}

int y_distance_of_columns(const struct matrix_product_args *args) {
    return args->y_transposed ? args->inner : 1;
}

matmul_operands operands_of(const struct matrix_product_args *args, const part &of) {
    matmul_operands operands = {};
    operands.a =
        static_cast<const char *>(args->y) + bytes_at(args, of.column, 0, y_distance_of_columns(args));
    operands.b = static_cast<const char *>(args->x) + bytes_at(args, of.row, 0, x_distance_of_rows(args));
    operands.d = static_cast<char *>(args->out) + bytes_at(args, of.row, of.column, args->columns);
    if (args->addend)
        operands.c =
            static_cast<const char *>(args->addend) + bytes_at(args, of.row, of.column, args->columns);
    operands.alpha = static_cast<float>(args->alpha);
    operands.beta = static_cast<float>(args->beta);
    return operands;
}

// True if all matrices of the batch are aligned like the first one. The bits depend on the alignment.
bool are_alike(const struct matrix_product_args *args) {
    const size_t distances =
        args->out_distance | args->x_distance | args->y_distance | (args->addend ? args->addend_distance : 0);
    return distances * dtype_size(args->type) % MATMUL_ALIGNMENT == 0;
}

void add_batch(matmul *problem, const struct matrix_product_args *args) {
    problem->n_matrices = args->n_matrices;
    problem->a_distance = static_cast<int64_t>(args->y_distance);
    problem->b_distance = static_cast<int64_t>(args->x_distance);
    problem->d_distance = static_cast<int64_t>(args->out_distance);
    problem->c_distance = static_cast<int64_t>(args->addend ? args->addend_distance : args->out_distance);
}

matmul problem_of(const struct matrix_product_args *args, const part &of) {
    const matmul_operands operands = operands_of(args, of);
    matmul problem = matmul_of(of.columns, args->rows - of.row, args->inner, args->type, args->type);
    problem.transpose_a = args->y_transposed;
    problem.transpose_b = args->x_transposed;
    problem.a_stride = args->y_transposed ? args->inner : args->columns;
    problem.b_stride = args->x_transposed ? args->rows : args->inner;
    problem.c_stride = problem.d_stride = args->columns;
    matmul_align(&problem, operands.a, problem.a_stride, args->type);
    matmul_align(&problem, operands.b, problem.b_stride, args->type);
    matmul_align(&problem, operands.d, problem.d_stride, args->type);
    if (args->addend) {
        problem.addend = MATMUL_ADDS_C;
        matmul_align(&problem, operands.c, problem.c_stride, args->type);
    }
    if (args->n_matrices > 1)
        add_batch(&problem, args);
    return problem;
}

// Decides whether one launch can compute a part of the product for all matrices of the batch. It can if there
// is one matrix, or if the matrices are aligned alike and matmul_find finds a batched product for them.
//   is_one   [out] true: one launch computes the whole batch; false: each matrix needs its own launch
enum status find_part(struct device *device, const struct matrix_product_args *args, const part &of,
                      bool measure, bool *is_one) {
    *is_one = args->n_matrices == 1;
    if (*is_one || !are_alike(args))
        return STATUS_OK;
    return matmul_find(device, problem_of(args, of), measure, is_one);
}

enum status run_part(struct stream *stream, const struct matrix_product_args *args, const part &of) {
    bool is_one;
    TRY(find_part(stream->device, args, of, false, &is_one));
    for (int i = 0; i < (is_one ? 1 : args->n_matrices); i++) {
        const struct matrix_product_args one = is_one ? *args : matrix_product_of(args, i);
        TRY(matmul_run(stream, problem_of(&one, of), operands_of(&one, of), stream->workspace));
    }
    return STATUS_OK;
}

enum status mirror(struct stream *stream, const struct matrix_product_args *args, const part &strip) {
    const int below = strip.column + strip.columns;
    struct mirror_args mirrored = {};
    if (args->strip == 0 || below == args->rows)
        return STATUS_OK;
    mirrored.out = static_cast<char *>(args->out) + bytes_at(args, strip.column, below, args->columns);
    mirrored.x = static_cast<const char *>(args->out) + bytes_at(args, below, strip.column, args->columns);
    mirrored.rows = args->rows - below;
    mirrored.columns = strip.columns;
    mirrored.stride = static_cast<size_t>(args->columns);
    mirrored.n_matrices = args->n_matrices;
    mirrored.distance = args->out_distance;
    mirrored.type = args->type;
    return cuda_mirror(stream, &mirrored);
}

enum status prepare(struct device *device, const struct matrix_product_args *args, const part &of) {
    const struct matrix_product_args one = matrix_product_of(args, 0);
    bool supported; // if not, matmul_run reports it
    TRY(matmul_find(device, problem_of(&one, of), true, &supported));
    return find_part(device, args, of, true, &supported);
}

} // namespace

extern "C" enum status cuda_matrix_product_prepare(struct device *device,
                                                   const struct matrix_product_args *args) {
    for (int column = 0; column < args->columns; column += columns_of_strips(args))
        TRY(prepare(device, args, strip_at(args, column)));
    return STATUS_OK;
}

extern "C" enum status cuda_matrix_product(struct stream *stream, const struct matrix_product_args *args) {
    assert(args->strip == 0 || (args->x_transposed != args->y_transposed && args->rows == args->columns));
    assert(stream->workspace_bytes >=
           cuda_product_workspace(properties_of(stream->device), args->columns, args->rows));
    for (int column = 0; column < args->columns; column += columns_of_strips(args)) {
        const part strip = strip_at(args, column);
        TRY(run_part(stream, args, strip));
        TRY(mirror(stream, args, strip));
    }
    return STATUS_OK;
}
