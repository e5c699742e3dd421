// Hugging Face's tokenizer.json: a vocabulary (token -> id, in GPT-2's alphabet of bytes or, for Llama 2, as
// text with U+2581 for spaces) and a list of merges. tokenizer_settings.c says which kinds there are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_internal.h"

struct vocabulary {
    const char *path;
    struct token_settings settings;
    const struct token_ends *ends; // NULL: those of the files beside it
    const char **tokens;           // (n) by id, as in the file; point into the JSON
    uint8_t *types;                // (n) enum token_type
    int n;
    struct token_alphabet alphabet;
    struct token_table table;
    struct token_merge *merges; // in the order of their ranks
    int n_merges, merges_capacity;
    char *buffer; // for the bytes of two tokens
    size_t buffer_bytes;
    bool is_rising; // each merge makes a higher id than the one before
    struct tokenizer *tokenizer;
};

// ---- ids

static enum status place_token(struct vocabulary *vocabulary, const char *token, const cJSON *id,
                               enum token_type type) {
    if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0 && id->valuedouble < vocabulary->n) ||
        id->valuedouble != (double)(int)id->valuedouble)
        return FAIL(STATUS_INVALID,
                    "%s: the id of \"%.60s\" is not one of 0 to %d: ids count up without gaps",
                    vocabulary->path, token, vocabulary->n - 1);
    const int at = (int)id->valuedouble;
    if (vocabulary->tokens[at] && strcmp(vocabulary->tokens[at], token) != 0)
        return FAIL(STATUS_INVALID, "%s: \"%.60s\" and \"%.60s\" have the same id %d", vocabulary->path,
                    vocabulary->tokens[at], token, at);
    vocabulary->tokens[at] = token;
    vocabulary->types[at] = (uint8_t)type;
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// How many added tokens are not in the vocabulary too. Those that are have the same id there.
static enum status count_added(const struct vocabulary *vocabulary, const cJSON *vocab, const cJSON *added,
                               int *n) {
    const int n_added = cJSON_GetArraySize(added);
    const char **names = malloc(((size_t)n_added + 1) * sizeof *names);
    const cJSON *item;
    int n_names = 0;
    *n = 0;
    if (!names)
        return FAIL(STATUS_FAILED, "out of memory reading %s", vocabulary->path);
    cJSON_ArrayForEach(item, added) {
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        if (content)
            names[n_names++] = content;
    }
    qsort(names, (size_t)n_names, sizeof *names, compare_names);
    *n = n_names;
    cJSON_ArrayForEach(item, vocab) {
        const char *name = item->string;
        *n -= n_names > 0 && bsearch(&name, names, (size_t)n_names, sizeof *names, compare_names);
    }
    free(names);
    return STATUS_OK;
}

// "special" tokens are control tokens; the others are text of a template.
static enum status place_added(struct vocabulary *vocabulary, const cJSON *added) {
    const cJSON *item;
    cJSON_ArrayForEach(item, added) {
        const char *content, *unknown = vocabulary->settings.unknown;
        const cJSON *special = cJSON_GetObjectItemCaseSensitive(item, "special");
        TRY(json_get_string(item, "content", vocabulary->path, &content));
        TRY(place_token(vocabulary, content, cJSON_GetObjectItemCaseSensitive(item, "id"),
                        unknown && strcmp(content, unknown) == 0 && strcmp(content, END_OF_TEXT) != 0
                            ? TOKEN_UNKNOWN
                        : cJSON_IsFalse(special) ? TOKEN_USER
                                                 : TOKEN_CONTROL));
    }
    return STATUS_OK;
}

//   added   the list "added_tokens", or NULL
static enum status read_ids(struct vocabulary *vocabulary, const cJSON *vocab, const cJSON *added) {
    const cJSON *item;
    int n_added;
    TRY(count_added(vocabulary, vocab, added, &n_added));
    vocabulary->n = cJSON_GetArraySize(vocab) + n_added;
    if (vocabulary->n < 2 || vocabulary->n > TOKENIZER_MOST_TOKENS)
        return FAIL(STATUS_INVALID, "%s: has %d tokens, expected 2 to %d", vocabulary->path, vocabulary->n,
                    TOKENIZER_MOST_TOKENS);
    vocabulary->tokens = calloc((size_t)vocabulary->n, sizeof *vocabulary->tokens);
    vocabulary->types = calloc((size_t)vocabulary->n, sizeof *vocabulary->types);
    if (!vocabulary->tokens || !vocabulary->types)
        return FAIL(STATUS_FAILED, "out of memory reading %s", vocabulary->path);
    cJSON_ArrayForEach(item, vocab) TRY(place_token(vocabulary, item->string, item, TOKEN_NORMAL));
    TRY(place_added(vocabulary, added));
    for (int id = 0; id < vocabulary->n; id++)
        if (!vocabulary->tokens[id])
            return FAIL(STATUS_INVALID, "%s: no token has the id %d: ids count up without gaps",
                        vocabulary->path, id);
    return STATUS_OK;
}

// ---- the bytes of tokens

// Text with U+2581 for spaces. Returns its length, or -1 where it has spaces too, which no text can give.
static int decode_spaces(const char *token, size_t n, char *out) {
    int bytes = 0;
    for (size_t at = 0; at < n;) {
        const bool is_space = n - at >= 3 && memcmp(token + at, "\xe2\x96\x81", 3) == 0;
        if (token[at] == ' ')
            return -1;
        out[bytes++] = is_space ? ' ' : token[at];
        at += is_space ? 3 : 1;
    }
    return bytes;
}

// "<0x0A>". Returns the byte, or -1.
static int byte_of_name(const char *token) {
    unsigned byte;
    int end = 0;
    return strlen(token) == 6 && sscanf(token, "<0x%2X>%n", &byte, &end) == 1 && end == 6 ? (int)byte : -1;
}

static bool is_of_spaces(const struct vocabulary *vocabulary) {
    return vocabulary->settings.rules.pattern == TOKEN_PATTERN_SPACES;
}

// Returns the number of bytes of a token, at most n, or -1.
static int decode(const struct vocabulary *vocabulary, const char *token, size_t n, char *out) {
    return is_of_spaces(vocabulary) ? decode_spaces(token, n, out)
                                    : token_decode(token, n, &vocabulary->alphabet, out);
}

static enum status add_token(struct vocabulary *vocabulary, int id) {
    char *buffer = vocabulary->buffer;
    const char *token = vocabulary->tokens[id];
    enum token_type type = (enum token_type)vocabulary->types[id];
    const size_t length = strlen(token);
    const int byte = vocabulary->settings.byte_fallback ? byte_of_name(token) : -1;
    if (type != TOKEN_NORMAL)
        return token_table_add(&vocabulary->table, token, length, type, 0);
    if (byte >= 0) {
        buffer[0] = (char)byte;
        return token_table_add(&vocabulary->table, buffer, 1, TOKEN_BYTE, 0);
    }
    const int n = decode(vocabulary, token, length, buffer);
    if (n < 0)
        return FAIL(STATUS_INVALID, "%s: token \"%.60s\" (id %d) %s", vocabulary->path, token, id,
                    is_of_spaces(vocabulary) ? "has a space, expected U+2581 in its place"
                                             : "is not in GPT-2's byte alphabet");
    return token_table_add(&vocabulary->table, buffer, (size_t)n, TOKEN_NORMAL, 0);
}

// Adds the tokens to the table, and makes the tokenizer of it.
static enum status make_tokenizer(struct vocabulary *vocabulary) {
    size_t longest = 0;
    for (int id = 0; id < vocabulary->n; id++) {
        const size_t length = strlen(vocabulary->tokens[id]);
        longest = length > longest ? length : longest;
    }
    vocabulary->buffer_bytes = 2 * longest + 1;
    vocabulary->buffer = malloc(vocabulary->buffer_bytes);
    if (!vocabulary->buffer)
        return FAIL(STATUS_FAILED, "out of memory reading %s", vocabulary->path);
    for (int id = 0; id < vocabulary->n; id++)
        TRY(add_token(vocabulary, id));
    return tokenizer_from_table(&vocabulary->table, "byte-pair", vocabulary->path, &vocabulary->tokenizer);
}

// ---- merges

static enum status add_merge(struct vocabulary *vocabulary, const char *left, size_t left_bytes,
                             const char *right, size_t right_bytes) {
    char *bytes = vocabulary->buffer;
    const bool fits = left_bytes + right_bytes <= vocabulary->buffer_bytes;
    const int a = fits ? decode(vocabulary, left, left_bytes, bytes) : -1,
              b = a >= 0 ? decode(vocabulary, right, right_bytes, bytes + a) : -1;
    struct token_merge merge = {-1, -1, -1};
    if (b >= 0) {
        merge.left = tokenizer_find(vocabulary->tokenizer, bytes, (size_t)a);
        merge.right = tokenizer_find(vocabulary->tokenizer, bytes + a, (size_t)b);
        merge.id = tokenizer_find(vocabulary->tokenizer, bytes, (size_t)(a + b));
    }
    if (merge.left < 0 || merge.right < 0 || merge.id < 0)
        return FAIL(STATUS_INVALID,
                    "%s: merge %d (\"%.*s\" and \"%.*s\") is not of two tokens that make a third",
                    vocabulary->path, vocabulary->n_merges, left_bytes < 60 ? (int)left_bytes : 60, left,
                    right_bytes < 60 ? (int)right_bytes : 60, right);
    if (vocabulary->n_merges == vocabulary->merges_capacity) {
        const int capacity = vocabulary->merges_capacity ? 2 * vocabulary->merges_capacity : 1 << 12;
        struct token_merge *grown = realloc(vocabulary->merges, (size_t)capacity * sizeof *grown);
        if (!grown)
            return FAIL(STATUS_FAILED, "out of memory reading %s", vocabulary->path);
        vocabulary->merges = grown;
        vocabulary->merges_capacity = capacity;
    }
    vocabulary->is_rising =
        vocabulary->is_rising &&
        (vocabulary->n_merges == 0 || vocabulary->merges[vocabulary->n_merges - 1].id < merge.id);
    vocabulary->merges[vocabulary->n_merges++] = merge;
    return STATUS_OK;
}

// "a b" or ["a", "b"]
static enum status add_merge_item(struct vocabulary *vocabulary, const cJSON *item) {
    const char *text = cJSON_GetStringValue(item), *space = text ? strchr(text, ' ') : NULL;
    if (space)
        return add_merge(vocabulary, text, (size_t)(space - text), space + 1, strlen(space + 1));
    const char *left = cJSON_GetStringValue(cJSON_GetArrayItem(item, 0)),
               *right = cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
    if (!left || !right || cJSON_GetArraySize(item) != 2)
        return FAIL(STATUS_INVALID, "%s: a merge is not two tokens", vocabulary->path);
    return add_merge(vocabulary, left, strlen(left), right, strlen(right));
}

// ---- the tokenizer

// Whether it works like GPT-2's: end-of-text, the last id, is the only token that is no text, and each token
// of more than one byte has one merge, in the order of ids. Tokens alone then say everything.
static bool is_plain(const struct vocabulary *vocabulary) {
    const struct tokenizer *tokenizer = vocabulary->tokenizer;
    int n_long = 0;
    for (int id = 0; id + 1 < tokenizer->n_ids; id++) {
        if (tokenizer->types[id] != TOKEN_NORMAL)
            return false;
        n_long += tokenizer->offsets[id + 1] - tokenizer->offsets[id] > 1;
    }
    for (int byte = 0; byte < 256; byte++)
        if (tokenizer->byte_ids[byte] < 0)
            return false;
    return tokenizer->rules.pattern == TOKEN_PATTERN_GPT2 && !tokenizer->rules.nfc && tokenizer->start < 0 &&
           tokenizer->types[tokenizer->n_ids - 1] == TOKEN_CONTROL &&
           strcmp(vocabulary->tokens[tokenizer->n_ids - 1], END_OF_TEXT) == 0 && vocabulary->is_rising &&
           vocabulary->n_merges == n_long && !tokenizer->ignore_merges;
}

static enum status find_named(const struct vocabulary *vocabulary, const char *what, const char *name,
                              int32_t *id) {
    *id = name ? tokenizer_find_special(vocabulary->tokenizer, name) : -1;
    for (int i = 0; i < vocabulary->n && name && *id < 0; i++)
        *id = strcmp(vocabulary->tokens[i], name) == 0 ? i : -1;
    return !name || *id >= 0 ? STATUS_OK
                             : FAIL(STATUS_INVALID, "%s: its %s \"%.60s\" is none of its tokens",
                                    vocabulary->path, what, name);
}

// Llama 2: no token goes on after a space that follows another character, so that words can be encoded on
// their own; all bytes have a token of type TOKEN_BYTE, or none has.
static enum status check_characters(struct vocabulary *vocabulary) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    bool line_alone = true;
    int n_bytes = 0;
    for (int id = 0; id < tokenizer->n_ids; id++) {
        const char *bytes = tokenizer->bytes + tokenizer->offsets[id];
        const size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        n_bytes += tokenizer->types[id] == TOKEN_BYTE;
        if (tokenizer->types[id] != TOKEN_NORMAL)
            continue;
        line_alone = line_alone && (n == 1 || !memchr(bytes, '\n', n));
        for (size_t i = 1; i < n; i++)
            if (bytes[i] == ' ' && bytes[i - 1] != ' ')
                return FAIL(STATUS_INVALID,
                            "%s: token \"%.60s\" (id %d) spans several words, which is not supported",
                            vocabulary->path, vocabulary->tokens[id], id);
    }
    if (line_alone)
        tokenizer->rules.pattern = TOKEN_PATTERN_SPACES_AND_LINES;
    return n_bytes == 0 || n_bytes == 256
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s: has %d tokens for bytes, expected <0x00> to <0xFF> or none",
                      vocabulary->path, n_bytes);
}

// Byte-level: every byte has a token, or the unknown token stands for it. SmolLM's has none for bytes that
// its text did not have, which are left out; what all text has must be there.
static enum status check_bytes(const struct vocabulary *vocabulary) {
    const struct tokenizer *tokenizer = vocabulary->tokenizer;
    const bool may_lack = tokenizer->rules.pattern == TOKEN_PATTERN_SMOLLM;
    for (int byte = 0; byte < 256; byte++)
        if (tokenizer->byte_ids[byte] < 0 && tokenizer->unknown < 0 &&
            (!may_lack || (byte >= ' ' && byte <= '~') || byte == '\n'))
            return FAIL(STATUS_INVALID, "%s: no token for the byte 0x%02x, expected one for each of %s",
                        vocabulary->path, byte, may_lack ? "those of ASCII text" : "the 256 bytes");
    return STATUS_OK;
}

static enum status set_settings(struct vocabulary *vocabulary) {
    const struct token_settings *settings = &vocabulary->settings;
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    tokenizer->rules = settings->rules;
    tokenizer->ignore_merges = settings->ignore_merges;
    tokenizer->adds_space = settings->adds_space;
    tokenizer->fuse_unknown = settings->fuse_unknown;
    TRY(find_named(vocabulary, "unk_token", settings->unknown, &tokenizer->unknown));
    TRY(find_named(vocabulary, "post_processor's token", settings->start, &tokenizer->start));
    TRY(tokenizer_choose_ends(tokenizer, vocabulary->path, vocabulary->ends));
    return is_of_spaces(vocabulary) ? check_characters(vocabulary) : check_bytes(vocabulary);
}

static enum status finish(struct vocabulary *vocabulary) {
    struct tokenizer *tokenizer = vocabulary->tokenizer;
    tokenizer->is_plain = is_plain(vocabulary);
    if (tokenizer->is_plain)
        TRY(tokenizer_pair_all(tokenizer, vocabulary->path));
    else {
        TRY(tokenizer_pair_merges(tokenizer, vocabulary->merges, vocabulary->n_merges));
        TRY(tokenizer_find_whole(tokenizer));
    }
    tokenizer_set_checksum(tokenizer);
    return STATUS_OK;
}

static enum status read_tokenizer_json(struct vocabulary *vocabulary, const cJSON *root) {
    const cJSON *model, *vocab, *merges, *item;
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    TRY(json_get_object(root, "model", vocabulary->path, &model));
    TRY(tokenizer_read_settings(vocabulary->path, root, &vocabulary->settings));
    TRY(json_get_object(model, "vocab", vocabulary->path, &vocab));
    TRY(json_get_array(model, "merges", vocabulary->path, &merges));
    TRY(read_ids(vocabulary, vocab, cJSON_IsArray(added) ? added : NULL));
    TRY(make_tokenizer(vocabulary));
    cJSON_ArrayForEach(item, merges) TRY(add_merge_item(vocabulary, item));
    TRY(set_settings(vocabulary));
    return finish(vocabulary);
}

static bool is_tokenizer(const cJSON *root) {
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "model")) &&
           cJSON_HasObjectItem(root, "pre_tokenizer");
}

enum status tokenizer_read_json(const char *path, const char *json, size_t length,
                                const struct token_ends *ends, struct tokenizer **out) {
    struct vocabulary vocabulary = {.path = path, .ends = ends, .is_rising = true};
    cJSON *root;
    *out = NULL;
    TRY(json_parse(json, length, path, &root));
    token_alphabet_init(&vocabulary.alphabet);
    enum status status = is_tokenizer(root)
                             ? read_tokenizer_json(&vocabulary, root)
                             : FAIL(STATUS_INVALID, "%s is JSON, but no Hugging Face tokenizer.json", path);
    if (status == STATUS_OK) {
        vocabulary.tokenizer->json = strdup(json);
        if (!vocabulary.tokenizer->json)
            status = FAIL(STATUS_FAILED, "out of memory reading %s", path);
    }
    free(vocabulary.tokens);
    free(vocabulary.types);
    free(vocabulary.merges);
    free(vocabulary.buffer);
    token_table_free(&vocabulary.table);
    cJSON_Delete(root);
    if (status == STATUS_OK)
        *out = vocabulary.tokenizer;
    else
        tokenizer_delete(vocabulary.tokenizer);
    return status;
}

bool tokenizer_is_json(const char *path) {
    cJSON *root = NULL;
    bool is_one = json_read_file(path, &root) == STATUS_OK && is_tokenizer(root);
    if (!root)
        status_clear();
    cJSON_Delete(root);
    return is_one;
}
