// BPE training and encoding against the plain definition. To train: count every pair of the whole text, merge
// the most frequent one, repeat. To encode: merge the adjacent pair of lowest rank, repeat.
#include "tests/support/expect.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/rng.h"
#include "data/tokenizer/encode.h"
#include "tests/support/temporary.h"

enum { MAX_TOKENS = 700, MAX_BYTES = 6000, LONGEST_TOKEN = 512 };

// A tokenizer that follows the plain definition.
struct slow_tokenizer {
    char bytes[MAX_TOKENS][LONGEST_TOKEN];
    size_t lengths[MAX_TOKENS];
    int n;
};

static int slow_find(const struct slow_tokenizer *slow, const char *bytes, size_t n) {
    for (int id = 0; id < slow->n; id++)
        if (slow->lengths[id] == n && memcmp(slow->bytes[id], bytes, n) == 0)
            return id;
    return -1;
}

// The text as ids, with -1 after each pre-token, so that no pair crosses its end.
static int split_text(const char *text, size_t n_bytes, int *ids) {
    int n = 0;
    for (size_t at = 0, length; at < n_bytes; at += length) {
        length = tokenizer_next_pretoken((struct token_rules){0}, text + at, n_bytes - at);
        for (size_t i = 0; i < length; i++)
            ids[n++] = (unsigned char)text[at + i];
        ids[n++] = -1;
    }
    return n;
}

// Trains until there are n_tokens tokens or no pair is left. A pair whose bytes are already a token becomes
// that token, because tokens are identified by their bytes.
static void slow_train(struct slow_tokenizer *slow, const char *text, size_t n_bytes, int n_tokens) {
    static int ids[2 * MAX_BYTES], counts[MAX_TOKENS][MAX_TOKENS];
    int n = split_text(text, n_bytes, ids);
    slow->n = 256;
    for (int b = 0; b < 256; b++) {
        slow->bytes[b][0] = (char)b;
        slow->lengths[b] = 1;
    }
    while (slow->n < n_tokens) {
        int best = 0, left = -1, right = -1;
        memset(counts, 0, sizeof counts);
        for (int i = 0; i + 1 < n; i++)
            if (ids[i] >= 0 && ids[i + 1] >= 0)
                counts[ids[i]][ids[i + 1]]++;
        for (int a = 0; a < slow->n; a++)
            for (int b = 0; b < slow->n; b++)
                if (counts[a][b] > best) { // ties: the first in this order
                    best = counts[a][b];
                    left = a;
                    right = b;
                }
        if (best == 0)
            return;
        char merged[2 * LONGEST_TOKEN];
        size_t length = slow->lengths[left] + slow->lengths[right];
        assert_true(length <= LONGEST_TOKEN);
        memcpy(merged, slow->bytes[left], slow->lengths[left]);
        memcpy(merged + slow->lengths[left], slow->bytes[right], slow->lengths[right]);
        int id = slow_find(slow, merged, length);
        if (id < 0) {
            id = slow->n++;
            memcpy(slow->bytes[id], merged, length);
            slow->lengths[id] = length;
        }
        int kept = 0;
        for (int i = 0; i < n; i++) {
            bool here = ids[i] == left && i + 1 < n && ids[i + 1] == right;
            ids[kept++] = here ? id : ids[i];
            i += here;
        }
        n = kept;
    }
}

static size_t slow_encode(const struct slow_tokenizer *slow, const char *text, size_t n_bytes, int32_t *out) {
    size_t n_out = 0;
    for (size_t at = 0, length; at < n_bytes; at += length) {
        size_t ends[MAX_BYTES], n = 0;
        length = tokenizer_next_pretoken((struct token_rules){0}, text + at, n_bytes - at);
        for (size_t i = 0; i < length; i++)
            ends[n++] = i + 1;
        for (;;) {
            int best = slow->n;
            size_t where = 0;
            for (size_t i = 0; i + 1 < n; i++) {
                size_t begin = i ? ends[i - 1] : 0;
                int id = slow_find(slow, text + at + begin, ends[i + 1] - begin);
                if (id >= 0 && id < best) {
                    best = id;
                    where = i;
                }
            }
            if (best == slow->n)
                break;
            memmove(ends + where, ends + where + 1, (--n - where) * sizeof *ends);
        }
        for (size_t i = 0; i < n; i++) {
            size_t begin = i ? ends[i - 1] : 0;
            out[n_out++] = slow_find(slow, text + at + begin, ends[i] - begin);
        }
    }
    return n_out;
}

static void check_same_tokens(const struct slow_tokenizer *slow, const struct tokenizer *tokenizer) {
    assert_int_equal(tokenizer_n_ids(tokenizer), slow->n + 1);
    for (int id = 0; id < slow->n; id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        if (n != slow->lengths[id] || memcmp(bytes, slow->bytes[id], n) != 0)
            fail_msg("token %d is \"%.*s\", expected \"%.*s\"", id, (int)n, bytes, (int)slow->lengths[id],
                     slow->bytes[id]);
    }
}

static void check_same_ids(const struct slow_tokenizer *slow, const struct tokenizer *tokenizer,
                           const char *text, size_t n_bytes) {
    static int32_t expected[MAX_BYTES];
    struct token_list list = {0};
    size_t n = slow_encode(slow, text, n_bytes, expected);
    EXPECT_OK(tokenizer_encode(tokenizer, text, n_bytes, &list));
    assert_int_equal(list.n, n);
    assert_memory_equal(list.ids, expected, n * sizeof *expected);
    token_list_free(&list);
}

// Trains both on the text, compares, and encodes it and then `other` with both.
static void check_text(const char *text, size_t n_bytes, int vocab_size, const char *other,
                       size_t n_other_bytes) {
    static struct slow_tokenizer slow;
    struct tokenizer *tokenizer = NULL;
    slow_train(&slow, text, n_bytes, vocab_size - 1);
    enum status status = tokenizer_train(text, n_bytes, NULL, 0, vocab_size, &tokenizer);
    if (slow.n < vocab_size - 1) { // too little text: the message names the largest size that works
        char possible[32];
        snprintf(possible, sizeof possible, "only %d token ids", slow.n + 1);
        assert_null(tokenizer);
        EXPECT_FAILURE(STATUS_INVALID, status, possible, "--vocab-size");
        EXPECT_OK(tokenizer_train(text, n_bytes, NULL, 0, slow.n + 1, &tokenizer));
    } else {
        EXPECT_OK(status);
    }
    check_same_tokens(&slow, tokenizer);
    check_same_ids(&slow, tokenizer, text, n_bytes);
    check_same_ids(&slow, tokenizer, other, n_other_bytes);
    tokenizer_delete(tokenizer);
}

static const char english[] =
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in "
    "want of a wife.\nHowever little known the feelings or views of such a man may be on his first entering "
    "a neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is "
    "considered as the rightful property of some one or other of their daughters.\n\n\"My dear Mr. Bennet,\" "
    "said his lady to him one day, \"have you heard that Netherfield Park is let at last?\"\nMr. Bennet "
    "replied that he had not.\n\"But it is,\" returned she; \"for Mrs. Long has just been here, and she told "
    "me all about it.\"\nMr. Bennet made no answer.\n\"Do not you want to know who has taken it?\" cried his "
    "wife impatiently.\n\"You want to tell me, and I have no objection to hearing it.\"\nThis was invitation "
    "enough.\n    Nous \xc3\xa9tions \xc3\xa0 l'\xc3\xa9tude; \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e "
    "\xe6\x97\xa5\xe6\x9c\xac, 1813, 1813 and 1,813.\n";

static void test_english(void **state) {
    (void)state;
    const char *other =
        "She had not told him that; the neighbour's daughter wanted \xc3\xa9t\xc3\xa9. \xff\xfe";
    for (int vocab_size = 257; vocab_size <= 550; vocab_size += 97)
        check_text(english, sizeof english - 1, vocab_size, other, strlen(other));
}

// Few letters: many ties, self-overlapping pairs, and equal bytes from different pairs.
static void test_few_letters(void **state) {
    (void)state;
    static const char *const alphabets[] = {"a", "ab", "aab ", "abc", "aaaaaab", "ab \n", "\xc3\xa9\xa9 "};
    uint64_t counter = 0;
    for (int i = 0; i < 84; i++) {
        const char *alphabet = alphabets[i % 7];
        char text[2][300];
        size_t n[2];
        for (int k = 0; k < 2; k++) {
            n[k] = (size_t)rng_below(1, 1, counter++, sizeof text[k] - 1) + 1;
            for (size_t j = 0; j < n[k]; j++)
                text[k][j] = alphabet[rng_below(1, 1, counter++, strlen(alphabet))];
        }
        check_text(text[0], n[0], 258 + i % 5 * 11, text[1], n[1]);
    }
}

static void test_random_bytes(void **state) {
    (void)state;
    char text[3000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)rng_below(2, 1, i, i < 1500 ? 256 : 16);
    check_text(text, sizeof text, 300, text + 1000, 1000);
}

static void test_bounds(void **state) {
    (void)state;
    struct tokenizer *tokenizer;
    const int wrong[] = {-1, 0, 256, 65537, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT_FAILURE(STATUS_INVALID, tokenizer_train("abab", 4, NULL, 0, wrong[i], &tokenizer), "257",
                       "65536");
        assert_null(tokenizer);
    }
    EXPECT_FAILURE(STATUS_INVALID, tokenizer_train("", 0, NULL, 0, 258, &tokenizer), "only 257 token ids");
    EXPECT_FAILURE(STATUS_INVALID, tokenizer_train("a b c", 5, NULL, 0, 300, &tokenizer),
                   "only 259 token ids", "300");
    EXPECT_OK(tokenizer_train("", 0, NULL, 0, 257, &tokenizer)); // the bytes
    assert_int_equal(tokenizer_n_ids(tokenizer), 257);
    tokenizer_delete(tokenizer);
}

static void test_saved_and_loaded(void **state) {
    (void)state;
    struct temporary temporary;
    struct tokenizer *trained, *loaded, *again;
    char path[300], *files[2];
    size_t n[2];
    assert_true(temporary_init(&temporary));
    temporary_path(&temporary, "saved.tiktoken", path, sizeof path);
    for (int i = 0; i < 2; i++) { // twice: the same bytes
        EXPECT_OK(tokenizer_train(english, sizeof english - 1, NULL, 0, 400, i ? &again : &trained));
        EXPECT_OK(tokenizer_save(i ? again : trained, path));
        EXPECT_OK(file_read(path, 1 << 20, &files[i], &n[i]));
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(files[0], files[1], n[0]);
    EXPECT_OK(tokenizer_load(path, &loaded));
    struct token_list a = {0}, b = {0};
    EXPECT_OK(tokenizer_encode(trained, english, sizeof english - 1, &a));
    EXPECT_OK(tokenizer_encode(loaded, english, sizeof english - 1, &b));
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.ids, b.ids, a.n * sizeof *a.ids);
    assert_int_equal(tokenizer_n_ids(loaded), 400);
    temporary_path(&temporary, "absent/saved.tiktoken", path, sizeof path);
    EXPECT_FAILURE(STATUS_FAILED, tokenizer_save(loaded, path), path);
    token_list_free(&a);
    token_list_free(&b);
    for (int i = 0; i < 2; i++)
        free(files[i]);
    tokenizer_delete(trained);
    tokenizer_delete(again);
    tokenizer_delete(loaded);
    assert_true(temporary_free(&temporary));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_english),          cmocka_unit_test(test_few_letters),
        cmocka_unit_test(test_random_bytes),     cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_saved_and_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
