// Reads Hugging Face's tokenizer.json: a vocabulary (token -> id, in GPT-2's byte alphabet or, for Llama 2,
// as text with U+2581 for spaces) and a list of merges. Its settings are compared with those of the supported
// kinds. A setting that changes the ids of a text and is not supported is refused by name.
#include "data/tokenizer/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "data/tokenizer/encode.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/tables.h"

// ---- settings

// The settings of a tokenizer.json that decide how text becomes tokens.
struct token_settings {
    struct token_rules rules;
    enum space_rule adds_space;
    bool has_metaspace, ignore_merges, fuse_unknown, byte_fallback;
    const char *unknown, *start; // names of the unknown token and of bos, or NULL; they point into the JSON
};

static enum status refuse(const char *path, const char *part, const cJSON *item, const char *why) {
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "type"));
    char *json = type ? NULL : cJSON_PrintUnformatted(item);
    enum status status =
        FAIL(STATUS_INVALID,
             "%s: its %s is %.60s, %s; supported are tokenizers that work like GPT-2's, Llama 2's and 3's, "
             "Qwen2's, and SmolLM's",
             path, part,
             type   ? type
             : json ? json
                    : "of an unknown kind",
             why);
    cJSON_free(json);
    return status;
}

static const cJSON *member(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static bool is_absent(const cJSON *item) {
    return !item || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
           (cJSON_IsString(item) && item->valuestring[0] == '\0');
}

static bool has_string(const cJSON *object, const char *key, const char *value) {
    const char *found = cJSON_GetStringValue(member(object, key));
    return found && strcmp(found, value) == 0;
}

static bool is_type(const cJSON *object, const char *type) {
    return has_string(object, "type", type);
}

// True if the object is a Sequence whose member `list` has n items, of these types in this order.
static bool is_sequence(const cJSON *object, const char *list, const char *const *types, int n) {
    const cJSON *items = member(object, list);
    bool same = is_type(object, "Sequence") && cJSON_IsArray(items) && cJSON_GetArraySize(items) == n;
    for (int i = 0; i < n && same; i++)
        same = is_type(cJSON_GetArrayItem(items, i), types[i]);
    return same;
}

// Returns the member `list` (the items) of a Sequence; NULL if the object is not a Sequence.
static const cJSON *items_of(const cJSON *object, const char *list) {
    return is_type(object, "Sequence") ? member(object, list) : NULL;
}

// ---- Llama 2: what its normalizer and pre-tokenizer do with spaces

static bool is_replace(const cJSON *item, const char *kind, const char *pattern, const char *content) {
    return is_type(item, "Replace") && has_string(member(item, "pattern"), kind, pattern) &&
           has_string(item, "content", content);
}

// Reads the normalizer of a tokenizer of Llama 2's kind. Returns false for any other normalizer. There are
// two forms:
// - Prepend of U+2581, then Replace of spaces by U+2581 (as transformers saves it).
// - The same Replace alone, or followed by one that doubles U+2581 at the start of a text (for a
//   SentencePiece model). With this second Replace, Metaspace puts a space even before a text that begins
//   with one.
//   prepends   [out] there is a Prepend
//   doubles    [out] there is a second Replace
static bool read_spaces(const cJSON *normalizer, bool *prepends, bool *doubles) {
    const cJSON *list = items_of(normalizer, "normalizers"), *item = list ? list->child : normalizer;
    *prepends = item && is_type(item, "Prepend") && has_string(item, "prepend", LOWER_BLOCK);
    item = *prepends ? item->next : item;
    if (!item || !is_replace(item, "String", " ", LOWER_BLOCK))
        return false;
    item = list ? item->next : NULL;
    *doubles = item && !*prepends && is_replace(item, "Regex", "\\A" LOWER_BLOCK, LOWER_BLOCK LOWER_BLOCK);
    return !item || (*doubles && !item->next);
}

static bool read_metaspace(const cJSON *pre_tokenizer, bool doubles, enum space_rule *rule) {
    const cJSON *list = items_of(pre_tokenizer, "pretokenizers"), *item = list ? list->child : pre_tokenizer;
    const cJSON *scheme = member(item, "prepend_scheme");
    const bool is_first = has_string(item, "prepend_scheme", "first");
    *rule = is_first ? SPACE_FIRST : doubles ? SPACE_ALWAYS : SPACE_UNLESS_SPACE;
    return item && (!list || !item->next) && is_type(item, "Metaspace") &&
           has_string(item, "replacement", LOWER_BLOCK) && cJSON_IsFalse(member(item, "split")) &&
           (is_first ? !doubles : !scheme || has_string(item, "prepend_scheme", "always"));
}

// ---- the normalizer

// Reads the normalizer. For Llama 2, also reads where the pre-tokenizer puts spaces (Metaspace).
static enum status read_normalizer(const char *path, const cJSON *normalizer, const cJSON *pre_tokenizer,
                                   struct token_settings *settings) {
    const cJSON *list = items_of(normalizer, "normalizers");
    const bool is_none = is_absent(normalizer) || (list && !list->child);
    bool prepends = false, doubles = false;
    enum space_rule rule;
    if (is_type(normalizer, "NFC")) {
        settings->rules.nfc = true;
        return STATUS_OK;
    }
    if (!is_none && !read_spaces(normalizer, &prepends, &doubles))
        return refuse(path, "normalizer", normalizer,
                      "expected none, NFC, or Llama 2's Prepend and Replace of U+2581");
    const bool has_metaspace = !prepends && read_metaspace(pre_tokenizer, doubles, &rule);
    if (!is_none && !prepends && !has_metaspace)
        return refuse(path, "pre_tokenizer", pre_tokenizer,
                      "expected Metaspace that puts a space before a text");
    if (!prepends && !has_metaspace)
        return STATUS_OK;
    settings->rules.pattern = TOKEN_PATTERN_SPACES;
    settings->adds_space = prepends ? SPACE_ALWAYS : rule;
    settings->has_metaspace = has_metaspace;
    return STATUS_OK;
}

// ---- the pre-tokenizer

// True for a ByteLevel that puts no space before the text.
//   use_regex   whether it must also split the text by GPT-2's pattern
static bool is_byte_level(const cJSON *item, bool use_regex) {
    return is_type(item, "ByteLevel") && is_absent(member(item, "add_prefix_space")) &&
           (cJSON_IsFalse(member(item, "use_regex")) ? !use_regex : use_regex);
}

static bool read_split(const cJSON *split, enum token_pattern *pattern) {
    // The last pattern is GPT-2's as Hugging Face writes it in Split, with one alternative per contraction.
    static const struct {
        const char *text;
        enum token_pattern pattern;
    } known[] = {{TOKEN_PATTERN_TEXT_LLAMA3, TOKEN_PATTERN_LLAMA3},
                 {TOKEN_PATTERN_TEXT_QWEN2, TOKEN_PATTERN_QWEN2},
                 {TOKEN_PATTERN_TEXT_CL100K, TOKEN_PATTERN_CL100K},
                 {TOKEN_PATTERN_TEXT_O200K, TOKEN_PATTERN_O200K},
                 {TOKEN_PATTERN_TEXT_GPT2, TOKEN_PATTERN_GPT2},
                 {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                  TOKEN_PATTERN_GPT2}};
    const char *regex = cJSON_GetStringValue(member(member(split, "pattern"), "Regex"));
    if (!regex || !has_string(split, "behavior", "Isolated") || !is_absent(member(split, "invert")))
        return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(regex, known[i].text) == 0) {
            *pattern = known[i].pattern;
            return true;
        }
    return false;
}

static enum status read_pre_tokenizer(const char *path, const cJSON *pre_tokenizer,
                                      struct token_settings *settings) {
    static const char *const split[] = {"Split", "ByteLevel"}, *const digits[] = {"Digits", "ByteLevel"};
    const cJSON *items = member(pre_tokenizer, "pretokenizers"), *first = cJSON_GetArrayItem(items, 0),
                *second = cJSON_GetArrayItem(items, 1);
    if (settings->rules.pattern == TOKEN_PATTERN_SPACES)
        return is_absent(pre_tokenizer) || settings->has_metaspace
                   ? STATUS_OK
                   : refuse(path, "pre_tokenizer", pre_tokenizer,
                            "expected none, as its normalizer is Llama 2's");
    if (is_byte_level(pre_tokenizer, true))
        return STATUS_OK;
    if (is_type(pre_tokenizer, "ByteLevel"))
        return refuse(path, "pre_tokenizer", pre_tokenizer,
                      "expected \"add_prefix_space\" false and \"use_regex\" true");
    if (is_sequence(pre_tokenizer, "pretokenizers", digits, 2) && is_byte_level(second, true) &&
        cJSON_IsTrue(member(first, "individual_digits"))) {
        settings->rules.pattern = TOKEN_PATTERN_SMOLLM;
        return STATUS_OK;
    }
    if (!is_sequence(pre_tokenizer, "pretokenizers", split, 2) || !is_byte_level(second, false))
        return refuse(path, "pre_tokenizer", pre_tokenizer,
                      "expected ByteLevel, alone or after Split or Digits in a Sequence");
    if (!read_split(first, &settings->rules.pattern))
        return refuse(path, "pre_tokenizer", member(first, "pattern"), "a pattern that is not supported");
    return STATUS_OK;
}

// ---- the post-processor, the decoder and the model

// Reads the template: [A] or [a special token, A], where A stands for the text.
static enum status read_template(const char *path, const cJSON *template, struct token_settings *settings) {
    const cJSON *single = member(template, "single"), *first = cJSON_GetArrayItem(single, 0);
    const int n = cJSON_GetArraySize(single);
    const char *start = n == 2 ? cJSON_GetStringValue(member(member(first, "SpecialToken"), "id")) : NULL;
    if ((n != 1 && !start) || !member(cJSON_GetArrayItem(single, n - 1), "Sequence"))
        return refuse(path, "post_processor", template,
                      "expected at most one token before the text, and none after it");
    settings->start = start;
    return STATUS_OK;
}

static enum status read_post_processor(const char *path, const cJSON *processor,
                                       struct token_settings *settings) {
    static const char *const both[] = {"ByteLevel", "TemplateProcessing"};
    if (is_absent(processor) || is_type(processor, "ByteLevel"))
        return STATUS_OK;
    if (is_type(processor, "TemplateProcessing"))
        return read_template(path, processor, settings);
    if (is_sequence(processor, "processors", both, 2))
        return read_template(path, cJSON_GetArrayItem(member(processor, "processors"), 1), settings);
    return refuse(path, "post_processor", processor, "expected none, ByteLevel or TemplateProcessing");
}

static enum status check_decoder(const char *path, const cJSON *decoder,
                                 const struct token_settings *settings) {
    static const char *const llama2[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    static const char *const without_bytes[] = {"Replace", "Fuse", "Strip"};
    const cJSON *items = member(decoder, "decoders");
    const int n = cJSON_GetArraySize(items);
    if (is_absent(decoder))
        return STATUS_OK;
    if (settings->rules.pattern != TOKEN_PATTERN_SPACES)
        return is_type(decoder, "ByteLevel") ? STATUS_OK
                                             : refuse(path, "decoder", decoder, "expected ByteLevel");
    const cJSON *strip = cJSON_GetArrayItem(items, n - 1), *start = member(strip, "start");
    return (is_sequence(decoder, "decoders", llama2, 4) ||
            is_sequence(decoder, "decoders", without_bytes, 3)) &&
                   has_string(strip, "content", " ") &&
                   is_replace(items->child, "String", LOWER_BLOCK, " ") && cJSON_IsNumber(start) &&
                   start->valueint == 1
               ? STATUS_OK
               : refuse(path, "decoder", decoder,
                        "expected Llama 2's: Replace, ByteFallback, Fuse and Strip");
}

static enum status read_model(const char *path, const cJSON *model, struct token_settings *settings) {
    static const char *const none[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const cJSON *unknown = member(model, "unk_token");
    if (!is_absent(member(model, "type")) && !is_type(model, "BPE"))
        return refuse(path, "model", model, "expected BPE");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (!is_absent(member(model, none[i])))
            return FAIL(STATUS_INVALID, "%s: its model has \"%s\", which is not supported", path, none[i]);
    settings->byte_fallback = cJSON_IsTrue(member(model, "byte_fallback"));
    settings->fuse_unknown = cJSON_IsTrue(member(model, "fuse_unk"));
    settings->ignore_merges = cJSON_IsTrue(member(model, "ignore_merges"));
    settings->unknown = is_absent(unknown) ? NULL : cJSON_GetStringValue(unknown);
    if (settings->byte_fallback && settings->rules.pattern != TOKEN_PATTERN_SPACES)
        return FAIL(STATUS_INVALID, "%s: its model has \"byte_fallback\", supported only for Llama 2's kind",
                    path);
    return STATUS_OK;
}

// Warns of unknown keys in a setting, and in the settings inside it.
static void warn_of_unknown(const char *path, const cJSON *part) {
    json_warn_of_unknown(
        part,
        "type normalizers pretokenizers decoders prepend pattern content String Regex behavior "
        "invert add_prefix_space trim_offsets use_regex individual_digits replacement "
        "prepend_scheme split start stop",
        path);
    for (const cJSON *item = part ? part->child : NULL; item; item = item->next)
        warn_of_unknown(path, item);
}

static void warn_of_settings(const char *path, const cJSON *root) {
    json_warn_of_unknown(root, "version added_tokens normalizer pre_tokenizer post_processor decoder model",
                         path);
    warn_of_unknown(path, member(root, "normalizer"));
    warn_of_unknown(path, member(root, "pre_tokenizer"));
    warn_of_unknown(path, member(root, "decoder"));
    json_warn_of_unknown(member(root, "model"),
                         "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                         "byte_fallback ignore_merges vocab merges",
                         path);
}

static enum status read_settings(const char *path, const cJSON *root, struct token_settings *settings) {
    *settings = (struct token_settings){0};
    TRY(read_normalizer(path, member(root, "normalizer"), member(root, "pre_tokenizer"), settings));
    TRY(read_pre_tokenizer(path, member(root, "pre_tokenizer"), settings));
    TRY(read_post_processor(path, member(root, "post_processor"), settings));
    TRY(check_decoder(path, member(root, "decoder"), settings));
    return read_model(path, member(root, "model"), settings);
}

// ---- ends: end-of-text and the other tokens that end generation. They follow from the names of the
// tokenizer's special tokens, and from the files beside it.

static char *path_beside(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    return file_path("%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
}

cJSON *tokenizer_read_beside(const char *path, const char *name) {
    char *beside = path_beside(path, name);
    cJSON *root = NULL;
    if (file_exists(beside) && json_read_file(beside, &root) != STATUS_OK)
        status_clear();
    free(beside);
    return root;
}

// Like tokenizer_read_beside, but warns of each key that is not in the list `known`: such keys are ignored.
static cJSON *read_known(const char *path, const char *name, const char *known) {
    char *beside = path_beside(path, name);
    cJSON *root = tokenizer_read_beside(path, name);
    json_warn_of_unknown(root, known, beside);
    free(beside);
    return root;
}

static void add_end(struct tokenizer *tokenizer, double id) {
    bool is_new = id >= 0 && id < tokenizer->n_ids && id == (double)(int32_t)id;
    for (int i = 0; i < tokenizer->n_ends; i++)
        is_new = is_new && (int32_t)id != tokenizer->ends[i];
    if (is_new && tokenizer->n_ends < TOKENIZER_MOST_ENDS - 1)
        tokenizer->ends[tokenizer->n_ends++] = (int32_t)id;
}

// Warns if "add_bos_token" or "add_eos_token" of tokenizer_config.json contradicts the tokens that this
// program adds to a text. Transformers 4 obeys these keys for Llama; transformers 5 and this program ignore
// them.
static void check_bos(const struct tokenizer *tokenizer, const char *path, const cJSON *root) {
    const cJSON *bos = member(root, "add_bos_token");
    const bool has_bos = tokenizer_has_bos(tokenizer);
    if (cJSON_IsBool(bos) && cJSON_IsTrue(bos) != has_bos)
        log_warning_once("%s puts %s token before a text, and this program follows it; \"add_bos_token\" of "
                         "tokenizer_config.json contradicts it and is ignored",
                         path, has_bos ? "a" : "no");
    if (cJSON_IsTrue(member(root, "add_eos_token")))
        log_warning_once(
            "%s: \"add_eos_token\" of tokenizer_config.json beside it is ignored: no token is added after "
            "a text",
            path);
}

// Adds the "eos_token" of tokenizer_config.json to tokenizer->ends. It is a name, or an object with the name
// as its "content".
static void add_named(struct tokenizer *tokenizer, const char *path) {
    cJSON *root = read_known(
        path, TOKENIZER_SETTINGS_NAME,
        "add_bos_token add_eos_token add_prefix_space added_tokens_decoder additional_special_tokens "
        "extra_special_tokens bos_token eos_token unk_token pad_token cls_token sep_token mask_token "
        "chat_template clean_up_tokenization_spaces legacy model_max_length max_length sp_model_kwargs "
        "spaces_between_special_tokens split_special_tokens tokenizer_class use_default_system_prompt "
        "padding_side truncation_side model_input_names errors backend is_local local_files_only "
        "tokenizer_file name_or_path special_tokens_map_file processor_class return_token_type_ids "
        "pad_token_type_id pad_to_multiple_of stride truncation_strategy tokenizer_type");
    check_bos(tokenizer, path, root);
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(root, "eos_token");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(token, "content");
    const char *name = cJSON_GetStringValue(content ? content : token);
    if (name)
        add_end(tokenizer, tokenizer_find_special(tokenizer, name));
    cJSON_Delete(root);
}

// Adds the "eos_token_id" of a file to tokenizer->ends. It is an id, or a list of ids. Frees the JSON.
static void add_numbered(struct tokenizer *tokenizer, cJSON *root) {
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id"), *item;
    if (cJSON_IsNumber(ids))
        add_end(tokenizer, ids->valuedouble);
    for (item = cJSON_IsArray(ids) ? ids->child : NULL; item; item = item->next)
        if (cJSON_IsNumber(item))
            add_end(tokenizer, item->valuedouble);
    cJSON_Delete(root);
}

enum status tokenizer_choose_ends(struct tokenizer *tokenizer, const char *path,
                                  const struct token_ends *ends) {
    static const char *const names[] = {END_OF_TEXT, "<|end_of_text|>", "</s>"};
    for (size_t i = 0; i < sizeof names / sizeof *names && tokenizer->end_of_text < 0; i++)
        tokenizer->end_of_text = tokenizer_find_special(tokenizer, names[i]);
    for (int i = 0; ends && i < ends->n; i++)
        add_end(tokenizer, ends->ids[i]);
    if (!ends) {
        add_named(tokenizer, path);
        add_numbered(tokenizer, read_known(path, TOKENIZER_ENDS_NAME,
                                           "_from_model_config bos_token_id eos_token_id pad_token_id "
                                           "transformers_version max_length max_new_tokens use_cache "
                                           "output_attentions output_hidden_states"));
        add_numbered(tokenizer, tokenizer_read_beside(path, "config.json"));
    }
    if (tokenizer->end_of_text < 0 && tokenizer->n_ends > 0)
        tokenizer->end_of_text = tokenizer->ends[0];
    return tokenizer->end_of_text >= 0
               ? STATUS_OK
               : FAIL(STATUS_INVALID,
                      "%s: none of its added tokens is " END_OF_TEXT
                      ", <|end_of_text|> or </s>, and no tokenizer_config.json or config.json beside it "
                      "names the end of a text (eos_token)",
                      path);
}

bool tokenizer_needs_ends(const struct tokenizer *tokenizer) {
    return !tokenizer->is_plain;
}

void tokenizer_add_ends(const struct tokenizer *tokenizer, struct text *out) {
    int32_t ends[TOKENIZER_MOST_ENDS];
    const int n = tokenizer_ends(tokenizer, ends);
    text_add(out, n > 1 ? "[" : "");
    for (int i = 0; i < n; i++)
        text_add(out, i > 0 ? ", %d" : "%d", ends[i]);
    text_add(out, n > 1 ? "]" : "");
}

// A tokenizer.json while it is read.
struct vocabulary {
    const char *path;
    struct token_settings settings;
    const struct token_ends *ends; // ids that end generation; NULL: read them from the files beside it
    const char **tokens;           // (n) by id, as in the file; they point into the JSON
    uint8_t *types;                // (n) enum token_type
    int n;
    struct token_alphabet alphabet;
    struct token_table table;
    struct token_merge *merges; // in rank order
    int n_merges, merges_capacity;
    char *buffer;        // scratch for the bytes of two tokens
    size_t buffer_bytes; // size of `buffer`
    bool is_rising;      // each merge makes a higher id than the merge before
    struct tokenizer *tokenizer;
};

// ---- reading the ids of tokens

static enum status place_token(struct vocabulary *vocabulary, const char *token, const cJSON *id,
                               enum token_type type) {
    if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0 && id->valuedouble < vocabulary->n) ||
        id->valuedouble != (double)(int)id->valuedouble)
        return FAIL(STATUS_INVALID,
                    "%s: the id of \"%.60s\" is not a whole number from 0 to %d; ids must have no gaps",
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

// Returns how many added tokens are not in the vocabulary. (The others must have the same id there;
// place_token and read_ids check this.)
static int count_added(const cJSON *vocab, const cJSON *added) {
    const char **names = allocate((size_t)cJSON_GetArraySize(added), sizeof *names);
    const cJSON *item;
    int n_names = 0;
    cJSON_ArrayForEach(item, added) {
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "content"));
        if (content)
            names[n_names++] = content;
    }
    qsort(names, (size_t)n_names, sizeof *names, compare_names);
    int n = n_names;
    cJSON_ArrayForEach(item, vocab) {
        const char *name = item->string;
        n -= n_names > 0 && bsearch(&name, names, (size_t)n_names, sizeof *names, compare_names);
    }
    free(names);
    return n;
}

// Places the added tokens. The unk_token gets the type TOKEN_UNKNOWN, unless it is end-of-text too. Tokens
// with "special": false get TOKEN_USER, and all others TOKEN_CONTROL.
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

// Reads the ids of the vocabulary and of the added tokens.
//   added   the list "added_tokens", or NULL
static enum status read_ids(struct vocabulary *vocabulary, const cJSON *vocab, const cJSON *added) {
    const cJSON *item;
    vocabulary->n = cJSON_GetArraySize(vocab) + count_added(vocab, added);
    if (vocabulary->n < 2 || vocabulary->n > TOKENIZER_MOST_TOKENS)
        return FAIL(STATUS_INVALID, "%s: it has %d tokens, expected 2 to %d", vocabulary->path, vocabulary->n,
                    TOKENIZER_MOST_TOKENS);
    vocabulary->tokens = allocate((size_t)vocabulary->n, sizeof *vocabulary->tokens);
    vocabulary->types = allocate((size_t)vocabulary->n, sizeof *vocabulary->types);
    cJSON_ArrayForEach(item, vocab) TRY(place_token(vocabulary, item->string, item, TOKEN_NORMAL));
    TRY(place_added(vocabulary, added));
    for (int id = 0; id < vocabulary->n; id++)
        if (!vocabulary->tokens[id])
            return FAIL(STATUS_INVALID, "%s: no token has the id %d; ids must have no gaps", vocabulary->path,
                        id);
    return STATUS_OK;
}

// ---- decoding the bytes of tokens

// Decodes a token that has U+2581 for spaces. Returns its length in bytes; -1 if it contains a space: no
// text can produce such a token.
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

// Parses "<0x0A>". Returns the byte, or -1.
static int byte_of_name(const char *token) {
    unsigned byte;
    int end = 0;
    return strlen(token) == 6 && sscanf(token, "<0x%2X>%n", &byte, &end) == 1 && end == 6 ? (int)byte : -1;
}

static bool is_of_spaces(const struct vocabulary *vocabulary) {
    return vocabulary->settings.rules.pattern == TOKEN_PATTERN_SPACES;
}

// Decodes a token of n bytes, as the file spells it, to the bytes of text that it stands for. Returns their
// number, at most n; -1: the spelling is not valid.
static int decode(const struct vocabulary *vocabulary, const char *token, size_t n, char *out) {
    return is_of_spaces(vocabulary) ? decode_spaces(token, n, out)
                                    : token_decode(token, n, &vocabulary->alphabet, out);
}

static enum status add_token(struct vocabulary *vocabulary, int id) {
    const char *token = vocabulary->tokens[id], *bytes = token;
    enum token_type type = (enum token_type)vocabulary->types[id];
    const int byte = type == TOKEN_NORMAL && vocabulary->settings.byte_fallback ? byte_of_name(token) : -1;
    int n = (int)strlen(token);
    if (byte >= 0) {
        vocabulary->buffer[0] = (char)byte;
        type = TOKEN_BYTE;
        n = 1;
    } else if (type == TOKEN_NORMAL)
        n = decode(vocabulary, token, (size_t)n, vocabulary->buffer);
    if (n < 0)
        return FAIL(STATUS_INVALID, "%s: token \"%.60s\" (id %d) %s", vocabulary->path, token, id,
                    is_of_spaces(vocabulary) ? "has a space, expected U+2581 in its place"
                                             : "is not in GPT-2's byte alphabet");
    if (type == TOKEN_NORMAL || type == TOKEN_BYTE)
        bytes = vocabulary->buffer;
    token_table_add(&vocabulary->table, bytes, (size_t)n, type, 0);
    return STATUS_OK;
}

// Adds the tokens to the table, and makes the tokenizer from it.
static enum status make_tokenizer(struct vocabulary *vocabulary) {
    size_t longest = 0;
    for (int id = 0; id < vocabulary->n; id++) {
        const size_t length = strlen(vocabulary->tokens[id]);
        longest = length > longest ? length : longest;
    }
    vocabulary->buffer_bytes = 2 * longest + 1;
    vocabulary->buffer = allocate(vocabulary->buffer_bytes, 1);
    for (int id = 0; id < vocabulary->n; id++)
        TRY(add_token(vocabulary, id));
    return tokenizer_from_table(&vocabulary->table, "byte-pair", vocabulary->path, &vocabulary->tokenizer);
}

// ---- reading the merges

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
                    "%s: merge %d (\"%.*s\" and \"%.*s\") does not join two tokens into a third",
                    vocabulary->path, vocabulary->n_merges, left_bytes < 60 ? (int)left_bytes : 60, left,
                    right_bytes < 60 ? (int)right_bytes : 60, right);
    RESERVE(vocabulary->merges, vocabulary->n_merges + 1, vocabulary->merges_capacity);
    vocabulary->is_rising =
        vocabulary->is_rising &&
        (vocabulary->n_merges == 0 || vocabulary->merges[vocabulary->n_merges - 1].id < merge.id);
    vocabulary->merges[vocabulary->n_merges++] = merge;
    return STATUS_OK;
}

// Reads "a b" or ["a", "b"].
static enum status add_merge_item(struct vocabulary *vocabulary, const cJSON *item) {
    const char *text = cJSON_GetStringValue(item), *space = text ? strchr(text, ' ') : NULL;
    if (space)
        return add_merge(vocabulary, text, (size_t)(space - text), space + 1, strlen(space + 1));
    const char *left = cJSON_GetStringValue(cJSON_GetArrayItem(item, 0)),
               *right = cJSON_GetStringValue(cJSON_GetArrayItem(item, 1));
    if (!left || !right || cJSON_GetArraySize(item) != 2)
        return FAIL(STATUS_INVALID, "%s: a merge has neither the form \"a b\" nor [\"a\", \"b\"]",
                    vocabulary->path);
    return add_merge(vocabulary, left, strlen(left), right, strlen(right));
}

// ---- making the tokenizer

// True if the tokenizer works like GPT-2's: it has GPT-2's pattern and no other rules, end-of-text is the
// last id and the only token that is not text, and each token of more than one byte has one merge, in id
// order. Such a tokenizer is defined by its tokens alone.
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
                             : FAIL(STATUS_INVALID, "%s: its %s \"%.60s\" is not one of its tokens",
                                    vocabulary->path, what, name);
}

// Llama 2: checks that tokens have spaces only at their start, so that words can be encoded separately, and
// that either all 256 bytes have a TOKEN_BYTE token or none has. If no token has a line feed beside other
// characters, line feeds can be encoded separately too: sets TOKEN_PATTERN_SPACES_AND_LINES.
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
               : FAIL(STATUS_INVALID, "%s: it has %d tokens for bytes, expected <0x00> to <0xFF> or none",
                      vocabulary->path, n_bytes);
}

// Byte-level: checks that every byte has a token, or that there is an unknown token. SmolLM's tokenizer lacks
// tokens for some bytes that its training text did not contain; encoding skips these bytes. So with SmolLM's
// pattern, only printable ASCII and the line feed must have tokens.
static enum status check_bytes(const struct vocabulary *vocabulary) {
    const struct tokenizer *tokenizer = vocabulary->tokenizer;
    const bool may_lack = tokenizer->rules.pattern == TOKEN_PATTERN_SMOLLM;
    for (int byte = 0; byte < 256; byte++)
        if (tokenizer->byte_ids[byte] < 0 && tokenizer->unknown < 0 &&
            (!may_lack || (byte >= ' ' && byte <= '~') || byte == '\n'))
            return FAIL(STATUS_INVALID, "%s: no token for the byte 0x%02x, expected one for each of %s",
                        vocabulary->path, byte,
                        may_lack ? "the printable ASCII bytes and the line feed" : "the 256 bytes");
    return STATUS_OK;
}

// Adds the added tokens that encoding finds in text: those that are not special, do not begin documents
// (bos), and do not end generation.
static enum status add_added(struct vocabulary *vocabulary, const cJSON *added) {
    const struct token_settings *settings = &vocabulary->settings;
    const cJSON *item;
    cJSON_ArrayForEach(item, added) {
        const char *name = cJSON_GetStringValue(member(item, "content"));
        const bool is_normalized = cJSON_IsTrue(member(item, "normalized"));
        const int32_t id = (int32_t)member(item, "id")->valueint;
        if (!cJSON_IsFalse(member(item, "special")) || id == vocabulary->tokenizer->start ||
            tokenizer_is_end(vocabulary->tokenizer, id))
            continue;
        if (!is_absent(member(item, "lstrip")) || !is_absent(member(item, "rstrip")) ||
            !is_absent(member(item, "single_word")))
            return FAIL(
                STATUS_INVALID,
                "%s: its added token \"%.60s\" has lstrip, rstrip or single_word, which is not supported "
                "for one that is not special; set them to false",
                vocabulary->path, name);
        if (is_normalized && settings->has_metaspace && settings->adds_space == SPACE_ALWAYS)
            return FAIL(
                STATUS_INVALID,
                "%s: its added token \"%.60s\" is normalized, which is not supported with a normalizer "
                "that doubles U+2581; set \"normalized\" to false",
                vocabulary->path, name);
        TRY(tokenizer_add_added(vocabulary->tokenizer, id, name, is_normalized));
    }
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
        tokenizer_pair_merges(tokenizer, vocabulary->merges, vocabulary->n_merges);
        TRY(tokenizer_find_whole(tokenizer));
    }
    tokenizer_set_checksum(tokenizer);
    return STATUS_OK;
}

static enum status read_tokenizer_json(struct vocabulary *vocabulary, const cJSON *root) {
    const cJSON *model, *vocab, *merges, *item;
    const cJSON *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    TRY(json_get_object(root, "model", vocabulary->path, &model));
    TRY(read_settings(vocabulary->path, root, &vocabulary->settings));
    TRY(json_get_object(model, "vocab", vocabulary->path, &vocab));
    TRY(json_get_array(model, "merges", vocabulary->path, &merges));
    TRY(read_ids(vocabulary, vocab, cJSON_IsArray(added) ? added : NULL));
    TRY(make_tokenizer(vocabulary));
    cJSON_ArrayForEach(item, merges) TRY(add_merge_item(vocabulary, item));
    TRY(set_settings(vocabulary));
    TRY(add_added(vocabulary, cJSON_IsArray(added) ? added : NULL));
    TRY(finish(vocabulary));
    warn_of_settings(vocabulary->path, root);
    return STATUS_OK;
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
    enum status status =
        is_tokenizer(root) ? read_tokenizer_json(&vocabulary, root)
                           : FAIL(STATUS_INVALID, "%s is JSON, but not a Hugging Face tokenizer.json", path);
    if (status == STATUS_OK)
        vocabulary.tokenizer->json = copy_string(json);
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
