// Reads tokenizer files: tiktoken's (one line per token: base64 of its bytes, and its rank) and GPT-2's
// vocab.bpe (one line per merge, in an alphabet that maps every byte to a printable character). json.c reads
// Hugging Face's files, gguf.c GGUF's.
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/file_kind.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/encode.h"
#include "data/tokenizer/export.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/json.h"
#include "data/tokenizer/tables.h"
#include "data/tokenizer/tokenizer.h"

// ---- the tiktoken files of Llama 3 (tokenizer.model: 128,000 tokens), Qwen (qwen.tiktoken: 151,643) and
// OpenAI (cl100k_base: 100,256; o200k_base: 199,998). They hold tokens only; pattern, normalization and
// control tokens are in the programs that the models came with: https://github.com/meta-llama/llama-models
// (models/llama3/tokenizer.py), and tokenization_qwen.py of https://huggingface.co/Qwen/Qwen-7B. Qwen2's
// tokenizer.json names the same first three control tokens. OpenAI's patterns and control tokens are in
// tiktoken_ext/openai_public.py of https://github.com/openai/tiktoken.

enum family { FAMILY_NONE, FAMILY_LLAMA3, FAMILY_QWEN, FAMILY_CL100K, FAMILY_O200K };

static void add_control(struct token_table *tokens, const char *name) {
    token_table_add(tokens, name, strlen(name), TOKEN_CONTROL, 0);
}

// Adds control tokens "<prefix><number><suffix>", for the numbers from `first` to end - 1.
static void add_numbered(struct token_table *tokens, const char *prefix, int first, int end,
                         const char *suffix) {
    for (int i = first; i < end; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%d%s", prefix, i, suffix);
        add_control(tokens, name);
    }
}

// Adds the 256 control tokens of Llama 3.1 and later. In Llama 3, some reserved tokens have other ids.
static void add_llama3(struct token_table *tokens) {
    static const char *const names[] = {"<|begin_of_text|>",
                                        "<|end_of_text|>",
                                        "<|reserved_special_token_0|>",
                                        "<|reserved_special_token_1|>",
                                        "<|finetune_right_pad_id|>",
                                        "<|step_id|>",
                                        "<|start_header_id|>",
                                        "<|end_header_id|>",
                                        "<|eom_id|>",
                                        "<|eot_id|>",
                                        "<|python_tag|>"};
    enum { N_NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < N_NAMES; i++)
        add_control(tokens, names[i]);
    add_numbered(tokens, "<|reserved_special_token_", 2, 256 - N_NAMES + 2, "|>");
}

static void add_qwen(struct token_table *tokens) {
    add_control(tokens, END_OF_TEXT);
    add_control(tokens, "<|im_start|>");
    add_control(tokens, "<|im_end|>");
    add_numbered(tokens, "<|extra_", 0, 205, "|>");
}

// Adds the 21 ids that follow the ranks in OpenAI's encodings. N counts these ids from 0: one that has no
// token there is named <|unused_N|>.
//   has_middle   true: the encoding has the three tokens for filling in the middle of a text
static void add_openai(struct token_table *tokens, bool has_middle) {
    static const char *const middle[] = {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"};
    for (int i = 0; i <= 20; i++) {
        const char *name = i == 1                           ? END_OF_TEXT
                           : i == 20                        ? "<|endofprompt|>"
                           : has_middle && i >= 2 && i <= 4 ? middle[i - 2]
                                                            : NULL;
        if (name)
            add_control(tokens, name);
        else
            add_numbered(tokens, "<|unused_", i, i + 1, "|>");
    }
}

// Refuses a file named tokenizer.model, as Llama 3's tiktoken file is, if the config.json beside it names
// another model: files of some other models have the same name.
static enum status check_model_type(const char *path) {
    const char *slash = strrchr(path, '/');
    cJSON *root = tokenizer_read_beside(path, "config.json");
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "model_type"));
    const enum status status =
        !type || strncmp(type, "llama", 5) == 0 || strncmp(type, "mllama", 6) == 0
            ? STATUS_OK
            : FAIL(STATUS_INVALID,
                   "%s has the name of Llama 3's tokenizer, but %.*sconfig.json names a model of type %.60s; "
                   "use its tokenizer.json",
                   path, slash ? (int)(slash - path) + 1 : 0, path, type);
    cJSON_Delete(root);
    return status;
}

// Returns the family of a tiktoken file, by its published name. OpenAI's are also recognized by their
// number of ranks, because tiktoken's cache gives files other names.
static enum family find_family(const char *path, int n_ranks) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcmp(name, "tokenizer.model") == 0                         ? FAMILY_LLAMA3
           : strcmp(name, "qwen.tiktoken") == 0                         ? FAMILY_QWEN
           : strncmp(name, "cl100k_base", 11) == 0 || n_ranks == 100256 ? FAMILY_CL100K
           : strncmp(name, "o200k_base", 10) == 0 || n_ranks == 199998  ? FAMILY_O200K
                                                                        : FAMILY_NONE;
}

// Checks that a file was made with GPT-2's pattern, as GPT-2's own and this program's files are. If this
// pattern would split one of its ASCII tokens, refuses the file: it belongs to another encoding.
static enum status check_pattern(const char *path, const struct token_table *tokens) {
    for (int id = 0; id < tokens->n; id++) {
        const char *token = tokens->bytes.data + tokens->offsets[id];
        const size_t n = tokens->offsets[id + 1] - tokens->offsets[id];
        size_t ascii = 0;
        while (ascii < n && (unsigned char)token[ascii] < 0x80)
            ascii++;
        const bool is_part =
            n == 2 && token[0] == '\'' && strchr("lrv", token[1]); // 'l, 'r, 'v: part of 'll, 're, 've
        if (ascii == n && n > 1 && !is_part && tokenizer_next_pretoken((struct token_rules){0}, token, n) < n)
            return FAIL(
                STATUS_INVALID,
                "%s: its token %d, \"%.*s\", is not made by GPT-2's pattern, so the file belongs to another "
                "encoding, whose pattern is not in the file. Use a tokenizer.json, which has the pattern; or "
                "give the file its published name: cl100k_base.tiktoken, o200k_base.tiktoken, qwen.tiktoken, "
                "or tokenizer.model for Llama 3's",
                path, id, n < 40 ? (int)n : 40, token);
    }
    return STATUS_OK;
}

// Refuses tokens that are spelled like a control token: a tokenizer.json could not tell the two apart.
static enum status check_names(const struct tokenizer *tokenizer, const char *path) {
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        size_t n;
        const char *name = tokenizer_bytes(tokenizer, id, &n);
        if (tokenizer->types[id] == TOKEN_CONTROL && tokenizer_find(tokenizer, name, n) >= 0)
            return FAIL(STATUS_INVALID, "%s: token %d is spelled like the control token %.*s", path,
                        tokenizer_find(tokenizer, name, n), (int)n, name);
    }
    return STATUS_OK;
}

// If find_family recognizes the file, makes the published tokenizer from the tokens, and empties the table.
// Otherwise sets *out to NULL, and checks the tokens with check_pattern.
static enum status make_published(const char *path, struct token_table *tokens, struct tokenizer **out) {
    static const enum token_pattern patterns[] = {[FAMILY_LLAMA3] = TOKEN_PATTERN_LLAMA3,
                                                  [FAMILY_QWEN] = TOKEN_PATTERN_QWEN2,
                                                  [FAMILY_CL100K] = TOKEN_PATTERN_CL100K,
                                                  [FAMILY_O200K] = TOKEN_PATTERN_O200K};
    const enum family family = find_family(path, tokens->n);
    *out = NULL;
    if (family == FAMILY_NONE)
        return check_pattern(path, tokens);
    if (family == FAMILY_LLAMA3)
        TRY(check_model_type(path));
    if (family >= FAMILY_CL100K)
        add_openai(tokens, family == FAMILY_CL100K);
    else
        (family == FAMILY_LLAMA3 ? add_llama3 : add_qwen)(tokens);
    TRY(tokenizer_from_table(tokens, "byte-pair", path, out));
    struct tokenizer *tokenizer = *out;
    tokenizer->rules = (struct token_rules){.pattern = patterns[family], .nfc = family == FAMILY_QWEN};
    tokenizer->ignore_merges = true; // as tiktoken does
    if (family == FAMILY_LLAMA3)
        tokenizer->start = tokenizer_find_special(tokenizer, "<|begin_of_text|>");
    enum status status = check_names(tokenizer, path);
    if (status == STATUS_OK)
        status = tokenizer_choose_ends(tokenizer, path, NULL);
    if (status == STATUS_OK)
        status = tokenizer_pair_all(tokenizer, path);
    if (status == STATUS_OK) {
        tokenizer_set_checksum(tokenizer);
        return STATUS_OK;
    }
    tokenizer_delete(tokenizer);
    *out = NULL;
    return status;
}

#define LARGEST_FILE ((size_t)256 << 20) // maximum bytes of a tokenizer file

static void add_bytes(struct token_table *tokens) {
    for (int byte = 0; byte < 256; byte++) {
        const char c = (char)byte;
        token_table_add(tokens, &c, 1, TOKEN_NORMAL, 1);
    }
}

// ---- base64

static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Decodes n characters. Returns the number of bytes, or -1 if the text is not padded base64.
static int base64_decode(const char *text, size_t n, unsigned char *out) {
    if (n == 0 || n % 4 != 0)
        return -1;
    int bytes = 0;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word = 0;
        int padding = 0;
        for (size_t k = 0; k < 4; k++) {
            const char *found = text[i + k] && !padding ? strchr(base64, text[i + k]) : NULL;
            if (!found && !(text[i + k] == '=' && i + 4 == n && k >= 2))
                return -1;
            padding += !found;
            word = word << 6 | (found ? (uint32_t)(found - base64) : 0);
        }
        for (int k = 0; k < 3 - padding; k++)
            out[bytes++] = (unsigned char)(word >> (16 - 8 * k));
    }
    return bytes;
}

static void base64_add(struct text *out, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t word = (uint32_t)bytes[i] << 16 | (have > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (have > 2 ? bytes[i + 2] : 0);
        char quad[4];
        for (size_t k = 0; k < 4; k++)
            quad[k] = k <= have ? base64[word >> (18 - 6 * k) & 63] : '=';
        text_add_bytes(out, quad, 4);
    }
}

// ---- reading

struct reader {
    const char *path, *line; // line: start of the current line
    size_t length;           // bytes of the line without the line ending (LF or CRLF)
    int number;              // line number, from 1
    const char *next, *end;  // start of the next line; end of the file's bytes
};

static bool next_line(struct reader *reader) {
    if (reader->next >= reader->end)
        return false;
    reader->line = reader->next;
    const char *newline = memchr(reader->line, '\n', (size_t)(reader->end - reader->line));
    reader->length = (size_t)((newline ? newline : reader->end) - reader->line);
    reader->next = newline ? newline + 1 : reader->end;
    reader->number++;
    if (reader->length && reader->line[reader->length - 1] == '\r')
        reader->length--;
    return true;
}

static enum status read_tiktoken(struct reader *reader, struct token_table *tokens) {
    unsigned char *decoded = NULL;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && next_line(reader)) {
        if (reader->length == 0)
            continue;
        const char *space = memchr(reader->line, ' ', reader->length);
        size_t coded = space ? (size_t)(space - reader->line) : 0;
        decoded = reallocate(decoded, coded + 4, 1);
        int n = space ? base64_decode(reader->line, coded, decoded) : -1;
        char digits[16] = "", *after = digits;
        if (space && reader->length - coded - 1 < sizeof digits)
            memcpy(digits, space + 1, reader->length - coded - 1);
        long rank = strtol(digits, &after, 10);
        if (n < 1 || *after || after == digits)
            status = FAIL(STATUS_INVALID,
                          "%s:%d: expected base64 of a token's bytes, a space and its rank, as in \"IQ== 0\"",
                          reader->path, reader->number);
        else if (rank != tokens->n)
            status = FAIL(STATUS_INVALID, "%s:%d: rank %ld, expected %d: ranks count up from 0", reader->path,
                          reader->number, rank, tokens->n);
        else if (rank > TOKENIZER_MOST_TOKENS)
            status = FAIL(STATUS_INVALID, "%s:%d: more than %d tokens", reader->path, reader->number,
                          TOKENIZER_MOST_TOKENS);
        else
            token_table_add(tokens, (const char *)decoded, (size_t)n, TOKEN_NORMAL, reader->number);
    }
    free(decoded);
    return status;
}

static enum status read_merges(struct reader *reader, struct token_table *tokens) {
    struct token_alphabet alphabet;
    token_alphabet_init(&alphabet);
    for (int i = 0; i < 256; i++) {
        const char c = (char)alphabet.order[i];
        token_table_add(tokens, &c, 1, TOKEN_NORMAL, 1);
    }
    while (next_line(reader)) {
        char bytes[1024];
        if (reader->length == 0 || (reader->number == 1 && strncmp(reader->line, "#version", 8) == 0))
            continue;
        const char *space = memchr(reader->line, ' ', reader->length);
        size_t left = space ? (size_t)(space - reader->line) : 0;
        int a =
            space && reader->length < sizeof bytes ? token_decode(reader->line, left, &alphabet, bytes) : -1;
        int b = a > 0 ? token_decode(space + 1, reader->length - left - 1, &alphabet, bytes + a) : -1;
        if (b <= 0)
            return FAIL(STATUS_INVALID,
                        "%s:%d: expected a merge: two tokens in GPT-2's byte alphabet, separated by a space",
                        reader->path, reader->number);
        token_table_add(tokens, bytes, (size_t)(a + b), TOKEN_NORMAL, reader->number);
    }
    return STATUS_OK;
}

// True for the first line of a tiktoken file: base64 of a token's bytes, a space, and rank 0.
static bool is_tiktoken_line(const char *line, size_t length) {
    while (length > 0 && line[length - 1] == '\r')
        length--;
    if (length < 6 || length > 64 || memcmp(line + length - 2, " 0", 2) != 0)
        return false;
    unsigned char decoded[64];
    return base64_decode(line, length - 2, decoded) > 0;
}

bool tokenizer_is_file(const char *path) {
    char start[256] = "";
    const size_t n = file_read_start(path, sizeof start - 1, start);
    if (n == 0)
        return false;
    const enum file_kind kind = file_kind_of(start, n);
    if (kind == FILE_KIND_GGUF)
        return tokenizer_is_in_gguf(path);
    if (start[strspn(start, " \t\r\n")] == '{')
        return tokenizer_is_json(path);
    const char *newline = memchr(start, '\n', n);
    return newline &&
           (strncmp(start, "#version", 8) == 0 || is_tiktoken_line(start, (size_t)(newline - start)));
}

static enum status refuse_absent(const char *path, int error) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return FAIL(
        STATUS_INVALID,
        "cannot open the tokenizer %s: %s; expected \"bytes\", a .tiktoken file "
        "(./train tokenizer train makes one), tokenizer.json, vocab.bpe, a GGUF model, or a folder that "
        "holds one of these%s",
        path, strerror(error),
        strncmp(name, "gpt2", 4) == 0 || strncmp(name, "gpt-2", 5) == 0
            ? ". GPT-2's: hf download openai-community/gpt2 tokenizer.json --local-dir gpt2, then name "
              "the folder gpt2"
            : "");
}

// True for Llama 2's tokenizer.model: a Protocol Buffers message whose first field is a vocabulary entry of
// some tens of bytes.
static bool is_sentencepiece(const char *data, size_t length) {
    return length > 4 && data[0] == '\n' && data[1] > 0 && data[2] == '\n' && data[3] > 0 &&
           data[3] < data[1];
}

static enum status refuse_sentencepiece(const char *path) {
    return FAIL(STATUS_INVALID,
                "%s is a SentencePiece model, which is not supported; use the tokenizer.json of the same "
                "model (fetch it, or make it: python3 -c 'from transformers import AutoTokenizer; "
                "AutoTokenizer.from_pretrained(\"FOLDER\").save_pretrained(\"NEW\")')",
                path);
}

// Reads a tiktoken file or a vocab.bpe, and makes the tokenizer.
//   tokens   an empty table
static enum status read_tokens(const char *path, const char *data, size_t length, struct token_table *tokens,
                               struct tokenizer **out) {
    struct reader reader = {.path = path, .next = data, .end = data + length};
    const bool merges = length >= 8 && memcmp(data, "#version", 8) == 0;
    TRY((merges ? read_merges : read_tiktoken)(&reader, tokens));
    if (tokens->n == 0)
        return FAIL(STATUS_INVALID,
                    "%s holds no tokens, expected a tiktoken file, a vocab.bpe, or a tokenizer.json", path);
    TRY(merges ? check_pattern(path, tokens) : make_published(path, tokens, out));
    return *out ? STATUS_OK : tokenizer_make_plain(tokens, "byte-pair", path, out);
}

// Reads the chat template from the files beside the tokenizer, as transformers does: from
// chat_template.jinja, else from tokenizer_config.json.
static void read_chat_template(const char *path, struct tokenizer *tokenizer) {
    const char *slash = strrchr(path, '/');
    const int n = slash ? (int)(slash - path) + 1 : 0;
    char *file = file_path("%.*schat_template.jinja", n, path),
         *others = file_path("%.*sadditional_chat_templates", n, path), *data = NULL;
    struct text text = {0};
    size_t bytes;
    if (file_exists(file) && file_read(file, LARGEST_FILE, &data, &bytes) != STATUS_OK)
        status_clear();
    cJSON *root = data ? NULL : tokenizer_read_beside(path, TOKENIZER_SETTINGS_NAME);
    const cJSON *template = cJSON_GetObjectItemCaseSensitive(root, "chat_template");
    char *printed =
        cJSON_IsString(template) || cJSON_IsArray(template) ? cJSON_PrintUnformatted(template) : NULL;
    if (data)
        json_add_string(&text, data);
    else if (printed)
        text_add_bytes(&text, printed, strlen(printed));
    tokenizer->chat_template = text.data;
    if (file_is_folder(others))
        log_warning("%s: the chat templates in this folder are ignored", others);
    cJSON_free(printed);
    cJSON_Delete(root);
    free(data);
    free(file);
    free(others);
}

static enum status load_file(const char *path, struct tokenizer **out) {
    struct token_table tokens = {0};
    char *data = NULL;
    size_t length;
    if (file_kind_of_path(path) == FILE_KIND_GGUF)
        return tokenizer_read_gguf(path, out);
    TRY(file_read(path, LARGEST_FILE, &data, &length));
    const enum file_kind kind = file_kind_of(data, length);
    const bool is_text = kind == FILE_KIND_UNKNOWN || kind == FILE_KIND_TEXT || kind == FILE_KIND_TEXT_8_BIT;
    enum status status =
        is_sentencepiece(data, length) ? refuse_sentencepiece(path)
        : !is_text
            ? file_kind_refuse(kind, path, "", "a tokenizer.json, vocab.bpe, tiktoken file or GGUF model")
        : data[strspn(data, " \t\r\n")] == '{' ? tokenizer_read_json(path, data, length, NULL, out)
                                               : read_tokens(path, data, length, &tokens, out);
    if (status == STATUS_OK)
        read_chat_template(path, *out);
    free(data);
    token_table_free(&tokens);
    return status;
}

static enum status load_bytes(struct tokenizer **out) {
    struct token_table tokens = {0};
    add_bytes(&tokens);
    const enum status status = tokenizer_make_plain(&tokens, "bytes", "bytes", out);
    token_table_free(&tokens);
    return status;
}

// True if the folder has this file. A tokenizer.model may be a SentencePiece model, and a GGUF model may have
// no tokenizer. So for these two, also checks that the file is a tokenizer that can be read.
static bool is_in_folder(const char *name, const char *path) {
    const bool may_be_another = strcmp(name, "tokenizer.model") == 0 || strcmp(name, "model.gguf") == 0;
    return file_exists(path) && (!may_be_another || tokenizer_is_file(path));
}

char *tokenizer_next_file(const char *folder, int *next) {
    static const char *const names[] = {"tokenizer.json", "vocab.bpe",       "tokenizer.tiktoken",
                                        "qwen.tiktoken",  "tokenizer.model", "model.gguf",
                                        "vocab.json"};
    while (*next < (int)(sizeof names / sizeof *names)) {
        const char *name = names[(*next)++];
        char *path = file_path("%s/%s", folder, name);
        if (is_in_folder(name, path))
            return path;
        free(path);
    }
    return NULL;
}

// True if the path is a vocab.json, or a merges.txt beside a vocab.json: these do not say by which pattern
// text is split. A merges.txt alone is read like GPT-2's vocab.bpe, where the ids follow from the merges.
static bool lacks_settings(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *vocabulary = file_path("%.*svocab.json", (int)(name - path), path);
    const bool has_vocabulary = file_exists(vocabulary);
    free(vocabulary);
    return has_vocabulary && (strcmp(name, "vocab.json") == 0 || strcmp(name, "merges.txt") == 0);
}

static enum status refuse_without_settings(const char *path) {
    const char *slash = strrchr(path, '/'), *folder = slash ? path : ".";
    const int n = slash ? (int)(slash - path) : 1;
    return FAIL(
        STATUS_INVALID,
        "%s: vocab.json and merges.txt are no longer supported, as they do not say how text is "
        "split. Write tokenizer.json beside them: python3 -c 'from transformers import AutoTokenizer; "
        "AutoTokenizer.from_pretrained(\"%.*s\").save_pretrained(\"%.*s\")', then use "
        "%.*s/tokenizer.json",
        path, n, folder, n, folder, n, folder);
}

static enum status load_named(const char *path, struct tokenizer **out) {
    return lacks_settings(path) ? refuse_without_settings(path) : load_file(path, out);
}

static enum status load_folder(const char *folder, struct tokenizer **out) {
    int next = 0;
    char *path = tokenizer_next_file(folder, &next);
    if (path) {
        enum status status = load_named(path, out);
        free(path);
        return status;
    }
    return FAIL(STATUS_INVALID,
                "the folder %s holds no tokenizer: expected tokenizer.json, vocab.bpe, "
                "tokenizer.tiktoken, qwen.tiktoken, Llama 3's tokenizer.model or model.gguf in it",
                folder);
}

enum status tokenizer_load(const char *path, struct tokenizer **out) {
    *out = NULL;
    if (strcmp(path, "bytes") == 0)
        return load_bytes(out);
    if (!file_exists(path))
        return refuse_absent(path, errno);
    return file_is_folder(path) ? load_folder(path, out) : load_named(path, out);
}

const char *tokenizer_file_name(const struct tokenizer *tokenizer) {
    return tokenizer->is_plain ? "tokenizer.tiktoken" : "tokenizer.json";
}

enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path) {
    struct text out = {0};
    enum status status = STATUS_OK;
    if (!tokenizer->is_plain)
        status = tokenizer_add_json(tokenizer, &out);
    for (int32_t id = 0; id < tokenizer_end_of_text(tokenizer) && tokenizer->is_plain; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        base64_add(&out, (const unsigned char *)bytes, n);
        text_add(&out, " %d\n", id);
    }
    if (status == STATUS_OK)
        status = file_write_all(path, out.data, out.length);
    text_free(&out);
    return status;
}
