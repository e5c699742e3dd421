// A step first processes prompts, then decodes one token for every text that is ready, and then appends the
// new tokens to their texts. Texts that want log-probabilities of their prompt process it token by token, in
// the decoding steps.
#include "infer/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/parallel.h"
#include "infer/release.h"

// Up to this number of rows, each row of a CPU matrix product is bit for bit the same for any number of
// rows (kernels/cpu/isa/skinny_gemm.c).
#define CPU_STEP_ROWS 32

struct slot {
    bool busy;
    const struct text_options *options;
    struct text_events events;
    int64_t n_drawn;
    struct token_list context; // the tokens of prompt and text
    size_t n_new;              // the last n_new tokens of `context` are not yet in the generator's cache
    size_t offset;             // text_token.offset of the token that tell_token reports next
    struct release release;
};

struct batch {
    struct batch_options options;
    int n_texts;
    int n_drawable;     // only ids below this are drawn: those that both the tokenizer and the model have
    int next_prompt;    // index of the slot whose prompt the next step processes first
    struct slot *slots; // (sequences)
    // (step_rows) One element for each text that the current pass of the model decodes:
    int *sequences;
    int32_t *tokens;
    uint64_t *counters;
    struct sampling *sampling;
    struct logprobs *logprobs;
    float *logits;    // (step_rows, vocab_size); like the next two, empty without host_logits
    float *penalized; // (vocab_size) the logits of one row, with the repetition penalty
    uint8_t *seen;    // (vocab_size) scratch of penalize_repetition
};

int batch_step_rows(const struct device *device, int sequences) {
    bool limited = strcmp(device->name, "cpu") == 0 && sequences > CPU_STEP_ROWS;
    return limited ? CPU_STEP_ROWS : sequences;
}

size_t batch_bytes(const struct batch_options *options) {
    size_t V = (size_t)options->vocab_size;
    return options->host_logits ? ((size_t)options->step_rows + 1) * V * sizeof(float) + V : 0;
}

struct batch *batch_new(const struct batch_options *options) {
    struct batch *batch = allocate(1, sizeof *batch);
    int n_ids = tokenizer_n_ids(options->tokenizer);
    size_t rows = (size_t)options->step_rows, V = options->host_logits ? (size_t)options->vocab_size : 0;
    batch->options = *options;
    batch->n_drawable = n_ids < options->vocab_size ? n_ids : options->vocab_size;
    batch->slots = allocate((size_t)options->sequences, sizeof *batch->slots);
    batch->sequences = allocate(rows, sizeof *batch->sequences);
    batch->tokens = allocate(rows, sizeof *batch->tokens);
    batch->counters = allocate(rows, sizeof *batch->counters);
    batch->sampling = allocate(rows, sizeof *batch->sampling);
    batch->logprobs = allocate(rows, sizeof *batch->logprobs);
    batch->logits = allocate(rows * V, sizeof *batch->logits);
    batch->penalized = allocate(V, sizeof *batch->penalized);
    batch->seen = allocate(V, sizeof *batch->seen);
    return batch;
}

void batch_delete(struct batch *batch) {
    if (!batch)
        return;
    for (int i = 0; i < batch->options.sequences; i++) {
        token_list_free(&batch->slots[i].context);
        release_free(&batch->slots[i].release);
    }
    free(batch->slots);
    free(batch->sequences);
    free(batch->tokens);
    free(batch->counters);
    free(batch->sampling);
    free(batch->logprobs);
    free(batch->logits);
    free(batch->penalized);
    free(batch->seen);
    free(batch);
}

int batch_n_texts(const struct batch *batch) {
    return batch->n_texts;
}

size_t batch_n_cached(const struct batch *batch) {
    size_t n = 0;
    for (int i = 0; i < batch->options.sequences; i++)
        n += batch->slots[i].busy ? (size_t)generator_length(batch->options.generator, i) : 0;
    return n;
}

// Returns the logits of a row of the last pass. They are set only if use_logits read this row.
static float *logits_of(const struct batch *batch, int row) {
    return batch->logits + (size_t)row * (size_t)batch->options.vocab_size;
}

// ---- texts join and leave the batch

int batch_add(struct batch *batch, const int32_t *prompt, size_t n, const struct text_options *options,
              struct text_events events) {
    int at = 0;
    while (batch->slots[at].busy)
        at++;
    struct slot *s = &batch->slots[at];
    s->context.n = 0;
    for (size_t i = 0; i < n; i++)
        token_list_add(&s->context, prompt[i]);
    s->options = options;
    s->events = events;
    s->n_drawn = 0;
    s->n_new = n;
    s->offset = 0;
    release_free(&s->release);
    release_init(&s->release, options->stops, options->n_stops);
    generator_reset(batch->options.generator, at);
    s->busy = true;
    batch->n_texts++;
    return at;
}

void batch_remove(struct batch *batch, int slot) {
    batch->slots[slot].busy = false;
    batch->n_texts--;
}

static enum status end_text(struct batch *batch, struct slot *slot, enum text_end why) {
    batch_remove(batch, (int)(slot - batch->slots));
    if (!slot->release.stopped && slot->release.held.length > 0)
        TRY(slot->events.write(slot->events.context, slot->release.held.data, slot->release.held.length));
    return slot->events.end(slot->events.context, why);
}

// ---- passing tokens to the callbacks

bool text_token_is_shown(const struct text_token *token, size_t text_bytes) {
    return token->offset + (token->n_bytes > 0) <= text_bytes;
}

// Returns the bytes that the token slot->context.ids[at] adds to the text.
static const char *shown_bytes(const struct batch *batch, const struct slot *slot, size_t at, size_t *n) {
    const int32_t *ids = slot->context.ids;
    return tokenizer_shown_bytes(batch->options.tokenizer, at > 0 ? ids[at - 1] : -1, ids[at], n);
}

// Passes the token slot->context.ids[at] to the callback slot->events.token, if there is one.
//   of_prompt   the token belongs to the prompt
//   row         the row whose logits predict the token; -1: report no log-probabilities
static enum status tell_token(const struct batch *batch, struct slot *slot, size_t at, bool of_prompt,
                              int row) {
    struct text_token token = {.id = slot->context.ids[at],
                               .of_prompt = of_prompt,
                               .offset = slot->offset,
                               .has_logprobs = row >= 0};
    shown_bytes(batch, slot, at, &token.n_bytes);
    if (!of_prompt && tokenizer_is_end(batch->options.tokenizer, token.id))
        token.n_bytes = 0; // a generated end-of-text adds nothing, even if its token has text, such as "\n"
    slot->offset += token.n_bytes;
    if (!slot->events.token)
        return STATUS_OK;
    if (row >= 0) {
        const struct logprobs *logprobs = &batch->logprobs[row];
        token.logprob = logprob_of(logprobs, logits_of(batch, row), token.id);
        token.n_top = logprobs->n_top;
        memcpy(token.top, logprobs->top, sizeof token.top);
    }
    return slot->events.token(slot->events.context, &token);
}

// ---- processing prompts

// True while `decode` reads the text's prompt token by token, for the log-probabilities of the prompt.
// False once the first new token is drawn.
static bool reads_prompt(const struct slot *slot) {
    return slot->options->prompt_logprobs && slot->n_drawn == 0;
}

// True if a text that asks for no new tokens is complete.
static bool is_done(const struct slot *slot) {
    return slot->options->n_tokens == 0 && (!reads_prompt(slot) || slot->n_new <= 1);
}

// Adds the last n_new tokens of a text to the generator's cache, as far as the budget allows. The very last
// token is left to `decode`. While the text needs log-probabilities of its prompt, `decode` adds all
// tokens, and this function adds none. If the cache has no room for the n_new tokens, it is emptied, and
// n_new becomes half of the positions, or the whole text if that is shorter.
//   budget   [in,out] number of prompt tokens that this step may still process
static enum status process_prompt(struct batch *batch, int sequence, size_t *budget) {
    const struct batch_options *options = &batch->options;
    struct slot *slot = &batch->slots[sequence];
    size_t positions = (size_t)options->positions;
    size_t length = (size_t)generator_length(options->generator, sequence);
    if (length + slot->n_new > positions) {
        size_t half = positions > 1 ? positions / 2 : 1;
        generator_reset(options->generator, sequence);
        slot->n_new = slot->context.n < half ? slot->context.n : half;
    }
    size_t n = slot->n_new - 1;
    if (reads_prompt(slot) || n == 0)
        return STATUS_OK;
    n = n <= *budget ? n : *budget / GENERATOR_CHUNK * GENERATOR_CHUNK;
    if (n == 0)
        return STATUS_OK;
    TRY(generator_append(options->generator, options->stream, options->hooks, sequence,
                         slot->context.ids + slot->context.n - slot->n_new, (int)n));
    slot->n_new -= n;
    *budget -= n;
    return STATUS_OK;
}

// Processes the prompts of all texts, up to the step's limit (batch_options.prompt_tokens). Texts take
// turns in being the first, so that no prompt waits for several long ones.
static enum status process_prompts(struct batch *batch) {
    int n = batch->options.sequences, first = batch->next_prompt;
    size_t budget = batch->options.prompt_tokens > 0 ? (size_t)batch->options.prompt_tokens : SIZE_MAX;
    for (int i = 0; i < n; i++) {
        int sequence = (first + i) % n;
        struct slot *slot = &batch->slots[sequence];
        if (!slot->busy)
            continue;
        if (reads_prompt(slot) && generator_length(batch->options.generator, sequence) == 0)
            TRY(tell_token(batch, slot, 0, true, -1));
        if (is_done(slot)) {
            TRY(end_text(batch, slot, TEXT_LENGTH));
            continue;
        }
        bool waits = slot->n_new > 1;
        TRY(process_prompt(batch, sequence, &budget));
        if (waits && budget > 0)
            batch->next_prompt = (sequence + 1) % n;
    }
    return STATUS_OK;
}

// ---- results of a decoding pass

// Reports the prompt's token that follows the decoded one, with its log-probability from the row's logits.
static enum status take_prompt_token(struct batch *batch, struct slot *slot, int row) {
    size_t at = slot->context.n - slot->n_new;
    slot->n_new--;
    TRY(tell_token(batch, slot, at + 1, true, row));
    return is_done(slot) ? end_text(batch, slot, TEXT_LENGTH) : STATUS_OK;
}

// True if the token is a control token whose name is a stop string. Such a token adds no bytes to the text,
// so struct release cannot find it.
static bool is_stop(const struct batch *batch, const struct slot *slot, int32_t id) {
    const struct tokenizer *tokenizer = batch->options.tokenizer;
    size_t n;
    const char *name = tokenizer_bytes(tokenizer, id, &n);
    bool is_named = false;
    for (int i = 0; i < slot->options->n_stops; i++)
        is_named |= strlen(slot->options->stops[i]) == n && memcmp(slot->options->stops[i], name, n) == 0;
    return is_named && tokenizer_type(tokenizer, id) == TOKEN_CONTROL;
}

static enum status take_token(struct batch *batch, struct slot *slot, int row) {
    const int32_t id = batch->tokens[row];
    const size_t at = slot->context.n;
    size_t n_bytes;
    slot->n_drawn++;
    slot->n_new = 1;
    token_list_add(&slot->context, id);
    TRY(tell_token(batch, slot, at, false, slot->options->n_top >= 0 ? row : -1));
    if (tokenizer_is_end(batch->options.tokenizer, id))
        return end_text(batch, slot, TEXT_END_OF_TEXT);
    const char *bytes = shown_bytes(batch, slot, at, &n_bytes);
    const size_t n = release_add(&slot->release, bytes, n_bytes);
    if (n > 0)
        TRY(slot->events.write(slot->events.context, slot->release.held.data, n));
    release_drop(&slot->release, n);
    if (slot->release.stopped || is_stop(batch, slot, id))
        return end_text(batch, slot, TEXT_STOP_STRING);
    return slot->n_drawn == slot->options->n_tokens ? end_text(batch, slot, TEXT_LENGTH) : STATUS_OK;
}

// ---- one step of the batch

static bool penalizes(const struct slot *slot) {
    return slot->options->repetition_penalty != 1;
}

static bool wants_logprobs(const struct slot *slot) {
    return slot->options->n_top >= 0 || reads_prompt(slot);
}

struct logprobs_call {
    struct batch *batch;
    int n;
};

static void logprobs_part(const void *context, int part, int n_parts) {
    const struct logprobs_call *call = context;
    struct batch *batch = call->batch;
    struct parallel_span rows = parallel_span_of((size_t)call->n, 1, part, n_parts);
    for (size_t row = rows.begin; row < rows.end; row++) {
        const struct slot *slot = &batch->slots[batch->sequences[row]];
        int n_top = slot->options->n_top > 0 ? slot->options->n_top : 0;
        if (wants_logprobs(slot))
            logprobs_of(logits_of(batch, (int)row), batch->options.vocab_size, n_top, &batch->logprobs[row]);
    }
}

// Reads the logits of the rows that need them on the host. Applies the repetition penalty to the generator's
// logits, from which tokens are drawn. Log-probabilities are computed from the logits without the penalty.
//   n   number of rows
static enum status use_logits(struct batch *batch, int n) {
    const struct batch_options *options = &batch->options;
    size_t bytes = (size_t)options->vocab_size * sizeof *batch->logits;
    int n_wanted = 0;
    for (int row = 0; row < n; row++) {
        const struct slot *slot = &batch->slots[batch->sequences[row]];
        n_wanted += wants_logprobs(slot);
        if (wants_logprobs(slot) || penalizes(slot))
            TRY(generator_read_logits(options->generator, options->stream, row, logits_of(batch, row)));
        if (!penalizes(slot))
            continue;
        memcpy(batch->penalized, logits_of(batch, row), bytes);
        penalize_repetition(batch->penalized, batch->n_drawable, slot->context.ids, slot->context.n,
                            slot->options->repetition_penalty, batch->seen);
        TRY(generator_write_logits(options->generator, options->stream, row, batch->penalized));
    }
    int n_threads = options->stream->device->n_threads;
    if (n_wanted > 0)
        parallel_run(n_threads < n ? n_threads : n, logprobs_part, &(struct logprobs_call){batch, n});
    return STATUS_OK;
}

// Decodes one token of each of the first n sequences in batch->sequences, in one pass of the model. Passes
// the results to the callbacks of the texts.
//   n_drawn   [in,out] the number of new tokens is added
static enum status decode(struct batch *batch, int n, int *n_drawn) {
    const struct batch_options *options = &batch->options;
    for (int row = 0; row < n; row++) {
        const struct slot *slot = &batch->slots[batch->sequences[row]];
        batch->tokens[row] = slot->context.ids[slot->context.n - slot->n_new];
        batch->counters[row] = slot->options->first_counter + (uint64_t)slot->n_drawn;
        batch->sampling[row] = slot->options->sampling;
    }
    TRY(generator_step(options->generator, options->stream, options->hooks, batch->sequences, batch->tokens,
                       n, NULL));
    TRY(use_logits(batch, n));
    TRY(generator_draw(options->generator, options->stream, batch->sampling, batch->n_drawable,
                       batch->counters, n, batch->tokens));
    for (int row = 0; row < n; row++) {
        struct slot *slot = &batch->slots[batch->sequences[row]];
        if (slot->n_new > 1) {
            TRY(take_prompt_token(batch, slot, row));
        } else {
            TRY(take_token(batch, slot, row));
            ++*n_drawn;
        }
    }
    return STATUS_OK;
}

enum status batch_step(struct batch *batch, int *n_drawn) {
    int sequences = batch->options.sequences, n = 0;
    *n_drawn = 0;
    TRY(process_prompts(batch));
    for (int sequence = 0; sequence < sequences; sequence++) {
        const struct slot *slot = &batch->slots[sequence];
        if (slot->busy && (slot->n_new == 1 || reads_prompt(slot)))
            batch->sequences[n++] = sequence;
        if (n == batch->options.step_rows || (n > 0 && sequence + 1 == sequences)) {
            TRY(decode(batch, n, n_drawn));
            n = 0;
        }
    }
    return STATUS_OK;
}
