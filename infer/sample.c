// The texts are generated in a batch, where they end in any order. To show them in order, the output of
// each is held back until all earlier texts are complete.
#include "infer/sample.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/text.h"

struct sampler;

// A text that has been added to the batch and not yet shown completely.
struct sample_text {
    struct sampler *sampler;
    int64_t index;
    struct text_options options;
    struct text held;          // the bytes held back
    struct text_token *tokens; // (n_tokens) the tokens held back
    size_t n_tokens, capacity;
    bool complete;
    enum text_end why;
};

struct sampler {
    const struct sample_request *request;
    struct batch *batch;
    int64_t n_texts;
    int64_t n_begun, n_shown;   // number of texts added to the batch, and of texts shown completely
    struct sample_text **texts; // (n_texts) NULL before a text begins, and after it is shown completely
};

static void text_delete(struct sample_text *text) {
    if (!text)
        return;
    text_free(&text->held);
    free(text->tokens);
    free(text);
}

// ---- showing the texts in order

static enum status begin_showing(struct sampler *sampler) {
    const struct sample_request *request = sampler->request;
    int64_t text = sampler->n_shown;
    if (text == sampler->n_texts || !request->begin)
        return STATUS_OK;
    return request->begin(request->context, text, &request->prompts[text / request->n_samples]);
}

static bool is_shown(const struct sample_text *text) {
    return text->index == text->sampler->n_shown;
}

static enum status write_text(void *context, const char *bytes, size_t n_bytes) {
    struct sample_text *text = context;
    const struct sample_request *request = text->sampler->request;
    if (is_shown(text))
        return request->write(request->context, bytes, n_bytes);
    text_add_bytes(&text->held, bytes, n_bytes);
    return STATUS_OK;
}

static enum status add_token(void *context, const struct text_token *token) {
    struct sample_text *text = context;
    const struct sample_request *request = text->sampler->request;
    if (!request->token)
        return STATUS_OK;
    if (is_shown(text))
        return request->token(request->context, token);
    RESERVE(text->tokens, text->n_tokens + 1, text->capacity);
    text->tokens[text->n_tokens++] = *token;
    return STATUS_OK;
}

// Shows the output that was held back for a text, now that all earlier texts are complete.
static enum status show_held(const struct sample_request *request, struct sample_text *text) {
    for (size_t i = 0; i < text->n_tokens; i++)
        TRY(request->token(request->context, &text->tokens[i]));
    if (text->held.length > 0)
        TRY(request->write(request->context, text->held.data, text->held.length));
    text->n_tokens = 0;
    text_free(&text->held);
    return STATUS_OK;
}

static enum status end_text(void *context, enum text_end why) {
    struct sample_text *text = context;
    struct sampler *sampler = text->sampler;
    const struct sample_request *request = sampler->request;
    text->complete = true;
    text->why = why;
    while (sampler->n_shown < sampler->n_texts) {
        struct sample_text *shown = sampler->texts[sampler->n_shown];
        if (shown)
            TRY(show_held(request, shown));
        if (!shown || !shown->complete)
            break;
        if (request->end)
            TRY(request->end(request->context, shown->why));
        sampler->texts[sampler->n_shown++] = NULL;
        text_delete(shown);
        TRY(begin_showing(sampler));
    }
    return STATUS_OK;
}

// ---- generating the texts

static void begin_text(struct sampler *sampler) {
    const struct sample_request *request = sampler->request;
    const int64_t index = sampler->n_begun++;
    const struct token_list *prompt = &request->prompts[index / request->n_samples].tokens;
    struct sample_text *text = allocate(1, sizeof *text);
    sampler->texts[index] = text;
    *text = (struct sample_text){.sampler = sampler, .index = index, .options = request->options};
    text->options.first_counter += (uint64_t)index << 32;
    batch_add(sampler->batch, prompt->ids, prompt->n, &text->options,
              (struct text_events){add_token, write_text, end_text, text});
}

static enum status generate(struct sampler *sampler, int64_t *n_made) {
    TRY(begin_showing(sampler));
    do {
        int n_drawn;
        while (batch_n_texts(sampler->batch) < sampler->request->sequences &&
               sampler->n_begun < sampler->n_texts)
            begin_text(sampler);
        TRY(batch_step(sampler->batch, &n_drawn));
        *n_made += n_drawn;
    } while (sampler->n_shown < sampler->n_texts);
    return STATUS_OK;
}

enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) {
    struct sampler sampler = {.request = request, .n_texts = request->n_prompts * request->n_samples};
    const struct batch_options options = {.generator = generator,
                                          .stream = stream,
                                          .hooks = hooks,
                                          .tokenizer = request->tokenizer,
                                          .vocab_size = request->vocab_size,
                                          .positions = request->positions,
                                          .sequences = request->sequences,
                                          .step_rows = batch_step_rows(stream->device, request->sequences),
                                          .host_logits = request->options.n_top >= 0 ||
                                                         request->options.repetition_penalty != 1};
    int64_t made = 0;
    sampler.texts = allocate((size_t)sampler.n_texts, sizeof *sampler.texts);
    sampler.batch = batch_new(&options);
    enum status status = generate(&sampler, &made);
    if (n_made)
        *n_made = made;
    for (int64_t i = 0; i < sampler.n_texts; i++)
        text_delete(sampler.texts[i]);
    free(sampler.texts);
    batch_delete(sampler.batch);
    return status;
}
