// The settings of a tokenizer.json, compared with those of the kinds that this program knows. Everything that
// changes the ids of a text must be one of them: what is not is refused by name.
#include <string.h>

#include "base/json.h"
#include "data/tokenizer_internal.h"

#define LOWER_BLOCK "\xe2\x96\x81" // U+2581, which stands for a space

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

// Whether it is a Sequence of items of these types, in this order.
static bool is_sequence(const cJSON *object, const char *list, const char *const *types, int n) {
    const cJSON *items = member(object, list);
    bool same = is_type(object, "Sequence") && cJSON_IsArray(items) && cJSON_GetArraySize(items) == n;
    for (int i = 0; i < n && same; i++)
        same = is_type(cJSON_GetArrayItem(items, i), types[i]);
    return same;
}

// ---- the normalizer

static enum status read_normalizer(const char *path, const cJSON *normalizer,
                                   struct token_settings *settings) {
    static const char *const llama2[] = {"Prepend", "Replace"};
    const cJSON *items = member(normalizer, "normalizers");
    if (is_absent(normalizer))
        return STATUS_OK;
    if (is_type(normalizer, "NFC")) {
        settings->rules.nfc = true;
        return STATUS_OK;
    }
    if (!is_sequence(normalizer, "normalizers", llama2, 2) ||
        !has_string(cJSON_GetArrayItem(items, 0), "prepend", LOWER_BLOCK) ||
        !has_string(member(cJSON_GetArrayItem(items, 1), "pattern"), "String", " ") ||
        !has_string(cJSON_GetArrayItem(items, 1), "content", LOWER_BLOCK))
        return refuse(path, "normalizer", normalizer,
                      "expected none, NFC, or Llama 2's Prepend and Replace of U+2581");
    settings->rules.pattern = TOKEN_PATTERN_SPACES;
    settings->adds_space = true;
    return STATUS_OK;
}

// ---- the pre-tokenizer

// ByteLevel without a space before the text.
static bool is_byte_level(const cJSON *item, bool use_regex) {
    return is_type(item, "ByteLevel") && is_absent(member(item, "add_prefix_space")) &&
           (cJSON_IsFalse(member(item, "use_regex")) ? !use_regex : use_regex);
}

static bool read_split(const cJSON *split, enum token_pattern *pattern) {
    // GPT-2's as Hugging Face spells it in Split has the alternatives of a contraction one by one.
    static const struct {
        const char *text;
        enum token_pattern pattern;
    } known[] = {{TOKEN_PATTERN_TEXT_LLAMA3, TOKEN_PATTERN_LLAMA3},
                 {TOKEN_PATTERN_TEXT_QWEN2, TOKEN_PATTERN_QWEN2},
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
        return is_absent(pre_tokenizer) ? STATUS_OK
                                        : refuse(path, "pre_tokenizer", pre_tokenizer,
                                                 "expected none, as its normalizer is Llama 2's");
    if (is_byte_level(pre_tokenizer, true))
        return STATUS_OK;
    if (is_type(pre_tokenizer, "ByteLevel"))
        return refuse(path, "pre_tokenizer", pre_tokenizer,
                      "with a space before the text or without GPT-2's pattern");
    if (is_sequence(pre_tokenizer, "pretokenizers", digits, 2) && is_byte_level(second, true) &&
        cJSON_IsTrue(member(first, "individual_digits"))) {
        settings->rules.pattern = TOKEN_PATTERN_SMOLLM;
        return STATUS_OK;
    }
    if (!is_sequence(pre_tokenizer, "pretokenizers", split, 2) || !is_byte_level(second, false))
        return refuse(path, "pre_tokenizer", pre_tokenizer,
                      "expected ByteLevel, or a Sequence of it after Split or Digits");
    if (!read_split(first, &settings->rules.pattern))
        return refuse(path, "pre_tokenizer", member(first, "pattern"), "a pattern that is not supported");
    return STATUS_OK;
}

// ---- the post-processor, the decoder and the model

// What is put before a text: [A], or [a special token, A].
static enum status read_template(const char *path, const cJSON *template, struct token_settings *settings) {
    const cJSON *single = member(template, "single"), *first = cJSON_GetArrayItem(single, 0);
    const int n = cJSON_GetArraySize(single);
    const char *start = n == 2 ? cJSON_GetStringValue(member(member(first, "SpecialToken"), "id")) : NULL;
    if ((n != 1 && !start) || !member(cJSON_GetArrayItem(single, n - 1), "Sequence"))
        return refuse(path, "post_processor", template,
                      "expected one that puts at most a token before the text, and none after it");
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
    const cJSON *items = member(decoder, "decoders");
    if (is_absent(decoder))
        return STATUS_OK;
    if (settings->rules.pattern != TOKEN_PATTERN_SPACES)
        return is_type(decoder, "ByteLevel") ? STATUS_OK
                                             : refuse(path, "decoder", decoder, "expected ByteLevel");
    const cJSON *strip = cJSON_GetArrayItem(items, 3), *start = member(strip, "start");
    return is_sequence(decoder, "decoders", llama2, 4) && has_string(strip, "content", " ") &&
                   cJSON_IsNumber(start) && start->valueint == 1
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
        return FAIL(STATUS_INVALID, "%s: its model has \"byte_fallback\", but splits text into bytes", path);
    return STATUS_OK;
}

enum status tokenizer_read_settings(const char *path, const cJSON *root, struct token_settings *settings) {
    *settings = (struct token_settings){0};
    TRY(read_normalizer(path, member(root, "normalizer"), settings));
    TRY(read_pre_tokenizer(path, member(root, "pre_tokenizer"), settings));
    TRY(read_post_processor(path, member(root, "post_processor"), settings));
    TRY(check_decoder(path, member(root, "decoder"), settings));
    return read_model(path, member(root, "model"), settings);
}
