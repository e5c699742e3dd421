#include "infer/text_json.h"

#include "base/json.h"
#include "base/utf8.h"

void text_json_add_string(struct text *out, const char *bytes, size_t n) {
    text_add(out, "\"");
    while (n > 0) {
        size_t valid = utf8_valid_bytes(bytes, n);
        json_add_escaped(out, bytes, valid);
        bytes += valid, n -= valid;
        if (n > 0) {
            text_add(out, "\xef\xbf\xbd");
            bytes++, n--;
        }
    }
    text_add(out, "\"");
}

void text_json_add_token_name(struct text *out, const struct tokenizer *tokenizer, int32_t id) {
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    const bool is_own = n > 0 && tokenizer_named(tokenizer, bytes, n) == id;
    if (is_own && utf8_valid_bytes(bytes, n) == n) {
        text_json_add_string(out, bytes, n);
        return;
    }
    if (!is_own && (n == 0 || tokenizer_type(tokenizer, id) != TOKEN_BYTE)) {
        text_add(out, "\"token_id:%d\"", (int)id);
        return;
    }
    text_add(out, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        text_add(out, "\\\\x%02x", (unsigned char)bytes[i]);
    text_add(out, "\"");
}

static void add_logprob(struct text *out, const struct tokenizer *tokenizer, int32_t id, bool known,
                        float logprob) {
    char number[32];
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    text_add(out, "{\"id\": %d, \"token\": ", id);
    text_json_add_string(out, bytes, n);
    text_add(out, ", \"bytes\": [");
    (void)tokenizer_shown_bytes(tokenizer, id, id, &n); // sets n to 0 for a control token
    for (size_t i = 0; i < n; i++)
        text_add(out, "%s%d", i ? ", " : "", (unsigned char)bytes[i]);
    text_add(out, "], \"logprob\": %s", known ? text_float(number, logprob) : "null");
}

void text_json_add_token(struct text *out, const struct tokenizer *tokenizer,
                         const struct text_token *token) {
    add_logprob(out, tokenizer, token->id, token->has_logprobs, token->logprob);
    text_add(out, ", \"top_logprobs\": [");
    for (int i = 0; i < token->n_top; i++) {
        text_add(out, "%s", i ? ", " : "");
        add_logprob(out, tokenizer, token->top[i].id, true, token->top[i].logprob);
        text_add(out, "}");
    }
    text_add(out, "]}");
}

const char *text_end_name(enum text_end why) {
    return why == TEXT_LENGTH ? "length" : "stop";
}
