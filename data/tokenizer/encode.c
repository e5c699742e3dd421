// Splits text by the patterns (data/tokenizer/tokens.h). The code is hand-written, because a regular
// expression engine would dominate encoding time. Each function tries the alternatives of its pattern in
// their order.
//
// Encoding. A heap of candidate pairs merges a pre-token of n symbols in O(n log n). A cache keeps the ids of
// pre-tokens already seen. Long texts are split between pre-tokens into chunks, which threads encode in
// parallel. The ids do not depend on the number of threads.
#include "data/tokenizer/encode.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/parallel.h"
#include "base/utf8.h"
#include "data/tokenizer/tables.h"

enum kind { KIND_OTHER, KIND_LETTER, KIND_NUMBER, KIND_SPACE };

// True for the non-ASCII characters with Unicode's White_Space property. (classify handles ASCII.)
static bool is_space(utf8proc_int32_t c) {
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static enum kind classify_unicode(utf8proc_int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return KIND_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return KIND_NUMBER;
    default:
        return is_space(c) ? KIND_SPACE : KIND_OTHER;
    }
}

// Returns the kind and length of the first character. A byte that does not start a valid character counts as
// a character of its own.
static enum kind classify(const char *text, size_t n_bytes, size_t *length) {
    unsigned char first = (unsigned char)text[0];
    *length = 1;
    if (first < 0x80) {
        if ((first | 0x20) >= 'a' && (first | 0x20) <= 'z')
            return KIND_LETTER;
        if (first >= '0' && first <= '9')
            return KIND_NUMBER;
        return first == ' ' || (first >= '\t' && first <= '\r') ? KIND_SPACE : KIND_OTHER;
    }
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes, &c);
    if (n <= 0)
        return KIND_OTHER;
    *length = (size_t)n;
    return classify_unicode(c);
}

// Returns the length in bytes of the contraction, such as 're, at the start of `text`; 0 if there is none.
// The first byte must be the apostrophe.
//   any_case   also match capitals and, as an s, the long s (U+017F), whose capital is S
static size_t contraction(const char *text, size_t n_bytes, bool any_case) {
    const char bit = any_case ? 0x20 : 0; // the lower-case bit
    const char first = n_bytes >= 2 ? (char)(text[1] | bit) : 0,
               second = n_bytes >= 3 ? (char)(text[2] | bit) : 0;
    if (first == 's' || first == 'd' || first == 'm' || first == 't')
        return 2;
    if ((first == 'l' && second == 'l') || ((first == 'v' || first == 'r') && second == 'e'))
        return 3;
    return any_case && n_bytes >= 3 && memcmp(text + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

// Returns the end of the consecutive characters of kind `wanted` starting at `at`.
//   last   [out] start of the last such character; unchanged if there is none
static size_t kind_end(const char *text, size_t n_bytes, size_t at, enum kind wanted, size_t *last) {
    size_t length;
    while (at < n_bytes && classify(text + at, n_bytes - at, &length) == wanted) {
        *last = at;
        at += length;
    }
    return at;
}

// Returns the length of the pre-token of white space at the start of `text`. It is the whole run of white
// space if the text ends with it or if the run is one character. Otherwise the run's last character is left
// out, because it begins the next pre-token.
static size_t space_pretoken(const char *text, size_t n_bytes) {
    size_t last = 0;
    const size_t end = kind_end(text, n_bytes, 0, KIND_SPACE, &last);
    return end < n_bytes && last > 0 ? last : end;
}

static size_t next_gpt2(const char *text, size_t n_bytes) {
    size_t length, last;
    if (text[0] == '\'' && (length = contraction(text, n_bytes, false)) > 0)
        return length;
    enum kind first = classify(text, n_bytes, &length);
    if (first != KIND_SPACE)
        return kind_end(text, n_bytes, 0, first, &last);
    if (text[0] == ' ' && n_bytes > 1) {
        enum kind second = classify(text + 1, n_bytes - 1, &length);
        if (second != KIND_SPACE)
            return kind_end(text, n_bytes, 1, second, &last);
    }
    return space_pretoken(text, n_bytes);
}

// Before a number, all white space is one pre-token; GPT-2's pattern would leave out the last character.
static size_t next_smollm(const char *text, size_t n_bytes) {
    size_t length, last;
    const enum kind first = classify(text, n_bytes, &length);
    if (first == KIND_NUMBER)
        return length;
    if (first != KIND_SPACE)
        return next_gpt2(text, n_bytes);
    const size_t end = kind_end(text, n_bytes, 0, KIND_SPACE, &last);
    if (end < n_bytes && classify(text + end, n_bytes - end, &length) == KIND_NUMBER)
        return end;
    return next_gpt2(text, n_bytes);
}

// Returns the length of the pre-token of white space at the start of `text`. It ends after the white space's
// last line end (line feed or carriage return). Without a line end, its length is that of space_pretoken.
//   whole_end   true: if the text ends with the white space, the pre-token is all of it
static size_t next_space(const char *text, size_t n_bytes, bool whole_end) {
    size_t at = 0, lines = 0, length;
    while (at < n_bytes && classify(text + at, n_bytes - at, &length) == KIND_SPACE) {
        const bool is_line_end = text[at] == '\n' || text[at] == '\r';
        at += length;
        lines = is_line_end ? at : lines;
    }
    if (whole_end && at == n_bytes)
        return at;
    return lines > 0 ? lines : space_pretoken(text, n_bytes);
}

// Tries the alternatives that follow words in the patterns of Llama 3, Qwen and OpenAI:
// - a number of up to 3 digits (Qwen: 1)
// - other characters, with an optional space before them, and line ends (o200k_base: also slashes) after them
// - white space
static size_t next_rest(enum token_pattern pattern, const char *text, size_t n_bytes) {
    const int most_digits = pattern == TOKEN_PATTERN_QWEN2 ? 1 : 3;
    size_t length, last, at = 0;
    for (int n = 0;
         n < most_digits && at < n_bytes && classify(text + at, n_bytes - at, &length) == KIND_NUMBER; n++)
        at += length;
    if (at > 0)
        return at;
    const size_t blank = text[0] == ' ';
    at = kind_end(text, n_bytes, blank, KIND_OTHER, &last);
    if (at == blank)
        return next_space(text, n_bytes, pattern == TOKEN_PATTERN_CL100K);
    while (at < n_bytes &&
           (text[at] == '\n' || text[at] == '\r' || (text[at] == '/' && pattern == TOKEN_PATTERN_O200K)))
        at++;
    return at;
}

static size_t next_llama3(enum token_pattern pattern, const char *text, size_t n_bytes) {
    size_t length, next, last;
    if (text[0] == '\'' && (length = contraction(text, n_bytes, true)) > 0)
        return length;
    const enum kind first = classify(text, n_bytes, &length);
    if (first == KIND_LETTER)
        return kind_end(text, n_bytes, 0, KIND_LETTER, &last);
    if (first != KIND_NUMBER && text[0] != '\n' && text[0] != '\r' && length < n_bytes &&
        classify(text + length, n_bytes - length, &next) == KIND_LETTER)
        return kind_end(text, n_bytes, length, KIND_LETTER, &last);
    return next_rest(pattern, text, n_bytes);
}

// The character classes of words in o200k_base's pattern. Marks and letters without case are in both.
enum { CAPITAL = 1, SMALL = 2 };
static int case_of(const char *text, size_t n_bytes, size_t *length) {
    utf8proc_int32_t c;
    const utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes, &c);
    *length = n > 0 ? (size_t)n : 1;
    switch (n > 0 ? utf8proc_category(c) : UTF8PROC_CATEGORY_CN) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return CAPITAL;
    case UTF8PROC_CATEGORY_LL:
        return SMALL;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return CAPITAL | SMALL;
    default:
        return 0;
    }
}

// Matches a word that begins at `at`: capitals, then small letters; either may be absent. Returns the end of
// the word; 0 if there is none.
//   small   true: the word must end in a small letter. If only capitals match, it ends after the last of them
//           that is in both classes, as in a regular expression that backtracks
static size_t cased_end(const char *text, size_t n_bytes, size_t at, bool small) {
    const size_t start = at;
    size_t length, both = 0;
    for (int c; at < n_bytes && (c = case_of(text + at, n_bytes - at, &length)) & CAPITAL;) {
        at += length;
        both = c & SMALL ? at : both;
    }
    const size_t capitals = at;
    while (at < n_bytes && case_of(text + at, n_bytes - at, &length) & SMALL)
        at += length;
    return at > capitals ? at : small ? both : capitals > start ? capitals : 0;
}

static size_t next_o200k(const char *text, size_t n_bytes) {
    size_t length, end = 0;
    const enum kind first = classify(text, n_bytes, &length);
    const bool may_precede =
        first != KIND_LETTER && first != KIND_NUMBER && text[0] != '\n' && text[0] != '\r';
    for (int small = 1; small >= 0 && end == 0; small--) {
        end = may_precede ? cased_end(text, n_bytes, length, small) : 0;
        end = end > 0 ? end : cased_end(text, n_bytes, 0, small);
    }
    if (end == 0)
        return next_rest(TOKEN_PATTERN_O200K, text, n_bytes);
    return end + (end < n_bytes && text[end] == '\'' ? contraction(text + end, n_bytes - end, true) : 0);
}

static size_t next_spaces(const char *text, size_t n_bytes, bool lines) {
    size_t at = 0;
    if (lines && text[0] == '\n')
        return 1;
    for (size_t n = 1; at < n_bytes && n > 0; at += n)
        n = text[at] == ' ' ? 1 : is_lower_block(text + at, n_bytes - at) ? 3 : 0;
    while (at < n_bytes && text[at] != ' ' && !(lines && text[at] == '\n') &&
           !(text[at] == LOWER_BLOCK[0] && is_lower_block(text + at, n_bytes - at)))
        at++;
    return at;
}

size_t tokenizer_next_pretoken(struct token_rules rules, const char *text, size_t n_bytes) {
    switch (rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
    case TOKEN_PATTERN_QWEN2:
    case TOKEN_PATTERN_CL100K:
        return next_llama3(rules.pattern, text, n_bytes);
    case TOKEN_PATTERN_O200K:
        return next_o200k(text, n_bytes);
    case TOKEN_PATTERN_SMOLLM:
        return next_smollm(text, n_bytes);
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return next_spaces(text, n_bytes, rules.pattern == TOKEN_PATTERN_SPACES_AND_LINES);
    default:
        return next_gpt2(text, n_bytes);
    }
}

// True if the character that ends before `at` is white space. False for bytes that are not part of a
// character.
static bool space_ends_at(const char *text, size_t at) {
    for (size_t n = 1; n <= 4 && n <= at; n++) {
        size_t length;
        if (((unsigned char)text[at - n] & 0xC0) != 0x80)
            return classify(text + at - n, n, &length) == KIND_SPACE && length == n;
    }
    return false;
}

static bool starts_word(const char *text, size_t n_bytes) {
    size_t length;
    const enum kind kind = classify(text, n_bytes, &length);
    return kind == KIND_LETTER || kind == KIND_NUMBER;
}

// True if the text can be split at `at` without changing its pre-tokens or its normalization. Splits only
// beside spaces and line ends, because NFC does not join these with other characters.
static bool is_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t at) {
    switch (rules.pattern) {
    case TOKEN_PATTERN_LLAMA3:
    case TOKEN_PATTERN_QWEN2:
    case TOKEN_PATTERN_CL100K:
    case TOKEN_PATTERN_O200K: // a line end may belong to the pre-token before it
        return (text[at] == ' ' && !space_ends_at(text, at)) ||
               (text[at - 1] == '\n' && starts_word(text + at, n_bytes - at));
    case TOKEN_PATTERN_SPACES:
    case TOKEN_PATTERN_SPACES_AND_LINES:
        return (text[at] == ' ' && text[at - 1] != ' ' && !(at >= 3 && is_lower_block(text + at - 3, 3))) ||
               (text[at] == '\n' && rules.pattern == TOKEN_PATTERN_SPACES_AND_LINES);
    default:
        return (text[at] == ' ' || text[at] == '\n') && !space_ends_at(text, at);
    }
}

// True if an added token ends at `at`. A chunk must not begin there: the text after an added token is encoded
// as a new text, not as a continuation.
static bool follows_added(const struct added_tokens *added, const char *text, size_t at) {
    for (int i = 0; added && i < added->n; i++) {
        const struct added_token *token = &added->list[i];
        const size_t n = token->n - token->prefix;
        if (n <= at && memcmp(text + at - n, token->bytes + token->prefix, n) == 0)
            return true;
    }
    return false;
}

bool tokenizer_is_in_added(struct token_rules rules, const char *text, size_t n_bytes, size_t at) {
    for (int i = 0; rules.added && i < rules.added->n; i++) {
        const struct added_token *token = &rules.added->list[i];
        const size_t n = token->n - token->prefix;
        for (size_t before = 1; before < n && before <= at; before++)
            if (n - before <= n_bytes - at &&
                memcmp(text + at - before, token->bytes + token->prefix, n) == 0)
                return true;
    }
    return false;
}

size_t tokenizer_next_boundary(struct token_rules rules, const char *text, size_t n_bytes, size_t from) {
    if (rules.added && rules.added->has_blank)
        return n_bytes;
    for (size_t at = from; at < n_bytes; at++)
        if (is_boundary(rules, text, n_bytes, at) && !follows_added(rules.added, text, at))
            return at;
    return n_bytes;
}

// ---- encoding

// The state of merging one pre-token. A linked list holds its tokens: at first one per symbol (byte or
// character). A heap holds the candidate merges, ordered by rank, then from left to right. A candidate
// whose tokens have changed meanwhile is skipped.
struct node {
    int32_t id;             // -1: merged into its left neighbour
    int32_t previous, next; // indices in `nodes`; -1: none
};
struct merge_candidate {
    int32_t rank, at;    // at: index of the left node
    int32_t left, right; // ids of the two tokens when the candidate was added
};
struct merging {
    struct node *nodes;
    struct merge_candidate *heap;
    size_t n_heap, capacity;
    int32_t limit; // do only merges of lower rank than this
    bool no_whole; // always merge, even if the whole pre-token is a token
};

static bool before(const struct merge_candidate *a, const struct merge_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct merging *merging, struct merge_candidate candidate) {
    size_t i = merging->n_heap++;
    while (i > 0 && before(&candidate, &merging->heap[(i - 1) / 2])) {
        merging->heap[i] = merging->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    merging->heap[i] = candidate;
}

static struct merge_candidate heap_pop(struct merging *merging) {
    struct merge_candidate top = merging->heap[0], last = merging->heap[--merging->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < merging->n_heap; i = child) {
        if (child + 1 < merging->n_heap && before(&merging->heap[child + 1], &merging->heap[child]))
            child++;
        if (!before(&merging->heap[child], &last))
            break;
        merging->heap[i] = merging->heap[child];
    }
    merging->heap[i] = last;
    return top;
}

static void consider(struct merging *merging, int32_t rank, int32_t at, int32_t left, int32_t right) {
    if (rank >= 0 && rank < merging->limit)
        heap_push(merging, (struct merge_candidate){rank, at, left, right});
}

static void consider_merged(const struct tokenizer *tokenizer, struct merging *merging, int32_t at) {
    int32_t next = at < 0 ? -1 : merging->nodes[at].next;
    if (next < 0)
        return;
    int32_t left = merging->nodes[at].id, right = merging->nodes[next].id;
    consider(merging, tokenizer_find_pair(tokenizer, left, right), at, left, right);
}

static void merging_reserve(struct merging *merging, size_t n) {
    if (n <= merging->capacity)
        return;
    merging->capacity = 2 * n;
    merging->nodes = reallocate(merging->nodes, 2 * n, sizeof *merging->nodes);
    // 3 candidates for each of up to 2 * n bytes: one at first, and two more after each merge.
    merging->heap = reallocate(merging->heap, 6 * n, sizeof *merging->heap);
}

// The symbols of a pre-token before merging.
struct symbols {
    const struct tokenizer *tokenizer;
    struct node *nodes;
    int32_t n;
    bool after_unknown; // the last symbol is the unknown token
};

static void add_symbol(struct symbols *symbols, int32_t id) {
    symbols->nodes[symbols->n] = (struct node){id, symbols->n - 1, symbols->n + 1};
    symbols->n++;
    symbols->after_unknown = false;
}

// Adds the symbols of a byte or character that has no token of its own: its byte tokens or, if the tokenizer
// has none, the unknown token.
static void add_unknown(struct symbols *symbols, const unsigned char *bytes, size_t n) {
    const struct tokenizer *tokenizer = symbols->tokenizer;
    if (tokenizer->fallback_ids[bytes[0]] >= 0) { // either all 256 bytes have a byte token, or none has
        for (size_t i = 0; i < n; i++)
            add_symbol(symbols, tokenizer->fallback_ids[bytes[i]]);
    } else if (tokenizer->unknown >= 0 && !(symbols->after_unknown && tokenizer->fuse_unknown)) {
        add_symbol(symbols, tokenizer->unknown);
        symbols->after_unknown = true;
    }
}

static void add_bytes(struct symbols *symbols, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const int32_t id = symbols->tokenizer->byte_ids[bytes[i]];
        if (id >= 0)
            add_symbol(symbols, id);
        else
            add_unknown(symbols, bytes + i, 1);
    }
}

// Adds the tokens of single characters. U+2581 in the text counts as a space, because the tokenizer's file
// writes spaces as U+2581.
static void add_characters(struct symbols *symbols, const unsigned char *text, size_t n) {
    for (size_t at = 0, length; at < n; at += length) {
        utf8proc_int32_t c;
        const utf8proc_ssize_t valid = utf8proc_iterate(text + at, (utf8proc_ssize_t)(n - at), &c);
        length = valid > 0 ? (size_t)valid : 1;
        const int32_t id = length == 1 ? symbols->tokenizer->byte_ids[text[at]]
                           : c == 0x2581
                               ? symbols->tokenizer->byte_ids[' ']
                               : tokenizer_find(symbols->tokenizer, (const char *)text + at, length);
        if (id >= 0 && valid > 0)
            add_symbol(symbols, id);
        else
            add_unknown(symbols, text + at, length);
    }
}

static void find_candidates(const struct tokenizer *tokenizer, struct merging *merging, int32_t n,
                            const unsigned char *bytes, bool are_bytes) {
    struct node *nodes = merging->nodes;
    merging->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        const int32_t left = nodes[i].id, right = nodes[i + 1].id;
        consider(merging,
                 are_bytes ? tokenizer->pairs.of_bytes[bytes[i]][bytes[i + 1]]
                           : tokenizer_find_pair(tokenizer, left, right),
                 i, left, right);
    }
}

static void merge(const struct tokenizer *tokenizer, struct merging *merging) {
    struct node *nodes = merging->nodes;
    while (merging->n_heap > 0) {
        struct merge_candidate best = heap_pop(merging);
        struct node *left = &nodes[best.at];
        if (left->id != best.left || left->next < 0 || nodes[left->next].id != best.right)
            continue;
        struct node *right = &nodes[left->next];
        left->id = tokenizer->pairs.merge_ids ? tokenizer->pairs.merge_ids[best.rank] : best.rank;
        left->next = right->next;
        if (right->next >= 0)
            nodes[right->next].previous = best.at;
        right->id = -1;
        consider_merged(tokenizer, merging, left->previous);
        consider_merged(tokenizer, merging, best.at);
    }
}

static enum status encode_pretoken(const struct tokenizer *tokenizer, struct merging *merging,
                                   const char *pretoken, size_t n, struct token_list *list) {
    const int32_t whole = merging->no_whole ? -1 : tokenizer_find(tokenizer, pretoken, n);
    token_list_reserve(list, n);
    if (whole >= 0 && whole < merging->limit && tokenizer->is_whole[whole]) {
        list->ids[list->n++] = whole;
        return STATUS_OK;
    }
    if (n > INT32_MAX / 8)
        return FAIL(STATUS_INVALID, "a word of %zu bytes is too long to encode", n);
    merging_reserve(merging, n);
    const bool of_characters = tokenizer_is_of_characters(tokenizer->rules.pattern);
    const unsigned char *bytes = (const unsigned char *)pretoken;
    struct symbols symbols = {.tokenizer = tokenizer, .nodes = merging->nodes};
    (of_characters ? add_characters : add_bytes)(&symbols, bytes, n);
    if (symbols.n == 0)
        return STATUS_OK;
    symbols.nodes[symbols.n - 1].next = -1;
    find_candidates(tokenizer, merging, symbols.n, bytes, !of_characters && (size_t)symbols.n == n);
    merge(tokenizer, merging);
    for (int32_t i = 0; i >= 0; i = symbols.nodes[i].next)
        list->ids[list->n++] = symbols.nodes[i].id;
    return STATUS_OK;
}

enum status tokenizer_encode_below(const struct tokenizer *tokenizer, const char *pretoken, size_t n,
                                   int32_t limit, struct token_list *list) {
    struct merging merging = {.limit = limit};
    enum status status = encode_pretoken(tokenizer, &merging, pretoken, n, list);
    free(merging.nodes);
    free(merging.heap);
    return status;
}

enum status tokenizer_find_whole(struct tokenizer *tokenizer) {
    struct merging merging = {.limit = INT32_MAX, .no_whole = true};
    struct token_list list = {0};
    enum status status = STATUS_OK;
    for (int32_t id = 0; id < tokenizer->n_ids && status == STATUS_OK; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        list.n = 0;
        if (tokenizer->types[id] == TOKEN_NORMAL && !tokenizer->ignore_merges)
            status = encode_pretoken(tokenizer, &merging, bytes, n, &list);
        tokenizer->is_whole[id] = tokenizer->types[id] == TOKEN_NORMAL &&
                                  (tokenizer->ignore_merges || (list.n == 1 && list.ids[0] == id));
    }
    token_list_free(&list);
    free(merging.nodes);
    free(merging.heap);
    return status;
}

// The cache of pre-tokens that have been encoded. Each entry holds one pre-token and its ids, and fills one
// cache line.
#define N_REMEMBERED       (1 << 15) // entries
#define LONGEST_REMEMBERED 34        // maximum bytes of a pre-token
#define MOST_REMEMBERED    7         // maximum ids of a pre-token
struct remembered {
    int32_t ids[MOST_REMEMBERED];
    uint8_t n_ids, n_bytes; // n_bytes 0: empty
    char bytes[LONGEST_REMEMBERED];
};
_Static_assert(sizeof(struct remembered) == 64, "an entry of the cache fills a cache line");

struct token_encoder {
    const struct tokenizer *tokenizer;
    struct merging merging;
    struct remembered *cache;      // (N_REMEMBERED)
    struct text normalized, first; // buffers of normalize() and add_first()
};

struct token_encoder *token_encoder_new(const struct tokenizer *tokenizer) {
    struct token_encoder *encoder = allocate(1, sizeof *encoder);
    encoder->tokenizer = tokenizer;
    encoder->merging.limit = INT32_MAX;
    encoder->cache = allocate(N_REMEMBERED, sizeof *encoder->cache);
    return encoder;
}

void token_encoder_delete(struct token_encoder *encoder) {
    if (!encoder)
        return;
    free(encoder->merging.nodes);
    free(encoder->merging.heap);
    free(encoder->cache);
    text_free(&encoder->normalized);
    text_free(&encoder->first);
    free(encoder);
}

static enum status encode_and_remember(struct token_encoder *encoder, struct remembered *entry,
                                       const char *pretoken, size_t n, struct token_list *list) {
    const size_t first = list->n;
    TRY(encode_pretoken(encoder->tokenizer, &encoder->merging, pretoken, n, list));
    const size_t n_ids = list->n - first;
    if (n <= LONGEST_REMEMBERED && n_ids <= MOST_REMEMBERED) {
        memcpy(entry->ids, list->ids + first, n_ids * sizeof *entry->ids);
        memcpy(entry->bytes, pretoken, n);
        entry->n_ids = (uint8_t)n_ids;
        entry->n_bytes = (uint8_t)n;
    }
    return STATUS_OK;
}

// Encodes the first pre-token with a space before it. If it is a line feed that is a pre-token of its own
// (TOKEN_PATTERN_SPACES_AND_LINES), the ids are the same as with the space as a separate pre-token, because
// no merge joins a space and a line feed.
static enum status add_first(struct token_encoder *encoder, const char *pretoken, size_t n,
                             struct token_list *list) {
    encoder->first.length = 0;
    text_add_bytes(&encoder->first, " ", 1);
    text_add_bytes(&encoder->first, pretoken, n);
    return encode_pretoken(encoder->tokenizer, &encoder->merging, encoder->first.data, n + 1, list);
}

// Encodes text between added tokens, pre-token by pre-token.
//   adds_space   true: put a space before the text
static enum status add_words(struct token_encoder *encoder, const char *text, size_t bytes, bool adds_space,
                             struct token_list *list) {
    const struct token_rules rules = encoder->tokenizer->rules;
    size_t at = 0;
    if (adds_space && bytes > 0) {
        at = tokenizer_next_pretoken(rules, text, bytes);
        TRY(add_first(encoder, text, at, list));
    }
    for (size_t n; at < bytes; at += n) {
        n = tokenizer_next_pretoken(rules, text + at, bytes - at);
        struct remembered *entry = &encoder->cache[XXH3_64bits(text + at, n) & (N_REMEMBERED - 1)];
        if (entry->n_bytes != n || memcmp(entry->bytes, text + at, n) != 0) {
            TRY(encode_and_remember(encoder, entry, text + at, n, list));
            continue;
        }
        token_list_reserve(list, entry->n_ids);
        memcpy(list->ids + list->n, entry->ids, entry->n_ids * sizeof *list->ids);
        list->n += entry->n_ids;
    }
    return STATUS_OK;
}

// Finds the first place from `at` on where an added token begins. Returns the longest added token that begins
// there; NULL if there is no such place.
//   is_normalized   true: find only the added tokens with is_normalized; false: only the others
//   found           [out] offset of the place; `bytes` if there is none
static const struct added_token *find_added(const struct added_tokens *added, bool is_normalized,
                                            const char *text, size_t bytes, size_t at, size_t *found) {
    const struct added_token *longest = NULL;
    const int n = is_normalized ? added->n_normalized : added->n - added->n_normalized;
    for (*found = n > 0 ? at : bytes; *found < bytes; (*found)++) {
        const char *here = text + *found;
        for (int i = 0; added->begins[(unsigned char)*here] && i < added->n; i++) {
            const struct added_token *token = &added->list[i];
            if (token->is_normalized == is_normalized && token->n <= bytes - *found &&
                (!longest || token->n > longest->n) && memcmp(token->bytes, here, token->n) == 0)
                longest = token;
        }
        if (longest)
            return longest;
    }
    return NULL;
}

// How a piece (the text between two added tokens) begins. If both are false, it continues the previous text.
struct beginning {
    bool of_text;  // at the start of the text
    bool of_piece; // at the start of the text, or after an added token
};

// True if add_words must put a space before the piece of text.
static bool puts_space(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                       struct beginning begins) {
    const bool has_space = bytes > 0 && (text[0] == ' ' || is_lower_block(text, bytes));
    switch (tokenizer->adds_space) {
    case SPACE_ALWAYS: // if added tokens are searched for in normalized text, normalize() has put it
        return begins.of_piece && tokenizer->added.n_normalized == 0;
    case SPACE_UNLESS_SPACE:
        return begins.of_piece && !has_space;
    case SPACE_FIRST:
        return begins.of_text && !has_space;
    default:
        return false;
    }
}

// Normalizes the text, if the tokenizer's rules require it. With SPACE_ALWAYS, also puts the space before the
// text, but only if some added tokens are searched for in normalized text; otherwise add_words puts it.
//   text, bytes   [in, out] the text and its length
//   begins        false: the text continues the previous text, so no space is added
static enum status normalize(struct token_encoder *encoder, const char **text, size_t *bytes, bool begins) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    struct text *out = &encoder->normalized;
    if (tokenizer->rules.nfc && utf8_may_normalize(*text, *bytes)) {
        TRY(utf8_normalize(*text, *bytes, out));
    } else if (tokenizer->adds_space == SPACE_ALWAYS && tokenizer->added.n_normalized > 0) {
        out->length = 0;
        text_add(out, "%s", begins ? " " : "");
        text_add_bytes(out, *text, *bytes);
        out->length = tokenizer_replace_blocks(out->data, out->length);
    } else {
        return STATUS_OK;
    }
    *text = out->data;
    *bytes = out->length;
    return STATUS_OK;
}

// Encodes text in two passes. The first pass splits it at the added tokens that are searched for in raw text,
// and normalizes each piece. The second pass splits the piece at those that are searched for in normalized
// text.
//   is_normalized   false: the first pass, which calls the second for each piece; true: the second pass
static enum status add_pieces(struct token_encoder *encoder, const char *text, size_t bytes,
                              bool is_normalized, struct beginning begins, struct token_list *list) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    const struct added_token *token;
    size_t at = 0, end;
    do {
        token = find_added(&tokenizer->added, is_normalized, text, bytes, at, &end);
        const char *piece = text + at;
        size_t n = end - at;
        const struct beginning of_piece = {begins.of_text && at == 0, begins.of_piece || at > 0};
        if (n > 0 && is_normalized) {
            TRY(add_words(encoder, piece, n, puts_space(tokenizer, piece, n, of_piece), list));
        } else if (n > 0) {
            TRY(normalize(encoder, &piece, &n, of_piece.of_piece));
            TRY(add_pieces(encoder, piece, n, true, of_piece, list));
        }
        if (token)
            token_list_add(list, token->id);
        at = token ? end + token->n : bytes;
    } while (at < bytes);
    return STATUS_OK;
}

enum status token_encoder_add(struct token_encoder *encoder, const char *text, size_t bytes, bool begins,
                              struct token_list *list) {
    return add_pieces(encoder, text, bytes, false, (struct beginning){begins, begins}, list);
}

static enum status encode_chunk(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                bool begins, struct token_list *list) {
    struct token_encoder *encoder = token_encoder_new(tokenizer);
    enum status status = token_encoder_add(encoder, text, bytes, begins, list);
    token_encoder_delete(encoder);
    return status;
}

#define CHUNK_BYTES     ((size_t)1 << 21)
#define CHUNKS_TOGETHER 32 // maximum number of chunks that are encoded before their ids are concatenated

struct encoding {
    const struct tokenizer *tokenizer;
    const char *text;
    const size_t *ends; // (n) chunk i is text [ends[i - 1], ends[i]), and chunk 0 begins at 0
    int n;
    bool begins;              // the first chunk begins the text
    struct token_list *lists; // (n)
    atomic_int *next;         // the next chunk to encode
    atomic_int *status;       // of a chunk that failed; else STATUS_OK
};

static void encode_part(const void *context, int part, int n_parts) {
    (void)part, (void)n_parts;
    const struct encoding *encoding = context;
    for (int i; (i = atomic_fetch_add(encoding->next, 1)) < encoding->n;) {
        size_t begin = i > 0 ? encoding->ends[i - 1] : 0;
        enum status of_chunk =
            encode_chunk(encoding->tokenizer, encoding->text + begin, encoding->ends[i] - begin,
                         encoding->begins && i == 0, &encoding->lists[i]);
        if (of_chunk != STATUS_OK)
            atomic_store(encoding->status, of_chunk);
    }
}

// Encodes n chunks of the text on several threads, and appends their ids to the list in order.
//   ends   (n) chunk i is text [ends[i - 1], ends[i]), and chunk 0 begins at 0
static enum status encode_chunks(const struct tokenizer *tokenizer, const char *text, const size_t *ends,
                                 int n, bool begins, struct token_list *list) {
    struct token_list lists[CHUNKS_TOGETHER] = {0};
    atomic_int next = 0, worst = STATUS_OK;
    int n_threads = n < parallel_threads() ? n : parallel_threads();
    parallel_run(n_threads, encode_part,
                 &(struct encoding){tokenizer, text, ends, n, begins, lists, &next, &worst});
    enum status status = (enum status)atomic_load(&worst);
    for (int i = 0; i < n; i++) {
        if (status == STATUS_OK && lists[i].n > 0) {
            token_list_reserve(list, lists[i].n);
            memcpy(list->ids + list->n, lists[i].ids, lists[i].n * sizeof *list->ids);
            list->n += lists[i].n;
        }
        token_list_free(&lists[i]);
    }
    return status;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                             struct token_list *list) {
    for (size_t done = 0; done < bytes;) {
        size_t ends[CHUNKS_TOGETHER], end = 0;
        int n = 0;
        for (; n < CHUNKS_TOGETHER && end < bytes - done; n++)
            ends[n] = end =
                tokenizer_next_boundary(tokenizer->rules, text + done, bytes - done, end + CHUNK_BYTES);
        TRY(n == 1 ? encode_chunk(tokenizer, text + done, end, done == 0, list)
                   : encode_chunks(tokenizer, text + done, ends, n, done == 0, list));
        done += end;
    }
    return STATUS_OK;
}

enum status tokenizer_encode_prompt(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                    int vocab_size, struct token_list *list) {
    list->n = 0;
    if (bytes == 0 || tokenizer_has_bos(tokenizer))
        token_list_add(list, tokenizer_document_start(tokenizer));
    TRY(tokenizer_encode(tokenizer, text, bytes, list));
    for (size_t i = 0; i < list->n; i++)
        if (list->ids[i] >= vocab_size)
            return FAIL(STATUS_INVALID,
                        "the prompt has the token id %d, outside the model's vocabulary of %d: the tokenizer "
                        "is not the one that the model was trained with",
                        list->ids[i], vocab_size);
    return STATUS_OK;
}
