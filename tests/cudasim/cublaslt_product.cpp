// The arithmetic of the simulated cuBLASLt: sums in fp32, in an order that depends on the algorithm and the
// shape only; then the epilogue. As on an H200 it rounds GELU's argument to a 16-bit result's type, and,
// where accesses are narrow, a sum before the bias if a residual or GELU is fused as well.
#include "tests/cudasim/cublaslt.h"

#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tests/cudasim/sanitizer.h"

namespace cudasim {

bool epilogue_reads_bias(int64_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool epilogue_writes_aux(int64_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool epilogue_has_aux(int64_t epilogue) {
    return epilogue_writes_aux(epilogue) || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

namespace {

// ---- element types

struct f32_element {
    float x;
    float wide() const {
        return x;
    }
    void set(float value) {
        x = value;
    }
};

struct bf16_element {
    uint16_t x;
    float wide() const {
        return bf16_to_float(x);
    }
    void set(float value) {
        x = bf16_from_float(value);
    }
};

struct f16_element {
    uint16_t x;
    float wide() const {
        return f16_to_float(x);
    }
    void set(float value) {
        x = f16_from_float(value);
    }
};

template <class F> void with_element(int64_t type, F f) {
    switch (type) {
    case DTYPE_BF16:
        return f(bf16_element());
    case DTYPE_F16:
        return f(f16_element());
    default:
        return f(f32_element());
    }
}

// ---- operands as float, packed in panels of eight rows of A or four columns of B, with all their k terms

constexpr int64_t a_panel = 8, b_panel = 4;
constexpr int64_t worth_threads = 1 << 15; // multiplications from which several threads pay off

int64_t panels(int64_t n, int64_t width) {
    return (n + width - 1) / width;
}

// Packs `lines` rows of A (or columns of B) of `terms` elements into panels of `width` lines.
//   lines_apart, terms_apart   strides of x between lines, and along a line
template <class T>
std::vector<float> pack(const T *x, int64_t lines, int64_t terms, int64_t lines_apart, int64_t terms_apart,
                        int64_t width) {
    std::vector<float> packed(size_t(panels(lines, width) * terms * width));
#pragma omp parallel for if (lines * terms > worth_threads)
    for (int64_t panel = 0; panel < panels(lines, width); panel++) {
        float *to = &packed[size_t(panel * terms * width)];
        for (int64_t term = 0; term < terms; term++)
            for (int64_t i = 0; i < width && panel * width + i < lines; i++)
                to[term * width + i] = x[(panel * width + i) * lines_apart + term * terms_apart].wide();
    }
    return packed;
}

// ---- sums

using vector = float __attribute__((vector_size(a_panel * sizeof(float))));

// Sums of eight rows and four columns of D: a vector of rows for each column.
struct tile {
    vector column[b_panel];
};

// Adds every `step`th of the terms [from, to) to the tile, in order.
CUDASIM_UNCHECKED void add_terms(tile *sums, const float *a, const float *b, int64_t from, int64_t to,
                                 int64_t step) {
    tile t = *sums;
    for (int64_t term = from; term < to; term += step) {
        vector x;
        memcpy(&x, a + term * a_panel, sizeof x);
        for (int64_t j = 0; j < b_panel; j++)
            t.column[j] += x * b[term * b_panel + j];
    }
    *sums = t;
}

void add(tile *sums, const tile &other) {
    for (int64_t j = 0; j < b_panel; j++)
        sums->column[j] += other.column[j];
}

void sum_terms(tile *sums, const float *a, const float *b, int64_t k, int algorithm) {
    constexpr int64_t block = 64;
    tile other = {};
    *sums = {};
    switch (algorithm) {
    case CUDASIM_INTERLEAVED:
        add_terms(sums, a, b, 0, k, 2);
        add_terms(&other, a, b, 1, k, 2);
        return add(sums, other);
    case CUDASIM_IN_BLOCKS:
        for (int64_t from = 0; from < k; from += block)
            add_terms(sums, a, b, from, from + block < k ? from + block : k, 1);
        return;
    case CUDASIM_SPLIT:
        add_terms(sums, a, b, 0, k / 2, 1);
        add_terms(&other, a, b, k / 2, k, 1);
        return add(sums, other);
    default:
        return add_terms(sums, a, b, 0, k, 1);
    }
}

// ---- the epilogue

constexpr double two_over_pi_root = 0.79788456080286535588, cubic = 0.044715;

// cuBLASLt approximates tanh, as an H200 shows. The errors are half of what PTX's manual allows tanh.approx
// of the result's type; with operands in fp32 there is none.
double approximate_tanh(double u, int64_t operand_type, int64_t result_type) {
    double t = std::tanh(u);
    if (operand_type == DTYPE_F32)
        return t;
    return result_type == DTYPE_BF16  ? t * (1 - 0x1p-9)
           : result_type == DTYPE_F16 ? t - 0x1p-12 * (1 - t * t)
                                      : t * (1 - 0x1p-12 * (1 - t * t));
}

float gelu(float x, const matmul_shape &s) {
    double t = approximate_tanh(two_over_pi_root * (x + cubic * x * x * x), s.a_type, s.d_type);
    return float(0.5 * x * (1 + t));
}

float gelu_slope(float x) {
    double t = std::tanh(two_over_pi_root * (x + cubic * double(x) * x * x));
    return float(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * two_over_pi_root * (1 + 3 * cubic * double(x) * x));
}

bool applies_gelu(int64_t epilogue) {
    return epilogue_writes_aux(epilogue) || epilogue == CUBLASLT_EPILOGUE_GELU ||
           epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
}

template <class D> float rounded(float value) {
    D element;
    element.set(value);
    return element.wide();
}

template <class D>
void store(const matmul_shape &s, const matmul_operands &o, int64_t i, int64_t j, float sum) {
    float value = o.alpha * sum;
    if (o.beta != 0)
        value += o.beta * static_cast<const D *>(o.c)[j * s.c_stride + i].wide();
    if (epilogue_reads_bias(s.epilogue)) {
        if (o.narrow && (o.beta != 0 || applies_gelu(s.epilogue)))
            value = rounded<D>(value);
        value += static_cast<const D *>(o.bias)[i].wide();
    }
    if (epilogue_writes_aux(s.epilogue))
        static_cast<D *>(o.aux)[j * s.aux_stride + i].set(value);
    if (s.epilogue == CUBLASLT_EPILOGUE_DGELU)
        value *= gelu_slope(static_cast<const D *>(o.aux)[j * s.aux_stride + i].wide());
    else if (applies_gelu(s.epilogue))
        value = gelu(rounded<D>(value), s);
    static_cast<D *>(o.d)[j * s.d_stride + i].set(value);
}

// Sums B over the terms: the gradient of a bias.
template <class D> void store_b_sums(D *out, const std::vector<float> &b, const matmul_shape &s) {
    for (int64_t j = 0; j < s.n; j++) {
        const float *x = &b[size_t(j / b_panel * s.k * b_panel + j % b_panel)];
        float sum = 0;
        for (int64_t term = 0; term < s.k; term++)
            sum += x[term * b_panel];
        out[j].set(sum);
    }
}

template <class A, class D>
void multiply_as(const matmul_shape &s, const matmul_operands &o, int algorithm, float *partial) {
    std::vector<float> a = pack(static_cast<const A *>(o.a), s.m, s.k, s.transposes_a ? s.a_stride : 1,
                                s.transposes_a ? 1 : s.a_stride, a_panel);
    std::vector<float> b = pack(static_cast<const A *>(o.b), s.n, s.k, s.transposes_b ? 1 : s.b_stride,
                                s.transposes_b ? s.b_stride : 1, b_panel);
    int64_t n_across = panels(s.n, b_panel), n_down = panels(s.m, a_panel);
#pragma omp parallel for collapse(2) schedule(dynamic, 64) if (s.m * s.n * s.k > worth_threads)
    for (int64_t across = 0; across < n_across; across++)
        for (int64_t down = 0; down < n_down; down++) {
            tile sums;
            sum_terms(&sums, &a[size_t(down * s.k * a_panel)], &b[size_t(across * s.k * b_panel)], s.k,
                      algorithm);
            for (int64_t j = across * b_panel; j < (across + 1) * b_panel && j < s.n; j++)
                for (int64_t i = down * a_panel; i < (down + 1) * a_panel && i < s.m; i++) {
                    float sum = sums.column[j % b_panel][i % a_panel];
                    if (partial) // where a GPU's split-k would store its partial sums
                        partial[j * s.m + i] = sum;
                    store<D>(s, o, i, j, sum);
                }
        }
    if (s.epilogue == CUBLASLT_EPILOGUE_BGRADB)
        store_b_sums(static_cast<D *>(o.bias), b, s);
}

} // namespace

size_t matmul_workspace(const matmul_shape &shape, int algorithm) {
    return algorithm == CUDASIM_SPLIT ? sizeof(float) * size_t(shape.m * shape.n) : 0;
}

template <class P> void advance(P **operand, int64_t elements, int64_t type) {
    if (*operand)
        *operand = static_cast<std::conditional_t<std::is_const_v<P>, const char, char> *>(*operand) +
                   elements * int64_t(dtype_size(dtype(type)));
}

void multiply(const matmul_shape &shape, const matmul_batch &batch, const matmul_operands &operands,
              int algorithm, void *workspace) {
    float *partial = matmul_workspace(shape, algorithm) ? static_cast<float *>(workspace) : nullptr;
    matmul_operands at = operands;
    for (int64_t i = 0; i < batch.n; i++) {
        with_element(shape.a_type, [&](auto element) {
            with_element(shape.d_type, [&](auto result) {
                multiply_as<decltype(element), decltype(result)>(shape, at, algorithm, partial);
            });
        });
        advance(&at.a, batch.a_distance, shape.a_type);
        advance(&at.b, batch.b_distance, shape.a_type);
        advance(&at.c, batch.c_distance, shape.d_type);
        advance(&at.d, batch.d_distance, shape.d_type);
    }
}

} // namespace cudasim
