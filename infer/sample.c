// The generation loop. Each sequence of the generator works on one text, and takes the next one when that
// ends. A step appends a token to every sequence, samples and writes. Bytes are held back until they form a
// whole character, and texts until the earlier ones are complete.
#include "infer/sample.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define LONGEST_CHARACTER 4

// The text that one sequence of the generator works on.
struct text_slot {
    int64_t text; // -1: none
    int64_t n_drawn;
    struct token_list context;    // prompt and text so far
    size_t n_new;                 // its last tokens, which the generator has not processed yet
    char held[LONGEST_CHARACTER]; // the incomplete character at its end
    size_t n_held;
};

// Text that is held back until all earlier texts are complete.
struct waiting {
    struct text text;
    bool complete;
};

struct sampler {
    const struct sample_request *request;
    struct generator *generator;
    struct stream *stream;
    const struct unit_hooks *hooks;
    int64_t n_texts, n_begun, n_shown; // n_begun: assigned to a sequence; n_shown: written completely
    int64_t n_made;
    struct waiting *waiting; // (n_texts)
    // (sequences) each; of the last three, a step uses the first entries
    struct text_slot *slots;
    int *sequences;
    int32_t *tokens;
    uint64_t *counters;
};

// ---- output

static const char *prompt_of(const struct sampler *sampler, int64_t text) {
    return sampler->request->prompts[text / sampler->request->n_samples];
}

static enum status begin_showing(struct sampler *sampler) {
    const struct sample_request *request = sampler->request;
    int64_t text = sampler->n_shown;
    if (text == sampler->n_texts || !request->begin)
        return STATUS_OK;
    return request->begin(request->context, text, prompt_of(sampler, text));
}

// The first incomplete text is streamed; later ones are held back.
static enum status show(struct sampler *sampler, int64_t text, const char *bytes, size_t n) {
    if (text == sampler->n_shown)
        return sampler->request->write(sampler->request->context, bytes, n);
    text_add_bytes(&sampler->waiting[text].text, bytes, n);
    return text_status(&sampler->waiting[text].text);
}

static enum status show_complete(struct sampler *sampler) {
    while (sampler->n_shown < sampler->n_texts && sampler->waiting[sampler->n_shown].complete) {
        sampler->n_shown++;
        TRY(begin_showing(sampler));
        if (sampler->n_shown == sampler->n_texts)
            break;
        struct text *text = &sampler->waiting[sampler->n_shown].text;
        if (text->length > 0)
            TRY(sampler->request->write(sampler->request->context, text->data, text->length));
        text_free(text);
    }
    return STATUS_OK;
}

// Bytes of the UTF-8 character that starts with this byte; 1 if no character starts with it.
static size_t character_length(unsigned char first) {
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
}

static enum status show_held(struct sampler *sampler, struct text_slot *slot) {
    size_t n = slot->n_held;
    slot->n_held = 0;
    return n > 0 ? show(sampler, slot->text, slot->held, n) : STATUS_OK;
}

static enum status show_bytes(struct sampler *sampler, struct text_slot *slot, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool continues = ((unsigned char)bytes[i] & 0xC0) == 0x80;
        if (!continues) // the held character was cut short: write its bytes as they are
            TRY(show_held(sampler, slot));
        slot->held[slot->n_held++] = bytes[i];
        if (slot->n_held == character_length((unsigned char)slot->held[0]))
            TRY(show_held(sampler, slot));
    }
    return STATUS_OK;
}

// ---- decoding

enum status sample_encode(const struct tokenizer *tokenizer, int vocab_size, const char *prompt,
                          struct token_list *list) {
    if (!prompt[0])
        return token_list_add(list, tokenizer_end_of_text(tokenizer));
    size_t first = list->n;
    TRY(tokenizer_encode(tokenizer, prompt, strlen(prompt), list));
    for (size_t i = first; i < list->n; i++)
        if (list->ids[i] >= vocab_size)
            return FAIL(
                STATUS_INVALID,
                "token %d of the prompt is outside the model's vocabulary of %d: the tokenizer is not the "
                "one that the model was trained with",
                list->ids[i], vocab_size);
    return STATUS_OK;
}

static enum status begin_text(struct sampler *sampler, int sequence) {
    const struct sample_request *request = sampler->request;
    struct text_slot *slot = &sampler->slots[sequence];
    slot->text = sampler->n_begun++;
    slot->n_drawn = 0;
    slot->context.n = 0;
    generator_reset(sampler->generator, sequence);
    TRY(sample_encode(request->tokenizer, request->vocab_size, prompt_of(sampler, slot->text),
                      &slot->context));
    slot->n_new = slot->context.n;
    return STATUS_OK;
}

static enum status end_text(struct sampler *sampler, struct text_slot *slot) {
    TRY(show_held(sampler, slot));
    sampler->waiting[slot->text].complete = true;
    slot->text = -1;
    return show_complete(sampler);
}

// Appends a sequence's new tokens, except the last one, which the step appends. When the context is full,
// starts a new one from the last half of it.
static enum status advance(struct sampler *sampler, int sequence) {
    struct text_slot *slot = &sampler->slots[sequence];
    size_t positions = (size_t)sampler->request->positions;
    size_t length = (size_t)generator_length(sampler->generator, sequence);
    if (length + slot->n_new > positions) {
        size_t half = positions > 1 ? positions / 2 : 1;
        generator_reset(sampler->generator, sequence);
        slot->n_new = slot->context.n < half ? slot->context.n : half;
    }
    if (slot->n_new == 1)
        return STATUS_OK;
    return generator_append(sampler->generator, sampler->stream, sampler->hooks, sequence,
                            slot->context.ids + slot->context.n - slot->n_new, (int)slot->n_new - 1);
}

static enum status take_token(struct sampler *sampler, struct text_slot *slot, int32_t id) {
    const struct sample_request *request = sampler->request;
    sampler->n_made++;
    slot->n_drawn++;
    slot->n_new = 1;
    if (id == tokenizer_end_of_text(request->tokenizer))
        return end_text(sampler, slot);
    size_t n_bytes;
    const char *bytes = tokenizer_bytes(request->tokenizer, id, &n_bytes);
    TRY(show_bytes(sampler, slot, bytes, n_bytes));
    TRY(token_list_add(&slot->context, id));
    return slot->n_drawn == request->n_tokens ? end_text(sampler, slot) : STATUS_OK;
}

// Generates one token for each active text. *n: how many there were; 0 when all texts are complete.
static enum status step(struct sampler *sampler, int *n) {
    const struct sample_request *request = sampler->request;
    int n_ids = tokenizer_n_ids(request->tokenizer);
    int drawable = n_ids < request->vocab_size ? n_ids : request->vocab_size;
    *n = 0;
    for (int sequence = 0; sequence < request->sequences; sequence++) {
        struct text_slot *slot = &sampler->slots[sequence];
        if (slot->text < 0 && sampler->n_begun < sampler->n_texts)
            TRY(begin_text(sampler, sequence));
        if (slot->text < 0)
            continue;
        TRY(advance(sampler, sequence));
        sampler->sequences[*n] = sequence;
        sampler->tokens[*n] = slot->context.ids[slot->context.n - 1];
        sampler->counters[*n] =
            request->first_counter + ((uint64_t)slot->text << 32) + (uint64_t)slot->n_drawn;
        ++*n;
    }
    if (*n == 0)
        return STATUS_OK;
    TRY(generator_step(sampler->generator, sampler->stream, sampler->hooks, sampler->sequences,
                       sampler->tokens, *n, NULL));
    TRY(generator_draw(sampler->generator, sampler->stream, &request->sampling, drawable, sampler->counters,
                       *n, sampler->tokens));
    for (int i = 0; i < *n; i++)
        TRY(take_token(sampler, &sampler->slots[sampler->sequences[i]], sampler->tokens[i]));
    return STATUS_OK;
}

static enum status sampler_init(struct sampler *sampler) {
    size_t sequences = (size_t)sampler->request->sequences;
    sampler->waiting = calloc((size_t)sampler->n_texts, sizeof *sampler->waiting);
    sampler->slots = calloc(sequences, sizeof *sampler->slots);
    sampler->sequences = calloc(sequences, sizeof *sampler->sequences);
    sampler->tokens = calloc(sequences, sizeof *sampler->tokens);
    sampler->counters = calloc(sequences, sizeof *sampler->counters);
    if (!sampler->waiting || !sampler->slots || !sampler->sequences || !sampler->tokens || !sampler->counters)
        return FAIL(STATUS_FAILED, "out of memory for %lld texts", (long long)sampler->n_texts);
    for (size_t i = 0; i < sequences; i++)
        sampler->slots[i].text = -1;
    return STATUS_OK;
}

static void sampler_free(struct sampler *sampler) {
    for (int64_t i = 0; sampler->waiting && i < sampler->n_texts; i++)
        text_free(&sampler->waiting[i].text);
    for (int i = 0; sampler->slots && i < sampler->request->sequences; i++)
        token_list_free(&sampler->slots[i].context);
    free(sampler->waiting);
    free(sampler->slots);
    free(sampler->sequences);
    free(sampler->tokens);
    free(sampler->counters);
}

enum status sample_run(struct generator *generator, struct stream *stream, const struct unit_hooks *hooks,
                       const struct sample_request *request, int64_t *n_made) {
    struct sampler sampler = {.request = request,
                              .generator = generator,
                              .stream = stream,
                              .hooks = hooks,
                              .n_texts = request->n_prompts * request->n_samples};
    enum status status = sampler_init(&sampler);
    if (status == STATUS_OK)
        status = begin_showing(&sampler);
    for (int n = 1; status == STATUS_OK && n > 0;)
        status = step(&sampler, &n);
    if (n_made)
        *n_made = sampler.n_made;
    sampler_free(&sampler);
    return status;
}
