// Hides the difference between oneDNN 2.x and 3.x: 2.x passes memory descriptors by value and builds
// primitive descriptors in two steps; 3.x has opaque handles and one step. Other calls are the same in both.
#ifndef ZERO_KERNELS_CPU_DNNL_API_H
#define ZERO_KERNELS_CPU_DNNL_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <string.h>

// True if the name of the implementation behind a primitive descriptor starts with `start` ("gemm", "brg").
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
    dnnl_memory_desc_t value; // of no dimensions: no tensor
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
#endif
