// Reading a configuration: valid files and overrides, and every kind of error.
#include "tests/support/expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "options/config.h"
#include "options/foreign.h"
#include "options/option.h"
#include "options/print.h"

static enum status parse(struct config *config, const char *json) {
    return config_parse(config, json, strlen(json), "c.json");
}

static enum status parse_only(const char *json) {
    struct config config;
    enum status status = parse(&config, json);
    config_free(&config);
    return status;
}

// Reads "{}" with these overrides (NULL-terminated).
static enum status override(struct config *config, const char *const *words) {
    char path[256], *overrides[16];
    const char *parent = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/zero-config-XXXXXX", parent ? parent : "/tmp");
    int descriptor = mkstemp(path), n = 0;
    assert_true(descriptor >= 0 && write(descriptor, "{}", 2) == 2);
    close(descriptor);
    for (; words[n]; n++)
        overrides[n] = (char *)(uintptr_t)words[n];
    enum status status = config_read(config, path, n, overrides);
    unlink(path);
    return status;
}

static enum status override_only(const char *const *words) {
    struct config config;
    enum status status = override(&config, words);
    config_free(&config);
    return status;
}
#define OVERRIDE(...) override_only((const char *const[]){__VA_ARGS__, NULL})

static void test_defaults_are_gpt2_small(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(parse(&config, "{}"));
    assert_int_equal(config.model.n_layer, 12);
    assert_int_equal(config.model.n_head, 12);
    assert_int_equal(config.model.n_embd, 768);
    assert_int_equal(config.model.vocab_size, 50257);
    assert_int_equal(config.model.n_positions, 1024);
    assert_int_equal(config.top.device, CONFIG_DEVICE_AUTO);
    assert_true(config.optimizer.lr == 6e-4 && config.optimizer.betas.value[1] == 0.95);
    assert_true(config.data.shuffle && config.data.train.n == 0);
    assert_false(config_given(&config, "model.n_layer"));
    config_free(&config);
}

// An integer, or "auto", which is printed as it was read.
static void test_auto_integers(void **state) {
    (void)state;
    struct config config;
    struct text text = {0};
    EXPECT_OK(parse(&config, "{\"train\": {\"micro_batch_size\": \"auto\"}}"));
    assert_int_equal(config.train.micro_batch_size, CONFIG_AUTO);
    config_print_given(&config, &text);
    assert_non_null(strstr(text.data, "\"micro_batch_size\": \"auto\""));
    text_free(&text);
    config_free(&config);
    EXPECT_OK(override(&config, (const char *const[]){"train.micro_batch_size=auto", NULL}));
    assert_int_equal(config.train.micro_batch_size, CONFIG_AUTO);
    config_free(&config);
    EXPECT_OK(override(&config, (const char *const[]){"train.micro_batch_size=12", NULL}));
    assert_int_equal(config.train.micro_batch_size, 12);
    config_free(&config);
}

static void test_values(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(parse(
        &config,
        "{\"device\": \"cpu\", \"model\": {\"n_layer\": 3, \"n_embd\": 1e3, \"init_from\": \"a\\u00e9\"},"
        " \"data\": {\"train\": \"x/*.bin\", \"val\": [\"a.bin\", \"b.bin\"], \"shuffle\": false},"
        " \"optimizer\": {\"betas\": [0.5, 0], \"lr\": 1}, \"scheduler\": {\"type\": \"linear\"},"
        " \"train\": {\"seed\": 9007199254740991}}"));
    assert_int_equal(config.top.device, CONFIG_DEVICE_CPU);
    assert_int_equal(config.model.n_layer, 3);
    assert_int_equal(config.model.n_embd, 1000);
    assert_string_equal(config.model.init_from, "a\xc3\xa9");
    assert_int_equal(config.data.train.list[0].files.n_paths, 1);
    assert_string_equal(config.data.train.list[0].files.paths[0], "x/*.bin");
    assert_int_equal(config.data.val.list[0].files.n_paths, 2);
    assert_string_equal(config.data.val.list[0].files.paths[1], "b.bin");
    assert_false(config.data.shuffle);
    assert_true(config.optimizer.betas.value[0] == 0.5 && config.optimizer.betas.value[1] == 0);
    assert_true(config.optimizer.lr == 1);
    assert_int_equal(config.scheduler.type, CONFIG_SCHEDULE_LINEAR);
    assert_true(config.train.seed == 9007199254740991);
    assert_true(config_given(&config, "device") && config_given(&config, "model.n_embd"));
    assert_false(config_given(&config, "model.n_head"));
    config_free(&config);
}

static void test_overrides(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(override(
        &config, (const char *const[]){"device=cpu", "model.n_layer=2", "optimizer.lr=1e-3",
                                       "optimizer.betas=[0.8, 0.9]", "data.shuffle=false",
                                       "data.train=my data/a=b-*.bin", "data.val=[\"p\", \"q\"]",
                                       "run.dir=12", "checkpoint.resume=\"never\"",
                                       "data.tokenizer=", "train.sample_prompt=In the beginning", NULL}));
    assert_int_equal(config.top.device, CONFIG_DEVICE_CPU);
    assert_int_equal(config.model.n_layer, 2);
    assert_true(config.optimizer.lr == 1e-3 && config.optimizer.betas.value[0] == 0.8);
    assert_false(config.data.shuffle);
    assert_string_equal(config.data.train.list[0].files.paths[0], "my data/a=b-*.bin");
    assert_int_equal(config.data.val.list[0].files.n_paths, 2);
    assert_string_equal(config.run.dir, "12"); // a number is text for an option that takes text
    assert_string_equal(config.checkpoint.resume, "never");
    assert_string_equal(config.data.tokenizer, "");
    assert_string_equal(config.train.sample_prompt, "In the beginning");
    assert_true(config_given(&config, "model.n_layer"));
    config_free(&config);
    EXPECT_OK(override(&config, (const char *const[]){"fp16.loss_scaling=true", NULL}));
    assert_int_equal(config.fp16.loss_scaling, CONFIG_LOSS_SCALING_ON);
    config_free(&config);
    // The last one wins.
    EXPECT_OK(override(&config, (const char *const[]){"model.n_layer=1", "data.train=a", "optimizer.lr=1",
                                                      "model.n_layer=2", "data.train=[\"b\", \"c\"]", NULL}));
    assert_int_equal(config.model.n_layer, 2);
    assert_int_equal(config.data.train.list[0].files.n_paths, 2);
    assert_string_equal(config.data.train.list[0].files.paths[0], "b");
    assert_true(config.optimizer.lr == 1);
    config_free(&config);
    EXPECT_OK(override(&config, (const char *const[]){"data.train=7", "data.val=", NULL}));
    assert_string_equal(config.data.train.list[0].files.paths[0], "7");
    assert_int_equal(config.data.val.n, 0);
    config_free(&config);
}

static void test_unknown_keys(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"n_layers\": 2}}"), "c.json",
                   "unknown option model.n_layers", "did you mean model.n_layer?");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"weigth_decay\": 2}}"),
                   "did you mean optimizer.weight_decay?");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimiser\": {\"lr\": 1}}"), "unknown section optimiser",
                   "did you mean optimizer?");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"xyzzy\": {}}"), "unknown section xyzzy",
                   "model, model.rope_scaling, data, train, train.ema, eval, precision");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"devise\": \"cpu\"}"), "unknown option devise",
                   "did you mean device?");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"completely_else\": 2}}"),
                   "unknown option model.completely_else", "./train options");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"Model\": {\"n_layer\": 2}}"), "Model",
                   "did you mean model?"); // names are case-sensitive
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"\": 2}}"), "unknown option model.");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model.n_heads=2"), "override", "did you mean model.n_head?");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("optimiser.lr=2"), "did you mean optimizer.lr?");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model=2"), "model is a section", "model.family");
}

// Subsections, in the file and as overrides.
static void test_subsections(void **state) {
    (void)state;
    static const char json[] = "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": "
                               "\"cpu\", \"ratio\": 0.25}, \"offload_param\": {}}}";
    struct config config;
    EXPECT_OK(config_parse(&config, json, strlen(json), "c.json"));
    assert_int_equal(config.zero_optimization.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    assert_true(config.zero_optimization.offload_optimizer.ratio == 0.25);
    assert_int_equal(config.zero_optimization.offload_param.device, CONFIG_OFFLOAD_NONE);
    assert_true(config_given(&config, "zero_optimization.offload_optimizer.ratio"));
    config_free(&config);
    EXPECT_OK(override(&config, (const char *const[]){"zero_optimization.offload_param.device=cpu", NULL}));
    assert_int_equal(config.zero_optimization.offload_param.device, CONFIG_OFFLOAD_CPU);
    config_free(&config);
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"zero_optimization\": {\"offload_optimiser\": {}}}"),
                   "unknown section zero_optimization.offload_optimiser",
                   "did you mean zero_optimization.offload_optimizer?");
    EXPECT_FAILURE(STATUS_INVALID,
                   parse_only("{\"zero_optimization\": {\"offload_optimizer\": {\"rato\": 1}}}"),
                   "did you mean zero_optimization.offload_optimizer.ratio?");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"zero_optimization\": {\"offload_optimizer\": \"cpu\"}}"),
                   "the section zero_optimization.offload_optimizer", "the string \"cpu\"");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"offload_optimizer\": {\"device\": \"cpu\"}}"),
                   "unknown section offload_optimizer", "did you mean zero_optimization.offload_optimizer?");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("zero_optimization.offload_optimizer=cpu"), "is a section",
                   "zero_optimization.offload_optimizer.device");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"zero_optimization.offload_param.device\": \"cpu\"}"),
                   "{\"zero_optimization\": {\"offload_param\": {\"device\": ...}}}");
}

// Options under other trainers' names: the message names ours, or says why there is none.
static void test_names_of_others(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID,
                   parse_only("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", "
                              "\"pin_memory\": true}}}"),
                   "zero_optimization.offload_optimizer.pin_memory", "always pinned");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"zero_optimization\": {\"cpu_offload\": true}}"),
                   "offload_optimizer.device=cpu");
    EXPECT_FAILURE(STATUS_INVALID,
                   parse_only("{\"activation_checkpointing\": {\"cpu_checkpointing\": true}}"), "recompute",
                   "offload_activations=cpu");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("fp16.enabled=true"), "precision.compute=fp16");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("bf16.enabled=true"), "here it is precision.compute=bf16");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("bf16.enabled=false"),
                   "for false leave it out (precision.compute is then auto), or set another value; true is "
                   "precision.compute=bf16 here");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"bf16\": {\"enabled\": false}, \"fp16\": true}"),
                   "unknown section bf16, a name of DeepSpeed or Hugging Face; for false leave it",
                   "unknown option fp16, a name of DeepSpeed; here it is precision.compute=fp16");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("use_cpu=False"), "for false leave it out (device is then auto)");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("decay_lr=False"), "scheduler.type=constant (for decay_lr=False");
    EXPECT_FAILURE(STATUS_INVALID,
                   parse_only("{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}}"),
                   "the string \"nvme\"", "none, cpu");
    static const char *const cases[][2] = {
        {"learning_rate", "nanoGPT or Hugging Face; here it is optimizer.lr"},
        {"train.batch_size", "here it is train.micro_batch_size"},
        {"model.block_size", "here it is model.n_positions"},
        {"max_iters", "here it is train.max_steps"},
        {"num_hidden_layers", "here it is model.n_layer"},
        {"hidden_size", "here it is model.n_embd"},
        {"train_micro_batch_size_per_gpu", "here it is train.micro_batch_size"},
        {"gradient_accumulation", "did you mean train.gradient_accumulation_steps?"},
        {"aio.block_size", "NVMe"}, // not nanoGPT's block_size
        {"optimizer.params.lr", "did you mean optimizer.lr?"},
        {"--learning-rate", "command line: unknown option learning_rate"},
        {"learning-rate", "here it is optimizer.lr"},
        {"-b", "llm.c; here it is train.micro_batch_size"},
        {"dropout", "did you mean train.dropout?"},
        {"resid_pdrop", "a name of Hugging Face; here it is train.dropout"},
        {"attention_dropout", "attention's probabilities are never stored, so they are not dropped"},
        {"label_smoothing_factor", "here it is train.label_smoothing"},
        {"--hub-model-id", "a name of Hugging Face; nothing is sent anywhere"},
        {"dtype", "a name of nanoGPT or Hugging Face; here it is precision.compute (bf16"},
        {"foo.bar", "unknown option foo.bar; ./train options lists them all"},
        {"eval_steps", "did you mean train.eval_every, the steps between evaluations (Hugging Face's"},
        {"init_from", "did you mean model.init_from, the path of weights? For nanoGPT's"},
        {"gradient_accumulation_steps", "did you mean train.gradient_accumulation_steps, the micro-batches"},
        {"--train.max_steps", "write it without dashes: train.max_steps=1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char override[128];
        snprintf(override, sizeof override, "%s=1", cases[i][0]);
        EXPECT_FAILURE(STATUS_INVALID, OVERRIDE(override), cases[i][1]);
    }
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"params\": {\"lr\": 1}}}"),
                   "unknown section optimizer.params", "options of the section itself");
    EXPECT_FAILURE(STATUS_INVALID,
                   parse_only("{\"train_micro_batch_size_per_gpu\": 4, \"wall_clock_breakdown\": false}"),
                   "2 faults",
                   "c.json looks like a DeepSpeed file: ./train from-deepspeed c.json translates it");
    // The value after a flag is no fault of its own.
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("-b", "4", "-zz", "1"), "2 faults",
                   "here it is train.micro_batch_size", "\"-zz\" is not an override");
}

// The table itself: what it names exists here, and each name is in it once per program.
static void test_table_of_others(void **state) {
    (void)state;
    for (int i = 0; i < n_foreigns; i++) {
        const struct foreign *row = &foreigns[i];
        char ours[128], names[2048], *rest;
        assert_true(strlen(row->names) < sizeof names);
        strcpy(names, row->names);
        if (row->kind == FOREIGN_OURS) {
            char override[128], *words[] = {override};
            snprintf(ours, sizeof ours, "%.*s", (int)strcspn(row->ours, "="), row->ours);
            if (!section_exists(ours, strlen(ours)) && !option_find(ours))
                fail_msg("%s: %s is no option", row->names, ours);
            if (strchr(row->ours, '=')) { // a value that the option takes
                struct config config;
                snprintf(override, sizeof override, "%s", row->ours);
                EXPECT_OK(config_read(&config, "configs/gpt2-small.json", 1, words));
                config_free(&config);
            }
        } else
            assert_true(strlen(row->note) > 5);
        for (const char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
            char whole[128];
            snprintf(whole, sizeof whole, "%s", name);
            if (strchr(whole, '*'))
                *strchr(whole, '*') = 'x';
            name = whole;
            for (int k = 0; k < n_options; k++)
                if (strncmp(options[k].name, name, strlen(name) - 1) == 0 && name[strlen(name) - 1] == 'x')
                    fail_msg("%s begins the option %s", name, options[k].name);
            if (option_find(name) && !foreign_is_deepspeed(row))
                fail_msg("%s is an option", name);
            const struct foreign *found =
                foreign_is_deepspeed(row) ? foreign_find_deepspeed(name) : foreign_find(name);
            if (found != row && !(foreign_is_deepspeed(found) && !foreign_is_deepspeed(row)))
                fail_msg("%s is in two rows", name);
        }
    }
}

// Options, values and commands that this program had.
static void test_gone(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(parse(&config, "{\"train\": {\"seq_len_schedule\": [ ], \"seed\": 7}}"));
    assert_string_equal(config.dropped.data, "train.seq_len_schedule");
    assert_int_equal(config.train.seed, 7);
    config_free(&config);
    EXPECT_OK(override(&config, (const char *const[]){"train.seq_len_schedule=[]", NULL}));
    assert_string_equal(config.dropped.data, "train.seq_len_schedule");
    config_free(&config);
    EXPECT_OK(
        override(&config, (const char *const[]){"checkpoint.resume_with=train.seq_len_schedule", NULL}));
    EXPECT_OK(config_resolve(&config, 1));
    config_free(&config);
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\n\"train\": {\n\"seq_len_schedule\": [[0, 64]]}}"),
                   "c.json:3: train.seq_len_schedule=[[0,64]]: this option was removed; all steps");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("train.seq_len_schedule=x", "train.on_spike=rewind"),
                   "override: train.seq_len_schedule=x: this option was removed; ",
                   "override: train.on_spike=rewind: this value was removed; skip leaves");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("--train.seq_len_schedule"),
                   "command line: train.seq_len_schedule: this option was removed; ");
}

// An option that is gone: its old default is dropped from a file, and any other value is refused.
static void check_gone_option(const struct gone *row) {
    char whole[256], name[128], *section = name;
    struct config config;
    struct text text = {0};
    assert_null(option_find(row->name));
    snprintf(name, sizeof name, "%s", row->name);
    for (char *dot; (dot = strchr(section, '.')); section = dot + 1) {
        *dot = '\0';
        text_add(&text, "{\"%s\": ", section);
    }
    text_add(&text, "{\"%s\": %s}", section, row->was);
    for (const char *p = row->name; (p = strchr(p, '.')); p++)
        text_add(&text, "}");
    EXPECT_OK(parse(&config, text.data));
    assert_string_equal(config.dropped.data, row->name);
    config_free(&config);
    text_free(&text);
    snprintf(whole, sizeof whole, "%s=never a value", row->name);
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE(whole), row->instead);
}

// Each row of what is gone answers, and is there once.
static void test_table_of_gone(void **state) {
    (void)state;
    for (int i = 0; i < n_gones; i++) {
        const struct gone *row = &gones[i];
        char whole[256], was[256], *rest;
        assert_true(strlen(row->instead) > 5 && row->instead[strlen(row->instead) - 1] != '.');
        for (int k = 0; k < i; k++)
            assert_false(gones[k].kind == row->kind && strcmp(gones[k].name, row->name) == 0);
        if (row->kind == GONE_OPTION) {
            check_gone_option(row);
        } else if (row->kind == GONE_VALUES) {
            assert_true(option_find(row->name) && option_find(row->name)->type == OPTION_CHOICE);
            snprintf(was, sizeof was, "%s", row->was);
            for (char *word = strtok_r(was, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
                snprintf(whole, sizeof whole, "%s=%s", row->name, word);
                EXPECT_FAILURE(STATUS_INVALID, OVERRIDE(whole), row->instead);
            }
        } else {
            snprintf(was, sizeof was, "%s", row->name);
            char *second = strchr(was, ' ');
            if (second)
                *second++ = '\0';
            EXPECT_FAILURE(STATUS_INVALID, gone_command(second ? 2 : 1, (char *[]){was, second}), row->name,
                           row->instead);
        }
    }
    EXPECT_OK(gone_command(1, (char *[]){(char[]){"train"}}));
}

// All faults of a file and of the overrides, each with its place, in one message.
static void test_several_faults(void **state) {
    (void)state;
    EXPECT_FAILURE(
        STATUS_INVALID,
        parse_only("{\n\"model\": {\"n_layers\": 2,\n \"n_head\": \"x\"},\n\"learning_rate\": 1,\n"
                   "\"optimizer\": {\"lr\": -1,\n\"betas\": 3},\n\"bf16\": {\"enabled\": true}\n}"),
        "6 faults in the configuration:\n  c.json:2: unknown option model.n_layers; did you mean "
        "model.n_layer?\n  c.json:3: model.n_head is the string \"x\", expected an integer\n"
        "  c.json:4: unknown option learning_rate, a name of nanoGPT",
        "\n  c.json:5: optimizer.lr is -1", "\n  c.json:6: optimizer.betas is the number 3",
        "\n  c.json:7: unknown section bf16");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model.n_layer=x", "train.max_step=2", "train.seed=1"),
                   "2 faults", "override: model.n_layer is the string \"x\"",
                   "did you mean train.max_steps?");
    // Rules between options too, unless one of these has another fault.
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model.n_head=7", "train.max_step=2"), "2 faults",
                   "model.n_embd 768 is not a multiple of model.n_head 7");
    EXPECT_FAILURE(STATUS_INVALID,
                   OVERRIDE("model.n_head=7", "model.n_embd=x", "train.seq_len=x", "offload_activations=cpu"),
                   "3 faults", "recompute is elementwise");
    // More than fit into one message: cut between two faults.
    struct text many = {0};
    for (int i = 0; i < 300; i++)
        text_add(&many, "%s\"unknown_option_number_%d\": 1", i ? ",\n" : "{", i);
    text_add(&many, "}");
    EXPECT_FAILURE(STATUS_INVALID, parse_only(many.data), "at least 100 faults", "unknown_option_number_50",
                   " others");
    text_free(&many);
}

// What other trainers call our options, and what is near: {override, option that the message names}.
static void test_hints(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"model.rope_scaling.type=yarn", "did you mean model.rope_scaling.rope_type?"},
        {"model.rope_parameters={\"rope_type\": \"yarn\"}", "here it is model.rope_scaling"},
        {"model.rope_parameters.rope_type=yarn", "did you mean model.rope_scaling.rope_type?"},
        {"train.ema_decay=0.9", "did you mean train.ema.decay?"},
        {"ema_decay=0.9", "did you mean train.ema.decay?"},
        {"train.ema.enabled=true", "./train options"},
        {"data.every=5", "did you mean eval.every or checkpoint.every?"},
        {"optimizer.groups.lr=1", "optimizer.groups is a list of groups; set it whole"},
        {"optimizer.groups[0].lr=1", "optimizer.groups is a list of groups; set it whole"},
        {"optimizer.lr.peak=1", "optimizer.lr is an option"},
        {"model.model_type=llama", "here it is model.family"},
        {"scheduler.type=wsd", "did you mean warmup-stable-decay?"},
        {"scheduler.type=cosine_with_min_lr", "did you mean cosine?"},
        {"scheduler.type=constant_with_warmup", "did you mean constant?"},
        {"scheduler.type=linear_with_warmup", "did you mean linear?"},
        {"optimizer.type=adamw_torch", "did you mean adamw?"},
        {"optimizer.groups=[{\"params\": \"*\"}]", "unknown key \"params\", did you mean match"},
        {"optimizer.groups=[{\"match\": \"*\", \"requires_grad\": false}]", "did you mean freeze"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_FAILURE(STATUS_INVALID, OVERRIDE(cases[i][0]), cases[i][1]);
    EXPECT_FAILURE(STATUS_INVALID,
                   parse_only("{\"model\": {\"rope_parameters\": {\"rope_type\": \"yarn\"}}}"),
                   "unknown section model.rope_parameters", "here it is model.rope_scaling");
}

// A key in the wrong section: the message names the right one.
static void test_wrong_section(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"seq_len\": 64}}"),
                   "unknown option model.seq_len", "in the section train", "train.seq_len");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"n_layer\": 2}"), "unknown option n_layer",
                   "in the section model");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"train\": {\"device\": \"cpu\"}}"), "outside all sections");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("lr=1"), "unknown option lr", "optimizer.lr");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("top.device=cpu"), "did you mean device?");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model.n_layer\": 2}"), "model.n_layer",
                   "{\"model\": {\"n_layer\": ...}}");
}

static void test_types(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"n_layer\": \"12\"}}"), "c.json",
                   "model.n_layer", "the string \"12\"", "expected an integer");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"n_layer\": 2.5}}"), "model.n_layer is 2.5",
                   "an integer");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"n_layer\": null}}"), "null", "an integer");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"train\": {\"micro_batch_size\": \"large\"}}"),
                   "train.micro_batch_size is the string \"large\"", "expected an integer or \"auto\"");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"train\": {\"micro_batch_size\": -1}}"), "is -1",
                   "from 0 to 1000000");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"lr\": [1]}}"), "a list", "a number");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"lr\": true}}"), "true", "a number");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"betas\": 0.9}}"), "the number 0.9",
                   "a list of two numbers");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"betas\": [0.9]}}"), "optimizer.betas",
                   "a list of two numbers");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"betas\": [0.9, \"x\"]}}"),
                   "the string \"x\"");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"data\": {\"shuffle\": 1}}"), "data.shuffle", "the number 1",
                   "true or false");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("data.shuffle=no"), "the string \"no\"", "true or false");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"data\": {\"train\": [\"a\", 2]}}"), "data.train",
                   "the number 2", "a path");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"data\": {\"train\": {}}}"), "data.train",
                   "names no shards");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"run\": {\"dir\": 1}}"), "run.dir", "a string");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": 12}"), "the section model", "the number 12",
                   "an object");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"device\": {\"cpu\": 1}}"), "device is an object",
                   "auto, cpu");
}

static void test_bounds_and_choices(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"n_layer\": 0}}"), "model.n_layer is 0",
                   "from 1 to 1024");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"vocab_size\": 8388609}}"), "8388609",
                   "8388608");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"lr\": -1e-3}}"), "optimizer.lr is -0.001",
                   "from 0 to 1000000");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"lr\": 1e999}}"), "optimizer.lr",
                   "out of range", "from 0 to 1000000");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"optimizer\": {\"betas\": [0.9, 1]}}"),
                   "optimizer.betas is 1");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"train\": {\"seed\": 9007199254740992}}"),
                   "9007199254740992", "9007199254740991");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"precision\": {\"compute\": \"bf61\"}}"),
                   "precision.compute is the string \"bf61\"", "auto, fp32, bf16, fp16",
                   "did you mean bf16?");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("scheduler.type=exponential"), "scheduler.type",
                   "constant, cosine, linear, warmup-stable-decay");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("precision.compute=16"), "precision.compute", "\"16\"");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("precision.compute=true"), "precision.compute is true",
                   "auto, fp32, bf16, fp16");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"fp16\": {\"loss_scaling\": 1}}"), "fp16.loss_scaling",
                   "auto, on, off");
}

static void test_files(void **state) {
    (void)state;
    struct config config;
    EXPECT_FAILURE(STATUS_INVALID, parse_only(""), "c.json is empty");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("[]"), "c.json holds a list", "expected an object");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("[1, {\"model\": {}}]"), "c.json holds a list");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("3"), "c.json holds the number 3", "expected an object");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\n\"n_layer\": 2,}}"), "c.json:2:");
    EXPECT_FAILURE(STATUS_INVALID, parse_only("{\"model\": {\"n_layer\": 2, \"n_layer\": 3}}"), "n_layer",
                   "given twice");
    EXPECT_FAILURE(STATUS_INVALID, config_read(&config, "configs/none.json", 0, NULL), "configs/none.json",
                   "No such file");
    config_free(&config);
    EXPECT_FAILURE(STATUS_INVALID, config_read(&config, "configs", 0, NULL), "configs", "folder");
    config_free(&config);
}

static void test_malformed_overrides(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model.n_layer"), "\"model.n_layer\"", "section.key=value",
                   "optimizer.lr=1e-3");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("=3"), "\"=3\"", "section.key=value");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("--help"), "unknown option help");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model.n_layer="), "model.n_layer", "an integer");
    EXPECT_FAILURE(STATUS_INVALID, OVERRIDE("model.n_layer=1 2"), "the string \"1 2\"", "an integer");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_gpt2_small),
        cmocka_unit_test(test_auto_integers),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_table_of_gone),
        cmocka_unit_test(test_hints),
        cmocka_unit_test(test_subsections),
        cmocka_unit_test(test_names_of_others),
        cmocka_unit_test(test_table_of_others),
        cmocka_unit_test(test_several_faults),
        cmocka_unit_test(test_wrong_section),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_bounds_and_choices),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_malformed_overrides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
