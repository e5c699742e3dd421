// Matrix products by oneDNN on the calling thread: c = epilogue(a b + bias). The primitive of each shape is
// built once and cached. Sums are fp32, and fp32 operands are never rounded to a type with fewer bits. Used
// only by matmul.c, which splits large products into smaller ones.
#ifndef ZERO_KERNELS_CPU_ONEDNN_H
#define ZERO_KERNELS_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"

enum product_epilogue {
    PRODUCT_PLAIN,      // c = a b + bias
    PRODUCT_RESIDUAL,   // c = a b + bias + residual
    PRODUCT_ACCUMULATE, // c = c + a b
};

// Every field has 64 bits, so that shapes can be compared and hashed as bytes.
struct product_shape {
    int64_t m, n, k;
    int64_t a_row, a_column; // strides of a (m, k) and b (k, n) in elements; one of each pair is 1
    int64_t b_row, b_column;
    int64_t c_row;    // stride between rows of c (m, n), which is fp32
    int64_t type;     // of a and b (enum dtype)
    int64_t has_bias; // true: bias (n), which is fp32, is added; otherwise none
    int64_t epilogue; // enum product_epilogue; residual is fp32 and has c's strides
};

// Estimated heap per thread that oneDNN's buffers take once each shape has run, with the gaps between them.
// Measured at widths of 768 to 2048 in fp32 and bf16: 3 to 6 MiB per thread with 1 or 2 threads, 0 to 10
// MiB with 4 or 8.
#define PRODUCT_HEAP_BYTES ((size_t)5 << 20)

// One cache per thread: it must not be used by two threads at once.
struct product_cache;
struct product;

enum status product_cache_new(struct product_cache **out) MUST_CHECK;
void product_cache_delete(struct product_cache *cache); // no-op for NULL

// Returns the product of this shape, cached or new. The cache owns it.
enum status product_find(struct product_cache *cache, const struct product_shape *shape,
                         struct product **out) MUST_CHECK;
// False if oneDNN lacks the type on this processor: bf16 before AVX-512, fp16 before AVX-512-FP16.
bool product_is_supported(const struct product *product);

struct product_operands {
    const void *a, *b;
    const float *bias, *residual; // read if the shape includes them
    float *c;
};
size_t product_workspace_bytes(const struct product *product);
// Computes the product.
//   workspace   product_workspace_bytes(product) bytes, aligned to 64 bytes
enum status product_run(struct product_cache *cache, struct product *product,
                        const struct product_operands *operands, void *workspace) MUST_CHECK;

// Returns the row stride, in elements, to use for rows of n fp32 elements. If n is a multiple of 64, as in
// most tiles, the stride is not a multiple of 4 KiB, which would map all rows to the same few cache sets.
static inline int64_t product_row(int64_t n) {
    return (n + 15) / 16 * 16 + 16;
}

// True if oneDNN does not pack the operands of an fp32 product (m, n) but reads them where they are: without
// AVX-512, if 1 / m + 1 / n >= 0.0038. It is fastest if the rows of a (m, k) and of b (k, n) are contiguous
// and those of b do not share cache sets: GFLOP/s of 256 x 768 with 1024 terms on a core of Zen 3 that reach
//   rows of both, a product_row of b   86        columns of a, a product_row of b and of a   83
//   columns of b                       74 to 80  columns of a, strides of 768                65
//   rows of both, b with 4 KiB         37
// Packing reaches 75 to 82, but takes larger products, of which a layer has few.
bool product_reads_in_place(int64_t m, int64_t n);

// True if oneDNN multiplies bf16 on AMX.
bool onednn_has_amx(void);
// "oneDNN 2.6.3, AVX2": the library and the instruction set, which determine the rounding of products.
// ONEDNN_MAX_CPU_ISA may limit the instruction set.
const char *product_library(char *buffer, size_t size);

#endif
