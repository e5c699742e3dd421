// A printed configuration reads back unchanged; configs/OPTIONS.md is up to date; presets resolve to the
// sizes and learning rates of their sources.
#include "tests/support/expect.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "options/config.h"
#include "options/option.h"
#include "options/print.h"

static void print(const struct config *config, struct text *out) {
    *out = (struct text){0};
    config_print(config, out);
}

static void expect_round_trip(const struct config *config) {
    struct text first, second;
    struct config again;
    print(config, &first);
    EXPECT_OK(config_parse(&again, first.data, first.length, "printed"));
    for (int i = 0; i < n_options; i++)
        assert_true(again.given[i]); // every option is printed
    print(&again, &second);
    assert_string_equal(first.data, second.data);
    config_free(&again);
    text_free(&first);
    text_free(&second);
}

static void test_round_trip(void **state) {
    (void)state;
    static const char *const jsons[] = {
        "{}",
        "{\"device\": \"cpu\", \"recompute\": \"block\", \"data\": {\"train\": [\"a b\", "
        "\"q\\\"\\\\\\u00e9\\n\"], "
        "\"val\": \"*\"}, \"optimizer\": {\"lr\": 0.1234567890123456789, \"betas\": [0, "
        "0.30000000000000004], "
        "\"weight_decay\": 5e-324}, \"train\": {\"seed\": 9007199254740991, \"gradient_clipping\": 1e30}, "
        "\"run\": {\"dir\": \"\\ttab\"}}"};
    for (int i = 0; i < 2; i++) {
        struct config config;
        EXPECT_OK(config_parse(&config, jsons[i], strlen(jsons[i]), "c.json"));
        expect_round_trip(&config);
        EXPECT_OK(config_resolve(&config, 3));
        expect_round_trip(&config);
        config_free(&config);
    }
}

// Numbers read back bit for bit.
static void test_round_trip_to_the_bit(void **state) {
    (void)state;
    struct config config, again;
    struct text text;
    EXPECT_OK(config_parse(&config, "{}", 2, "c.json"));
    for (int i = 1; i < 500; i++) {
        config.optimizer.lr = 1.0 / i + 1e-17 * i;
        config.optimizer.betas.value[0] = sqrt(i) / 29;
        config.optimizer.betas.value[1] = sqrt(i) / 23;
        print(&config, &text);
        EXPECT_OK(config_parse(&again, text.data, text.length, "printed"));
        assert_true(again.optimizer.lr == config.optimizer.lr);
        for (int k = 0; k < 2; k++)
            assert_true(again.optimizer.betas.value[k] == config.optimizer.betas.value[k]);
        config_free(&again);
        text_free(&text);
    }
    config_free(&config);
}

static void test_options_page(void **state) {
    (void)state;
    struct text page = {0};
    char *written;
    size_t bytes;
    config_print_options(&page);
    EXPECT_OK(file_read("configs/OPTIONS.md", 1 << 20, &written, &bytes));
    if (strcmp(page.data, written) != 0)
        fail_msg("configs/OPTIONS.md is out of date: ./train options > configs/OPTIONS.md");
    for (int i = 0; i < n_options; i++) { // one row each, and no cell that breaks the table
        char start[128];
        snprintf(start, sizeof start, "\n| `%s` |", option_full_name(&options[i]));
        const char *row = strstr(written, start);
        assert_non_null(row);
        int bars = 0;
        for (const char *p = row + 1; *p != '\n'; p++)
            bars += *p == '|';
        assert_int_equal(bars, 7);
    }
    free(written);
    text_free(&page);
}

// The table of options itself: defaults within bounds, unique names, and complete sets of choices.
static void test_schema(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(config_parse(&config, "{}", 2, "c.json"));
    expect_round_trip(&config); // reading checks each default's bounds
    config_free(&config);
    for (int i = 0; i < n_options; i++) {
        assert_ptr_equal(option_find(option_full_name(&options[i])), &options[i]);
        assert_true(strlen(options[i].help) > 5);
        assert_true(options[i].minimum <= options[i].maximum);
        assert_true(options[i].resume != RAISE || options[i].type == OPTION_INTEGER);
        if (options[i].type != OPTION_CHOICE)
            continue;
        // Every choice can be read, and is printed unchanged.
        for (int k = 0; k < options[i].n_choices; k++) {
            char override[128], *words[] = {override}, expected[64];
            struct text printed = {0};
            assert_non_null(options[i].choices[k]);
            snprintf(override, sizeof override, "%s=%s", option_full_name(&options[i]),
                     options[i].choices[k]);
            snprintf(expected, sizeof expected, "\"%s\"", options[i].choices[k]);
            EXPECT_OK(config_read(&config, "configs/gpt2-small.json", 1, words));
            option_print(&options[i], &config, &printed);
            assert_string_equal(printed.data, expected);
            text_free(&printed);
            config_free(&config);
        }
    }
}

// The overrides printed for two configurations turn the first into the second.
static void test_overrides(void **state) {
    (void)state;
    static const char before[] = "{\"train\": {\"micro_batch_size\": 4, \"sample_prompt\": \"a b\"}}",
                      after[] = "{\"recompute\": \"block\", \"optimizer\": {\"betas\": [0.5, 0.25]}, "
                                "\"train\": {\"micro_batch_size\": 1}, \"zero_optimization\": {\"stage\": 3, "
                                "\"offload_optimizer\": {\"ratio\": 0.35}, \"overlap_comm\": false}}";
    struct config was, is;
    struct text words = {0};
    EXPECT_OK(config_parse(&was, before, strlen(before), "c.json"));
    EXPECT_OK(config_parse(&is, after, strlen(after), "c.json"));
    config_print_overrides(&was, &is, &words);
    assert_string_equal(
        words.data, "recompute=block train.micro_batch_size=1 train.sample_prompt= "
                    "'optimizer.betas=[0.5, 0.25]' zero_optimization.stage=3 "
                    "zero_optimization.overlap_comm=false zero_optimization.offload_optimizer.ratio=0.35");
    words.length = 0;
    words.data[0] = '\0';
    config_print_overrides(&was, &was, &words);
    assert_string_equal(words.data, "");
    text_free(&words);
    config_free(&was);
    config_free(&is);
}

// ---- presets

static double parameter_count(const struct config *c) {
    double C = (double)c->model.n_embd;
    return (double)(c->model.vocab_size + c->model.n_positions) * C +
           (double)c->model.n_layer * (12 * C * C + 13 * C) + 2 * C;
}

// Sizes: Radford et al. 2019 as llm.c reproduces it (its scripts/run_gpt2_*.sh: rate, tokens per step, steps,
// warm-up) and Brown et al. 2020, Table 2.1 (rate, batch; 300B tokens, warm-up of 375M). The paper's number
// of heads of XL (24) does not divide its width, nor do 128 channels per head divide the width of 13B (5140):
// the presets have the nearest sizes that do, with the paper's 128 channels per head.
static void test_presets(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double millions, lr, batch_tokens;
        int steps, warmup, n_positions;
    } known[] = {
        {"gpt2-small", 124.4, 6e-4, 524288, 18865, 700, 1024},
        {"gpt2-medium", 354.8, 3e-4, 524288, 60000, 700, 1024},
        {"gpt2-large", 774.0, 2.5e-4, 524288, 286102, 700, 1024},
        {"gpt2-xl", 1557.6, 6e-4, 1048576, 32000, 700, 1024},
        {"gpt3-small", 125, 6e-4, 524288, 572205, 715, 2048},
        {"gpt3-medium", 356, 3e-4, 524288, 572205, 715, 2048},
        {"gpt3-large", 760, 2.5e-4, 524288, 572205, 715, 2048},
        {"gpt3-xl", 1316, 2e-4, 1048576, 286103, 358, 2048},
        {"gpt3-2.7b", 2650, 1.6e-4, 1048576, 286103, 358, 2048},
        {"gpt3-6.7b", 6660, 1.2e-4, 2097152, 143052, 179, 2048},
        {"gpt3-13b", 12850, 1e-4, 2097152, 143052, 179, 2048},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char path[128], folder[128];
        struct config c;
        snprintf(path, sizeof path, "configs/%s.json", known[i].name);
        snprintf(folder, sizeof folder, "runs/%s", known[i].name);
        EXPECT_OK(config_read(&c, path, 0, NULL));
        EXPECT_OK(config_resolve(&c, 1));
        EXPECT_OK(config_require_training(&c));
        assert_string_equal(c.run.dir, folder);
        double millions = parameter_count(&c) / 1e6;
        if (fabs(millions / known[i].millions - 1) > (strncmp(known[i].name, "gpt2", 4) == 0 ? 1e-3 : 0.01))
            fail_msg("%s has %.1fM parameters, expected %.1fM", path, millions, known[i].millions);
        assert_true(c.optimizer.lr == known[i].lr && c.optimizer.weight_decay == 0.1);
        assert_true(c.optimizer.betas.value[0] == 0.9 && c.optimizer.betas.value[1] == 0.95);
        assert_true(c.train.gradient_clipping == 1);
        assert_int_equal(c.train.max_steps, known[i].steps);
        assert_int_equal(c.scheduler.warmup_steps, known[i].warmup);
        assert_int_equal(c.model.n_positions, known[i].n_positions);
        assert_int_equal(c.model.vocab_size, 50257);
        assert_true((double)(c.train.train_batch_size * c.train.seq_len) == known[i].batch_tokens);
        expect_round_trip(&c);
        config_free(&c);
    }
}

// The presets embedded in ./train equal the files.
static void test_embedded_presets(void **state) {
    (void)state;
    struct file_list list = {0};
    int n = 0;
    EXPECT_OK(file_glob(&list, "configs/*.json"));
    for (int k = 0; k < list.n_paths; k++) {
        if (strstr(list.paths[k], "quickstart") || strstr(list.paths[k], "bench-zero"))
            continue; // no models to choose
        const int i = n++;
        assert_true(i < n_presets);
        char *written;
        size_t bytes;
        assert_string_equal(presets[i].path, list.paths[k]);
        EXPECT_OK(file_read(presets[i].path, 1 << 20, &written, &bytes));
        assert_string_equal(presets[i].json, written);
        free(written);
    }
    assert_int_equal(n, n_presets);
    file_list_free(&list);
}

// Every file in configs/, including those that the table above does not list.
static void test_every_preset_resolves(void **state) {
    (void)state;
    struct file_list list = {0};
    EXPECT_OK(file_glob(&list, "configs/*.json"));
    assert_true(list.n_paths >= 12);
    for (int i = 0; i < list.n_paths; i++)
        for (int world = 1; world <= 2; world++) {
            struct config config;
            EXPECT_OK(config_read(&config, list.paths[i], 0, NULL));
            EXPECT_OK(config_resolve(&config, world));
            EXPECT_OK(config_require_training(&config));
            config_free(&config);
        }
    file_list_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),       cmocka_unit_test(test_round_trip_to_the_bit),
        cmocka_unit_test(test_options_page),     cmocka_unit_test(test_schema),
        cmocka_unit_test(test_overrides),        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_embedded_presets), cmocka_unit_test(test_every_preset_resolves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
