// The inputs of a pass on their way to the device: tokens, targets, starts of documents, numbers of
// sequences.
#include <assert.h>
#include <string.h>

#include "model/gpt_memory.h"

// For each position the start of its document: the last end-of-text up to it, or the start of its sequence.
static void find_documents(const struct gpt *gpt, const int32_t *tokens, int32_t *first) {
    assert(gpt->end_of_text >= 0);
    for (int b = 0; b < gpt->options.B; b++)
        for (int32_t t = 0, start = 0; t < gpt->options.T; t++, tokens++) {
            start = *tokens == gpt->end_of_text ? t : start;
            *first++ = start;
        }
}

// The numbers of the sequences that begin at first_token.
static enum status load_sequences(struct gpt *gpt, struct stream *stream, int slot, uint64_t first_token) {
    const size_t n = (size_t)gpt->options.B;
    uint64_t *host = gpt->buffers.host_sequences, *to = gpt->buffers.sequences;
    if (!to)
        return STATUS_OK;
    uint64_t *numbers = host ? host + n * (size_t)slot : to;
    for (size_t b = 0; b < n; b++)
        numbers[b] = first_token + b * (uint64_t)gpt->options.T;
    return host ? gpt->device->copy(stream, to, numbers, n * sizeof *to) : STATUS_OK;
}

// On a GPU through pinned memory: two buffers in turn, so that the host fills one while the device still
// reads the other.
enum status gpt_load_inputs(struct gpt *gpt, struct stream *stream, const int32_t *tokens,
                            const int32_t *targets, const uint64_t *first_token) {
    const size_t n = (size_t)gpt->options.B * (size_t)gpt->options.T, bytes = n * sizeof *tokens;
    int32_t *staged = gpt->buffers.host_inputs, *first = gpt->buffers.first;
    const int slot = (int)(gpt->n_loads++ % GPT_INPUT_SLOTS);
    if (staged) {
        TRY(event_synchronize(&gpt->loaded[slot]));
        staged += (first ? 3 : 2) * gpt->n_inputs * (size_t)slot; // n may be smaller: gpt_score
        memcpy(staged, tokens, bytes);
        if (targets)
            memcpy(staged + n, targets, bytes);
        if (first)
            find_documents(gpt, tokens, staged + 2 * n);
        tokens = staged;
        targets = targets ? staged + n : NULL;
    } else if (first)
        find_documents(gpt, tokens, first);
    TRY(gpt->device->copy(stream, gpt->buffers.tokens, tokens, bytes));
    if (targets)
        TRY(gpt->device->copy(stream, gpt->buffers.targets, targets, bytes));
    if (first && staged)
        TRY(gpt->device->copy(stream, first, staged + 2 * n, bytes));
    if (first_token)
        TRY(load_sequences(gpt, stream, slot, *first_token));
    return event_record(&gpt->loaded[slot], stream);
}

enum status gpt_load(struct gpt *gpt, struct stream *stream, const int32_t *tokens, const int32_t *targets,
                     uint64_t first_token) {
    return gpt_load_inputs(gpt, stream, tokens, targets, &first_token);
}
