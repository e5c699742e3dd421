// The loop of generation: draw, show, append. Bytes are held back until they make a whole character.
#include "zero/sample.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_CHARACTER 4

struct sampler {
    const struct sample_request *request;
    struct generator *generator;
    struct stream *stream;
    const struct unit_hooks *hooks;
    struct token_list context;    // everything so far
    char held[LONGEST_CHARACTER]; // the start of a character
    size_t n_held;
};

// The length of the character that this byte starts; 1 for what starts none.
static size_t character_length(unsigned char first) {
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
}

static enum status write_bytes(struct sampler *sampler, const char *bytes, size_t n) {
    const struct sample_request *request = sampler->request;
    for (size_t i = 0; i < n; i++) {
        bool continues = ((unsigned char)bytes[i] & 0xC0) == 0x80;
        if (sampler->n_held > 0 && !continues) { // cut short: show it as it is
            TRY(request->write(request->context, sampler->held, sampler->n_held));
            sampler->n_held = 0;
        }
        sampler->held[sampler->n_held++] = bytes[i];
        if (sampler->n_held == character_length((unsigned char)sampler->held[0])) {
            TRY(request->write(request->context, sampler->held, sampler->n_held));
            sampler->n_held = 0;
        }
    }
    return STATUS_OK;
}

static enum status add_token(struct token_list *list, int32_t id) {
    if (list->n == list->capacity) {
        size_t capacity = 2 * list->capacity + 64;
        int32_t *grown = realloc(list->ids, capacity * sizeof *grown);
        if (!grown)
            return FAIL(STATUS_FAILED, "out of memory for a sample of %zu tokens", list->n);
        list->ids = grown;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
    return STATUS_OK;
}

// Brings the generator's context up to date; a full one starts again from the last half of what it held.
static enum status advance(struct sampler *sampler, size_t n_new) {
    size_t positions = (size_t)sampler->request->positions;
    size_t length = (size_t)generator_length(sampler->generator);
    if (length + n_new > positions) {
        size_t half = positions > 1 ? positions / 2 : 1;
        generator_reset(sampler->generator);
        n_new = sampler->context.n < half ? sampler->context.n : half;
    }
    return generator_append(sampler->generator, sampler->stream, sampler->hooks,
                            sampler->context.ids + sampler->context.n - n_new, (int)n_new, NULL);
}

static enum status generate(struct sampler *sampler, int64_t *n_made) {
    const struct sample_request *request = sampler->request;
    int32_t end_of_text = tokenizer_end_of_text(request->tokenizer);
    int n_ids = tokenizer_n_ids(request->tokenizer);
    int drawable = n_ids < request->vocab_size ? n_ids : request->vocab_size;
    size_t n_new = sampler->context.n;
    for (int64_t i = 0; i < request->n_tokens; i++) {
        TRY(advance(sampler, n_new));
        int32_t id;
        TRY(generator_draw(sampler->generator, sampler->stream, &request->sampling, drawable,
                           request->first_counter + (uint64_t)i, &id));
        ++*n_made;
        if (id == end_of_text)
            break;
        size_t n_bytes;
        const char *bytes = tokenizer_bytes(request->tokenizer, id, &n_bytes);
        TRY(write_bytes(sampler, bytes, n_bytes));
        TRY(add_token(&sampler->context, id));
        n_new = 1;
    }
    return sampler->n_held > 0 ? request->write(request->context, sampler->held, sampler->n_held) : STATUS_OK;
}

static enum status prepare(struct sampler *sampler) {
    const struct sample_request *request = sampler->request;
    if (!request->prompt[0])
        return add_token(&sampler->context, tokenizer_end_of_text(request->tokenizer));
    TRY(tokenizer_encode(request->tokenizer, request->prompt, strlen(request->prompt), &sampler->context));
    for (size_t i = 0; i < sampler->context.n; i++)
        if (sampler->context.ids[i] >= request->vocab_size)
            return FAIL(
                STATUS_INVALID,
                "the prompt's token %d is beyond the model's vocabulary of %d: the tokenizer is not the "
                "model's",
                sampler->context.ids[i], request->vocab_size);
    return STATUS_OK;
}

enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) {
    struct sampler sampler = {.request = request, .generator = generator, .stream = stream, .hooks = hooks};
    int64_t made = 0;
    enum status status = prepare(&sampler);
    if (status == STATUS_OK)
        status = generate(&sampler, &made);
    if (n_made)
        *n_made = made;
    token_list_free(&sampler.context);
    return status;
}
