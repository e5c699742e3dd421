// See cublaslt_rules.h.
#include "tests/cudasim/cublaslt_rules.h"

#include "tests/cudasim/finding.h"

namespace cudasim {

namespace {

const answer fine = {CUBLAS_STATUS_SUCCESS, ""}, unsupported = {CUBLAS_STATUS_NOT_SUPPORTED, ""};

answer wrong(const std::string &fault) {
    return {CUBLAS_STATUS_INVALID_VALUE, fault};
}

bool element_type(cudaDataType_t type, int64_t *out) {
    *out = type == CUDA_R_16F ? DTYPE_F16 : type == CUDA_R_16BF ? DTYPE_BF16 : DTYPE_F32;
    return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F;
}

// A batch has as many matrices of each operand. Those of D do not overlap.
answer examine_batch(const layouts &l, matmul_batch *batch) {
    *batch = {l.d->n_matrices, l.a->distance, l.b->distance, l.c->distance, l.d->distance};
    for (const cublasLtMatrixLayoutOpaque_t *layout : {l.a, l.b, l.c, l.d})
        if (layout->n_matrices != batch->n || batch->n < 1)
            return wrong(text("a batch has %d matrices of one operand and %d of D", layout->n_matrices,
                              l.d->n_matrices));
    if (batch->n > 1 && batch->d_distance < (l.d->columns - 1) * l.d->stride + l.d->rows)
        return wrong(text("matrices of D are %lld elements apart and overlap",
                          static_cast<long long>(batch->d_distance)));
    return fine;
}

answer examine_layouts(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s) {
    s->transposes_a = desc.transpose_a != CUBLAS_OP_N;
    s->transposes_b = desc.transpose_b != CUBLAS_OP_N;
    s->m = l.d->rows;
    s->n = l.d->columns;
    s->k = s->transposes_a ? l.a->rows : l.a->columns;
    for (const cublasLtMatrixLayoutOpaque_t *layout : {l.a, l.b, l.c, l.d})
        if (layout->rows < 1 || layout->columns < 1 || layout->stride < layout->rows)
            return wrong(text("a matrix of %lld x %lld has the leading dimension %lld",
                              static_cast<long long>(layout->rows), static_cast<long long>(layout->columns),
                              static_cast<long long>(layout->stride)));
    if ((s->transposes_a ? l.a->columns : l.a->rows) != s->m)
        return wrong("op(A) and D differ in their numbers of rows");
    if ((s->transposes_b ? l.b->rows : l.b->columns) != s->n)
        return wrong("op(B) and D differ in their numbers of columns");
    if ((s->transposes_b ? l.b->columns : l.b->rows) != s->k)
        return wrong("op(A)'s columns and op(B)'s rows differ in number");
    if (l.c->rows != s->m || l.c->columns != s->n)
        return wrong("C and D differ in shape");
    s->a_stride = l.a->stride;
    s->b_stride = l.b->stride;
    s->c_stride = l.c->stride;
    s->d_stride = l.d->stride;
    return fine;
}

bool is_gelu(uint32_t epilogue) {
    return epilogue & CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_DGELU;
}

// The manual's table of types for CUBLAS_COMPUTE_32F: D has the type of A and B, or fp32; the epilogue's
// operands have the type of D. GELU alone, from 16-bit operands to fp32, is not in the table, but an H200
// takes it.
answer examine_types(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s) {
    bool compute =
        desc.compute_type == CUBLAS_COMPUTE_32F || desc.compute_type == CUBLAS_COMPUTE_32F_PEDANTIC;
    if (!compute || desc.scale_type != CUDA_R_32F)
        return unsupported;
    if (!element_type(l.a->type, &s->a_type) || !element_type(l.d->type, &s->d_type))
        return unsupported;
    if (l.b->type != l.a->type || l.c->type != l.d->type)
        return unsupported;
    const bool may_widen = !is_gelu(desc.epilogue) || desc.epilogue == CUBLASLT_EPILOGUE_GELU;
    if (s->d_type != s->a_type && (s->d_type != DTYPE_F32 || !may_widen))
        return unsupported;
    for (int32_t type : {desc.bias_type, desc.aux_type})
        if (type != -1 && type != int32_t(l.d->type))
            return unsupported;
    return fine;
}

answer examine_epilogue(const cublasLtMatmulDescOpaque_t &desc, matmul_shape *s) {
    s->epilogue = desc.epilogue;
    s->aux_stride = desc.aux_stride;
    switch (desc.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADB:
        return fine;
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
        return s->aux_stride % 8 == 0 && s->aux_stride >= s->m ? fine
                                                               : answer{CUBLAS_STATUS_INVALID_VALUE, ""};
    default:
        return wrong(text("the epilogue %u is not simulated", desc.epilogue));
    }
}

} // namespace

answer examine(const cublasLtMatmulDescOpaque_t &desc, const layouts &l, matmul_shape *s,
               matmul_batch *batch) {
    *s = {};
    answer a = examine_layouts(desc, l, s);
    if (a.status == CUBLAS_STATUS_SUCCESS)
        a = examine_batch(l, batch);
    if (a.status == CUBLAS_STATUS_SUCCESS)
        a = examine_types(desc, l, s);
    if (a.status == CUBLAS_STATUS_SUCCESS)
        a = examine_epilogue(desc, s);
    return a;
}

} // namespace cudasim
