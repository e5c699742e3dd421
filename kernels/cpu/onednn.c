// Matrix products through oneDNN's C API. Primitives are cached in a hash table keyed by the whole shape; the
// caller provides scratch. oneDNN builds and runs primitives for omp_get_max_threads() threads, so each call
// sets that to one.
#include "kernels/cpu/onednn.h"

#include <malloc.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

// ---- the differences between oneDNN 2.x and 3.x

// 2.x passes memory descriptors by value and builds primitive descriptors in two steps. 3.x has opaque
// handles for memory descriptors and builds in one step. The other calls are the same in both.

// True if the name of the primitive descriptor's implementation starts with `start`, such as "ref".
static inline bool dnnl_is_named(const_dnnl_primitive_desc_t description, const char *start) {
    const char *name = NULL;
    dnnl_status_t status = dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&name);
    return status == dnnl_success && name && strncmp(name, start, strlen(start)) == 0;
}

// dnnl_layout_*: memory descriptors. dnnl_matmul_new: the primitive descriptor of c = a b + bias.
// dnnl_post_op_*: post-ops, applied to c before it is stored.

#if DNNL_VERSION_MAJOR >= 3

typedef const_dnnl_memory_desc_t dnnl_layout_view;

struct dnnl_layout {
    dnnl_memory_desc_t handle; // NULL: no tensor
};

static inline dnnl_layout_view dnnl_layout_get(const struct dnnl_layout *layout) {
    return layout->handle;
}

static inline dnnl_status_t dnnl_layout_init(struct dnnl_layout *layout, int n_dims, const dnnl_dims_t dims,
                                             dnnl_data_type_t type, const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(&layout->handle, n_dims, dims, type, strides);
}

static inline void dnnl_layout_free(struct dnnl_layout *layout) {
    if (layout->handle)
        dnnl_memory_desc_destroy(layout->handle);
    layout->handle = NULL;
}

static inline dnnl_status_t dnnl_matmul_new(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                            const struct dnnl_layout *a, const struct dnnl_layout *b,
                                            const struct dnnl_layout *bias, const struct dnnl_layout *c,
                                            const_dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(out, engine, a->handle, b->handle, bias->handle, c->handle,
                                             attributes);
}

static inline dnnl_status_t dnnl_post_op_with_sum(dnnl_post_ops_t post_ops) {
    return dnnl_post_ops_append_sum(post_ops, 1.0f, 0, dnnl_data_type_undef);
}

#else

typedef const dnnl_memory_desc_t *dnnl_layout_view;

struct dnnl_layout {
    dnnl_memory_desc_t value; // no dimensions: no tensor
};

static inline dnnl_layout_view dnnl_layout_get(const struct dnnl_layout *layout) {
    return &layout->value;
}

static inline dnnl_status_t dnnl_layout_init(struct dnnl_layout *layout, int n_dims, const dnnl_dims_t dims,
                                             dnnl_data_type_t type, const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(&layout->value, n_dims, dims, type, strides);
}

static inline void dnnl_layout_free(struct dnnl_layout *layout) {
    layout->value.ndims = 0;
}

static inline dnnl_status_t dnnl_matmul_new(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                            const struct dnnl_layout *a, const struct dnnl_layout *b,
                                            const struct dnnl_layout *bias, const struct dnnl_layout *c,
                                            const_dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &a->value, &b->value,
                                                 bias->value.ndims > 0 ? &bias->value : NULL, &c->value);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &matmul, attributes, engine, NULL)
                                  : status;
}

static inline dnnl_status_t dnnl_post_op_with_sum(dnnl_post_ops_t post_ops) {
    return dnnl_post_ops_append_sum(post_ops, 1.0f);
}

#endif

// ---- products and their cache

#define N_BUCKETS 256

// The tensors of a product: the indices of its memories and, in product_run, of the primitive's arguments.
enum tensor { TENSOR_A, TENSOR_B, TENSOR_C, TENSOR_BIAS, TENSOR_RESIDUAL, TENSOR_SCRATCH, N_TENSORS };

struct product {
    struct product_shape shape;
    struct product *next;
    dnnl_primitive_t primitive;
    dnnl_memory_t memories[N_TENSORS]; // NULL: not in this product
    size_t workspace_bytes;
    bool has_run;
};

struct product_cache {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct product *buckets[N_BUCKETS];
};

static dnnl_data_type_t dnnl_type_of(int64_t type) {
    return type == DTYPE_BF16 ? dnnl_bf16 : type == DTYPE_F16 ? dnnl_f16 : dnnl_f32;
}

static const char *dnnl_reason(dnnl_status_t status) {
    switch (status) {
    case dnnl_out_of_memory:
        return "out of memory";
    case dnnl_invalid_arguments:
        return "invalid arguments";
    case dnnl_unimplemented:
        return "not implemented";
    default:
        return "failed at run time";
    }
}

#if defined(__x86_64__)
static bool uses(dnnl_cpu_isa_t isa) {
    return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

// The name of the instruction set that oneDNN uses, as far as it affects rounding, in the form ", AVX2", to
// be appended to the version.
static const char *instruction_set(void) {
    return uses(dnnl_cpu_isa_avx512_core_amx)    ? ", AMX"
           : uses(dnnl_cpu_isa_avx512_core_bf16) ? ", AVX-512 with bf16"
           : uses(dnnl_cpu_isa_avx512_core)      ? ", AVX-512"
           : uses(dnnl_cpu_isa_avx2)             ? ", AVX2"
                                                 : ", SSE";
}

bool onednn_has_amx(void) {
    return uses(dnnl_cpu_isa_avx512_core_amx);
}

bool product_reads_in_place(int64_t m, int64_t n) {
    return 1.0 / (double)m + 1.0 / (double)n >= 0.0038 && !uses(dnnl_cpu_isa_avx512_core);
}
#else
static const char *instruction_set(void) {
    return "";
}

bool onednn_has_amx(void) {
    return false;
}

bool product_reads_in_place(int64_t m, int64_t n) {
    (void)m, (void)n;
    return false;
}
#endif

const char *product_library(char *buffer, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    snprintf(buffer, size, "oneDNN %d.%d.%d%s", version->major, version->minor, version->patch,
             instruction_set());
    return buffer;
}

static void product_delete(struct product *product) {
    for (int i = 0; i < N_TENSORS; i++)
        if (product->memories[i])
            dnnl_memory_destroy(product->memories[i]);
    if (product->primitive)
        dnnl_primitive_destroy(product->primitive);
    free(product);
}

enum status product_cache_new(struct product_cache **out) {
    struct product_cache *cache = allocate(1, sizeof *cache);
    dnnl_status_t error = dnnl_engine_create(&cache->engine, dnnl_cpu, 0);
    if (error == dnnl_success)
        error = dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags);
    if (error != dnnl_success) {
        product_cache_delete(cache);
        return FAIL(STATUS_FAILED, "oneDNN cannot start on this processor: %s", dnnl_reason(error));
    }
    *out = cache;
    return STATUS_OK;
}

void product_cache_delete(struct product_cache *cache) {
    if (!cache)
        return;
    for (int i = 0; i < N_BUCKETS; i++)
        for (struct product *product = cache->buckets[i], *next; product; product = next) {
            next = product->next;
            product_delete(product);
        }
    if (cache->stream)
        dnnl_stream_destroy(cache->stream);
    if (cache->engine)
        dnnl_engine_destroy(cache->engine);
    free(cache);
}

// Sets oneDNN to one thread. Returns the previous number of threads.
static int use_one_thread(void) {
    int n = omp_get_max_threads();
    omp_set_num_threads(1);
    return n;
}

// ---- building the primitive of a product

struct layouts {
    struct dnnl_layout of[N_TENSORS];
};

static void layouts_free(struct layouts *layouts) {
    for (int i = 0; i < N_TENSORS; i++)
        dnnl_layout_free(&layouts->of[i]);
}

static dnnl_status_t layout_matrix(struct dnnl_layout *layout, int64_t rows, int64_t columns,
                                   int64_t row_stride, int64_t column_stride, int64_t type) {
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    return dnnl_layout_init(layout, 2, dims, dnnl_type_of(type), strides);
}

static dnnl_status_t layouts_init(struct layouts *layouts, const struct product_shape *s) {
    struct dnnl_layout *of = layouts->of;
    dnnl_status_t error = layout_matrix(&of[TENSOR_A], s->m, s->k, s->a_row, s->a_column, s->type);
    if (error == dnnl_success)
        error = layout_matrix(&of[TENSOR_B], s->k, s->n, s->b_row, s->b_column, s->type);
    if (error == dnnl_success)
        error = layout_matrix(&of[TENSOR_C], s->m, s->n, s->c_row, 1, DTYPE_F32);
    if (error == dnnl_success && s->has_bias)
        error = layout_matrix(&of[TENSOR_BIAS], 1, s->n, s->n, 1, DTYPE_F32);
    if (error == dnnl_success && s->epilogue == PRODUCT_RESIDUAL)
        error = layout_matrix(&of[TENSOR_RESIDUAL], s->m, s->n, s->c_row, 1, DTYPE_F32);
    return error;
}

static dnnl_status_t attributes_set(dnnl_primitive_attr_t attributes, dnnl_post_ops_t post_ops,
                                    const struct product_shape *shape, const struct layouts *layouts) {
    dnnl_status_t error = dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    // Overrides the environment's default, so that fp32 operands are not rounded to bf16 or tf32.
    if (error == dnnl_success)
        error = dnnl_primitive_attr_set_fpmath_mode(attributes, dnnl_fpmath_mode_strict);
    if (error == dnnl_success && shape->epilogue == PRODUCT_RESIDUAL)
        error = dnnl_post_ops_append_binary(post_ops, dnnl_binary_add,
                                            dnnl_layout_get(&layouts->of[TENSOR_RESIDUAL]));
    if (error == dnnl_success && shape->epilogue == PRODUCT_ACCUMULATE)
        error = dnnl_post_op_with_sum(post_ops);
    if (error == dnnl_success)
        error = dnnl_primitive_attr_set_post_ops(attributes, post_ops);
    return error;
}

static dnnl_status_t memories_new(struct product *product, const struct product_cache *cache,
                                  const struct layouts *layouts, const_dnnl_primitive_desc_t description) {
    const struct product_shape *shape = &product->shape;
    dnnl_status_t error = dnnl_success;
    for (int i = 0; i < N_TENSORS && error == dnnl_success; i++) {
        if ((i == TENSOR_BIAS && !shape->has_bias) ||
            (i == TENSOR_RESIDUAL && shape->epilogue != PRODUCT_RESIDUAL))
            continue;
        dnnl_layout_view layout = dnnl_layout_get(&layouts->of[i]);
        if (i == TENSOR_SCRATCH) {
            layout = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
            product->workspace_bytes = layout ? dnnl_memory_desc_get_size(layout) : 0;
            if (product->workspace_bytes == 0)
                continue;
        }
        error = dnnl_memory_create(&product->memories[i], layout, cache->engine, DNNL_MEMORY_NONE);
    }
    return error;
}

static dnnl_status_t product_build(struct product *product, const struct product_cache *cache) {
    struct layouts layouts;
    memset(&layouts, 0, sizeof layouts);
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t post_ops = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t error = layouts_init(&layouts, &product->shape);
    if (error == dnnl_success)
        error = dnnl_primitive_attr_create(&attributes);
    if (error == dnnl_success)
        error = dnnl_post_ops_create(&post_ops);
    if (error == dnnl_success)
        error = attributes_set(attributes, post_ops, &product->shape, &layouts);
    if (error == dnnl_success)
        error = dnnl_matmul_new(&description, cache->engine, &layouts.of[TENSOR_A], &layouts.of[TENSOR_B],
                                &layouts.of[TENSOR_BIAS], &layouts.of[TENSOR_C], attributes);
    // Do not use oneDNN's reference implementation, which is plain loops. Upcasting and multiplying in fp32
    // is hundreds of times faster.
    if (error == dnnl_success && product->shape.type != DTYPE_F32 && dnnl_is_named(description, "ref"))
        error = dnnl_unimplemented;
    if (error == dnnl_success)
        error = memories_new(product, cache, &layouts, description);
    if (error == dnnl_success)
        error = dnnl_primitive_create(&product->primitive, description);
    if (description)
        dnnl_primitive_desc_destroy(description);
    if (post_ops)
        dnnl_post_ops_destroy(post_ops);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    layouts_free(&layouts);
    return error;
}

// ---- finding and running a product

static unsigned bucket_of(const struct product_shape *shape) {
    const unsigned char *bytes = (const unsigned char *)shape;
    uint32_t hash = 2166136261u; // FNV-1a
    for (size_t i = 0; i < sizeof *shape; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return (hash ^ hash >> 16) % N_BUCKETS;
}

enum status product_find(struct product_cache *cache, const struct product_shape *shape,
                         struct product **out) {
    struct product **bucket = &cache->buckets[bucket_of(shape)];
    for (struct product *product = *bucket; product; product = product->next)
        if (memcmp(&product->shape, shape, sizeof *shape) == 0) {
            *out = product;
            return STATUS_OK;
        }
    struct product *product = allocate(1, sizeof *product);
    product->shape = *shape;
    int threads_before = use_one_thread();
    dnnl_status_t error = product_build(product, cache);
    omp_set_num_threads(threads_before);
    if (error != dnnl_success && error != dnnl_unimplemented) {
        product_delete(product);
        return FAIL(STATUS_FAILED, "oneDNN cannot build a matrix product (%lld x %lld x %lld, %s): %s",
                    (long long)shape->m, (long long)shape->n, (long long)shape->k,
                    dtype_name((enum dtype)shape->type), dnnl_reason(error));
    }
    product->next = *bucket;
    *bucket = product;
    *out = product;
    return STATUS_OK;
}

bool product_is_supported(const struct product *product) {
    return product->primitive != NULL;
}

size_t product_workspace_bytes(const struct product *product) {
    return product->workspace_bytes;
}

static dnnl_status_t execute(const struct product_cache *cache, dnnl_primitive_t primitive,
                             const dnnl_exec_arg_t *args, int n_args) {
    int threads_before = use_one_thread();
    dnnl_status_t error = dnnl_primitive_execute(primitive, cache->stream, n_args, args);
    if (error == dnnl_success)
        error = dnnl_stream_wait(cache->stream);
    omp_set_num_threads(threads_before);
    return error;
}

static enum status failed(const struct product *product, dnnl_status_t error) {
    return FAIL(STATUS_FAILED, "oneDNN's matrix product (%lld x %lld x %lld, %s) failed: %s",
                (long long)product->shape.m, (long long)product->shape.n, (long long)product->shape.k,
                dtype_name((enum dtype)product->shape.type), dnnl_reason(error));
}

// During a product's first run, oneDNN allocates memory that it keeps and memory that it frees, which
// leaves gaps in the heap. Returns the gaps to the system.
static void return_gaps(struct product *product) {
#ifdef __GLIBC__
    if (!product->has_run)
        malloc_trim(0);
#endif
    product->has_run = true;
}

enum status product_run(struct product_cache *cache, struct product *product,
                        const struct product_operands *operands, void *workspace) {
    static const int names[N_TENSORS] = {
        DNNL_ARG_SRC,
        DNNL_ARG_WEIGHTS,
        DNNL_ARG_DST,
        DNNL_ARG_BIAS,
        // the residual, which the post-op at index 0 adds
        DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1,
        DNNL_ARG_SCRATCHPAD,
    };
    void *const data[N_TENSORS] = {
        (void *)(uintptr_t)operands->a,    (void *)(uintptr_t)operands->b,        operands->c,
        (void *)(uintptr_t)operands->bias, (void *)(uintptr_t)operands->residual, workspace,
    };
    dnnl_exec_arg_t args[N_TENSORS];
    int n_args = 0;
    dnnl_status_t error = dnnl_success;
    for (int i = 0; i < N_TENSORS && error == dnnl_success; i++) {
        if (!product->memories[i])
            continue;
        error = dnnl_memory_set_data_handle(product->memories[i], data[i]);
        args[n_args++] = (dnnl_exec_arg_t){names[i], product->memories[i]};
    }
    if (error == dnnl_success)
        error = execute(cache, product->primitive, args, n_args);
    return_gaps(product);
    return error == dnnl_success ? STATUS_OK : failed(product, error);
}
