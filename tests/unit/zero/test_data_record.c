// The data record, printed as JSON and parsed again; wrong members are refused by name.
#include "tests/support/expect.h"

#include <stdio.h>

#include "base/json.h"
#include <stdlib.h>

#include "zero/checkpoint/run_state.h"

static struct identity_entry entries[2] = {{3, 0xfedcba9876543210, "a.bin"}, {4, 1, "odd \"name\".bin"}};
static const struct identity train = {.n_shards = 2,
                                      .n_tokens = 7,
                                      .digest = 0x123456789abcdef0,
                                      .shards_per_entry = 1,
                                      .n_entries = 2,
                                      .entries = entries,
                                      .n_sources = 2,
                                      .sources = {{1, 1.0 / 3}, {1, 2.0 / 3}}},
                             val = {.n_shards = 1,
                                    .n_tokens = 3,
                                    .digest = 9,
                                    .shards_per_entry = 1,
                                    .n_entries = 1,
                                    .entries = entries};

static enum status parse(const char *json, int64_t step, struct data_record *record) {
    cJSON *root;
    EXPECT_OK(json_parse(json, strlen(json), "json", &root));
    struct run_state read = {0};
    enum status status = run_state_parse(&read, root, step, "manifest.json");
    *record = read.data;
    cJSON_Delete(root);
    return status;
}

static void free_record(struct data_record *record) {
    struct run_state state = {.data = *record};
    run_state_free(&state);
}

// The output of run_state_print, as a complete JSON object.
static void print(const struct data_record *record, struct text *out) {
    text_add(out, "{\n");
    run_state_print(&(struct run_state){.data = *record}, out);
    text_add(out, "  \"end\": 0}");
}

static struct data_record make_record(void) {
    struct data_record record = {0};
    data_record_begin_order(&record, 0, &val);
    data_record_begin_order(&record, 8, &val);
    data_record_begin_order(&record, 8, &train); // replaces the one before
    identity_copy(&record.val, &val);
    assert_int_equal(record.n_orders, 2);
    record.tasks = calloc(2, sizeof *record.tasks);
    assert_non_null(record.tasks);
    record.tasks[0] = (struct data_task){"hellaswag", 10042, 0xabcdef};
    record.tasks[1] = (struct data_task){"a \"quoted\" name", 3, 0};
    record.n_tasks = 2;
    return record;
}

static void test_print_and_parse(void **state) {
    (void)state;
    struct data_record record = make_record(), back;
    struct text json = {0}, again = {0};
    print(&record, &json);
    EXPECT_OK(parse(json.data, 8, &back));
    assert_true(identity_is_same(&back.train, &train) && identity_is_same(&back.val, &val));
    assert_int_equal(back.train.n_sources, 2);
    assert_true(back.train.sources[1].n_shards == 1 && back.train.sources[1].share == 2.0 / 3);
    assert_int_equal(back.val.n_sources, 0);
    assert_int_equal(back.n_orders, 2);
    assert_int_equal(back.orders[1].step, 8);
    assert_true(back.orders[1].digest == train.digest);
    assert_true(back.n_tasks == 2 && back.tasks[0].items == 10042 && back.tasks[0].checksum == 0xabcdef);
    assert_string_equal(back.tasks[1].name, "a \"quoted\" name");
    print(&back, &again);
    assert_string_equal(again.data, json.data);
    text_free(&json);
    text_free(&again);
    free_record(&record);
    free_record(&back);
}

static void test_nothing_recorded(void **state) {
    (void)state;
    struct text json = {0};
    struct data_record record = {0};
    print(&record, &json);
    EXPECT_OK(parse(json.data, 8, &record));
    assert_int_equal(record.n_orders, 0);
    text_free(&json);
}

// Each case changes one thing in a good record.
static void test_refused_records(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"shards\": 2", "\"shards\": 3", "do not describe data of 3 shards"},
        {"\"shards\": 2", "\"shards\": -2", "shards"},
        {"\"shards_per_entry\": 1", "\"shards_per_entry\": 0", "shards_per_entry"},
        {"fedcba9876543210", "fedcba987654321", "16 hexadecimal digits"},
        {"\"step\": 8", "\"step\": 9", "step"}, // after the checkpoint's step
        {"\"step\": 0", "\"step\": 8", "step"}, // not ascending
        {"\"shards\": 1, \"share\"", "\"shards\": 2, \"share\"", "sources of 3 shards"},
        {"\"share\": 0.3", "\"share\": -0.3", "share"},
        {"\"share\": 0.3", "\"part\": 0.3", "share"},
        {"\"orders\": [", "\"order\": [", "orders"},
        {"\"tasks\": [", "\"tasks\": 1, \"rest\": [", "tasks"},
        {"\"items\": 3", "\"items\": 0", "items"},
        {"\"name\": \"hellaswag\"", "\"name\": 7", "name"},
        {"0000000000abcdef", "0000000000abcdeg", "16 hexadecimal digits"},
        {"\"data\": {", "\"data\": 5, \"rest\": {", "data"},
    };
    struct data_record record = make_record(), back;
    struct text json = {0};
    print(&record, &json);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = strstr(json.data, cases[i].from);
        assert_non_null(at);
        struct text bad = {0};
        text_add_bytes(&bad, json.data, (size_t)(at - json.data));
        text_add(&bad, "%s%s", cases[i].to, at + strlen(cases[i].from));
        EXPECT_FAILURE(STATUS_INVALID, parse(bad.data, 8, &back), "manifest.json", cases[i].says);
        free_record(&back);
        text_free(&bad);
    }
    EXPECT_FAILURE(STATUS_INVALID,
                   parse("{\"data\": {\"train\": {\"shards\": 0, \"tokens\": 0, \"xxh3\": "
                         "\"0000000000000000\", \"shards_per_entry\": 1, \"entries\": []}, "
                         "\"orders\": []}}",
                         8, &back),
                   "orders has 0 elements");
    free_record(&back);
    text_free(&json);
    free_record(&record);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print_and_parse),
        cmocka_unit_test(test_nothing_recorded),
        cmocka_unit_test(test_refused_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
