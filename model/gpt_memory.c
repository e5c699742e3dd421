// A gpt's memory: adds its buffers to the region table, and finds them once the table is bound.
#include "model/gpt_buffers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/gpt.h"

// Logits are computed one tile of rows at a time, of at most LOGITS_TILE_BYTES. Each tile reads lm_head's
// matrix again, and reads and writes the matrix's gradient again. Where matrix products are fast, this
// memory traffic takes as long as the products. So the limit is twice as large on a CPU with AMX, and up to
// GPU_LOGITS_ROWS rows on a GPU.
#define LOGITS_TILE_BYTES    ((size_t)64 << 20)
#define GPU_LOGITS_ROWS      16384
#define AMX_LOGITS_GRAIN     32 // rows that AMX multiplies at once
#define LOGITS_ROW_ALIGNMENT 64 // elements; each row of logits then starts on a cache line
#define MINIMUM_LOGITS_ROWS  64 // rows that a tile may have even if it then exceeds its limit in bytes

// Returns the activations that backward recomputes: bits of enum block_activations. BLOCK_ACTIVATED, the
// output of the MLP's activation, is recomputed from the activation's input only if this gives the same
// bits. It does not for GELU on a GPU: there forward computes GELU in the epilogue of a product, whose
// library rounds in its own way.
static unsigned recomputed_sets(const struct params *params, const struct gpt_options *options,
                                const struct device *device) {
    bool same_bits = device->place == REGION_HOST || params->config.activation != MLP_GELU;
    unsigned elementwise = BLOCK_NORMS | BLOCK_MIXED | (same_bits ? BLOCK_ACTIVATED : 0u);
    switch (options->training ? options->recompute : RECOMPUTE_NONE) {
    case RECOMPUTE_ELEMENTWISE:
        return elementwise;
    case RECOMPUTE_ATTENTION:
        return elementwise | BLOCK_ATTENTION;
    case RECOMPUTE_BLOCK:
        return BLOCK_ALL;
    default:
        return 0;
    }
}

// Adds the buffers of the blocks: for recomputed activations one set that all blocks share, for the others
// one set per block.
static enum status add_blocks(struct gpt *gpt, struct region_table *table) {
    const struct block_memory memory = {&gpt->params->config, gpt->device->place, gpt->options.type,
                                        gpt->inputs.n_tokens};
    const struct gpt_blocks *blocks = &gpt->blocks;
    const unsigned shared = blocks->n > 1 ? blocks->recomputed : 0;
    TRY(block_buffers_add(&gpt->buffers, table, &memory, shared, true, "block", blocks->buffers, blocks->n));
    for (int i = 0; i < blocks->n; i++) {
        char label[24];
        snprintf(label, sizeof label, blocks->n > 1 ? "block.%d" : "block", blocks->lowest + i);
        unsigned own = BLOCK_ALL & ~shared;
        if (blocks->n > 1 && !gpt_mixes(memory.config, blocks->lowest + i))
            own &= ~(unsigned)BLOCK_MIXED;
        TRY(block_buffers_add(&gpt->buffers, table, &memory, own, gpt->options.training, label,
                              &blocks->buffers[i], 1));
    }
    return STATUS_OK;
}

// Adds a buffer on the device; none for 0 elements.
static enum status add(struct gpt *gpt, struct region_table *table, enum region_kind kind, enum dtype type,
                       size_t elements, void *pointer, const char *name) {
    return buffer_add(&gpt->buffers, table, kind, gpt->device->place, type, elements, pointer, name);
}

// Adds a buffer of kind REGION_DATA in host memory; none for 0 elements.
static enum status add_on_host(struct gpt *gpt, struct region_table *table, enum dtype type, size_t elements,
                               void *pointer, const char *name) {
    return buffer_add(&gpt->buffers, table, REGION_DATA, REGION_HOST, type, elements, pointer, name);
}

static enum activations_place activations_place_of(const struct gpt_options *options) {
    return !options->training             ? ACTIVATIONS_DISCARDED
           : options->offload_activations ? ACTIVATIONS_ON_HOST
                                          : ACTIVATIONS_ON_DEVICE;
}

// Adds the buffers of struct activation_gradients.
static enum status add_gradients(struct gpt *gpt, struct region_table *table) {
    const size_t rows = gpt->inputs.n_tokens, C = (size_t)gpt->params->config.n_embd;
    const struct activation_widths widths = activation_widths(gpt->params);
    struct activation_gradients *gradients = &gpt->gradients;
    const struct {
        const char *name;
        size_t width;
        void *pointer;
    } buffers[] = {{"dresidual", C, &gradients->dresidual},
                   {"dbranch", widths.dbranch, &gradients->dbranch},
                   {"dqkv", widths.dqkv, &gradients->dqkv},
                   {"drotated", widths.drotated, &gradients->drotated},
                   {"dfc", widths.dfc, &gradients->dfc},
                   {"ddropped", gpt->options.dropout > 0 ? C : 0, &gradients->ddropped}};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        TRY(add(gpt, table, REGION_WORKSPACE, gpt->options.type, rows * buffers[i].width, buffers[i].pointer,
                buffers[i].name));
    TRY(add(gpt, table, REGION_WORKSPACE, gpt->accumulation, rows * widths.dembedding, &gradients->dembedding,
            "dembedding"));
    return add(gpt, table, REGION_WORKSPACE, gpt->accumulation,
               gpt->device->place == REGION_HOST ? 0 : widths.dbiases, &gradients->dbiases, "dbiases");
}

// With dropout, adds the buffers for the numbers of a pass's sequences (gpt_inputs.sequences).
static enum status add_sequences(struct gpt *gpt, struct region_table *table) {
    const size_t bytes = gpt->options.dropout > 0 ? (size_t)gpt->options.B * sizeof(uint64_t) : 0;
    TRY(add(gpt, table, REGION_DATA, DTYPE_U8, bytes, &gpt->inputs.sequences, "numbers of sequences"));
    return add_on_host(gpt, table, DTYPE_U8, gpt->device->place == REGION_HOST ? 0 : GPT_INPUT_SLOTS * bytes,
                       &gpt->inputs.sequences_on_host, "numbers of sequences on host");
}

// Adds the buffers that gpt_load fills, and the buffers of the losses.
static enum status add_inputs(struct gpt *gpt, struct region_table *table) {
    const size_t rows = gpt->inputs.n_tokens;
    const bool documents = gpt->options.mask_documents;
    struct gpt_inputs *inputs = &gpt->inputs;
    struct gpt_losses *losses = &gpt->losses;
    TRY(add(gpt, table, REGION_DATA, DTYPE_I32, rows, &inputs->tokens, "tokens"));
    TRY(add(gpt, table, REGION_DATA, DTYPE_I32, rows, &inputs->targets, "targets"));
    TRY(add(gpt, table, REGION_DATA, gpt->accumulation, rows, &losses->each, "losses"));
    TRY(add_on_host(gpt, table, gpt->accumulation, rows, &losses->each_on_host, "losses on host"));
    TRY(add(gpt, table, REGION_DATA, DTYPE_F64, 1, &losses->sum, "sum of losses"));
    TRY(add_on_host(gpt, table, DTYPE_F64, 1, &losses->sum_on_host, "sum of losses on host"));
    TRY(add(gpt, table, REGION_DATA, DTYPE_I32, documents ? rows : 0, &inputs->first, "document starts"));
    TRY(add(gpt, table, REGION_DATA, DTYPE_F32, rows, &inputs->weights, "weights of targets"));
    inputs->n_fields = 3 + documents;
    if (gpt->device->place == REGION_DEVICE)
        TRY(add_on_host(gpt, table, DTYPE_I32, (size_t)(GPT_INPUT_SLOTS * inputs->n_fields) * rows,
                        &inputs->on_host, "batches on host"));
    return add_sequences(gpt, table);
}

static enum status add_activations(struct gpt *gpt, struct region_table *table) {
    enum dtype type = gpt->options.type;
    size_t rows = gpt->inputs.n_tokens, C = (size_t)gpt->params->config.n_embd;
    struct gpt_logits *logits = &gpt->logits;
    const size_t logits_elements = (size_t)logits->rows * (size_t)logits->stride;
    TRY(add_inputs(gpt, table));
    TRY(rope_table_init(&gpt->rope, &gpt->params->config, type, gpt->options.T, gpt->device, table,
                        "rotary embedding"));
    TRY(activations_init(&gpt->activations, gpt->device, table, gpt->params->config.n_layer, type, rows * C,
                         activations_place_of(&gpt->options), gpt->blocks.lowest,
                         gpt_mixes(&gpt->params->config, gpt->params->config.n_layer - 1), ""));
    TRY(add_blocks(gpt, table));
    TRY(add(gpt, table, REGION_ACTIVATIONS, type, rows * C, &gpt->lnf.out, "lnf"));
    TRY(add(gpt, table, REGION_LOGITS, logits->type, logits_elements, &logits->data, "logits"));
    if (!gpt->options.training)
        return STATUS_OK;
    if (type == logits->type)
        buffer_share(&gpt->buffers, &logits->gradient); // cross_entropy may overwrite the logits
    if (params_tensor(gpt->params, gpt->params->n_units - 1, PARAM_LNF_BIAS))
        TRY(add(gpt, table, REGION_ACTIVATIONS, gpt->accumulation, rows, &gpt->lnf.mean, "lnf_mean"));
    TRY(add(gpt, table, REGION_ACTIVATIONS, gpt->accumulation, rows, &gpt->lnf.rstd, "lnf_rstd"));
    if (type != logits->type)
        TRY(add(gpt, table, REGION_LOGITS, type, logits_elements, &logits->gradient, "dlogits"));
    return add_gradients(gpt, table);
}

static enum status add_predictions(struct gpt *gpt, struct region_table *table) {
    const size_t n = GPT_PREDICTION_ROWS;
    struct gpt_predictions *predictions = &gpt->predictions;
    TRY(add(gpt, table, REGION_ACTIVATIONS, gpt->options.type, n * (size_t)gpt->params->config.n_embd,
            &predictions->rows, "scored positions"));
    TRY(add(gpt, table, REGION_LOGITS, gpt->accumulation, n * (size_t)gpt->logits.stride,
            &predictions->logits, "scored logits"));
    return add(gpt, table, REGION_DATA, DTYPE_I32, n, &predictions->tokens, "predictions");
}

// Sets the pointers to the buffers. table NULL: sets them to a dry run's placeholders.
static enum status find_buffers(struct gpt *gpt, const struct region_table *table) {
    buffers_find(&gpt->buffers, table);
    rope_table_find(&gpt->rope, table);
    return activations_bind(&gpt->activations, table);
}

// Adds the workspace that the passes need, sized by a dry run.
static enum status add_workspace(struct gpt *gpt, struct region_table *table) {
    TRY(gpt_dry_run(gpt, &gpt->workspace_bytes));
    return add(gpt, table, REGION_WORKSPACE, DTYPE_U8, gpt->workspace_bytes, &gpt->workspace, "operations");
}

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static bool by_amx(const struct gpt *gpt) {
    return gpt->device->has_amx && gpt->options.type == DTYPE_BF16;
}

// Returns the maximum size of a tile in bytes. On a GPU it is the smaller of two sizes, but at least
// LOGITS_TILE_BYTES:
// - GPU_LOGITS_ROWS rows
// - half of the activations that the blocks would keep without recomputation (16 C elements per token and
//   block), so that a small model's logits do not outgrow its activations
// The recompute level and the ZeRO stage do not influence the size. They must change no bit, and the bits
// of the gradient of lm_head's matrix depend on the size: it is summed tile by tile.
static size_t most_logits_bytes(const struct gpt *gpt) {
    const struct gpt_config *config = &gpt->params->config;
    size_t row_bytes = (size_t)gpt->logits.stride * dtype_size(gpt->logits.type);
    size_t token_bytes =
        16 * (size_t)config->n_embd * (size_t)config->n_layer * dtype_size(gpt->options.type);
    size_t kept = (size_t)gpt->options.B * (size_t)gpt->options.T * token_bytes,
           most = row_bytes * GPU_LOGITS_ROWS;
    if (by_amx(gpt))
        return 2 * LOGITS_TILE_BYTES;
    if (gpt->device->place == REGION_HOST || kept / 2 <= LOGITS_TILE_BYTES || most <= LOGITS_TILE_BYTES)
        return LOGITS_TILE_BYTES;
    return kept / 2 < most ? kept / 2 : most;
}

// Returns the rows per tile: as few tiles as the maximum size allows, all equally long except the last.
// With AMX, a multiple of AMX_LOGITS_GRAIN unless there is only one tile.
static int choose_logits_rows(const struct gpt *gpt) {
    size_t rows = (size_t)gpt->options.B * (size_t)gpt->options.T;
    size_t most = most_logits_bytes(gpt) / ((size_t)gpt->logits.stride * dtype_size(gpt->logits.type));
    if (most < MINIMUM_LOGITS_ROWS)
        most = MINIMUM_LOGITS_ROWS;
    size_t n_tiles = (rows + most - 1) / most, tile = (rows + n_tiles - 1) / n_tiles;
    if (by_amx(gpt) && tile < rows)
        tile = round_up(tile, AMX_LOGITS_GRAIN);
    return (int)tile;
}

// Chooses the dtype and the shape of the tile of logits. On a GPU logits have the compute type, like the
// activations that they come from, and their gradient overwrites them. The same holds with AMX, where fp32
// logits took 5 % of the time of a step of GPT-2 124M. On other CPUs logits are fp32: a tile fits into
// caches, so this costs no time.
static void choose_logits(struct gpt *gpt) {
    const bool is_narrow = gpt->device->place == REGION_DEVICE || by_amx(gpt);
    gpt->logits.type = is_narrow ? gpt->options.type : gpt->accumulation;
    gpt->logits.columns = params_lm_head_columns(gpt->params, gpt->device->place);
    gpt->logits.stride = (int)round_up((size_t)gpt->logits.columns, LOGITS_ROW_ALIGNMENT);
    gpt->logits.rows = choose_logits_rows(gpt);
}

static enum status check_options(const struct params *params, const struct gpt_options *options) {
    if (options->T < 1 || options->T > params->config.n_positions)
        return FAIL(STATUS_INVALID, "a sequence length of %d does not fit the model's %d positions",
                    options->T, params->config.n_positions);
    if (options->B < 1 || (int64_t)options->B * options->T > INT32_MAX / 4)
        return FAIL(STATUS_INVALID,
                    "a micro-batch of %d x %d tokens is too large; lower train.micro_batch_size", options->B,
                    options->T);
    if (options->offload_activations && options->recompute != RECOMPUTE_BLOCK)
        return FAIL(STATUS_INVALID,
                    "offload_activations=cpu needs recompute=block, which keeps only the inputs of blocks");
    return STATUS_OK;
}

static void choose_blocks(struct gpt *gpt) {
    const int n_layer = gpt->params->config.n_layer, lowest = params_lowest_trained(gpt->params);
    const bool keeps = gpt->options.training && gpt->options.recompute != RECOMPUTE_BLOCK;
    gpt->blocks.lowest = gpt->options.training && lowest > 0 ? lowest - 1 : 0;
    gpt->blocks.n = keeps && gpt->blocks.lowest < n_layer ? n_layer - gpt->blocks.lowest : 1;
    gpt->blocks.buffers = allocate((size_t)gpt->blocks.n, sizeof *gpt->blocks.buffers);
}

// Adds all buffers except the workspace, and sets their pointers to a dry run's placeholders.
static enum status lay_out(struct gpt *gpt, struct region_table *table) {
    gpt->inputs.n_tokens = (size_t)gpt->options.B * (size_t)gpt->options.T;
    gpt->accumulation = accumulation_dtype(gpt->options.type);
    gpt->blocks.recomputed = recomputed_sets(gpt->params, &gpt->options, gpt->device);
    choose_logits(gpt);
    choose_blocks(gpt);
    TRY(add_activations(gpt, table));
    if (gpt->options.scoring)
        TRY(add_predictions(gpt, table));
    return find_buffers(gpt, NULL);
}

static void gpt_free(struct gpt *gpt) {
    activations_free(&gpt->activations);
    for (int slot = 0; slot < GPT_INPUT_SLOTS; slot++)
        event_free(&gpt->inputs.loaded[slot]);
    free(gpt->blocks.buffers);
    free(gpt->buffers.list);
}

enum status gpt_new(const struct params *params, const struct gpt_options *options, struct device *device,
                    struct region_table *table, struct gpt **out) {
    *out = NULL;
    TRY(check_options(params, options));
    struct gpt *gpt = allocate(1, sizeof *gpt);
    gpt->params = params;
    gpt->options = *options;
    gpt->device = device;
    enum status status = lay_out(gpt, table);
    if (status == STATUS_OK)
        status = add_workspace(gpt, table);
    if (status != STATUS_OK) {
        gpt_delete(gpt);
        return status;
    }
    *out = gpt;
    return STATUS_OK;
}

enum status gpt_trace(const struct params *params, enum gpt_recompute recompute, int T, enum trace_kind kind,
                      struct trace *out) {
    struct device none = {.place = REGION_HOST};
    struct gpt gpt = {.params = params,
                      .options = {.type = DTYPE_F32,
                                  .B = 1,
                                  .T = T,
                                  .recompute = recompute,
                                  .training = kind == TRACE_TRAINING},
                      .device = &none};
    struct region_table table;
    *out = (struct trace){0};
    TRY(check_options(params, &gpt.options));
    region_table_init(&table);
    enum status status = lay_out(&gpt, &table);
    if (status == STATUS_OK)
        status = gpt_record(&gpt, out);
    region_table_free(&table);
    gpt_free(&gpt);
    return status;
}

enum status gpt_flops_per_token(const struct params *params, int T, double *out) {
    struct trace trace;
    enum status status = gpt_trace(params, RECOMPUTE_NONE, T, TRACE_TRAINING, &trace);
    *out = (trace_flops(&trace) - trace.recomputed_scores) / T;
    trace_free(&trace);
    return status;
}

void gpt_delete(struct gpt *gpt) {
    if (gpt)
        gpt_free(gpt);
    free(gpt);
}

const struct gpt_work *gpt_work_of(const struct gpt *gpt, bool further) {
    return gpt->options.training ? &gpt->work[further] : NULL;
}

enum status gpt_bind(struct gpt *gpt, const struct region_table *table, struct stream *stream) {
    TRY(find_buffers(gpt, table));
    stream_use_workspace(stream, gpt->workspace, gpt->workspace_bytes);
    TRY(rope_table_fill(&gpt->rope, gpt->device, stream));
    for (int slot = 0; slot < GPT_INPUT_SLOTS && gpt->inputs.on_host; slot++)
        TRY(event_init(&gpt->inputs.loaded[slot], gpt->device));
    return STATUS_OK;
}
