// See zero/optimizer/muon.h.
#include "zero/optimizer/muon.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "kernels/ops.h"

// ---- planning

static enum status plan_products(struct muon *muon, struct region_table *table) {
    const struct stage *stage = &muon->state->stage;
    const struct params *params = stage->params;
    struct newton_schulz_batch *kinds = allocate((size_t)params->n_params * PARAM_PARTS_MOST, sizeof *kinds);
    int n = 0;
    for (int i = 0; i < params->n_params; i++) {
        struct matrix_shape of[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        if (!optimizer_groups_orthogonalize(&muon->state->groups, i))
            continue;
        const int n_parts = muon_matrices(&params->params[i], of, first_row);
        for (int part = 0; part < n_parts; part++) {
            int known = 0;
            while (known < n && (kinds[known].shape.rows != of[part].rows ||
                                 kinds[known].shape.columns != of[part].columns))
                known++;
            kinds[known].shape = of[part];
            kinds[known].n++;
            n = known == n ? n + 1 : n;
        }
    }
    muon->products = (struct newton_schulz){.device = stage->device, .type = muon->type};
    enum status status = newton_schulz_plan(&muon->products, kinds, n, table);
    free(kinds);
    return status;
}

// Lists the matrices of a round that this rank orthogonalizes, in buffer order. Returns their number.
static int list_matrices(const struct muon *muon, const struct muon_round *round,
                         struct newton_schulz_matrix *out) {
    int n = 0;
    for (int i = round->first_tensor; i < round->first_tensor + round->n_tensors; i++) {
        const struct muon_tensor *tensor = &muon->rounds.tensors[i];
        const struct param *param = &muon->state->stage.params->params[tensor->param];
        struct matrix_shape shapes[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        if (tensor->worker != muon->state->stage.rank)
            continue;
        const int n_parts = muon_matrices(param, shapes, first_row);
        for (int part = 0; part < n_parts; part++)
            out[n++] = (struct newton_schulz_matrix){tensor->at + (size_t)(first_row[part] * param->shape[1]),
                                                     shapes[part]};
    }
    return n;
}

// Divides this rank's matrices into batches, and finds the kernels for the products of each batch.
static enum status list_batches(struct muon *muon, struct newton_schulz_matrix *matrices) {
    int n = 0;
    for (int k = 0; k < muon->rounds.n_rounds; k++) {
        const int n_matrices = list_matrices(muon, &muon->rounds.rounds[k], matrices);
        muon->first_batch[k] = n;
        n += newton_schulz_divide(muon->state->stage.device, matrices, n_matrices, muon->batches + n);
    }
    muon->first_batch[muon->rounds.n_rounds] = n;
    for (int i = 0; i < n; i++)
        TRY(newton_schulz_prepare(&muon->products, &muon->batches[i]));
    return STATUS_OK;
}

static enum status make_batches(struct muon *muon) {
    const size_t most = (size_t)muon->rounds.n_tensors * PARAM_PARTS_MOST;
    struct newton_schulz_matrix *matrices = allocate(most, sizeof *matrices);
    muon->batches = allocate(most, sizeof *muon->batches);
    muon->first_batch = allocate((size_t)muon->rounds.n_rounds + 1, sizeof *muon->first_batch);
    const enum status status = list_batches(muon, matrices);
    free(matrices);
    return status;
}

enum status muon_init(struct muon *muon, struct model_states *state, struct region_table *table) {
    const struct stage *stage = &state->stage;
    const enum region_place place = stage->device->place;
    *muon = (struct muon){.state = state, .type = newton_schulz_type(stage->type)};
    if (!state->groups.has_muon)
        return STATUS_OK;
    if (stage->options.offload_optimizer) // options/rules.c rejects such configs, but --fit tries them
        return FAIL(STATUS_INVALID, "optimizer.type=muon does not support offload_optimizer");
    TRY(plan_products(muon, table));
    muon_rounds_init(&muon->rounds, stage, &state->groups, muon->products.most_elements);
    TRY(make_batches(muon));
    TRY(region_add(table, REGION_WORKSPACE, place, muon->type, muon->rounds.tensor_elements,
                   &muon->tensors_region, "Muon: tensors"));
    TRY(region_add(table, REGION_WORKSPACE, place, muon->type, muon->rounds.slice_elements,
                   &muon->slices_region, "Muon: directions"));
    // A rank has at most one slice per tensor. The size is an upper bound that is the same on all ranks.
    return region_add(table, REGION_DATA, place, DTYPE_U8,
                      (size_t)stage->params->n_params * sizeof *muon->args->spans, &muon->spans_region,
                      "Muon: table of slices");
}

void muon_free(struct muon *muon) {
    muon_rounds_free(&muon->rounds);
    free(muon->args);
    free(muon->batches);
    free(muon->first_batch);
    *muon = (struct muon){0};
}

// ---- binding

static const struct param *param_of_slice(const struct muon *muon, const struct muon_slice *slice) {
    return &muon->state->stage.params->params[muon->rounds.tensors[slice->tensor].param];
}

static int group_of_slice(const struct muon *muon, const struct muon_slice *slice) {
    return muon->state->groups.of_param[muon->rounds.tensors[slice->tensor].param];
}

static void *slice_at(const struct muon *muon, const struct muon_slice *slice) {
    return (char *)muon->slices + slice->at * dtype_size(muon->type);
}

static struct optimizer_span span_of_slice(const struct muon *muon, const struct muon_slice *slice) {
    const struct model_states *state = muon->state;
    const int unit = param_of_slice(muon, slice)->unit, group = group_of_slice(muon, slice);
    const struct placement_span *placed = model_states_span_at(state, unit, slice->begin);
    const size_t offset = slice->begin - placed->span.begin;
    const bool discarded =
        muon->rounds.whole && muon->rounds.tensors[slice->tensor].worker != state->stage.rank;
    struct optimizer_state at = model_states_optimizer_at(state, placed, offset);
    at.master = NULL;
    return (struct optimizer_span){.state = at,
                                   .param = discarded ? NULL : slice_at(muon, slice),
                                   .grad = model_states_gradients_at(state, placed) + offset,
                                   .n = slice->end - slice->begin,
                                   .first = state->stage.params->units[unit].offset + slice->begin,
                                   .lr_scale = state->groups.groups[group].lr_scale,
                                   .weight_decay = state->groups.groups[group].weight_decay,
                                   .group = group};
}

// Lists this rank's slices. `there` is the list's address in device memory. Returns their number.
static int list_slices(struct muon *muon, struct optimizer_span *spans, const struct optimizer_span *there) {
    const struct model_states *state = muon->state;
    int n = 0;
    for (int k = 0; k < muon->rounds.n_rounds; k++) {
        const struct muon_round *round = &muon->rounds.rounds[k];
        struct optimizer_spans_args *args = &muon->args[k];
        *args = (struct optimizer_spans_args){.rule = OPTIMIZER_MUON,
                                              .spans = there + n,
                                              .n_moments = 1,
                                              .has_param = true,
                                              .plan = muon->plan,
                                              .result = muon->result,
                                              .beta1 = muon->state->stage.config->optimizer.muon_momentum,
                                              .type = muon->type,
                                              .grad_type = DTYPE_F32,
                                              .state_type = state->placement.moment_type};
        for (int i = round->first_slice; i < round->first_slice + round->n_slices; i++) {
            if (muon->rounds.slices[i].rank != state->stage.rank)
                continue;
            spans[n] = span_of_slice(muon, &muon->rounds.slices[i]);
            spans[n].first_tile = args->n_tiles;
            args->n += spans[n].n;
            args->n_tiles += (spans[n].n + OPTIMIZER_TILE - 1) / OPTIMIZER_TILE;
            args->n_spans++;
            n++;
        }
    }
    return n;
}

enum status muon_bind(struct muon *muon, const struct region_table *table, struct stream *stream,
                      const struct update_plan *plan, const struct update_result *result) {
    const int most = muon->state->stage.params->n_params;
    if (muon->rounds.n_rounds == 0)
        return STATUS_OK;
    newton_schulz_bind(&muon->products, table);
    muon->tensors = region_data(table, muon->tensors_region);
    muon->slices = region_data(table, muon->slices_region);
    muon->plan = plan;
    muon->result = result;
    struct optimizer_span *spans = allocate((size_t)most, sizeof *spans);
    muon->args = allocate((size_t)muon->rounds.n_rounds, sizeof *muon->args);
    void *there = region_data(table, muon->spans_region);
    const int n = list_slices(muon, spans, there);
    assert(n <= most);
    enum status status = stream->device->copy(stream, there, spans, (size_t)n * sizeof *spans);
    if (status == STATUS_OK)
        status = stream->device->synchronize(stream);
    free(spans);
    return status;
}

// ---- a step

static enum status exchange(const struct muon *muon, struct stream *stream, const struct muon_round *round,
                            const struct comm_transfer *transfer, const void *in, void *out) {
    return muon_rounds_exchange(round, transfer, muon->state->stage.comm, stream, in, out, muon->type);
}

// Orthogonalizes this rank's tensors of a round. After each batch, shows the other ranks that it is working.
static enum status orthogonalize(const struct muon *muon, struct stream *stream, int round) {
    for (int i = muon->first_batch[round]; i < muon->first_batch[round + 1]; i++) {
        TRY(newton_schulz_run(&muon->products, stream, muon->tensors, &muon->batches[i]));
        comm_progress(muon->state->stage.comm);
    }
    return STATUS_OK;
}

// Returns the factor that the orthogonalized direction is multiplied by (optimizer.muon_scale). With Jordan's
// factor, the update's effect on activations has the same root mean square for every matrix shape. With
// Moonlight's factor, the update itself has a root mean square of 0.2, as with AdamW, so that AdamW's
// learning rate and weight decay can be used.
static float scale_of(const struct muon *muon, struct matrix_shape shape) {
    const double rows = (double)shape.rows, columns = (double)shape.columns;
    return (float)(muon->state->stage.config->optimizer.muon_scale == CONFIG_MUON_SCALE_JORDAN
                       ? sqrt(fmax(1, rows / columns))
                       : 0.2 * sqrt(fmax(rows, columns)));
}

// Updates elements [begin, end) of the slice's unit, which belong to one matrix.
static enum status step_matrix(const struct muon *muon, struct stream *stream, const struct muon_slice *slice,
                               size_t begin, size_t end, struct matrix_shape shape) {
    const struct model_states *state = muon->state;
    const struct placement_span *placed =
        model_states_span_at(state, param_of_slice(muon, slice)->unit, begin);
    const size_t offset = begin - placed->span.begin;
    const struct muon_step_args args = {
        .param = state->stage.type == DTYPE_F32 ? NULL : model_states_params_at(state, placed, offset),
        .master = model_states_optimizer_at(state, placed, offset).master,
        .update = (char *)slice_at(muon, slice) + (begin - slice->begin) * dtype_size(muon->type),
        .n = end - begin,
        .group = group_of_slice(muon, slice),
        .scale = scale_of(muon, shape),
        .plan = muon->plan,
        .result = muon->result,
        .type = state->stage.type,
        .update_type = muon->type};
    return stream->device->ops->muon_step(stream, &args);
}

static enum status step_slice(const struct muon *muon, struct stream *stream,
                              const struct muon_slice *slice) {
    const struct param *param = param_of_slice(muon, slice);
    struct matrix_shape shapes[PARAM_PARTS_MOST];
    int64_t first_row[PARAM_PARTS_MOST];
    for (int part = muon_matrices(param, shapes, first_row) - 1; part >= 0; part--) {
        const size_t first = param->offset + (size_t)(first_row[part] * param->shape[1]),
                     last = first + (size_t)(shapes[part].rows * shapes[part].columns),
                     begin = first > slice->begin ? first : slice->begin,
                     end = last < slice->end ? last : slice->end;
        if (begin < end)
            TRY(step_matrix(muon, stream, slice, begin, end, shapes[part]));
    }
    return STATUS_OK;
}

static enum status update_round(const struct muon *muon, struct stream *stream, int k) {
    const struct muon_round *round = &muon->rounds.rounds[k];
    if (muon->args[k].n_spans > 0)
        TRY(stream->device->ops->optimizer_spans(stream, &muon->args[k]));
    TRY(exchange(muon, stream, round, &round->there, muon->slices, muon->tensors));
    TRY(orthogonalize(muon, stream, k));
    TRY(exchange(muon, stream, round, &round->back, muon->tensors, muon->slices));
    for (int i = round->first_slice; i < round->first_slice + round->n_slices; i++)
        if (muon->rounds.slices[i].rank == muon->state->stage.rank)
            TRY(step_slice(muon, stream, &muon->rounds.slices[i]));
    return STATUS_OK;
}

enum status muon_update(const struct muon *muon, struct stream *stream) {
    for (int k = 0; k < muon->rounds.n_rounds; k++)
        TRY(update_round(muon, stream, k));
    return STATUS_OK;
}

enum status muon_skip(const struct muon *muon, struct stream *stream) {
    for (int k = 0; k < muon->rounds.n_rounds; k++) {
        const struct muon_round *round = &muon->rounds.rounds[k];
        if (!round->sends)
            continue;
        TRY(exchange(muon, stream, round, &round->there, muon->slices, muon->tensors));
        TRY(exchange(muon, stream, round, &round->back, muon->tensors, muon->slices));
    }
    return STATUS_OK;
}

void muon_volume(const struct muon *muon, struct comm_volume *volume) {
    uint64_t elements, calls;
    muon_rounds_traffic(&muon->rounds, muon->state->stage.rank, &elements, &calls);
    volume->bytes[COMM_EXCHANGE] += elements * dtype_size(muon->type);
    volume->calls[COMM_EXCHANGE] += calls;
}

void muon_flops(const struct muon *muon, double *all, double *most) {
    const struct muon_rounds *rounds = &muon->rounds;
    double *own = allocate((size_t)rounds->world, sizeof *own);
    *all = *most = 0;
    for (int i = 0; i < rounds->n_tensors; i++) {
        const struct muon_tensor *tensor = &rounds->tensors[i];
        const int strip = muon->products.device->symmetric_strips[muon->type];
        own[tensor->worker] += muon_tensor_flops(&rounds->params->params[tensor->param], strip);
    }
    for (int rank = 0; rank < rounds->world; rank++) {
        *all += own[rank];
        *most = fmax(*most, own[rank]);
    }
    free(own);
}
