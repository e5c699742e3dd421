// Chooses buffers and issues reductions. zero/comm computes the sums.
#include "zero/stages/gradients.h"

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/ops.h"

// ---- buckets

void gradients_build_buckets(struct gradients *gradients) {
    const struct stage *stage = gradients->stage;
    const struct partition *trained = partition_trained(stage->partition);
    const struct params *params = stage->params;
    const bool to_shard = stage_reduces_to_shard(stage->config, &stage->logical);
    buckets_init(&gradients->reduce_buckets, stage->options.reduce_bucket);
    buckets_init(&gradients->gather_buckets, stage->options.allgather_bucket);
    // Reduces units in the order in which they become ready: the last unit first.
    for (int unit = params->n_units - 1; !stage_shards_grads(stage->config) && unit >= 0; unit--) {
        struct buffer_layout here = BUFFER_GRADS(params->units[unit].trained_offset);
        buckets_add(&gradients->reduce_buckets, trained, unit, 0, params->units[unit].elements, here,
                    to_shard ? BUFFER_SHARD : here);
    }
    for (int unit = 0; !stage_shards_optimizer(stage->config) && unit < params->n_units; unit++) {
        struct buffer_layout here = BUFFER_GRADS(params->units[unit].trained_offset);
        buckets_add(&gradients->gather_buckets, trained, unit, 0, params->units[unit].elements,
                    to_shard ? BUFFER_SHARD : here, here);
    }
    buckets_finish(&gradients->reduce_buckets);
    buckets_finish(&gradients->gather_buckets);
    for (int unit = 0; stage_shards_grads(stage->config) && unit < params->n_units; unit++) {
        struct reduction *reduction = &gradients->reductions[unit];
        if (partition_repeats(trained, params, unit)) {
            reduction->buckets = gradients->reductions[unit - 1].buckets;
            continue;
        }
        reduction->buckets = &reduction->own_buckets;
        buckets_init(&reduction->own_buckets, stage->options.reduce_bucket);
        buckets_add(&reduction->own_buckets, trained, unit, 0, params->units[unit].elements, BUFFER_GRADS(0),
                    BUFFER_UNIT_SHARD);
        buckets_finish(&reduction->own_buckets);
    }
}

// ---- planning and binding

// Fails if a list of buckets would need more than BUCKETS_MAX_CALLS collectives. The number is computed
// from element counts, because planning builds no lists.
static enum status check_calls(const struct stage *stage) {
    const struct params *params = stage->params;
    if (!stage_shards_optimizer(stage->config))
        TRY(buckets_check(params->n_trained, stage->options.allgather_bucket));
    if (!stage_shards_grads(stage->config))
        return buckets_check(params->n_trained, stage->options.reduce_bucket);
    for (int unit = 0; unit < params->n_units; unit++)
        TRY(buckets_check(params->units[unit].trained, stage->options.reduce_bucket));
    return STATUS_OK;
}

static enum status add_buffer(struct gradients *gradients, struct region_table *table, size_t elements,
                              const char *of, int number) {
    struct gradient_buffer *buffer = &gradients->buffers[gradients->n_buffers++];
    *buffer = (struct gradient_buffer){.unit = -1, .padded_for = -1};
    return region_add(table, REGION_COMMUNICATION, gradients->stage->device->place, DTYPE_F32, elements,
                      &buffer->region, "grads of %s%d", of, number);
}

// Plans the gradient buffers: a pool shared by the units to whose gradients a training pass adds only once,
// and a buffer of its own for each unit to which it adds more often. Without overlap, a pool buffer is free
// again when its reduction returns, so the pool needs only one.
//   contributions   (n_units) how many times a training pass adds to the gradients of each unit
static enum status add_buffers(struct gradients *gradients, const int *contributions,
                               struct region_table *table) {
    const struct stage *stage = gradients->stage;
    const struct params *params = stage->params;
    const enum region_place place = stage->device->place;
    size_t largest = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        const size_t elements = params_unit_grad_memory(params, unit, place);
        if (contributions[unit] == 1 && elements > largest)
            largest = elements;
    }
    gradients->n_pool = stage->options.overlap ? GRADIENT_POOL : 1;
    for (int i = 0; i < gradients->n_pool; i++)
        TRY(add_buffer(gradients, table, largest, "a unit, ", i));
    for (int unit = 0; unit < params->n_units; unit++)
        if (contributions[unit] > 1) {
            gradients->reductions[unit].own = &gradients->buffers[gradients->n_buffers];
            TRY(add_buffer(gradients, table, params_unit_grad_memory(params, unit, place), "unit ", unit));
        }
    return STATUS_OK;
}

static enum status plan_buffers(struct gradients *gradients, struct region_table *table) {
    const struct trace *training = &gradients->stage->traces[TRACE_TRAINING];
    const size_t n_units = (size_t)gradients->stage->params->n_units;
    int *contributions = allocate(n_units, sizeof *contributions);
    for (int i = 0; i < training->n_events; i++)
        contributions[training->events[i].unit] +=
            training->events[i].acquires && gpt_pass_adds_grads(training->events[i].pass);
    gradients->reductions = allocate(n_units, sizeof *gradients->reductions);
    gradients->buffers = allocate(GRADIENT_POOL + n_units, sizeof *gradients->buffers);
    enum status status = add_buffers(gradients, contributions, table);
    free(contributions);
    return status;
}

enum status gradients_init(struct gradients *gradients, const struct stage *stage, struct offload *offload,
                           struct region_table *table) {
    const enum region_place place = stage->device->place;
    *gradients = (struct gradients){.stage = stage, .offload = offload, .whole_region = -1};
    TRY(check_calls(stage));
    TRY(stage_shards_grads(stage->config)
            ? plan_buffers(gradients, table)
            : region_add(table, REGION_GRADS, place, DTYPE_F32, params_grad_memory(stage->params, place),
                         &gradients->whole_region, "grads"));
    return stage_reduces_to_shard(stage->config, &stage->logical)
               ? partial_sums_init(&gradients->sums, stage, place, offload_device_elements(offload),
                                   "grads of the shard", table)
               : STATUS_OK;
}

static void list_tensors(struct gradients *gradients) {
    const struct params *params = gradients->stage->params;
    const bool whole = !stage_shards_grads(gradients->stage->config);
    const size_t n = (size_t)params->n_params, n_lists = whole ? 1 : (size_t)gradients->n_buffers;
    gradients->tensors = allocate(n_lists * n, sizeof *gradients->tensors);
    for (size_t i = 0; i < n && whole; i++) {
        const struct param *param = &params->params[i];
        if (!param->is_frozen)
            gradients->tensors[i] =
                gradients->whole + params->units[param->unit].trained_offset + param->grad_offset;
    }
    for (size_t k = 0; k < n_lists && !whole; k++) {
        struct gradient_buffer *buffer = &gradients->buffers[k];
        buffer->tensors = gradients->tensors + k * n;
        for (size_t i = 0; i < n; i++)
            if (!params->params[i].is_frozen)
                buffer->tensors[i] = buffer->data + params->params[i].grad_offset;
    }
}

void gradients_bind(struct gradients *gradients, const struct region_table *table) {
    gradients->whole = gradients->whole_region < 0 ? NULL : region_data(table, gradients->whole_region);
    if (gradients->sums.stage)
        partial_sums_bind(&gradients->sums, table);
    for (int i = 0; i < gradients->n_buffers; i++)
        gradients->buffers[i].data = region_data(table, gradients->buffers[i].region);
    list_tensors(gradients);
    gradients_build_buckets(gradients);
}

void gradients_free(struct gradients *gradients) {
    buckets_free(&gradients->reduce_buckets);
    buckets_free(&gradients->gather_buckets);
    for (int unit = 0; gradients->reductions && unit < gradients->stage->params->n_units; unit++)
        buckets_free(&gradients->reductions[unit].own_buckets);
    free(gradients->reductions);
    free(gradients->tensors);
    free(gradients->buffers);
    *gradients = (struct gradients){0};
}

// ---- the micro-batches of a step

static enum status clear(const struct gradients *gradients, struct stream *stream, float *data, size_t n) {
    const struct fill_args fill = {.out = data, .n = n, .type = DTYPE_F32};
    return n > 0 ? gradients->stage->device->ops->fill(stream, &fill) : STATUS_OK;
}

// Zeroes the padding between a unit's tensors; backward itself overwrites the tensors (beta = 0). The
// padding stays zero until a unit with another layout uses the buffer.
static enum status clear_padding(const struct gradients *gradients, struct stream *stream,
                                 struct gradient_buffer *buffer, int unit) {
    const struct params *params = gradients->stage->params;
    const struct param_unit *u = &params->units[unit];
    if (buffer->padded_for >= 0 && params_same_layout(params, buffer->padded_for, unit))
        return STATUS_OK;
    buffer->padded_for = unit;
    size_t done = 0;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const struct param *param = &params->params[i];
        if (param->is_frozen)
            continue;
        TRY(clear(gradients, stream, buffer->data + done, param->grad_offset - done));
        done = param->grad_offset + param->elements;
    }
    return clear(gradients, stream, buffer->data + done, u->trained - done);
}

// Stages 2 and 3: calls offload_reduced for the frozen units unit - 1, unit - 2, ... up to the first that is
// not frozen. They have nothing to reduce, but zero/offload expects a call for every unit, in descending
// order.
static enum status skip_frozen(struct gradients *gradients, struct stream *stream, int unit) {
    const struct params *params = gradients->stage->params;
    while (--unit >= 0 && params_unit_is_frozen(params, unit))
        TRY(offload_reduced(gradients->offload, stream, unit, 0));
    return STATUS_OK;
}

// Adds up the partial sums of the micro-batch whose reductions were issued last. Called before the next
// reduction is issued: the reductions have then had the time of a forward pass to finish.
static enum status fold(struct gradients *gradients, struct stream *stream) {
    const struct logical_micro_batch unfolded = gradients->unfolded;
    gradients->unfolded = (struct logical_micro_batch){0};
    if (!partial_sums_folds(&unfolded) || offload_uses_staging(gradients->offload))
        return STATUS_OK;
    TRY(comm_wait(gradients->stage->comm, stream, COMM_WORK_ALL));
    return partial_sums_fold(&gradients->sums, stream, &unfolded);
}

enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t i, int64_t n) {
    const struct stage *stage = gradients->stage;
    if (i > 0 && gradients->at.is_reduced)
        gradients->unfolded = gradients->at;
    gradients->at = logical_micro_batch_of(&stage->logical, i, n / logical_per_rank(&stage->logical));
    gradients->beta_zero = stage->logical.every || gradients->at.k == 0;
    gradients->next_call = 0;
    gradients->n_taken = 0;
    TRY(offload_begin(gradients->offload, i == n - 1, &gradients->at));
    if (stage_shards_grads(stage->config))
        return skip_frozen(gradients, stream, stage->params->n_units);
    if (!gradients->beta_zero)
        return STATUS_OK;
    return comm_wait(stage->comm, stream, COMM_WORK_ALL); // earlier reductions may still read the buffer
}

// Returns the buffer that holds a unit's gradients, or is reserved for them; NULL if the unit has none yet.
static struct gradient_buffer *buffer_of(struct gradients *gradients, int unit) {
    if (gradients->reductions[unit].own)
        return gradients->reductions[unit].own;
    for (int i = 0; i < gradients->n_pool; i++)
        if (gradients->buffers[i].unit == unit)
            return &gradients->buffers[i];
    return NULL;
}

// Takes a buffer of the pool. Buffers are used in turn, starting with the first in each micro-batch, so
// that a unit's gradients are always at the same address. The next buffer is the one whose reduction was
// issued first, so its reduction is most likely done.
static struct gradient_buffer *next_buffer(struct gradients *gradients) {
    struct gradient_buffer *buffer = &gradients->buffers[gradients->n_taken++ % gradients->n_pool];
    assert(buffer->unit < 0); // backward has at most one unit in the pool whose gradients are not ready
    return buffer;
}

enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) {
    const struct stage *stage = gradients->stage;
    const int first = stage->params->units[unit].first_param;
    view->beta_zero = gradients->beta_zero;
    if (!stage_shards_grads(stage->config)) {
        view->grads = gradients->tensors + first;
        return STATUS_OK;
    }
    struct gradient_buffer *buffer = buffer_of(gradients, unit);
    if (!buffer)
        buffer = next_buffer(gradients);
    view->grads = buffer->tensors + first;
    if (buffer->unit == unit) // backward adds to the same gradients once more
        return STATUS_OK;
    buffer->unit = unit;
    TRY(comm_wait(stage->comm, stream, buffer->work));
    return clear_padding(gradients, stream, buffer, unit);
}

// Stages 0 and 1: returns the lowest unit such that all reductions of it and of the higher units have been
// issued; n_units if there is none. This follows from the number of issued calls, because each call but the
// list's last reduces bucket_elements elements.
static int lowest_issued(const struct gradients *gradients) {
    const struct params *params = gradients->stage->params;
    const size_t issued = (size_t)gradients->next_call * gradients->reduce_buckets.bucket_elements;
    int lowest = params->n_units;
    while (lowest > 0 && params->n_trained - params->units[lowest - 1].trained_offset <= issued)
        lowest--;
    return lowest;
}

// Stages 0 and 1: reduces the buckets that are now full, in place or into the shard.
static enum status reduce_full_buckets(struct gradients *gradients, struct stream *stream, int unit) {
    const struct stage *stage = gradients->stage;
    const struct buckets *buckets = &gradients->reduce_buckets;
    float *to = gradients->sums.shard ? partial_sums_of(&gradients->sums, &gradients->at) : gradients->whole;
    comm_work work = 0;
    for (int *i = &gradients->next_call; *i < buckets->n_calls && buckets->last_unit[*i] >= unit; ++*i)
        TRY(comm_reduce_scatter(stage->comm, stream, &buckets->calls[*i], gradients->whole, to,
                                stage->options.gradient_comm_dtype, gradients->at.adds, &work));
    return offload_reduced(gradients->offload, stream, lowest_issued(gradients), work);
}

// Stages 2 and 3: reduces the unit's buffer into its unit shard, in the sums or in offload's staging buffer.
static enum status reduce_unit(struct gradients *gradients, struct stream *stream, int unit) {
    const struct stage *stage = gradients->stage;
    const struct buckets *buckets = gradients->reductions[unit].buckets;
    struct gradient_buffer *buffer = buffer_of(gradients, unit);
    float *to;
    if (offload_uses_staging(gradients->offload))
        TRY(offload_staging(gradients->offload, stream, unit, &to));
    else
        to =
            partial_sums_of(&gradients->sums, &gradients->at) + stage_unit_shard(&stage->owned_trained, unit);
    buffer->unit = -1;
    buffer->work = 0;
    for (int i = 0; i < buckets->n_calls; i++)
        TRY(comm_reduce_scatter(stage->comm, stream, &buckets->calls[i], buffer->data, to,
                                stage->options.gradient_comm_dtype, gradients->at.adds, &buffer->work));
    TRY(offload_reduced(gradients->offload, stream, unit, buffer->work));
    return skip_frozen(gradients, stream, unit);
}

// One rank alone sends nothing, so that no collective rounds the gradients of its logical ranks to the
// communication dtype. Rounds a unit's gradients in place.
static enum status round_alone(struct gradients *gradients, struct stream *stream, int unit) {
    const struct stage *stage = gradients->stage;
    const struct param_unit *u = &stage->params->units[unit];
    float *data = stage_shards_grads(stage->config) ? buffer_of(gradients, unit)->data
                                                    : gradients->whole + u->trained_offset;
    const struct cast_args args = {
        .out = data, .x = data, .n = u->trained, .through = stage->options.gradient_comm_dtype};
    return stage->world == 1 && args.through != DTYPE_F32 ? stage->device->ops->cast(stream, &args)
                                                          : STATUS_OK;
}

enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) {
    if (!gradients->at.is_reduced)
        return STATUS_OK;
    TRY(fold(gradients, stream));
    TRY(round_alone(gradients, stream, unit));
    return stage_shards_grads(gradients->stage->config) ? reduce_unit(gradients, stream, unit)
                                                        : reduce_full_buckets(gradients, stream, unit);
}

enum status gradients_finish(struct gradients *gradients, struct stream *stream) {
    comm_work work;
    struct comm *comm = gradients->stage->comm;
    const float *from = gradients->sums.shard ? gradients->sums.shard : gradients->whole;
    gradients->unfolded = gradients->at;
    TRY(fold(gradients, stream));
    for (int i = 0; i < gradients->gather_buckets.n_calls; i++)
        TRY(comm_all_gather(comm, stream, &gradients->gather_buckets.calls[i], from, gradients->whole,
                            DTYPE_F32, &work));
    TRY(comm_wait(comm, stream, COMM_WORK_ALL));
    return offload_finish(gradients->offload, stream);
}

// In a reduce-scatter a rank sends every element that it does not own. In an all-gather it sends the elements
// that it owns to each other rank.
void gradients_volume(const struct gradients *gradients, int64_t n_micro_batches,
                      struct comm_volume *volume) {
    const struct stage *stage = gradients->stage;
    const struct stage_options *options = &stage->options;
    const struct params *params = stage->params;
    const size_t owned = stage_trained_elements(stage);
    const uint64_t times =
        (uint64_t)(stage->logical.every ? n_micro_batches : logical_per_rank(&stage->logical));
    uint64_t calls = 0;
    if (!stage_shards_grads(stage->config))
        calls = buckets_count(params->n_trained, options->reduce_bucket);
    for (int unit = 0; stage_shards_grads(stage->config) && unit < params->n_units; unit++)
        calls += buckets_count(params->units[unit].trained, options->reduce_bucket);
    volume->bytes[COMM_REDUCE_SCATTER] +=
        times * (params->n_trained - owned) * dtype_size(options->gradient_comm_dtype);
    volume->calls[COMM_REDUCE_SCATTER] += times * calls;
    if (stage_shards_optimizer(stage->config))
        return;
    volume->bytes[COMM_ALL_GATHER] += owned * (uint64_t)(stage->world - 1) * sizeof(float);
    volume->calls[COMM_ALL_GATHER] += buckets_count(params->n_trained, options->allgather_bucket);
}

struct offload_source gradients_source(const struct gradients *gradients) {
    bool whole = !gradients->sums.shard || !stage_shards_optimizer(gradients->stage->config);
    return (struct offload_source){whole ? gradients->whole : gradients->sums.shard, whole};
}

float *gradients_at(const struct gradients *gradients, const struct stage_span *span) {
    struct offload_source source = gradients_source(gradients);
    return source.data + stage_span_offset(span, source.whole);
}
