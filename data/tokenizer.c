// Tables and encoding. A heap of candidate pairs merges a pre-token of n bytes in O(n log n). A cache holds
// the ids of pre-tokens already seen. Long texts are split into chunks between pre-tokens,
// which threads encode in parallel; the ids do not depend on the number of threads.
#include "data/tokenizer.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/parallel.h"
#include "data/tokenizer_internal.h"

void token_list_free(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

static enum status list_reserve(struct token_list *list, size_t more) {
    if (list->capacity - list->n >= more)
        return STATUS_OK;
    size_t capacity = 2 * list->capacity > list->n + more ? 2 * list->capacity : list->n + more + 1024;
    int32_t *grown = realloc(list->ids, capacity * sizeof *grown);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory for %zu token ids", capacity);
    list->ids = grown;
    list->capacity = capacity;
    return STATUS_OK;
}

enum status token_list_add(struct token_list *list, int32_t id) {
    TRY(list_reserve(list, 1));
    list->ids[list->n++] = id;
    return STATUS_OK;
}

// ---- tables

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

int32_t tokenizer_find_pair(const struct tokenizer *tokenizer, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    size_t slot = tokenizer_hash_pair(pair) & (tokenizer->n_pair_slots - 1);
    while (tokenizer->pairs[slot].pair != EMPTY_KEY) {
        if (tokenizer->pairs[slot].pair == pair)
            return tokenizer->pairs[slot].id;
        slot = (slot + 1) & (tokenizer->n_pair_slots - 1);
    }
    return -1;
}

static size_t table_size(size_t n) {
    size_t size = 1024;
    while (size < 2 * n)
        size *= 2;
    return size;
}

static enum status build_slots(struct tokenizer *tokenizer, const int *lines, const char *source) {
    tokenizer->n_slots = table_size((size_t)tokenizer->n_tokens);
    tokenizer->slots = malloc(tokenizer->n_slots * sizeof *tokenizer->slots);
    if (!tokenizer->slots)
        return FAIL(STATUS_FAILED, "out of memory for a tokenizer");
    memset(tokenizer->slots, 0xff, tokenizer->n_slots * sizeof *tokenizer->slots);
    for (int32_t id = 0; id < tokenizer->n_tokens; id++) {
        const char *bytes = tokenizer->bytes + tokenizer->offsets[id];
        size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        int32_t other = n ? tokenizer_find(tokenizer, bytes, n) : -1;
        char place[24] = "";
        if (lines)
            snprintf(place, sizeof place, ":%d", lines[id]);
        if (n == 0)
            return FAIL(STATUS_INVALID, "%s%s: token %d is empty", source, place, id);
        if (other >= 0)
            return FAIL(STATUS_INVALID, "%s%s: token %d has the same bytes as token %d", source, place, id,
                        other);
        size_t slot = XXH3_64bits(bytes, n) & (tokenizer->n_slots - 1);
        while (tokenizer->slots[slot] >= 0)
            slot = (slot + 1) & (tokenizer->n_slots - 1);
        tokenizer->slots[slot] = id;
    }
    for (int byte = 0; byte < 256; byte++) {
        const char c = (char)byte;
        tokenizer->byte_ids[byte] = tokenizer_find(tokenizer, &c, 1);
        if (tokenizer->byte_ids[byte] < 0)
            return FAIL(STATUS_INVALID,
                        "%s: no token for the byte 0x%02x, expected one for each of the 256 bytes", source,
                        byte);
    }
    return STATUS_OK;
}

// Visits every way to concatenate two tokens to a third. Counts them; with `add`, adds them to the table.
// has_length: the lengths that tokens have. A long token is split only where both halves have such a length.
static size_t each_pair(struct tokenizer *tokenizer, const bool *has_length, bool add) {
    size_t n_pairs = 0;
    for (int32_t id = 0; id < tokenizer->n_tokens; id++) {
        const char *bytes = tokenizer->bytes + tokenizer->offsets[id];
        size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        for (size_t cut = 1; cut < n; cut++) {
            if (!has_length[cut] || !has_length[n - cut])
                continue;
            int32_t left = tokenizer_find(tokenizer, bytes, cut);
            int32_t right = left < 0 ? -1 : tokenizer_find(tokenizer, bytes + cut, n - cut);
            if (right < 0)
                continue;
            n_pairs++;
            if (!add)
                continue;
            uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
            size_t slot = tokenizer_hash_pair(pair) & (tokenizer->n_pair_slots - 1);
            while (tokenizer->pairs[slot].pair != EMPTY_KEY)
                slot = (slot + 1) & (tokenizer->n_pair_slots - 1);
            tokenizer->pairs[slot] = (struct pair_slot){pair, id};
        }
    }
    return n_pairs;
}

static enum status build_pairs(struct tokenizer *tokenizer) {
    size_t longest = 0;
    for (int32_t id = 0; id < tokenizer->n_tokens; id++) {
        size_t n = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        longest = n > longest ? n : longest;
    }
    bool *has_length = calloc(longest + 1, sizeof *has_length);
    if (!has_length)
        return FAIL(STATUS_FAILED, "out of memory for a tokenizer");
    for (int32_t id = 0; id < tokenizer->n_tokens; id++)
        has_length[tokenizer->offsets[id + 1] - tokenizer->offsets[id]] = true;
    tokenizer->n_pair_slots = table_size(each_pair(tokenizer, has_length, false));
    tokenizer->pairs = malloc(tokenizer->n_pair_slots * sizeof *tokenizer->pairs);
    for (size_t slot = 0; tokenizer->pairs && slot < tokenizer->n_pair_slots; slot++)
        tokenizer->pairs[slot].pair = EMPTY_KEY;
    if (tokenizer->pairs)
        each_pair(tokenizer, has_length, true);
    free(has_length);
    for (int left = 0; tokenizer->pairs && left < 256; left++)
        for (int right = 0; right < 256; right++)
            tokenizer->byte_pairs[left][right] =
                tokenizer_find_pair(tokenizer, tokenizer->byte_ids[left], tokenizer->byte_ids[right]);
    return tokenizer->pairs ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for a tokenizer");
}

enum status tokenizer_from_tokens(const char *kind, char *bytes, uint32_t *offsets, const int *lines,
                                  int n_tokens, const char *source, struct tokenizer **out) {
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    *out = NULL;
    if (!tokenizer) {
        free(bytes);
        free(offsets);
        return FAIL(STATUS_FAILED, "out of memory for a tokenizer");
    }
    *tokenizer = (struct tokenizer){.kind = kind, .n_tokens = n_tokens, .bytes = bytes, .offsets = offsets};
    tokenizer->checksum = XXH3_64bits_withSeed(
        bytes, offsets[n_tokens], XXH3_64bits(offsets, ((size_t)n_tokens + 1) * sizeof *offsets));
    enum status status = build_slots(tokenizer, lines, source);
    if (status == STATUS_OK)
        status = build_pairs(tokenizer);
    if (status != STATUS_OK) {
        tokenizer_delete(tokenizer);
        return status;
    }
    *out = tokenizer;
    return STATUS_OK;
}

void tokenizer_delete(struct tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    free(tokenizer->bytes);
    free(tokenizer->offsets);
    free(tokenizer->slots);
    free(tokenizer->pairs);
    free(tokenizer);
}

int tokenizer_n_ids(const struct tokenizer *tokenizer) {
    return tokenizer->n_tokens + 1;
}

int32_t tokenizer_end_of_text(const struct tokenizer *tokenizer) {
    return tokenizer->n_tokens;
}

const char *tokenizer_kind(const struct tokenizer *tokenizer) {
    return tokenizer->kind;
}

uint64_t tokenizer_checksum(const struct tokenizer *tokenizer) {
    return tokenizer->checksum;
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id, size_t *n_bytes) {
    static const char end_of_text[] = "<|endoftext|>";
    *n_bytes = 0;
    if (id < 0 || id > tokenizer->n_tokens)
        return NULL;
    if (id == tokenizer->n_tokens) {
        *n_bytes = sizeof end_of_text - 1;
        return end_of_text;
    }
    *n_bytes = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
    return tokenizer->bytes + tokenizer->offsets[id];
}

// ---- encoding

// The merging of one pre-token: a linked list of tokens over its bytes, and a heap of candidate merges,
// ordered by rank, then from left to right. A candidate whose tokens have changed since is skipped.
struct node {
    int32_t id, previous, next; // id -1: merged into its left neighbour
};
struct merge_candidate {
    int32_t id, at; // the merged token; its left node
    int32_t left, right;
};
struct merging {
    struct node *nodes;
    struct merge_candidate *heap;
    size_t n_heap, capacity;
    int32_t limit; // merges that make this id or a later one are not done
};

static bool before(const struct merge_candidate *a, const struct merge_candidate *b) {
    return a->id != b->id ? a->id < b->id : a->at < b->at;
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

static void consider(struct merging *merging, int32_t id, int32_t at, int32_t left, int32_t right) {
    if (id >= 0 && id < merging->limit)
        heap_push(merging, (struct merge_candidate){id, at, left, right});
}

static void consider_merged(const struct tokenizer *tokenizer, struct merging *merging, int32_t at) {
    int32_t next = at < 0 ? -1 : merging->nodes[at].next;
    if (next < 0)
        return;
    int32_t left = merging->nodes[at].id, right = merging->nodes[next].id;
    consider(merging, tokenizer_find_pair(tokenizer, left, right), at, left, right);
}

static enum status merging_reserve(struct merging *merging, size_t n) {
    if (n <= merging->capacity)
        return STATUS_OK;
    struct node *nodes = realloc(merging->nodes, 2 * n * sizeof *nodes);
    if (nodes)
        merging->nodes = nodes;
    // Up to n initial candidates, and two more for each of fewer than n merges.
    struct merge_candidate *heap = realloc(merging->heap, 6 * n * sizeof *heap);
    if (heap)
        merging->heap = heap;
    if (!nodes || !heap)
        return FAIL(STATUS_FAILED, "out of memory encoding a word of %zu bytes", n);
    merging->capacity = 2 * n;
    return STATUS_OK;
}

static enum status encode_pretoken(const struct tokenizer *tokenizer, struct merging *merging,
                                   const char *pretoken, size_t n, struct token_list *list) {
    int32_t whole = tokenizer_find(tokenizer, pretoken, n);
    TRY(list_reserve(list, n));
    if (whole >= 0 && whole < merging->limit) {
        list->ids[list->n++] = whole;
        return STATUS_OK;
    }
    if (n > INT32_MAX / 8)
        return FAIL(STATUS_INVALID, "a word of %zu bytes is too long to encode", n);
    TRY(merging_reserve(merging, n));
    struct node *nodes = merging->nodes;
    const unsigned char *bytes = (const unsigned char *)pretoken;
    merging->n_heap = 0;
    for (int32_t i = 0; i < (int32_t)n; i++)
        nodes[i] = (struct node){tokenizer->byte_ids[bytes[i]], i - 1, i + 1 < (int32_t)n ? i + 1 : -1};
    for (int32_t i = 0; i + 1 < (int32_t)n; i++)
        consider(merging, tokenizer->byte_pairs[bytes[i]][bytes[i + 1]], i, nodes[i].id, nodes[i + 1].id);
    while (merging->n_heap > 0) {
        struct merge_candidate best = heap_pop(merging);
        struct node *left = &nodes[best.at];
        if (left->id != best.left || left->next < 0 || nodes[left->next].id != best.right)
            continue;
        struct node *right = &nodes[left->next];
        left->id = best.id;
        left->next = right->next;
        if (right->next >= 0)
            nodes[right->next].previous = best.at;
        right->id = -1;
        consider_merged(tokenizer, merging, left->previous);
        consider_merged(tokenizer, merging, best.at);
    }
    for (int32_t i = 0; i >= 0; i = nodes[i].next)
        list->ids[list->n++] = nodes[i].id;
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

// The cache: pre-tokens that were encoded before, each with its ids. An entry fills a cache line.
#define N_REMEMBERED       (1 << 15)
#define LONGEST_REMEMBERED 34
#define MOST_REMEMBERED    7
struct remembered {
    int32_t ids[MOST_REMEMBERED];
    uint8_t n_ids, n_bytes; // n_bytes 0: empty
    char bytes[LONGEST_REMEMBERED];
};
_Static_assert(sizeof(struct remembered) == 64, "an entry of the cache fills a cache line");

struct token_encoder {
    const struct tokenizer *tokenizer;
    struct merging merging;
    struct remembered *cache; // (N_REMEMBERED)
};

enum status token_encoder_new(const struct tokenizer *tokenizer, struct token_encoder **out) {
    struct token_encoder *encoder = calloc(1, sizeof *encoder);
    *out = encoder;
    if (encoder) {
        encoder->tokenizer = tokenizer;
        encoder->merging.limit = INT32_MAX;
        encoder->cache = calloc(N_REMEMBERED, sizeof *encoder->cache);
    }
    if (encoder && encoder->cache)
        return STATUS_OK;
    token_encoder_delete(encoder);
    *out = NULL;
    return FAIL(STATUS_FAILED, "out of memory encoding text");
}

void token_encoder_delete(struct token_encoder *encoder) {
    if (!encoder)
        return;
    free(encoder->merging.nodes);
    free(encoder->merging.heap);
    free(encoder->cache);
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

enum status token_encoder_add(struct token_encoder *encoder, const char *text, size_t bytes,
                              struct token_list *list) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = tokenizer_next_pretoken(text + at, bytes - at);
        struct remembered *entry = &encoder->cache[XXH3_64bits(text + at, n) & (N_REMEMBERED - 1)];
        if (entry->n_bytes != n || memcmp(entry->bytes, text + at, n) != 0) {
            TRY(encode_and_remember(encoder, entry, text + at, n, list));
            continue;
        }
        TRY(list_reserve(list, entry->n_ids));
        memcpy(list->ids + list->n, entry->ids, entry->n_ids * sizeof *list->ids);
        list->n += entry->n_ids;
    }
    return STATUS_OK;
}

static enum status encode_chunk(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                                struct token_list *list) {
    struct token_encoder *encoder;
    TRY(token_encoder_new(tokenizer, &encoder));
    enum status status = token_encoder_add(encoder, text, bytes, list);
    token_encoder_delete(encoder);
    return status;
}

#define CHUNK_BYTES     ((size_t)1 << 21)
#define CHUNKS_TOGETHER 32 // held in memory before their ids are concatenated

struct encoding {
    const struct tokenizer *tokenizer;
    const char *text;
    const size_t *ends; // (n) chunk i is text [ends[i - 1], ends[i])
    int n;
    struct token_list *lists; // (n)
    atomic_int *next, *status;
};

static void encode_part(const void *context, int part, int n_parts) {
    (void)part, (void)n_parts;
    const struct encoding *encoding = context;
    for (int i; (i = atomic_fetch_add(encoding->next, 1)) < encoding->n;) {
        size_t begin = i > 0 ? encoding->ends[i - 1] : 0;
        enum status of_chunk = encode_chunk(encoding->tokenizer, encoding->text + begin,
                                            encoding->ends[i] - begin, &encoding->lists[i]);
        if (of_chunk != STATUS_OK)
            atomic_store(encoding->status, of_chunk);
    }
}

// Encodes n chunks (struct encoding), and adds their ids to the list in order.
static enum status encode_chunks(const struct tokenizer *tokenizer, const char *text, const size_t *ends,
                                 int n, struct token_list *list) {
    struct token_list lists[CHUNKS_TOGETHER] = {0};
    atomic_int next = 0, worst = STATUS_OK;
    int n_threads = n < parallel_threads() ? n : parallel_threads();
    parallel_run(n_threads, encode_part, &(struct encoding){tokenizer, text, ends, n, lists, &next, &worst});
    enum status status = (enum status)atomic_load(&worst);
    for (int i = 0; i < n; i++) {
        if (status == STATUS_OK)
            status = list_reserve(list, lists[i].n);
        if (status == STATUS_OK && lists[i].n > 0) {
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
            ends[n] = end = tokenizer_next_boundary(text + done, bytes - done, end + CHUNK_BYTES);
        TRY(n == 1 ? encode_chunk(tokenizer, text + done, end, list)
                   : encode_chunks(tokenizer, text + done, ends, n, list));
        done += end;
    }
    return STATUS_OK;
}
