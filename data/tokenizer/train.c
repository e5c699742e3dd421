// BPE training on the distinct pre-tokens ("words") of the text and their counts. Pair counts are updated
// after each merge. A heap returns the most frequent pair. Its entries may be stale, so each is checked
// against the counts when popped.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"
#include "base/text.h"
#include "data/tokenizer/encode.h"
#include "data/tokenizer/tables.h"

struct word {
    const char *text; // points into the caller's text
    size_t n_bytes;
    int64_t count; // how often it occurs in the text
    int32_t *ids;  // (n) its tokens so far; in training.storage
    int n;
};

// A pair of ids, how often it occurs in the text, and the words in which it has been found. Some of these
// words may no longer contain it.
struct pair_count {
    uint64_t pair;
    int64_t count;
    int32_t *words;
    int n_words, capacity;
};

// An entry of the heap: a pair, and its count when the entry was pushed.
struct entry {
    int64_t count;
    uint64_t pair;
};

struct training {
    struct word *words;
    size_t n_words, words_capacity;
    int32_t *word_slots; // hash table of indices in `words`; -1: empty
    size_t n_word_slots;
    int32_t *storage; // the ids of all words
    struct pair_count *pairs;
    size_t n_pairs, n_pair_slots; // `pairs` is a hash table with open addressing, of n_pair_slots slots
    struct entry *heap;
    size_t n_heap, heap_capacity;
    // The tokens so far. The bytes of token i are [offsets[i], offsets[i + 1]) of `bytes`.
    struct text bytes;
    uint32_t *offsets;
    int n_tokens;
};

// ---- counting words

static void grow_words(struct training *training) {
    const size_t capacity = training->words_capacity ? 2 * training->words_capacity : 1 << 14;
    struct word *words = training->words = reallocate(training->words, capacity, sizeof *words);
    int32_t *slots = allocate(2 * capacity, sizeof *slots);
    free(training->word_slots);
    training->word_slots = slots;
    training->words_capacity = capacity;
    training->n_word_slots = 2 * capacity;
    memset(slots, 0xff, training->n_word_slots * sizeof *slots);
    for (size_t i = 0; i < training->n_words; i++) {
        size_t slot = XXH3_64bits(words[i].text, words[i].n_bytes) & (training->n_word_slots - 1);
        while (slots[slot] >= 0)
            slot = (slot + 1) & (training->n_word_slots - 1);
        slots[slot] = (int32_t)i;
    }
}

static void count_word(struct training *training, const char *text, size_t n) {
    if (training->n_words == training->words_capacity)
        grow_words(training);
    size_t slot = XXH3_64bits(text, n) & (training->n_word_slots - 1);
    for (; training->word_slots[slot] >= 0; slot = (slot + 1) & (training->n_word_slots - 1)) {
        struct word *word = &training->words[training->word_slots[slot]];
        if (word->n_bytes == n && memcmp(word->text, text, n) == 0) {
            word->count++;
            return;
        }
    }
    training->word_slots[slot] = (int32_t)training->n_words;
    training->words[training->n_words++] = (struct word){.text = text, .n_bytes = n, .count = 1, .n = (int)n};
}

// Splits the text into words, and counts them. No word spans documents.
//   starts   (n_starts) offsets of the documents in the text; none: one document
static enum status count_words(struct training *training, const char *text, size_t bytes,
                               const size_t *starts, size_t n_starts) {
    const struct token_rules rules = {.pattern = TOKEN_PATTERN_GPT2};
    size_t total = 0, later = 0;
    for (size_t at = 0, n; at < bytes; at += n) {
        while (later < n_starts && starts[later] <= at)
            later++;
        n = tokenizer_next_pretoken(rules, text + at, (later < n_starts ? starts[later] : bytes) - at);
        if (n > INT32_MAX / 2)
            return FAIL(STATUS_INVALID, "a word of %zu bytes is too long to train on", n);
        count_word(training, text + at, n);
    }
    for (size_t i = 0; i < training->n_words; i++)
        total += training->words[i].n_bytes;
    training->storage = allocate(total, sizeof *training->storage);
    int32_t *next = training->storage;
    for (size_t i = 0; i < training->n_words; i++) {
        struct word *word = &training->words[i];
        word->ids = next;
        next += word->n_bytes;
        for (size_t k = 0; k < word->n_bytes; k++)
            word->ids[k] = (unsigned char)word->text[k]; // byte b is token b
    }
    return STATUS_OK;
}

// ---- counting pairs

static void grow_pairs(struct training *training) {
    size_t n_slots = training->n_pair_slots ? 2 * training->n_pair_slots : 1 << 15;
    struct pair_count *pairs = allocate(n_slots, sizeof *pairs);
    for (size_t i = 0; i < n_slots; i++)
        pairs[i].pair = EMPTY_KEY;
    for (size_t i = 0; i < training->n_pair_slots; i++) {
        if (training->pairs[i].pair == EMPTY_KEY)
            continue;
        size_t slot = tokenizer_hash_pair(training->pairs[i].pair) & (n_slots - 1);
        while (pairs[slot].pair != EMPTY_KEY)
            slot = (slot + 1) & (n_slots - 1);
        pairs[slot] = training->pairs[i];
    }
    free(training->pairs);
    training->pairs = pairs;
    training->n_pair_slots = n_slots;
}

// Returns a pair's entry in training->pairs, and adds one if there is none. The pointer is valid until the
// next call.
static struct pair_count *find_pair(struct training *training, uint64_t pair) {
    if (2 * (training->n_pairs + 1) > training->n_pair_slots)
        grow_pairs(training);
    size_t slot = tokenizer_hash_pair(pair) & (training->n_pair_slots - 1);
    while (training->pairs[slot].pair != EMPTY_KEY && training->pairs[slot].pair != pair)
        slot = (slot + 1) & (training->n_pair_slots - 1);
    struct pair_count *row = &training->pairs[slot];
    training->n_pairs += row->pair == EMPTY_KEY;
    row->pair = pair;
    return row;
}

// Heap order: the most frequent pair first; of equally frequent pairs, the smaller pair of ids.
static bool before(const struct entry *a, const struct entry *b) {
    return a->count != b->count ? a->count > b->count : a->pair < b->pair;
}

static void heap_push(struct training *training, const struct pair_count *row) {
    const struct entry entry = {row->count, row->pair};
    RESERVE(training->heap, training->n_heap + 1, training->heap_capacity);
    size_t i = training->n_heap++;
    for (; i > 0 && before(&entry, &training->heap[(i - 1) / 2]); i = (i - 1) / 2)
        training->heap[i] = training->heap[(i - 1) / 2];
    training->heap[i] = entry;
}

static struct entry heap_pop(struct training *training) {
    struct entry top = training->heap[0], last = training->heap[--training->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < training->n_heap; i = child) {
        if (child + 1 < training->n_heap && before(&training->heap[child + 1], &training->heap[child]))
            child++;
        if (!before(&training->heap[child], &last))
            break;
        training->heap[i] = training->heap[child];
    }
    training->heap[i] = last;
    return top;
}

// Changes a pair's count by `change`. If the count grows, also records that the word contains the pair.
static void change_pair(struct training *training, int32_t left, int32_t right, int64_t change,
                        int32_t word) {
    struct pair_count *row = find_pair(training, (uint64_t)left << 32 | (uint32_t)right);
    row->count += change; // if it falls, merge_best corrects the heap entry when it pops it
    if (change > 0 && (row->n_words == 0 || row->words[row->n_words - 1] != word)) {
        RESERVE(row->words, row->n_words + 1, row->capacity);
        row->words[row->n_words++] = word;
    }
}

static void count_pairs(struct training *training) {
    for (size_t i = 0; i < training->n_words; i++) {
        const struct word *word = &training->words[i];
        for (int k = 0; k + 1 < word->n; k++)
            change_pair(training, word->ids[k], word->ids[k + 1], word->count, (int32_t)i);
    }
    for (size_t slot = 0; slot < training->n_pair_slots; slot++)
        if (training->pairs[slot].pair != EMPTY_KEY)
            heap_push(training, &training->pairs[slot]);
}

// ---- merging pairs

// Merges every occurrence of the pair in one word, and updates the counts of the neighbouring pairs.
static void merge_in_word(struct training *training, int32_t index, uint64_t pair, int32_t id) {
    struct word *word = &training->words[index];
    int32_t left = (int32_t)(pair >> 32), right = (int32_t)(uint32_t)pair;
    int kept = 0;
    for (int k = 0; k < word->n; k++) {
        if (k + 1 == word->n || word->ids[k] != left || word->ids[k + 1] != right) {
            word->ids[kept++] = word->ids[k];
            continue;
        }
        int32_t before_it = kept > 0 ? word->ids[kept - 1] : -1,
                after_it = k + 2 < word->n ? word->ids[k + 2] : -1;
        change_pair(training, left, right, -word->count, index);
        if (before_it >= 0) {
            change_pair(training, before_it, left, -word->count, index);
            change_pair(training, before_it, id, word->count, index);
        }
        if (after_it >= 0) {
            change_pair(training, right, after_it, -word->count, index);
            change_pair(training, id, after_it, word->count, index);
        }
        word->ids[kept++] = id;
        k++;
    }
    word->n = kept;
}

// After a merge, pushes the pairs that contain the new token `id` on the heap, with their counts.
//   words   (n_words) indices of the words in which the merge was applied
static void push_neighbours(struct training *training, int32_t id, const int32_t *words, int n_words) {
    for (int i = 0; i < n_words; i++) {
        const struct word *word = &training->words[words[i]];
        for (int k = 0; k + 1 < word->n; k++)
            if (word->ids[k] == id || word->ids[k + 1] == id)
                heap_push(training,
                          find_pair(training, (uint64_t)word->ids[k] << 32 | (uint32_t)word->ids[k + 1]));
    }
}

static void apply_merge(struct training *training, struct pair_count *row, int32_t id) {
    uint64_t pair = row->pair;
    int32_t *words = row->words; // `row` becomes invalid when the table grows
    int n_words = row->n_words;
    row->words = NULL;
    row->n_words = row->capacity = 0;
    for (int i = 0; i < n_words; i++)
        merge_in_word(training, words[i], pair, id);
    push_neighbours(training, id, words, n_words);
    free(words);
}

static void append_token(const struct training *training, int32_t id, struct text *out) {
    text_add_bytes(out, training->bytes.data + training->offsets[id],
                   training->offsets[id + 1] - training->offsets[id]);
}

// Returns the existing token with these bytes (of a merged pair), or -1. No two tokens may have the same
// bytes: encoding finds tokens by their bytes.
static int32_t find_same(const struct training *training, const struct text *merged) {
    for (int32_t id = 256; id < training->n_tokens; id++) {
        uint32_t n = training->offsets[id + 1] - training->offsets[id];
        if (n == merged->length && memcmp(training->bytes.data + training->offsets[id], merged->data, n) == 0)
            return id;
    }
    return -1;
}

// Merges the most frequent pair in all words, into a new token or an existing one with the same bytes.
// Returns false if no pair is left.
static bool merge_best(struct training *training) {
    struct pair_count *row = NULL;
    struct entry top = {0};
    do {
        if (training->n_heap == 0)
            return false;
        top = heap_pop(training);
        row = find_pair(training, top.pair);
        if (row->count > 0 && row->count < top.count)
            heap_push(training, row);
    } while (row->count != top.count || row->count == 0);

    struct text merged = {0};
    append_token(training, (int32_t)(top.pair >> 32), &merged);
    append_token(training, (int32_t)(uint32_t)top.pair, &merged);
    int32_t id = find_same(training, &merged);
    if (id < 0) {
        id = training->n_tokens++;
        text_add_bytes(&training->bytes, merged.data, merged.length);
        training->offsets[training->n_tokens] = (uint32_t)training->bytes.length;
    }
    text_free(&merged);
    apply_merge(training, row, id);
    return true;
}

static enum status train(struct training *training, int n_tokens) {
    training->offsets = allocate((size_t)n_tokens + 1, sizeof *training->offsets);
    for (int byte = 0; byte < 256; byte++) {
        const char c = (char)byte;
        text_add_bytes(&training->bytes, &c, 1);
        training->offsets[++training->n_tokens] = (uint32_t)training->bytes.length;
    }
    count_pairs(training);
    while (training->n_tokens < n_tokens)
        if (!merge_best(training))
            return FAIL(STATUS_INVALID,
                        "the text allows only %d token ids (256 bytes, %d merges, end-of-text), %d were "
                        "requested; use more text or a smaller --vocab-size",
                        training->n_tokens + 1, training->n_tokens - 256, n_tokens + 1);
    return STATUS_OK;
}

static void training_free(struct training *training) {
    for (size_t slot = 0; slot < training->n_pair_slots; slot++)
        free(training->pairs[slot].words);
    free(training->words);
    free(training->word_slots);
    free(training->storage);
    free(training->pairs);
    free(training->heap);
    text_free(&training->bytes);
    free(training->offsets);
}

enum status tokenizer_train(const char *text, size_t bytes, const size_t *starts, size_t n_starts,
                            int vocab_size, struct tokenizer **out) {
    struct training training = {0};
    *out = NULL;
    if (vocab_size < 257 || vocab_size > 65536)
        return FAIL(STATUS_INVALID,
                    "cannot train a vocabulary of %d ids, expected 257 (256 bytes and end-of-text) to 65536",
                    vocab_size);
    struct token_table tokens = {0};
    enum status status = count_words(&training, text, bytes, starts, n_starts);
    if (status == STATUS_OK)
        status = train(&training, vocab_size - 1);
    for (int id = 0; id < training.n_tokens && status == STATUS_OK; id++)
        token_table_add(&tokens, training.bytes.data + training.offsets[id],
                        training.offsets[id + 1] - training.offsets[id], TOKEN_NORMAL, 0);
    if (status == STATUS_OK)
        status = tokenizer_make_plain(&tokens, vocab_size == 257 ? "bytes" : "byte-pair",
                                      "the trained tokenizer", out);
    token_table_free(&tokens);
    training_free(&training);
    return status;
}
