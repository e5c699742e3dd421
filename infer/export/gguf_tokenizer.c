// A tokenizer as llama.cpp reads it: model "gpt2" with merges, or "llama" with scores. Unused ids of the
// vocabulary are tokens of a type of their own.
#include <stdlib.h>

#include "base/gguf_writer.h"
#include "data/tokenizer_export.h"
#include "infer/export/internal.h"

static void add_tokens(const struct tokenizer *tokenizer, int n, struct gguf_keys *keys) {
    const int n_ids = tokenizer_n_ids(tokenizer);
    struct text spelling = {0};
    gguf_begin_strings(keys, "tokenizer.ggml.tokens", (uint64_t)n);
    for (int id = 0; id < n; id++) {
        spelling.length = 0;
        if (id < n_ids)
            tokenizer_add_spelling(tokenizer, id, &spelling);
        else
            text_add(&spelling, "[PAD%d]", id);
        gguf_put_string(keys, spelling.data, spelling.length);
    }
    keys->bytes.failed = keys->bytes.failed || spelling.failed;
    text_free(&spelling);
    gguf_begin_i32s(keys, "tokenizer.ggml.token_type", (uint64_t)n);
    for (int id = 0; id < n; id++)
        gguf_put_i32(keys, id < n_ids ? (int32_t)tokenizer_type(tokenizer, id) : TOKEN_UNUSED);
}

static enum status add_merges(const struct tokenizer *tokenizer, struct gguf_keys *keys) {
    struct token_merge *merges;
    struct text spelling = {0};
    int n;
    TRY(tokenizer_derive_merges(tokenizer, &merges, &n));
    gguf_begin_strings(keys, "tokenizer.ggml.merges", (uint64_t)n);
    for (int i = 0; i < n; i++) {
        spelling.length = 0;
        tokenizer_add_merge(tokenizer, &merges[i], &spelling);
        gguf_put_string(keys, spelling.data, spelling.length);
    }
    keys->bytes.failed = keys->bytes.failed || spelling.failed;
    text_free(&spelling);
    free(merges);
    return STATUS_OK;
}

static enum status add_scores(const struct tokenizer *tokenizer, int n, struct gguf_keys *keys) {
    const int n_ids = tokenizer_n_ids(tokenizer);
    float *scores = malloc((size_t)n_ids * sizeof *scores);
    enum status status =
        scores ? tokenizer_scores(tokenizer, scores) : FAIL(STATUS_FAILED, "out of memory for %d scores", n);
    gguf_begin_f32s(keys, "tokenizer.ggml.scores", (uint64_t)n);
    for (int id = 0; id < n && status == STATUS_OK; id++)
        gguf_put_f32(keys, id < n_ids ? scores[id] : 0);
    free(scores);
    return status;
}

enum status export_add_gguf_tokenizer(const struct tokenizer *tokenizer, int vocab_size,
                                      struct gguf_keys *keys) {
    if (!tokenizer) {
        gguf_add_string(keys, "tokenizer.ggml.model", "none");
        return STATUS_OK;
    }
    const bool has_scores = tokenizer_adds_space(tokenizer);
    gguf_add_string(keys, "tokenizer.ggml.model", tokenizer_gguf_model(tokenizer));
    gguf_add_string(keys, "tokenizer.ggml.pre", tokenizer_gguf_pre(tokenizer));
    add_tokens(tokenizer, vocab_size, keys);
    TRY(has_scores ? add_scores(tokenizer, vocab_size, keys) : add_merges(tokenizer, keys));
    gguf_add_u32(keys, "tokenizer.ggml.bos_token_id", (uint32_t)tokenizer_document_start(tokenizer));
    gguf_add_u32(keys, "tokenizer.ggml.eos_token_id", (uint32_t)tokenizer_end_of_text(tokenizer));
    if (has_scores && tokenizer_unknown(tokenizer) >= 0)
        gguf_add_u32(keys, "tokenizer.ggml.unknown_token_id", (uint32_t)tokenizer_unknown(tokenizer));
    gguf_add_bool(keys, "tokenizer.ggml.add_bos_token", tokenizer_has_bos(tokenizer));
    if (has_scores)
        gguf_add_bool(keys, "tokenizer.ggml.add_space_prefix", true);
    return STATUS_OK;
}
