// See zero/partition/second_moments.h.
#include "zero/partition/second_moments.h"

#include <stdlib.h>

static size_t factors_of(const struct param *param) {
    return (size_t)factors_rows(param) + (size_t)factors_columns(param);
}

size_t factors_of_unit(const struct params *params, int unit) {
    const struct param_unit *u = &params->units[unit];
    size_t n = 0;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        n += factors_of(&params->params[i]);
    return n;
}

enum { SUMS, NORMS, SCALES };

static enum status add_place(struct factors *factors, enum region_place place, struct region_table *table) {
    int *regions = factors->regions[place];
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, 2 * factors->n, &regions[SUMS], "sums of squares"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, FACTORS_NORMS * (size_t)factors->params->n_params,
                   &regions[NORMS], "norms of updates"));
    return region_add(table, REGION_DATA, place, DTYPE_F32, factors->n, &regions[SCALES],
                      "scales of updates");
}

enum status factors_init(struct factors *factors, const struct config *config, const struct params *params,
                         struct device *device, struct region_table *table) {
    *factors = (struct factors){.params = params, .apart = device->place != REGION_HOST};
    if (config->optimizer.type != CONFIG_OPTIMIZER_ADAFACTOR)
        return STATUS_OK;
    factors->first = calloc((size_t)params->n_params + 1, sizeof *factors->first);
    if (!factors->first)
        return FAIL(STATUS_FAILED, "out of memory for the factors of %d tensors", params->n_params);
    for (int i = 0; i < params->n_params; i++)
        factors->first[i + 1] = factors->first[i] + factors_of(&params->params[i]);
    factors->n = factors->first[params->n_params];
    TRY(region_add(table, REGION_MOMENTS, REGION_HOST, DTYPE_F32, factors->n, &factors->factors_region,
                   "factors"));
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, (size_t)params->n_params,
                   &factors->bounds_region, "bounds of updates"));
    TRY(add_place(factors, REGION_HOST, table));
    return factors->apart ? add_place(factors, REGION_DEVICE, table) : STATUS_OK;
}

static void bind_place(const struct factors *factors, enum region_place place,
                       const struct region_table *table, struct factors_place *out) {
    const int *regions = factors->regions[place];
    *out = (struct factors_place){.sums = region_data(table, regions[SUMS]),
                                  .norms = region_data(table, regions[NORMS]),
                                  .scales = region_data(table, regions[SCALES])};
}

void factors_bind(struct factors *factors, const struct region_table *table) {
    if (factors->n == 0)
        return;
    factors->factors = region_data(table, factors->factors_region);
    factors->bounds = region_data(table, factors->bounds_region);
    bind_place(factors, REGION_HOST, table, &factors->host);
    bind_place(factors, factors->apart ? REGION_DEVICE : REGION_HOST, table, &factors->device);
}

void factors_free(struct factors *factors) {
    free(factors->first);
    *factors = (struct factors){0};
}

float *factors_unit_at(const struct factors *factors, int unit) {
    return factors->factors + factors->first[factors->params->units[unit].first_param];
}
