// Recognizes kinds of files by their first bytes, and has advice for each kind. llm.c's magic numbers:
// https://github.com/karpathy/llm.c (train_gpt2.py, train_llama3.py, train_gpt2.cu, dev/data/data_common.py).
#include "base/file_kind.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/utf8.h"

#define TO_UTF_8 "-t UTF-8 {file} > utf8.txt"
#define NOT_READ "this program does not read it"
#define PACKED   "./train tokenize reads compressed text directly; to unpack it: "

// `is` follows the path of a file in messages; its first word is the verb. Placeholders in `advice`: {file}
// is the file's path, {folder} the path of its folder, {class} the transformers class of the model in the
// folder.
static const struct {
    const char *is, *advice;
} kinds[N_FILE_KINDS] = {
    [FILE_KIND_UNKNOWN] = {"is a binary file of an unknown kind", "convert it first, or leave it out"},
    [FILE_KIND_SHARD] = {"is a token shard", "it is for data.train and data.val"},
    [FILE_KIND_SAFETENSORS] = {"is a safetensors file", "weights in it are for model.init_from"},
    [FILE_KIND_TEXT] = {"is text",
                        "make shards of it with ./train tokenize {file} --tokenizer FILE --out DIR, "
                        "then use DIR/train-*.bin"},
    [FILE_KIND_TEXT_8_BIT] = {"is text, but not UTF-8",
                              "convert it first, from Latin-1: iconv -f LATIN1 " TO_UTF_8},
    [FILE_KIND_TEXT_UTF_16] = {"is UTF-16 text",
                               "convert it first: iconv -f UTF-16 " TO_UTF_8
                               "; if it holds token ids of 2 bytes, as nanoGPT's .bin files do: "
                               "./train tokenize --raw {file} --out DIR"},
    [FILE_KIND_LLMC_MODEL] = {"is a model of llm.c", NOT_READ
                              ": convert it with llm.c's export, python3 dev/eval/export_hf.py --input "
                              "{file} --output DIR --dtype float32, then use the folder DIR"},
    [FILE_KIND_LLMC_LLAMA_MODEL] = {"is a Llama 3 model of llm.c",
                                    NOT_READ ": use the Hugging Face folder that llm.c made it from"},
    [FILE_KIND_LLMC_TOKENIZER] = {"is a tokenizer of llm.c",
                                  NOT_READ ": use the tokenizer.json of the same model; GPT-2's: hf download "
                                           "openai-community/gpt2 tokenizer.json --local-dir gpt2"},
    [FILE_KIND_LLMC_STATE] = {"is a training state of llm.c", NOT_READ},
    [FILE_KIND_LLMC_EVAL] = {"is an evaluation file of llm.c",
                             NOT_READ ": use {folder}/hellaswag_val.jsonl, which llm.c made it from"},
    [FILE_KIND_PYTORCH] =
        {"holds PyTorch's pickled weights",
         "reading them can run code, so this program does not. Convert them once: python3 -c 'from "
         "transformers import {class}; {class}.from_pretrained(\"{folder}\")"
         ".save_pretrained(\"NEW\")', then use the folder NEW"},
    [FILE_KIND_PICKLE] = {"is a Python pickle", "reading it can run code, so this program does not"},
    [FILE_KIND_NPY] =
        {"is a NumPy array (.npy)",
         "for token ids: python3 -c 'import numpy; "
         "numpy.load(\"{file}\").astype(\"uint16\").tofile(\"train.bin\")', then ./train tokenize "
         "--raw train.bin --out DIR"},
    [FILE_KIND_NPZ] = {"is an archive of NumPy arrays (.npz)", NOT_READ},
    [FILE_KIND_ZIP] = {"is a zip archive", "unpack it first: unzip {file}"},
    [FILE_KIND_GGUF] = {"is a GGUF model", "it is for model.init_from"},
    [FILE_KIND_HDF5] = {"is an HDF5 file (such as TensorFlow's tf_model.h5)",
                        NOT_READ ": fetch the model's safetensors files"},
    [FILE_KIND_MEGATRON_INDEX] = {"is a Megatron index (.idx)",
                                  "the token ids are in the .bin file beside it. If they have 2 bytes: "
                                  "./train tokenize --raw FILE.bin --out DIR"},
    [FILE_KIND_PARQUET] =
        {"is a Parquet file",
         "write its texts as JSON Lines first: python3 -c 'import pandas; "
         "pandas.read_parquet(\"{file}\")[[\"text\"]].to_json(\"texts.jsonl\", "
         "orient=\"records\", lines=True)' (needs pandas and pyarrow), then ./train tokenize "
         "texts.jsonl"},
    [FILE_KIND_ARROW] = {"is an Arrow file",
                         "write its texts as JSON Lines first, with to_json of Hugging Face's datasets, then "
                         "./train tokenize"},
    [FILE_KIND_PICTURE] = {"is a picture", "leave it out"},
    [FILE_KIND_PDF] = {"is a PDF file", "extract its text first: pdftotext {file}"},
    [FILE_KIND_TAR] = {"is a tar archive", "unpack it first: tar xf {file}"},
    [FILE_KIND_GZIP] = {"is compressed with gzip", PACKED "gunzip -k {file}"},
    [FILE_KIND_ZSTD] = {"is compressed with zstd", PACKED "unzstd {file}"},
    [FILE_KIND_XZ] = {"is compressed with xz", "unpack it first: unxz -k {file}"},
    [FILE_KIND_BZIP2] = {"is compressed with bzip2", "unpack it first: bunzip2 -k {file}"},
};

// ---- recognizing the kind

// Kinds recognized by the number in the first four bytes.
static const struct {
    uint32_t magic;
    enum file_kind kind;
} numbers[] = {
    {20240520, FILE_KIND_SHARD},          {20240801, FILE_KIND_SHARD},
    {20240326, FILE_KIND_LLMC_MODEL},     {20240803, FILE_KIND_LLMC_LLAMA_MODEL},
    {20240328, FILE_KIND_LLMC_TOKENIZER}, {20240327, FILE_KIND_LLMC_STATE},
    {20240527, FILE_KIND_LLMC_STATE},     {20240522, FILE_KIND_LLMC_EVAL},
};

#define PREFIX(bytes) bytes, sizeof bytes - 1
static const struct {
    const char *bytes;
    size_t n;
    enum file_kind kind;
} prefixes[] = {
    {PREFIX("\x93NUMPY"), FILE_KIND_NPY},
    {PREFIX("GGUF"), FILE_KIND_GGUF},
    {PREFIX("\x89HDF\r\n\x1a\n"), FILE_KIND_HDF5},
    {PREFIX("MMIDIDX\0\0"), FILE_KIND_MEGATRON_INDEX},
    {PREFIX("PAR1"), FILE_KIND_PARQUET},
    {PREFIX("ARROW1"), FILE_KIND_ARROW},
    {PREFIX("FEA1"), FILE_KIND_ARROW},
    // Arrow's stream format, which Hugging Face's datasets use. Token ids do not begin like this.
    {PREFIX("\xff\xff\xff\xff"), FILE_KIND_ARROW},
    {PREFIX("\x89PNG\r\n\x1a\n"), FILE_KIND_PICTURE},
    {PREFIX("\xff\xd8\xff"), FILE_KIND_PICTURE}, // JPEG
    {PREFIX("GIF8"), FILE_KIND_PICTURE},
    {PREFIX("%PDF-"), FILE_KIND_PDF},
    {PREFIX("\x1f\x8b\x08"), FILE_KIND_GZIP},
    {PREFIX("\x28\xb5\x2f\xfd"), FILE_KIND_ZSTD},
    {PREFIX("\x50\x2a\x4d\x18"), FILE_KIND_ZSTD}, // a zstd skippable frame, with which pzstd begins files
    {PREFIX("\xfd"
            "7zXZ\0"),
     FILE_KIND_XZ},
    {PREFIX("BZh91AY&SY"), FILE_KIND_BZIP2},
    {PREFIX("\xff\xfe"), FILE_KIND_TEXT_UTF_16},
    {PREFIX("\xfe\xff"), FILE_KIND_TEXT_UTF_16},
    {PREFIX("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"), FILE_KIND_PYTORCH}, // torch.save before version 1.6
};

// Whether the file begins with prefixes[i]. Text may begin with these letters by chance. So readable text
// that is longer than the prefix does not match. PDF is an exception: the start of a PDF may be all text.
static bool has_prefix(const char *start, size_t n, int i) {
    const size_t length = prefixes[i].n;
    return n >= length && memcmp(start, prefixes[i].bytes, length) == 0 &&
           (prefixes[i].kind == FILE_KIND_PDF || !text_is_readable(start, n) || n == length);
}

static bool contains(const char *start, size_t n, const char *word) {
    return memmem(start, n, word, strlen(word)) != NULL;
}

static bool is_zip(const char *start, size_t n) {
    return n >= 30 && memcmp(start, "PK\3\4", 4) == 0;
}

static enum file_kind kind_of_zip(const char *start, size_t n) {
    return contains(start, n, "/data.pkl")                      ? FILE_KIND_PYTORCH
           : contains(start, n < 512 ? n : (size_t)512, ".npy") ? FILE_KIND_NPZ
                                                                : FILE_KIND_ZIP;
}

// Recognizes pickle protocols 2 to 5. Token ids of 2 bytes may start in the same way, so the next opcodes are
// checked too. In protocols 2 and 3 they must make an empty dict, list or tuple and memoize it, or load a
// global. From protocol 4 on, they must begin a frame of less than 4 GiB.
static bool is_pickle(const char *start, size_t n) {
    if (n < 5 || (unsigned char)start[0] != 0x80 || start[1] < 2 || start[1] > 5)
        return false;
    if (start[1] < 4)
        return (strchr("}])", start[2]) && start[2] && start[3] == 'q') || start[2] == 'c';
    return n >= 11 && (unsigned char)start[2] == 0x95 && memcmp(start + 7, "\0\0\0\0", 4) == 0;
}

// A safetensors file begins with 8 bytes: the length of its header, at most 100 MB. The header is JSON.
static bool is_safetensors(const char *start, size_t n) {
    uint64_t header = 0;
    if (n < 10)
        return false;
    memcpy(&header, start, sizeof header);
    return header <= 100000000 && start[8] == '{' && memchr("\"} \t\r\n", start[9], 6);
}

static bool is_text_byte(unsigned char c) {
    return c >= ' ' ? c != 0x7F : c != 0 && strchr("\t\n\v\f\r", c);
}

// UTF-16 without a byte order mark: every other byte is zero, and the bytes between are ASCII text. Token
// ids of 2 bytes that are all below 128 look the same, unless one has the value of a control character.
static bool is_utf_16(const char *start, size_t n) {
    // The zero byte of each pair: in little-endian the second, in big-endian the first.
    const size_t zero = n > 1 && start[1] == 0 ? 1 : 0;
    if (n < 16)
        return false;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)start[i];
        if (i % 2 == zero ? c != 0 : c >= 0x80 || !is_text_byte(c))
            return false;
    }
    return true;
}

// POSIX and GNU tar archives have a signature after the first file's name, mode, size and time.
static bool is_tar(const char *start, size_t n) {
    return n >= 262 && memcmp(start + 257, "ustar", 5) == 0;
}

// Whether the bytes are UTF-8 with some non-ASCII characters and without zero bytes. The last character may
// be incomplete. Control characters are allowed: token ids and compressed data fail this test anyway, by
// invalid UTF-8 or zero bytes.
static bool is_utf_8(const char *start, size_t n) {
    const size_t valid = utf8_valid_bytes(start, n);
    bool has_high = false;
    for (size_t i = 0; i < valid; i++)
        has_high |= (unsigned char)start[i] >= 0x80;
    return has_high && n - valid < 4 && !memchr(start, 0, valid);
}

// Whether less than 1 byte in 32 is a control character, as in text in an 8-bit encoding and in damaged
// UTF-8. In compressed data and token ids, about 1 in 8 is one.
static bool is_8_bit_text(const char *start, size_t n) {
    size_t n_control = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)start[i];
        n_control += !is_text_byte(c) && c != '\b' && c != 0x1b;
    }
    return n_control * 32 < n;
}

enum file_kind file_kind_of(const char *start, size_t n) {
    uint32_t magic = 0;
    n = n < FILE_KIND_START_BYTES ? n : FILE_KIND_START_BYTES;
    memcpy(&magic, start, n < sizeof magic ? n : sizeof magic);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (magic == numbers[i].magic)
            return numbers[i].kind;
    for (int i = 0; i < (int)(sizeof prefixes / sizeof *prefixes); i++)
        if (has_prefix(start, n, i))
            return prefixes[i].kind;
    return is_zip(start, n)             ? kind_of_zip(start, n)
           : is_pickle(start, n)        ? FILE_KIND_PICKLE
           : is_safetensors(start, n)   ? FILE_KIND_SAFETENSORS
           : is_tar(start, n)           ? FILE_KIND_TAR
           : text_is_readable(start, n) ? FILE_KIND_TEXT
           : is_utf_8(start, n)         ? FILE_KIND_TEXT
           : is_utf_16(start, n)        ? FILE_KIND_TEXT_UTF_16
           : is_8_bit_text(start, n)    ? FILE_KIND_TEXT_8_BIT
                                        : FILE_KIND_UNKNOWN;
}

enum file_kind file_kind_of_path(const char *path) {
    char start[FILE_KIND_START_BYTES];
    const size_t n = file_read_start(path, sizeof start, start);
    return n > 0 ? file_kind_of(start, n) : FILE_KIND_UNKNOWN;
}

bool file_kind_is_text(enum file_kind kind) {
    return kind == FILE_KIND_TEXT || kind == FILE_KIND_TEXT_8_BIT || kind == FILE_KIND_TEXT_UTF_16;
}

// ---- names and advice for messages

const char *file_kind_name(enum file_kind kind) {
    const char *verb_end = strchr(kinds[kind].is, ' ');
    return verb_end + 1;
}

// Adds the model class that the folder's config.json names, or AutoModelForCausalLM if it names none. If the
// class did not match the weights, transformers would create a model with random weights.
static void add_class(struct text *out, const char *folder) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    char *path = file_path("%s/config.json", folder);
    cJSON *config = NULL;
    if (json_read_file(path, &config) != STATUS_OK)
        status_clear();
    const char *name = cJSON_GetStringValue(
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(config, "architectures"), 0));
    const bool is_name = name && *name && name[strspn(name, letters)] == '\0';
    text_add(out, "%s", is_name ? name : "AutoModelForCausalLM");
    cJSON_Delete(config);
    free(path);
}

char *file_kind_advice(enum file_kind kind, const char *path) {
    struct text out = {0};
    const char *slash = strrchr(path, '/'), *at = kinds[kind].advice;
    char *folder = file_path("%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    for (const char *brace; (brace = strchr(at, '{')); at = strchr(brace, '}') + 1) {
        text_add_bytes(&out, at, (size_t)(brace - at));
        if (strncmp(brace, "{file}", 6) == 0)
            text_add(&out, "%s", path);
        else if (strncmp(brace, "{class}", 7) == 0)
            add_class(&out, folder);
        else
            text_add(&out, "%s", folder);
    }
    text_add(&out, "%s", at);
    free(folder);
    return out.data;
}

enum status file_kind_refuse(enum file_kind kind, const char *path, const char *more, const char *expected) {
    char *advice = file_kind_advice(kind, path);
    enum status status =
        FAIL(STATUS_INVALID, "%s %s%s, expected %s; %s", path, kinds[kind].is, more, expected, advice);
    free(advice);
    return status;
}
