// What Adafactor keeps beside the weights: for a matrix a second moment of each row and one of each column,
// for other tensors one of each element. It is little, so every rank has all of it, in host memory, together
// with the sums that it is made from and the scales that updates are made with. Laid out tensor by tensor,
// rows before columns; zero/stages/adafactor.h works on it.
#ifndef ZERO_ZERO_PARTITION_SECOND_MOMENTS_H
#define ZERO_ZERO_PARTITION_SECOND_MOMENTS_H

#include "base/region.h"
#include "configs/config.h"
#include "kernels/device.h"
#include "model/params.h"

// How many factors a tensor has by rows (0 in one dimension) and by columns; all of a unit's.
static inline int second_moments_rows(const struct param *param) {
    return param->n_dims > 1 ? (int)param->shape[0] : 0;
}
static inline int second_moments_columns(const struct param *param) {
    return (int)param->shape[param->n_dims - 1];
}
size_t second_moments_of_unit(const struct params *params, int unit);

#define UPDATE_NORMS 4 // sums of adafactor_norms, a tensor

// One place's arrays: the host has all, a device with memory of its own those that its operations use.
struct second_moments_place {
    double *sums;  // (2 n) adafactor_sums: a tensor's row sums, then its column sums
    double *norms; // (UPDATE_NORMS n_params)
    float *scales; // (n)
};

struct second_moments {
    const struct params *params;
    size_t n;      // of all tensors; 0 where the optimizer is another: then nothing is kept
    size_t *first; // (n_params + 1) where a tensor's begin
    int region, bounds_region, regions[N_REGION_PLACES][3];
    float *values;                            // (n)
    double *bounds;                           // (n_params) of the sums of squares of updates
    bool apart;                               // the device has arrays of its own
    struct second_moments_place host, device; // the device's are the host's where it is the host
};

// Adds regions, if the optimizer is Adafactor. Free with second_moments_free, also after a failure.
enum status second_moments_init(struct second_moments *moments, const struct config *config,
                                const struct params *params, struct device *device,
                                struct region_table *table) MUST_CHECK;
void second_moments_bind(struct second_moments *moments, const struct region_table *table);
void second_moments_free(struct second_moments *moments);

// A unit's factors, all of its tensors' one after the other.
float *second_moments_at(const struct second_moments *moments, int unit);

#endif
