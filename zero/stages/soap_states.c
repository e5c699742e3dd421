// See zero/stages/soap_states.h.
#include "zero/stages/soap_states.h"

#include <stdlib.h>

static struct soap_shape shape_of(struct matrix_shape matrix, int64_t max_precond_dim) {
    return soap_shape_of(matrix.rows, matrix.columns, max_precond_dim);
}

size_t soap_tensor_elements(const struct param *param, int64_t max_precond_dim) {
    struct matrix_shape shapes[PARAM_PARTS_MOST];
    int64_t first_row[PARAM_PARTS_MOST];
    size_t n = 0;
    for (int part = muon_matrices(param, shapes, first_row) - 1; part >= 0; part--)
        n += soap_state_elements(shape_of(shapes[part], max_precond_dim));
    return n;
}

// Never 0, which stands for tensors of others: the elementwise part counts as one FLOP each.
static double flops_of(const struct param *param, int64_t max_precond_dim) {
    struct matrix_shape shapes[PARAM_PARTS_MOST];
    int64_t first_row[PARAM_PARTS_MOST];
    double flops = (double)param->elements;
    for (int part = muon_matrices(param, shapes, first_row) - 1; part >= 0; part--)
        flops += soap_flops(shape_of(shapes[part], max_precond_dim));
    return flops;
}

static enum status list_rounds(struct soap_states *states, const struct optimizer_groups *groups,
                               const struct partition *partition, bool whole) {
    const struct params *params = states->params;
    double *flops = calloc((size_t)params->n_params + 1, sizeof *flops);
    if (!flops)
        return FAIL(STATUS_FAILED, "out of memory for the costs of %d tensors", params->n_params);
    for (int i = 0; i < params->n_params; i++)
        if (groups->groups[groups->of_param[i]].traits.method == METHOD_ROTATED)
            flops[i] = flops_of(&params->params[i], states->max_precond_dim);
    enum status status = muon_rounds_list(&states->rounds, params, flops, partition, whole, 0);
    free(flops);
    return status;
}

// filled (world): of each rank's states. Returns the most.
static size_t place(struct soap_states *states, size_t *filled) {
    const struct params *params = states->params;
    size_t most = 0;
    for (int i = 0; i < states->rounds.n_tensors; i++) {
        const struct muon_tensor *tensor = &states->rounds.tensors[i];
        states->of_param[tensor->param] = i;
        states->first[i] = filled[tensor->worker];
        filled[tensor->worker] +=
            soap_tensor_elements(&params->params[tensor->param], states->max_precond_dim);
        most = filled[tensor->worker] > most ? filled[tensor->worker] : most;
    }
    for (int param = 0, n = 0; param < params->n_params; param++)
        if (states->of_param[param] >= 0)
            states->matrices[n++] = (struct checkpoint_matrix){
                .param = param,
                .file = states->rounds.tensors[states->of_param[param]].worker,
                .values = soap_tensor_elements(&params->params[param], states->max_precond_dim)};
    return most;
}

enum status soap_states_init(struct soap_states *states, const struct config *config,
                             const struct params *params, const struct optimizer_groups *groups,
                             const struct partition *partition, bool whole, int rank, struct device *device,
                             struct region_table *table) {
    *states = (struct soap_states){.params = params,
                                   .device = device,
                                   .rank = rank,
                                   .max_precond_dim = config->optimizer.max_precond_dim};
    if (!optimizer_groups_use(groups, METHOD_ROTATED))
        return STATUS_OK;
    TRY(list_rounds(states, groups, partition, whole));
    const size_t n_tensors = (size_t)states->rounds.n_tensors, n_params = (size_t)params->n_params;
    size_t *filled = calloc((size_t)partition->world, sizeof *filled), most = 0;
    states->of_param = malloc(n_params * sizeof *states->of_param);
    states->first = calloc(n_tensors, sizeof *states->first);
    states->matrices = calloc(n_tensors, sizeof *states->matrices);
    const bool allocated = filled && states->of_param && states->first && states->matrices;
    if (allocated) {
        for (size_t i = 0; i < n_params; i++)
            states->of_param[i] = -1;
        most = place(states, filled);
    }
    free(filled);
    if (!allocated)
        return FAIL(STATUS_FAILED, "out of memory for SOAP's states of %d tensors", states->rounds.n_tensors);
    // Sized alike on all ranks, as plans look only at those with the most and the fewest elements.
    return region_add(table, REGION_MOMENTS, device->place, DTYPE_F32, most, &states->region,
                      "SOAP: preconditioners, bases and moments");
}

void soap_states_bind(struct soap_states *states, const struct region_table *table) {
    if (states->rounds.n_tensors > 0)
        states->values = region_data(table, states->region);
}

void soap_states_free(struct soap_states *states) {
    muon_rounds_free(&states->rounds);
    free(states->of_param);
    free(states->first);
    free(states->matrices);
    *states = (struct soap_states){0};
}

float *soap_states_at(const struct soap_states *states, int tensor) {
    return states->values + states->first[tensor];
}

// ---- checkpoints

enum status soap_states_load(const struct soap_states *states, struct stream *stream,
                             const struct checkpoint_source *source, float *chunk) {
    size_t first = 0; // of the matrix's values among those of its unit
    for (int i = 0, unit = -1; i < states->rounds.n_tensors; i++) {
        const struct checkpoint_matrix *matrix = &states->matrices[i];
        const int of = states->params->params[matrix->param].unit;
        first = of == unit ? first + matrix[-1].values : 0;
        unit = of;
        if (matrix->file != states->rank)
            continue;
        float *to = soap_states_at(states, states->of_param[matrix->param]);
        for (size_t done = 0, n; done < matrix->values; done += n) {
            n = matrix->values - done < CHECKPOINT_CHUNK ? matrix->values - done : CHECKPOINT_CHUNK;
            TRY(source->read(source->context, CHECKPOINT_PRECONDITIONERS, unit, first + done,
                             first + done + n, chunk));
            TRY(states->device->copy(stream, to + done, chunk, n * sizeof *chunk));
            TRY(states->device->synchronize(stream));
        }
    }
    return STATUS_OK;
}

enum status soap_states_read(const struct soap_states *states, struct stream *stream, int unit, size_t begin,
                             size_t end, float *out) {
    const struct param_unit *u = &states->params->units[unit];
    size_t first = 0;
    for (int param = u->first_param; param < u->first_param + u->n_params; param++) {
        const int tensor = states->of_param[param];
        if (tensor < 0)
            continue;
        const size_t n = soap_tensor_elements(&states->params->params[param], states->max_precond_dim);
        if (begin >= first && end <= first + n && states->rounds.tensors[tensor].worker == states->rank) {
            TRY(states->device->copy(stream, out, soap_states_at(states, tensor) + (begin - first),
                                     (end - begin) * sizeof *out));
            return states->device->synchronize(stream);
        }
        first += n;
    }
    return FAIL(STATUS_FAILED,
                "SOAP's states %zu to %zu of unit %d are not of this rank and cannot be saved by it", begin,
                end, unit);
}
