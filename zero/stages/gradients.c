// Chooses buffers, and issues reductions. zero/comm computes the sums.
#include "zero/stages/gradients.h"

#include <assert.h>
#include <stdlib.h>

#include "kernels/ops.h"

// ---- planning and binding

static bool has_all(const struct gradients *gradients) {
    return gradients->options->stage <= 1;
}

// Backward finishes the last unit first.
static enum status build_whole_model_buckets(struct gradients *gradients) {
    const struct params *params = gradients->params;
    const struct partition *partition = gradients->partition;
    bool to_shard = stage_reduces_to_shard(gradients->options);
    buckets_init(&gradients->reduce_buckets, gradients->options->reduce_bucket);
    for (int unit = params->n_units - 1; unit >= 0; unit--) {
        const struct param_unit *u = &params->units[unit];
        struct buffer_layout here = BUFFER_AT(u->offset);
        TRY(buckets_add(&gradients->reduce_buckets, partition, unit, 0, u->elements, here,
                        to_shard ? BUFFER_SHARD : here));
    }
    TRY(buckets_finish(&gradients->reduce_buckets));
    buckets_init(&gradients->gather_buckets, gradients->options->allgather_bucket);
    for (int unit = 0; gradients->options->stage == 0 && unit < params->n_units; unit++) {
        const struct param_unit *u = &params->units[unit];
        struct buffer_layout here = BUFFER_AT(u->offset);
        TRY(buckets_add(&gradients->gather_buckets, partition, unit, 0, u->elements,
                        to_shard ? BUFFER_SHARD : here, here));
    }
    TRY(buckets_finish(&gradients->gather_buckets));
    return STATUS_OK;
}

static enum status build_reduction_buckets(struct gradients *gradients, int unit) {
    struct reduction *reduction = &gradients->reductions[unit];
    reduction->buckets = &reduction->own_buckets;
    buckets_init(&reduction->own_buckets, gradients->options->reduce_bucket);
    TRY(buckets_add(&reduction->own_buckets, gradients->partition, unit, 0,
                    gradients->params->units[unit].elements, BUFFER_AT(0), BUFFER_UNIT_SHARD));
    return buckets_finish(&reduction->own_buckets);
}

static enum status build_all_reduction_buckets(struct gradients *gradients) {
    const struct params *params = gradients->params;
    for (int unit = 0; unit < params->n_units; unit++)
        if (partition_repeats(gradients->partition, params, unit))
            gradients->reductions[unit].buckets = gradients->reductions[unit - 1].buckets;
        else
            TRY(build_reduction_buckets(gradients, unit));
    return STATUS_OK;
}

enum status gradients_build_buckets(struct gradients *gradients) {
    return has_all(gradients) ? build_whole_model_buckets(gradients) : build_all_reduction_buckets(gradients);
}

// Refuses lists of buckets that would be too long, before any is built. Plans build none.
static enum status check_calls(const struct gradients *gradients) {
    const struct params *params = gradients->params;
    const struct stage_options *options = gradients->options;
    if (options->stage == 0)
        TRY(buckets_check(params->n_elements, options->allgather_bucket));
    if (has_all(gradients))
        return buckets_check(params->n_elements, options->reduce_bucket);
    for (int unit = 0; unit < params->n_units; unit++)
        TRY(buckets_check(params->units[unit].elements, options->reduce_bucket));
    return STATUS_OK;
}

static enum status add_buffer(struct gradients *gradients, struct region_table *table, size_t elements,
                              const char *of, int number) {
    struct gradient_buffer *buffer = &gradients->buffers[gradients->n_buffers++];
    *buffer = (struct gradient_buffer){.unit = -1, .padded_for = -1};
    return region_add(table, REGION_COMMUNICATION, gradients->device->place, DTYPE_F32, elements,
                      &buffer->region, "grads of %s%d", of, number);
}

// How often a pass adds to the gradients of each unit.
static void count_contributions(const struct trace *training, int *counts) {
    for (int i = 0; i < training->n_events; i++) {
        const struct trace_event *event = &training->events[i];
        counts[event->unit] += event->acquires && event->pass != GPT_FORWARD;
    }
}

// The pool, which serves all units with one contribution, and the buffers of the others.
// Without overlap a buffer of the pool is free again when its reduction returns, so one is enough.
static enum status add_buffers(struct gradients *gradients, const int *contributions,
                               struct region_table *table) {
    const struct params *params = gradients->params;
    const enum region_place place = gradients->device->place;
    size_t largest = 0;
    for (int unit = 0; unit < params->n_units; unit++) {
        const size_t elements = params_unit_grad_memory(params, unit, place);
        if (contributions[unit] == 1 && elements > largest)
            largest = elements;
    }
    gradients->n_pool = gradients->options->overlap ? GRADIENT_POOL : 1;
    for (int i = 0; i < gradients->n_pool; i++)
        TRY(add_buffer(gradients, table, largest, "a unit, ", i));
    for (int unit = 0; unit < params->n_units; unit++)
        if (contributions[unit] > 1) {
            gradients->reductions[unit].own = &gradients->buffers[gradients->n_buffers];
            TRY(add_buffer(gradients, table, params_unit_grad_memory(params, unit, place), "unit ", unit));
        }
    return STATUS_OK;
}

static enum status plan_buffers(struct gradients *gradients, const struct trace *training,
                                struct region_table *table) {
    const size_t n_units = (size_t)gradients->params->n_units;
    int *contributions = calloc(n_units, sizeof *contributions);
    gradients->reductions = calloc(n_units, sizeof *gradients->reductions);
    gradients->buffers = calloc(GRADIENT_POOL + n_units, sizeof *gradients->buffers);
    enum status status = STATUS_FAILED;
    if (contributions && gradients->reductions && gradients->buffers) {
        count_contributions(training, contributions);
        status = add_buffers(gradients, contributions, table);
    } else
        status = FAIL(STATUS_FAILED, "out of memory for the gradients of %zu units", n_units);
    free(contributions);
    return status;
}

enum status gradients_init(struct gradients *gradients, const struct params *params,
                           const struct stage_options *options, const struct trace *training,
                           const struct partition *partition, const struct stage_spans *owned,
                           size_t shard_elements, struct offload *offload, struct device *device,
                           struct region_table *table) {
    *gradients = (struct gradients){.params = params,
                                    .options = options,
                                    .partition = partition,
                                    .owned = owned,
                                    .device = device,
                                    .offload = offload,
                                    .whole_region = -1,
                                    .shard_region = -1};
    TRY(check_calls(gradients));
    if (has_all(gradients)) {
        TRY(region_add(table, REGION_GRADS, device->place, DTYPE_F32,
                       params_grad_memory(params, device->place), &gradients->whole_region, "grads"));
    } else {
        TRY(plan_buffers(gradients, training, table));
    }
    if (stage_reduces_to_shard(options))
        TRY(region_add(table, REGION_GRADS, device->place, DTYPE_F32,
                       offload_device_elements(offload, shard_elements), &gradients->shard_region,
                       "grads of the shard"));
    return STATUS_OK;
}

static enum status list_tensors(struct gradients *gradients) {
    const struct params *params = gradients->params;
    const size_t n = (size_t)params->n_params,
                 n_lists = has_all(gradients) ? 1 : (size_t)gradients->n_buffers;
    gradients->tensors = calloc(n_lists * n, sizeof *gradients->tensors);
    if (!gradients->tensors)
        return FAIL(STATUS_FAILED, "out of memory for the addresses of %zu gradients", n);
    for (size_t i = 0; i < n && has_all(gradients); i++) {
        const struct param *param = &params->params[i];
        gradients->tensors[i] = gradients->whole + params->units[param->unit].offset + param->offset;
    }
    for (size_t k = 0; k < n_lists && !has_all(gradients); k++) {
        struct gradient_buffer *buffer = &gradients->buffers[k];
        buffer->tensors = gradients->tensors + k * n;
        for (size_t i = 0; i < n; i++)
            buffer->tensors[i] = tensor_at(&params->params[i], buffer->data, DTYPE_F32);
    }
    return STATUS_OK;
}

enum status gradients_bind(struct gradients *gradients, const struct region_table *table, struct comm *comm) {
    gradients->comm = comm;
    gradients->whole = gradients->whole_region < 0 ? NULL : region_data(table, gradients->whole_region);
    gradients->shard = gradients->shard_region < 0 ? NULL : region_data(table, gradients->shard_region);
    for (int i = 0; i < gradients->n_buffers; i++)
        gradients->buffers[i].data = region_data(table, gradients->buffers[i].region);
    TRY(list_tensors(gradients));
    return gradients_build_buckets(gradients);
}

void gradients_free(struct gradients *gradients) {
    buckets_free(&gradients->reduce_buckets);
    buckets_free(&gradients->gather_buckets);
    for (int unit = 0; gradients->reductions && unit < gradients->params->n_units; unit++)
        buckets_free(&gradients->reductions[unit].own_buckets);
    free(gradients->reductions);
    free(gradients->tensors);
    free(gradients->buffers);
    *gradients = (struct gradients){0};
}

// ---- a step

static enum status clear(struct gradients *gradients, struct stream *stream, float *data, size_t n) {
    const struct fill_args fill = {.out = data, .n = n, .type = DTYPE_F32};
    return n > 0 ? gradients->device->ops->fill(stream, &fill) : STATUS_OK;
}

// Zeroes the padding between a unit's tensors; backward overwrites the tensors (beta = 0). Buffers keep it
// until they serve another layout.
static enum status clear_padding(struct gradients *gradients, struct stream *stream,
                                 struct gradient_buffer *buffer, int unit) {
    const struct params *params = gradients->params;
    const struct param_unit *u = &params->units[unit];
    if (buffer->padded_for >= 0 && params_same_layout(params, buffer->padded_for, unit))
        return STATUS_OK;
    buffer->padded_for = unit;
    size_t done = 0;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        TRY(clear(gradients, stream, buffer->data + done, params->params[i].offset - done));
        done = params->params[i].offset + params->params[i].elements;
    }
    return clear(gradients, stream, buffer->data + done, u->elements - done);
}

enum status gradients_begin(struct gradients *gradients, struct stream *stream, int64_t k, int64_t n) {
    bool every = stage_reduces_to_shard(gradients->options);
    gradients->beta_zero = every || k == 0;
    gradients->accumulating = every && k > 0;
    gradients->reducing = every || k == n - 1;
    gradients->next_call = 0;
    gradients->n_taken = 0;
    gradients->n_issued = 0;
    TRY(offload_begin(gradients->offload, k == n - 1, gradients->accumulating));
    if (!has_all(gradients) || !gradients->beta_zero)
        return STATUS_OK;
    return comm_wait_all(gradients->comm, stream); // reductions of the last micro-batch may still read it
}

// The buffer that holds, or is for, this unit; NULL: it has none yet.
static struct gradient_buffer *buffer_of(struct gradients *gradients, int unit) {
    if (gradients->reductions[unit].own)
        return gradients->reductions[unit].own;
    for (int i = 0; i < gradients->n_pool; i++)
        if (gradients->buffers[i].unit == unit)
            return &gradients->buffers[i];
    return NULL;
}

// The buffers of the pool take turns, in each micro-batch from the first, so that a unit's gradients are at
// the same address each time. The next one's reduction was issued first, and is the most likely to be done.
static struct gradient_buffer *next_buffer(struct gradients *gradients) {
    struct gradient_buffer *buffer = &gradients->buffers[gradients->n_taken++ % gradients->n_pool];
    assert(buffer->unit < 0); // a pass holds one unit of the pool at a time
    return buffer;
}

enum status gradients_acquire(struct gradients *gradients, struct stream *stream, int unit,
                              struct unit_view *view) {
    const int first = gradients->params->units[unit].first_param;
    view->beta_zero = gradients->beta_zero;
    if (has_all(gradients)) {
        view->grads = gradients->tensors + first;
        return STATUS_OK;
    }
    struct gradient_buffer *buffer = buffer_of(gradients, unit);
    if (!buffer)
        buffer = next_buffer(gradients);
    view->grads = buffer->tensors + first;
    if (buffer->unit == unit) // a further contribution
        return STATUS_OK;
    buffer->unit = unit;
    TRY(comm_wait(gradients->comm, stream, buffer->work));
    return clear_padding(gradients, stream, buffer, unit);
}

static enum status reduce_bucket(struct gradients *gradients, struct stream *stream,
                                 const struct comm_transfer *call, const float *from, float *to,
                                 comm_work *work) {
    return comm_reduce_scatter(gradients->comm, stream, call, from, to,
                               gradients->options->gradient_comm_dtype, gradients->accumulating, work);
}

// Stages 0 and 1: issues the buckets that are full now that `unit` is ready.
static enum status reduce_full_buckets(struct gradients *gradients, struct stream *stream, int unit) {
    const struct params *params = gradients->params;
    const struct buckets *calls = &gradients->reduce_buckets;
    float *to = gradients->shard ? gradients->shard : gradients->whole;
    comm_work work = 0;
    while (gradients->next_call < calls->n_calls && calls->last_unit[gradients->next_call] >= unit) {
        const struct comm_transfer *call = &calls->calls[gradients->next_call++];
        TRY(reduce_bucket(gradients, stream, call, gradients->whole, to, &work));
        gradients->n_issued += call->elements;
    }
    int lowest = params->n_units; // all of its elements, and those of units above it, were issued
    while (lowest > 0 && params->n_elements - params->units[lowest - 1].offset <= gradients->n_issued)
        lowest--;
    return offload_reduced(gradients->offload, stream, lowest, work);
}

// Stages 2 and 3: reduces into this rank's unit shard, in the shard or in offload's staging buffer.
static enum status reduce_unit(struct gradients *gradients, struct stream *stream, int unit) {
    const struct buckets *buckets = gradients->reductions[unit].buckets;
    const struct stage_spans *owned = gradients->owned;
    struct gradient_buffer *buffer = buffer_of(gradients, unit);
    float *to = gradients->shard;
    if (offload_uses_staging(gradients->offload))
        TRY(offload_staging(gradients->offload, stream, unit, &to));
    else if (owned->first[unit] < owned->first[unit + 1])
        to += owned->spans[owned->first[unit]].shard_offset;
    for (int i = 0; i < buckets->n_calls; i++)
        TRY(reduce_bucket(gradients, stream, &buckets->calls[i], buffer->data, to, &buffer->work));
    buffer->unit = -1;
    return offload_reduced(gradients->offload, stream, unit, buffer->work);
}

enum status gradients_ready(struct gradients *gradients, struct stream *stream, int unit) {
    if (!gradients->reducing)
        return STATUS_OK;
    return has_all(gradients) ? reduce_full_buckets(gradients, stream, unit)
                              : reduce_unit(gradients, stream, unit);
}

enum status gradients_finish(struct gradients *gradients, struct stream *stream) {
    comm_work work;
    const float *from = gradients->shard ? gradients->shard : gradients->whole;
    for (int i = 0; i < gradients->gather_buckets.n_calls; i++)
        TRY(comm_all_gather(gradients->comm, stream, &gradients->gather_buckets.calls[i], from,
                            gradients->whole, DTYPE_F32, &work));
    TRY(comm_wait_all(gradients->comm, stream));
    return offload_finish(gradients->offload, stream);
}

struct offload_source gradients_source(const struct gradients *gradients) {
    bool whole = !gradients->shard || gradients->options->stage == 0;
    return (struct offload_source){whole ? gradients->whole : gradients->shard, whole};
}

float *gradients_at(const struct gradients *gradients, const struct stage_span *span) {
    struct offload_source source = gradients_source(gradients);
    return source.data + stage_span_offset(span, source.whole);
}
