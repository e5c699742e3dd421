// Converts tokenizers to the formats of Hugging Face and GGUF.
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

// ---- deriving the merges

static enum status refuse_token(const struct tokenizer *tokenizer, int32_t id) {
    struct text spelling = {0};
    tokenizer_add_spelling(tokenizer, id, &spelling);
    enum status status =
        FAIL(STATUS_INVALID,
             "the tokenizer's token %d (\"%.60s\") is not made by one merge of two tokens of "
             "lower rank, so other programs' formats cannot express it; export without the "
             "tokenizer: --tokenizer none",
             id, spelling.data);
    text_free(&spelling);
    return status;
}

static enum status derive_merge(const struct tokenizer *tokenizer, int32_t id, struct token_list *parts,
                                struct token_merge *merge) {
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    parts->n = 0;
    TRY(tokenizer_encode_below(tokenizer, bytes, n, id, parts));
    if (parts->n != 2)
        return refuse_token(tokenizer, id);
    *merge = (struct token_merge){parts->ids[0], parts->ids[1], id};
    return STATUS_OK;
}

// Derives one merge for each token of more than one byte.
static enum status derive_one_each(const struct tokenizer *tokenizer, struct token_merge *merges, int *n) {
    struct token_list parts = {0};
    enum status status = STATUS_OK;
    for (int32_t id = 0; id < tokenizer->end_of_text && status == STATUS_OK; id++)
        if (tokenizer->offsets[id + 1] - tokenizer->offsets[id] > 1)
            status = derive_merge(tokenizer, id, &parts, &merges[(*n)++]);
    token_list_free(&parts);
    return status;
}

// Compares pairs by rank, then by the ids of their tokens.
static int compare_ranked(const void *a, const void *b) {
    const struct pair_slot *x = a, *y = b;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : x->pair < y->pair ? -1 : x->pair > y->pair;
}

static void list_pairs(const struct tokenizer *tokenizer, struct token_merge *merges, size_t n_pairs) {
    struct pair_slot *sorted = allocate(n_pairs, sizeof *sorted);
    size_t n = 0;
    for (size_t slot = 0; slot < tokenizer->pairs.n_slots; slot++)
        if (tokenizer->pairs.slots[slot].pair != EMPTY_KEY)
            sorted[n++] = tokenizer->pairs.slots[slot];
    qsort(sorted, n, sizeof *sorted, compare_ranked);
    for (size_t i = 0; i < n; i++) {
        const int32_t rank = sorted[i].rank;
        merges[i] =
            (struct token_merge){(int32_t)(sorted[i].pair >> 32), (int32_t)(uint32_t)sorted[i].pair,
                                 tokenizer->pairs.merge_ids ? tokenizer->pairs.merge_ids[rank] : rank};
    }
    free(sorted);
}

enum status tokenizer_derive_merges(const struct tokenizer *tokenizer, struct token_merge **merges, int *n) {
    size_t n_pairs = 0, n_ids = (size_t)tokenizer->n_ids;
    *n = 0;
    for (size_t slot = 0; slot < tokenizer->pairs.n_slots; slot++)
        n_pairs += tokenizer->pairs.slots[slot].pair != EMPTY_KEY;
    *merges = allocate(n_pairs > n_ids ? n_pairs : n_ids, sizeof **merges);
    if (!tokenizer->is_plain) {
        list_pairs(tokenizer, *merges, n_pairs);
        *n = (int)n_pairs;
        return STATUS_OK;
    }
    const enum status status = derive_one_each(tokenizer, *merges, n);
    if (status != STATUS_OK) {
        free(*merges);
        *merges = NULL;
    }
    return status;
}

// ---- spelling tokens

// The character of each byte in GPT-2's alphabet, as UTF-8 of one or two bytes.
struct alphabet {
    char characters[256][4];
    int lengths[256];
};

static void make_alphabet(struct alphabet *alphabet) {
    struct token_alphabet code;
    token_alphabet_init(&code);
    for (int byte = 0; byte < 256; byte++)
        alphabet->lengths[byte] =
            (int)utf8proc_encode_char(code.code_points[byte], (utf8proc_uint8_t *)alphabet->characters[byte]);
}

static bool is_of_characters(const struct tokenizer *tokenizer) {
    return tokenizer_is_of_characters(tokenizer->rules.pattern);
}

static void spell(const struct tokenizer *tokenizer, const struct alphabet *alphabet, int32_t id,
                  struct text *out) {
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    const enum token_type type = tokenizer_type(tokenizer, id);
    if (type == TOKEN_BYTE)
        text_add(out, "<0x%02X>", (unsigned char)bytes[0]);
    else if (type != TOKEN_NORMAL)
        text_add_bytes(out, bytes, n);
    for (size_t i = 0; i < n && type == TOKEN_NORMAL; i++) {
        const int byte = (unsigned char)bytes[i];
        if (!is_of_characters(tokenizer))
            text_add_bytes(out, alphabet->characters[byte], (size_t)alphabet->lengths[byte]);
        else if (byte == ' ')
            text_add(out, "\xe2\x96\x81");
        else
            text_add_bytes(out, bytes + i, 1);
    }
}

void tokenizer_add_spelling(const struct tokenizer *tokenizer, int32_t id, struct text *out) {
    struct alphabet alphabet;
    make_alphabet(&alphabet);
    spell(tokenizer, &alphabet, id, out);
}

void tokenizer_add_merge(const struct tokenizer *tokenizer, const struct token_merge *merge,
                         struct text *out) {
    struct alphabet alphabet;
    make_alphabet(&alphabet);
    spell(tokenizer, &alphabet, merge->left, out);
    text_add(out, " ");
    spell(tokenizer, &alphabet, merge->right, out);
}

// ---- Hugging Face

// The state of writing a file: the tokenizer with its merges, and a buffer for one spelling.
struct writing {
    const struct tokenizer *tokenizer;
    struct alphabet alphabet;
    struct token_merge *merges;
    int n_merges;
    struct text word;
};

static const char *word_of_token(struct writing *writing, int32_t id) {
    writing->word.length = 0;
    spell(writing->tokenizer, &writing->alphabet, id, &writing->word);
    return writing->word.data;
}

static const char *word_of_merge(struct writing *writing, const struct token_merge *merge) {
    writing->word.length = 0;
    spell(writing->tokenizer, &writing->alphabet, merge->left, &writing->word);
    text_add(&writing->word, " ");
    spell(writing->tokenizer, &writing->alphabet, merge->right, &writing->word);
    return writing->word.data;
}

static void add_vocabulary(struct writing *writing, struct text *out) {
    const struct tokenizer *tokenizer = writing->tokenizer;
    bool is_first = true;
    text_add(out, "{");
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        if (!tokenizer->is_plain && tokenizer->types[id] != TOKEN_NORMAL)
            continue; // add_added_tokens writes these
        text_add(out, is_first ? "" : ",");
        json_add_string(out, word_of_token(writing, id));
        text_add(out, ":%d", id);
        is_first = false;
    }
    text_add(out, "}");
}

static void add_added_tokens(struct writing *writing, struct text *out) {
    const struct tokenizer *tokenizer = writing->tokenizer;
    bool is_first = true;
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        if (tokenizer->types[id] == TOKEN_NORMAL)
            continue;
        text_add(out, "%s{\"id\":%d,\"content\":", is_first ? "" : ",", id);
        json_add_string(out, word_of_token(writing, id));
        text_add(out, TOKENIZER_JSON_ADDED, tokenizer->types[id] == TOKEN_USER ? "false" : "true");
        is_first = false;
    }
}

static void add_pre_tokenizer(const struct tokenizer *tokenizer, struct text *out) {
    static const char *const patterns[] = {[TOKEN_PATTERN_LLAMA3] = TOKEN_PATTERN_TEXT_LLAMA3,
                                           [TOKEN_PATTERN_QWEN2] = TOKEN_PATTERN_TEXT_QWEN2,
                                           [TOKEN_PATTERN_CL100K] = TOKEN_PATTERN_TEXT_CL100K,
                                           [TOKEN_PATTERN_O200K] = TOKEN_PATTERN_TEXT_O200K};
    const char *pattern = patterns[tokenizer->rules.pattern];
    if (pattern) {
        text_add(out,
                 "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        json_add_string(out, pattern);
        text_add(out, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    text_add(out,
             "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}%s",
             pattern ? "false" : "true", pattern ? "]}" : "");
}

#define BYTE_LEVEL                                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,\"use_regex\":true}"
#define SEQUENCE(name, type) "{\"Sequence\":{\"id\":\"" name "\",\"type_id\":" type "}}"

// Adds a post-processor. If every text begins with a token (bos), its template adds that token.
static void add_post_processor(struct writing *writing, struct text *out) {
    const struct tokenizer *tokenizer = writing->tokenizer;
    if (tokenizer->start < 0) {
        text_add(out, BYTE_LEVEL);
        return;
    }
    struct text start = {0};
    json_add_string(&start, word_of_token(writing, tokenizer->start));
    const char *name = start.data;
    text_add(out,
             "{\"type\":\"Sequence\",\"processors\":[" BYTE_LEVEL
             ",{\"type\":\"TemplateProcessing\",\"single\":"
             "[{\"SpecialToken\":{\"id\":%s,\"type_id\":0}}," SEQUENCE(
                 "A", "0") "],\"pair\":[{\"SpecialToken\":"
                           "{\"id\":%s,\"type_id\":0}}," SEQUENCE(
                               "A", "0") ",{\"SpecialToken\":{\"id\":%s,\"type_id\":1}}"
                                         "," SEQUENCE("B", "1") "],\"special_tokens\":{%"
                                                                "s:{\"id\":%s,\"ids\":[%"
                                                                "d],\"tokens\":[%s]}}}]}",
             name, name, name, name, name, tokenizer->start, name);
    text_free(&start);
}

static void add_tokenizer_json(struct writing *writing, struct text *out) {
    const struct tokenizer *tokenizer = writing->tokenizer;
    text_add(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    add_added_tokens(writing, out);
    text_add(out,
             "],\"normalizer\":%s,\"pre_tokenizer\":", tokenizer->rules.nfc ? "{\"type\":\"NFC\"}" : "null");
    add_pre_tokenizer(tokenizer, out);
    text_add(out, ",\"post_processor\":");
    add_post_processor(writing, out);
    text_add(out, ",\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                  "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                  "\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\","
                  "\"fuse_unk\":false,\"byte_fallback\":false,");
    text_add(out, tokenizer->ignore_merges ? "\"ignore_merges\":true,\"vocab\":" : "\"vocab\":");
    add_vocabulary(writing, out);
    text_add(out, ",\"merges\":[");
    for (int i = 0; i < writing->n_merges; i++) {
        text_add(out, i > 0 ? "," : "");
        json_add_string(out, word_of_merge(writing, &writing->merges[i]));
    }
    text_add(out, "]}}\n");
}

enum status tokenizer_add_json(const struct tokenizer *tokenizer, struct text *out) {
    struct writing writing = {.tokenizer = tokenizer};
    if (tokenizer->json) {
        text_add_bytes(out, tokenizer->json, strlen(tokenizer->json));
        return STATUS_OK;
    }
    make_alphabet(&writing.alphabet);
    TRY(tokenizer_derive_merges(tokenizer, &writing.merges, &writing.n_merges));
    add_tokenizer_json(&writing, out);
    text_free(&writing.word);
    free(writing.merges);
    return STATUS_OK;
}

// Writes the text to a file in the folder, and frees the text.
static enum status write_file(struct text *out, const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    const enum status status = file_write_all(path, out->data, out->length);
    text_free(out);
    free(path);
    return status;
}

static enum status write_vocab_files(struct writing *writing, const char *folder) {
    struct text out = {0};
    add_vocabulary(writing, &out);
    TRY(write_file(&out, folder, "vocab.json"));
    text_add(&out, "#version: 0.2\n");
    for (int i = 0; i < writing->n_merges; i++)
        text_add(&out, "%s\n", word_of_merge(writing, &writing->merges[i]));
    return write_file(&out, folder, "merges.txt");
}

bool tokenizer_has_vocab_files(const struct tokenizer *tokenizer) {
    return tokenizer->is_plain;
}

enum status tokenizer_save_huggingface(const struct tokenizer *tokenizer, const char *folder) {
    struct writing writing = {.tokenizer = tokenizer};
    struct text json = {0};
    TRY(tokenizer_add_json(tokenizer, &json));
    TRY(write_file(&json, folder, "tokenizer.json"));
    if (!tokenizer_has_vocab_files(tokenizer))
        return STATUS_OK;
    make_alphabet(&writing.alphabet);
    TRY(tokenizer_derive_merges(tokenizer, &writing.merges, &writing.n_merges));
    const enum status status = write_vocab_files(&writing, folder);
    text_free(&writing.word);
    free(writing.merges);
    return status;
}

// ---- transformers

// Returns the name of the tokenizer class in transformers. Since transformers 5, a model's class builds its
// own rules, and takes only tokens, merges and the post-processor from tokenizer.json. So such a class is
// named only if its rules equal the file's; otherwise the general PreTrainedTokenizerFast is.
// (LlamaTokenizer's rules never equal them: it adds no space to a text that begins with one.)
static const char *class_name(const struct tokenizer *tokenizer) {
    const bool is_qwen2 = tokenizer->rules.pattern == TOKEN_PATTERN_QWEN2 && tokenizer->rules.nfc &&
                          !tokenizer->ignore_merges && tokenizer->unknown < 0 &&
                          tokenizer_find_special(tokenizer, END_OF_TEXT) >= 0; // otherwise the class adds it
    return tokenizer->is_plain ? "GPT2Tokenizer" : is_qwen2 ? "Qwen2Tokenizer" : "PreTrainedTokenizerFast";
}

static void add_named(const struct tokenizer *tokenizer, const char *key, int32_t id, struct text *out) {
    struct text name = {0};
    tokenizer_add_spelling(tokenizer, id, &name);
    text_add(out, "  \"%s\": ", key);
    json_add_string(out, name.data);
    text_free(&name);
}

// Adds bos, eos and unk, one per line. If the tokenizer works like GPT-2's, all three are end-of-text.
static void add_special(const struct tokenizer *tokenizer, struct text *out) {
    const int32_t unknown = tokenizer->is_plain ? tokenizer->end_of_text : tokenizer->unknown;
    int32_t ends[TOKENIZER_MOST_ENDS];
    const int n = tokenizer_ends(tokenizer, ends);
    int end = 0;
    // A normal token must not be eos_token: transformers would make it a special token.
    while (end < n - 1 && tokenizer->types[ends[end]] == TOKEN_NORMAL)
        end++;
    if (tokenizer->is_plain || tokenizer->start >= 0) {
        add_named(tokenizer, "bos_token", tokenizer_document_start(tokenizer), out);
        text_add(out, ",\n");
    }
    add_named(tokenizer, "eos_token", ends[end], out);
    if (unknown >= 0) {
        text_add(out, ",\n");
        add_named(tokenizer, "unk_token", unknown, out);
    }
}

void tokenizer_add_config(const struct tokenizer *tokenizer, const char *model_type, int n_positions,
                          struct text *out) {
    const char *class = class_name(tokenizer);
    text_add(out, "{\n  \"tokenizer_class\": \"%s\",\n", class);
    // In transformers 5, AutoTokenizer uses Qwen2Tokenizer for every model of this type, unless the file
    // has an auto_map. An auto_map can name custom code; this one names only the class, so no custom code
    // is run.
    if (strcmp(model_type, "qwen2") == 0 && strcmp(class, "Qwen2Tokenizer") != 0)
        text_add(out, "  \"auto_map\": {\"AutoTokenizer\": [\"%s\", \"%s\"]},\n", class, class);
    if (!is_of_characters(tokenizer))
        text_add(out, "  \"add_prefix_space\": false,\n");
    if (!tokenizer->is_plain) // transformers' GPT-2 class has these names by default
        text_add(out, "  \"model_input_names\": [\"input_ids\", \"attention_mask\"],\n");
    add_special(tokenizer, out);
    if (tokenizer->chat_template)
        text_add(out, ",\n  \"chat_template\": %s", tokenizer->chat_template);
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
    return is_of_characters(tokenizer) ? "llama" : "gpt2";
}

const char *tokenizer_gguf_pre(const struct tokenizer *tokenizer) {
    switch (tokenizer->rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
        return "llama-bpe";
    case TOKEN_PATTERN_QWEN2:
        return "qwen2";
    case TOKEN_PATTERN_SMOLLM:
        return "smollm";
    case TOKEN_PATTERN_CL100K:
        return "cl100k_base";
    case TOKEN_PATTERN_O200K:
        return "o200k_base";
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return "default";
    default:
        return "gpt-2";
    }
}

// True if the merges can build every token from its bytes.
static bool has_all_merges(const struct tokenizer *tokenizer) {
    struct token_list list = {0};
    bool all = true;
    for (int32_t id = 0; id < tokenizer->n_ids && all; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        list.n = 0;
        if (tokenizer->types[id] != TOKEN_NORMAL)
            continue;
        if (tokenizer_encode_below(tokenizer, bytes, n, INT32_MAX, &list) != STATUS_OK)
            status_clear();
        all = list.n == 1 && list.ids[0] == id;
    }
    token_list_free(&list);
    return all;
}

// True if every pair of tokens that forms a third is a merge. The ranks of the merges are not checked.
static bool merges_all_pairs(const struct tokenizer *tokenizer) {
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        for (size_t cut = 1; tokenizer->types[id] == TOKEN_NORMAL && cut < n; cut++) {
            const int32_t left = tokenizer_find(tokenizer, bytes, cut),
                          right = left < 0 ? -1 : tokenizer_find(tokenizer, bytes + cut, n - cut);
            if (right >= 0 && tokenizer_find_pair(tokenizer, left, right) < 0)
                return false;
        }
    }
    return true;
}

void tokenizer_add_gguf_rules(const struct tokenizer *tokenizer, struct gguf_keys *keys) {
    const enum token_pattern pattern = tokenizer->rules.pattern;
    const bool nfc = tokenizer->rules.nfc, ignores = tokenizer->ignore_merges;
    const bool is_as_named = ignores == (pattern == TOKEN_PATTERN_LLAMA3) || has_all_merges(tokenizer);
    if (nfc != (pattern == TOKEN_PATTERN_QWEN2))
        gguf_add_bool(keys, GGUF_NFC, nfc);
    if (!is_as_named)
        gguf_add_bool(keys, GGUF_IGNORE_MERGES, ignores);
    const char *what = nfc ? "it does not normalize text to NFC"
                       : is_of_characters(tokenizer) && !merges_all_pairs(tokenizer)
                           ? "it merges any two tokens that form a third, and this tokenizer does not"
                       : !is_as_named ? ignores ? "it does not find tokens that no merge makes"
                                                : "it finds tokens that no merge makes"
                                      : NULL;
    if (what)
        log_warning("llama.cpp will give other ids to some texts than this program: %s", what);
}

enum status tokenizer_scores(const struct tokenizer *tokenizer, float *scores) {
    struct token_merge *merges;
    int n, rank = 0;
    if (tokenizer->fallback_ids[0] < 0)
        return FAIL(STATUS_INVALID, "the tokenizer has no tokens for bytes (<0x00> to <0xFF>), without which "
                                    "llama.cpp stops at a character that has no token; export with --to hf");
    TRY(tokenizer_derive_merges(tokenizer, &merges, &n));
    bool *is_made = allocate((size_t)tokenizer->n_ids, sizeof *is_made);
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
