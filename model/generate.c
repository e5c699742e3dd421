// Prompts are processed in chunks of a few fixed lengths (powers of two up to GENERATOR_CHUNK), so that few
// shapes occur and the workspace of each is known before the first token.
#include "model/generate.h"

#include <assert.h>
#include <stdlib.h>

#include "base/rng.h"
#include "model/decoder.h"
#include "model/rope_table.h"

struct generator {
    const struct params *params;
    struct device *device;
    struct generator_options options;
    int *lengths;        // (sequences)
    int32_t *documents;  // (sequences) where the last document of each context begins
    int32_t end_of_text; // with mask_documents; -1: not set yet
    int32_t *pass_rows;  // (n_pass_rows) of a pass: struct pass_rows
    double *uniforms;    // (sequences) of a draw
    size_t workspace_bytes;
    int *cache_regions; // (n_layer), each (sequences, positions, 2 K D): keys, then values
    void **caches;
    struct block_regions block_regions;
    struct block_buffers block;
    int residual_regions[2], embedding_region, tokens_region, lnf_region, logits_region, workspace_region;
    int uniforms_region, drawn_region, pass_rows_region;
    struct rope_table rope;
    void *embedding; // block 0's input, where later blocks mix it in; else NULL
    void *residuals[2], *tokens, *lnf, *logits, *device_uniforms, *drawn, *device_pass_rows;
};

// One pass over generator->tokens, (B T): T positions of one sequence (B = 1), or one position of each of B
// sequences.
struct generator_pass {
    struct generator *generator;
    struct runner *runner;
    const struct unit_hooks *hooks;
    int B, T;
    const int *sequences;
    const int32_t *tokens; // (n_tokens) the first of generator->tokens, in the host's memory
    int n_tokens;
};

// The rows of a pass in the device's memory, one array after the other.
struct pass_rows {
    const int32_t *sequences, *lengths; // (B) with T = 1; lengths: of the contexts before the pass
    const int32_t *first;               // (B, T) with mask_documents: where each token's document begins
};

static size_t n_pass_rows(const struct generator_options *options, size_t chunk) {
    const size_t sequences = (size_t)options->sequences;
    if (!options->mask_documents)
        return 2 * sequences;
    return chunk > 3 * sequences ? chunk : 3 * sequences;
}

// As model/gpt_inputs.c has it for whole sequences.
static void find_documents(const struct generator_pass *pass, int32_t *first) {
    const struct generator *generator = pass->generator;
    assert(generator->end_of_text >= 0 || pass->n_tokens == 0);
    for (int b = 0, i = 0; b < pass->B; b++) {
        const int sequence = pass->sequences[b];
        int32_t start = generator->documents[sequence];
        for (int t = 0; t < pass->T; t++, i++) {
            if (i < pass->n_tokens && pass->tokens[i] == generator->end_of_text)
                start = generator->lengths[sequence] + t;
            first[i] = start;
        }
    }
}

static enum status place_rows(const struct generator_pass *pass, struct pass_rows *rows) {
    struct generator *generator = pass->generator;
    const int32_t *on_device = generator->device_pass_rows;
    size_t B = (size_t)pass->B, n = 0;
    *rows = (struct pass_rows){0};
    if (pass->T == 1) {
        *rows = (struct pass_rows){on_device, on_device + B, NULL};
        for (size_t i = 0; i < B; i++) {
            generator->pass_rows[i] = pass->sequences[i];
            generator->pass_rows[B + i] = generator->lengths[pass->sequences[i]];
        }
        n = 2 * B;
    }
    if (generator->options.mask_documents) {
        find_documents(pass, generator->pass_rows + n);
        rows->first = on_device + n;
        n += B * (size_t)pass->T;
    }
    if (n == 0 || !pass->runner->stream)
        return STATUS_OK;
    return generator->device->copy(pass->runner->stream, generator->device_pass_rows, generator->pass_rows,
                                   n * sizeof *generator->pass_rows);
}

// With T = 1, the positions that the rows see in a block with this window (0: none), their own included.
static size_t keys_seen(const struct generator_pass *pass, int window) {
    const size_t B = (size_t)pass->B;
    const int32_t *lengths = pass->generator->pass_rows + B; // as place_rows has them
    const int32_t *first = pass->generator->options.mask_documents ? lengths + B : NULL;
    size_t n = 0;
    for (size_t i = 0; i < B && pass->T == 1; i++) {
        int length = lengths[i] + 1 - (first ? first[i] : 0);
        n += (size_t)(window > 0 && window < length ? window : length);
    }
    return n;
}

static struct unit_pass unit_of(const struct generator_pass *pass, int unit, struct unit_view view) {
    const struct generator *generator = pass->generator;
    return unit_pass_of(pass->runner, generator->params, generator->options.type, pass->B * pass->T, unit,
                        view);
}

// The residual stream before a block.
static void *residual_at(const struct generator *generator, int block) {
    return block == 0 && generator->embedding ? generator->embedding : generator->residuals[block % 2];
}

static enum status embed(const struct generator_pass *pass, const struct pass_rows *rows,
                         struct unit_view view) {
    const struct generator *generator = pass->generator;
    const struct unit_pass u = unit_of(pass, 0, view);
    RUN(pass->runner, embedding_forward, .out = residual_at(generator, 0), .wte = layer_weight(&u, PARAM_WTE),
        .wpe = layer_weight(&u, PARAM_WPE), .tokens = generator->tokens, .B = pass->B, .T = pass->T,
        .C = u.config->n_embd, .V = u.config->vocab_size, .position = generator->lengths[pass->sequences[0]],
        .positions = rows->lengths, .out_stride = (size_t)u.config->n_embd, .type = u.type);
    return STATUS_OK;
}

static enum status begin(const struct generator_pass *pass, enum trace_kind kind) {
    return pass->hooks->begin ? pass->hooks->begin(pass->hooks->context, kind) : STATUS_OK;
}

// From tokens to the residual stream after the last block; appends keys and values to the caches.
static enum status run_blocks(const struct generator_pass *pass) {
    struct generator *generator = pass->generator;
    const struct gpt_config *config = &generator->params->config;
    const struct unit_hooks *hooks = pass->hooks;
    struct stream *stream = pass->runner->stream;
    struct pass_rows rows;
    struct unit_view view;
    TRY(place_rows(pass, &rows));
    TRY(hooks->params_acquire(hooks->context, stream, 0, GPT_FORWARD, &view));
    TRY(embed(pass, &rows, view));
    TRY(hooks->params_release(hooks->context, stream, 0, GPT_FORWARD));
    for (int block = 0; block < config->n_layer; block++) {
        TRY(hooks->params_acquire(hooks->context, stream, 1 + block, GPT_FORWARD, &view));
        const struct block_pass args = {
            .unit = unit_of(pass, 1 + block, view),
            .block = block,
            .B = pass->B,
            .T = pass->T,
            .buffers = &generator->block,
            .x = residual_at(generator, block),
            .out = residual_at(generator, block + 1),
            .embedding = generator->embedding,
            .tokens = generator->tokens,
            .first = rows.first,
            .rope = generator->rope.data,
            .cache = {.keys_values = generator->caches[block],
                      .stride = (size_t)generator->options.positions * gpt_cache_width(config),
                      .sequence = pass->sequences[0],
                      .length = generator->lengths[pass->sequences[0]],
                      .sequences = rows.sequences,
                      .lengths = rows.lengths,
                      .n_keys = keys_seen(pass, gpt_window(config, block))}};
        for (int group = 0; group < N_BLOCK_GROUPS; group++)
            TRY(family_of(config)->forward[group](&args));
        TRY(hooks->params_release(hooks->context, stream, 1 + block, GPT_FORWARD));
    }
    return STATUS_OK;
}

static enum status logits_of_step(const struct generator_pass *pass, const struct unit_pass *matrix,
                                  int tensor) {
    const struct generator *generator = pass->generator;
    int V = matrix->config->vocab_size;
    RUN(pass->runner, linear_forward, .out = generator->logits, .x = generator->lnf,
        .weight = layer_weight(matrix, tensor), .N = pass->B, .IC = matrix->config->n_embd, .OC = V,
        .out_stride = V, .type = matrix->type, .out_type = DTYPE_F32);
    if (matrix->config->soft_cap > 0)
        RUN(pass->runner, soft_cap, .out = generator->logits, .x = generator->logits, .N = pass->B, .V = V,
            .stride = V, .cap = (float)matrix->config->soft_cap, .type = DTYPE_F32);
    return STATUS_OK;
}

// Final norm and lm_head: the logits of all rows of a step.
static enum status run_head(const struct generator_pass *pass) {
    struct generator *generator = pass->generator;
    const struct gpt_config *config = &generator->params->config;
    const struct unit_hooks *hooks = pass->hooks;
    struct stream *stream = pass->runner->stream;
    const int last = config->n_layer + 1;
    struct unit_view view;
    TRY(hooks->params_acquire(hooks->context, stream, last, GPT_FORWARD, &view));
    struct unit_pass unit = unit_of(pass, last, view);
    TRY(norm(&unit, PARAM_LNF_WEIGHT, residual_at(generator, config->n_layer),
             &(struct norm_buffers){.out = generator->lnf}));
    if (config->untied)
        TRY(logits_of_step(pass, &unit, PARAM_LM_HEAD));
    TRY(hooks->params_release(hooks->context, stream, last, GPT_FORWARD));
    if (config->untied)
        return STATUS_OK;
    TRY(hooks->params_acquire(hooks->context, stream, 0, GPT_FORWARD, &view));
    unit = unit_of(pass, 0, view);
    TRY(logits_of_step(pass, &unit, PARAM_WTE));
    return hooks->params_release(hooks->context, stream, 0, GPT_FORWARD);
}

static enum status run_prompt(const struct generator_pass *pass) {
    TRY(begin(pass, TRACE_PROMPT));
    return run_blocks(pass);
}

static enum status run_decoding(const struct generator_pass *pass) {
    TRY(begin(pass, TRACE_DECODING));
    TRY(run_blocks(pass));
    return run_head(pass);
}

static bool same_filters(const struct sampling *a, const struct sampling *b) {
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
           a->min_p == b->min_p;
}

// Rows [row, row + n) of the step's logits, with the same filters.
static enum status sample(struct generator *generator, struct runner *runner, const struct sampling *sampling,
                          int n_drawable, int row, int n) {
    int stride = generator->params->config.vocab_size;
    RUN(runner, sample, .tokens = (int32_t *)generator->drawn + row,
        .logits = (float *)generator->logits + (size_t)row * (size_t)stride,
        .uniforms = (double *)generator->device_uniforms + row, .N = n, .V = n_drawable,
        .logits_stride = stride, .temperature = sampling->temperature, .top_k = sampling->top_k,
        .top_p = sampling->top_p, .min_p = sampling->min_p, .type = DTYPE_F32);
    return STATUS_OK;
}

// ---- memory

// table NULL: a dry run's buffers.
static void find_buffers(struct generator *generator, const struct region_table *table) {
    for (int i = 0; i < generator->params->config.n_layer; i++)
        generator->caches[i] = buffer_find(table, generator->cache_regions[i]);
    for (int i = 0; i < 2; i++)
        generator->residuals[i] = buffer_find(table, generator->residual_regions[i]);
    generator->embedding = buffer_find(table, generator->embedding_region);
    block_buffers_find(&generator->block_regions, table, &generator->block);
    rope_table_find(&generator->rope, table);
    generator->tokens = buffer_find(table, generator->tokens_region);
    generator->lnf = buffer_find(table, generator->lnf_region);
    generator->logits = buffer_find(table, generator->logits_region);
    generator->device_uniforms = buffer_find(table, generator->uniforms_region);
    generator->drawn = buffer_find(table, generator->drawn_region);
    generator->device_pass_rows = buffer_find(table, generator->pass_rows_region);
}

static int longest_chunk(int n) {
    int chunk = GENERATOR_CHUNK;
    while (chunk > n)
        chunk /= 2;
    return chunk;
}

// Sizes the workspace. Attention's may grow with the context, so each shape runs at the end of the cache.
static enum status dry_run(struct generator *generator, size_t *workspace_bytes) {
    struct runner_sized sized = {.n = 0};
    struct runner runner = {.device = generator->device, .sized = &sized};
    int positions = generator->options.positions, sequences = generator->options.sequences;
    struct dry_run run = {.trace = NULL};
    const struct unit_hooks hooks = dry_run_hooks(&run);
    struct generator_pass pass = {generator, &runner, &hooks, .B = 1};
    int *rows = calloc((size_t)sequences, sizeof *rows);
    enum status status = rows ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for the generator");
    pass.sequences = rows;
    for (pass.T = longest_chunk(positions); pass.T > 1 && status == STATUS_OK; pass.T /= 2) {
        generator->lengths[0] = positions - pass.T;
        status = run_prompt(&pass);
    }
    for (int i = 0; i < sequences && status == STATUS_OK; i++) {
        rows[i] = i;
        generator->lengths[i] = positions - 1;
        pass.B = i + 1;
        status = run_decoding(&pass);
    }
    if (status == STATUS_OK)
        status = sample(generator, &runner, &(struct sampling){.temperature = 1},
                        generator->params->config.vocab_size, 0, sequences);
    for (int i = 0; i < sequences; i++)
        generator_reset(generator, i);
    free(rows);
    *workspace_bytes = runner.workspace_bytes;
    return status;
}

static enum status add_regions(struct generator *generator, struct region_table *table) {
    const struct gpt_config *config = &generator->params->config;
    enum region_place place = generator->device->place;
    enum dtype type = generator->options.type;
    size_t C = (size_t)config->n_embd, positions = (size_t)generator->options.positions;
    size_t sequences = (size_t)generator->options.sequences;
    size_t chunk = (size_t)longest_chunk(generator->options.positions);
    size_t rows = chunk > sequences ? chunk : sequences;
    for (int i = 0; i < config->n_layer; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, place, type,
                       sequences * positions * gpt_cache_width(config), &generator->cache_regions[i],
                       "cache.%d", i));
    for (int i = 0; i < 2; i++)
        TRY(region_add(table, REGION_ACTIVATIONS, place, type, rows * C, &generator->residual_regions[i],
                       "generate.residual.%d", i));
    generator->embedding_region = -1;
    if (gpt_mixes(config, config->n_layer - 1))
        TRY(region_add(table, REGION_ACTIVATIONS, place, type, rows * C, &generator->embedding_region,
                       "generate.embedding"));
    TRY(block_regions_add(table, generator->device, config, type, rows, BLOCK_ALL, false, "generate",
                          &generator->block_regions));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, rows, &generator->tokens_region, "generate.tokens"));
    TRY(region_add(table, REGION_ACTIVATIONS, place, type, sequences * C, &generator->lnf_region,
                   "generate.lnf"));
    TRY(region_add(table, REGION_LOGITS, place, DTYPE_F32, sequences * (size_t)config->vocab_size,
                   &generator->logits_region, "generate.logits"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_F64, sequences, &generator->uniforms_region,
                   "generate.uniforms"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, sequences, &generator->drawn_region,
                   "generate.drawn"));
    TRY(region_add(table, REGION_DATA, place, DTYPE_I32, n_pass_rows(&generator->options, chunk),
                   &generator->pass_rows_region, "generate.rows"));
    TRY(rope_table_init(&generator->rope, config, type, generator->options.positions, generator->device,
                        table, "generate.rotary embedding"));
    find_buffers(generator, NULL);
    return STATUS_OK;
}

static enum status add_workspace(struct generator *generator, struct region_table *table) {
    TRY(dry_run(generator, &generator->workspace_bytes));
    return region_add(table, REGION_WORKSPACE, generator->device->place, DTYPE_U8, generator->workspace_bytes,
                      &generator->workspace_region, "generate.operations");
}

static enum status bookkeeping_new(struct generator *generator) {
    size_t n_layer = (size_t)generator->params->config.n_layer,
           sequences = (size_t)generator->options.sequences,
           chunk = (size_t)longest_chunk(generator->options.positions);
    generator->end_of_text = -1;
    generator->cache_regions = calloc(n_layer, sizeof *generator->cache_regions);
    generator->caches = calloc(n_layer, sizeof *generator->caches);
    generator->lengths = calloc(sequences, sizeof *generator->lengths);
    generator->documents = calloc(sequences, sizeof *generator->documents);
    generator->pass_rows = calloc(n_pass_rows(&generator->options, chunk), sizeof *generator->pass_rows);
    generator->uniforms = calloc(sequences, sizeof *generator->uniforms);
    if (!generator->cache_regions || !generator->caches || !generator->lengths || !generator->documents ||
        !generator->pass_rows || !generator->uniforms)
        return FAIL(STATUS_FAILED, "out of memory for the generator");
    return STATUS_OK;
}

static void generator_free(struct generator *generator) {
    free(generator->cache_regions);
    free(generator->caches);
    free(generator->lengths);
    free(generator->documents);
    free(generator->pass_rows);
    free(generator->uniforms);
}

enum status generator_new(const struct params *params, const struct generator_options *options,
                          struct device *device, struct region_table *table, struct generator **out) {
    *out = NULL;
    if (options->positions < 1 || options->positions > params->config.n_positions)
        return FAIL(STATUS_INVALID, "a context of %d tokens does not fit the model's %d positions",
                    options->positions, params->config.n_positions);
    if (options->sequences < 1)
        return FAIL(STATUS_INVALID, "cannot generate %d sequences, expected at least 1", options->sequences);
    struct generator *generator = calloc(1, sizeof *generator);
    if (!generator)
        return FAIL(STATUS_FAILED, "out of memory for the generator");
    *generator = (struct generator){.params = params, .device = device, .options = *options};
    enum status status = bookkeeping_new(generator);
    if (status == STATUS_OK)
        status = add_regions(generator, table);
    if (status == STATUS_OK)
        status = add_workspace(generator, table);
    if (status != STATUS_OK) {
        generator_delete(generator);
        return status;
    }
    *out = generator;
    return STATUS_OK;
}

void generator_delete(struct generator *generator) {
    if (generator)
        generator_free(generator);
    free(generator);
}

enum status generator_trace(const struct params *params, enum trace_kind kind, struct trace *out) {
    struct device none = {.place = REGION_HOST};
    struct generator generator = {
        .params = params, .device = &none, .options = {DTYPE_F32, .positions = 1, .sequences = 1}};
    struct runner runner = {.device = &none, .trace = out};
    struct dry_run run = {.trace = out};
    const struct unit_hooks hooks = dry_run_hooks(&run);
    const struct generator_pass pass = {&generator, &runner, &hooks,
                                        .B = 1,     .T = 1,  .sequences = (int[1]){0}};
    struct region_table table;
    *out = (struct trace){0};
    region_table_init(&table);
    enum status status = bookkeeping_new(&generator);
    if (status == STATUS_OK)
        status = add_regions(&generator, &table);
    if (status == STATUS_OK)
        status = kind == TRACE_PROMPT ? run_prompt(&pass) : run_decoding(&pass);
    region_table_free(&table);
    generator_free(&generator);
    return status;
}

enum status generator_bind(struct generator *generator, const struct region_table *table,
                           struct stream *stream) {
    find_buffers(generator, table);
    stream_use_workspace(stream, region_data(table, generator->workspace_region), generator->workspace_bytes);
    return rope_table_fill(&generator->rope, generator->device, stream);
}

// ---- contexts

void generator_set_end_of_text(struct generator *generator, int32_t end_of_text) {
    generator->end_of_text = end_of_text;
}

void generator_reset(struct generator *generator, int sequence) {
    generator->lengths[sequence] = 0;
    generator->documents[sequence] = 0;
}

// A pass has appended n tokens to a context.
static void extend(struct generator *generator, int sequence, const int32_t *tokens, int n) {
    for (int i = 0; i < n; i++)
        if (tokens[i] == generator->end_of_text)
            generator->documents[sequence] = generator->lengths[sequence] + i;
    generator->lengths[sequence] += n;
}

int generator_length(const struct generator *generator, int sequence) {
    return generator->lengths[sequence];
}

static enum status check_room(const struct generator *generator, int sequence, int n) {
    if (n < 1 || n > generator->options.positions - generator->lengths[sequence])
        return FAIL(STATUS_INVALID, "%d more tokens do not fit a context of %d tokens, at most %d allowed", n,
                    generator->lengths[sequence], generator->options.positions);
    return STATUS_OK;
}

// The length of the next chunk of n tokens: a power of two. A short one is rounded up where at most a quarter
// of it is then empty and there is room: a pass over few rows takes as long as reading the weights.
static int next_chunk(int n, int room) {
    enum { MOST_ROUNDED = 32 };
    int chunk = longest_chunk(n);
    bool nearly = n > chunk && n >= chunk + chunk / 2;
    return nearly && 2 * chunk <= MOST_ROUNDED && 2 * chunk <= room ? 2 * chunk : chunk;
}

enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, int sequence, const int32_t *tokens, int n) {
    struct runner runner = {.device = generator->device, .stream = stream};
    struct generator_pass pass = {generator, &runner, hooks, .B = 1, .sequences = &sequence};
    TRY(check_room(generator, sequence, n));
    for (int n_now; n > 0; tokens += n_now, n -= n_now) {
        pass.T = next_chunk(n, generator->options.positions - generator->lengths[sequence]);
        n_now = n < pass.T ? n : pass.T;
        pass.tokens = tokens;
        pass.n_tokens = n_now;
        // The rest of a chunk that was rounded up repeats earlier tokens. Its keys and values are overwritten
        // by the tokens that come there, before anything attends to them.
        TRY(generator->device->copy(stream, generator->tokens, tokens, (size_t)n_now * sizeof *tokens));
        TRY(run_prompt(&pass));
        extend(generator, sequence, tokens, n_now);
    }
    return generator->device->synchronize(stream);
}

enum status generator_step(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                           const int *sequences, const int32_t *tokens, int n, float *logits) {
    struct runner runner = {.device = generator->device, .stream = stream};
    const struct generator_pass pass = {generator, &runner, hooks, n, 1, sequences, tokens, n};
    for (int i = 0; i < n; i++)
        TRY(check_room(generator, sequences[i], 1));
    TRY(generator->device->copy(stream, generator->tokens, tokens, (size_t)n * sizeof *tokens));
    TRY(run_decoding(&pass));
    for (int i = 0; i < n; i++)
        extend(generator, sequences[i], tokens + i, 1);
    if (!logits)
        return STATUS_OK;
    TRY(generator->device->copy(stream, logits, generator->logits,
                                (size_t)n * (size_t)generator->params->config.vocab_size * sizeof *logits));
    return generator->device->synchronize(stream);
}

static float *logits_of(const struct generator *generator, int row) {
    return (float *)generator->logits + (size_t)row * (size_t)generator->params->config.vocab_size;
}

enum status generator_read_logits(struct generator *generator, struct stream *stream, int row,
                                  float *logits) {
    TRY(generator->device->copy(stream, logits, logits_of(generator, row),
                                (size_t)generator->params->config.vocab_size * sizeof *logits));
    return generator->device->synchronize(stream);
}

enum status generator_write_logits(struct generator *generator, struct stream *stream, int row,
                                   const float *logits) {
    TRY(generator->device->copy(stream, logits_of(generator, row), logits,
                                (size_t)generator->params->config.vocab_size * sizeof *logits));
    return generator->device->synchronize(stream);
}

enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, const uint64_t *counters, int n,
                           int32_t *tokens) {
    struct runner runner = {.device = generator->device, .stream = stream};
    for (int i = 0; i < n; i++)
        generator->uniforms[i] = rng_uniform(sampling[i].seed, RNG_STREAM_SAMPLE, counters[i]);
    TRY(generator->device->copy(stream, generator->device_uniforms, generator->uniforms,
                                (size_t)n * sizeof *generator->uniforms));
    for (int row = 0, n_rows; row < n; row += n_rows) {
        for (n_rows = 1; row + n_rows < n && same_filters(&sampling[row], &sampling[row + n_rows]);)
            n_rows++;
        TRY(sample(generator, &runner, &sampling[row], n_drawable, row, n_rows));
    }
    TRY(generator->device->copy(stream, tokens, generator->drawn, (size_t)n * sizeof *tokens));
    return generator->device->synchronize(stream);
}
