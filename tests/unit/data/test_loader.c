// The loader is a pure function: rows do not depend on the order of requests or on the micro-batch size, and
// each epoch visits every sequence once. Errors are reported by the call that requests the bad batch.
#include "tests/support/expect.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "data/loader.h"
#include "data/shard.h"
#include "tests/support/temporary.h"

static struct temporary temporary;
static char pattern[300];

// Shards a, b and c: 5 sequences of 8 tokens, none (one token too short), 7. A token's value is its position,
// so that a row reveals where it was read.
#define T 8
enum { N_A = 5 * T + 1 + 5, N_B = T, N_C = 7 * T + 1, FIRST_C = 10000, N_SEQUENCES = 12, VOCABULARY = 20000 };

static void write_tokens(const char *name, size_t n, int first, size_t token_bytes) {
    char path[300];
    struct shard_writer writer;
    EXPECT_OK(shard_writer_open(&writer, temporary_path(&temporary, name, path, sizeof path), token_bytes));
    for (size_t i = 0; i < n; i++)
        shard_writer_add(&writer, (const int32_t[]){(int32_t)((size_t)first + i)}, 1);
    EXPECT_OK(shard_writer_commit(&writer));
}

static void write_shard(const char *name, size_t n, int first) {
    write_tokens(name, n, first, 2);
}

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "group-*.bin", pattern, sizeof pattern);
    write_shard("group-c.bin", N_C, FIRST_C);
    write_shard("group-a.bin", N_A, 0);
    write_shard("group-b.bin", N_B, 5000);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

static enum status try_new(const char *shards, int vocab_size, int batch_size, int micro_batch_size,
                           bool shuffle, uint64_t seed, struct loader **out) {
    char copy[300]; // the loader must not keep pointers into it
    char *paths[1] = {copy};
    snprintf(copy, sizeof copy, "%s", shards);
    const struct file_list patterns = {.paths = paths, .n_paths = 1};
    const struct source_option source = {.patterns = &patterns};
    const struct loader_options options = {.sources = {.list = &source, .n = 1, .option = "data.train"},
                                           .vocab_size = vocab_size,
                                           .seq_len = T,
                                           .batch_size = batch_size,
                                           .micro_batch_size = micro_batch_size,
                                           .shuffle = shuffle,
                                           .seed = seed};
    enum status status = loader_new(&options, out);
    memset(copy, 'x', sizeof copy);
    return status;
}

static struct loader *group_loader(int batch_size, int micro_batch_size, bool shuffle, uint64_t seed) {
    struct loader *loader;
    EXPECT_OK(try_new(pattern, VOCABULARY, batch_size, micro_batch_size, shuffle, seed, &loader));
    return loader;
}

// Requests rows, checks that the tokens of each are consecutive, and returns their first tokens.
static void first_tokens(struct loader *loader, int64_t step, int first_row, int n_rows, int *firsts) {
    struct token_batch batch;
    EXPECT_OK(loader_batch(loader, step, first_row, &batch));
    for (int b = 0; b < n_rows; b++)
        for (int t = 0; t < T; t++) {
            firsts[b] = batch.tokens[b * T];
            assert_int_equal(batch.tokens[b * T + t], firsts[b] + t);
            assert_int_equal(batch.targets[b * T + t], firsts[b] + t + 1);
        }
}

static void test_counts(void **state) {
    (void)state;
    struct loader *loader = group_loader(4, 2, true, 1);
    assert_int_equal(loader_n_tokens(loader), N_A + N_B + N_C);
    assert_int_equal(loader_n_sequences(loader), N_SEQUENCES);
    assert_int_equal(loader_n_shards(loader), 3);
    loader_delete(loader);
    loader_delete(NULL);
}

// Without shuffling: files in order of their names, sequence i at token i * T, and again from the start.
// Batches of 5 out of 12 sequences cross epochs.
static void test_file_order(void **state) {
    (void)state;
    struct loader *loader = group_loader(5, 5, false, 1);
    for (int step = 0; step < 10; step++) {
        int firsts[5];
        first_tokens(loader, step, 0, 5, firsts);
        for (int b = 0; b < 5; b++) {
            int sequence = (step * 5 + b) % N_SEQUENCES;
            assert_int_equal(firsts[b], sequence < 5 ? sequence * T : FIRST_C + (sequence - 5) * T);
        }
    }
    loader_delete(loader);
}

// n of the 12 sequences, evenly spaced; a batch that was prefetched under the rule before is not used.
static void test_spread(void **state) {
    (void)state;
    static const int chosen[3] = {0, 4, 8}, five[5] = {0, 2, 4, 7, 9};
    struct loader *loader = group_loader(3, 3, false, 1);
    int firsts[3];
    for (int round = 0; round < 2; round++) {
        loader_spread(loader, 0, 3);
        for (int step = 0; step < 3; step++) {
            first_tokens(loader, step, 0, 3, firsts);
            for (int b = 0; b < 3; b++)
                assert_int_equal(firsts[b], chosen[b] < 5 ? chosen[b] * T : FIRST_C + (chosen[b] - 5) * T);
        }
        loader_spread(loader, 0, 5);
        for (int row = 0; row < 10; row++) {
            int sequence = five[row % 5];
            first_tokens(loader, row / 3, 0, 3, firsts);
            assert_int_equal(firsts[row % 3], sequence < 5 ? sequence * T : FIRST_C + (sequence - 5) * T);
        }
        loader_spread(loader, 0, round == 0 ? 0 : 100);
        first_tokens(loader, 1, 0, 3, firsts);
        assert_int_equal(firsts[0], 3 * T);
        assert_int_equal(firsts[2], FIRST_C);
    }
    loader_delete(loader);
}

enum { BATCH = 6, STEPS = 40 };

static void read_in_order(uint64_t seed, int *rows) {
    struct loader *loader = group_loader(BATCH, BATCH, true, seed);
    for (int step = 0; step < STEPS; step++)
        first_tokens(loader, step, 0, BATCH, rows + step * BATCH);
    loader_delete(loader);
}

static void test_rows_do_not_depend_on_requests(void **state) {
    (void)state;
    int rows[STEPS * BATCH], firsts[BATCH];
    read_in_order(3, rows);
    for (int micro = 1; micro <= BATCH; micro++) {
        if (BATCH % micro)
            continue;
        struct loader *loader = group_loader(BATCH, micro, true, 3);
        for (int step = 0; step < STEPS; step++)
            for (int row = 0; row < BATCH; row += micro) {
                first_tokens(loader, step, row, micro, firsts);
                assert_memory_equal(firsts, rows + step * BATCH + row, (size_t)micro * sizeof *firsts);
            }
        uint32_t random = 1;
        for (int i = 0; i < 500; i++) { // jumps, repeats, backwards
            random = random * 1664525 + 1013904223;
            int step = (int)(random >> 16) % STEPS, row = (int)(random >> 8) % (BATCH / micro) * micro;
            first_tokens(loader, step, row, micro, firsts);
            assert_memory_equal(firsts, rows + step * BATCH + row, (size_t)micro * sizeof *firsts);
        }
        loader_delete(loader);
    }
    // As rank 1 of 2 of a resumed run: starts within an epoch.
    struct loader *loader = group_loader(BATCH, 1, true, 3);
    for (int step = 17; step < 25; step++)
        for (int row = 1; row < BATCH; row += 2) {
            first_tokens(loader, step, row, 1, firsts);
            assert_int_equal(firsts[0], rows[step * BATCH + row]);
        }
    loader_delete(loader);
}

// Two loaders at the same time (training and validation) do not affect each other.
static void test_two_loaders(void **state) {
    (void)state;
    int rows[2][STEPS * BATCH], firsts[BATCH];
    read_in_order(3, rows[0]);
    read_in_order(4, rows[1]);
    struct loader *loaders[2] = {group_loader(BATCH, BATCH, true, 3), group_loader(BATCH, BATCH, true, 4)};
    for (int i = 0; i < 2 * STEPS; i++) {
        first_tokens(loaders[i % 2], i / 2, 0, BATCH, firsts);
        assert_memory_equal(firsts, rows[i % 2] + i / 2 * BATCH, sizeof firsts);
    }
    loader_delete(loaders[0]);
    loader_delete(loaders[1]);
}

// Each epoch visits every sequence once, with one shift per shard, within the tokens left over at its end.
static void test_every_epoch_is_a_permutation(void **state) {
    (void)state;
    enum { EPOCHS = 60 };
    struct loader *loader = group_loader(N_SEQUENCES, N_SEQUENCES, true, 9);
    int before[N_SEQUENCES] = {0}, n_shifts[T] = {0}, n_unchanged = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int firsts[N_SEQUENCES], shift = -1;
        bool seen[N_SEQUENCES] = {false};
        first_tokens(loader, epoch, 0, N_SEQUENCES, firsts);
        for (int i = 0; i < N_SEQUENCES; i++) {
            bool in_c = firsts[i] >= FIRST_C;
            int place = firsts[i] - (in_c ? FIRST_C : 0), sequence = place / T + (in_c ? 5 : 0);
            if (in_c) {
                assert_int_equal(place % T, 0); // no tokens left over, no shift
            } else {
                assert_true(shift < 0 || shift == place % T);
                shift = place % T;
            }
            assert_in_range(sequence, 0, N_SEQUENCES - 1);
            assert_false(seen[sequence]);
            seen[sequence] = true;
            n_unchanged += sequence == before[i];
            before[i] = sequence;
        }
        assert_in_range(shift, 0, 5); // N_A leaves five tokens
        n_shifts[shift]++;
    }
    for (int i = 0; i <= 5; i++)
        assert_in_range(n_shifts[i], 1, 30); // ten each on average
    assert_true(n_unchanged < 4 * EPOCHS);   // one per epoch on average
    loader_delete(loader);
}

static void test_seeds_differ(void **state) {
    (void)state;
    int rows[2][STEPS * BATCH], n_equal = 0;
    read_in_order(1, rows[0]);
    read_in_order(2, rows[1]);
    for (int i = 0; i < STEPS * BATCH; i++)
        n_equal += rows[0][i] == rows[1][i];
    assert_true(n_equal < STEPS * BATCH / 4);
}

static void test_one_sequence_exactly(void **state) {
    (void)state;
    char path[300];
    int first;
    write_shard("one.bin", T + 1, 100);
    struct loader *loader;
    EXPECT_OK(try_new(temporary_path(&temporary, "one.bin", path, sizeof path), VOCABULARY, 1, 1, true, 1,
                      &loader));
    for (int step = 0; step < 5; step++) {
        first_tokens(loader, step, 0, 1, &first);
        assert_int_equal(first, 100);
    }
    loader_delete(loader);
}

// Token 2 * T of the shard is out of range: also as the last target of the sequence before it.
static void test_token_beyond_the_vocabulary(void **state) {
    (void)state;
    struct token_batch batch;
    struct loader *loader;
    char path[300];
    write_shard("high.bin", 4 * T + 1, 0);
    temporary_path(&temporary, "high.bin", path, sizeof path);
    EXPECT_OK(try_new(path, 2 * T, 1, 1, false, 1, &loader));
    EXPECT_OK(loader_batch(loader, 0, 0, &batch));
    usleep(100000); // the thread prefetches the bad token, which nothing has requested yet
    assert_string_equal(status_message(), "");
    assert_int_equal(batch.tokens[T - 1], T - 1);
    for (int again = 0; again < 2; again++)
        EXPECT_FAILURE(STATUS_INVALID, loader_batch(loader, 1, 0, &batch), path, "token 16 ", "is 16,",
                       "vocabulary of 16");
    EXPECT_FAILURE(STATUS_INVALID, loader_batch(loader, 3, 0, &batch), path, "token 24 ", "is 24,");
    EXPECT_OK(loader_batch(loader, 0, 0, &batch)); // good batches can still be read
    assert_int_equal(batch.tokens[0], 0);
    loader_delete(loader);
    EXPECT_OK(try_new(path, 4 * T + 1, 1, 1, false, 1, &loader));
    for (int step = 0; step < 8; step++)
        EXPECT_OK(loader_batch(loader, step, 0, &batch));
    loader_delete(loader);
}

// Shards with tokens of 2 and of 4 bytes make one source. An id of 2^31 or more is refused with its value.
static void test_widths(void **state) {
    (void)state;
    struct token_batch batch;
    struct loader *loader;
    char path[300];
    int firsts[4];
    write_shard("width-0.bin", 2 * T + 1, 100);
    write_tokens("width-1.bin", 2 * T + 3, 70000, 4);
    EXPECT_OK(try_new(temporary_path(&temporary, "width-*.bin", path, sizeof path), 70100, 4, 4, false, 1,
                      &loader));
    assert_int_equal(loader_n_tokens(loader), 4 * T + 4);
    first_tokens(loader, 0, 0, 4, firsts);
    assert_memory_equal(firsts, ((const int[4]){100, 100 + T, 70000, 70000 + T}), sizeof firsts);
    loader_delete(loader);
    EXPECT_OK(try_new(path, 70002, 1, 1, false, 1, &loader));
    EXPECT_FAILURE(STATUS_INVALID, loader_batch(loader, 2, 0, &batch), "width-1.bin", "token 2 ", "is 70002,",
                   "vocabulary of 70002");
    loader_delete(loader);
    write_tokens("negative.bin", T + 1, -7, 4);
    EXPECT_OK(try_new(temporary_path(&temporary, "negative.bin", path, sizeof path), 8388608, 1, 1, false, 1,
                      &loader));
    EXPECT_FAILURE(STATUS_INVALID, loader_batch(loader, 0, 0, &batch), "token 0 ", "is 4294967289,");
    loader_delete(loader);
}

// A failure recorded elsewhere is not replaced by one of the loader's thread, nor cleared by an out-of-order
// request.
static void test_earlier_failures_are_kept(void **state) {
    (void)state;
    struct token_batch batch;
    struct loader *loader;
    char path[300];
    write_shard("high.bin", 4 * T + 1, 0);
    EXPECT_OK(
        try_new(temporary_path(&temporary, "high.bin", path, sizeof path), 2 * T, 1, 1, false, 1, &loader));
    EXPECT_OK(loader_batch(loader, 0, 0, &batch));
    usleep(100000);
    assert_int_equal(FAIL(STATUS_FAILED, "the disk is full"), STATUS_FAILED);
    assert_string_equal(status_message(), "the disk is full");
    EXPECT_OK(loader_batch(loader, 0, 0, &batch));
    loader_delete(loader);
}

static void test_less_than_one_sequence(void **state) {
    (void)state;
    struct loader *loader;
    char path[300];
    temporary_path(&temporary, "group-b.bin", path, sizeof path);
    EXPECT_FAILURE(STATUS_INVALID, try_new(path, VOCABULARY, 1, 1, false, 1, &loader), "data.train",
                   "1 shard ", "8 tokens", "no sequence", "8 + 1");
    assert_null(loader);
    write_shard("empty.bin", 0, 0);
    temporary_path(&temporary, "empty.bin", path, sizeof path);
    EXPECT_FAILURE(STATUS_INVALID, try_new(path, VOCABULARY, 1, 1, false, 1, &loader), "0 tokens",
                   "no sequence");
}

// A batch of more sequences than there are goes on with the next epoch.
static void test_less_than_one_batch(void **state) {
    (void)state;
    int one[26], two[26];
    struct loader *loader = group_loader(26, 26, false, 1);
    first_tokens(loader, 0, 0, 26, one);
    assert_memory_equal(one, one + N_SEQUENCES, N_SEQUENCES * sizeof *one);
    first_tokens(loader, 1, 0, 26, two);
    assert_int_equal(two[0], one[2]); // 26 = 2 x 12 + 2
    loader_delete(loader);
}

// A mixture of group-a (5 sequences) and group-c (7): rows come from both in proportion to the weights, and
// each source runs through epochs of its own, in an order that neither the weights nor the other source
// change.
static void test_mixture(void **state) {
    (void)state;
    enum { N_ROWS = 400, N_BATCH = 8 };
    char a[300], c[300];
    char *paths[2] = {a, c};
    temporary_path(&temporary, "group-a.bin", a, sizeof a);
    temporary_path(&temporary, "group-c.bin", c, sizeof c);
    const struct file_list files[2] = {{.paths = &paths[0], .n_paths = 1},
                                       {.paths = &paths[1], .n_paths = 1}};
    int orders[2][2][N_ROWS], counts[2][2] = {{0}};
    for (int run = 0; run < 2; run++) {
        const struct source_option list[2] = {{&files[0], run ? 1 : 3}, {&files[1], 1}};
        const struct loader_options options = {.sources = {.list = list, .n = 2, .option = "data.train"},
                                               .vocab_size = VOCABULARY,
                                               .seq_len = T,
                                               .batch_size = N_BATCH,
                                               .micro_batch_size = N_BATCH,
                                               .shuffle = true,
                                               .seed = 7};
        struct loader *loader;
        EXPECT_OK(loader_new(&options, &loader));
        for (int step = 0; step < N_ROWS / N_BATCH; step++) {
            int firsts[N_BATCH];
            for (int s = 0; s < 2; s++)
                assert_int_equal(loader_n_drawn(loader, s, step), counts[run][s]);
            first_tokens(loader, step, 0, N_BATCH, firsts);
            for (int b = 0; b < N_BATCH; b++) {
                const int source = firsts[b] >= FIRST_C;
                orders[run][source][counts[run][source]++] = firsts[b];
            }
        }
        loader_delete(loader);
    }
    assert_in_range(counts[0][0], 299, 301);
    assert_in_range(counts[1][0], 199, 201);
    for (int s = 0; s < 2; s++) {
        const int n = s ? 7 : 5, both = counts[s == 0][s]; // the fewer rows of the two runs
        assert_memory_equal(orders[0][s], orders[1][s], (size_t)both * sizeof(int));
        for (int epoch = 0; (epoch + 1) * n <= both; epoch++) { // each sequence once
            int seen = 0;
            for (int i = 0; i < n; i++)
                seen |= 1 << ((orders[0][s][epoch * n + i] - (s ? FIRST_C : 0)) / T);
            assert_int_equal(seen, (1 << n) - 1);
        }
    }
}

// The last 5 % to 60 % are held out. Both loaders together have every token once.
static void test_held_out(void **state) {
    (void)state;
    char *paths[1] = {pattern};
    const struct file_list patterns = {.paths = paths, .n_paths = 1};
    const struct source_option source = {.patterns = &patterns};
    struct loader_options options = {.sources = {.list = &source, .n = 1, .option = "data.train"},
                                     .vocab_size = VOCABULARY,
                                     .seq_len = 1,
                                     .batch_size = 1,
                                     .micro_batch_size = 1};
    const double fractions[] = {0.05, 0.5, 0.6};
    const int first_held_out[] = {FIRST_C + 51, FIRST_C + 1, 44}; // of 46 + 8 + 57 tokens
    const int last_trained[] = {FIRST_C + 50, 5007,
                                43}; // a single token, as in the second case, is no sequence
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++) {
        struct loader *train, *val;
        struct token_batch batch;
        options.sources.held_out = fractions[i];
        options.sources.of_held_out = false;
        EXPECT_OK(loader_new(&options, &train));
        options.sources.of_held_out = true;
        EXPECT_OK(loader_new(&options, &val));
        assert_int_equal(loader_n_tokens(train) + loader_n_tokens(val), N_A + N_B + N_C);
        assert_int_equal(loader_n_tokens(val), (size_t)ceil(fractions[i] * (N_A + N_B + N_C)));
        EXPECT_OK(loader_batch(val, 0, 0, &batch));
        assert_int_equal(batch.tokens[0], first_held_out[i]);
        EXPECT_OK(loader_batch(train, (int64_t)loader_n_sequences(train) - 1, 0, &batch));
        assert_int_equal(batch.targets[0], last_trained[i]);
        loader_delete(train);
        loader_delete(val);
    }
    // Of few tokens at least one sequence: 56 of 111 for sequences of 55 + 1 tokens cannot be, 28 can.
    const int seq_lens[] = {55, 27}, n_held_out[] = {6, 28};
    options.sources.held_out = 0.05;
    options.sources.of_held_out = true;
    for (size_t i = 0; i < sizeof seq_lens / sizeof *seq_lens; i++) {
        struct loader *val;
        options.seq_len = seq_lens[i];
        enum status status = loader_new(&options, &val);
        if (n_held_out[i] < seq_lens[i] + 1) {
            EXPECT_FAILURE(STATUS_INVALID, status, "6 tokens", "no sequence");
            continue;
        }
        EXPECT_OK(status);
        assert_int_equal(loader_n_tokens(val), n_held_out[i]);
        loader_delete(val);
    }
}

// A short last shard holds no sequence: what is held out begins in the one before, with its last sequence.
static void test_held_out_with_a_short_last_shard(void **state) {
    (void)state;
    char shards[300];
    write_shard("short-0.bin", 20 * T + 1, 0);
    write_shard("short-1.bin", T, 5000);
    temporary_path(&temporary, "short-*.bin", shards, sizeof shards);
    char *paths[1] = {shards};
    const struct file_list patterns = {.paths = paths, .n_paths = 1};
    const struct source_option source = {.patterns = &patterns};
    for (int small = 0; small < 2; small++) {
        struct loader *train, *val;
        struct token_batch batch;
        struct loader_options options = {
            .sources = {.list = &source, .n = 1, .option = "data.train", .held_out = small ? 0.001 : 0.07},
            .vocab_size = VOCABULARY,
            .seq_len = T,
            .batch_size = 1,
            .micro_batch_size = 1};
        EXPECT_OK(loader_new(&options, &train));
        options.sources.of_held_out = true;
        EXPECT_OK(loader_new(&options, &val));
        assert_int_equal(loader_n_tokens(val), 2 * T + 1);
        assert_int_equal(loader_n_sequences(val), 1);
        assert_int_equal(loader_n_tokens(train), 19 * T);
        EXPECT_OK(loader_batch(val, 0, 0, &batch));
        assert_int_equal(batch.tokens[0], 19 * T);
        loader_delete(train);
        loader_delete(val);
    }
}

// The weight of a token is its value modulo 3, halved.
static void weigh_by_value(const int32_t *tokens, int n, float *weights) {
    for (int t = 0; t < n; t++)
        weights[t] = (float)(tokens[t + 1] % 3) / 2;
}

// The weights of a step's batches are those of its targets, prefetched or not, and their sums over the rows
// of each rank add up to the same for any number of ranks.
static void test_weights(void **state) {
    (void)state;
    enum { ALL = 12 };
    const struct source_option source = {.patterns =
                                             &(struct file_list){.paths = (char *[]){pattern}, .n_paths = 1}};
    for (int world = 1; world <= 3; world++)
        for (int B = 1; B <= 2; B++) {
            double sum = 0, counted = 0;
            for (int rank = 0; rank < world; rank++) {
                const struct loader_options options = {
                    .sources = {.list = &source, .n = 1, .option = "data.train"},
                    .vocab_size = VOCABULARY,
                    .seq_len = T,
                    .batch_size = ALL,
                    .micro_batch_size = B,
                    .first_row = rank * B,
                    .row_stride = world * B,
                    .seed = 3,
                    .weigh = weigh_by_value};
                struct loader *loader;
                EXPECT_OK(loader_new(&options, &loader));
                assert_true(loader_is_weighted(loader));
                for (int64_t step = 0; step < 3; step++) {
                    double mine;
                    EXPECT_OK(loader_sum_weights(loader, step, &mine));
                    sum += (double)(step + 1) * mine;
                    for (int row = rank * B; row < ALL; row += world * B) {
                        struct token_batch batch;
                        EXPECT_OK(loader_batch(loader, step, row, &batch));
                        for (int i = 0; i < B * T; i++) {
                            assert_true(batch.weights[i] == (float)(batch.targets[i] % 3) / 2);
                            counted += (double)(step + 1) * (double)batch.weights[i];
                        }
                    }
                }
                loader_delete(loader);
            }
            assert_true(sum == counted && sum > 0); // exact: multiples of a half
        }
}

// Rows beyond those of loader_spread are padding; without one, batches have no weights.
static void test_padding(void **state) {
    (void)state;
    struct loader *loader = group_loader(4, 4, false, 1);
    struct token_batch batch;
    EXPECT_OK(loader_batch(loader, 0, 0, &batch));
    assert_null(batch.weights);
    for (int i = 0; i < 4 * T; i++)
        assert_int_equal(batch.starts[i], 0);
    for (int n = 3; n <= 9; n++) {
        loader_spread(loader, 0, (size_t)n);
        for (int64_t step = 0; step < 4; step++) {
            EXPECT_OK(loader_batch(loader, step, 0, &batch));
            assert_int_equal(batch.weights != NULL, 4 * (step + 1) > n);
            for (int i = 0; i < 4 * T && batch.weights; i++)
                assert_true(batch.weights[i] == (float)(4 * step + i / T < n));
        }
    }
    loader_delete(loader);
}

// Token values are positions of the shards: a document begins at one of them.
static void test_documents(void **state) {
    (void)state;
    struct loader *loader = group_loader(2, 2, false, 1);
    struct token_batch batch;
    loader_set_document_start(loader, T + 3);
    for (int again = 0; again < 2; again++) {
        EXPECT_OK(loader_batch(loader, 0, 0, &batch));
        for (int t = 0; t < T; t++) {
            assert_int_equal(batch.starts[t], 0);
            assert_int_equal(batch.starts[T + t], t < 3 ? 0 : 3);
        }
    }
    loader_delete(loader);
}

static void test_missing_and_invalid_shards(void **state) {
    (void)state;
    struct loader *loader;
    char path[300];
    temporary_path(&temporary, "absent-*.bin", path, sizeof path);
    EXPECT_FAILURE(STATUS_INVALID, try_new(path, VOCABULARY, 1, 1, true, 1, &loader), "data.train", path);
    temporary_path(&temporary, "absent.bin", path, sizeof path);
    EXPECT_FAILURE(STATUS_INVALID, try_new(path, VOCABULARY, 1, 1, true, 1, &loader), path);
    temporary_path(&temporary, "group-z.bin", path, sizeof path);
    EXPECT_OK(file_write_all(path, "\1\2\3\4tokens", 10));
    EXPECT_FAILURE(STATUS_INVALID, try_new(pattern, VOCABULARY, 1, 1, true, 1, &loader), path, "10 bytes");
    assert_null(loader);
    EXPECT_OK(file_remove_tree(path));
}

// A loader may be deleted right away, while its thread reads, or later: the thread ends, and nothing leaks.
static void test_deleting_while_reading(void **state) {
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct token_batch batch;
        struct loader *loader = group_loader(12, 12, true, (uint64_t)i);
        for (int step = 0; step < i % 4; step++)
            EXPECT_OK(loader_batch(loader, step, 0, &batch));
        loader_delete(loader);
    }
}

// Two sparse files with 2.4e9 tokens in total: positions need more than 31 bits.
static void test_more_tokens_than_31_bits(void **state) {
    (void)state;
    const size_t n = 1200000000;
    const size_t marked = (n - 1) / T - 1; // the shard's last sequence
    char path[300];
    for (int i = 0; i < 2; i++) {
        const int32_t header[3] = {SHARD_MAGIC, SHARD_VERSION, (int32_t)n};
        const uint16_t mark = (uint16_t)(77 + i);
        temporary_path(&temporary, i ? "huge-1.bin" : "huge-0.bin", path, sizeof path);
        int file = open(path, O_RDWR | O_CREAT, 0600);
        assert_true(file >= 0);
        assert_int_equal(pwrite(file, header, sizeof header, 0), sizeof header);
        if (ftruncate(file, (off_t)(SHARD_HEADER_BYTES + 2 * n)) != 0) {
            close(file);
            print_message("this file system cannot hold a file of %zu bytes\n", 2 * n);
            skip();
        }
        assert_int_equal(pwrite(file, &mark, 2, (off_t)(SHARD_HEADER_BYTES + 2 * marked * T)), 2);
        close(file);
    }
    struct loader *loader;
    struct token_batch batch;
    temporary_path(&temporary, "huge-*.bin", path, sizeof path);
    EXPECT_OK(try_new(path, VOCABULARY, 1, 1, false, 1, &loader));
    assert_int_equal(loader_n_tokens(loader), 2 * n);
    const size_t per_shard = (n - 1) / T;
    assert_int_equal(loader_n_sequences(loader), 2 * per_shard);
    EXPECT_OK(loader_batch(loader, (int64_t)marked, 0, &batch));
    assert_int_equal(batch.tokens[0], 77);
    EXPECT_OK(loader_batch(loader, (int64_t)(per_shard + marked), 0, &batch));
    assert_int_equal(batch.tokens[0], 78);
    EXPECT_OK(loader_batch(loader, (int64_t)(7 * 2 * per_shard + marked), 0, &batch));
    assert_int_equal(batch.tokens[0], 77); // the eighth epoch
    loader_delete(loader);
    EXPECT_OK(try_new(path, 78, 1, 1, false, 1, &loader));
    char place[32];
    snprintf(place, sizeof place, "token %zu ", marked * T);
    EXPECT_FAILURE(STATUS_INVALID, loader_batch(loader, (int64_t)(per_shard + marked), 0, &batch),
                   "huge-1.bin", place, "is 78,");
    loader_delete(loader);
}

// Many more shards than the limit on open files: each is opened when it is read.
static void test_more_shards_than_open_files(void **state) {
    (void)state;
    enum { N_SHARDS = 60 };
    struct rlimit before, small;
    char name[32], many[300];
    for (int i = 0; i < N_SHARDS; i++) {
        snprintf(name, sizeof name, "many-%03d.bin", i);
        write_shard(name, T + 1, 100 * i);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    small = before;
    small.rlim_cur = 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    struct loader *loader = NULL;
    enum status status = try_new(temporary_path(&temporary, "many-*.bin", many, sizeof many), VOCABULARY, 1,
                                 1, false, 1, &loader);
    for (int step = 0; status == STATUS_OK && step < 2 * N_SHARDS; step++) {
        struct token_batch batch;
        status = loader_batch(loader, step, 0, &batch);
        if (status == STATUS_OK)
            assert_int_equal(batch.tokens[0], 100 * (step % N_SHARDS));
    }
    loader_delete(loader);
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_OK(status);
}

// Truncating a shard in use fails the batch that needs it, even if that batch is prefetched, and no other
// batch.
static void test_truncated_shard(void **state) {
    (void)state;
    char path[300];
    write_shard("cut.bin", 4 * T + 1, 0);
    temporary_path(&temporary, "cut.bin", path, sizeof path);
    struct loader *loader;
    EXPECT_OK(try_new(path, VOCABULARY, 1, 1, false, 1, &loader));
    struct token_batch batch;
    EXPECT_OK(loader_batch(loader, 0, 0, &batch));
    assert_int_equal(truncate(path, SHARD_HEADER_BYTES + 2 * (2 * T + 1)), 0);
    EXPECT_OK(loader_batch(loader, 1, 0, &batch));
    assert_int_equal(batch.tokens[0], T);
    EXPECT_FAILURE(STATUS_FAILED, loader_batch(loader, 3, 0, &batch), "cut.bin", "was truncated");
    EXPECT_OK(loader_batch(loader, 1, 0, &batch));
    loader_delete(loader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_file_order),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_rows_do_not_depend_on_requests),
        cmocka_unit_test(test_two_loaders),
        cmocka_unit_test(test_every_epoch_is_a_permutation),
        cmocka_unit_test(test_seeds_differ),
        cmocka_unit_test(test_one_sequence_exactly),
        cmocka_unit_test(test_token_beyond_the_vocabulary),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_earlier_failures_are_kept),
        cmocka_unit_test(test_less_than_one_sequence),
        cmocka_unit_test(test_less_than_one_batch),
        cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_held_out_with_a_short_last_shard),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_missing_and_invalid_shards),
        cmocka_unit_test(test_deleting_while_reading),
        cmocka_unit_test(test_more_tokens_than_31_bits),
        cmocka_unit_test(test_more_shards_than_open_files),
        cmocka_unit_test(test_truncated_shard),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
