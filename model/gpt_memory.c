// A gpt's memory: buffers added to the region table, and looked up in it once it is bound.
#include "model/gpt_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

// Logits are computed for a tile of rows at a time; this bounds the tile. Each tile reads wte and adds to its
// gradient anew: where products are fast, that takes as long as they do. So the tile is twice as large with a
// CPU's AMX, and on a GPU it may grow to GPU_LOGITS_ROWS rows.
#define LOGITS_TILE_BYTES    ((size_t)64 << 20)
#define GPU_LOGITS_ROWS      16384
#define AMX_LOGITS_GRAIN     32 // rows that AMX multiplies at once
#define LOGITS_ROW_ALIGNMENT 64 // elements: rows of logits start on a cache line whatever the vocabulary
#define MINIMUM_LOGITS_ROWS  64

// The sets of activations that backward recomputes. An activation's output only where it would be the same
// bits: a GPU's library computes GELU in the epilogue of a product, with roundings of its own.
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

// One set of buffers that all blocks share, for what is recomputed, and each block's own for the rest.
static enum status add_blocks(struct gpt *gpt, struct region_table *table) {
    const struct gpt_config *config = &gpt->params->config;
    size_t rows = (size_t)gpt->options.B * (size_t)gpt->options.T;
    unsigned recomputed = gpt->n_blocks > 1 ? gpt->recomputed : 0;
    struct block_regions shared;
    memset(&shared, 0xff, sizeof shared); // -1: left out
    TRY(block_regions_add(table, gpt->device, config, gpt->options.type, rows, recomputed, true, "block",
                          &shared));
    for (int i = 0; i < gpt->n_blocks; i++) {
        char label[24];
        snprintf(label, sizeof label, gpt->n_blocks > 1 ? "block.%d" : "block", i);
        gpt->block_regions[i] = shared;
        unsigned own = BLOCK_ALL & ~recomputed;
        if (gpt->n_blocks > 1 && !gpt_mixes(config, i))
            own &= ~(unsigned)BLOCK_MIXED;
        TRY(block_regions_add(table, gpt->device, config, gpt->options.type, rows, own, gpt->options.training,
                              label, &gpt->block_regions[i]));
    }
    return STATUS_OK;
}

static enum activations_place activations_place_of(const struct gpt_options *options) {
    return !options->training             ? ACTIVATIONS_DISCARDED
           : options->offload_activations ? ACTIVATIONS_ON_HOST
                                          : ACTIVATIONS_ON_DEVICE;
}

// Gradients of activations.
static enum status add_gradients(struct gpt *gpt, struct region_table *table) {
    const enum region_place place = gpt->device->place;
    const size_t rows = (size_t)gpt->options.B * (size_t)gpt->options.T;
    const struct activation_widths widths = activation_widths(gpt->params);
    struct gpt_regions *regions = &gpt->regions;
    const struct {
        const char *name;
        size_t width;
        int *region;
    } buffers[] = {
        {"dresidual", (size_t)gpt->params->config.n_embd, &regions->dresidual},
        {"dbranch", widths.dbranch, &regions->dbranch},
        {"dqkv", widths.dqkv, &regions->dqkv},
        {"drotated", widths.drotated, &regions->drotated},
        {"dfc", widths.dfc, &regions->dfc},
        {"ddropped", gpt->options.dropout > 0 ? (size_t)gpt->params->config.n_embd : 0, &regions->ddropped}};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i].width > 0)
            TRY(region_add(table, REGION_WORKSPACE, place, gpt->options.type, rows * buffers[i].width,
                           buffers[i].region, "%s", buffers[i].name));
    if (widths.dembedding > 0)
        TRY(region_add(table, REGION_WORKSPACE, place, gpt->accumulation, rows * widths.dembedding,
                       &regions->dembedding, "dembedding"));
    return place == REGION_HOST || widths.dbiases == 0
               ? STATUS_OK
               : region_add(table, REGION_WORKSPACE, place, gpt->accumulation, widths.dbiases,
                            &regions->dbiases, "dbiases");
}

// The numbers of a pass's sequences.
static enum status add_sequences(struct gpt *gpt, struct region_table *table) {
    const enum region_place place = gpt->device->place;
    const size_t bytes = (size_t)gpt->options.B * sizeof(uint64_t);
    if (!(gpt->options.dropout > 0))
        return STATUS_OK;
    TRY(region_add(table, REGION_DATA, place, DTYPE_U8, bytes, &gpt->regions.sequences,
                   "numbers of sequences"));
    return place == REGION_HOST
               ? STATUS_OK
               : region_add(table, REGION_DATA, REGION_HOST, DTYPE_U8, GPT_INPUT_SLOTS * bytes,
                            &gpt->regions.host_sequences, "numbers of sequences on host");
}

// What gpt_load fills, and the losses that come back.
static enum status add_inputs(struct gpt *gpt, struct region_table *table) {
    const enum region_place place = gpt->device->place;
    const size_t rows = gpt->n_inputs;
    struct gpt_regions *regions = &gpt->regions;
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &regions->tokens, "tokens"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &regions->targets, "targets"));
    TRY(region_add(table, REGION_DATA, place, gpt->accumulation, rows, &regions->losses, "losses"));
    TRY(region_add(table, REGION_DATA, REGION_HOST, gpt->accumulation, rows, &regions->host_losses,
                   "losses on host"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, 1, &regions->loss_sum, "sum of losses"));
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F64, 1, &regions->host_loss_sum,
                   "sum of losses on host"));
    const bool documents = gpt->options.mask_documents;
    if (documents)
        TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &regions->first, "document starts"));
    if (place == REGION_DEVICE)
        TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_I32,
                       GPT_INPUT_SLOTS * (documents ? 3 : 2) * rows, &regions->host_inputs,
                       documents ? "tokens, targets and document starts on host"
                                 : "tokens and targets on host"));
    return add_sequences(gpt, table);
}

static enum status add_activations(struct gpt *gpt, struct region_table *table) {
    enum region_place place = gpt->device->place;
    enum dtype type = gpt->options.type;
    size_t rows = gpt->n_inputs, C = (size_t)gpt->params->config.n_embd;
    struct gpt_regions *regions = &gpt->regions;
    TRY(add_inputs(gpt, table));
    TRY(rope_table_init(&gpt->rope, &gpt->params->config, type, gpt->options.T, gpt->device, table,
                        "rotary embedding"));
    TRY(activations_init(&gpt->activations, gpt->device, table, gpt->params->config.n_layer, type, rows * C,
                         activations_place_of(&gpt->options),
                         gpt_mixes(&gpt->params->config, gpt->params->config.n_layer - 1), ""));
    TRY(add_blocks(gpt, table));
    TRY(region_add(table, REGION_ACTIVATIONS, place, type, rows * C, &regions->lnf, "lnf"));
    size_t logits = (size_t)gpt->logits_rows * (size_t)gpt->logits_stride;
    TRY(region_add(table, REGION_LOGITS, place, gpt->logits_type, logits, &regions->logits, "logits"));
    if (!gpt->options.training)
        return STATUS_OK;
    if (params_tensor(gpt->params, gpt->params->n_units - 1, PARAM_LNF_BIAS))
        TRY(region_add(table, REGION_ACTIVATIONS, place, gpt->accumulation, rows, &regions->lnf_mean,
                       "lnf_mean"));
    TRY(region_add(table, REGION_ACTIVATIONS, place, gpt->accumulation, rows, &regions->lnf_rstd,
                   "lnf_rstd"));
    if (type == gpt->logits_type)
        regions->dlogits = regions->logits; // cross_entropy may overwrite its logits
    else
        TRY(region_add(table, REGION_LOGITS, place, type, logits, &regions->dlogits, "dlogits"));
    return add_gradients(gpt, table);
}

static enum status add_predictions(struct gpt *gpt, struct region_table *table) {
    enum region_place place = gpt->device->place;
    const size_t n = GPT_PREDICTION_ROWS;
    TRY(region_add(table, REGION_ACTIVATIONS, place, gpt->options.type,
                   n * (size_t)gpt->params->config.n_embd, &gpt->regions.scored, "scored positions"));
    TRY(region_add(table, REGION_LOGITS, place, gpt->accumulation, n * (size_t)gpt->logits_stride,
                   &gpt->regions.scored_logits, "scored logits"));
    return region_add(table, REGION_DATA, place, DTYPE_I32, n, &gpt->regions.predictions, "predictions");
}

// table NULL: a dry run's buffers.
static enum status find_buffers(struct gpt *gpt, const struct region_table *table) {
    for (int i = 0; i < gpt->n_blocks; i++)
        block_buffers_find(&gpt->block_regions[i], table, &gpt->blocks[i]);
    const struct gpt_regions *regions = &gpt->regions;
    gpt->buffers =
        (struct gpt_buffers){.tokens = buffer_find(table, regions->tokens),
                             .targets = buffer_find(table, regions->targets),
                             .first = buffer_find(table, regions->first),
                             .sequences = buffer_find(table, regions->sequences),
                             .host_inputs = buffer_find(table, regions->host_inputs),
                             .host_sequences = buffer_find(table, regions->host_sequences),
                             .losses = buffer_find(table, regions->losses),
                             .host_losses = buffer_find(table, regions->host_losses),
                             .loss_sum = buffer_find(table, regions->loss_sum),
                             .host_loss_sum = buffer_find(table, regions->host_loss_sum),
                             .lnf = {buffer_find(table, regions->lnf), buffer_find(table, regions->lnf_mean),
                                     buffer_find(table, regions->lnf_rstd)},
                             .logits = buffer_find(table, regions->logits),
                             .dlogits = buffer_find(table, regions->dlogits),
                             .scored = buffer_find(table, regions->scored),
                             .scored_logits = buffer_find(table, regions->scored_logits),
                             .predictions = buffer_find(table, regions->predictions),
                             .ddropped = buffer_find(table, regions->ddropped),
                             .scratch = {.dresidual = buffer_find(table, regions->dresidual),
                                         .dbranch = buffer_find(table, regions->dbranch),
                                         .dqkv = buffer_find(table, regions->dqkv),
                                         .drotated = buffer_find(table, regions->drotated),
                                         .dfc = buffer_find(table, regions->dfc),
                                         .dbiases = buffer_find(table, regions->dbiases),
                                         .dembedding = buffer_find(table, regions->dembedding)}};
    rope_table_find(&gpt->rope, table);
    return activations_bind(&gpt->activations, table);
}

// The workspace that the passes need, by a dry run of them.
static enum status add_workspace(struct gpt *gpt, struct region_table *table) {
    TRY(gpt_dry_run(gpt, &gpt->workspace_bytes));
    return region_add(table, REGION_WORKSPACE, gpt->device->place, DTYPE_U8, gpt->workspace_bytes,
                      &gpt->regions.workspace, "operations");
}

static size_t round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static bool by_amx(const struct gpt *gpt) {
    return gpt->device->has_amx && gpt->options.type == DTYPE_BF16;
}

// The largest tile in bytes. On a GPU up to GPU_LOGITS_ROWS rows, but at most half of what the blocks would
// keep for backward without recomputation (16 C per token and block): a small model's logits must not outgrow
// its activations. Recomputation and the ZeRO stage play no part, since they must change no bit, and the
// gradient of wte is summed tile by tile.
static size_t most_logits_bytes(const struct gpt *gpt) {
    const struct gpt_config *config = &gpt->params->config;
    size_t row_bytes = (size_t)gpt->logits_stride * dtype_size(gpt->logits_type);
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

// As few tiles of rows as their largest size allows, all equally long but the last.
static int choose_logits_rows(const struct gpt *gpt) {
    size_t rows = (size_t)gpt->options.B * (size_t)gpt->options.T;
    size_t most = most_logits_bytes(gpt) / ((size_t)gpt->logits_stride * dtype_size(gpt->logits_type));
    if (most < MINIMUM_LOGITS_ROWS)
        most = MINIMUM_LOGITS_ROWS;
    size_t n_tiles = (rows + most - 1) / most, tile = (rows + n_tiles - 1) / n_tiles;
    if (by_amx(gpt) && tile < rows)
        tile = round_up(tile, AMX_LOGITS_GRAIN);
    return (int)tile;
}

// The logits' tile. On a GPU logits have the compute type, as the activations that they come from, and their
// gradient takes their place. So they do with AMX, where fp32 logits took 5 % of a step of
// 124M. On other CPUs a tile fits into caches, and fp32 logits cost nothing.
static void choose_logits(struct gpt *gpt) {
    const bool is_narrow = gpt->device->place == REGION_DEVICE || by_amx(gpt);
    gpt->logits_type = is_narrow ? gpt->options.type : gpt->accumulation;
    gpt->logits_columns = params_lm_head_columns(gpt->params, gpt->device->place);
    gpt->logits_stride = (int)round_up((size_t)gpt->logits_columns, LOGITS_ROW_ALIGNMENT);
    gpt->logits_rows = choose_logits_rows(gpt);
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

// Everything but the workspace, with a dry run's buffers.
static enum status lay_out(struct gpt *gpt, struct region_table *table) {
    gpt->n_inputs = (size_t)gpt->options.B * (size_t)gpt->options.T;
    gpt->accumulation = accumulation_dtype(gpt->options.type);
    gpt->end_of_text = -1;
    gpt->recomputed = recomputed_sets(gpt->params, &gpt->options, gpt->device);
    choose_logits(gpt);
    gpt->n_blocks =
        gpt->options.training && gpt->options.recompute != RECOMPUTE_BLOCK ? gpt->params->config.n_layer : 1;
    memset(&gpt->regions, 0xff, sizeof gpt->regions); // -1: left out
    gpt->block_regions = allocate((size_t)gpt->n_blocks, sizeof *gpt->block_regions);
    gpt->blocks = allocate((size_t)gpt->n_blocks, sizeof *gpt->blocks);
    TRY(add_activations(gpt, table));
    if (gpt->options.scoring)
        TRY(add_predictions(gpt, table));
    return find_buffers(gpt, NULL);
}

static void gpt_free(struct gpt *gpt) {
    activations_free(&gpt->activations);
    for (int slot = 0; slot < GPT_INPUT_SLOTS; slot++)
        event_free(&gpt->loaded[slot]);
    free(gpt->block_regions);
    free(gpt->blocks);
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
    enum status status = gpt_trace(params, RECOMPUTE_NONE, T, TRACE_EVALUATION, &trace);
    *out = 3 * trace_flops(&trace) / T;
    trace_free(&trace);
    return status;
}

void gpt_delete(struct gpt *gpt) {
    if (gpt)
        gpt_free(gpt);
    free(gpt);
}

void gpt_set_end_of_text(struct gpt *gpt, int32_t end_of_text) {
    gpt->end_of_text = end_of_text;
}

const struct gpt_work *gpt_work_of(const struct gpt *gpt, bool further) {
    return gpt->options.training ? &gpt->work[further] : NULL;
}

enum status gpt_bind(struct gpt *gpt, const struct region_table *table, struct stream *stream) {
    TRY(find_buffers(gpt, table));
    stream_use_workspace(stream, region_data(table, gpt->regions.workspace), gpt->workspace_bytes);
    TRY(rope_table_fill(&gpt->rope, gpt->device, stream));
    for (int slot = 0; slot < GPT_INPUT_SLOTS && gpt->buffers.host_inputs; slot++)
        TRY(event_init(&gpt->loaded[slot], gpt->device));
    return STATUS_OK;
}
