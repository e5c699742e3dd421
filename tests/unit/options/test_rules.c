// Rules between options: batch arithmetic, derived values, rules across sections, and resuming.
#include "tests/support/expect.h"

#include <stdio.h>

#include "options/config.h"
#include "options/print.h"
#include "options/resume.h"
#include "tests/support/temporary.h"

static enum status resolve_named(struct config *config, const char *source, const char *json, int world) {
    EXPECT_OK(config_parse(config, json, strlen(json), source));
    return config_resolve(config, world);
}

static enum status resolve(const char *json, int world) {
    struct config config;
    enum status status = resolve_named(&config, "c.json", json, world);
    config_free(&config);
    return status;
}

// Every combination of micro-batch, accumulation and ranks; 0 leaves an option unset.
static void test_any_two_batch_options_give_the_third(void **state) {
    (void)state;
    for (int micro = 1; micro <= 6; micro++)
        for (int accumulation = 1; accumulation <= 5; accumulation++)
            for (int world = 1; world <= 4; world++)
                for (int absent = 0; absent <= 3; absent++) {
                    char json[256];
                    int batch = micro * accumulation * world;
                    struct config config;
                    snprintf(json, sizeof json,
                             "{\"train\": {\"micro_batch_size\": %d, \"gradient_accumulation_steps\": %d, "
                             "\"train_batch_size\": %d}}",
                             absent == 1 ? 0 : micro, absent == 2 ? 0 : accumulation,
                             absent == 3 ? 0 : batch);
                    EXPECT_OK(resolve_named(&config, "c.json", json, world));
                    assert_int_equal(config.train.micro_batch_size, micro);
                    assert_int_equal(config.train.gradient_accumulation_steps, accumulation);
                    assert_int_equal(config.train.train_batch_size, batch);
                    EXPECT_OK(config_resolve(&config, world)); // resolving again changes nothing
                    assert_int_equal(config.train.micro_batch_size, micro);
                    config_free(&config);
                }
}

static void test_one_or_no_batch_option(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int world, micro, accumulation, batch;
    } cases[] = {
        {"{}", 1, 4, 1, 4},
        {"{}", 3, 4, 1, 12},
        {"{\"train\": {\"micro_batch_size\": 7}}", 2, 7, 1, 14},
        {"{\"train\": {\"gradient_accumulation_steps\": 5}}", 1, 4, 5, 20},
        {"{\"train\": {\"train_batch_size\": 512}}", 2, 4, 64, 512},
        {"{\"train\": {\"train_batch_size\": 6}}", 1, 3, 2, 6},
        {"{\"train\": {\"train_batch_size\": 7}}", 1, 1, 7, 7},
        {"{\"train\": {\"train_batch_size\": 2}}", 2, 1, 1, 2},
        {"{\"train\": {\"logical_ranks\": 4}}", 1, 4, 4, 16},
        {"{\"train\": {\"logical_ranks\": 4}}", 4, 4, 1, 16},
        {"{\"train\": {\"train_batch_size\": 24, \"logical_ranks\": 4}}", 1, 3, 8, 24},
        {"{\"train\": {\"train_batch_size\": 24, \"logical_ranks\": 4}}", 2, 3, 4, 24},
        {"{\"train\": {\"train_batch_size\": 24, \"logical_ranks\": 6, \"gradient_accumulation_steps\": 6}}",
         2, 2, 6, 24},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        EXPECT_OK(resolve_named(&config, "c.json", cases[i].json, cases[i].world));
        assert_int_equal(config.train.micro_batch_size, cases[i].micro);
        assert_int_equal(config.train.gradient_accumulation_steps, cases[i].accumulation);
        assert_int_equal(config.train.train_batch_size, cases[i].batch);
        config_free(&config);
    }
}

// "auto", and a batch alone, leave the size open for a GPU's memory plan; a CPU takes what is resolved.
static void test_open_micro_batches(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int world, micro, accumulation;
        bool open;
    } cases[] = {
        {"{\"train\": {\"train_batch_size\": 512}}", 2, 4, 64, true},
        {"{\"train\": {\"train_batch_size\": 512, \"micro_batch_size\": \"auto\"}}", 2, 4, 64, true},
        {"{\"train\": {\"train_batch_size\": 48, \"micro_batch_size\": \"auto\", \"seq_len\": 300}}", 1, 12,
         4, true},
        {"{\"train\": {\"train_batch_size\": 7, \"micro_batch_size\": \"auto\", \"seq_len\": 600}}", 1, 1, 7,
         true},
        {"{\"model\": {\"n_positions\": 8192}, \"train\": {\"train_batch_size\": 6, \"micro_batch_size\": "
         "\"auto\"}}",
         1, 1, 6, true},
        {"{\"train\": {\"train_batch_size\": 512, \"gradient_accumulation_steps\": 8, \"micro_batch_size\": "
         "\"auto\"}}",
         2, 32, 8, false},
        {"{\"train\": {\"train_batch_size\": 512, \"micro_batch_size\": 8}}", 1, 8, 64, false},
        {"{\"train\": {\"gradient_accumulation_steps\": 8}}", 1, 4, 8, false},
        {"{}", 1, 4, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        EXPECT_OK(resolve_named(&config, "c.json", cases[i].json, cases[i].world));
        for (int again = 0; again < 2; again++) {
            assert_int_equal(config.train.micro_batch_size, cases[i].micro);
            assert_int_equal(config.train.gradient_accumulation_steps, cases[i].accumulation);
            assert_int_equal(config.micro_batch_is_open, cases[i].open);
            EXPECT_OK(config_resolve(&config, cases[i].world));
        }
        config_free(&config);
    }
    for (int accumulation = 0; accumulation <= 3; accumulation += 3) { // it would decide what is trained
        char json[128];
        snprintf(json, sizeof json,
                 "{\"train\": {\"micro_batch_size\": \"auto\", \"gradient_accumulation_steps\": %d}}",
                 accumulation);
        EXPECT_FAILURE(STATUS_INVALID, resolve(json, 1), "c.json", "train.micro_batch_size is \"auto\"",
                       "set train.train_batch_size");
    }
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"train\": {\"micro_batch_size\": \"auto\", \"train_batch_size\": 9}}", 2),
                   "by 2 ranks;");
}

// "auto" becomes the batch that the run begins with, in which the noise scale can be measured.
static void test_auto_batch(void **state) {
    (void)state;
    static const struct {
        const char *more;
        int world, micro, accumulation, batch, every, divisor;
        bool open;
    } cases[] = {
        {"", 1, 4, 2, 8, 10, 4, false},
        {"", 2, 4, 1, 8, 10, 4, false},
        {", \"micro_batch_size\": 3", 1, 3, 2, 6, 10, 3, false},
        {", \"micro_batch_size\": 3, \"gradient_accumulation_steps\": 5", 2, 3, 5, 30, 10, 15, false},
        {", \"min_batch_size\": 24, \"noise_scale_every\": 7", 1, 4, 6, 24, 7, 12, true},
        {", \"min_batch_size\": 24", 2, 4, 3, 24, 10, 12, true},
        {", \"min_batch_size\": 2", 1, 1, 2, 2, 10, 1, true},
        {", \"min_batch_size\": 32, \"micro_batch_size\": \"auto\", \"seq_len\": 64", 1, 16, 2, 32, 10, 16,
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        char json[256];
        snprintf(json, sizeof json, "{\"train\": {\"train_batch_size\": \"auto\", \"max_batch_size\": 64%s}}",
                 cases[i].more);
        EXPECT_OK(resolve_named(&config, "c.json", json, cases[i].world));
        for (int again = 0; again < 2; again++) {
            assert_int_equal(config.train.micro_batch_size, cases[i].micro);
            assert_int_equal(config.train.gradient_accumulation_steps, cases[i].accumulation);
            assert_int_equal(config.train.train_batch_size, cases[i].batch);
            assert_int_equal(config.train.min_batch_size, 0);
            assert_int_equal(config.train.noise_scale_every, cases[i].every);
            assert_int_equal(config_rank_sequences(&config), cases[i].divisor);
            assert_int_equal(config.micro_batch_is_open, cases[i].open);
            EXPECT_OK(config_resolve(&config, cases[i].world));
        }
        config_free(&config);
    }
    static const struct {
        const char *options, *says[2];
    } refused[] = {
        {"\"train_batch_size\": \"auto\"", {"up to train.max_batch_size", "; set train.max_batch_size"}},
        {"\"train_batch_size\": \"auto\", \"max_batch_size\": 8, \"micro_batch_size\": \"auto\"",
         {"and so is train.micro_batch_size", "set train.min_batch_size"}},
        {"\"train_batch_size\": \"auto\", \"max_batch_size\": 8, \"min_batch_size\": 3, "
         "\"micro_batch_size\": 2",
         {"train.min_batch_size 3 is not divisible", "multiple of 2"}},
        {"\"train_batch_size\": \"auto\", \"max_batch_size\": 8, \"min_batch_size\": 4, "
         "\"micro_batch_size\": 4",
         {"a step of 4 sequences is one micro-batch", "raise train.min_batch_size"}},
        {"\"train_batch_size\": \"auto\", \"max_batch_size\": 8, \"min_batch_size\": 1",
         {"a step of 1 sequence is one micro-batch", ""}},
        {"\"train_batch_size\": \"auto\", \"max_batch_size\": 4, \"min_batch_size\": 8",
         {"train.max_batch_size is 4", "begins with 8 sequences"}},
        {"\"train_batch_size\": 8, \"min_batch_size\": 8",
         {"train.min_batch_size is 8, but train.train_batch_size is 8", "set train.train_batch_size=auto"}},
        {"\"train_batch_size\": \"auto\", \"max_batch_size\": 8, \"noise_scale_every\": 0",
         {"which is not measured", "set train.noise_scale_every"}},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char json[256];
        snprintf(json, sizeof json, "{\"train\": {%s}}", refused[i].options);
        EXPECT_FAILURE(STATUS_INVALID, resolve(json, 1), "c.json", refused[i].says[0], refused[i].says[1]);
    }
}

static void test_micro_batches_keep_the_batch(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(resolve_named(&config, "c.json", "{\"train\": {\"train_batch_size\": 96}}", 2));
    for (int64_t size = 1; size <= 48; size++) {
        const int64_t divisor = config_largest_divisor(48, size);
        assert_true(divisor >= 1 && divisor <= size && 48 % divisor == 0);
        for (int64_t larger = divisor + 1; larger <= size; larger++)
            assert_true(48 % larger != 0);
        config_set_micro_batch(&config, divisor);
        assert_int_equal(config.train.micro_batch_size, divisor);
        assert_int_equal(config.train.gradient_accumulation_steps * divisor * 2, 96);
    }
    config_free(&config);
}

static void test_batch_sizes_that_contradict(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"train\": {\"micro_batch_size\": 3, \"gradient_accumulation_steps\": 5, "
                           "\"train_batch_size\": 31}}",
                           2),
                   "c.json", "train.train_batch_size is 31", "train.micro_batch_size 3",
                   "train.gradient_accumulation_steps 5", "2 ranks = 30");
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"train\": {\"micro_batch_size\": 3, \"train_batch_size\": 10}}", 1),
                   "train.train_batch_size 10", "1 rank x train.micro_batch_size 3", "a multiple of 3");
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"train\": {\"gradient_accumulation_steps\": 4, \"train_batch_size\": 12}}", 2),
                   "2 ranks x train.gradient_accumulation_steps 4", "a multiple of 8");
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"train\": {\"train_batch_size\": 2}}", 4),
                   "train.train_batch_size 2 is not divisible by 4 ranks;", "a multiple of 4");
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"train\": {\"train_batch_size\": 9}}", 2), "by 2 ranks;");
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"train\": {\"micro_batch_size\": 1000000, "
                           "\"gradient_accumulation_steps\": 1000000}}",
                           1),
                   "the derived train.train_batch_size is 1000000000000", "at most 1000000000");
}

static void test_batch_schedules(void **state) {
    (void)state;
    static const char *const refused[][3] = {
        {"[[0, 2], [9, 4]], \"gradient_accumulation_steps\": 4", "gradient_accumulation_steps is 4, but",
         "leave gradient_accumulation_steps out"},
        {"[[0, 4], [9, 6]], \"gradient_accumulation_steps\": 1", "gradient_accumulation_steps is 1, but",
         "leave gradient_accumulation_steps out"},
        {"[[0, 2]], \"gradient_accumulation_steps\": 3, \"micro_batch_size\": 1",
         "gradient_accumulation_steps is 3", "leave gradient_accumulation_steps out"},
        {"[[0, 2], [9, 4]], \"train_batch_size\": 8",
         "train_batch_size is 8, but train.batch_size_schedule begins at step 0 with 2",
         "leave train_batch_size out"},
        {"[[0, 6]], \"micro_batch_size\": 4", "batch_size_schedule's first batch size 6 is not divisible",
         "multiple of 4"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char json[200];
        snprintf(json, sizeof json, "{\"train\": {\"batch_size_schedule\": %s}}", refused[i][0]);
        EXPECT_FAILURE(STATUS_INVALID, resolve(json, 1), refused[i][1], refused[i][2]);
    }
    EXPECT_OK(resolve("{\"train\": {\"batch_size_schedule\": [[0, 4], [9, 8]], \"train_batch_size\": 4, "
                      "\"gradient_accumulation_steps\": 2, \"micro_batch_size\": 2}}", // as printed
                      1));
    EXPECT_OK(
        resolve("{\"train\": {\"batch_size_schedule\": [[5, 4], [9, 8]], \"train_batch_size\": 8}}", 1));
}

static void test_sequence_and_heads(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(resolve_named(&config, "c.json", "{\"model\": {\"n_positions\": 77}}", 1));
    assert_int_equal(config.train.seq_len, 77);
    config_free(&config);
    EXPECT_OK(resolve("{\"model\": {\"n_positions\": 77}, \"train\": {\"seq_len\": 77}}", 1));
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"model\": {\"n_positions\": 77}, \"train\": {\"seq_len\": 78}}", 1),
                   "train.seq_len 78", "model.n_positions 77");
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"model\": {\"n_embd\": 100, \"n_head\": 3}}", 1),
                   "model.n_embd 100", "model.n_head 3");
}

// Rules that are broken together are reported together.
static void test_several_rules(void **state) {
    (void)state;
    EXPECT_FAILURE(
        STATUS_INVALID,
        resolve("{\"model\": {\"n_embd\": 100, \"n_head\": 3}, \"train\": {\"micro_batch_size\": 3, "
                "\"train_batch_size\": 10}, \"offload_activations\": \"cpu\"}",
                1),
        "3 faults in the configuration:\n  c.json: train.train_batch_size 10 is not divisible",
        "\n  c.json: model.n_embd 100 is not a multiple of model.n_head 3",
        "\n  c.json: offload_activations is \"cpu\", but recompute is elementwise");
}

static void test_other_rules(void **state) {
    (void)state;
    // A run that is shorter than its warm-up shortens it (trainer/schedule.h).
    EXPECT_OK(resolve("{\"train\": {\"max_steps\": 50}, \"scheduler\": {\"warmup_steps\": 51}}", 1));
    EXPECT_OK(resolve("{\"train\": {\"max_steps\": 0}, \"scheduler\": {\"warmup_steps\": 51}}", 1));
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"train\": {\"sample_every\": 5}}", 1),
                   "train.sample_every is 5", "data.tokenizer");
    EXPECT_OK(resolve("{\"train\": {\"sample_every\": 5}, \"data\": {\"tokenizer\": \"bytes\"}}", 1));
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"offload_activations\": \"cpu\"}", 1), "recompute=block");
    EXPECT_OK(resolve("{\"offload_activations\": \"cpu\", \"recompute\": \"block\"}", 1));
}

// Messages use the wording of DeepSpeed's documentation.
static void test_offload_rules(void **state) {
    (void)state;
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"zero_optimization\": {\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}, "
                           "\"offload_optimizer\": {\"device\": \"cpu\"}}}",
                           1),
                   "valid only with ZeRO stage 3");
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}, "
                           "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}}}",
                           1),
                   "ratio 0.5", "ratio=1");
    EXPECT_OK(resolve("{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}, "
                      "\"offload_optimizer\": {\"device\": \"cpu\"}}}",
                      1));
}

static void test_muon(void **state) {
    (void)state;
    EXPECT_OK(resolve("{\"optimizer\": {\"type\": \"muon\", \"adamw_lr\": 0.001}}", 1));
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"optimizer\": {\"type\": \"muon\"}, \"zero_optimization\": "
                           "{\"offload_optimizer\": {\"device\": \"cpu\"}}}",
                           1),
                   "optimizer.type=muon multiplies whole matrices", "set offload_optimizer.device=none");
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"optimizer\": {\"type\": \"muon\", \"adamw_lr\": 0.001, \"lr\": 0}}", 1),
                   "optimizer.adamw_lr follows the schedule", "lr above 0");
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"optimizer\": {\"adamw_lr\": 0.001}}", 1),
                   "optimizer.adamw_lr is 0.001, but optimizer.type is adamw", "leave it out",
                   "set optimizer.type=muon");
}

// Options that the chosen optimizer or average does not use. At their defaults they are accepted: a printed
// config has them all.
static void test_unused_options(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"{\"optimizer\": {\"muon_momentum\": 0.9}}",
         "optimizer.muon_momentum is 0.9, but optimizer.type is adamw",
         "its default is 0.95), or set optimizer.type=muon"},
        {"{\"optimizer\": {\"muon_scale\": \"jordan\"}}", "muon_scale is \"jordan\"",
         "its default is moonlight"},
        {"{\"optimizer\": {\"momentum\": 0, \"type\": \"muon\"}}", "optimizer.momentum is 0,",
         "optimizer.type=sgd"},
        {"{\"train\": {\"ema\": {\"decay\": 0.9}}}", "train.ema.decay is 0.9, but train.ema.type is none",
         "set train.ema.type=exponential"},
        {"{\"optimizer\": {\"betas\": [0.9, 0.99], \"type\": \"sgd\"}}",
         "optimizer.betas is [0.9, 0.99], but optimizer.type is sgd, which does not use it",
         "its default is [0.9, 0.95]), or set another optimizer.type"},
        {"{\"optimizer\": {\"eps\": 1e-6, \"type\": \"lion\"}}", "optimizer.eps is 1e-06",
         "optimizer.type=adamw, adam, muon or schedulefree_adamw"},
        {"{\"optimizer\": {\"state_dtype\": \"int8\", \"momentum\": 0, \"type\": \"sgd\"}}",
         "optimizer.momentum is 0, so there are no moments", "set optimizer.momentum"},
        {"{\"precision\": {\"compute\": \"fp16\"}, \"fp16\": {\"loss_scale\": 8, \"hysteresis\": 3}}",
         "fp16.hysteresis is 3, but fp16.loss_scale is 8, so it has no effect", "set fp16.loss_scale=0"},
        {"{\"fp16\": {\"loss_scale\": 8}}", "fp16.loss_scale is 8, but fp16.loss_scaling is off",
         "set fp16.loss_scaling=on"},
        {"{\"data\": {\"val\": \"v.bin\", \"val_split\": 0.1}}",
         "data.val_split is 0.1, but data.val is [\"v.bin\"], which is evaluated in its place",
         "set data.val=[]"},
        {"{\"model\": {\"family\": \"llama\", \"soft_cap\": 3}}",
         "model.soft_cap is 3, but model.family is llama", "set model.family=modern"},
        {"{\"optimizer\": {\"type\": \"schedulefree_adamw\"}, \"scheduler\": {\"type\": \"cosine\"}}",
         "scheduler.type is \"cosine\", but optimizer.type is schedulefree_adamw",
         "a constant rate after warm-up"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT_FAILURE(STATUS_INVALID, resolve(cases[i][0], 1), cases[i][1], cases[i][2]);
    EXPECT_OK(resolve(
        "{\"optimizer\": {\"muon_momentum\": 0.95, \"muon_scale\": \"moonlight\", \"momentum\": 0.9}, "
        "\"train\": {\"ema\": {\"decay\": 0.999}}}",
        1));
    EXPECT_OK(resolve("{\"train\": {\"ema\": {\"decay\": 0.9, \"type\": \"none\"}}}", 1)); // switched off
    EXPECT_OK(resolve("{\"optimizer\": {\"type\": \"sgd\", \"betas\": [0.9, 0.95], \"eps\": 1e-8}, \"comm\": "
                      "{\"backend\": \"mpi\"}, \"device\": \"cpu\"}",
                      1));
}

// What the file sets for a value that an override replaces goes, and what depends on that.
static void test_replaced_options(void **state) {
    (void)state;
    struct temporary temporary;
    assert_true(temporary_init(&temporary));
    static const struct {
        const char *json, *override, *dropped;
    } cases[] = {
        {"{\"optimizer\": {\"betas\": [0.9, 0.99], \"eps\": 1e-8}}", "optimizer.type=sgd",
         "optimizer.betas=[0.9, 0.99] (optimizer.type is sgd), optimizer.eps=1e-08 (optimizer.type is sgd)"},
        {"{\"scheduler\": {\"type\": \"cosine\", \"min_lr_ratio\": 0}}", "optimizer.type=schedulefree_adamw",
         "scheduler.type=\"cosine\" (optimizer.type is schedulefree_adamw), scheduler.min_lr_ratio=0 "
         "(scheduler.type is constant)"},
        {"{\"scheduler\": {\"min_lr_ratio\": 0}}", "optimizer.type=schedulefree_adamw",
         "scheduler.min_lr_ratio=0 (scheduler.type is constant)"},
        {"{\"precision\": {\"compute\": \"fp16\"}, \"fp16\": {\"hysteresis\": 3}}", "precision.compute=bf16",
         "fp16.hysteresis=3 (fp16.loss_scaling is off)"},
        {"{\"model\": {\"family\": \"llama\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}}}",
         "model.family=gpt2",
         "model.rope_scaling.rope_type=\"linear\" (model.family is gpt2), model.rope_scaling.factor=2 "
         "(model.rope_scaling.rope_type is default)"},
        {"{\"train\": {\"train_batch_size\": \"auto\", \"max_batch_size\": 64, \"min_batch_size\": 8}}",
         "train.train_batch_size=16",
         "train.min_batch_size=8 (train.train_batch_size is 16), train.max_batch_size=64 "
         "(train.noise_scale_every is 0)"},
        {"{\"train\": {\"max_batch_size\": 64}}", "train.train_batch_size=auto", NULL},
        {"{\"train\": {\"ema\": {\"decay\": 0.9, \"type\": \"exponential\"}}}", "train.ema.type=none",
         "train.ema.decay=0.9 (train.ema.type is none)"},
        {"{\"comm\": {\"backend\": \"nccl\"}}", "device=cpu", "comm.backend=\"nccl\" (device is cpu)"},
        {"{\"data\": {\"val_split\": 0.1}}", "data.val=v.bin",
         "data.val_split=0.1 (data.val is [\"v.bin\"])"},
        {"{\"data\": {\"val_split\": 0.1}}", "data.val=", NULL},
        {"{\"optimizer\": {\"betas\": [0.9, 0.99]}}", "optimizer.type=lion", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        char path[300], *word = (char *)(uintptr_t)cases[i].override;
        temporary_path(&temporary, "c.json", path, sizeof path);
        EXPECT_OK(file_write_all(path, cases[i].json, strlen(cases[i].json)));
        EXPECT_OK(config_read(&config, path, 1, &word));
        if (cases[i].dropped)
            assert_string_equal(config.replaced.data, cases[i].dropped);
        else
            assert_int_equal(config.replaced.length, 0);
        EXPECT_OK(config_resolve(&config, 1));
        config_free(&config);
    }
    assert_true(temporary_free(&temporary));
}

// A config that an older program printed may set what has no effect; its run goes on.
static void test_printed_by_an_older_program(void **state) {
    (void)state;
    struct config old, now;
    struct text printed = {0};
    EXPECT_OK(resolve_named(&old, "old.json", "{\"optimizer\": {\"type\": \"sgd\"}}", 1));
    EXPECT_OK(resolve_named(&now, "now.json", "{\"optimizer\": {\"type\": \"sgd\"}}", 1));
    old.optimizer.betas.value[1] = 0.99;
    old.eval.limit = 5;
    EXPECT_OK(config_check_resume(&old, &(struct config_decided){.compute = DTYPE_F32}, &now, NULL, NULL));
    config_print(&old, &printed);
    config_free(&old);
    EXPECT_OK(resolve_named(&old, "old.json", printed.data, 1));
    assert_string_equal(old.replaced.data, "eval.limit=5 (eval.tasks is []), optimizer.betas=[0.9, 0.99] "
                                           "(optimizer.type is sgd)");
    assert_true(old.optimizer.betas.value[1] == 0.95);
    text_free(&printed);
    config_free(&old);
    config_free(&now);
}

static void test_training_needs_data(void **state) {
    (void)state;
    struct config config;
    EXPECT_OK(resolve_named(&config, "c.json", "{}", 1));
    EXPECT_FAILURE(STATUS_INVALID, config_require_training(&config), "c.json", "data.train",
                   "./train tokenize");
    config_free(&config);
    EXPECT_OK(resolve_named(&config, "c.json", "{\"data\": {\"train\": []}}", 1));
    EXPECT_FAILURE(STATUS_INVALID, config_require_training(&config), "data.train");
    config_free(&config);
    EXPECT_OK(resolve_named(&config, "c.json", "{\"data\": {\"train\": \"a.bin\"}}", 1));
    EXPECT_OK(config_require_training(&config));
    config_free(&config);
}

static void test_run_folder(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"configs/quickstart.json", "{}", "runs/quickstart"},
        {"mine.json", "{}", "runs/mine"},
        {"a/b/gpt3-2.7b.json", "{}", "runs/gpt3-2.7b"},
        {"a/gpt3-2.7b", "{}", "runs/gpt3-2.7b"},
        {"a/b.json", "{\"run\": {\"dir\": \"elsewhere/x\"}}", "elsewhere/x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        EXPECT_OK(resolve_named(&config, cases[i][0], cases[i][1], 1));
        assert_string_equal(config.run.dir, cases[i][2]);
        config_free(&config);
    }
}

static enum status resume_decided(const char *before_json, const struct config_decided *decided,
                                  const char *now_json) {
    struct config before, now;
    EXPECT_OK(resolve_named(&before, "before.json", before_json, 1));
    EXPECT_OK(resolve_named(&now, "now.json", now_json, 1));
    enum status status = config_check_resume(&before, decided, &now, NULL, NULL);
    config_free(&before);
    config_free(&now);
    return status;
}

static enum status resume_computed(const char *before_json, enum dtype compute, const char *now_json) {
    return resume_decided(before_json, &(struct config_decided){.compute = compute}, now_json);
}

static enum status resume(const char *before_json, const char *now_json) {
    return resume_computed(before_json, DTYPE_F32, now_json);
}

// A run with "auto" resumes with the type that it resolved to, and a run with a named type resumes with
// "auto". Another type is refused.
static void test_resuming_a_compute_type(void **state) {
    (void)state;
    static const char fp32[] = "{\"precision\": {\"compute\": \"fp32\"}}",
                      bf16[] = "{\"precision\": {\"compute\": \"bf16\"}}", automatic[] = "{}";
    EXPECT_OK(resume_computed(automatic, DTYPE_BF16, bf16));
    EXPECT_OK(resume_computed(automatic, DTYPE_BF16, automatic));
    EXPECT_OK(resume_computed(bf16, DTYPE_BF16, automatic));
    EXPECT_FAILURE(STATUS_INVALID, resume_computed(automatic, DTYPE_BF16, fp32),
                   "precision.compute was \"auto\", resolved to \"bf16\", and is now \"fp32\"");
    EXPECT_FAILURE(STATUS_INVALID, resume_computed(bf16, DTYPE_BF16, fp32),
                   "precision.compute was \"bf16\" and is now \"fp32\"");
}

// Attention likewise; a run that was on the CPU decided nothing. Unlike the type it may change on purpose.
static void test_resuming_an_attention(void **state) {
    (void)state;
    static const char flash[] = "{\"attention\": \"flash\"}", cudnn[] = "{\"attention\": \"cudnn\"}",
                      named[] =
                          "{\"attention\": \"flash\", \"checkpoint\": {\"resume_with\": \"attention\"}}";
    const struct config_decided by_cudnn = {.attention = CONFIG_ATTENTION_CUDNN},
                                nothing = {.attention = CONFIG_ATTENTION_AUTO};
    EXPECT_OK(resume_decided("{}", &by_cudnn, "{}"));
    EXPECT_OK(resume_decided("{}", &by_cudnn, cudnn));
    EXPECT_OK(resume_decided(cudnn, &by_cudnn, "{}"));
    EXPECT_OK(resume_decided("{}", &nothing, cudnn));
    EXPECT_FAILURE(STATUS_INVALID, resume_decided("{}", &by_cudnn, flash),
                   "attention was \"auto\", resolved to \"cudnn\", and is now \"flash\"");
    EXPECT_FAILURE(STATUS_INVALID, resume_decided(cudnn, &by_cudnn, flash),
                   "attention was \"cudnn\" and is now \"flash\"");
    EXPECT_OK(resume_decided(cudnn, &by_cudnn, named));
}

static void test_resuming(void **state) {
    (void)state;
    EXPECT_OK(resume("{}", "{}"));
    // Paths, logging and the micro-batch size may change; max_steps may grow.
    EXPECT_OK(resume("{\"train\": {\"max_steps\": 100, \"train_batch_size\": 8}}",
                     "{\"train\": {\"max_steps\": 101, \"train_batch_size\": 8, \"micro_batch_size\": 2, "
                     "\"eval_every\": 7}, \"data\": {\"train\": \"moved/*.bin\"}, \"run\": {\"dir\": \"x\", "
                     "\"log_every\": 9}, \"recompute\": \"block\"}"));
    EXPECT_FAILURE(STATUS_INVALID,
                   resume("{\"train\": {\"max_steps\": 100}}", "{\"train\": {\"max_steps\": 99}}"),
                   "now.json", "train.max_steps was 100 and is now 99", "only grow");
    // The value that auto resolves to may be named.
    EXPECT_OK(resume("{\"fp16\": {\"loss_scaling\": false}}", "{}"));
    EXPECT_OK(resume("{\"precision\": {\"compute\": \"fp16\"}}",
                     "{\"precision\": {\"compute\": \"fp16\"}, \"fp16\": {\"loss_scaling\": true}}"));
    EXPECT_FAILURE(STATUS_INVALID, resume("{}", "{\"fp16\": {\"loss_scaling\": true}}"),
                   "fp16.loss_scaling was \"auto\" and is now \"on\"");
    // A size that is left open, and its value.
    EXPECT_OK(resume("{\"model\": {\"family\": \"llama\"}}",
                     "{\"model\": {\"family\": \"llama\", \"head_dim\": 64}}"));
    EXPECT_FAILURE(STATUS_INVALID,
                   resume("{\"model\": {\"family\": \"llama\", \"head_dim\": 32}}",
                          "{\"model\": {\"family\": \"llama\", \"head_dim\": 64}}"),
                   "model.head_dim was 32 and is now 64");
    // Without an average its options mean nothing.
    EXPECT_OK(resume("{\"train\": {\"ema\": {\"type\": \"exponential\", \"decay\": 0.9}}}",
                     "{\"checkpoint\": {\"resume_with\": \"train.ema.type\"}}"));
    // One message lists all differences.
    EXPECT_FAILURE(
        STATUS_INVALID,
        resume("{}", "{\"model\": {\"vocab_size\": 300}, \"optimizer\": {\"lr\": 1e-3, \"betas\": "
                     "[0.9, 0.99], \"type\": \"lion\"}, \"data\": {\"shuffle\": false}, \"train\": "
                     "{\"seed\": 1, \"micro_batch_size\": 8}}"),
        "model.vocab_size was 50257 and is now 300", "optimizer.lr was 0.0006 and is now 0.001",
        "optimizer.betas was [0.9, 0.95] and is now [0.9, 0.99]",
        "optimizer.type was \"adamw\" and is now \"lion\"", "data.shuffle was true and is now false",
        "train.seed was 1337 and is now 1", "train.train_batch_size was 4 and is now 8", "start a new run");
}

static enum status count_change(void *context, const char *option, const char *was, const char *is) {
    struct text *changes = context;
    text_add(changes, "%s %s %s;", option, was, is);
    return STATUS_OK;
}

// Options that are changed on purpose; the refusal of the others names the way.
static void test_resuming_with_other_options(void **state) {
    (void)state;
    struct config before, now;
    struct text changes = {0};
    EXPECT_OK(resolve_named(&before, "before.json", "{}", 1));
    EXPECT_OK(
        resolve_named(&now, "now.json",
                      "{\"optimizer\": {\"lr\": 1e-4}, \"train\": {\"train_batch_size\": 8, "
                      "\"gradient_clipping\": 0.5, \"max_steps\": 30000}, \"checkpoint\": {\"resume_with\": "
                      "\"optimizer.lr, train.train_batch_size\"}, \"run\": {\"dir\": \"runs/x\"}}",
                      1));
    EXPECT_FAILURE(STATUS_INVALID,
                   config_check_resume(&before, &(struct config_decided){0}, &now, count_change, &changes),
                   "train.gradient_clipping was 1 and is now 0.5",
                   "change train.gradient_clipping on purpose with "
                   "checkpoint.resume_with=\"train.train_batch_size,optimizer.lr,train.gradient_clipping\"",
                   "model.init_from=runs/x and another run.dir");
    now.train.gradient_clipping = 1;
    text_free(&changes);
    EXPECT_OK(config_check_resume(&before, &(struct config_decided){0}, &now, count_change, &changes));
    assert_string_equal(changes.data, "train.train_batch_size 4 8;optimizer.lr 0.0006 0.0001;");
    text_free(&changes);
    config_free(&before);
    config_free(&now);
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"checkpoint\": {\"resume_with\": \"optimizer.lx\"}}", 1),
                   "optimizer.lx, which is not an option; did you mean optimizer.lr");
    EXPECT_FAILURE(STATUS_INVALID,
                   resolve("{\"checkpoint\": {\"resume_with\": \"optimizer.lr,model.n_embd\"}}", 1),
                   "lists model.n_embd, which cannot change in a run");
    EXPECT_FAILURE(STATUS_INVALID, resolve("{\"checkpoint\": {\"resume_with\": \"train.ema\"}}", 1),
                   "lists train.ema, which is a section", "such as train.ema.type");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_two_batch_options_give_the_third),
        cmocka_unit_test(test_one_or_no_batch_option),
        cmocka_unit_test(test_open_micro_batches),
        cmocka_unit_test(test_auto_batch),
        cmocka_unit_test(test_micro_batches_keep_the_batch),
        cmocka_unit_test(test_batch_sizes_that_contradict),
        cmocka_unit_test(test_batch_schedules),
        cmocka_unit_test(test_sequence_and_heads),
        cmocka_unit_test(test_several_rules),
        cmocka_unit_test(test_other_rules),
        cmocka_unit_test(test_offload_rules),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_unused_options),
        cmocka_unit_test(test_replaced_options),
        cmocka_unit_test(test_printed_by_an_older_program),
        cmocka_unit_test(test_training_needs_data),
        cmocka_unit_test(test_run_folder),
        cmocka_unit_test(test_resuming),
        cmocka_unit_test(test_resuming_a_compute_type),
        cmocka_unit_test(test_resuming_an_attention),
        cmocka_unit_test(test_resuming_with_other_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
