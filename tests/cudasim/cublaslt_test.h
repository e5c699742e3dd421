// A product by the simulated cuBLASLt, with its operands on the device, for tests that change its arguments.
// Included once per test program.
#ifndef CUDASIM_CUBLASLT_TEST_H
#define CUDASIM_CUBLASLT_TEST_H

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include <cublasLt.h>

extern "C" {
#include "base/dtype.h"
#include "base/rng.h"
}
#include "cudasim_cublaslt.h"
#include "tests/cudasim/epilogue_test.h"

namespace {

cudaStream_t stream;
cublasLtHandle_t handle;

void require(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail_msg("%s", cublasLtGetStatusString(status));
}

void require(cudaError_t error) {
    if (error != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(error));
}

int begin(void **) {
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
                   cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS
               ? 0
               : -1;
}

int end(void **) {
    return cublasLtDestroy(handle) == CUBLAS_STATUS_SUCCESS && cudaStreamDestroy(stream) == cudaSuccess ? 0
                                                                                                        : -1;
}

// ---- a matrix on the device, with its values

uint32_t bits_of(cudaDataType_t type, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return type == CUDA_R_16F ? f16_from_float(value) : type == CUDA_R_16BF ? bf16_from_float(value) : bits;
}

float value_of(cudaDataType_t type, uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return type == CUDA_R_16F    ? f16_to_float(uint16_t(bits))
           : type == CUDA_R_16BF ? bf16_to_float(uint16_t(bits))
                                 : value;
}

struct matrix {
    cudaDataType_t type;
    int64_t rows, columns, stride;
    char *memory = nullptr;

    void init(cudaDataType_t element_type, int64_t n_rows, int64_t n_columns, int64_t gap, uint32_t seed) {
        type = element_type;
        rows = n_rows;
        columns = n_columns;
        stride = rows + gap;
        require(cudaMalloc(&memory, bytes()));
        std::vector<float> values(size_t(columns * stride));
        for (size_t i = 0; i < values.size(); i++)
            values[i] = float(rng_normal(1, seed, i));
        write(values);
    }
    void free() {
        require(cudaFree(memory));
    }
    size_t size() const {
        return dtype_size(dtype_of(type));
    }
    size_t bytes() const {
        return size_t(columns * stride) * size();
    }
    void write(const std::vector<float> &values) {
        std::vector<char> image(bytes());
        for (size_t i = 0; i < values.size(); i++) {
            uint32_t bits = bits_of(type, values[i]);
            memcpy(&image[i * size()], &bits, size());
        }
        require(cudaMemcpyAsync(memory, image.data(), bytes(), cudaMemcpyHostToDevice, stream));
        require(cudaStreamSynchronize(stream));
    }
    std::vector<double> read() const {
        std::vector<char> image(bytes());
        require(cudaMemcpyAsync(image.data(), memory, bytes(), cudaMemcpyDeviceToHost, stream));
        require(cudaStreamSynchronize(stream));
        std::vector<double> values(size_t(columns * stride));
        for (size_t i = 0; i < values.size(); i++) {
            uint32_t bits = 0;
            memcpy(&bits, &image[i * size()], size());
            values[i] = value_of(type, bits);
        }
        return values;
    }
};

// ---- a product: valid arguments of a call, which tests change

struct problem {
    int64_t m = 24, n = 20, k = 40, gap = 0;
    bool transpose_a = false, transpose_b = false;
    cudaDataType_t type = CUDA_R_32F, d_type = CUDA_R_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    float alpha = 1, beta = 0;
    bool in_place = false; // C is D
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
};

bool reads_bias(int epilogue) {
    return epilogue & CUBLASLT_EPILOGUE_BIAS;
}
bool has_bias(int epilogue) {
    return epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
}
bool has_aux(int epilogue) {
    return epilogue >= 128 && epilogue < 256;
}

struct product {
    problem p;
    matrix a, b, c, d, bias, aux;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a_layout, b_layout, c_layout, d_layout;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[CUDASIM_ALGORITHMS];
    int n_results = 0;
    const void *a_at, *b_at, *c_at;
    void *d_at, *bias_at, *aux_at;
    char *workspace, *workspace_at;
    size_t workspace_bytes = 1 << 16;

    explicit product(const problem &given) : p(given) {
        a.init(p.type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.gap, 1);
        b.init(p.type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.gap, 2);
        c.init(p.d_type, p.m, p.n, p.gap, 3);
        d.init(p.d_type, p.m, p.n, p.gap, 4);
        bias.init(p.d_type, p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m, 1, 0, 5);
        aux.init(p.d_type, p.m, p.n, 8, 6);
        require(cudaMalloc(&workspace, workspace_bytes));
        a_at = a.memory;
        b_at = b.memory;
        c_at = p.in_place ? d.memory : c.memory;
        d_at = d.memory;
        bias_at = bias.memory;
        aux_at = aux.memory;
        workspace_at = workspace;
        describe();
    }
    ~product() {
        for (matrix *x : {&a, &b, &c, &d, &bias, &aux})
            x->free();
        require(cudaFree(workspace));
        require(cublasLtMatmulDescDestroy(description));
        for (cublasLtMatrixLayout_t layout : {a_layout, b_layout, c_layout, d_layout})
            require(cublasLtMatrixLayoutDestroy(layout));
        require(cublasLtMatmulPreferenceDestroy(preference));
    }
    product(const product &) = delete;
    product &operator=(const product &) = delete;

    template <class T> void set(cublasLtMatmulDescAttributes_t attribute, T value) {
        require(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
    }
    template <class T> void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
        require(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    }
    static cublasLtMatrixLayout_t layout_of(const matrix &x) {
        cublasLtMatrixLayout_t layout;
        require(cublasLtMatrixLayoutCreate(&layout, x.type, uint64_t(x.rows), uint64_t(x.columns), x.stride));
        return layout;
    }
    void describe() {
        require(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t(p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
        set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t(p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(p.epilogue));
        a_layout = layout_of(a);
        b_layout = layout_of(b);
        c_layout = layout_of(c);
        d_layout = layout_of(d);
        if (has_bias(p.epilogue))
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_at);
        if (has_aux(p.epilogue)) {
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux_at);
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux.stride);
        }
        require(cublasLtMatmulPreferenceCreate(&preference));
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace_bytes));
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, p.reductions);
    }
    cublasStatus_t find_algorithms() {
        return cublasLtMatmulAlgoGetHeuristic(handle, description, a_layout, b_layout, c_layout, d_layout,
                                              preference, CUDASIM_ALGORITHMS, results, &n_results);
    }
    cublasStatus_t run(const cublasLtMatmulAlgo_t *algorithm) {
        return cublasLtMatmul(handle, description, &p.alpha, a_at, a_layout, b_at, b_layout, &p.beta, c_at,
                              c_layout, d_at, d_layout, algorithm, workspace_at, workspace_bytes, stream);
    }
};

} // namespace

#endif
