// Adafactor's optimizer states: second moments per row and per column of a matrix, and per element of a
// vector. They are small, so every rank keeps all of them in host memory, with the sums that they are updated
// from and the scales derived from them. Arrays hold tensor after tensor, rows before columns. The step
// itself is zero/stages/adafactor.h.
#ifndef ZERO_ZERO_PARTITION_SECOND_MOMENTS_H
#define ZERO_ZERO_PARTITION_SECOND_MOMENTS_H

#include "base/region.h"
#include "configs/config.h"
#include "kernels/device.h"
#include "model/params.h"

// The number of a tensor's row moments (0 for a vector) and column moments (a vector: one per element).
static inline int second_moments_rows(const struct param *param) {
    return param->n_dims > 1 ? (int)param->shape[0] : 0;
}
static inline int second_moments_columns(const struct param *param) {
    return (int)param->shape[param->n_dims - 1];
}
// Of all tensors of a unit, rows and columns.
size_t second_moments_of_unit(const struct params *params, int unit);

#define UPDATE_NORMS 4 // sums that the operation adafactor_norms takes per tensor

// Scratch of a step in one place. The host has all of it; a device with its own memory has what its
// operations use.
struct second_moments_place {
    double *sums;  // (2 n) from adafactor_sums: of each tensor its row sums, then its column sums
    double *norms; // (UPDATE_NORMS n_params) from adafactor_norms
    float *scales; // (n) factors that turn gradients into updates
};

struct second_moments {
    const struct params *params;
    size_t n;      // moments of all tensors; 0 with any other optimizer: then nothing is allocated
    size_t *first; // (n_params + 1) a tensor's first moment in `values`
    int region, bounds_region, regions[N_REGION_PLACES][3];
    float *values;                            // (n) the moments: the only array that checkpoints keep
    double *bounds;                           // (n_params) upper bounds of the sums of squares of updates
    bool has_device_arrays;                   // the device has its own memory, and so its own scratch
    struct second_moments_place host, device; // the same arrays where the device is the host
};

// Adds regions if the optimizer is Adafactor. Call second_moments_free also after a failure.
enum status second_moments_init(struct second_moments *moments, const struct config *config,
                                const struct params *params, struct device *device,
                                struct region_table *table) MUST_CHECK;
void second_moments_bind(struct second_moments *moments, const struct region_table *table);
void second_moments_free(struct second_moments *moments);

// The moments of a unit: second_moments_of_unit values, tensor by tensor.
float *second_moments_at(const struct second_moments *moments, int unit);

#endif
