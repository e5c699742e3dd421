// The identity of shards depends on tokens, sizes and order, and not on paths; and the description of
// changes.
#include "tests/support/expect.h"

#include "data/identity.h"
#include "tests/support/temporary.h"

static struct temporary temporary;

static int set_up(void **state) {
    (void)state;
    return temporary_init(&temporary) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

// A shard of n tokens, all 0 except the one at `at`.
static void write_shard(const char *name, size_t n, size_t at, int32_t token) {
    char path[300];
    struct shard_writer writer;
    int32_t *tokens = calloc(n + 1, sizeof *tokens);
    assert_non_null(tokens);
    tokens[at] = token;
    EXPECT_OK(shard_writer_open(&writer, temporary_path(&temporary, name, path, sizeof path), 2));
    shard_writer_add(&writer, tokens, n);
    EXPECT_OK(shard_writer_commit(&writer));
    free(tokens);
}

static struct identity identity_of(int n, const char *const *names) {
    struct identity identity;
    identity_init(&identity, n);
    for (int i = 0; i < n; i++) {
        char path[300];
        struct shard shard;
        EXPECT_OK(shard_open(&shard, temporary_path(&temporary, names[i], path, sizeof path)));
        EXPECT_OK(identity_add(&identity, &shard));
        shard_close(&shard);
    }
    return identity;
}

static struct identity identity_of_one(size_t n, size_t at, int32_t token) {
    write_shard("one.bin", n, at, token);
    return identity_of(1, (const char *const[]){"one.bin"});
}

// The identity of a small shard depends on every token; that of a large one on the first, the last, and
// samples between them.
static void test_what_is_sampled(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 5, 2048, 2049, 16384, 16385, 100000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s], small = 16384;
        struct identity zeros = identity_of_one(n, 0, 0);
        const size_t places[] = {0, n / 2, n - 1, n > small ? (n - 2048) / 7 * 3 : n / 3};
        for (size_t i = 0; i < 4; i++) {
            if (n > small && i == 1)
                continue; // the middle need not be in a sample
            struct identity other = identity_of_one(n, places[i], 7);
            assert_false(identity_is_same(&zeros, &other));
            identity_free(&other);
        }
        struct identity longer = identity_of_one(n + 1, 0, 0);
        assert_false(identity_is_same(&zeros, &longer));
        identity_free(&longer);
        identity_free(&zeros);
    }
}

static void expect_changes(const struct identity *before, const struct identity *now, const char *expected) {
    static const struct identity_words words = {"has changed", "is gone", "is new"};
    struct text text = {0};
    identity_add_changes(before, now, &words, &text);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

static void test_changes(void **state) {
    (void)state;
    write_shard("a", 10, 0, 1), write_shard("b", 10, 0, 2), write_shard("c", 10, 0, 3),
        write_shard("B", 10, 0, 2);
    struct identity abc = identity_of(3, (const char *const[]){"a", "b", "c"}),
                    aBc = identity_of(3, (const char *const[]){"a", "B", "c"}),
                    acb = identity_of(3, (const char *const[]){"a", "c", "b"}),
                    ab = identity_of(2, (const char *const[]){"a", "b"}), none = identity_of(0, NULL);
    assert_true(identity_is_same(&abc, &aBc)); // another name
    assert_false(identity_is_same(&abc, &acb));
    expect_changes(&abc, &acb, "the shards are in another order");
    expect_changes(&abc, &ab, "shard 3 (c) is gone");
    expect_changes(&ab, &abc, "shard 3 (c) is new");
    expect_changes(&ab, &none, "shard 1 (a) is gone, shard 2 (b) is gone");
    struct identity mixed = identity_of(2, (const char *const[]){"a", "b"}),
                    other = identity_of(2, (const char *const[]){"a", "b"});
    identity_add_source(&mixed, 1, 0.25), identity_add_source(&mixed, 1, 0.75);
    identity_add_source(&other, 1, 0.5), identity_add_source(&other, 1, 0.5);
    assert_false(identity_is_same(&ab, &mixed) || identity_is_same(&mixed, &other));
    expect_changes(&ab, &mixed, "the shards are divided into 2 sources instead of 1");
    expect_changes(&mixed, &ab, "the shards are divided into 1 source instead of 2");
    expect_changes(&mixed, &other,
                   "source 1 (a) has a share of 0.5 instead of 0.25, source 2 (b) has a share of 0.5 instead "
                   "of 0.75");
    expect_changes(&abc, &mixed, "shard 3 (c) is gone");
    identity_free(&mixed), identity_free(&other);
    write_shard("b", 10, 0, 9);
    struct identity changed = identity_of(3, (const char *const[]){"a", "b", "c"});
    expect_changes(&abc, &changed, "shard 2 (b) has changed");
    struct identity copy;
    identity_copy(&copy, &changed);
    assert_true(identity_is_same(&copy, &changed) && copy.entries != changed.entries);
    struct identity *all[] = {&abc, &aBc, &acb, &ab, &none, &changed, &copy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        identity_free(all[i]);
}

// Above 1,024 shards, an entry covers several. A message names at most four.
static void test_many_shards(void **state) {
    (void)state;
    enum { N = 2500, CHANGED = 100 };
    static const char *names[N];
    for (int i = 0; i < N; i++)
        names[i] = "a";
    write_shard("a", 10, 0, 1), write_shard("b", 10, 0, 2);
    struct identity before = identity_of(N, names);
    assert_int_equal(before.shards_per_entry, 3);
    assert_int_equal(before.n_entries, 834);
    assert_int_equal(before.n_tokens, 10 * N);
    names[N - 1] = "b";
    struct identity last = identity_of(N, names);
    assert_false(identity_is_same(&before, &last));
    expect_changes(&before, &last,
                   "at least one of shards 2500 to 2500 (b, ...) is new, "
                   "at least one of shards 2500 to 2500 (a, ...) is gone");
    struct identity few = identity_of(CHANGED, names), fewer = identity_of(0, NULL);
    expect_changes(&fewer, &few,
                   "shard 1 (a) is new, shard 2 (a) is new, shard 3 (a) is new, shard 4 (a) is new, "
                   "and 96 more");
    expect_changes(&before, &few, "there are too many shards to name those that differ");
    identity_free(&before);
    identity_free(&last);
    identity_free(&few);
    identity_free(&fewer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_sampled),
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_many_shards),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
