// Reads the tokenizer of a GGUF file. The file's keys contain the tokens, the merges (for Llama 2, scores
// instead) and the name of the pattern. A Hugging Face tokenizer.json is built from them and read, so that
// both formats of a tokenizer give exactly the same result.
#include "data/tokenizer/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/gguf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/json.h"
#include "data/tokenizer/tables.h"

#define KEY(name) "tokenizer.ggml." name
#define SPACE     "\xe2\x96\x81" // U+2581

// The values of the file's tokenizer keys.
struct source {
    const struct gguf_file *file;
    const struct gguf_key *tokens, *types, *merges, *scores;
    struct gguf_string *spellings;    // (n)
    struct gguf_string chat_template; // bytes NULL: none
    int n;                            // number of ids, without the unused ones at the end
    // is_of_characters: tokens are merged from characters, not bytes (Llama 2). has_start: bos begins every
    // text.
    bool is_of_characters, has_start;
    int64_t start, end, unknown;     // ids of bos, eos and the unknown token; -1: none
    const char *pattern;             // regular expression that splits text; NULL: GPT-2's
    bool nfc, digits, ignore_merges; // digits: each number character is a pre-token
};

static enum status refuse(const struct source *source, const char *key, const char *why) {
    return FAIL(STATUS_INVALID,
                "%s: its tokenizer cannot be used: the key \"%s\" %s; use the model's tokenizer.json",
                source->file->path, key, why);
}

// ---- reading the keys

static enum status read_kind(struct source *source) {
    static const struct {
        const char *pre, *pattern;
        bool nfc, digits, ignore_merges, has_start;
    } known[] = {{"gpt-2", NULL, false, false, false, false},
                 {"llama-bpe", TOKEN_PATTERN_TEXT_LLAMA3, false, false, true, true},
                 {"qwen2", TOKEN_PATTERN_TEXT_QWEN2, true, false, false, false},
                 {"smollm", NULL, false, true, false, false}};
    struct gguf_string model = {"", 0}, pre = {"", 0};
    TRY(gguf_get_string(source->file, KEY("model"), &model, NULL));
    TRY(gguf_get_string(source->file, KEY("pre"), &pre, NULL));
    source->is_of_characters = gguf_string_is(model, "llama");
    source->has_start = source->is_of_characters;
    if (source->is_of_characters)
        return STATUS_OK;
    if (!gguf_string_is(model, "gpt2"))
        return refuse(source, KEY("model"), "is neither gpt2 nor llama");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (gguf_string_is(pre, known[i].pre)) {
            source->pattern = known[i].pattern;
            source->nfc = known[i].nfc;
            source->digits = known[i].digits;
            source->ignore_merges = known[i].ignore_merges;
            source->has_start = known[i].has_start;
            return STATUS_OK;
        }
    return refuse(source, KEY("pre"), "is none of gpt-2, llama-bpe, qwen2 and smollm");
}

static enum token_type type_of(const struct source *source, int id) {
    return source->types ? (enum token_type)gguf_i32_at(source->types, (uint64_t)id) : TOKEN_NORMAL;
}

static enum status read_tokens(struct source *source) {
    const struct gguf_file *file = source->file;
    TRY(gguf_get_array(file, KEY("tokens"), GGUF_KEY_STRING, &source->tokens));
    TRY(gguf_get_array(file, KEY("token_type"), GGUF_KEY_I32, &source->types));
    TRY(gguf_get_array(file, KEY("merges"), GGUF_KEY_STRING, &source->merges));
    TRY(gguf_get_array(file, KEY("scores"), GGUF_KEY_F32, &source->scores));
    if (!source->tokens || source->tokens->n < 2 || source->tokens->n > TOKENIZER_MOST_TOKENS)
        return refuse(source, KEY("tokens"), "does not list the tokens");
    if (source->types && source->types->n != source->tokens->n)
        return refuse(source, KEY("token_type"), "has another length than the tokens");
    if (source->is_of_characters && (!source->scores || source->scores->n != source->tokens->n))
        return refuse(source, KEY("scores"), "is missing, or has another length than the tokens");
    if (!source->is_of_characters && !source->merges)
        return refuse(source, KEY("merges"), "is missing");
    source->spellings = allocate((size_t)source->tokens->n, sizeof *source->spellings);
    const char *at = source->tokens->data;
    for (int id = 0; id < (int)source->tokens->n; id++) {
        source->spellings[id] = gguf_next_string(&at);
        if (memchr(source->spellings[id].bytes, '\0', source->spellings[id].n))
            return refuse(source, KEY("tokens"), "has a token with a zero byte");
    }
    source->n = (int)source->tokens->n;
    while (source->n > 0 && (int)type_of(source, source->n - 1) == TOKEN_UNUSED)
        source->n--;
    return STATUS_OK;
}

static enum status read_id(const struct source *source, const char *key, int64_t *id) {
    *id = -1;
    TRY(gguf_get_integer(source->file, key, -1, UINT32_MAX, id, NULL));
    if (*id == UINT32_MAX) // llama.cpp's value for none
        *id = -1;
    return *id < source->n ? STATUS_OK : refuse(source, key, "is beyond the last token");
}

static enum status read_source(struct source *source) {
    bool adds_space = true, says_nfc;
    TRY(read_kind(source));
    TRY(read_tokens(source));
    TRY(gguf_get_string(source->file, GGUF_CHAT_TEMPLATE, &source->chat_template, NULL));
    TRY(gguf_get_bool(source->file, GGUF_NFC, &source->nfc, &says_nfc));
    if (source->nfc && !says_nfc)
        log_info("%s: text is normalized to NFC, as by Qwen's tokenizers; the file has no key for this",
                 source->file->path);
    TRY(gguf_get_bool(source->file, GGUF_IGNORE_MERGES, &source->ignore_merges, NULL));
    gguf_warn_of_unknown(source->file, KEY(""),
                         "model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id "
                         "eom_token_id unknown_token_id add_bos_token add_space_prefix token_type_count "
                         "padding_token_id seperator_token_id cls_token_id mask_token_id prefix_token_id "
                         "suffix_token_id middle_token_id fim_pre_token_id fim_suf_token_id fim_mid_token_id "
                         "fim_pad_token_id fim_rep_token_id fim_sep_token_id");
    TRY(read_id(source, KEY("bos_token_id"), &source->start));
    TRY(read_id(source, KEY("eos_token_id"), &source->end));
    TRY(read_id(source, KEY("unknown_token_id"), &source->unknown));
    TRY(gguf_get_bool(source->file, KEY("add_bos_token"), &source->has_start, NULL));
    TRY(gguf_get_bool(source->file, KEY("add_space_prefix"), &adds_space, NULL));
    if (source->is_of_characters && !adds_space)
        return refuse(source, KEY("add_space_prefix"), "is false");
    if (source->has_start && source->start < 0)
        return refuse(source, KEY("bos_token_id"), "is missing");
    return STATUS_OK;
}

// ---- building a tokenizer.json

static void add_spelling(struct text *out, struct gguf_string spelling) {
    char *copy = copy_bytes(spelling.bytes, spelling.n);
    json_add_string(out, copy);
    free(copy);
}

// True if a tokenizer.json lists the token under "added_tokens": all but normal tokens and byte tokens.
static bool is_added(const struct source *source, int id) {
    const enum token_type type = type_of(source, id);
    return type != TOKEN_NORMAL && type != TOKEN_BYTE;
}

static void add_added(const struct source *source, struct text *out) {
    bool is_first = true;
    text_add(out, "\"added_tokens\":[");
    for (int id = 0; id < source->n; id++) {
        if (!is_added(source, id))
            continue;
        text_add(out, "%s{\"id\":%d,\"content\":", is_first ? "" : ",", id);
        add_spelling(out, source->spellings[id]);
        text_add(out, TOKENIZER_JSON_ADDED, type_of(source, id) == TOKEN_USER ? "false" : "true");
        is_first = false;
    }
    text_add(out, "]");
}

static void add_byte_level(struct text *out, bool use_regex) {
    text_add(out,
             "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}",
             use_regex ? "true" : "false");
}

// Adds the rules for splitting text into pre-tokens, and for turning tokens into text.
static void add_rules(const struct source *source, struct text *out) {
    if (source->is_of_characters) {
        text_add(out,
                 ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                 "\"" SPACE "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE
                 "\"}]},\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                 "\"Replace\",\"pattern\":{\"String\":\"" SPACE
                 "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                 "\"content\":\" \",\"start\":1,\"stop\":0}]}");
        return;
    }
    text_add(out, ",\"normalizer\":%s,\"pre_tokenizer\":", source->nfc ? "{\"type\":\"NFC\"}" : "null");
    if (source->pattern || source->digits)
        text_add(out, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (source->pattern) {
        text_add(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        json_add_string(out, source->pattern);
        text_add(out, "},\"behavior\":\"Isolated\",\"invert\":false},");
    } else if (source->digits) {
        text_add(out, "{\"type\":\"Digits\",\"individual_digits\":true},");
    }
    add_byte_level(out, !source->pattern);
    text_add(out, source->pattern || source->digits ? "]},\"decoder\":" : ",\"decoder\":");
    add_byte_level(out, true);
}

static void add_start(const struct source *source, struct text *out) {
    struct text start = {0};
    if (!source->has_start) {
        text_add(out, ",\"post_processor\":null");
        return;
    }
    add_spelling(&start, source->spellings[source->start]);
    const char *name = start.data;
    text_add(out,
             ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":%s,"
             "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"SpecialToken\":"
             "{\"id\":%s,\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":"
             "{\"id\":%s,\"type_id\":1}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":"
             "{%s:{\"id\":%s,\"ids\":[%d],\"tokens\":[%s]}}}",
             name, name, name, name, name, (int)source->start, name);
    text_free(&start);
}

static void add_vocabulary(const struct source *source, struct text *out) {
    bool is_first = true;
    text_add(out, "\"vocab\":{");
    for (int id = 0; id < source->n; id++) {
        // In a tokenizer.json of Llama 2's kind, the vocabulary also lists the added tokens; in others it
        // does not.
        if (is_added(source, id) && !source->is_of_characters)
            continue;
        text_add(out, is_first ? "" : ",");
        add_spelling(out, source->spellings[id]);
        text_add(out, ":%d", id);
        is_first = false;
    }
    text_add(out, "}");
}

// ---- merges of tokens with scores

struct named_id {
    struct gguf_string spelling;
    int id;
};
struct scored_merge {
    int left, right, id;
    float score;
};

static int compare_spellings(const void *a, const void *b) {
    return gguf_string_compare(((const struct named_id *)a)->spelling,
                               ((const struct named_id *)b)->spelling);
}

static int compare_merges(const void *a, const void *b) {
    const struct scored_merge *x = a, *y = b;
    return x->score != y->score   ? (x->score > y->score ? -1 : 1)
           : x->id != y->id       ? (x->id < y->id ? -1 : 1)
           : x->left != y->left   ? (x->left < y->left ? -1 : 1)
           : x->right != y->right ? (x->right < y->right ? -1 : 1)
                                  : 0;
}

static int find_id(const struct named_id *names, int n, const char *bytes, size_t length) {
    const struct named_id wanted = {.spelling = {bytes, length}};
    const struct named_id *found = bsearch(&wanted, names, (size_t)n, sizeof *names, compare_spellings);
    return found ? found->id : -1;
}

// Returns the merges, highest score first, as converters to tokenizer.json list them. Any two normal tokens
// whose concatenation is a normal token are a merge. Its score is that token's: SentencePiece merges the pair
// whose result has the highest score. The caller frees the list.
static struct scored_merge *list_merges(const struct source *source, int *n) {
    struct named_id *names = allocate((size_t)source->n, sizeof *names);
    size_t most = 1, n_names = 0;
    *n = 0;
    for (int id = 0; id < source->n; id++)
        if (type_of(source, id) == TOKEN_NORMAL) {
            names[n_names++] = (struct named_id){source->spellings[id], id};
            most += source->spellings[id].n; // a token of n bytes can be split in n - 1 places
        }
    struct scored_merge *merges = allocate(most, sizeof *merges);
    qsort(names, n_names, sizeof *names, compare_spellings);
    for (size_t i = 0; i < n_names; i++)
        for (size_t cut = 1; cut < names[i].spelling.n; cut++) {
            const struct gguf_string whole = names[i].spelling;
            const int left = find_id(names, (int)n_names, whole.bytes, cut);
            const int right = left < 0 ? -1 : find_id(names, (int)n_names, whole.bytes + cut, whole.n - cut);
            if (right >= 0)
                merges[(*n)++] = (struct scored_merge){left, right, names[i].id,
                                                       gguf_f32_at(source->scores, (uint64_t)names[i].id)};
        }
    qsort(merges, (size_t)*n, sizeof *merges, compare_merges);
    free(names);
    return merges;
}

static void add_merge(struct text *out, bool is_first, struct gguf_string left, struct gguf_string right) {
    text_add(out, is_first ? "[" : ",[");
    add_spelling(out, left);
    text_add(out, ",");
    add_spelling(out, right);
    text_add(out, "]");
}

static void add_merges(const struct source *source, struct text *out) {
    int n = 0;
    struct scored_merge *merges = source->is_of_characters ? list_merges(source, &n) : NULL;
    text_add(out, ",\"merges\":[");
    for (int i = 0; i < n; i++)
        add_merge(out, i == 0, source->spellings[merges[i].left], source->spellings[merges[i].right]);
    free(merges);
    const char *at = source->is_of_characters ? NULL : source->merges->data;
    for (uint64_t i = 0; at && i < source->merges->n; i++) {
        const struct gguf_string merge = gguf_next_string(&at);
        text_add(out, i > 0 ? "," : "");
        add_spelling(out, merge);
    }
    text_add(out, "]");
}

static void make_json(const struct source *source, struct text *out) {
    bool has_bytes = false;
    for (int id = 0; id < source->n && !has_bytes; id++)
        has_bytes = type_of(source, id) == TOKEN_BYTE;
    text_add(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
    add_added(source, out);
    add_rules(source, out);
    add_start(source, out);
    text_add(out, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (source->is_of_characters && source->unknown >= 0)
        add_spelling(out, source->spellings[source->unknown]);
    else
        text_add(out, "null");
    text_add(out,
             ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":%s,"
             "\"byte_fallback\":%s,\"ignore_merges\":%s,",
             source->is_of_characters ? "true" : "false", has_bytes ? "true" : "false",
             source->ignore_merges ? "true" : "false");
    add_vocabulary(source, out);
    add_merges(source, out);
    text_add(out, "}}\n");
}

// ---- reading the tokenizer

// Reads the ids that end generation in llama.cpp.
static enum status read_ends(const struct source *source, struct token_ends *ends) {
    static const char *const keys[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t id;
        TRY(read_id(source, keys[i], &id));
        if (id >= 0)
            ends->ids[ends->n++] = (int32_t)id;
    }
    return STATUS_OK;
}

enum status tokenizer_read_gguf(const char *path, struct tokenizer **out) {
    struct gguf_file file;
    struct text json = {0};
    struct token_ends ends = {.n = 0};
    *out = NULL;
    TRY(gguf_open(&file, path));
    struct source source = {.file = &file};
    enum status status = read_source(&source);
    if (status == STATUS_OK)
        status = read_ends(&source, &ends);
    if (status == STATUS_OK) {
        make_json(&source, &json);
        status = tokenizer_read_json(path, json.data, json.length, &ends, out);
    }
    if (status == STATUS_OK && source.chat_template.bytes) {
        struct text template = {0};
        add_spelling(&template, source.chat_template);
        (*out)->chat_template = template.data;
    }
    if (status == STATUS_OK && (*out)->is_plain) { // exports are then written from the tokens alone
        free((*out)->json);
        (*out)->json = NULL;
    }
    text_free(&json);
    free(source.spellings);
    gguf_close(&file);
    return status;
}

bool tokenizer_is_in_gguf(const char *path) {
    struct gguf_file file;
    struct gguf_string model = {"none", 4};
    if (gguf_open(&file, path) != STATUS_OK ||
        gguf_get_string(&file, KEY("model"), &model, NULL) != STATUS_OK)
        status_clear();
    const bool has_one = !gguf_string_is(model, "none") && !gguf_string_is(model, "no_vocab");
    gguf_close(&file);
    return has_one;
}
