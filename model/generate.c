// The key-value cache, and draws from the logits behind it. A prompt is taken in chunks of a few fixed
// lengths, so that few shapes occur and the workspace for each is known before the first token.
#include "model/generate.h"

#include <stdlib.h>

#include "base/rng.h"
#include "model/block.h"

// Chunks are powers of two up to this.
#define LONGEST_CHUNK 64

struct generator {
    const struct params *params;
    struct device *device;
    enum dtype type;
    int positions, length;
    size_t workspace_bytes;
    int *cache_regions; // (n_layer), each (positions, 2 C): keys, then values
    void **caches;
    struct block_regions block_regions;
    struct block_buffers block;
    int residual_regions[2], tokens_region, lnf_region, logits_region, workspace_region;
    int uniform_region, drawn_region; // of a draw
    void *residuals[2], *tokens, *lnf, *logits, *uniform, *drawn;
};

// One chunk of n tokens through the model, writing its keys and values to the cache; logits of the last
// position.
static enum status run_chunk(struct generator *generator, struct runner *runner,
                             const struct unit_hooks *hooks, int n) {
    const struct params *params = generator->params;
    const struct gpt_config *config = &params->config;
    enum dtype type = generator->type;
    int last = config->n_layer + 1, C = config->n_embd;
    struct unit_view view;
    TRY(hooks->params_acquire(hooks->context, runner->stream, 0, GPT_FORWARD, 1, &view));
    RUN(runner, embedding_forward, .out = generator->residuals[0],
        .wte = param_at(view.params, params->params, PARAM_WTE, type),
        .wpe = param_at(view.params, params->params, PARAM_WPE, type), .tokens = generator->tokens, .B = 1,
        .T = n, .C = C, .V = config->vocab_size, .position = generator->length, .type = type);
    TRY(hooks->params_release(hooks->context, runner->stream, 0, GPT_FORWARD));
    for (int block = 0; block < config->n_layer; block++) {
        TRY(hooks->params_acquire(hooks->context, runner->stream, 1 + block, GPT_FORWARD, 2 + block, &view));
        TRY(block_forward(
            runner, &(struct block_forward){.config = config,
                                            .type = type,
                                            .B = 1,
                                            .T = n,
                                            .params = view.params,
                                            .table = &params->params[params->units[1 + block].first_param],
                                            .buffers = &generator->block,
                                            .x = generator->residuals[block % 2],
                                            .out = generator->residuals[(block + 1) % 2],
                                            .cache = generator->caches[block],
                                            .cache_length = generator->length}));
        TRY(hooks->params_release(hooks->context, runner->stream, 1 + block, GPT_FORWARD));
    }
    const struct param *norm = &params->params[params->units[last].first_param];
    size_t offset = (size_t)(n - 1) * (size_t)C * dtype_size(type);
    TRY(hooks->params_acquire(hooks->context, runner->stream, last, GPT_FORWARD, 0, &view));
    RUN(runner, layernorm_forward, .out = generator->lnf,
        .x = (char *)generator->residuals[config->n_layer % 2] + offset,
        .weight = param_at(view.params, norm, PARAM_LNF_WEIGHT, type),
        .bias = param_at(view.params, norm, PARAM_LNF_BIAS, type), .N = 1, .C = C,
        .epsilon = GPT_LAYERNORM_EPSILON, .type = type);
    TRY(hooks->params_release(hooks->context, runner->stream, last, GPT_FORWARD));
    TRY(hooks->params_acquire(hooks->context, runner->stream, 0, GPT_FORWARD, -1, &view));
    RUN(runner, linear_forward, .out = generator->logits, .x = generator->lnf,
        .weight = param_at(view.params, params->params, PARAM_WTE, type), .N = 1, .IC = C,
        .OC = config->vocab_size, .out_stride = config->vocab_size, .type = type, .out_type = DTYPE_F32);
    return hooks->params_release(hooks->context, runner->stream, 0, GPT_FORWARD);
}

static enum status sample(struct generator *generator, struct runner *runner, const struct sampling *sampling,
                          int n_drawable) {
    RUN(runner, sample, .tokens = generator->drawn, .logits = generator->logits,
        .uniforms = generator->uniform, .N = 1, .V = n_drawable,
        .logits_stride = generator->params->config.vocab_size, .temperature = sampling->temperature,
        .top_k = sampling->top_k, .top_p = sampling->top_p, .type = DTYPE_F32);
    return STATUS_OK;
}

// table NULL: buffers of a rehearsal.
static void find_buffers(struct generator *generator, const struct region_table *table) {
    for (int i = 0; i < generator->params->config.n_layer; i++)
        generator->caches[i] = buffer_find(table, generator->cache_regions[i]);
    for (int i = 0; i < 2; i++)
        generator->residuals[i] = buffer_find(table, generator->residual_regions[i]);
    block_buffers_find(&generator->block_regions, table, &generator->block);
    generator->tokens = buffer_find(table, generator->tokens_region);
    generator->lnf = buffer_find(table, generator->lnf_region);
    generator->logits = buffer_find(table, generator->logits_region);
    generator->uniform = buffer_find(table, generator->uniform_region);
    generator->drawn = buffer_find(table, generator->drawn_region);
}

static int longest_chunk(int n) {
    int chunk = LONGEST_CHUNK;
    while (chunk > n)
        chunk /= 2;
    return chunk;
}

static enum status add_regions(struct generator *generator, struct region_table *table) {
    const struct gpt_config *config = &generator->params->config;
    enum region_place place = generator->device->place;
    enum dtype type = generator->type;
    size_t C = (size_t)config->n_embd, rows = (size_t)longest_chunk(generator->positions);
    for (int i = 0; i < config->n_layer; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, place, type, (size_t)generator->positions * 2 * C,
                       &generator->cache_regions[i], "cache.%d", i));
    for (int i = 0; i < 2; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, place, type, rows * C, &generator->residual_regions[i],
                       "generate.residual.%d", i));
    TRY(block_regions_add(table, generator->device, config, type, rows, BLOCK_ALL, false, "generate",
                          &generator->block_regions));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &generator->tokens_region, "generate.tokens"));
    TRY(region_add(table, REGION_ACTIVATIONS, place, type, C, &generator->lnf_region, "generate.lnf"));
    TRY(region_add(table, REGION_LOGITS, place, DTYPE_F32, (size_t)config->vocab_size,
                   &generator->logits_region, "generate.logits"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, 1, &generator->uniform_region, "generate.uniform"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, 1, &generator->drawn_region, "generate.drawn"));

    struct runner runner = {.device = generator->device};
    find_buffers(generator, NULL);
    // Attention's workspace may grow with what it looks back on: rehearse each chunk at the cache's end.
    for (int n = (int)rows; n >= 1; n /= 2) {
        generator->length = generator->positions - n;
        TRY(run_chunk(generator, &runner, &rehearsal_hooks, n));
    }
    generator->length = 0;
    TRY(sample(generator, &runner, &(struct sampling){.temperature = 1}, config->vocab_size));
    generator->workspace_bytes = runner.workspace_bytes;
    return region_add(table, REGION_WORKSPACE, place, DTYPE_U8, runner.workspace_bytes,
                      &generator->workspace_region, "generate.operations");
}

enum status generator_new(const struct params *params, enum dtype type, int positions, struct device *device,
                          struct region_table *table, struct generator **out) {
    *out = NULL;
    if (positions < 1 || positions > params->config.n_positions)
        return FAIL(STATUS_INVALID, "a context of %d tokens does not fit the model's %d positions", positions,
                    params->config.n_positions);
    struct generator *generator = calloc(1, sizeof *generator);
    if (!generator)
        return FAIL(STATUS_FAILED, "out of memory for a generator's bookkeeping");
    size_t n_layer = (size_t)params->config.n_layer;
    *generator = (struct generator){.params = params, .device = device, .type = type, .positions = positions};
    generator->cache_regions = calloc(n_layer, sizeof *generator->cache_regions);
    generator->caches = calloc(n_layer, sizeof *generator->caches);
    enum status status = STATUS_OK;
    if (!generator->cache_regions || !generator->caches)
        status = FAIL(STATUS_FAILED, "out of memory for a generator's bookkeeping");
    if (status == STATUS_OK)
        status = add_regions(generator, table);
    if (status != STATUS_OK) {
        generator_delete(generator);
        return status;
    }
    *out = generator;
    return STATUS_OK;
}

void generator_delete(struct generator *generator) {
    if (!generator)
        return;
    free(generator->cache_regions);
    free(generator->caches);
    free(generator);
}

void generator_bind(struct generator *generator, const struct region_table *table, struct stream *stream) {
    find_buffers(generator, table);
    stream_use_workspace(stream, region_data(table, generator->workspace_region), generator->workspace_bytes);
}

void generator_reset(struct generator *generator) {
    generator->length = 0;
}

int generator_length(const struct generator *generator) {
    return generator->length;
}

enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, const int32_t *tokens, int n, float *logits) {
    struct runner runner = {.device = generator->device, .stream = stream};
    if (n < 1 || n > generator->positions - generator->length)
        return FAIL(STATUS_INVALID, "%d tokens do not fit a context that holds %d of at most %d", n,
                    generator->length, generator->positions);
    while (n > 0) {
        int chunk = longest_chunk(n);
        TRY(generator->device->copy(stream, generator->tokens, tokens, (size_t)chunk * sizeof *tokens));
        TRY(run_chunk(generator, &runner, hooks, chunk));
        generator->length += chunk;
        tokens += chunk;
        n -= chunk;
    }
    if (!logits)
        return STATUS_OK;
    TRY(generator->device->copy(stream, logits, generator->logits,
                                (size_t)generator->params->config.vocab_size * sizeof *logits));
    return generator->device->synchronize(stream);
}

enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, uint64_t counter,
                           int32_t *token) {
    struct runner runner = {.device = generator->device, .stream = stream};
    double uniform = rng_uniform(sampling->seed, RNG_STREAM_SAMPLE, counter);
    TRY(generator->device->copy(stream, generator->uniform, &uniform, sizeof uniform));
    TRY(sample(generator, &runner, sampling, n_drawable));
    TRY(generator->device->copy(stream, token, generator->drawn, sizeof *token));
    return generator->device->synchronize(stream);
}
