#include "zero/partition/partial_sums.h"

#include "kernels/ops.h"

// Partial sum 0 is the shard, except where the shard holds earlier micro-batches.
static bool has_own_array(const struct stage *stage, int t) {
    return t > 0 || (stage->logical.every && stage_may_accumulate(stage->config, &stage->logical));
}

enum status partial_sums_init(struct partial_sums *sums, const struct stage *stage, enum region_place place,
                              size_t elements, const char *name, struct region_table *table) {
    *sums = (struct partial_sums){.stage = stage, .elements = elements};
    TRY(region_add(table, REGION_GRADS, place, DTYPE_F32, elements, &sums->shard_region, "%s", name));
    for (int t = 0; t < LOGICAL_MOST_PARTIALS; t++) {
        sums->regions[t] = -1;
        if (t < logical_partials(&stage->logical) && has_own_array(stage, t))
            TRY(region_add(table, REGION_GRADS, place, DTYPE_F32, elements, &sums->regions[t],
                           "partial sums of %s, %d", name, t));
    }
    return STATUS_OK;
}

void partial_sums_bind(struct partial_sums *sums, const struct region_table *table) {
    sums->shard = region_data(table, sums->shard_region);
    for (int t = 0; t < LOGICAL_MOST_PARTIALS; t++)
        sums->partials[t] = sums->regions[t] >= 0 ? region_data(table, sums->regions[t]) : NULL;
}

static float *array_at(const struct partial_sums *sums, const struct logical_micro_batch *at, int t) {
    return t == 0 && logical_is_in_shard(&sums->stage->logical, at) ? sums->shard : sums->partials[t];
}

float *partial_sums_of(const struct partial_sums *sums, const struct logical_micro_batch *at) {
    return array_at(sums, at, at->partial);
}

static enum status add(const struct partial_sums *sums, struct stream *stream, float *to, const float *from) {
    const struct add_args args = {.out = to, .x = to, .y = from, .n = sums->elements, .type = DTYPE_F32};
    return sums->elements > 0 ? stream->device->ops->add(stream, &args) : STATUS_OK;
}

enum status partial_sums_fold(const struct partial_sums *sums, struct stream *stream,
                              const struct logical_micro_batch *at) {
    for (int t = at->partial; t > at->partial - at->n_folds; t--)
        TRY(add(sums, stream, array_at(sums, at, t - 1), array_at(sums, at, t)));
    return at->adds_shard ? add(sums, stream, sums->shard, sums->partials[0]) : STATUS_OK;
}
