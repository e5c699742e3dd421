// Planning and finding the arrays; zero/stages/adafactor.c computes with them.
#include "zero/partition/second_moments.h"

#include <stdlib.h>

#include "zero/partition/optimizer_groups.h"

static size_t n_moments_of(const struct param *param) {
    return (size_t)second_moments_rows(param) + (size_t)second_moments_columns(param);
}

size_t second_moments_of_unit(const struct params *params, int unit) {
    const struct param_unit *u = &params->units[unit];
    size_t n = 0;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++)
        n += n_moments_of(&params->params[i]);
    return n;
}

enum { SUMS, NORMS, SCALES };

static enum status add_place(struct second_moments *moments, enum region_place place,
                             struct region_table *table) {
    int *regions = moments->regions[place];
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, 2 * moments->n, &regions[SUMS],
                   "row and column sums of squares"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, UPDATE_NORMS * (size_t)moments->params->n_params,
                   &regions[NORMS], "update norms"));
    return region_add(table, REGION_DATA, place, DTYPE_F32, moments->n, &regions[SCALES], "update scales");
}

enum status second_moments_init(struct second_moments *moments, const struct config *config,
                                const struct params *params, struct device *device,
                                struct region_table *table) {
    *moments = (struct second_moments){.params = params, .has_device_arrays = device->place != REGION_HOST};
    if (optimizer_traits_of(config, config->optimizer.type).method != METHOD_FACTORED)
        return STATUS_OK;
    moments->first = calloc((size_t)params->n_params + 1, sizeof *moments->first);
    if (!moments->first)
        return FAIL(STATUS_FAILED, "out of memory for the second moments of %d tensors", params->n_params);
    for (int i = 0; i < params->n_params; i++)
        moments->first[i + 1] = moments->first[i] + n_moments_of(&params->params[i]);
    moments->n = moments->first[params->n_params];
    TRY(region_add(table, REGION_MOMENTS, REGION_HOST, DTYPE_F32, moments->n, &moments->region,
                   "row and column second moments"));
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, (size_t)params->n_params,
                   &moments->bounds_region, "update bounds"));
    TRY(add_place(moments, REGION_HOST, table));
    return moments->has_device_arrays ? add_place(moments, REGION_DEVICE, table) : STATUS_OK;
}

static void bind_place(const struct second_moments *moments, enum region_place place,
                       const struct region_table *table, struct second_moments_place *out) {
    const int *regions = moments->regions[place];
    *out = (struct second_moments_place){.sums = region_data(table, regions[SUMS]),
                                         .norms = region_data(table, regions[NORMS]),
                                         .scales = region_data(table, regions[SCALES])};
}

void second_moments_bind(struct second_moments *moments, const struct region_table *table) {
    if (moments->n == 0)
        return;
    moments->values = region_data(table, moments->region);
    moments->bounds = region_data(table, moments->bounds_region);
    bind_place(moments, REGION_HOST, table, &moments->host);
    bind_place(moments, moments->has_device_arrays ? REGION_DEVICE : REGION_HOST, table, &moments->device);
}

void second_moments_free(struct second_moments *moments) {
    free(moments->first);
    *moments = (struct second_moments){0};
}

float *second_moments_at(const struct second_moments *moments, int unit) {
    return moments->values + moments->first[moments->params->units[unit].first_param];
}
