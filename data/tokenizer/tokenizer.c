// A tokenizer's tables: tokens by their bytes, and pairs by their tokens. Encoding is in encode.c.
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "data/tokenizer/tables.h"
#include "data/tokenizer/tokenizer.h"

// ---- tokens while they are read

void token_table_add(struct token_table *tokens, const char *bytes, size_t n, enum token_type type,
                     int line) {
    if (tokens->n + 2 > tokens->capacity) {
        const size_t capacity = tokens->capacity ? 2 * (size_t)tokens->capacity : 1024;
        tokens->offsets = reallocate(tokens->offsets, capacity, sizeof *tokens->offsets);
        tokens->lines = reallocate(tokens->lines, capacity, sizeof *tokens->lines);
        tokens->types = reallocate(tokens->types, capacity, sizeof *tokens->types);
        tokens->capacity = (int)capacity;
        tokens->offsets[0] = 0;
    }
    text_add_bytes(&tokens->bytes, bytes, n);
    tokens->lines[tokens->n] = line;
    tokens->types[tokens->n] = (uint8_t)type;
    tokens->offsets[++tokens->n] = (uint32_t)tokens->bytes.length;
}

void token_table_free(struct token_table *tokens) {
    text_free(&tokens->bytes);
    free(tokens->offsets);
    free(tokens->types);
    free(tokens->lines);
    *tokens = (struct token_table){0};
}

void token_alphabet_init(struct token_alphabet *alphabet) {
    int n = 0, next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        alphabet->code_points[byte] = printable ? byte : 0;
        if (printable)
            alphabet->order[n++] = byte;
    }
    for (int byte = 0; byte < 256; byte++)
        if (!alphabet->code_points[byte]) {
            alphabet->code_points[byte] = next++;
            alphabet->order[n++] = byte;
        }
    for (int c = 0; c < TOKEN_ALPHABET_END; c++)
        alphabet->bytes[c] = -1;
    for (int byte = 0; byte < 256; byte++)
        alphabet->bytes[alphabet->code_points[byte]] = (int16_t)byte;
}

int token_decode(const char *text, size_t n, const struct token_alphabet *alphabet, char *out) {
    int bytes = 0;
    while (n > 0) {
        utf8proc_int32_t c;
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &c);
        if (length <= 0 || c >= TOKEN_ALPHABET_END || alphabet->bytes[c] < 0)
            return -1;
        out[bytes++] = (char)alphabet->bytes[c];
        text += length;
        n -= (size_t)length;
    }
    return bytes;
}

// ---- the tables of tokens and pairs

uint64_t tokenizer_hash_pair(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 29;
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes) {
    for (size_t slot = XXH3_64bits(bytes, n_bytes) & (tokenizer->n_slots - 1); tokenizer->slots[slot] >= 0;
         slot = (slot + 1) & (tokenizer->n_slots - 1)) {
        int32_t id = tokenizer->slots[slot];
        uint32_t begin = tokenizer->offsets[id], end = tokenizer->offsets[id + 1];
        if (end - begin == n_bytes && memcmp(tokenizer->bytes + begin, bytes, n_bytes) == 0)
            return id;
    }
    return -1;
}

// Returns the slot of a pair, or the empty slot where it belongs.
static struct pair_slot *pair_slot(const struct tokenizer *tokenizer, int32_t left, int32_t right) {
    const uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    size_t slot = tokenizer_hash_pair(pair) & (tokenizer->pairs.n_slots - 1);
    while (tokenizer->pairs.slots[slot].pair != EMPTY_KEY && tokenizer->pairs.slots[slot].pair != pair)
        slot = (slot + 1) & (tokenizer->pairs.n_slots - 1);
    return &tokenizer->pairs.slots[slot];
}

int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right) {
    const struct pair_slot *slot = pair_slot(tokenizer, left, right);
    return slot->pair == EMPTY_KEY ? -1 : slot->rank;
}

static void set_pair(struct tokenizer *tokenizer, int32_t left, int32_t right, int32_t rank) {
    *pair_slot(tokenizer, left, right) = (struct pair_slot){(uint64_t)left << 32 | (uint32_t)right, rank};
}

static size_t table_size(size_t n) {
    size_t size = 1024;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static enum status refuse_token(const struct token_table *tokens, const char *source, int32_t id,
                                int32_t other) {
    char place[24] = "";
    if (tokens->lines[id] > 0)
        snprintf(place, sizeof place, ":%d", tokens->lines[id]);
    if (other < 0)
        return FAIL(STATUS_INVALID, "%s%s: token %d is empty", source, place, id);
    return FAIL(STATUS_INVALID, "%s%s: token %d has the same bytes as token %d", source, place, id, other);
}

// Builds the tables of normal tokens by their bytes, and of single-byte tokens.
static enum status build_slots(struct tokenizer *tokenizer, const struct token_table *tokens,
                               const char *source) {
    tokenizer->n_slots = table_size((size_t)tokenizer->n_ids);
    tokenizer->slots = allocate(tokenizer->n_slots, sizeof *tokenizer->slots);
    memset(tokenizer->slots, 0xff, tokenizer->n_slots * sizeof *tokenizer->slots);
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        const char *bytes = tokenizer->bytes + tokenizer->offsets[id];
        const size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        if (n == 0)
            return refuse_token(tokens, source, id, -1);
        if (tokenizer->types[id] == TOKEN_BYTE)
            tokenizer->fallback_ids[(unsigned char)bytes[0]] = id;
        if (tokenizer->types[id] != TOKEN_NORMAL)
            continue;
        const int32_t other = tokenizer_find(tokenizer, bytes, n);
        if (other >= 0)
            return refuse_token(tokens, source, id, other);
        size_t slot = XXH3_64bits(bytes, n) & (tokenizer->n_slots - 1);
        while (tokenizer->slots[slot] >= 0)
            slot = (slot + 1) & (tokenizer->n_slots - 1);
        tokenizer->slots[slot] = id;
        if (n == 1)
            tokenizer->byte_ids[(unsigned char)bytes[0]] = id;
    }
    return STATUS_OK;
}

enum status tokenizer_from_table(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) {
    struct tokenizer *tokenizer = allocate(1, sizeof *tokenizer);
    *out = NULL;
    *tokenizer = (struct tokenizer){.kind = kind,
                                    .n_ids = tokens->n,
                                    .bytes = tokens->bytes.data,
                                    .offsets = tokens->offsets,
                                    .types = tokens->types,
                                    .end_of_text = -1,
                                    .start = -1,
                                    .unknown = -1};
    tokens->bytes = (struct text){0};
    tokens->offsets = NULL;
    tokens->types = NULL;
    memset(tokenizer->byte_ids, 0xff, sizeof tokenizer->byte_ids);
    memset(tokenizer->fallback_ids, 0xff, sizeof tokenizer->fallback_ids);
    memset(tokenizer->pairs.of_bytes, 0xff, sizeof tokenizer->pairs.of_bytes);
    tokenizer->is_whole = allocate((size_t)tokenizer->n_ids, sizeof *tokenizer->is_whole);
    const enum status status = build_slots(tokenizer, tokens, source);
    token_table_free(tokens);
    if (status == STATUS_OK)
        *out = tokenizer;
    else
        tokenizer_delete(tokenizer);
    return status;
}

// ---- adding pairs

static void make_pair_slots(struct tokenizer *tokenizer, size_t n) {
    tokenizer->pairs.n_slots = table_size(n);
    tokenizer->pairs.slots = allocate(tokenizer->pairs.n_slots, sizeof *tokenizer->pairs.slots);
    for (size_t slot = 0; slot < tokenizer->pairs.n_slots; slot++)
        tokenizer->pairs.slots[slot].pair = EMPTY_KEY;
}

static void find_byte_pairs(struct tokenizer *tokenizer) {
    for (int left = 0; left < 256; left++)
        for (int right = 0; right < 256; right++)
            if (tokenizer->byte_ids[left] >= 0 && tokenizer->byte_ids[right] >= 0)
                tokenizer->pairs.of_bytes[left][right] =
                    tokenizer_find_pair(tokenizer, tokenizer->byte_ids[left], tokenizer->byte_ids[right]);
}

// Finds all pairs of normal tokens that concatenate to a third. Returns their number.
//   has_length   by number of bytes: whether any token has this length. A token is split only into two such
//                lengths
//   add          true: also add the pairs to the table
static size_t each_pair(struct tokenizer *tokenizer, const bool *has_length, bool add) {
    size_t n_pairs = 0;
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        const char *bytes = tokenizer->bytes + tokenizer->offsets[id];
        const size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        for (size_t cut = 1; cut < n && tokenizer->types[id] == TOKEN_NORMAL; cut++) {
            if (!has_length[cut] || !has_length[n - cut])
                continue;
            const int32_t left = tokenizer_find(tokenizer, bytes, cut),
                          right = left < 0 ? -1 : tokenizer_find(tokenizer, bytes + cut, n - cut);
            if (right < 0)
                continue;
            n_pairs++;
            if (add)
                set_pair(tokenizer, left, right, id);
        }
    }
    return n_pairs;
}

enum status tokenizer_pair_all(struct tokenizer *tokenizer, const char *source) {
    size_t longest = 0;
    for (int byte = 0; byte < 256; byte++)
        if (tokenizer->byte_ids[byte] < 0)
            return FAIL(STATUS_INVALID,
                        "%s: no token for the byte 0x%02x, expected one for each of the 256 bytes", source,
                        byte);
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        const size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        longest = n > longest ? n : longest;
        tokenizer->is_whole[id] = tokenizer->types[id] == TOKEN_NORMAL;
    }
    bool *has_length = allocate(longest + 1, sizeof *has_length);
    for (int32_t id = 0; id < tokenizer->n_ids; id++)
        has_length[tokenizer->offsets[id + 1] - tokenizer->offsets[id]] = true;
    make_pair_slots(tokenizer, each_pair(tokenizer, has_length, false));
    each_pair(tokenizer, has_length, true);
    free(has_length);
    find_byte_pairs(tokenizer);
    return STATUS_OK;
}

void tokenizer_pair_merges(struct tokenizer *tokenizer, const struct token_merge *merges, int n) {
    make_pair_slots(tokenizer, (size_t)n);
    tokenizer->pairs.merge_ids = allocate((size_t)n, sizeof *tokenizer->pairs.merge_ids);
    tokenizer->pairs.n_merges = n;
    for (int32_t rank = 0; rank < n; rank++) {
        tokenizer->pairs.merge_ids[rank] = merges[rank].id;
        set_pair(tokenizer, merges[rank].left, merges[rank].right, rank);
    }
    find_byte_pairs(tokenizer);
}

// ---- added tokens

size_t tokenizer_replace_blocks(char *text, size_t n_bytes) {
    size_t n = 0;
    for (size_t at = 0; at < n_bytes; n++) {
        const bool is_block = is_lower_block(text + at, n_bytes - at);
        text[n] = is_block ? ' ' : text[at];
        at += is_block ? 3 : 1;
    }
    return n;
}

enum status tokenizer_add_added(struct tokenizer *tokenizer, int32_t id, const char *name,
                                bool is_normalized) {
    struct added_tokens *added = &tokenizer->added;
    struct text bytes = {0}, normal = {0};
    const bool has_space = is_normalized && tokenizer->adds_space == SPACE_ALWAYS;
    text_add(&bytes, "%s%s", has_space ? " " : "", name);
    if (is_normalized && tokenizer->rules.nfc) {
        const enum status status = utf8_normalize(bytes.data, bytes.length, &normal);
        text_free(&bytes);
        TRY(status);
        bytes = normal;
    } else if (has_space) {
        bytes.length = tokenizer_replace_blocks(bytes.data, bytes.length);
    }
    RESERVE(added->list, added->n + 1, added->capacity);
    added->list[added->n++] = (struct added_token){.id = id,
                                                   .is_normalized = is_normalized,
                                                   .n = bytes.length,
                                                   .prefix = has_space,
                                                   .bytes = bytes.data};
    added->n_normalized += is_normalized;
    added->begins[(unsigned char)bytes.data[0]] = true;
    added->has_blank = added->has_blank || strpbrk(name, " \n");
    tokenizer->rules.added = added;
    return STATUS_OK;
}

// ---- the checksum

// Returns the checksum `seed`, extended by the merges. The merges are left out if the ids that they make rise
// with their ranks: they then follow from the tokens, and a file without merges must get the same checksum.
static uint64_t merges_checksum(const struct tokenizer *tokenizer, uint64_t seed) {
    bool rising = true;
    for (int32_t rank = 1; rank < tokenizer->pairs.n_merges; rank++)
        rising = rising && tokenizer->pairs.merge_ids[rank] >= tokenizer->pairs.merge_ids[rank - 1];
    if (rising)
        return seed;
    uint64_t sum = 0; // a sum does not depend on the order of the slots
    for (size_t slot = 0; slot < tokenizer->pairs.n_slots; slot++)
        if (tokenizer->pairs.slots[slot].pair != EMPTY_KEY)
            sum += XXH3_64bits_withSeed(&tokenizer->pairs.slots[slot].pair, sizeof(uint64_t),
                                        (uint64_t)tokenizer->pairs.slots[slot].rank);
    return XXH3_64bits_withSeed(&sum, sizeof sum, seed);
}

void tokenizer_set_checksum(struct tokenizer *tokenizer) {
    const int n =
        tokenizer->is_plain ? tokenizer->n_ids - 1 : tokenizer->n_ids; // if plain, without end-of-text
    const uint64_t of_tokens =
        XXH3_64bits_withSeed(tokenizer->bytes, tokenizer->offsets[n],
                             XXH3_64bits(tokenizer->offsets, ((size_t)n + 1) * sizeof *tokenizer->offsets));
    bool all_whole = true;
    for (int32_t id = 0; id < n; id++)
        all_whole = all_whole && (tokenizer->types[id] != TOKEN_NORMAL || tokenizer->is_whole[id]);
    const int32_t settings[] = {(int32_t)tokenizer->rules.pattern,
                                tokenizer->rules.nfc,
                                all_whole,
                                (int32_t)tokenizer->adds_space,
                                tokenizer->fuse_unknown,
                                tokenizer->unknown,
                                tokenizer->end_of_text,
                                tokenizer->start};
    tokenizer->checksum =
        tokenizer->is_plain
            ? of_tokens
            : merges_checksum(tokenizer, XXH3_64bits_withSeed(
                                             tokenizer->types, (size_t)n,
                                             XXH3_64bits_withSeed(settings, sizeof settings, of_tokens)));
}

enum status tokenizer_make_plain(struct token_table *tokens, const char *kind, const char *source,
                                 struct tokenizer **out) {
    token_table_add(tokens, END_OF_TEXT, strlen(END_OF_TEXT), TOKEN_CONTROL, 0);
    TRY(tokenizer_from_table(tokens, kind, source, out));
    (*out)->is_plain = true;
    (*out)->end_of_text = (*out)->n_ids - 1;
    const enum status status = tokenizer_pair_all(*out, source);
    if (status == STATUS_OK)
        tokenizer_set_checksum(*out);
    else {
        tokenizer_delete(*out);
        *out = NULL;
    }
    return status;
}

void tokenizer_delete(struct tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    for (int i = 0; i < tokenizer->added.n; i++)
        free(tokenizer->added.list[i].bytes);
    free(tokenizer->added.list);
    free(tokenizer->bytes);
    free(tokenizer->offsets);
    free(tokenizer->types);
    free(tokenizer->is_whole);
    free(tokenizer->slots);
    free(tokenizer->pairs.slots);
    free(tokenizer->pairs.merge_ids);
    free(tokenizer->json);
    free(tokenizer->chat_template);
    free(tokenizer);
}

// ---- queries

int tokenizer_n_ids(const struct tokenizer *tokenizer) {
    return tokenizer->n_ids;
}

const char *tokenizer_kind(const struct tokenizer *tokenizer) {
    return tokenizer->kind;
}

struct token_rules tokenizer_rules(const struct tokenizer *tokenizer) {
    return tokenizer->rules;
}

enum token_type tokenizer_type(const struct tokenizer *tokenizer, int32_t id) {
    return (enum token_type)tokenizer->types[id];
}

uint64_t tokenizer_checksum(const struct tokenizer *tokenizer) {
    return tokenizer->checksum;
}

int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer) {
    return tokenizer->end_of_text;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id) {
    bool is_end = id == tokenizer->end_of_text;
    for (int i = 0; i < tokenizer->n_ends; i++)
        is_end = is_end || id == tokenizer->ends[i];
    return is_end;
}

int tokenizer_ends(const struct tokenizer *tokenizer, int32_t ends[TOKENIZER_MOST_ENDS]) {
    bool has_end_of_text = false;
    int n = 0;
    for (int i = 0; i < tokenizer->n_ends; i++) {
        has_end_of_text = has_end_of_text || tokenizer->ends[i] == tokenizer->end_of_text;
        ends[n++] = tokenizer->ends[i];
    }
    if (!has_end_of_text)
        ends[n++] = tokenizer->end_of_text;
    return n;
}

const char *tokenizer_chat_template(const struct tokenizer *tokenizer) {
    return tokenizer->chat_template;
}

bool tokenizer_has_bos(const struct tokenizer *tokenizer) {
    return tokenizer->start >= 0;
}

int32_t tokenizer_document_start(const struct tokenizer *tokenizer) {
    return tokenizer->start >= 0 ? tokenizer->start : tokenizer->end_of_text;
}

void tokenizer_add_separator(const struct tokenizer *tokenizer, bool is_first, struct token_list *list) {
    if (!is_first || tokenizer->start < 0)
        token_list_add(list, tokenizer->end_of_text);
    if (tokenizer->start >= 0)
        token_list_add(list, tokenizer->start);
}

int tokenizer_n_lost_bytes(const struct tokenizer *tokenizer) {
    int n = 0;
    for (int byte = 0; byte < 256; byte++)
        n += tokenizer->byte_ids[byte] < 0 && tokenizer->fallback_ids[byte] < 0;
    return n;
}

bool tokenizer_adds_space(const struct tokenizer *tokenizer) {
    return tokenizer->adds_space != SPACE_NEVER;
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n_bytes) {
    *n_bytes = 0;
    if (id < 0 || id >= tokenizer->n_ids)
        return NULL;
    *n_bytes = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
    return tokenizer->bytes + tokenizer->offsets[id];
}

static bool is_control(const struct tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->n_ids && tokenizer->types[id] == TOKEN_CONTROL;
}

const char *tokenizer_shown_bytes(const struct tokenizer *tokenizer, int32_t before, int32_t id,
                                  size_t *n_bytes) {
    const char *bytes = tokenizer_bytes(tokenizer, id, n_bytes);
    const bool begins = before < 0 || is_control(tokenizer, before);
    if (is_control(tokenizer, id))
        *n_bytes = 0;
    const bool has_space = begins && tokenizer_adds_space(tokenizer) && *n_bytes > 0 && bytes[0] == ' ';
    *n_bytes -= has_space;
    return has_space ? bytes + 1 : bytes;
}

void tokenizer_add_text(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, struct text *out) {
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes;
        const bool named = is_control(tokenizer, ids[i]) && ids[i] != tokenizer->start;
        const char *bytes = named
                                ? tokenizer_bytes(tokenizer, ids[i], &n_bytes)
                                : tokenizer_shown_bytes(tokenizer, i > 0 ? ids[i - 1] : -1, ids[i], &n_bytes);
        text_add_bytes(out, bytes, n_bytes);
    }
}

uint64_t tokenizer_text_bytes(const struct tokenizer *tokenizer, int32_t before, const int32_t *ids,
                              size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; before = ids[i++]) {
        size_t n_bytes;
        (void)tokenizer_shown_bytes(tokenizer, before, ids[i], &n_bytes);
        bytes += n_bytes;
    }
    return bytes;
}

static int32_t find_special(const struct tokenizer *tokenizer, const char *name, size_t length) {
    for (int32_t id = 0; id < tokenizer->n_ids; id++) {
        const enum token_type type = tokenizer_type(tokenizer, id);
        const uint32_t begin = tokenizer->offsets[id], end = tokenizer->offsets[id + 1];
        if ((type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER) && end - begin == length &&
            memcmp(tokenizer->bytes + begin, name, length) == 0)
            return id;
    }
    return -1;
}

int32_t tokenizer_find_special(const struct tokenizer *tokenizer, const char *name) {
    return find_special(tokenizer, name, strlen(name));
}

int32_t tokenizer_named(const struct tokenizer *tokenizer, const char *bytes, size_t n_bytes) {
    int32_t id = tokenizer_find(tokenizer, bytes, n_bytes);
    if (id < 0)
        id = find_special(tokenizer, bytes, n_bytes);
    return id < 0 && n_bytes == 1 ? tokenizer->fallback_ids[(unsigned char)bytes[0]] : id;
}

// ---- identity

struct tokenizer_identity tokenizer_identify(const struct tokenizer *tokenizer, const char *path) {
    struct tokenizer_identity identity = {.n_ids = tokenizer_n_ids(tokenizer),
                                          .document_start = tokenizer_document_start(tokenizer),
                                          .checksum = tokenizer_checksum(tokenizer)};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; name[i] && i + 1 < sizeof identity.name; i++)
        identity.name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    return identity;
}

bool tokenizer_identity_differs(const struct tokenizer_identity *a, const struct tokenizer_identity *b) {
    return a->n_ids > 0 && b->n_ids > 0 && (a->n_ids != b->n_ids || a->checksum != b->checksum);
}

const char *tokenizer_identity_describe(const struct tokenizer_identity *identity,
                                        char buffer[TOKENIZER_DESCRIPTION_BYTES]) {
    snprintf(buffer, TOKENIZER_DESCRIPTION_BYTES, "%s (%" PRId32 " ids, checksum %016" PRIx64 ")",
             identity->name[0] ? identity->name : "a tokenizer", identity->n_ids, identity->checksum);
    return buffer;
}

// ---- lists of ids

void token_list_free(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

void token_list_reserve(struct token_list *list, size_t more) {
    if (list->capacity - list->n >= more)
        return;
    list->capacity = 2 * list->capacity > list->n + more ? 2 * list->capacity : list->n + more + 1024;
    list->ids = reallocate(list->ids, list->capacity, sizeof *list->ids);
}

void token_list_add(struct token_list *list, int32_t id) {
    token_list_reserve(list, 1);
    list->ids[list->n++] = id;
}
