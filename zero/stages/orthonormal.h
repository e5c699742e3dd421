// Orthonormal rows by Householder reflections, blocked in their compact WY form (Schreiber and Van Loan
// 1989): row by row, each made orthogonal to those before it, as torch.linalg.qr does with columns. Panels of
// ORTHONORMAL_PANEL rows are factorized on the host in double; everything else is products of the device.
// Those with all other rows are of ORTHONORMAL_BLOCK reflections at a time, so that they work at the rate of
// large products wherever the matrix is.
//
// Unlike Gram-Schmidt or Cholesky it needs no condition: rows that depend on others, or are zero, give
// orthonormal rows like all others.
//
// Determinism: the bits depend on the matrix, the device and its number of threads.
#ifndef ZERO_ZERO_STAGES_ORTHONORMAL_H
#define ZERO_ZERO_STAGES_ORTHONORMAL_H

#include "base/region.h"
#include "kernels/device.h"

#define ORTHONORMAL_PANEL 32
#define ORTHONORMAL_BLOCK 128 // a multiple of it

struct orthonormal {
    struct device *device;
    enum dtype type;
    // Called with its context panel by panel, for those who watch whether work goes on; NULL: nobody does.
    void (*progress)(void *);
    void *progress_context;
    int regions[9];
    void *turned, *scaled; // (ORTHONORMAL_BLOCK, side) a block's products
    void *factors;         // (blocks, ORTHONORMAL_BLOCK, ORTHONORMAL_BLOCK) of the WY form
    void *panel_factor;    // (ORTHONORMAL_PANEL, ORTHONORMAL_PANEL) likewise, of a panel
    // Host:
    double *panel;         // (ORTHONORMAL_PANEL, side)
    double *factor, *gram; // (ORTHONORMAL_BLOCK, ORTHONORMAL_BLOCK) each
    double *scales;        // (ORTHONORMAL_BLOCK) of a block's reflections
    void *staged;          // what is copied: rows of a panel, or a block's factor
};

// Adds regions to `table` for matrices of up to `side` columns.
//   type   fp32 (F64: tests/ref)
enum status orthonormal_plan(struct orthonormal *o, struct device *device, enum dtype type, int side,
                             struct region_table *table) MUST_CHECK;
void orthonormal_bind(struct orthonormal *o, const struct region_table *table);
// The workspace that orthonormal_run needs for these sizes.
enum status orthonormal_workspace(const struct orthonormal *o, int rows, int n, size_t *bytes) MUST_CHECK;
// Makes `out` (n, n) orthonormal: its first rows span what those of `a` span, each its first ones likewise;
// the others complete them.
//   a   [rw] (rows, n) with rows <= n; overwritten
// Waits for the stream. STATUS_FAILED when `a` holds values that are not finite.
enum status orthonormal_run(const struct orthonormal *o, struct stream *stream, void *a, int rows, int n,
                            void *out) MUST_CHECK;

// Copies up to (ORTHONORMAL_PANEL, side) elements between the device, in its type, and doubles of the host.
// Waits for the stream.
enum status orthonormal_fetch(const struct orthonormal *o, struct stream *stream, const void *from, size_t n,
                              double *to) MUST_CHECK;
enum status orthonormal_store(const struct orthonormal *o, struct stream *stream, void *to, size_t n,
                              const double *from) MUST_CHECK;

#endif
