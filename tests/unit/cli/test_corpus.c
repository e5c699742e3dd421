// From text files to shards: where the validation split begins, and what ./train tokenize writes.
#include "tests/support/expect.h"

#include <stdbool.h>

#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "data/shard.h"
#include "data/text/sources.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/temporary.h"

static struct temporary temporary;
static char paths[3][300], out_folder[300], tokenizer_file[300];

static int set_up(void **state) {
    (void)state;
    log_set_level(LOG_QUIET);
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "a text.txt", paths[0], sizeof paths[0]);
    temporary_path(&temporary, "b.txt", paths[1], sizeof paths[1]);
    temporary_path(&temporary, "c.txt", paths[2], sizeof paths[2]);
    temporary_path(&temporary, "shards", out_folder, sizeof out_folder);
    temporary_path(&temporary, "tokenizer", tokenizer_file, sizeof tokenizer_file);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

static void write_texts(const char *const *texts, int n) {
    for (int i = 0; i < n; i++)
        EXPECT_OK(file_write_all(paths[i], texts[i], strlen(texts[i])));
}

// Splits the texts and compares how many bytes of each are for training.
static void expect_split_at(const char *const *texts, int n, double held_out, const size_t *wanted) {
    const char *const names[] = {paths[0], paths[1], paths[2]};
    struct text_sources sources;
    struct text_split split;
    write_texts(texts, n);
    EXPECT_OK(text_sources_find(names, n, false, &sources));
    EXPECT_OK(text_sources_split(&sources, held_out, false, &split));
    assert_int_equal(sources.n, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(sources.list[i].bytes, strlen(texts[i]));
        assert_int_equal(split.source < 0 || i < split.source ? sources.list[i].bytes
                         : i == split.source                  ? split.offset
                                                              : 0,
                         wanted[i]);
    }
    text_sources_free(&sources);
}

static void test_where_the_validation_split_begins(void **state) {
    (void)state;
    // Ten lines of ten bytes: the cut moves to the end of its line.
    const char *lines[] = {"line 0...\nline 1...\nline 2...\nline 3...\nline 4...\n"
                           "line 5...\nline 6...\nline 7...\nline 8...\nline 9...\n"};
    expect_split_at(lines, 1, 0, (const size_t[]){100});
    expect_split_at(lines, 1, 0.25, (const size_t[]){80});
    expect_split_at(lines, 1, 0.48, (const size_t[]){60});
    expect_split_at(lines, 1, 0.05, (const size_t[]){95}); // in the last line: after a character
    // Without line ends the cut moves to the end of a character. Ten characters of three bytes.
    const char *one_line[] = {"\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5"
                              "\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5\xe6\x97\xa5"};
    expect_split_at(one_line, 1, 0.1, (const size_t[]){27});
    expect_split_at(one_line, 1, 0.15, (const size_t[]){27}); // 25.5 bytes: 25 is in the ninth
    expect_split_at(one_line, 1, 0.2, (const size_t[]){24});
    // Several texts: what precedes the cut is for training, the rest is held out.
    const char *texts[] = {"one\ntwo\nthree\nfour\n", "five\nsix\nseven\n", "eight\nnine\nten\n"}; // 19 15 15
    expect_split_at(texts, 3, 0, (const size_t[]){19, 15, 15});
    expect_split_at(texts, 3, 0.1, (const size_t[]){19, 15, 10 + 1}); // 44.1: within "nine"
    expect_split_at(texts, 3, 0.4, (const size_t[]){19, 10, 0});      // 29.4: the last line of the second
    expect_split_at(texts, 3, 0.9, (const size_t[]){8, 0, 0});        // 4.9: within "two"
    // A byte-order mark is no text.
    const char *marked[] = {"\xef\xbb\xbfline 0...\nline 1...\n"};
    const char *const names[] = {paths[0]};
    struct text_sources sources;
    struct text_split split;
    write_texts(marked, 1);
    EXPECT_OK(text_sources_find(names, 1, false, &sources));
    EXPECT_OK(text_sources_split(&sources, 0.55, false, &split));
    assert_int_equal(sources.list[0].bytes, 20);
    assert_int_equal(split.offset, 10);
    text_sources_free(&sources);
}

static void test_unreadable_texts(void **state) {
    (void)state;
    const char *const names[] = {paths[0], "absent.txt"};
    struct text_sources sources;
    struct text_split split;
    write_texts((const char *[]){"x"}, 1);
    EXPECT_FAILURE(STATUS_INVALID, text_sources_find(names, 2, false, &sources), "absent.txt");
    EXPECT_OK(text_sources_find(names, 0, false, &sources));
    EXPECT_OK(text_sources_split(&sources, 0.1, false, &split));
    assert_int_equal(split.source, -1);
    text_sources_free(&sources);
}

// ---- train tokenize

// Every flag is given each time, because commands keep their flags (a process normally runs one command).
static enum status tokenize(int n_texts, const char *tokenizer, const char *split, const char *shard_tokens) {
    char *args[16] = {0};
    int n = 0;
    for (int i = 0; i < n_texts; i++)
        args[n++] = paths[i];
    args[n++] = (char[]){"--out"};
    args[n++] = out_folder;
    char tokenizer_flag[400], split_flag[40], shard_flag[40];
    snprintf(tokenizer_flag, sizeof tokenizer_flag, "--tokenizer=%s", tokenizer);
    snprintf(split_flag, sizeof split_flag, "--split=%s", split);
    snprintf(shard_flag, sizeof shard_flag, "--shard-tokens=%s", shard_tokens);
    args[n++] = tokenizer_flag;
    args[n++] = split_flag;
    args[n++] = shard_flag;
    return command_tokenize.run(n, args);
}

static bool out_exists(const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", out_folder, name);
    return file_exists(path);
}

// Reads the tokens of all shards of a split, in order. Returns the number of shards.
static int read_split(const char *name, int32_t *tokens, size_t *n_tokens) {
    char shards[400];
    struct file_list list = {0};
    *n_tokens = 0;
    snprintf(shards, sizeof shards, "%s/%s-*.bin", out_folder, name);
    if (file_glob(&list, shards) != STATUS_OK)
        status_clear();
    int n_shards = list.n_paths;
    for (int i = 0; i < n_shards; i++) {
        struct shard shard;
        EXPECT_OK(shard_open(&shard, list.paths[i]));
        EXPECT_OK(shard_read(&shard, 0, shard.n_tokens, tokens + *n_tokens));
        *n_tokens += shard.n_tokens;
        shard_close(&shard);
    }
    file_list_free(&list);
    return n_shards;
}

static void expect_meta(const char *split, size_t bytes, size_t tokens) {
    char path[400];
    cJSON *meta;
    snprintf(path, sizeof path, "%s/meta.json", out_folder);
    EXPECT_OK(json_read_file(path, &meta));
    const cJSON *part = cJSON_GetObjectItem(meta, split);
    assert_int_equal(cJSON_GetObjectItem(part, "bytes")->valuedouble, bytes);
    assert_int_equal(cJSON_GetObjectItem(part, "tokens")->valuedouble, tokens);
    assert_true(cJSON_IsString(cJSON_GetObjectItem(meta, "tokenizer")));
    cJSON_Delete(meta);
}

static void expect_split(const char *name, const char *expected, int n_shards) {
    static int32_t tokens[1000];
    size_t n_tokens;
    assert_int_equal(read_split(name, tokens, &n_tokens), n_shards);
    size_t n_bytes = 0;
    assert_int_equal(n_tokens, strlen(expected));
    for (size_t i = 0; i < n_tokens; i++) { // "|" stands for end-of-text
        assert_int_equal(tokens[i], expected[i] == '|' ? 256 : (unsigned char)expected[i]);
        n_bytes += expected[i] != '|';
    }
    expect_meta(name, n_bytes, n_tokens);
}

static void test_shards(void **state) {
    (void)state;
    write_texts((const char *[]){"one\ntwo\n", "", "three\nfour\n"}, 3);
    EXPECT_OK(tokenize(3, "bytes", "0.2", "1000"));
    expect_split("train", "|one\ntwo\n|three\nf", 1); // 15.2 of 19 bytes: in the last line
    expect_split("val", "|our\n", 1);
    assert_false(out_exists("train-00001.bin"));
}

// Shards of an earlier run are removed, if there are fewer now or no validation split.
static void test_shards_of_an_earlier_run(void **state) {
    (void)state;
    write_texts((const char *[]){"0123\n5678\nabcd\nfghi\n"}, 1);
    EXPECT_OK(tokenize(1, "bytes", "0.3", "6"));
    expect_split("train", "|0123\n5678\nabcd\n", 3);
    expect_split("val", "|fghi\n", 1);
    assert_true(out_exists("train-00002.bin"));
    EXPECT_OK(tokenize(1, "bytes", "0", "100"));
    expect_split("train", "|0123\n5678\nabcd\nfghi\n", 1);
    expect_split("val", "", 0);
}

// Up to 65,536 ids tokens have 2 bytes, beyond 4.
static void test_width_of_tokens(void **state) {
    (void)state;
    struct text merges = {0};
    static int32_t tokens[100];
    char path[400];
    size_t n_tokens;
    text_add(&merges, "#version: 0.2\n");
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for (int i = 0; i < 65280; i++) // three of 52 letters
        text_add(&merges, "%c%c %c\n", letters[i / 2704], letters[i / 52 % 52], letters[i % 52]);
    write_texts((const char *[]){"text\n"}, 1);
    snprintf(path, sizeof path, "%s/train-00000.bin", out_folder);
    for (int fewer = 0; fewer < 2; fewer++) {
        const int32_t end_of_text = 65536 - fewer;
        struct shard shard;
        EXPECT_OK(file_write_all(tokenizer_file, merges.data, merges.length));
        EXPECT_OK(tokenize(1, tokenizer_file, "0", "100"));
        assert_int_equal(read_split("train", tokens, &n_tokens), 1);
        assert_int_equal(tokens[0], end_of_text);
        EXPECT_OK(shard_open(&shard, path));
        assert_int_equal(shard.token_bytes, fewer ? 2 : 4);
        assert_int_equal(shard.tokenizer.n_ids, end_of_text + 1);
        shard_close(&shard);
        merges.data[merges.length - 1] = '\0';
        merges.length = (size_t)(strrchr(merges.data, '\n') + 1 - merges.data);
    }
    text_free(&merges);
}

static void test_missing_arguments(void **state) {
    (void)state;
    write_texts((const char *[]){"", "x"}, 2);
    EXPECT_FAILURE(STATUS_INVALID, tokenize(0, "bytes", "0", "100"), "TEXT");
    EXPECT_FAILURE(STATUS_INVALID, tokenize(1, "bytes", "0", "100"), paths[0], "no text");
    EXPECT_FAILURE(STATUS_INVALID, tokenize(2, "absent.tiktoken", "0", "100"), "absent.tiktoken");
    EXPECT_FAILURE(STATUS_INVALID, tokenize(2, "bytes", "1.5", "100"), "--split", "1.5");
    EXPECT_FAILURE(STATUS_INVALID, tokenize(2, "bytes", "0", "0"), "--shard-tokens");
    char *bad_action[] = {(char[]){"trian"}};
    EXPECT_FAILURE(STATUS_INVALID, command_tokenizer.run(1, bad_action), "trian", "train, encode or decode");
    EXPECT_FAILURE(STATUS_INVALID, command_tokenizer.run(0, NULL), "train, encode or decode");
    char *no_tokenizer[] = {(char[]){"encode"}};
    EXPECT_FAILURE(STATUS_INVALID, command_tokenizer.run(1, no_tokenizer), "--tokenizer");
    char *no_out[] = {(char[]){"train"}, paths[1]};
    EXPECT_FAILURE(STATUS_INVALID, command_tokenizer.run(2, no_out), "--out");
}

// With --split, the tokenizer is trained on the same training split that ./train tokenize writes.
static void test_tokenizer_is_trained_on_the_training_split(void **state) {
    (void)state;
    write_texts((const char *[]){"aa aa aa aa\naa aa aa aa\nzqzqzqzqzqzqzqzqzqzqzq\n"}, 1);
    char *args[] = {(char[]){"train"}, paths[0],      (char[]){"--split=0.5"}, (char[]){"--vocab-size=258"},
                    (char[]){"--out"}, tokenizer_file};
    EXPECT_OK(command_tokenizer.run(6, args));
    struct tokenizer *tokenizer;
    size_t n;
    EXPECT_OK(tokenizer_load(tokenizer_file, &tokenizer));
    assert_memory_equal(tokenizer_bytes(tokenizer, 256, &n), "aa", 2); // over the whole text it is "zq"
    tokenizer_delete(tokenizer);
    args[2] = (char[]){"--split=0"};
    EXPECT_OK(command_tokenizer.run(6, args));
    EXPECT_OK(tokenizer_load(tokenizer_file, &tokenizer));
    assert_memory_equal(tokenizer_bytes(tokenizer, 256, &n), "zq", 2);
    tokenizer_delete(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_where_the_validation_split_begins),
        cmocka_unit_test(test_unreadable_texts),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_shards_of_an_earlier_run),
        cmocka_unit_test(test_width_of_tokens),
        cmocka_unit_test(test_missing_arguments),
        cmocka_unit_test(test_tokenizer_is_trained_on_the_training_split),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
