// The passes over a model's units: embeddings, blocks (decoder.c), final norm and lm_head, forward and
// backward. The same code is used for planning: without a stream it is a dry run (model/runner.h).
#include "model/gpt.h"

#include <assert.h>
#include <string.h>

#include "model/gpt_buffers.h"

// ---- what all passes use

struct model_pass {
    struct gpt *gpt;
    struct runner runner;
    const struct unit_hooks *hooks;
    const float *loss_scale_from;      // gpt_loss.scale_from; NULL: none
    const struct gpt_scoring *scoring; // the argument of gpt_score; NULL in other passes
    struct dropout dropout;
    enum attention_kernel attention;
};

static struct unit_pass unit_of(struct model_pass *pass, int unit, struct unit_view view) {
    const struct gpt *gpt = pass->gpt;
    struct unit_pass u = unit_pass_of(&pass->runner, gpt->params, gpt->options.type,
                                      gpt->options.B * gpt->options.T, unit, view);
    u.dropout = pass->dropout.p > 0 ? &pass->dropout : NULL;
    return u;
}

static struct dropout dropout_of(const struct gpt *gpt) {
    return (struct dropout){.p = gpt->options.dropout,
                            .seed = gpt->options.dropout_seed,
                            .sequences = gpt->inputs.sequences,
                            .T = gpt->options.T,
                            .gradient = gpt->gradients.ddropped};
}

static enum status begin(struct model_pass *pass, enum trace_kind kind) {
    pass->dropout = kind == TRACE_TRAINING ? dropout_of(pass->gpt) : (struct dropout){.p = 0};
    return pass->hooks->begin ? pass->hooks->begin(pass->hooks->context, kind) : STATUS_OK;
}

static enum status acquire(struct model_pass *pass, int unit, enum gpt_pass direction,
                           struct unit_view *view) {
    return pass->hooks->params_acquire(pass->hooks->context, pass->runner.stream, unit, direction, view);
}

static enum status release(struct model_pass *pass, int unit, enum gpt_pass direction) {
    return pass->hooks->params_release(pass->hooks->context, pass->runner.stream, unit, direction);
}

static enum status ready(struct model_pass *pass, int unit) {
    return params_unit_is_frozen(pass->gpt->params, unit)
               ? STATUS_OK
               : pass->hooks->grads_ready(pass->hooks->context, pass->runner.stream, unit);
}

// Returns the kind of pass for which backward acquires a unit.
static enum gpt_pass backward_through(const struct model_pass *pass, int unit) {
    return params_unit_is_frozen(pass->gpt->params, unit) ? GPT_BACKWARD_FROZEN : GPT_BACKWARD;
}

// ---- forward

// With T = 1: returns how many positions the new token of each sequence attends to in a block, its own
// position included, summed over the sequences. With T > 1: returns 0.
static size_t keys_seen(const struct gpt *gpt, int block) {
    const struct gpt_cache *cache = &gpt->cache;
    const int window = gpt_window(&gpt->params->config, block);
    size_t n = 0;
    for (int i = 0; i < gpt->options.B && gpt->options.T == 1; i++) {
        int length = cache->host_lengths[i] + 1 - (cache->host_first ? cache->host_first[i] : 0);
        n += (size_t)(window > 0 && window < length ? window : length);
    }
    return n;
}

static struct block_cache cache_of(const struct gpt *gpt, int block) {
    const struct gpt_cache *cache = &gpt->cache;
    if (!cache->blocks)
        return (struct block_cache){0};
    return (struct block_cache){.keys_values = cache->blocks[block],
                                .stride = cache->stride,
                                .sequence = cache->sequence,
                                .length = cache->length,
                                .sequences = cache->sequences,
                                .lengths = cache->lengths,
                                .n_keys = keys_seen(gpt, block)};
}

static struct block_pass block_of(struct model_pass *pass, int block, struct unit_view view) {
    const struct gpt *gpt = pass->gpt;
    return (struct block_pass){.unit = unit_of(pass, 1 + block, view),
                               .block = block,
                               .B = gpt->options.B,
                               .T = gpt->options.T,
                               .buffers = gpt_block_buffers(&gpt->blocks, block),
                               .x = activations_at(&gpt->activations, block),
                               .out = activations_at(&gpt->activations, block + 1),
                               .embedding = activations_at(&gpt->activations, 0),
                               .tokens = gpt->inputs.tokens,
                               .first = gpt->inputs.first,
                               .rope = gpt->rope.data,
                               .attention = pass->attention,
                               .cache = cache_of(gpt, block),
                               .scratch = &gpt->gradients};
}

static enum status embed(struct model_pass *pass, struct unit_view view) {
    struct gpt *gpt = pass->gpt;
    const struct unit_pass u = unit_of(pass, 0, view);
    RUN(&pass->runner, embedding_forward, .out = activations_at(&gpt->activations, 0),
        .wte = layer_weight(&u, PARAM_WTE), .wpe = layer_weight(&u, PARAM_WPE), .tokens = gpt->inputs.tokens,
        .B = gpt->options.B, .T = gpt->options.T, .C = u.config->n_embd, .V = u.config->vocab_size,
        .position = gpt->cache.length, .positions = gpt->cache.lengths,
        .out_stride = (size_t)u.config->n_embd, .type = u.type);
    void *out = activations_at(&gpt->activations, 0);
    return drop(&u, 0, out, NULL, out);
}

// Runs forward of the embeddings and of all blocks.
//   for_backward  true: backward will read the activation checkpoints
static enum status forward(struct model_pass *pass, bool for_backward) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    struct unit_view view;
    TRY(acquire(pass, 0, GPT_FORWARD, &view));
    TRY(embed(pass, view));
    if (for_backward)
        TRY(activations_offload(&gpt->activations, pass->runner.stream, 0));
    TRY(release(pass, 0, GPT_FORWARD));
    for (int block = 0; block < config->n_layer; block++) {
        TRY(acquire(pass, 1 + block, GPT_FORWARD, &view));
        const struct block_pass args = block_of(pass, block, view);
        for (int sublayer = 0; sublayer < N_SUBLAYERS; sublayer++) {
            if (for_backward && sublayer == SUBLAYER_FC_PROJ)
                TRY(activations_reserve(&gpt->activations, pass->runner.stream, block + 1));
            TRY(family_of(config)->forward[sublayer](&args));
        }
        if (for_backward)
            TRY(activations_offload(&gpt->activations, pass->runner.stream, block + 1));
        TRY(release(pass, 1 + block, GPT_FORWARD));
    }
    return STATUS_OK;
}

// ---- final norm, and the matrix of lm_head

// The units of the final norm and of lm_head.
struct head {
    // norm: the last unit. matrix: the unit with lm_head's matrix, which is the last unit or, if lm_head is
    // tied, the embeddings.
    struct unit_pass norm, matrix;
    int tensor; // lm_head's matrix in that unit: PARAM_LM_HEAD or, if tied, PARAM_WTE
};

// Acquires the last unit and the unit of lm_head's matrix, and computes the final norm.
//   backward  true: also acquire the gradients of the units that are not frozen
static enum status head_acquire(struct model_pass *pass, bool backward, struct head *head) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    const int last = config->n_layer + 1;
    struct unit_view view;
    TRY(acquire(pass, last, backward ? backward_through(pass, last) : GPT_FORWARD, &view));
    head->norm = head->matrix = unit_of(pass, last, view);
    head->tensor = PARAM_LM_HEAD;
    TRY(norm(&head->norm, PARAM_LNF_WEIGHT, activations_at(&gpt->activations, config->n_layer), &gpt->lnf));
    if (config->untied)
        return STATUS_OK;
    TRY(acquire(pass, 0, backward ? backward_through(pass, 0) : GPT_FORWARD, &view));
    head->matrix = unit_of(pass, 0, view);
    head->tensor = PARAM_WTE;
    return STATUS_OK;
}

// Releases the unit of lm_head's matrix if it is not the last unit.
static enum status head_release_matrix(struct model_pass *pass, enum gpt_pass direction) {
    return pass->gpt->params->config.untied ? STATUS_OK : release(pass, 0, direction);
}

// ---- lm_head and loss, a tile of rows at a time

// Computes the logits of rows [row, row + n) into gpt->logits. If the vocabulary is padded
// (params_lm_head_columns), the product also reads the memory that follows lm_head's matrix.
static enum status logits_tile(struct model_pass *pass, const struct head *head, int row, int n) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    size_t offset = (size_t)row * (size_t)config->n_embd * dtype_size(gpt->options.type);
    RUN(&pass->runner, linear_forward, .out = gpt->logits.data, .x = (char *)gpt->lnf.out + offset,
        .weight = layer_weight(&head->matrix, head->tensor), .N = n, .IC = config->n_embd,
        .OC = gpt->logits.columns, .out_stride = gpt->logits.stride, .type = gpt->options.type,
        .out_type = gpt->logits.type);
    return STATUS_OK;
}

// Applies the soft-cap to the first n rows of the tile of logits, for gpt_logits and generation.
static enum status cap_tile(struct model_pass *pass, int n) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_config *config = &gpt->params->config;
    if (config->soft_cap > 0)
        RUN(&pass->runner, soft_cap, .out = gpt->logits.data, .x = gpt->logits.data, .N = n,
            .V = config->vocab_size, .stride = gpt->logits.stride, .cap = (float)config->soft_cap,
            .type = gpt->logits.type);
    return STATUS_OK;
}

// Computes the losses of a tile and, into dlogits, the gradients of its logits. dlogits NULL: computes only
// the losses, without label smoothing and z-loss, for evaluation.
static enum status losses_tile(struct model_pass *pass, int row, int n, float scale, void *dlogits) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_inputs *inputs = &gpt->inputs;
    const int V = gpt->params->config.vocab_size;
    RUN(&pass->runner, cross_entropy,
        .losses = (char *)gpt->losses.each + (size_t)row * dtype_size(gpt->accumulation), .dlogits = dlogits,
        .logits = gpt->logits.data, .targets = (const int32_t *)inputs->targets + row,
        .weights = inputs->is_weighted ? inputs->weights + row : NULL, .N = n, .V = V,
        .n_zeros = gpt->logits.columns - V, .logits_stride = gpt->logits.stride,
        .dlogits_stride = gpt->logits.stride, .scale = scale, .scale_from = pass->loss_scale_from,
        .soft_cap = (float)gpt->params->config.soft_cap,
        .label_smoothing = dlogits ? gpt->options.label_smoothing : 0,
        .z_loss = dlogits ? gpt->options.z_loss : 0, .type = gpt->options.type,
        .logits_type = gpt->logits.type);
    return STATUS_OK;
}

// Returns the number of rows of the tile that begins at `row`. All tiles but the last have the same length.
static int tile_rows(const struct gpt *gpt, int row) {
    int left = gpt->options.B * gpt->options.T - row;
    return left < gpt->logits.rows ? left : gpt->logits.rows;
}

// ---- which activations backward recomputes

// Returns the activations of a block that backward recomputes: bits of enum block_activations. The last
// block's activations are still in the buffers, so none of them is recomputed.
static unsigned recomputed_of(const struct gpt *gpt, int block) {
    return block < gpt->params->config.n_layer - 1 ? gpt->blocks.recomputed : 0;
}

// ---- final norm, lm_head and loss, with their gradients

// True if the final norm, or a unit before it in forward, is trained. If not, backward ends with lm_head.
static bool goes_below_head(const struct gpt *gpt, const struct head *head) {
    return gpt->blocks.lowest < gpt->params->config.n_layer ||
           layer_gradient(&head->norm, PARAM_LNF_WEIGHT) || layer_gradient(&head->norm, PARAM_LNF_BIAS);
}

// Computes, for rows [row, row + n), the gradient of the final norm's output (in dbranch) and the rows'
// contribution to the gradient of lm_head's matrix. Skips a gradient that no trained tensor needs. The
// gradients of the padding's logits are zero, so they do not change dbranch. If lm_head is untied, the
// gradient of its matrix also gets rows for the padding, which are zero and never read. If lm_head is tied,
// it does not, because gradients of other tensors may follow it.
static enum status logits_tile_backward(struct model_pass *pass, const struct head *head, int row, int n) {
    struct gpt *gpt = pass->gpt;
    enum dtype type = gpt->options.type;
    int C = gpt->params->config.n_embd;
    size_t offset = (size_t)row * (size_t)C * dtype_size(type);
    void *dweight = layer_gradient(&head->matrix, head->tensor);
    if (goes_below_head(gpt, head))
        RUN(&pass->runner, linear_backward, .dx = (char *)gpt->gradients.dbranch + offset,
            .dout = gpt->logits.gradient, .weight = layer_weight(&head->matrix, head->tensor), .N = n,
            .IC = C, .OC = gpt->logits.columns, .dout_stride = gpt->logits.stride, .type = type);
    if (dweight)
        RUN(&pass->runner, linear_backward, .dweight = dweight, .dout = gpt->logits.gradient,
            .x = (char *)gpt->lnf.out + offset, .N = n, .IC = C,
            .OC = gpt->params->config.untied ? gpt->logits.columns : gpt->params->config.vocab_size,
            .dout_stride = gpt->logits.stride, .beta_zero = head->matrix.view.beta_zero && row == 0,
            .type = type);
    return STATUS_OK;
}

// Computes the losses, and the gradients of lm_head, of the final norm, and of the last block's output (in
// dresidual).
static enum status head_forward_backward(struct model_pass *pass, float loss_scale) {
    struct gpt *gpt = pass->gpt;
    const int n_layer = gpt->params->config.n_layer, N = gpt->options.B * gpt->options.T;
    const struct activation_gradients *d = &gpt->gradients;
    struct head head;
    TRY(head_acquire(pass, true, &head));
    for (int row = 0; row < N; row += tile_rows(gpt, row)) {
        int n = tile_rows(gpt, row);
        TRY(logits_tile(pass, &head, row, n));
        TRY(losses_tile(pass, row, n, loss_scale, gpt->logits.gradient));
        TRY(logits_tile_backward(pass, &head, row, n));
    }
    TRY(head_release_matrix(pass, backward_through(pass, 0)));
    if (goes_below_head(gpt, &head))
        TRY(norm_backward(&head.norm, PARAM_LNF_WEIGHT, activations_at(&gpt->activations, n_layer), &gpt->lnf,
                          d->dbranch, NULL, d->dresidual, false));
    TRY(ready(pass, n_layer + 1));
    return release(pass, n_layer + 1, backward_through(pass, n_layer + 1));
}

// ---- backward

// Completes the gradient of block 0's input, the token embedding, in dresidual: adds dembedding, the
// contributions of the blocks that mix the embedding in. The sum is in the accumulation dtype and is
// rounded once.
static enum status add_dembedding(struct model_pass *pass) {
    const struct gpt *gpt = pass->gpt;
    const struct activation_gradients *d = &gpt->gradients;
    const size_t n = (size_t)gpt->options.B * (size_t)gpt->options.T * (size_t)gpt->params->config.n_embd;
    if (!d->dembedding)
        return STATUS_OK;
    RUN(&pass->runner, add, .out = d->dembedding, .x = d->dembedding, .y = d->dresidual, .n = n,
        .type = gpt->options.type);
    RUN(&pass->runner, cast, .out = d->dresidual, .x = d->dembedding, .n = n, .type = gpt->accumulation,
        .out_type = gpt->options.type);
    return STATUS_OK;
}

// Adds to the gradients of the token and position embeddings. If lm_head is tied, it has already
// contributed to the token embedding's gradient. Otherwise, with view.beta_zero, that gradient is first set
// to zero.
static enum status embed_backward(struct model_pass *pass, struct unit_view view) {
    struct gpt *gpt = pass->gpt;
    const struct unit_pass u = unit_of(pass, 0, view);
    void *dwte = layer_gradient(&u, PARAM_WTE), *dresidual = gpt->gradients.dresidual;
    TRY(drop_backward(&u, 0, dresidual, dresidual));
    if (dwte && u.config->untied && view.beta_zero)
        RUN(&pass->runner, fill, .out = dwte, .n = layer_tensor(&u, PARAM_WTE)->elements,
            .type = gpt->accumulation);
    RUN(&pass->runner, embedding_backward, .dwte = dwte, .dwpe = layer_gradient(&u, PARAM_WPE),
        .dout = dresidual, .tokens = gpt->inputs.tokens, .B = gpt->options.B, .T = gpt->options.T,
        .C = u.config->n_embd, .V = u.config->vocab_size, .dout_stride = (size_t)u.config->n_embd,
        .P = u.config->n_positions, .beta_zero = view.beta_zero, .type = u.type);
    return STATUS_OK;
}

static enum status backward(struct model_pass *pass) {
    struct gpt *gpt = pass->gpt;
    struct unit_view view;
    const struct gpt_config *config = &gpt->params->config;
    for (int block = config->n_layer - 1; block >= gpt->blocks.lowest; block--) {
        TRY(activations_prefetch(&gpt->activations, pass->runner.stream, block - 1));
        TRY(acquire(pass, 1 + block, backward_through(pass, 1 + block), &view));
        TRY(activations_wait(&gpt->activations, pass->runner.stream, block));
        const struct block_pass args = block_of(pass, block, view);
        TRY(block_backward(&args, recomputed_of(gpt, block)));
        TRY(ready(pass, 1 + block));
        TRY(release(pass, 1 + block, backward_through(pass, 1 + block)));
    }
    if (params_unit_is_frozen(gpt->params, 0))
        return STATUS_OK;
    TRY(add_dembedding(pass));
    TRY(acquire(pass, 0, GPT_BACKWARD_GRADS, &view));
    TRY(embed_backward(pass, view));
    TRY(ready(pass, 0));
    return release(pass, 0, GPT_BACKWARD_GRADS);
}

// ---- loading the inputs of a pass: the batch and, for dropout, the numbers of its sequences

// Loads the numbers of the sequences: the index of each one's first token, counted over the run. No-op
// without dropout.
static enum status load_sequences(struct gpt *gpt, struct stream *stream, int slot, uint64_t first_token) {
    const size_t n = (size_t)gpt->options.B;
    uint64_t *host = gpt->inputs.sequences_on_host, *to = gpt->inputs.sequences;
    if (!to)
        return STATUS_OK;
    uint64_t *numbers = host ? host + n * (size_t)slot : to;
    for (size_t b = 0; b < n; b++)
        numbers[b] = first_token + b * (uint64_t)gpt->options.T;
    return host ? gpt->device->copy(stream, to, numbers, n * sizeof *to) : STATUS_OK;
}

// Loads the inputs of any pass. For a GPU they are first copied to pinned memory: to its two slots in turn,
// so that the host can fill one while the device still reads the other.
//   first_token  as in gpt_load; NULL for evaluation and scoring, which have no dropout
static enum status load_inputs(struct gpt *gpt, struct stream *stream, const struct token_batch *batch,
                               const uint64_t *first_token) {
    struct gpt_inputs *inputs = &gpt->inputs;
    const size_t bytes = (size_t)gpt->options.B * (size_t)gpt->options.T * sizeof(int32_t);
    const struct {
        void *to;
        const void *from;
    } fields[] = {{inputs->tokens, batch->tokens},
                  {inputs->targets, batch->targets},
                  {inputs->first, batch->starts},
                  {inputs->weights, batch->weights}};
    const int slot = (int)(inputs->n_loads++ % GPT_INPUT_SLOTS);
    assert(batch->starts || !inputs->first);
    // In float64, cross_entropy of tests/ref would read the weights as doubles, but they are fp32.
    assert(!batch->weights || gpt->accumulation == DTYPE_F32);
    char *staged = inputs->on_host;
    if (staged) {
        TRY(event_synchronize(&inputs->loaded[slot]));
        staged += (size_t)(inputs->n_fields * slot) * inputs->n_tokens * sizeof(int32_t);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!fields[i].to || !fields[i].from)
            continue;
        if (staged)
            memcpy(staged, fields[i].from, bytes);
        TRY(gpt->device->copy(stream, fields[i].to, staged ? staged : fields[i].from, bytes));
        staged += staged ? bytes : 0;
    }
    inputs->is_weighted = batch->weights != NULL;
    if (first_token)
        TRY(load_sequences(gpt, stream, slot, *first_token));
    return event_record(&inputs->loaded[slot], stream);
}

enum status gpt_load(struct gpt *gpt, struct stream *stream, const struct token_batch *batch,
                     uint64_t first_token) {
    return load_inputs(gpt, stream, batch, &first_token);
}

// ---- whole passes

static enum status run_training(struct model_pass *pass, float loss_scale) {
    TRY(begin(pass, TRACE_TRAINING));
    TRY(forward(pass, true));
    TRY(head_forward_backward(pass, loss_scale));
    return backward(pass);
}

// Copies the first n rows of the tile of logits to host memory, as fp32. 16-bit logits are first copied to
// the second half of their row in `to`, and then upcast in order. So no result overwrites a logit that is
// still to be read.
static enum status copy_logits(struct model_pass *pass, float *to, int n) {
    struct gpt *gpt = pass->gpt;
    enum dtype type = gpt->logits.type;
    size_t V = (size_t)gpt->params->config.vocab_size, size = dtype_size(type);
    for (int i = 0; i < n; i++) {
        const char *row = (const char *)gpt->logits.data + (size_t)i * (size_t)gpt->logits.stride * size;
        TRY(gpt->device->copy(pass->runner.stream, (char *)(to + (size_t)(i + 1) * V) - V * size, row,
                              V * size));
    }
    TRY(gpt->device->synchronize(pass->runner.stream));
    for (size_t i = 0; type != DTYPE_F32 && i < (size_t)n * V; i++) {
        size_t row = i / V;
        uint16_t half;
        memcpy(&half, (char *)(to + (row + 1) * V) - (V - i % V) * size, sizeof half);
        to[i] = type == DTYPE_F16 ? f16_to_float(half) : bf16_to_float(half);
    }
    return STATUS_OK;
}

// Predicts the most likely next token for each row in pass->scoring->rows. The logits are fp32 even if the
// compute type is narrower, because different logits could become equal by rounding. The soft-cap is left
// out: it keeps the order, but could make large logits equal.
static enum status predict(struct model_pass *pass, const struct head *head) {
    struct gpt *gpt = pass->gpt;
    const struct gpt_scoring *scoring = pass->scoring;
    const int C = gpt->params->config.n_embd;
    const size_t row_bytes = (size_t)C * dtype_size(gpt->options.type);
    for (int first = 0; first < scoring->n_rows; first += GPT_PREDICTION_ROWS) {
        const int left = scoring->n_rows - first, n = left < GPT_PREDICTION_ROWS ? left : GPT_PREDICTION_ROWS;
        for (int i = 0; i < n && pass->runner.stream; i++)
            TRY(gpt->device->copy(pass->runner.stream, (char *)gpt->predictions.rows + (size_t)i * row_bytes,
                                  (char *)gpt->lnf.out + (size_t)scoring->rows[first + i] * row_bytes,
                                  row_bytes));
        // The product always has GPT_PREDICTION_ROWS rows, and so one shape. The results of rows from n on
        // are not used.
        RUN(&pass->runner, linear_forward, .out = gpt->predictions.logits, .x = gpt->predictions.rows,
            .weight = layer_weight(&head->matrix, head->tensor), .N = GPT_PREDICTION_ROWS, .IC = C,
            .OC = gpt->logits.columns, .out_stride = gpt->logits.stride, .type = gpt->options.type,
            .out_type = gpt->accumulation);
        RUN(&pass->runner, sample, .tokens = gpt->predictions.tokens, .logits = gpt->predictions.logits,
            .N = GPT_PREDICTION_ROWS, .V = gpt->params->config.vocab_size,
            .logits_stride = gpt->logits.stride, .temperature = 0, .top_p = 1, .type = gpt->accumulation);
        if (!pass->runner.stream)
            continue;
        TRY(gpt->device->copy(pass->runner.stream, scoring->predictions + first, gpt->predictions.tokens,
                              (size_t)n * sizeof *scoring->predictions));
        TRY(gpt->device->synchronize(pass->runner.stream));
    }
    return STATUS_OK;
}

// Runs a forward pass, and computes the losses of its positions into gpt->losses.each. With pass->scoring,
// also computes the predictions.
//   host_logits  if not NULL: (B T, vocab_size) fp32, receives the logits; the losses are then not computed
static enum status run_evaluation(struct model_pass *pass, float *host_logits) {
    struct gpt *gpt = pass->gpt;
    int N = gpt->options.B * gpt->options.T;
    size_t V = (size_t)gpt->params->config.vocab_size;
    struct head head;
    TRY(begin(pass, TRACE_EVALUATION));
    TRY(forward(pass, false));
    TRY(head_acquire(pass, false, &head));
    for (int row = 0; row < N; row += tile_rows(gpt, row)) {
        int n = tile_rows(gpt, row);
        TRY(logits_tile(pass, &head, row, n));
        if (host_logits)
            TRY(cap_tile(pass, n));
        TRY(host_logits ? copy_logits(pass, host_logits + (size_t)row * V, n)
                        : losses_tile(pass, row, n, 0.0f, NULL));
    }
    if (pass->scoring)
        TRY(predict(pass, &head));
    TRY(head_release_matrix(pass, GPT_FORWARD));
    return release(pass, gpt->params->n_units - 1, GPT_FORWARD);
}

static enum status run_cached(struct model_pass *pass, enum trace_kind kind) {
    const int B = pass->gpt->options.B;
    struct head head;
    TRY(begin(pass, kind));
    TRY(forward(pass, false));
    if (kind == TRACE_PROMPT)
        return STATUS_OK;
    TRY(head_acquire(pass, false, &head));
    TRY(logits_tile(pass, &head, 0, B));
    TRY(cap_tile(pass, B));
    TRY(head_release_matrix(pass, GPT_FORWARD));
    return release(pass, pass->gpt->params->n_units - 1, GPT_FORWARD);
}

enum status gpt_run_cached(struct gpt *gpt, struct runner *runner, const struct unit_hooks *hooks,
                           enum trace_kind kind) {
    struct model_pass pass = {
        .gpt = gpt, .runner = *runner, .hooks = hooks, .attention = gpt->options.attention};
    enum status status = run_cached(&pass, kind);
    *runner = pass.runner;
    return status;
}

static enum status sum_losses(struct model_pass *pass, double *sum, bool accumulate) {
    struct gpt *gpt = pass->gpt;
    RUN(&pass->runner, sum, .out = sum, .x = gpt->losses.each,
        .n = (size_t)gpt->options.B * (size_t)gpt->options.T, .accumulate = accumulate,
        .type = gpt->accumulation);
    return STATUS_OK;
}

// Copies the sum of the losses to *sum and, unless `losses` is NULL, the losses of all positions to
// `losses`.
static enum status read_losses(struct gpt *gpt, struct stream *stream, double *sum, float *losses) {
    const size_t n = (size_t)gpt->options.B * (size_t)gpt->options.T;
    const struct gpt_losses *from = &gpt->losses;
    TRY(gpt->device->copy(stream, from->sum_on_host, from->sum, sizeof *sum));
    if (losses)
        TRY(gpt->device->copy(stream, from->each_on_host, from->each, n * dtype_size(gpt->accumulation)));
    TRY(gpt->device->synchronize(stream));
    *sum = *from->sum_on_host;
    for (size_t i = 0; i < n && losses; i++)
        losses[i] = gpt->accumulation == DTYPE_F64 ? (float)((const double *)from->each_on_host)[i]
                                                   : ((const float *)from->each_on_host)[i];
    return STATUS_OK;
}

static struct model_pass pass_on(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks) {
    return (struct model_pass){.gpt = gpt,
                               .runner = {.device = gpt->device, .stream = stream},
                               .hooks = hooks,
                               .attention = gpt->options.attention};
}

enum status gpt_train(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                      const struct gpt_loss *loss) {
    assert(gpt->options.training);
    struct model_pass pass = pass_on(gpt, stream, hooks);
    pass.loss_scale_from = loss->scale_from;
    TRY(run_training(&pass, loss->scale));
    return sum_losses(&pass, loss->sum, loss->accumulate);
}

enum status gpt_forward_backward(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                                 const struct token_batch *batch, float loss_scale, double *loss_sum) {
    TRY(gpt_load(gpt, stream, batch, 0));
    TRY(gpt_train(gpt, stream, hooks, &(struct gpt_loss){.scale = loss_scale, .sum = gpt->losses.sum}));
    return read_losses(gpt, stream, loss_sum, NULL);
}

enum status gpt_evaluate(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                         const struct token_batch *batch, double *loss_sum, float *losses) {
    struct model_pass pass = pass_on(gpt, stream, hooks);
    TRY(load_inputs(gpt, stream, batch, NULL));
    TRY(run_evaluation(&pass, NULL));
    TRY(sum_losses(&pass, gpt->losses.sum, false));
    return read_losses(gpt, stream, loss_sum, losses);
}

int gpt_shapes(int B, int T, struct gpt_shape shapes[GPT_MOST_SHAPES]) {
    int n = 0;
    for (; n < GPT_MOST_SHAPES; n++) {
        const int64_t quarters = (n % 2 ? 3 : 4) * (int64_t)T, divisor = (int64_t)4 << n / 2;
        const int64_t t = (quarters + divisor - 1) / divisor;
        if (n > 0 && t < GPT_SHORTEST_SCORED)
            break;
        shapes[n] = (struct gpt_shape){(int)((int64_t)B * T / t), (int)t};
    }
    return n;
}

// Begins a scoring pass: sets the gpt's B and T to the pass's shape, and returns the previous ones, which
// end_scoring restores. No shape has more tokens than the buffers have room for. Attention uses this
// program's own kernels, because cuDNN would take time to plan each shape.
static struct gpt_shape begin_scoring(struct model_pass *pass, const struct gpt_scoring *scoring) {
    struct gpt_options *options = &pass->gpt->options;
    const struct gpt_shape whole = {options->B, options->T};
    options->B = scoring->shape.B;
    options->T = scoring->shape.T;
    pass->scoring = scoring;
    pass->attention = ATTENTION_FLASH;
    return whole;
}

static void end_scoring(struct model_pass *pass, struct gpt_shape whole) {
    pass->gpt->options.B = whole.B;
    pass->gpt->options.T = whole.T;
}

enum status gpt_score(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                      const struct gpt_scoring *scoring) {
    assert(gpt->options.scoring);
    struct model_pass pass = pass_on(gpt, stream, hooks);
    const struct gpt_shape whole = begin_scoring(&pass, scoring);
    double sum;
    enum status status = load_inputs(gpt, stream, &scoring->batch, NULL);
    if (status == STATUS_OK)
        status = run_evaluation(&pass, NULL);
    if (status == STATUS_OK)
        status = sum_losses(&pass, gpt->losses.sum, false);
    if (status == STATUS_OK)
        status = read_losses(gpt, stream, &sum, scoring->losses);
    end_scoring(&pass, whole);
    return status;
}

enum status gpt_logits(struct gpt *gpt, struct stream *stream, const struct unit_hooks *hooks,
                       const struct token_batch *batch, float *logits) {
    assert(gpt->accumulation == DTYPE_F32);
    struct model_pass pass = pass_on(gpt, stream, hooks);
    TRY(load_inputs(gpt, stream, batch, NULL));
    return run_evaluation(&pass, logits);
}

// Makes a dry run of every shape that gpt_score accepts.
static enum status dry_run_scoring(struct model_pass pass, size_t *workspace_bytes) {
    struct gpt_shape shapes[GPT_MOST_SHAPES];
    const int n = gpt_shapes(pass.gpt->options.B, pass.gpt->options.T, shapes);
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        const struct gpt_scoring scoring = {.shape = shapes[i], .n_rows = 1};
        const struct gpt_shape whole = begin_scoring(&pass, &scoring);
        status = run_evaluation(&pass, NULL);
        end_scoring(&pass, whole);
    }
    *workspace_bytes = pass.runner.workspace_bytes;
    return status;
}

enum status gpt_dry_run(struct gpt *gpt, size_t *workspace_bytes) {
    struct dry_run run = {.beta_zero = false};
    const struct unit_hooks hooks = dry_run_hooks(&run);
    struct model_pass pass = pass_on(gpt, NULL, &hooks);
    struct runner_sized sized = {.n = 0};
    pass.runner.sized = &sized;
    TRY(run_evaluation(&pass, NULL));
    if (gpt->options.scoring)
        TRY(dry_run_scoring(pass, &pass.runner.workspace_bytes));
    for (int further = 0; further < 2 && gpt->options.training; further++) {
        run.beta_zero = !further;
        pass.runner.work = &gpt->work[further];
        TRY(run_training(&pass, 1.0f));
        TRY(sum_losses(&pass, NULL, further));
    }
    *workspace_bytes = pass.runner.workspace_bytes;
    return STATUS_OK;
}

enum status gpt_record(struct gpt *gpt, struct trace *trace) {
    struct dry_run run = {.trace = trace};
    const struct unit_hooks hooks = dry_run_hooks(&run);
    struct model_pass pass = pass_on(gpt, NULL, &hooks);
    pass.runner.trace = trace;
    return gpt->options.training ? run_training(&pass, 1.0f) : run_evaluation(&pass, NULL);
}
