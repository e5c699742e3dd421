// Tests the simulated cuBLASLt: products against plain sums in double, for every layout, type and epilogue;
// what its heuristic rejects; that its algorithms differ in bits where they should; and that it finds each
// misuse.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "cudasim.h"
#include "tests/cudasim/cublaslt_test.h"

namespace {

// ---- results

void expect_near(const char *what, cudaDataType_t type, double got, double wanted, double magnitude,
                 int64_t roundings, double further = 0) {
    double allowed = double(roundings) * 0x1p-24 * magnitude + further + rounding(type, wanted);
    if (!(fabs(got - wanted) <= allowed * (1 + dtype_epsilon(dtype_of(type)))))
        fail_msg("%s: %.9g, expected %.9g to within %.3g", what, got, wanted, allowed);
}

void expect_result(const problem &p) {
    product x(p);
    std::vector<double> a = x.a.read(), b = x.b.read(), c = p.in_place ? x.d.read() : x.c.read();
    std::vector<double> d_before = x.d.read(), bias = x.bias.read(), aux = x.aux.read();
    require(x.find_algorithms());
    assert_true(x.n_results > 0);
    require(x.run(&x.results[0].algo));
    std::vector<double> d = x.d.read(), bias_after = x.bias.read(), aux_after = x.aux.read();
    for (int64_t j = 0; j < p.n; j++) {
        double column = 0, column_magnitude = 0;
        for (int64_t l = 0; l < p.k; l++) {
            double term = b[size_t(p.transpose_b ? l * x.b.stride + j : j * x.b.stride + l)];
            column += term;
            column_magnitude += fabs(term);
        }
        if (p.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            expect_near("bias gradient", p.d_type, bias_after[size_t(j)], column, column_magnitude, p.k);
        for (int64_t i = 0; i < p.m; i++) {
            double sum = 0, magnitude = 0;
            for (int64_t l = 0; l < p.k; l++) {
                double term = a[size_t(p.transpose_a ? i * x.a.stride + l : l * x.a.stride + i)] *
                              b[size_t(p.transpose_b ? l * x.b.stride + j : j * x.b.stride + l)];
                sum += term;
                magnitude += fabs(term);
            }
            size_t at = size_t(j * x.d.stride + i), aux_at = size_t(j * x.aux.stride + i);
            double value = p.alpha * sum + p.beta * c[at] + (reads_bias(p.epilogue) ? bias[size_t(i)] : 0);
            magnitude =
                fabs(p.alpha) * magnitude + fabs(p.beta * c[at]) + fabs(bias[size_t(i % x.bias.rows)]);
            const bool applies_gelu =
                p.epilogue != CUBLASLT_EPILOGUE_DGELU && p.epilogue & CUBLASLT_EPILOGUE_GELU;
            double further = 0; // of the roundings between the parts of an epilogue, and of GELU
            if (reads_bias(p.epilogue) && (p.beta != 0 || applies_gelu))
                further += rounding(p.d_type, value - bias[size_t(i)]);
            if (p.epilogue == CUBLASLT_EPILOGUE_DGELU)
                value *= gelu_slope(aux[aux_at]);
            else if (has_aux(p.epilogue))
                expect_near("aux", p.d_type, aux_after[aux_at], value, magnitude, p.k + 4, further);
            if (applies_gelu) {
                further = 1.13 * (further + rounding(p.d_type, fabs(value) + further)) +
                          fabs(value) / 2 * tanh_error(p.type, p.d_type);
                value = gelu(value);
            }
            expect_near("D", p.d_type, d[at], value, 1.13 * magnitude, p.k + 6, further);
        }
        for (int64_t i = p.m; i < x.d.stride; i++)
            assert_true(d[size_t(j * x.d.stride + i)] == d_before[size_t(j * x.d.stride + i)]);
    }
    assert_int_equal(cudasim_findings(), 0);
}

void test_layouts(void **) {
    const struct {
        int64_t m, n, k, gap;
    } shapes[] = {{1, 1, 1, 0}, {24, 20, 40, 0}, {17, 5, 33, 3}, {8, 64, 1, 8}, {65, 33, 129, 0}};
    for (auto &shape : shapes)
        for (cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F})
            for (int transposes = 0; transposes < 4; transposes++) {
                problem p;
                p.m = shape.m;
                p.n = shape.n;
                p.k = shape.k;
                p.gap = shape.gap;
                p.transpose_a = transposes & 1;
                p.transpose_b = transposes & 2;
                p.type = p.d_type = type;
                p.beta = shape.k == 129;
                expect_result(p);
                p.d_type = CUDA_R_32F;
                p.alpha = -0.5f;
                p.beta = p.in_place = true;
                expect_result(p);
            }
}

void test_epilogues(void **) {
    for (cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F})
        for (cublasLtEpilogue_t epilogue :
             {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
              CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
              CUBLASLT_EPILOGUE_BGRADB}) {
            problem p;
            p.type = p.d_type = type;
            p.epilogue = epilogue;
            p.gap = 8;
            int before = cudasim_cublaslt_runs(epilogue, -1);
            expect_result(p);
            assert_int_equal(cudasim_cublaslt_runs(epilogue, -1), before + 1);
            p.beta = 1;
            p.transpose_b = true;
            expect_result(p);
            p.d_type = CUDA_R_32F;
            if (epilogue == CUBLASLT_EPILOGUE_GELU)
                expect_result(p);
        }
}

// ---- results of the heuristic

void test_algorithms(void **) {
    problem p;
    p.k = 300;
    product x(p);
    require(x.find_algorithms());
    assert_int_equal(x.n_results, CUDASIM_ALGORITHMS);
    std::vector<double> results[CUDASIM_ALGORITHMS];
    for (int i = 0; i < CUDASIM_ALGORITHMS; i++) {
        assert_int_equal(x.results[i].algo.data[0], i);
        require(x.run(&x.results[i].algo));
        results[i] = x.d.read();
        require(x.run(&x.results[i].algo)); // a second run gives the same bits
        assert_true(results[i] == x.d.read());
    }
    assert_true(results[CUDASIM_IN_ORDER] == results[CUDASIM_IN_BLOCKS]);
    assert_false(results[CUDASIM_IN_ORDER] == results[CUDASIM_INTERLEAVED]);
    assert_false(results[CUDASIM_IN_ORDER] == results[CUDASIM_SPLIT]);
    assert_false(results[CUDASIM_INTERLEAVED] == results[CUDASIM_SPLIT]);

    x.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE));
    require(x.find_algorithms());
    assert_int_equal(x.n_results, CUDASIM_SPLIT);
    x.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_MASK));
    x.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(p.m * p.n * 4 - 1));
    require(x.find_algorithms());
    assert_int_equal(x.n_results, CUDASIM_SPLIT);
}

// Requests without a result are not findings: the caller may try another one.
template <class Change> void expect_refusal(const problem &p, cublasStatus_t status, Change change) {
    product x(p);
    change(x);
    assert_int_equal(x.find_algorithms(), status);
    assert_int_equal(x.n_results, 0);
    assert_int_equal(cudasim_findings(), 0);
}

void test_refusals(void **) {
    auto unchanged = [](product &) {};
    problem p;
    p.type = CUDA_R_16BF;
    p.epilogue = CUBLASLT_EPILOGUE_GELU_BIAS; // not with a bias from 16-bit types to fp32
    expect_refusal(p, CUBLAS_STATUS_NOT_SUPPORTED, unchanged);
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    expect_refusal(p, CUBLAS_STATUS_NOT_SUPPORTED,
                   [](product &x) { x.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_16BF)); });
    p.type = CUDA_R_32F;
    p.d_type = CUDA_R_16F;
    expect_refusal(p, CUBLAS_STATUS_NOT_SUPPORTED, unchanged);
    p.d_type = CUDA_R_32F;
    p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    for (int64_t stride : {p.m + 4, p.m - 8}) // not a multiple of 8; too small
        expect_refusal(p, CUBLAS_STATUS_INVALID_VALUE,
                       [=](product &x) { x.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride); });
    p.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    expect_refusal(p, CUBLAS_STATUS_SUCCESS, [](product &x) { // fp32 needs 4 bytes of alignment
        x.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(2));
    });
}

// ---- faults

void expect_finding(const char *text) {
    if (cudasim_findings() != 1 || !strstr(cudasim_last_finding(), text))
        fail_msg("%d findings, the last \"%s\", expected one with \"%s\"", cudasim_findings(),
                 cudasim_last_finding(), text);
    cudasim_reset();
}

// Runs a product whose valid arguments `change` breaks after the heuristic call.
template <class Change> void expect_fault(const problem &p, const char *text, Change change) {
    product x(p);
    require(x.find_algorithms());
    change(x);
    assert_int_equal(x.run(&x.results[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding(text);
}

template <class T> T *moved(T *pointer, ptrdiff_t bytes) {
    return reinterpret_cast<T *>(reinterpret_cast<uintptr_t>(pointer) + uintptr_t(bytes));
}

void test_pointers(void **) {
    problem p;
    expect_fault(p, "A is NULL", [](product &x) { x.a_at = nullptr; });
    expect_fault(p, "B is not aligned to the 16 bytes", [](product &x) { x.b_at = moved(x.b_at, 4); });
    expect_fault(p, "D is not aligned to the 16 bytes", [](product &x) { x.d_at = moved(x.d_at, 8); });
    expect_fault(p, "A and D overlap", [](product &x) { x.d_at = const_cast<void *>(x.a_at); });
    expect_fault(p, "the workspace is not aligned",
                 [](product &x) { x.workspace_at++, x.workspace_bytes--; });
    p.beta = 1;
    expect_fault(p, "D and C overlap", [](product &x) { x.c_at = moved(x.d_at, 16); });
    expect_fault(p, "C is NULL", [](product &x) { x.c_at = nullptr; });
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    expect_fault(p, "the bias is NULL",
                 [](product &x) { x.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void *>(nullptr)); });
    expect_fault(p, "the bias is not aligned",
                 [](product &x) { x.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, moved(x.bias_at, 4)); });
    p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    expect_fault(p, "the auxiliary matrix is not aligned",
                 [](product &x) { x.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, moved(x.aux_at, 8)); });
    p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    expect_fault(p, "D and the bias gradient overlap",
                 [](product &x) { x.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.d_at); });
}

// Pointers with less alignment are valid where the preference promised less.
void test_promised_alignment(void **) {
    problem p;
    p.type = p.d_type = CUDA_R_16BF;
    product x(p);
    for (int attribute = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; attribute++)
        x.prefer(static_cast<cublasLtMatmulPreferenceAttributes_t>(attribute), uint32_t(2));
    require(x.find_algorithms());
    x.b_at = moved(x.b_at, 2);
    assert_int_equal(x.run(&x.results[0].algo), CUBLAS_STATUS_SUCCESS); // reads past the end of B
    expect_finding("cublasLtMatmul, B: ");
}

void test_algorithm_and_workspace(void **) {
    problem p, other;
    other.n++;
    product x(p), y(other);
    require(x.find_algorithms());
    require(y.find_algorithms());
    assert_int_equal(x.run(nullptr), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding("NULL");
    assert_int_equal(x.run(&y.results[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding("chosen for another problem");
    x.workspace_bytes = 100;
    assert_int_equal(x.run(&x.results[CUDASIM_SPLIT].algo), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding("needs a workspace of");
    x.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(CUDA_R_16F));
    assert_int_equal(x.run(&x.results[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
    expect_finding("does not offer");
}

template <class Change> void expect_invalid_request(const char *text, Change change) {
    product x{problem()};
    change(x);
    assert_int_equal(x.find_algorithms(), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding(text);
}

void replace(cublasLtMatrixLayout_t *layout, uint64_t rows, uint64_t columns, int64_t stride) {
    require(cublasLtMatrixLayoutDestroy(*layout));
    require(cublasLtMatrixLayoutCreate(layout, CUDA_R_32F, rows, columns, stride));
}

void test_inconsistent_layouts(void **) {
    expect_invalid_request("op(A)'s columns and op(B)'s rows differ",
                           [](product &x) { replace(&x.a_layout, 24, 41, 24); });
    expect_invalid_request("op(A) and D differ in their numbers of rows",
                           [](product &x) { replace(&x.a_layout, 25, 40, 25); });
    expect_invalid_request("op(B) and D differ in their numbers of columns",
                           [](product &x) { replace(&x.b_layout, 40, 21, 40); });
    expect_invalid_request("C and D differ in shape", [](product &x) { replace(&x.c_layout, 24, 21, 24); });
    expect_invalid_request("leading dimension", [](product &x) { replace(&x.d_layout, 24, 20, 23); });
    expect_invalid_request("is not simulated",
                           [](product &x) { x.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(2)); });
    problem p;
    product x(p);
    int64_t wide = CUBLAS_OP_T; // the attribute is an int32_t
    (void)cublasLtMatmulDescSetAttribute(x.description, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide);
    expect_finding("has 4 bytes, not 8");
}

// Makes all operands batches of n matrices, `apart` elements from each other.
void make_batch(product &x, int32_t n, int64_t apart) {
    for (cublasLtMatrixLayout_t layout : {x.a_layout, x.b_layout, x.c_layout, x.d_layout}) {
        require(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n));
        require(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart,
                                                 sizeof apart));
    }
}

void test_batches(void **) {
    const int32_t two = 2, none = 0;
    expect_invalid_request("overlap", [](product &x) { make_batch(x, 2, 100); });
    expect_invalid_request("of one operand", [&](product &x) {
        (void)cublasLtMatrixLayoutSetAttribute(x.a_layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two,
                                               sizeof two);
    });
    expect_invalid_request("of one operand", [&](product &x) {
        (void)cublasLtMatrixLayoutSetAttribute(x.d_layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &none,
                                               sizeof none);
    });
    problem p;
    product x(p);
    cublasLtMatmulHeuristicResult_t result = {};
    require(x.find_algorithms());
    make_batch(x, 2, 1000); // past the ends of their memory
    require(cublasLtMatmulAlgoCheck(handle, x.description, x.a_layout, x.b_layout, x.c_layout, x.d_layout,
                                    &x.results[0].algo, &result));
    cudasim_cublaslt_limit(CUDASIM_IN_ORDER, 1);
    assert_int_equal(cublasLtMatmulAlgoCheck(handle, x.description, x.a_layout, x.b_layout, x.c_layout,
                                             x.d_layout, &x.results[0].algo, &result),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(x.run(&x.results[0].algo), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding("does not take 2 matrices");
    cudasim_cublaslt_limit(CUDASIM_IN_ORDER, 0);
    (void)x.run(&x.results[0].algo);
    (void)cudaStreamSynchronize(stream);
    expect_finding("cublasLtMatmul, A: ");
}

// Memory is checked when the product runs, not when it is issued.
void test_memory(void **) {
    problem p;
    for (unsigned seed : {0u, 1u}) {
        cudasim_reorder(seed);
        {
            product x(p);
            require(x.find_algorithms());
            x.a_at = moved(x.a_at, 16); // so that its end is outside
            (void)x.run(&x.results[0].algo);
            (void)cudaStreamSynchronize(stream);
            expect_finding("cublasLtMatmul, A: ");
        }
        product x(p);
        require(x.find_algorithms());
        if (seed)
            require(x.run(&x.results[0].algo));
        require(cudaFree(x.b.memory));
        x.b.memory = nullptr;
        if (!seed)
            (void)x.run(&x.results[0].algo);
        (void)cudaStreamSynchronize(stream);
        expect_finding("which was freed");
    }
    cudasim_reorder(0);
}

// Copies on the same stream run before and after the product, however late everything runs.
void test_stream_order(void **) {
    for (unsigned seed = 1; seed <= 4; seed++) {
        cudasim_reorder(seed);
        problem p;
        expect_result(p);
        product x(p);
        std::vector<float> zeros(size_t(x.a.stride * x.a.columns)), d(size_t(p.m * p.n), 1.0f);
        require(x.find_algorithms());
        require(cudaMemcpyAsync(x.a.memory, zeros.data(), x.a.bytes(), cudaMemcpyHostToDevice, stream));
        require(x.run(&x.results[0].algo));
        require(cudaMemcpyAsync(d.data(), x.d.memory, x.d.bytes(), cudaMemcpyDeviceToHost, stream));
        require(cudaStreamSynchronize(stream));
        for (float value : d)
            assert_true(value == 0);
    }
    cudasim_reorder(0);
}

void test_objects(void **) {
    problem p;
    product x(p);
    cublasLtMatrixLayout_t gone;
    require(cublasLtMatrixLayoutCreate(&gone, CUDA_R_32F, 1, 1, 1));
    require(cublasLtMatrixLayoutDestroy(gone));
    assert_int_equal(cublasLtMatrixLayoutDestroy(gone), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding("the layout does not exist");
    std::swap(x.c_layout, gone);
    assert_int_equal(x.find_algorithms(), CUBLAS_STATUS_INVALID_VALUE);
    expect_finding("the layout of C does not exist");
    std::swap(x.c_layout, gone);

    // Leaks are reported when the process ends, and make it fail.
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(nullptr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        exit(0);
    }
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    std::string printed(1 << 16, '\0');
    printed.resize(fread(&printed[0], 1, printed.size(), output));
    fclose(output);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    assert_true(printed.find("7 objects of cuBLASLt were never destroyed") != std::string::npos);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_epilogues),
        cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_promised_alignment),
        cmocka_unit_test(test_algorithm_and_workspace),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_inconsistent_layouts),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_stream_order),
        cmocka_unit_test(test_objects),
    };
    return cmocka_run_group_tests_name("cuBLASLt on the host", tests, begin, end);
}
