#include "trainer/spikes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "kernels/observe.h"
#include "zero/stages/gradients.h"

// ---- spikes

// Windows are short, so medians are found by sorting a copy in each step.

#define MAD_TO_DEVIATION 1.4826 // standard deviation / MAD of a normal distribution

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Returns the limit above which a figure is a spike (spikes.h).
//   values   (n) figures of the window; overwritten
//   floor    SPIKE_FLOOR_LOSS or SPIKE_FLOOR_NORM
//   middle   [out] the median
static double limit(double *values, int n, double threshold, double floor, double *middle) {
    *middle = median(values, n);
    for (int i = 0; i < n; i++)
        values[i] = fabs(values[i] - *middle);
    return *middle + threshold * fmax(MAD_TO_DEVIATION * median(values, n), floor * fabs(*middle));
}

static void append(struct spike_record *record, const struct spike_figures *figures, int64_t most) {
    const int n_dropped = record->n >= most ? record->n - (int)most + 1 : 0;
    record->n -= n_dropped;
    memmove(record->window, record->window + n_dropped, (size_t)record->n * sizeof *record->window);
    record->window[record->n++] = *figures;
}

struct spike_limits spikes_limits(const struct config *config, const struct spike_record *record,
                                  bool is_ahead) {
    struct spike_limits limits = {0};
    double losses[SPIKE_WINDOW_MOST + 1], norms[SPIKE_WINDOW_MOST + 1];
    const int most = (int)config->train.spike_window;
    int n = 0, first = record->n + (is_ahead && record->has_newest) - most;
    if (config->train.on_spike == CONFIG_ON_SPIKE_OFF || config->train.spike_threshold == 0)
        return limits;
    for (int i = first > 0 ? first : 0; i < record->n; i++, n++) {
        losses[n] = record->window[i].loss;
        norms[n] = record->window[i].norm;
    }
    if (is_ahead && record->has_newest) {
        losses[n] = record->newest.loss;
        norms[n++] = record->newest.norm;
    }
    if (n < SPIKE_FEWEST)
        return limits;
    limits.n_steps = n;
    limits.loss = limit(losses, n, config->train.spike_threshold, SPIKE_FLOOR_LOSS, &limits.median_loss);
    limits.norm = limit(norms, n, config->train.spike_threshold, SPIKE_FLOOR_NORM, &limits.median_norm);
    return limits;
}

void spikes_add(const struct config *config, struct spike_record *record,
                const struct spike_figures *figures) {
    if (config->train.on_spike == CONFIG_ON_SPIKE_OFF)
        return;
    if (record->has_newest)
        append(record, &record->newest, config->train.spike_window);
    record->has_newest = figures != NULL;
    if (figures)
        record->newest = *figures;
}

// ---- the first tensor that is not finite

// An operation gets its operands as addresses. The hooks note the address at which each unit is acquired, so
// that operands which are parameters or gradients can be named.

#define VIEWS       4 // units whose addresses are kept; a pass holds at most two units at a time
#define CHUNK_BYTES ((size_t)1 << 20)

struct search {
    const struct params *params;
    const struct unit_hooks *hooks;
    struct {
        int unit;
        struct unit_view view;
    } views[VIEWS]; // units acquired last, the newest first
    int n_views;
    bool is_backward;
    char *chunk; // (CHUNK_BYTES) host copy of the values that are being checked
    struct finding *found;
};

// ---- names of tensors and layers

static void keep_view(struct search *search, int unit, enum gpt_pass pass, const struct unit_view *view) {
    memmove(search->views + 1, search->views, (VIEWS - 1) * sizeof *search->views);
    search->views[0].unit = unit;
    search->views[0].view = *view;
    search->n_views += search->n_views < VIEWS;
    search->is_backward = pass != GPT_FORWARD;
}

// Returns the tensor that begins at the address, as a parameter or as a gradient; NULL if there is none.
static const struct param *tensor_of(const struct search *search, const void *address) {
    for (int i = 0; i < search->n_views && address; i++) {
        const struct param_unit *unit = &search->params->units[search->views[i].unit];
        const struct param *tensors = &search->params->params[unit->first_param];
        const struct unit_view *view = &search->views[i].view;
        for (int k = 0; k < unit->n_params; k++)
            if ((view->params && param_of(view, k) == address) ||
                (view->grads && grad_of(view, k) == address))
                return &tensors[k];
    }
    return NULL;
}

// Returns the name of a layer: the name of its weight without ".weight".
static const char *layer_of(const struct search *search, const void *weight, char *name, size_t size) {
    const struct param *tensor = tensor_of(search, weight);
    if (!tensor)
        return "a layer";
    const size_t length = strlen(tensor->name), ending = strlen(".weight");
    const bool cut = length > ending && strcmp(tensor->name + length - ending, ".weight") == 0;
    snprintf(name, size, "%.*s", (int)(cut ? length - ending : length), tensor->name);
    return tensor == params_lm_head(search->params) ? "lm_head" : name;
}

// ---- finding values that are not finite

static bool is_finite_at(const char *bytes, size_t i, enum dtype type) {
    uint16_t half;
    float value;
    if (type == DTYPE_F32) {
        memcpy(&value, bytes + i * sizeof value, sizeof value);
        return isfinite(value);
    }
    memcpy(&half, bytes + i * sizeof half, sizeof half);
    return isfinite(type == DTYPE_F16 ? f16_to_float(half) : bf16_to_float(half));
}

static enum status find_in_row(struct search *search, struct stream *stream, const char *values, size_t n,
                               enum dtype type, bool *is_bad) {
    const size_t size = dtype_size(type), most = CHUNK_BYTES / size;
    for (size_t done = 0; done < n && !*is_bad; done += most) {
        const size_t part = n - done < most ? n - done : most;
        TRY(stream->device->copy(stream, search->chunk, values + done * size, part * size));
        TRY(stream->device->synchronize(stream));
        for (size_t i = 0; i < part && !*is_bad; i++)
            *is_bad = !is_finite_at(search->chunk, i, type);
    }
    return STATUS_OK;
}

// Checks (rows, columns) values whose rows are `stride` elements apart. Does nothing if a tensor was found
// before, or if values is NULL.
//   what, layer   describe the values: "the output of", "h.3.mlp.c_fc"
static enum status look(struct search *search, struct stream *stream, const void *values, size_t rows,
                        size_t columns, size_t stride, enum dtype type, const char *what, const char *layer) {
    const bool is_dense = columns == stride;
    bool is_bad = false;
    if (!values || search->found->is_found || (type != DTYPE_F32 && type != DTYPE_F16 && type != DTYPE_BF16))
        return STATUS_OK;
    for (size_t row = 0; row < (is_dense ? 1 : rows) && !is_bad; row++)
        TRY(find_in_row(search, stream, (const char *)values + row * stride * dtype_size(type),
                        is_dense ? rows * columns : columns, type, &is_bad));
    if (!is_bad)
        return STATUS_OK;
    search->found->is_found = true;
    snprintf(search->found->what, sizeof search->found->what, "%s %s, in the %s pass", what, layer,
             search->is_backward ? "backward" : "forward");
    return STATUS_OK;
}

// Checks a parameter of n elements.
static enum status look_at_tensor(struct search *search, struct stream *stream, const void *values, size_t n,
                                  enum dtype type) {
    const struct param *tensor = tensor_of(search, values);
    return look(search, stream, values, 1, n, n, type, "the parameter", tensor ? tensor->name : "(unnamed)");
}

// Checks the gradient of a parameter.
//   tensor   the parameter; NULL: not known
//   values   the gradient; NULL: the parameter is frozen. It may be in scratch memory, where matrix products
//            leave gradients of biases
static enum status look_at_gradient(struct search *search, struct stream *stream, const struct param *tensor,
                                    const void *values, size_t n) {
    if (!values)
        return STATUS_OK;
    return look(search, stream, values, 1, n, n, DTYPE_F32, "the gradient of",
                tensor ? tensor->name : "(unnamed)");
}

// ---- checking the operands of an operation

static enum status look_at_embedding(struct search *search, struct stream *stream,
                                     const struct embedding_forward_args *a) {
    char name[64];
    const size_t C = (size_t)a->C, n = (size_t)a->B * (size_t)a->T;
    TRY(look_at_tensor(search, stream, a->wte, (size_t)a->V * C, a->type));
    TRY(look_at_tensor(search, stream, a->wpe, (size_t)a->T * C, a->type));
    const char *layer = a->accumulate ? layer_of(search, a->wte, name, sizeof name) : "the embeddings";
    return look(search, stream, a->out, n, C, a->out_stride, a->type, "the output of", layer);
}

static enum status look_at_mix(struct search *search, struct stream *stream,
                               const struct mix_forward_args *a) {
    char name[64];
    TRY(look_at_tensor(search, stream, a->x_weight, 1, a->type));
    TRY(look_at_tensor(search, stream, a->y_weight, 1, a->type));
    const char *layer = layer_of(search, a->x_weight, name, sizeof name);
    return look(search, stream, a->out, 1, a->n, a->n, a->type, "the output of", layer);
}

static enum status look_at_dropout(struct search *search, struct stream *stream,
                                   const struct dropout_forward_args *a) {
    const size_t N = (size_t)a->N, C = (size_t)a->C;
    TRY(look(search, stream, a->x, N, C, C, a->type, "the input of", "dropout"));
    return look(search, stream, a->out, N, C, C, a->type, "the output of", "dropout");
}

static enum status look_at_norm(struct search *search, struct stream *stream,
                                const struct layernorm_forward_args *a) {
    char name[64];
    const size_t C = (size_t)a->C;
    TRY(look_at_tensor(search, stream, a->weight, C, a->type));
    TRY(look_at_tensor(search, stream, a->bias, C, a->type));
    const char *layer = layer_of(search, a->weight, name, sizeof name);
    TRY(look(search, stream, a->x, (size_t)a->N, C, C, a->type, "the input of", layer));
    return look(search, stream, a->out, (size_t)a->N, C, C, a->type, "the output of", layer);
}

static enum status look_at_rms_norm(struct search *search, struct stream *stream,
                                    const struct rmsnorm_forward_args *a) {
    const struct layernorm_forward_args args = {
        .out = a->out, .x = a->x, .weight = a->weight, .N = a->N, .C = a->C, .type = a->type};
    return look_at_norm(search, stream, &args);
}

static enum status look_at_linear(struct search *search, struct stream *stream,
                                  const struct linear_forward_args *a) {
    char name[64];
    const size_t N = (size_t)a->N, IC = (size_t)a->IC, OC = (size_t)a->OC;
    TRY(look_at_tensor(search, stream, a->weight, OC * IC, a->type));
    TRY(look_at_tensor(search, stream, a->bias, OC, a->type));
    const char *layer = layer_of(search, a->weight, name, sizeof name);
    TRY(look(search, stream, a->x, N, IC, IC, a->type, "the input of", layer));
    return look(search, stream, a->out, N, OC, (size_t)a->out_stride, a->out_type, "the output of", layer);
}

static enum status look_at_losses(struct search *search, struct stream *stream,
                                  const struct cross_entropy_args *a) {
    const size_t N = (size_t)a->N;
    TRY(look(search, stream, a->losses, 1, N, N, DTYPE_F32, "the losses of", "the tokens"));
    return look(search, stream, a->dlogits, N, (size_t)a->V, (size_t)a->dlogits_stride, a->type,
                "the gradient of", "the logits");
}

static enum status look_at_mix_backward(struct search *search, struct stream *stream,
                                        const struct mix_backward_args *a) {
    char name[64];
    const char *layer = layer_of(search, a->x_weight, name, sizeof name);
    TRY(look_at_gradient(search, stream, tensor_of(search, a->x_weight), a->dx_weight, 1));
    TRY(look_at_gradient(search, stream, tensor_of(search, a->y_weight), a->dy_weight, 1));
    return look(search, stream, a->dx, 1, a->n, a->n, a->type, "the gradient of the input of", layer);
}

// Finds the layer by the address of its weight or, if the operation does not read the weight, of the weight's
// gradient. The tensor after the weight is its bias.
static enum status look_at_linear_backward(struct search *search, struct stream *stream,
                                           const struct linear_backward_args *a) {
    char name[64];
    const size_t N = (size_t)a->N, IC = (size_t)a->IC, OC = (size_t)a->OC;
    const void *weight = a->weight ? a->weight : a->dweight;
    const struct param *tensor = tensor_of(search, weight);
    const char *layer = layer_of(search, weight, name, sizeof name);
    TRY(look(search, stream, a->dout, N, OC, (size_t)a->dout_stride, a->type, "the gradient of the output of",
             layer));
    TRY(look_at_gradient(search, stream, tensor, a->dweight, OC * IC));
    TRY(look_at_gradient(search, stream, tensor ? tensor + 1 : NULL, a->dbias, OC));
    return look(search, stream, a->dx, N, IC, IC, a->type, "the gradient of the input of", layer);
}

static enum status look_at_norm_backward(struct search *search, struct stream *stream,
                                         const struct layernorm_backward_args *a) {
    char name[64];
    const size_t C = (size_t)a->C;
    const struct param *tensor = tensor_of(search, a->weight);
    const char *layer = layer_of(search, a->weight, name, sizeof name);
    TRY(look_at_gradient(search, stream, tensor, a->dweight, C));
    TRY(look_at_gradient(search, stream, tensor ? tensor + 1 : NULL, a->dbias, C));
    return look(search, stream, a->dx, (size_t)a->N, C, C, a->type, "the gradient of the input of", layer);
}

static enum status look_at_rms_norm_backward(struct search *search, struct stream *stream,
                                             const struct rmsnorm_backward_args *a) {
    const struct layernorm_backward_args args = {
        .dx = a->dx, .dweight = a->dweight, .weight = a->weight, .N = a->N, .C = a->C, .type = a->type};
    return look_at_norm_backward(search, stream, &args);
}

// Checks the operands of an operation. The outputs of operations that are not listed here are checked as
// inputs of later ones.
static enum status look_at_operation(void *context, struct stream *stream, enum operation operation,
                                     const void *args) {
    struct search *search = context;
    if (search->found->is_found)
        return STATUS_OK;
    switch (operation) {
    case OP_embedding_forward:
        TRY(look_at_embedding(search, stream, args));
        break;
    case OP_layernorm_forward:
        TRY(look_at_norm(search, stream, args));
        break;
    case OP_rmsnorm_forward:
        TRY(look_at_rms_norm(search, stream, args));
        break;
    case OP_linear_forward:
        TRY(look_at_linear(search, stream, args));
        break;
    case OP_mix_forward:
        TRY(look_at_mix(search, stream, args));
        break;
    case OP_mix_backward:
        TRY(look_at_mix_backward(search, stream, args));
        break;
    case OP_dropout_forward:
        TRY(look_at_dropout(search, stream, args));
        break;
    case OP_cross_entropy:
        TRY(look_at_losses(search, stream, args));
        break;
    case OP_linear_backward:
        TRY(look_at_linear_backward(search, stream, args));
        break;
    case OP_layernorm_backward:
        TRY(look_at_norm_backward(search, stream, args));
        break;
    case OP_rmsnorm_backward:
        TRY(look_at_rms_norm_backward(search, stream, args));
        break;
    default:
        break;
    }
    search->found->n_operations += !search->found->is_found;
    return STATUS_OK;
}

static enum status look_at_call(void *context, struct observed_call *call) {
    TRY(observe_proceed(call));
    if (call->kind != OBSERVED_OPERATION)
        return STATUS_OK;
    TRY(call->stream->device->synchronize(call->stream));
    return look_at_operation(context, call->stream, call->operation, call->args);
}

// ---- hooks: pass calls on to the ZeRO stage's hooks, and note the addresses of acquired units

static enum status begin(void *context, enum trace_kind kind) {
    const struct search *search = context;
    return search->hooks->begin(search->hooks->context, kind);
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
    struct search *search = context;
    TRY(search->hooks->params_acquire(search->hooks->context, stream, unit, pass, view));
    keep_view(search, unit, pass, view);
    return STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    const struct search *search = context;
    return search->hooks->params_release(search->hooks->context, stream, unit, pass);
}

static enum status ready(void *context, struct stream *stream, int unit) {
    const struct search *search = context;
    return search->hooks->grads_ready(search->hooks->context, stream, unit);
}

enum status finding_train(struct gpt *gpt, const struct params *params, struct device *device,
                          struct stream *stream, const struct unit_hooks *hooks, const struct gpt_loss *loss,
                          struct finding *found) {
    struct search search = {.params = params, .hooks = hooks, .found = found};
    const struct unit_hooks watched = {.context = &search,
                                       .begin = hooks->begin ? begin : NULL,
                                       .params_acquire = acquire,
                                       .params_release = release,
                                       .grads_ready = ready};
    search.chunk = allocate(1, CHUNK_BYTES);
    observe_begin(device, look_at_call, &search);
    const enum status status = gpt_train(gpt, stream, &watched, loss);
    observe_end(device, look_at_call);
    free(search.chunk);
    return status;
}

// ---- a step that diverged

enum { SEQUENCES_NAMED = 3 };

// Appends where `n` rows of a step's batch begin in the data, from row `row` on: "token 0 of a.bin, token 64
// of b.bin and 6 others".
static void add_sequences(const struct run *run, const struct training_data *data, int64_t step, int64_t row,
                          int64_t n, struct text *out) {
    const int64_t data_step = run->config->train.overfit_one_batch ? 0 : step - 1;
    for (int64_t i = 0; i < n && i < SEQUENCES_NAMED; i++) {
        const char *path;
        size_t token;
        loader_locate(data->train, data_step, (int)(row + i), &path, &token);
        text_add(out, "%stoken %zu of %s", i ? ", " : "", token, path);
    }
    if (n > SEQUENCES_NAMED)
        text_add(out, " and %lld others", (long long)(n - SEQUENCES_NAMED));
}

static void add_figures(const struct config *config, const struct diverged_step *step, struct text *out) {
    const struct spike_limits *limits = &step->limits;
    const bool loss = step->loss > limits->loss;
    text_add(out,
             "%s %.6g is above %.6g: the median is %.6g over the last %lld steps (train.spike_threshold=%g)",
             loss ? "the loss" : "the gradient norm", loss ? step->loss : step->grad_norm,
             loss ? limits->loss : limits->norm, loss ? limits->median_loss : limits->median_norm,
             (long long)limits->n_steps, config->train.spike_threshold);
}

// ---- the first tensor that is not finite, over all micro-batches and ranks

struct found {
    struct finding finding;
    int64_t micro_batch, row; // if finding.is_found: number of the micro-batch on its rank, and its first row
};

// Repeats forward and backward of this rank's micro-batches of the step, with the weights that the step had,
// and searches each for a tensor that is not finite.
static enum status repeat_step(struct run *run, const struct training_data *data,
                               const struct diverged_step *step, struct found *found) {
    struct engine *engine = &run->engine;
    const struct config *config = run->config;
    const int64_t n_micro = run_micro_batches(run, step->batch_size),
                  data_step = config->train.overfit_one_batch ? 0 : step->step - 1;
    for (int64_t i = 0; i < n_micro; i++) {
        const struct logical_micro_batch at = run_micro_batch(run, i, n_micro);
        struct token_batch batch;
        const bool was_found = found->finding.is_found;
        TRY(run_agree(run, loader_batch(data->train, data_step, (int)run_first_row(run, &at), &batch)));
        TRY(gpt_load(engine->gpt, &run->machine.stream, &batch,
                     run_first_token(run, step->tokens_before, &at)));
        TRY(gradients_begin(&engine->state.gradients, &run->machine.stream, i, n_micro));
        const struct gpt_loss loss = {.scale = step->loss_factor,
                                      .sum = step_control_loss_sum(&engine->optimizer.control, at.j),
                                      .accumulate = at.k > 0};
        TRY(finding_train(engine->gpt, &run->params, run->machine.device, &run->machine.stream,
                          &engine->state.hooks, &loss, &found->finding));
        if (found->finding.is_found && !was_found)
            found->micro_batch = i, found->row = run_first_row(run, &at);
    }
    return gradients_finish(&engine->state.gradients, &run->machine.stream);
}

// Discards the gradients, as steps.c does for a step that is given up. optimizer_norm waits for the copies of
// gradients that offload has begun.
static enum status drop_gradients(struct run *run) {
    struct optimizer *optimizer = &run->engine.optimizer;
    double norm;
    if (!optimizer_decides_on_device(optimizer))
        TRY(optimizer_norm(optimizer, &run->machine.stream, &norm));
    TRY(optimizer_skip(optimizer, &run->machine.stream));
    return run->machine.device->synchronize(&run->machine.stream);
}

// Appends where the first non-finite value of all ranks is, and in which data. Collective.
static enum status add_first(struct run *run, const struct training_data *data,
                             const struct diverged_step *step, struct text *out) {
    const struct comm *comm = run->comm;
    const int64_t B = run->config->train.micro_batch_size;
    struct found mine = {0};
    struct found *all = allocate((size_t)comm->world, sizeof *all);
    enum status status = repeat_step(run, data, step, &mine);
    if (status == STATUS_OK)
        status = drop_gradients(run);
    if (status == STATUS_OK)
        status = comm_gather(run->comm, &mine, sizeof mine, all);
    int first = -1;
    for (int rank = 0; rank < comm->world && status == STATUS_OK; rank++)
        if (all[rank].finding.is_found &&
            (first < 0 || all[rank].finding.n_operations < all[first].finding.n_operations))
            first = rank;
    if (status == STATUS_OK && first >= 0) {
        text_add(out,
                 "The first tensor that is not finite is %s of micro-batch %lld of rank %d, with the "
                 "sequences at ",
                 all[first].finding.what, (long long)all[first].micro_batch + 1, first);
        add_sequences(run, data, step->step, all[first].row, B, out);
    } else if (status == STATUS_OK) {
        text_add(out, "All tensors are finite when the step is repeated: the sum over micro-batches and "
                      "ranks overflows");
    }
    free(all);
    return status;
}

// ---- the actions of train.on_spike

static enum status end_run(const struct run *run, const struct diverged_step *step, const struct text *what,
                           const char *advice) {
    return FAIL(STATUS_FAILED, "step %lld: %s; the run has diverged. %s. %s", (long long)step->step,
                what->data ? what->data : "", advice,
                run->saved_step >= 0 ? "The last checkpoint is kept; lower optimizer.lr, or resume from an "
                                       "earlier one with checkpoint.resume=PATH"
                                     : "The run has saved no checkpoint; lower optimizer.lr");
}

static enum status skip(struct run *run, const struct diverged_step *step, const struct text *what) {
    struct spike_record *spikes = &run->state.spikes;
    const int64_t most = run->config->train.max_spikes;
    spikes->skipped++;
    spikes->consecutive++;
    if (most > 0 && spikes->consecutive >= most)
        return end_run(run, step, what, "train.max_spikes updates in a row were skipped");
    log_warning("step %lld: %s. The update is skipped (train.on_spike=skip)", (long long)step->step,
                what->data);
    return STATUS_OK;
}

static enum status act(struct run *run, const struct diverged_step *step, bool is_finite,
                       const struct text *what) {
    switch (run->config->train.on_spike) {
    case CONFIG_ON_SPIKE_SKIP:
        return skip(run, step, what);
    case CONFIG_ON_SPIKE_OFF:
    case CONFIG_ON_SPIKE_WARN:
        if (is_finite) {
            log_warning("step %lld: %s", (long long)step->step, what->data);
            return STATUS_OK;
        }
        break;
    case CONFIG_ON_SPIKE_STOP:
        break;
    }
    return end_run(run, step, what, "train.on_spike=skip skips such updates");
}

enum status spikes_handle(struct run *run, const struct training_data *data,
                          const struct diverged_step *step) {
    struct text what = {0};
    const bool is_finite = isfinite(step->loss) && isfinite(step->grad_norm);
    enum status status = STATUS_OK;
    run->state.spikes.seen++;
    log_live_end();
    if (is_finite) {
        add_figures(run->config, step, &what);
        text_add(&what, "; its sequences begin at ");
        add_sequences(run, data, step->step, 0, step->batch_size, &what);
    } else {
        text_add(&what, "the loss is %g and the gradient norm %g. ", text_plain_nan(step->loss),
                 text_plain_nan(step->grad_norm));
        status = add_first(run, data, step, &what);
    }
    if (status == STATUS_OK)
        status = act(run, step, is_finite, &what);
    text_free(&what);
    return status;
}

void spikes_log(const struct spike_record *spikes) {
    char often[32] = "once", skipped[64] = "no update was skipped";
    if (spikes->seen == 0)
        return;
    if (spikes->seen > 1)
        snprintf(often, sizeof often, "%lld times", (long long)spikes->seen);
    if (spikes->skipped > 0)
        snprintf(skipped, sizeof skipped, "%lld update%s skipped", (long long)spikes->skipped,
                 spikes->skipped == 1 ? " was" : "s were");
    log_warning("the run diverged %s (train.on_spike); %s", often, skipped);
}
