// See data/tokenizer_export.h.
#include "data/tokenizer_export.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_internal.h"

#define END_OF_TEXT "<|endoftext|>"

// ---- merges

static enum status refuse_token(const struct tokenizer *tokenizer, int32_t id, const char *what) {
    struct text spelling = {0};
    tokenizer_add_spelling(tokenizer, id, &spelling);
    TRY(text_status(&spelling));
    enum status status = FAIL(STATUS_INVALID,
                              "the tokenizer's token %d (\"%.60s\") %s, so that it has no equal in other "
                              "programs' formats; export without it, with --tokenizer none",
                              id, spelling.data, what);
    text_free(&spelling);
    return status;
}

static enum status derive_merge(const struct tokenizer *tokenizer, int32_t id, struct token_list *parts,
                                struct token_merge *merge) {
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    if (n == strlen(END_OF_TEXT) && memcmp(bytes, END_OF_TEXT, n) == 0)
        return refuse_token(tokenizer, id, "is spelled like end-of-text");
    parts->n = 0;
    TRY(tokenizer_encode_below(tokenizer, bytes, n, id, parts));
    if (parts->n != 2)
        return refuse_token(tokenizer, id, "is not made by one merge of two tokens of lower rank");
    *merge = (struct token_merge){parts->ids[0], parts->ids[1], id};
    return STATUS_OK;
}

enum status tokenizer_derive_merges(const struct tokenizer *tokenizer, struct token_merge **merges, int *n) {
    struct token_list parts = {0};
    enum status status = STATUS_OK;
    *n = 0;
    *merges = malloc((size_t)tokenizer->n_tokens * sizeof **merges);
    if (!*merges)
        return FAIL(STATUS_FAILED, "out of memory for %d merges", tokenizer->n_tokens);
    for (int32_t id = 0; id < tokenizer->n_tokens && status == STATUS_OK; id++)
        if (tokenizer->offsets[id + 1] - tokenizer->offsets[id] > 1)
            status = derive_merge(tokenizer, id, &parts, &(*merges)[(*n)++]);
    token_list_free(&parts);
    if (status != STATUS_OK) {
        free(*merges);
        *merges = NULL;
    }
    return status;
}

// ---- spellings

// Of each byte in GPT-2's alphabet. All its characters have one or two bytes in UTF-8.
struct alphabet {
    char characters[256][4];
    int lengths[256];
};

static void make_alphabet(struct alphabet *alphabet) {
    int code_points[256], order[256];
    token_alphabet(code_points, order);
    for (int byte = 0; byte < 256; byte++)
        alphabet->lengths[byte] =
            (int)utf8proc_encode_char(code_points[byte], (utf8proc_uint8_t *)alphabet->characters[byte]);
}

static void spell(const struct tokenizer *tokenizer, const struct alphabet *alphabet, int32_t id,
                  struct text *out) {
    size_t n;
    const char *bytes = tokenizer_bytes(tokenizer, id, &n);
    if (id == tokenizer_end_of_text(tokenizer))
        text_add_bytes(out, bytes, n);
    for (size_t i = 0; i < n && id != tokenizer_end_of_text(tokenizer); i++) {
        const int byte = (unsigned char)bytes[i];
        text_add_bytes(out, alphabet->characters[byte], (size_t)alphabet->lengths[byte]);
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

// What is written: the tokenizer with its merges, and a string to build each line in.
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
    return writing->word.failed ? "" : writing->word.data;
}

static const char *word_of_merge(struct writing *writing, const struct token_merge *merge) {
    writing->word.length = 0;
    spell(writing->tokenizer, &writing->alphabet, merge->left, &writing->word);
    text_add(&writing->word, " ");
    spell(writing->tokenizer, &writing->alphabet, merge->right, &writing->word);
    return writing->word.failed ? "" : writing->word.data;
}

static void add_vocabulary(struct writing *writing, struct text *out) {
    text_add(out, "{");
    for (int32_t id = 0; id < tokenizer_n_ids(writing->tokenizer); id++) {
        text_add(out, id > 0 ? "," : "");
        json_add_string(out, word_of_token(writing, id));
        text_add(out, ":%d", id);
    }
    text_add(out, "}");
}

static void add_tokenizer_json(struct writing *writing, struct text *out) {
    text_add(out,
             "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":%d,"
             "\"content\":\"" END_OF_TEXT "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
             "\"normalized\":false,\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
             "\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
             "\"post_processor\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false,"
             "\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
             "\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
             "\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":\"\","
             "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":",
             tokenizer_end_of_text(writing->tokenizer));
    add_vocabulary(writing, out);
    text_add(out, ",\"merges\":[");
    for (int i = 0; i < writing->n_merges; i++) {
        text_add(out, i > 0 ? "," : "");
        json_add_string(out, word_of_merge(writing, &writing->merges[i]));
    }
    text_add(out, "]}}\n");
}

static void add_merges_txt(struct writing *writing, struct text *out) {
    text_add(out, "#version: 0.2\n");
    for (int i = 0; i < writing->n_merges; i++)
        text_add(out, "%s\n", word_of_merge(writing, &writing->merges[i]));
}

static enum status write_file(struct writing *writing, const char *folder, const char *name,
                              void (*add)(struct writing *writing, struct text *out)) {
    struct text out = {0};
    char *path = file_path("%s/%s", folder, name);
    enum status status = path ? STATUS_OK : STATUS_FAILED;
    add(writing, &out);
    if (status == STATUS_OK)
        status = text_status(&out);
    if (status == STATUS_OK)
        status = text_status(&writing->word);
    if (status == STATUS_OK)
        status = file_write_all(path, out.data, out.length);
    text_free(&out);
    free(path);
    return status;
}

enum status tokenizer_save_huggingface(const struct tokenizer *tokenizer, const char *folder) {
    struct writing writing = {.tokenizer = tokenizer};
    make_alphabet(&writing.alphabet);
    TRY(tokenizer_derive_merges(tokenizer, &writing.merges, &writing.n_merges));
    enum status status = write_file(&writing, folder, "tokenizer.json", add_tokenizer_json);
    if (status == STATUS_OK)
        status = write_file(&writing, folder, "vocab.json", add_vocabulary);
    if (status == STATUS_OK)
        status = write_file(&writing, folder, "merges.txt", add_merges_txt);
    text_free(&writing.word);
    free(writing.merges);
    return status;
}

// ---- llm.c

enum status tokenizer_save_llmc(const struct tokenizer *tokenizer, const char *path) {
    const int n_ids = tokenizer_n_ids(tokenizer);
    const int32_t header[TOKENIZER_LLMC_HEADER] = {TOKENIZER_LLMC_MAGIC, 2, n_ids,
                                                   tokenizer_end_of_text(tokenizer)};
    struct text out = {0};
    text_add_bytes(&out, header, sizeof header);
    for (int32_t id = 0; id < n_ids; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        const unsigned char length = (unsigned char)n;
        if (n > UINT8_MAX) {
            text_free(&out);
            return FAIL(STATUS_INVALID,
                        "the tokenizer's token %d has %zu bytes, and llm.c's tokenizer file allows %d; "
                        "export without it, with --tokenizer none",
                        id, n, UINT8_MAX);
        }
        text_add_bytes(&out, &length, 1);
        text_add_bytes(&out, bytes, n);
    }
    enum status status = text_status(&out);
    if (status == STATUS_OK)
        status = file_write_all(path, out.data, out.length);
    text_free(&out);
    return status;
}
