// Hugging Face's tokenizer files: tokenizer.json, and vocab.json with merges.txt. Both have a vocabulary
// (token in GPT-2's alphabet -> id) and a list of merges. Accepted are those that work like GPT-2's:
// byte-level BPE with GPT-2's pattern, merges in the order of their ids, and <|endoftext|> as the last id.
// This program then encodes as they do.
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_internal.h"

#define LARGEST_FILE ((size_t)256 << 20)
#define LARGEST_IDS  (1 << 22)
#define END_OF_TEXT  "<|endoftext|>"

struct vocabulary {
    const char *path;
    const char **tokens; // (n) by id, in GPT-2's alphabet; point into the JSON
    int n;
    int code_points[256];
};

static enum status unsupported(const char *path, const char *what) {
    return FAIL(STATUS_INVALID, "%s: %s; only byte-level BPE tokenizers that work like GPT-2's are supported",
                path, what);
}

// ---- the vocabulary

static enum status place_token(struct vocabulary *vocabulary, const char *token, const cJSON *id) {
    if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0 && id->valuedouble < vocabulary->n) ||
        id->valuedouble != (double)(int)id->valuedouble)
        return FAIL(STATUS_INVALID,
                    "%s: the id of \"%.60s\" is not one of 0 to %d: ids count up without gaps",
                    vocabulary->path, token, vocabulary->n - 1);
    const char **slot = &vocabulary->tokens[(int)id->valuedouble];
    if (*slot && strcmp(*slot, token) != 0)
        return FAIL(STATUS_INVALID, "%s: \"%.60s\" and \"%.60s\" have the same id %d", vocabulary->path,
                    *slot, token, (int)id->valuedouble);
    *slot = token;
    return STATUS_OK;
}

// Added tokens that are in the vocabulary too, as GPT-2's only one is, are the same ids.
static int count_added(const cJSON *vocab, const cJSON *added) {
    int n = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, added) {
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        n += content && !cJSON_GetObjectItemCaseSensitive(vocab, content);
    }
    return n;
}

//   added   the list "added_tokens", or NULL
static enum status read_vocabulary(struct vocabulary *vocabulary, const cJSON *vocab, const cJSON *added) {
    const cJSON *item;
    vocabulary->n = cJSON_GetArraySize(vocab) + count_added(vocab, added);
    if (vocabulary->n < 2 || vocabulary->n > LARGEST_IDS)
        return FAIL(STATUS_INVALID, "%s: has %d tokens, expected 2 to %d", vocabulary->path, vocabulary->n,
                    LARGEST_IDS);
    vocabulary->tokens = calloc((size_t)vocabulary->n, sizeof *vocabulary->tokens);
    if (!vocabulary->tokens)
        return FAIL(STATUS_FAILED, "out of memory reading %s", vocabulary->path);
    cJSON_ArrayForEach(item, vocab) TRY(place_token(vocabulary, item->string, item));
    cJSON_ArrayForEach(item, added) {
        const char *content;
        TRY(json_get_string(item, "content", vocabulary->path, &content));
        TRY(place_token(vocabulary, content, cJSON_GetObjectItemCaseSensitive(item, "id")));
    }
    for (int id = 0; id < vocabulary->n; id++)
        if (!vocabulary->tokens[id])
            return FAIL(STATUS_INVALID, "%s: no token has the id %d: ids count up without gaps",
                        vocabulary->path, id);
    if (strcmp(vocabulary->tokens[vocabulary->n - 1], END_OF_TEXT) != 0)
        return unsupported(vocabulary->path, "its last id is not " END_OF_TEXT);
    return STATUS_OK;
}

// All tokens but end-of-text, in bytes. n_long: [out] those of more than one byte.
static enum status add_tokens(const struct vocabulary *vocabulary, struct token_table *tokens, int *n_long) {
    *n_long = 0;
    for (int id = 0; id + 1 < vocabulary->n; id++) {
        const char *token = vocabulary->tokens[id];
        const size_t length = strlen(token);
        char *bytes = malloc(length + 1);
        int n = bytes ? token_decode(token, length, vocabulary->code_points, bytes) : 0;
        enum status status =
            !bytes  ? FAIL(STATUS_FAILED, "out of memory reading %s", vocabulary->path)
            : n < 0 ? FAIL(STATUS_INVALID, "%s: token \"%.60s\" (id %d) is not in GPT-2's byte alphabet",
                           vocabulary->path, token, id)
                    : token_table_add(tokens, bytes, (size_t)n, 1);
        *n_long += n > 1;
        free(bytes);
        TRY(status);
    }
    return STATUS_OK;
}

// ---- merges

// Merges are applied in their order here and by id elsewhere in this program; the two agree only if the merge
// of rank k makes the k-th of the longer tokens.
struct merge_check {
    const struct vocabulary *vocabulary;
    int next; // id that the next merge must make
    int n;
};

static enum status check_merge(struct merge_check *check, const char *left, size_t left_bytes,
                               const char *right, size_t right_bytes) {
    const struct vocabulary *vocabulary = check->vocabulary;
    char bytes[8];
    while (check->next + 1 < vocabulary->n) { // skip single bytes, which may be anywhere
        const char *token = vocabulary->tokens[check->next];
        if (strlen(token) > 4 || token_decode(token, strlen(token), vocabulary->code_points, bytes) != 1)
            break;
        check->next++;
    }
    const char *token = vocabulary->tokens[check->next];
    if (strlen(token) != left_bytes + right_bytes || strncmp(token, left, left_bytes) != 0 ||
        memcmp(token + left_bytes, right, right_bytes) != 0)
        return unsupported(vocabulary->path, "its merges are not in the order of the ids that they make");
    check->next++;
    check->n++;
    return STATUS_OK;
}

// "a b" or ["a", "b"]
static enum status check_merge_item(struct merge_check *check, const cJSON *item) {
    const char *text = cJSON_GetStringValue(item), *space = text ? strchr(text, ' ') : NULL;
    if (space)
        return check_merge(check, text, (size_t)(space - text), space + 1, strlen(space + 1));
    const char *left = cJSON_GetStringValue(cJSON_GetArrayItem(item, 0)),
               *right = cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
    if (!left || !right)
        return FAIL(STATUS_INVALID, "%s: a merge is not two tokens", check->vocabulary->path);
    return check_merge(check, left, strlen(left), right, strlen(right));
}

static enum status check_merges_text(struct merge_check *check, const char *text) {
    for (const char *line = text; *line;) {
        const size_t length = strcspn(line, "\r\n");
        const char *space = memchr(line, ' ', length);
        const bool is_merge = length > 0 && !(line == text && strncmp(line, "#version", 8) == 0);
        if (is_merge && !space)
            return FAIL(STATUS_INVALID, "%s: merges.txt: a merge is not two tokens", check->vocabulary->path);
        if (is_merge)
            TRY(check_merge(check, line, (size_t)(space - line), space + 1,
                            length - (size_t)(space - line) - 1));
        line += length;
        line += strspn(line, "\r\n");
    }
    return STATUS_OK;
}

static enum status check_count(const struct merge_check *check, int n_long) {
    return check->n == n_long ? STATUS_OK
                              : unsupported(check->vocabulary->path, "it has tokens that no merge makes");
}

// ---- tokenizer.json

static bool is_absent(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return !item || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
           (cJSON_IsString(item) && item->valuestring[0] == '\0');
}

static bool is_string(const cJSON *object, const char *key, const char *value) {
    const char *found = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return found && strcmp(found, value) == 0;
}

// Whether everything that changes the ids of a text is as GPT-2 has it.
static enum status check_settings(const char *path, const cJSON *root, const cJSON *model) {
    const cJSON *split = cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer");
    if (!is_string(model, "type", "BPE") && !is_absent(model, "type"))
        return unsupported(path, "its model is not BPE");
    if (!is_absent(root, "normalizer"))
        return unsupported(path, "it has a normalizer");
    if (!is_string(split, "type", "ByteLevel"))
        return unsupported(path, "its pre_tokenizer is not ByteLevel");
    if (!is_absent(split, "add_prefix_space"))
        return unsupported(path, "its pre_tokenizer adds a space before the text");
    if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(split, "use_regex")))
        return unsupported(path, "its pre_tokenizer does not split by GPT-2's pattern");
    static const char *const none[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                       "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (!is_absent(model, none[i]))
            return FAIL(
                STATUS_INVALID,
                "%s: \"%s\" is set; only byte-level BPE tokenizers that work like GPT-2's are supported",
                path, none[i]);
    return STATUS_OK;
}

static enum status read_tokenizer_json(struct vocabulary *vocabulary, const cJSON *root,
                                       struct token_table *tokens) {
    const cJSON *model, *vocab, *merges, *item;
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    struct merge_check check = {.vocabulary = vocabulary};
    int n_long;
    TRY(json_get_object(root, "model", vocabulary->path, &model));
    TRY(check_settings(vocabulary->path, root, model));
    TRY(json_get_object(model, "vocab", vocabulary->path, &vocab));
    TRY(json_get_array(model, "merges", vocabulary->path, &merges));
    TRY(read_vocabulary(vocabulary, vocab, cJSON_IsArray(added) ? added : NULL));
    TRY(add_tokens(vocabulary, tokens, &n_long));
    cJSON_ArrayForEach(item, merges) TRY(check_merge_item(&check, item));
    return check_count(&check, n_long);
}

// ---- vocab.json and merges.txt

static enum status read_vocab_json(struct vocabulary *vocabulary, const cJSON *root,
                                   struct token_table *tokens) {
    const char *slash = strrchr(vocabulary->path, '/');
    char *path =
        file_path("%.*smerges.txt", slash ? (int)(slash - vocabulary->path) + 1 : 0, vocabulary->path);
    char *text = NULL;
    size_t length;
    int n_long;
    struct merge_check check = {.vocabulary = vocabulary};
    enum status status = path ? read_vocabulary(vocabulary, root, NULL) : STATUS_FAILED;
    if (status == STATUS_OK)
        status = add_tokens(vocabulary, tokens, &n_long);
    if (status == STATUS_OK)
        status = file_read(path, LARGEST_FILE, &text, &length);
    if (status == STATUS_OK)
        status = check_merges_text(&check, text);
    if (status == STATUS_OK)
        status = check_count(&check, n_long);
    free(text);
    free(path);
    return status;
}

static bool is_vocabulary(const cJSON *root) {
    return cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(root, END_OF_TEXT));
}

static bool is_tokenizer(const cJSON *root) {
    return cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "model")) &&
           cJSON_HasObjectItem(root, "pre_tokenizer");
}

enum status tokenizer_read_json(const char *path, const char *json, size_t length,
                                struct token_table *tokens) {
    struct vocabulary vocabulary = {.path = path};
    int order[256];
    cJSON *root;
    TRY(json_parse(json, length, path, &root));
    token_alphabet(vocabulary.code_points, order);
    enum status status =
        is_vocabulary(root) ? read_vocab_json(&vocabulary, root, tokens)
        : is_tokenizer(root)
            ? read_tokenizer_json(&vocabulary, root, tokens)
            : FAIL(STATUS_INVALID, "%s is JSON, but neither a Hugging Face tokenizer.json nor a vocab.json",
                   path);
    free(vocabulary.tokens);
    cJSON_Delete(root);
    return status;
}

bool tokenizer_is_json(const char *path) {
    cJSON *root = NULL;
    bool is_one = json_read_file(path, &root) == STATUS_OK && (is_vocabulary(root) || is_tokenizer(root));
    if (!root)
        status_clear();
    cJSON_Delete(root);
    return is_one;
}
