// Tokenizers: text to token ids and back. There are four kinds:
// - "bytes": 256 ids, one per byte, and end-of-text;
// - byte-level byte-pair encoding (BPE) trained by tokenizer_train;
// - byte-level BPE of published models: GPT-2's, Llama 3's, Qwen's (2, 2.5, 3), SmolLM's (1, 2);
// - BPE over characters, with tokens for single bytes, as SentencePiece makes it: Llama 2's and TinyLlama's.
//
// Byte-level BPE (Sennrich et al., arXiv 1508.07909; GPT-2): text is split into pre-tokens by a pattern
// (enum token_pattern). In each pre-token, the adjacent pair of lowest rank is merged until no pair can be:
// by a list of merges, or, in formats without one, any two tokens whose concatenation is a token, with its id
// as the rank. A byte that is not valid UTF-8 counts as a character that is neither letter, number nor space.
// Added tokens that are not special are found in text first, the longest at each place; what is between them
// is encoded as above. Encoding text never produces end-of-text nor any other control token. Relies on
// utf8proc for Unicode.
#ifndef ZERO_DATA_TOKENIZER_TOKENIZER_H
#define ZERO_DATA_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// A growing list of token ids. Zero-initialize it.
struct token_list {
    int32_t *ids;
    size_t n, capacity;
};
void token_list_add(struct token_list *list, int32_t id);
// Makes room for `more` ids after the last.
void token_list_reserve(struct token_list *list, size_t more);
void token_list_free(struct token_list *list);

struct tokenizer;

// How text is split into pre-tokens. (?i:...) ignores case; Unicode's classes; a match is a pre-token.
#define TOKEN_PATTERN_TEXT_GPT2                                                                              \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_LLAMA3                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                               \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_QWEN2                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                                    \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_CL100K                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                               \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s+\\z|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define TOKEN_PATTERN_TEXT_O200K                                                                             \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                                         \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"                                                                         \
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
enum token_pattern {
    TOKEN_PATTERN_GPT2,
    TOKEN_PATTERN_LLAMA3,
    TOKEN_PATTERN_QWEN2,
    // Each number (\p{N}) alone; between them GPT-2's, as if the text ended there.
    TOKEN_PATTERN_SMOLLM,
    // Llama 2: one or more spaces and what follows up to the next; U+2581 is a space too.
    TOKEN_PATTERN_SPACES,
    // The same, and each line feed alone: no token has one beside other characters.
    TOKEN_PATTERN_SPACES_AND_LINES,
    TOKEN_PATTERN_CL100K, // OpenAI's cl100k_base: Llama 3's, with all white space at a text's end as one
    TOKEN_PATTERN_O200K,  // OpenAI's o200k_base
};
struct token_rules {
    enum token_pattern pattern;
    bool nfc;                         // text is normalized to Unicode's form C first
    const struct added_tokens *added; // of the tokenizer: tokens that are found in text first; NULL: none
};

// What an id stands for. The numbers are GGUF's.
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2, // a character that has no token
    TOKEN_CONTROL = 3, // end-of-text and the like, no text
    TOKEN_USER = 4,    // an added token that is not special, as <think>: found in text as a whole
    TOKEN_BYTE = 6,    // Llama 2: a byte of a character that has no token
};

struct token_merge {
    int32_t left, right, id; // left and right make id
};

// Loads a tokenizer.
//   path   one of these, or a folder with some of them, of which the first of tokenizer_next_file counts:
//          - "bytes"
//          - a tiktoken file (lines of base64 and rank): one that tokenizer_save wrote, GPT-2's, Llama 3's
//            tokenizer.model, qwen.tiktoken, cl100k_base and o200k_base by their names or numbers of ranks
//          - GPT-2's vocab.bpe ("#version", then merges)
//          - a Hugging Face tokenizer.json of one of the kinds above
//          - a GGUF model of one of the kinds above, with a tokenizer inside
// End-of-text of a tokenizer.json is its added token <|endoftext|>, <|end_of_text|> or </s>, else what
// tokenizer_config.json, generation_config.json or config.json beside it names as the end of a text
// (of GGUF, the file itself).
// STATUS_INVALID: the file is absent or malformed, or works in another way than these; the message has file,
// line and what was expected.
enum status tokenizer_load(const char *path, struct tokenizer **out) MUST_CHECK;
// Walks over the tokenizer files of a folder: tokenizer.json, vocab.bpe, tokenizer.tiktoken, qwen.tiktoken,
// tokenizer.model (if it is a tiktoken file), model.gguf (if it has one inside), and last vocab.json, which
// tokenizer_load refuses with the way to make a tokenizer.json of it.
//   next   0 at first; advanced
// Returns the path of the next one, to be freed; NULL when there is no other.
char *tokenizer_next_file(const char *folder, int *next);
void tokenizer_delete(struct tokenizer *tokenizer);
// Whether the file begins like one that tokenizer_load reads. False when it cannot be read.
bool tokenizer_is_file(const char *path);

// Trains BPE on the text until there are vocab_size ids: 256 bytes, vocab_size - 257 merges, end-of-text.
// Merges do not reach from one document into the next.
// Deterministic: merges the most frequent pair first; of equally frequent pairs, the smaller pair of ids.
// STATUS_INVALID: vocab_size is below 257 or above 65536, or the text has too few pairs (the message has the
// number of ids that it allows).
//   starts   (n_starts) of the documents in the text, ascending, below `bytes`; none: it is one
enum status tokenizer_train(const char *text, size_t bytes, const size_t *starts, size_t n_starts,
                            int vocab_size, struct tokenizer **out) MUST_CHECK;
// Writes a file for tokenizer_load, under the name that tokenizer_file_name gives: "tokenizer.tiktoken" for
// tokenizers that work like GPT-2's ("bytes" too: 256 single bytes), else "tokenizer.json".
enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path) MUST_CHECK;
const char *tokenizer_file_name(const struct tokenizer *tokenizer);

int tokenizer_n_ids(const struct tokenizer *tokenizer); // with all control tokens; models may have more ids
const char *tokenizer_kind(const struct tokenizer *tokenizer); // "bytes", "byte-pair"
struct token_rules tokenizer_rules(const struct tokenizer *tokenizer);
enum token_type tokenizer_type(const struct tokenizer *tokenizer, int32_t id);
// XXH3 of all tokens in the order of their ids, and of the rules where they are not GPT-2's. Equal for every
// file format that gives the same ids.
uint64_t tokenizer_checksum(const struct tokenizer *tokenizer);

// The token that ends a document. Models without a token for the start of documents have it before each.
int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);
// Whether generation stops at this id: end-of-text, or another end that the files beside the tokenizer name.
bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id);
// All of these, first the one that those files call eos_token, which in chat models is not end-of-text.
// Returns their number.
#define TOKENIZER_MOST_ENDS 8
int tokenizer_ends(const struct tokenizer *tokenizer, int32_t ends[TOKENIZER_MOST_ENDS]);
// The chat template that came with the tokenizer, which is kept for other programs: a string of JSON, or a
// list of objects with "name" and "template". NULL: none.
const char *tokenizer_chat_template(const struct tokenizer *tokenizer);
// The token that documents and prompts begin with: Llama's <|begin_of_text|> or <s>, else end-of-text.
int32_t tokenizer_document_start(const struct tokenizer *tokenizer);
// Whether that is a token of its own (bos), which comes before every prompt too.
bool tokenizer_has_bos(const struct tokenizer *tokenizer);
// Appends what comes between two documents, as the model's own training has it: end-of-text; with bos,
// end-of-text and bos, and before the first document bos alone.
void tokenizer_add_separator(const struct tokenizer *tokenizer, bool is_first, struct token_list *list);
// How many of the 256 bytes have no token: characters with them are lost (SmolLM's tokenizer has some).
int tokenizer_n_lost_bytes(const struct tokenizer *tokenizer);
// Llama 2: a space is put before a text (of some forms not before one that begins with one), so that what is
// decoded from its start begins with one too much.
bool tokenizer_adds_space(const struct tokenizer *tokenizer);

// Appends the ids of the text to the list. Uses parallel_threads() threads; the result does not depend on
// their number.
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             struct token_list *list) MUST_CHECK;
// Encodes many texts one after the other, on the calling thread: appends the ids of each to a list, as
// tokenizer_encode does. Keeps a cache of words between the texts, which makes short ones as fast as long
// ones. Does not own the tokenizer.
struct token_encoder;
struct token_encoder *token_encoder_new(const struct tokenizer *tokenizer);
//   begins   false: the text goes on where the one before ended, at a place that tokenizer_next_boundary gave
enum status token_encoder_add(struct token_encoder *encoder, const char *text, size_t bytes, bool begins,
                              struct token_list *list) MUST_CHECK;
void token_encoder_delete(struct token_encoder *encoder); // NULL does nothing
// The bytes of an id, not NUL-terminated; of a control token its name. NULL when the id is out of range.
const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n_bytes);
// The bytes of text that an id shows: none of a control token; of the first id of a text without the space
// that tokenizer_adds_space puts before it. What is counted per text, per byte or per character counts these.
//   before   the id before it; negative: none
const char *tokenizer_shown_bytes(const struct tokenizer *tokenizer, int32_t before, int32_t id,
                                  size_t *n_bytes);
// The id that has these bytes: a normal token before others, those of single bytes last; -1: none. Other ids
// with the same bytes need another name.
int32_t tokenizer_named(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes);
// Appends the text of ids, and the names of control tokens other than bos.
struct text;
void tokenizer_add_text(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, struct text *out);
// How many bytes of text ids stand for: those that tokenizer_add_text shows, control tokens aside, which have
// none. Every figure per byte counts with it.
//   before   the id before the first; negative: none, they begin a text
uint64_t tokenizer_text_bytes(const struct tokenizer *tokenizer, int32_t before, const int32_t *ids,
                              size_t n);

// The identity of a tokenizer: what token shards and checkpoints record of the one that they were made with.
// Ids of one tokenizer mean nothing to another, even if both have the same number of them.
#define TOKENIZER_NAME_BYTES 64
#define TOKENIZER_MAX_IDS    (1 << 23) // that a model can have (kernels/ops.h: sample)

struct tokenizer_identity {
    int32_t n_ids;                   // including end-of-text. 0: unknown, as in shards of other programs
    int32_t document_start;          // tokenizer_document_start
    uint64_t checksum;               // tokenizer_checksum
    char name[TOKENIZER_NAME_BYTES]; // file name or "bytes", for messages; printable ASCII, may be cut
};

// path: as given to tokenizer_load; its last component becomes the name.
struct tokenizer_identity tokenizer_identify(const struct tokenizer *tokenizer, const char *path);
// Whether both are known and differ. Names do not matter.
bool tokenizer_identity_differs(const struct tokenizer_identity *a, const struct tokenizer_identity *b);
// "my.tiktoken (4096 ids, checksum 0123456789abcdef)". Returns buffer.
#define TOKENIZER_DESCRIPTION_BYTES (TOKENIZER_NAME_BYTES + 64)
const char *tokenizer_identity_describe(const struct tokenizer_identity *identity,
                                        char buffer[TOKENIZER_DESCRIPTION_BYTES]);

#endif
