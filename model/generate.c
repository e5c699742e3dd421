// Prompts are processed in chunks of a few fixed lengths (powers of two up to GENERATOR_CHUNK), so that few
// shapes occur and the workspace of each is known before the first token.
#include "model/generate.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/gpt_buffers.h"

struct generator {
    struct gpt gpt; // runs the passes; its options.B and T are those of the current pass
    struct generator_options options;
    int *lengths;        // (sequences) number of tokens in each context
    int32_t *documents;  // (sequences) position at which each context's last document begins
    int32_t end_of_text; // token that begins a document; -1: not set
    int32_t *pass_rows;  // (n_pass_rows()) what place_rows copies to the device for a pass
    double *uniforms;    // (sequences) a random number in [0, 1) for each sequence of a draw
    struct block_buffers block;
    void *device_uniforms, *drawn, *device_pass_rows;
};

// One pass over B T tokens: T tokens of one sequence (B = 1), or one token of each of B sequences (T = 1).
struct generator_pass {
    struct generator *generator;
    struct runner *runner;
    const struct unit_hooks *hooks;
    int B, T;
    const int *sequences; // (B) their numbers in the cache
    // (n_tokens) in host memory. n_tokens may be less than B T: the pass's last positions then have
    // arbitrary tokens, and their results are not used.
    const int32_t *tokens;
    int n_tokens;
};

static size_t n_pass_rows(const struct generator_options *options, size_t chunk) {
    const size_t sequences = (size_t)options->sequences;
    if (!options->mask_documents)
        return 2 * sequences;
    return chunk > 3 * sequences ? chunk : 3 * sequences;
}

// Finds the document of each token, like token_batch_find_starts, but for tokens that continue contexts.
//   first  [out] (B, T) position in the context at which the token's document begins
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

// Sets the shape and the caches of a pass. Fills its arrays in pass_rows, one after another, and copies
// them to the device:
// - with T = 1: the sequences, and the lengths of their contexts, (B) each
// - with mask_documents: the start of each token's document, (B, T)
static enum status place_rows(const struct generator_pass *pass) {
    struct generator *generator = pass->generator;
    struct gpt_cache *cache = &generator->gpt.cache;
    int32_t *host = generator->pass_rows, *on_device = generator->device_pass_rows;
    size_t B = (size_t)pass->B, n = 0;
    generator->gpt.options.B = pass->B;
    generator->gpt.options.T = pass->T;
    cache->sequence = pass->sequences[0];
    cache->length = generator->lengths[pass->sequences[0]];
    cache->sequences = cache->lengths = cache->host_lengths = cache->host_first = NULL;
    generator->gpt.inputs.first = NULL;
    if (pass->T == 1) {
        cache->sequences = on_device;
        cache->lengths = on_device + B;
        cache->host_lengths = host + B;
        for (size_t i = 0; i < B; i++) {
            host[i] = pass->sequences[i];
            host[B + i] = generator->lengths[pass->sequences[i]];
        }
        n = 2 * B;
    }
    if (generator->options.mask_documents) {
        find_documents(pass, host + n);
        cache->host_first = host + n;
        generator->gpt.inputs.first = on_device + n;
        n += B * (size_t)pass->T;
    }
    if (n == 0 || !pass->runner->stream)
        return STATUS_OK;
    return generator->gpt.device->copy(pass->runner->stream, on_device, host, n * sizeof *host);
}

static enum status run_pass(const struct generator_pass *pass, enum trace_kind kind) {
    TRY(place_rows(pass));
    return gpt_run_cached(&pass->generator->gpt, pass->runner, pass->hooks, kind);
}

static bool same_filters(const struct sampling *a, const struct sampling *b) {
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
           a->min_p == b->min_p;
}

// Samples a token from each of the rows [row, row + n) of the step's logits. `sampling` has their common
// temperature and limits.
static enum status sample(struct generator *generator, struct runner *runner, const struct sampling *sampling,
                          int n_drawable, int row, int n) {
    int stride = generator->gpt.params->config.vocab_size;
    RUN(runner, sample, .tokens = (int32_t *)generator->drawn + row,
        .logits = (float *)generator->gpt.logits.data + (size_t)row * (size_t)stride,
        .uniforms = (double *)generator->device_uniforms + row, .N = n, .V = n_drawable,
        .logits_stride = stride, .temperature = sampling->temperature, .top_k = sampling->top_k,
        .top_p = sampling->top_p, .min_p = sampling->min_p, .type = DTYPE_F32);
    return STATUS_OK;
}

// ---- the buffers and the workspace

// Sets the pointers to the buffers. table NULL: sets them to a dry run's placeholders.
static enum status find_buffers(struct generator *generator, const struct region_table *table) {
    struct gpt *gpt = &generator->gpt;
    buffers_find(&gpt->buffers, table);
    rope_table_find(&gpt->rope, table);
    return activations_bind(&gpt->activations, table);
}

static int longest_chunk(int n) {
    int chunk = GENERATOR_CHUNK;
    while (chunk > n)
        chunk /= 2;
    return chunk;
}

// Sizes the workspace by a dry run of every shape. Attention may need more workspace for longer contexts,
// so the tokens of each dry run are the last ones that fit into the cache.
static enum status dry_run(struct generator *generator, size_t *workspace_bytes) {
    struct runner_sized sized = {.n = 0};
    struct runner runner = {.device = generator->gpt.device, .sized = &sized};
    int positions = generator->options.positions, sequences = generator->options.sequences;
    struct dry_run run = {.trace = NULL};
    const struct unit_hooks hooks = dry_run_hooks(&run);
    struct generator_pass pass = {generator, &runner, &hooks, .B = 1};
    int *rows = allocate((size_t)sequences, sizeof *rows);
    enum status status = STATUS_OK;
    pass.sequences = rows;
    for (pass.T = longest_chunk(positions); pass.T > 1 && status == STATUS_OK; pass.T /= 2) {
        generator->lengths[0] = positions - pass.T;
        status = run_pass(&pass, TRACE_PROMPT);
    }
    for (int i = 0; i < sequences && status == STATUS_OK; i++) {
        rows[i] = i;
        generator->lengths[i] = positions - 1;
        pass.B = i + 1;
        status = run_pass(&pass, TRACE_DECODING);
    }
    if (status == STATUS_OK)
        status = sample(generator, &runner, &(struct sampling){.temperature = 1},
                        generator->gpt.params->config.vocab_size, 0, sequences);
    for (int i = 0; i < sequences; i++)
        generator_reset(generator, i);
    free(rows);
    *workspace_bytes = runner.workspace_bytes;
    return status;
}

static enum status add_regions(struct generator *generator, struct region_table *table) {
    struct gpt *gpt = &generator->gpt;
    const struct gpt_config *config = &gpt->params->config;
    enum region_place place = gpt->device->place;
    enum dtype type = generator->options.type;
    size_t C = (size_t)config->n_embd, positions = (size_t)generator->options.positions;
    size_t sequences = (size_t)generator->options.sequences;
    size_t chunk = (size_t)longest_chunk(generator->options.positions);
    size_t rows = chunk > sequences ? chunk : sequences;
    const struct block_memory memory = {config, place, type, rows};
    struct buffer_list *buffers = &gpt->buffers;
    for (int i = 0; i < config->n_layer; i++) {
        char name[24];
        snprintf(name, sizeof name, "cache.%d", i);
        TRY(buffer_add(buffers, table, REGION_ACTIVATIONS, place, type,
                       sequences * positions * gpt_cache_width(config), &gpt->cache.blocks[i], name));
    }
    TRY(activations_init(&gpt->activations, gpt->device, table, config->n_layer, type, rows * C,
                         ACTIVATIONS_DISCARDED, 0, gpt_mixes(config, config->n_layer - 1), "generate."));
    TRY(block_buffers_add(buffers, table, &memory, BLOCK_ALL, false, "generate", &generator->block, 1));
    TRY(buffer_add(buffers, table, REGION_DATA, place, DTYPE_I32, rows, &gpt->inputs.tokens,
                   "generate.tokens"));
    TRY(buffer_add(buffers, table, REGION_ACTIVATIONS, place, type, sequences * C, &gpt->lnf.out,
                   "generate.lnf"));
    TRY(buffer_add(buffers, table, REGION_LOGITS, place, DTYPE_F32, sequences * (size_t)config->vocab_size,
                   &gpt->logits.data, "generate.logits"));
    TRY(buffer_add(buffers, table, REGION_DATA, place, DTYPE_F64, sequences, &generator->device_uniforms,
                   "generate.uniforms"));
    TRY(buffer_add(buffers, table, REGION_DATA, place, DTYPE_I32, sequences, &generator->drawn,
                   "generate.drawn"));
    TRY(buffer_add(buffers, table, REGION_DATA, place, DTYPE_I32, n_pass_rows(&generator->options, chunk),
                   &generator->device_pass_rows, "generate.rows"));
    TRY(rope_table_init(&gpt->rope, config, type, generator->options.positions, gpt->device, table,
                        "generate.rotary embedding"));
    return find_buffers(generator, NULL);
}

static enum status add_workspace(struct generator *generator, struct region_table *table) {
    struct gpt *gpt = &generator->gpt;
    TRY(dry_run(generator, &gpt->workspace_bytes));
    return buffer_add(&gpt->buffers, table, REGION_WORKSPACE, gpt->device->place, DTYPE_U8,
                      gpt->workspace_bytes, &gpt->workspace, "generate.operations");
}

// Initializes everything but the buffers, which add_regions adds to the region table.
static void generator_init(struct generator *generator, const struct params *params,
                           const struct generator_options *options, struct device *device) {
    const int V = params->config.vocab_size;
    size_t n_layer = (size_t)params->config.n_layer, sequences = (size_t)options->sequences,
           chunk = (size_t)longest_chunk(options->positions);
    *generator =
        (struct generator){.options = *options,
                           .end_of_text = -1,
                           .gpt = {.params = params,
                                   .device = device,
                                   .options = {.type = options->type, .attention = options->attention},
                                   .accumulation = DTYPE_F32,
                                   .blocks = {.n = 1, .buffers = &generator->block},
                                   .logits = {.columns = V, .stride = V, .type = DTYPE_F32}}};
    struct gpt_cache *cache = &generator->gpt.cache;
    cache->stride = (size_t)options->positions * gpt_cache_width(&params->config);
    cache->blocks = allocate(n_layer, sizeof *cache->blocks);
    generator->lengths = allocate(sequences, sizeof *generator->lengths);
    generator->documents = allocate(sequences, sizeof *generator->documents);
    generator->pass_rows = allocate(n_pass_rows(options, chunk), sizeof *generator->pass_rows);
    generator->uniforms = allocate(sequences, sizeof *generator->uniforms);
}

static void generator_free(struct generator *generator) {
    free(generator->gpt.cache.blocks);
    free(generator->gpt.buffers.list);
    activations_free(&generator->gpt.activations);
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
    struct generator *generator = allocate(1, sizeof *generator);
    generator_init(generator, params, options, device);
    enum status status = add_regions(generator, table);
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
    const struct generator_options options = {DTYPE_F32, .positions = 1, .sequences = 1};
    struct generator generator;
    struct runner runner = {.device = &none, .trace = out};
    struct dry_run run = {.trace = out};
    const struct unit_hooks hooks = dry_run_hooks(&run);
    const struct generator_pass pass = {&generator, &runner, &hooks,
                                        .B = 1,     .T = 1,  .sequences = (int[1]){0}};
    struct region_table table;
    *out = (struct trace){0};
    region_table_init(&table);
    generator_init(&generator, params, &options, &none);
    enum status status = add_regions(&generator, &table);
    if (status == STATUS_OK)
        status = run_pass(&pass, kind);
    region_table_free(&table);
    generator_free(&generator);
    return status;
}

enum status generator_bind(struct generator *generator, const struct region_table *table,
                           struct stream *stream) {
    struct gpt *gpt = &generator->gpt;
    TRY(find_buffers(generator, table));
    stream_use_workspace(stream, gpt->workspace, gpt->workspace_bytes);
    return rope_table_fill(&gpt->rope, gpt->device, stream);
}

// ---- appending to contexts, and sampling

void generator_set_end_of_text(struct generator *generator, int32_t end_of_text) {
    generator->end_of_text = end_of_text;
}

void generator_reset(struct generator *generator, int sequence) {
    generator->lengths[sequence] = 0;
    generator->documents[sequence] = 0;
}

// Records that a pass has appended n tokens to a context.
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
        return FAIL(STATUS_INVALID, "%d more tokens do not fit: the context has %d tokens, of at most %d", n,
                    generator->lengths[sequence], generator->options.positions);
    return STATUS_OK;
}

// Returns the length of the next chunk, when n tokens are left: the largest power of two that is at most n
// and at most GENERATOR_CHUNK. It is doubled, up to 32, if n tokens fill at least three quarters of the
// doubled chunk and the context has room for it (`room` tokens). Doubling saves a pass: even a pass over
// few tokens takes as long as reading all weights.
static int next_chunk(int n, int room) {
    enum { MOST_ROUNDED = 32 };
    int chunk = longest_chunk(n);
    bool nearly = n > chunk && n >= chunk + chunk / 2;
    return nearly && 2 * chunk <= MOST_ROUNDED && 2 * chunk <= room ? 2 * chunk : chunk;
}

enum status generator_append(struct generator *generator, struct stream *stream,
                             const struct unit_hooks *hooks, int sequence, const int32_t *tokens, int n) {
    struct runner runner = {.device = generator->gpt.device, .stream = stream};
    struct generator_pass pass = {generator, &runner, hooks, .B = 1, .sequences = &sequence};
    TRY(check_room(generator, sequence, n));
    for (int n_now; n > 0; tokens += n_now, n -= n_now) {
        pass.T = next_chunk(n, generator->options.positions - generator->lengths[sequence]);
        n_now = n < pass.T ? n : pass.T;
        pass.tokens = tokens;
        pass.n_tokens = n_now;
        // If the chunk is longer than n tokens, its last positions get arbitrary tokens: those that an
        // earlier pass left there. No later token attends to their keys and values in the cache, because
        // those are overwritten first.
        TRY(generator->gpt.device->copy(stream, generator->gpt.inputs.tokens, tokens,
                                        (size_t)n_now * sizeof *tokens));
        TRY(run_pass(&pass, TRACE_PROMPT));
        extend(generator, sequence, tokens, n_now);
    }
    return generator->gpt.device->synchronize(stream);
}

enum status generator_step(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                           const int *sequences, const int32_t *tokens, int n, float *logits) {
    struct runner runner = {.device = generator->gpt.device, .stream = stream};
    const struct generator_pass pass = {generator, &runner, hooks, n, 1, sequences, tokens, n};
    for (int i = 0; i < n; i++)
        TRY(check_room(generator, sequences[i], 1));
    TRY(generator->gpt.device->copy(stream, generator->gpt.inputs.tokens, tokens,
                                    (size_t)n * sizeof *tokens));
    TRY(run_pass(&pass, TRACE_DECODING));
    for (int i = 0; i < n; i++)
        extend(generator, sequences[i], tokens + i, 1);
    if (!logits)
        return STATUS_OK;
    TRY(generator->gpt.device->copy(stream, logits, generator->gpt.logits.data,
                                    (size_t)n * (size_t)generator->gpt.params->config.vocab_size *
                                        sizeof *logits));
    return generator->gpt.device->synchronize(stream);
}

static float *logits_of(const struct generator *generator, int row) {
    return (float *)generator->gpt.logits.data +
           (size_t)row * (size_t)generator->gpt.params->config.vocab_size;
}

enum status generator_read_logits(struct generator *generator, struct stream *stream, int row,
                                  float *logits) {
    TRY(generator->gpt.device->copy(stream, logits, logits_of(generator, row),
                                    (size_t)generator->gpt.params->config.vocab_size * sizeof *logits));
    return generator->gpt.device->synchronize(stream);
}

enum status generator_write_logits(struct generator *generator, struct stream *stream, int row,
                                   const float *logits) {
    TRY(generator->gpt.device->copy(stream, logits_of(generator, row), logits,
                                    (size_t)generator->gpt.params->config.vocab_size * sizeof *logits));
    return generator->gpt.device->synchronize(stream);
}

enum status generator_draw(struct generator *generator, struct stream *stream,
                           const struct sampling *sampling, int n_drawable, const uint64_t *counters, int n,
                           int32_t *tokens) {
    struct runner runner = {.device = generator->gpt.device, .stream = stream};
    for (int i = 0; i < n; i++)
        generator->uniforms[i] = rng_uniform(sampling[i].seed, RNG_STREAM_SAMPLE, counters[i]);
    TRY(generator->gpt.device->copy(stream, generator->device_uniforms, generator->uniforms,
                                    (size_t)n * sizeof *generator->uniforms));
    for (int row = 0, n_rows; row < n; row += n_rows) {
        for (n_rows = 1; row + n_rows < n && same_filters(&sampling[row], &sampling[row + n_rows]);)
            n_rows++;
        TRY(sample(generator, &runner, &sampling[row], n_drawable, row, n_rows));
    }
    TRY(generator->gpt.device->copy(stream, tokens, generator->drawn, (size_t)n * sizeof *tokens));
    return generator->gpt.device->synchronize(stream);
}
