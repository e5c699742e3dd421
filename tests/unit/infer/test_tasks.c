// Evaluation tasks: text as lm-evaluation-harness prepares it, items of each kind, requests, batches and
// figures.
#include "tests/support/expect.h"

#include <math.h>

#include "infer/tasks/score.h"
#include "infer/tasks/words.h"
#include "tests/support/damage.h"
#include "tests/support/temporary.h"

static struct temporary temporary;

// ---- text

static void expect_text(struct text *got, const char *expected) {
    assert_string_equal(got->data ? got->data : "", expected);
    text_free(got);
}

// Expected values are Python's.
static void test_words(void **state) {
    static const char *const capitalized[][2] = {{"he RUNS Away.", "He runs away."},
                                                 {"", ""},
                                                 {"\u00e9T\u00c9", "\u00c9t\u00e9"},
                                                 {"[Head] X", "[head] x"}};
    static const char *const cleaned[][2] = {
        {"  Cut hair [title] How TO. [step] Wet  it. ", "Cut hair. How TO. Wet it."},
        {"a [b] c [ d ] e", "a c e"},
        {"[a[b]c] [open", "c] [open"},
        {"[a\nb] [c]", "[a\nb] "},
        {"four    blanks", "four  blanks"},
        {"\u00a0\u3000x\u2003\n", "x"},
        {" [title] x", " x"},
        {"", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof capitalized / sizeof *capitalized; i++) {
        struct text out = {0};
        words_add_capitalized(&out, capitalized[i][0]);
        expect_text(&out, capitalized[i][1]);
    }
    for (size_t i = 0; i < sizeof cleaned / sizeof *cleaned; i++) {
        struct text out = {0};
        words_add_hellaswag(&out, cleaned[i][0]);
        expect_text(&out, cleaned[i][1]);
    }
    assert_int_equal(words_characters("a\u00e9\U0001f600", 7), 3);
    assert_int_equal(words_without_space_at_end("a b \u3000\n", 8), 3);
    assert_int_equal(words_without_space_at_end(" \t", 2), 0);
}

// ---- items

static enum status read(enum task_kind kind, const char *line, struct task_text *item) {
    return task_text_read(item, kind, line, strlen(line), "f.jsonl, line 3");
}

static void expect_item(enum task_kind kind, const char *line, const char *context, int n_choices,
                        const char *last_choice, int label) {
    struct task_text item;
    EXPECT_OK(read(kind, line, &item));
    assert_string_equal(item.context.data ? item.context.data : "", context);
    assert_int_equal(item.n_choices, n_choices);
    assert_string_equal(item.choices[n_choices - 1].data, last_choice);
    assert_int_equal(item.label, label);
    task_text_free(&item);
}

static void test_items(void **state) {
    (void)state;
    expect_item(
        TASK_HELLASWAG,
        "{\"ind\": 24, \"activity_label\": \"Roof shingle removal\", \"ctx_a\": \"A man is sitting.\", "
        "\"ctx_b\": \"he\", \"ctx\": \"unused\", \"endings\": [\"is.\", \" starts [x] off. \"], \"label\": "
        "1}",
        "Roof shingle removal: A man is sitting. He", 2, "starts off.", 1);
    expect_item(TASK_HELLASWAG,
                "{\"activity_label\": \"A\", \"ctx\": \"b [title] c\", \"endings\": [\"d\", \"e\"], "
                "\"label\": \"0\"}",
                "A: b. c", 2, "e", 0);
    expect_item(TASK_LAMBADA, "{\"text\": \"one two  three\"}", "one two ", 1, "three", 0);
    expect_item(TASK_LAMBADA, "{\"text\": \"word\"}", "", 1, "word", 0);
    expect_item(TASK_MULTIPLE_CHOICE,
                "{\"question\": \" 1+1?\", \"choices\": [\"1\", \"3\", \"2\"], \"answer\": 2}", " 1+1?", 3,
                "2", 2);
    expect_item(TASK_MULTIPLE_CHOICE,
                "{\"context\": \"\", \"endings\": [\"x\", \"\\u00e9\"], \"label\": \"B\"}", "", 2, "\u00e9",
                1);
    expect_item(TASK_MULTIPLE_CHOICE, "{\"query\": \"q\", \"options\": [\"x\", \"y\"], \"gold\": \"y\"}", "q",
                2, "y", 1);
}

static void test_items_refused(void **state) {
    static const struct {
        enum task_kind kind;
        const char *line, *says;
    } cases[] = {
        {TASK_MULTIPLE_CHOICE, "[1]", "not an object"},
        {TASK_MULTIPLE_CHOICE, "{\"choices\": [\"a\", \"b\"], \"label\": 0}", "no \"context\""},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"label\": 0}", "no \"choices\""},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"a\", \"b\"]}", "no \"label\""},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"a\"], \"label\": 0}", "1 choices"},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"a\", 3], \"label\": 0}", "choice 1"},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"a\", \"b\"], \"label\": 2}", "label"},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"a\", \"b\"], \"label\": -1}", "label"},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"a\", \"b\"], \"label\": \"C\"}", "index"},
        {TASK_MULTIPLE_CHOICE, "{\"context\": \"\", \"choices\": [\"1\", \"0\"], \"label\": \"1\"}",
         "the text of choice 0, but also the index of choice 1"},
        {TASK_MULTIPLE_CHOICE, "{\"context\": 1, \"choices\": [\"a\", \"b\"], \"label\": 0}", "context"},
        {TASK_HELLASWAG,
         "{\"activity_label\": \"\", \"ctx\": \"\", \"endings\": [\"a\", \"b\"], \"label\": \"\"}",
         "validation split"},
        {TASK_HELLASWAG, "{\"activity_label\": \"\", \"ctx\": \"\", \"endings\": [\"a\", \"b\"]}",
         "validation split"},
        {TASK_HELLASWAG, "{\"ctx\": \"\", \"endings\": [\"a\", \"b\"], \"label\": 0}", "activity_label"},
        {TASK_LAMBADA, "{\"text\": \"ends \"}", "blank"},
        {TASK_LAMBADA, "{\"text\": \"\"}", "empty"},
        {TASK_LAMBADA, "{\"text\": \"a \xff\"}", "byte 13"},
        {TASK_LAMBADA, "{\"text\": \"a\\u0000\"}", "zero byte"},
        {TASK_LAMBADA, "{\"text\": \"a", "f.jsonl"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct task_text item;
        EXPECT_FAILURE(STATUS_INVALID, read(cases[i].kind, cases[i].line, &item), "f.jsonl, line 3",
                       cases[i].says);
        task_text_free(&item);
    }
}

// ---- requests

static struct tokenizer *tokenizer; // "bytes"
static char path[320];

static enum status load_file(const char *kind, int seq_len, int64_t limit, struct task *task) {
    char spec[400];
    snprintf(spec, sizeof spec, "%s=%s", kind, path);
    return task_load(task, "--task", spec,
                     &(struct task_options){
                         .tokenizer = tokenizer, .vocab_size = 257, .seq_len = seq_len, .limit = limit});
}

static enum status load(const char *kind, const char *lines, int seq_len, int64_t limit, struct task *task) {
    EXPECT_OK(file_write_all(path, lines, strlen(lines)));
    return load_file(kind, seq_len, limit, task);
}

// A request's tokens as text, end-of-text as "|", and how many of them are scored.
static void expect_request(const struct task *task, int request, const char *tokens, int n_scored,
                           double length) {
    const struct task_request *r = &task->requests[request];
    char text[64] = "";
    assert_true(r->n < 64);
    for (int i = 0; i < r->n; i++) {
        const int32_t id = task->tokens.ids[r->first + (size_t)i];
        text[i] = id == 256 ? '|' : (char)id;
    }
    assert_string_equal(text, tokens);
    assert_int_equal(r->n_scored, n_scored);
    assert_true(r->length == length);
}

#define TWO_ITEMS                                                                                            \
    "{\"context\": \"ab\", \"choices\": [\"c\", \"\\u00e9f\"], \"label\": 0}\r\n\n"                          \
    "{\"context\": \"ab  \", \"choices\": [\"cd\", \"e\", \"\"], \"label\": 1}\n"

static void test_requests(void **state) {
    struct task task;
    (void)state;
    EXPECT_OK(load("multiple_choice", TWO_ITEMS, 100, 0, &task));
    assert_string_equal(task.name, "items.v1");
    assert_true(task.n_items == 2 && task.n_requests == 5);
    assert_true(task.items[1].first == 2 && task.items[1].n == 3 && task.items[1].label == 1);
    expect_request(&task, 0, "ab c", 2, 1);
    expect_request(&task, 1,
                   "ab \xc3\xa9"
                   "f",
                   4, 2);
    expect_request(&task, 2, "ab   cd", 5, 2); // blanks at the context's end count to the choice
    expect_request(&task, 4, "ab   ", 3, 0);
    task_free(&task);
    EXPECT_OK(load("multiple_choice", TWO_ITEMS, 5, 1, &task)); // the first item
    assert_true(task.n_items == 1 && task.n_requests == 2);
    expect_request(&task, 1,
                   "ab \xc3\xa9"
                   "f",
                   4, 2);
    task_free(&task);
    EXPECT_OK(load("multiple_choice", TWO_ITEMS, 5, 0, &task)); // contexts lose their start
    expect_request(&task, 2, "b   cd", 5, 2);
    task_free(&task);
    EXPECT_OK(load("lambada", "{\"text\": \"a b\"}\n{\"text\": \"cd\"}\n{\"text\": \"  x\"}", 100, 0, &task));
    assert_string_equal(task.name, "lambada");
    expect_request(&task, 0, "a b", 2, 1);
    expect_request(&task, 1, "| cd", 3, 2); // without a context, end-of-text
    expect_request(&task, 2, "|  x", 3, 1);
    task_free(&task);
}

static void test_names(void **state) {
    static const char *const names[][2] = {{"a.b.jsonl", "a.b"},
                                           {".jsonl", ".jsonl"},
                                           {"plain", "plain"},
                                           {"\u00e9 x\n.txt", "\u00e9 x?"},
                                           {"\xc3.txt", "?"}};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char spec[400];
        struct task task;
        snprintf(spec, sizeof spec, "multiple_choice=%s/%s", temporary.folder, names[i][0]);
        EXPECT_OK(file_write_all(spec + strlen("multiple_choice="), TWO_ITEMS, strlen(TWO_ITEMS)));
        EXPECT_OK(
            task_load(&task, "--task", spec,
                      &(struct task_options){.tokenizer = tokenizer, .vocab_size = 257, .seq_len = 60}));
        assert_string_equal(task.name, names[i][1]);
        task_free(&task);
    }
}

static void test_requests_refused(void **state) {
    struct task task;
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, load("multiple_choice", TWO_ITEMS, 4, 0, &task), "items.v1.jsonl, line 3",
                   "5 tokens", "1 to 4");
    task_free(&task);
    EXPECT_FAILURE(STATUS_INVALID, load("lambada", "\n \n", 4, 0, &task), "no items");
    task_free(&task);
    EXPECT_FAILURE(STATUS_INVALID, load("hellaswags", "", 4, 0, &task), "--task", "hellaswag=FILE");
    task_free(&task);
    EXPECT_FAILURE(STATUS_INVALID, task_load(&task, "--task", "lambada=", NULL), "lambada=FILE");
    task_free(&task);
    EXPECT_FAILURE(STATUS_INVALID, task_load(&task, "--task", "lambada=/nonexistent", NULL), "/nonexistent");
    task_free(&task);
    const struct task_options options = {0};
    const char *const none[] = {"lambada=/nonexistent"};
    struct task_list list;
    EXPECT_FAILURE(STATUS_INVALID, task_list_load(&list, "eval.tasks", none, 1, &options), "/nonexistent");
    task_list_free(&list);
}

// ---- damaged files

static enum task_kind damaged_kind;
static struct damage_random random_numbers = {.seed = 20261123};

static void make_damaged(int i, struct bytes *bytes) {
    static const char meaningful[] = "{}[]\":,\\ \nu0123456789\xc4\xa0";
    static const char *const good[] = {"{\"activity_label\": \"A\", \"ctx_a\": \"b [c] d.\", \"ctx_b\": \"e "
                                       "\\u00e9\", \"endings\": [\"f g\", "
                                       "\"[h]\", \"i\"], \"label\": \"1\"}\n",
                                       "{\"text\": \"one two \\ud83d\\ude00 three\"}\n\n{\"text\": \"four\"}",
                                       TWO_ITEMS};
    damaged_kind = (enum task_kind)(i % N_TASK_KINDS);
    bytes->n = strlen(good[damaged_kind]);
    memcpy(bytes->data, good[damaged_kind], bytes->n);
    for (size_t n = 1 + damage_below(&random_numbers, 2); n > 0 && bytes->n > 0; n--) {
        const size_t at = damage_below(&random_numbers, bytes->n), left = bytes->n - at;
        const size_t length = 1 + damage_below(&random_numbers, left < 8 ? left : 8);
        if (!damage_length(bytes, damage_below(&random_numbers, 16), at, length <= left ? length : left))
            bytes->data[at] = damage_byte(&random_numbers, meaningful, sizeof meaningful - 1);
    }
}

// A file that is accepted has whole requests; another is refused by its name.
static bool try_damaged(const struct bytes *bytes) {
    struct task task;
    damage_write(path, bytes);
    const enum status status = load_file(task_kind_name(damaged_kind), 60, 0, &task);
    if (status != STATUS_OK && (status != STATUS_INVALID || !strstr(status_message(), "items.v1.jsonl")))
        fail_msg("status %d, \"%s\"", status, status_message());
    status_clear();
    for (int i = 0; i < task.n_items && status == STATUS_OK; i++) {
        const struct task_item *item = &task.items[i];
        assert_true(item->n >= 1 && item->first + item->n <= task.n_requests);
        assert_in_range(item->label, 0, item->n - 1);
        for (int k = item->first; k < item->first + item->n; k++) {
            const struct task_request *request = &task.requests[k];
            assert_true(request->n_scored >= 1 && request->n > request->n_scored && request->n <= 61);
            assert_true(request->first + (size_t)request->n <= task.tokens.n);
        }
    }
    task_free(&task);
    return status == STATUS_OK;
}

static void test_damaged_files(void **state) {
    (void)state;
    damage_try_all(&(struct damage_trials){"tasks", 1000, make_damaged, try_damaged});
}

// ---- batches

// Every request is in one batch, whose shape is the shortest that holds it.
static void test_batches(void **state) {
    enum { N = 100 };
    struct task_request requests[N];
    struct task task = {.requests = requests, .n_requests = N};
    struct task_batches batches;
    int seen[N] = {0};
    (void)state;
    for (int i = 0; i < N; i++)
        requests[i] = (struct task_request){.n = 2 + i * 37 % 64};
    task_batches_make(&batches, &task, 2, 64);
    int at = 0;
    for (int i = 0; i < batches.n; i++) {
        const struct task_batch *batch = &batches.batches[i];
        assert_int_equal(batch->first, at);
        assert_true(batch->n >= 1 && batch->n <= batch->shape.B);
        const int longest = requests[batches.order[at]].n - 1;
        assert_true(longest <= batch->shape.T && (batch->shape.T == 16 || longest > batch->shape.T / 2));
        for (int k = 0; k < batch->n; k++) {
            assert_true(requests[batches.order[at + k]].n - 1 <= longest);
            seen[batches.order[at + k]]++;
        }
        at += batch->n;
    }
    assert_int_equal(at, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    task_batches_free(&batches);
}

// ---- figures

static void expect_measure(const struct task_measure *measure, const char *name, double value, double error) {
    assert_string_equal(measure->name, name);
    assert_true(fabs(measure->value - value) < 1e-12);
    assert_true(isnan(error) ? isnan(measure->error) : fabs(measure->error - error) < 1e-12);
}

static void test_choices(void **state) {
    struct task_request requests[] = {{.length = 2}, {.length = 8}, {.length = 5},
                                      {.length = 5}, {.length = 0}, {.length = 1}};
    struct task_item items[] = {{0, 2, 0}, {2, 2, 0}, {4, 2, 1}};
    double log_probabilities[] = {-4, -8, -3, -3, -1, -2}; // item 1: equal, so the first
    struct task task = {.kind = TASK_HELLASWAG, .requests = requests, .items = items, .n_items = 3};
    const struct task_scores scores = {log_probabilities, NULL};
    (void)state;
    struct task_result result = task_result_of(&task, &scores);
    // acc: right, right, wrong; acc_norm: -2 < -1 wrong, right, and nothing to divide by is never chosen
    expect_measure(&result.measures[0], "acc", 2.0 / 3, sqrt(2.0 / 9 / 2));
    expect_measure(&result.measures[1], "acc_norm", 2.0 / 3, sqrt(2.0 / 9 / 2));
    items[0].label = 1;
    result = task_result_of(&task, &scores);
    expect_measure(&result.measures[0], "acc", 1.0 / 3, sqrt(2.0 / 9 / 2));
    expect_measure(&result.measures[1], "acc_norm", 1, 0);
    struct text text = {0};
    task_result_add_line(&text, &result);
    expect_text(&text, "acc 0.3333 \u00b1 0.3333, acc_norm 1.0000 \u00b1 0.0000 (3 items)");
}

static void test_lambada(void **state) {
    struct task_item items[] = {{0, 1, 0}, {1, 1, 0}};
    double log_probabilities[] = {-1, -3}, greedy[] = {1, 0};
    struct task task = {.kind = TASK_LAMBADA, .items = items, .n_items = 2};
    const struct task_scores scores = {log_probabilities, greedy};
    struct text text = {0};
    (void)state;
    struct task_result result = task_result_of(&task, &scores);
    expect_measure(&result.measures[0], "acc", 0.5, 0.5);
    expect_measure(&result.measures[1], "perplexity", exp(2), exp(2)); // deviation sqrt(2), of 2 items
    task.n_items = 1;
    result = task_result_of(&task, &scores);
    expect_measure(&result.measures[0], "acc", 1, (double)NAN);
    task_result_add_json(&text, &result);
    expect_text(&text, "{\"acc\": 1, \"acc_stderr\": null, \"perplexity\": 2.718281828459045, "
                       "\"perplexity_stderr\": null, \"items\": 1}");
    task_result_add_line(&text, &result);
    expect_text(&text, "acc 1.0000, perplexity 2.72 (1 item)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),         cmocka_unit_test(test_items),
        cmocka_unit_test(test_items_refused), cmocka_unit_test(test_requests),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_requests_refused),
        cmocka_unit_test(test_damaged_files), cmocka_unit_test(test_batches),
        cmocka_unit_test(test_choices),       cmocka_unit_test(test_lambada)};
    if (!temporary_init(&temporary))
        return 1;
    temporary_path(&temporary, "items.v1.jsonl", path, sizeof path);
    if (tokenizer_load("bytes", &tokenizer) != STATUS_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_delete(tokenizer);
    return temporary_free(&temporary) ? failed : 1;
}
