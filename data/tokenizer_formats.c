// What other programs' files say of a tokenizer beside its tokens and merges: transformers' configuration,
// GGUF's names and scores. See data/tokenizer_export.h.
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/tokenizer_export.h"
#include "data/tokenizer_internal.h"

// ---- transformers

static const char *class_name(const struct tokenizer *tokenizer) {
    switch (tokenizer->rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
        return "PreTrainedTokenizerFast";
    case TOKEN_PATTERN_QWEN2:
        return "Qwen2Tokenizer";
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return "LlamaTokenizer";
    default:
        return "GPT2Tokenizer";
    }
}

static void add_named(const struct tokenizer *tokenizer, const char *key, int32_t id, struct text *out) {
    struct text name = {0};
    tokenizer_add_spelling(tokenizer, id, &name);
    text_add(out, "  \"%s\": ", key);
    json_add_string(out, name.data ? name.data : "");
    out->failed = out->failed || name.failed;
    text_free(&name);
}

// bos, eos and unk, a line each; like GPT-2's, all are end-of-text.
static void add_special(const struct tokenizer *tokenizer, struct text *out) {
    const int32_t unknown = tokenizer->is_plain ? tokenizer->end_of_text : tokenizer->unknown;
    if (tokenizer->is_plain || tokenizer->start >= 0) {
        add_named(tokenizer, "bos_token", tokenizer_document_start(tokenizer), out);
        text_add(out, ",\n");
    }
    add_named(tokenizer, "eos_token", tokenizer->end_of_text, out);
    if (unknown >= 0) {
        text_add(out, ",\n");
        add_named(tokenizer, "unk_token", unknown, out);
    }
}

void tokenizer_add_config(const struct tokenizer *tokenizer, int n_positions, struct text *out) {
    text_add(out, "{\n  \"tokenizer_class\": \"%s\",\n", class_name(tokenizer));
    if (tokenizer->rules.pattern >= TOKEN_PATTERN_SPACES)
        text_add(out, "  \"legacy\": true,\n  \"add_bos_token\": %s,\n  \"add_eos_token\": false,\n",
                 tokenizer->start >= 0 ? "true" : "false");
    else
        text_add(out, "  \"add_prefix_space\": false,\n%s",
                 tokenizer->is_plain ? "" // transformers' class for GPT-2 knows them
                                     : "  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n");
    add_special(tokenizer, out);
    text_add(out, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": %d\n}\n",
             n_positions);
}

void tokenizer_add_special_map(const struct tokenizer *tokenizer, struct text *out) {
    text_add(out, "{\n");
    add_special(tokenizer, out);
    text_add(out, "\n}\n");
}

// ---- GGUF

const char *tokenizer_gguf_model(const struct tokenizer *tokenizer) {
    return tokenizer->rules.pattern >= TOKEN_PATTERN_SPACES ? "llama" : "gpt2";
}

const char *tokenizer_gguf_pre(const struct tokenizer *tokenizer) {
    switch (tokenizer->rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
        return "llama-bpe";
    case TOKEN_PATTERN_QWEN2:
        return "qwen2";
    case TOKEN_PATTERN_SMOLLM:
        return "smollm";
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return "default";
    default:
        return "gpt-2";
    }
}

enum status tokenizer_scores(const struct tokenizer *tokenizer, float *scores) {
    struct token_merge *merges;
    int n, rank = 0;
    TRY(tokenizer_derive_merges(tokenizer, &merges, &n));
    bool *is_made = calloc((size_t)tokenizer->n_ids, sizeof *is_made);
    if (!is_made) {
        free(merges);
        return FAIL(STATUS_FAILED, "out of memory for the scores of %d tokens", tokenizer->n_ids);
    }
    for (int32_t id = 0; id < tokenizer->n_ids; id++)
        scores[id] = 0;
    for (int i = 0; i < n; i++)
        if (!is_made[merges[i].id]) {
            is_made[merges[i].id] = true;
            scores[merges[i].id] = (float)-rank++;
        }
    for (int32_t id = 0; id < tokenizer->n_ids; id++)
        if (!is_made[id] && tokenizer->types[id] == TOKEN_NORMAL)
            scores[id] = (float)-rank++;
    free(is_made);
    free(merges);
    return STATUS_OK;
}

int32_t tokenizer_unknown(const struct tokenizer *tokenizer) {
    return tokenizer->unknown;
}
