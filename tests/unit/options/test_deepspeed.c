// Translation of DeepSpeed files: values, "auto", what has no equivalent, and an answer for every key.
#include "tests/support/expect.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "options/deepspeed.h"
#include "options/foreign.h"
#include "options/print.h"

static cJSON *parse(const char *json) {
    cJSON *root;
    EXPECT_OK(json_parse(json, strlen(json), "ds.json", &root));
    return root;
}

static const char *lines(const struct deepspeed_translation *out, enum deepspeed_kind kind) {
    return out->answers[kind].n ? out->answers[kind].lines.data : "";
}

static void expect_line(const struct deepspeed_translation *out, enum deepspeed_kind kind, const char *line) {
    if (!strstr(lines(out, kind), line))
        fail_msg("no line \"%s\" in:\n%s", line, lines(out, kind));
}

// Whether a line answers for the path or for a section around it.
static bool is_answered(const struct deepspeed_translation *out, const char *path) {
    for (size_t length = strlen(path); length > 0;) {
        char start[200];
        snprintf(start, sizeof start, "  %.*s", (int)length, path);
        for (int i = 0; i < DEEPSPEED_KINDS; i++)
            for (const char *p = strstr(lines(out, i), start); p; p = strstr(p + 1, start))
                if (p[strlen(start)] == ':' || p[strlen(start)] == ' ')
                    return true;
        while (length > 0 && path[length - 1] != '.')
            length--;
        length -= length > 0;
    }
    return false;
}

static void expect_answers(const struct deepspeed_translation *out, const cJSON *node, const char *path) {
    const cJSON *item;
    cJSON_ArrayForEach(item, node) {
        char member[200];
        snprintf(member, sizeof member, "%s%s%s", path, *path ? "." : "", item->string);
        if (cJSON_IsObject(item)) // an empty one has nothing to answer
            expect_answers(out, item, member);
        else if (!is_answered(out, member))
            fail_msg("no answer for %s", member);
    }
}

// Translates, and checks that every key has an answer and that the printed configuration is accepted.
static void translate(const char *json, struct deepspeed_translation *out) {
    cJSON *root = parse(json);
    struct config again;
    struct text printed = {0};
    EXPECT_OK(deepspeed_translate(root, "ds.json", out));
    expect_answers(out, root, "");
    config_print_given(&out->config, &printed);
    EXPECT_OK(config_parse(&again, printed.data, printed.length, "printed"));
    EXPECT_OK(config_resolve(&again, 1));
    config_free(&again);
    text_free(&printed);
    cJSON_Delete(root);
}

// As DeepSpeed's documentation and tutorials write it.
static void test_stage_2(void **state) {
    (void)state;
    struct deepspeed_translation out;
    translate(
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"steps_per_print\": 2000,"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001, \"betas\": [0.8, 0.999], \"eps\": "
        "1e-8,"
        "  \"weight_decay\": 3e-7}},"
        " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0, \"warmup_max_lr\": "
        "0.002,"
        "  \"warmup_num_steps\": 1000}},"
        " \"gradient_clipping\": 0.5, \"prescale_gradients\": false, \"wall_clock_breakdown\": false,"
        " \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"loss_scale_window\": 500, \"hysteresis\": 2,"
        "  \"min_loss_scale\": 1, \"initial_scale_power\": 15},"
        " \"bf16\": {\"enabled\": false},"
        " \"zero_optimization\": {\"stage\": 2, \"allgather_partitions\": true, \"reduce_scatter\": true,"
        "  \"allgather_bucket_size\": 5e7, \"reduce_bucket_size\": 5e7, \"overlap_comm\": true,"
        "  \"contiguous_gradients\": true, \"cpu_offload\": true}}",
        &out);
    const struct config *c = &out.config;
    assert_int_equal(c->train.train_batch_size, 32);
    assert_int_equal(c->train.micro_batch_size, 4);
    assert_false(config_given(c, "train.gradient_accumulation_steps"));
    assert_int_equal(c->run.log_every, 2000);
    assert_int_equal(c->optimizer.type, CONFIG_OPTIMIZER_ADAMW); // adam_w_mode is DeepSpeed's default
    assert_true(c->optimizer.lr == 0.002);                       // the schedule's
    assert_true(c->optimizer.betas.value[0] == 0.8 && c->optimizer.weight_decay == 3e-7);
    assert_int_equal(c->scheduler.type, CONFIG_SCHEDULE_CONSTANT);
    assert_int_equal(c->scheduler.warmup_steps, 1002); // DeepSpeed's peak is two steps late
    assert_true(c->train.gradient_clipping == 0.5);
    assert_int_equal(c->precision.compute, CONFIG_COMPUTE_FP16);
    assert_int_equal(c->fp16.initial_scale_power, 15);
    assert_int_equal(c->zero_optimization.stage, 2);
    assert_int_equal(c->zero_optimization.reduce_bucket_size, 50000000);
    assert_int_equal(c->zero_optimization.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    expect_line(&out, TRANSLATED, "  train_batch_size 32 -> train.train_batch_size=32\n");
    expect_line(&out, TRANSLATED, "DeepSpeed's Adam is AdamW unless adam_w_mode=false");
    expect_line(&out, ALTERING, "warm-up is linear here; DeepSpeed's default is logarithmic");
    expect_line(&out, ALTERING, "norms and biases are not decayed");
    expect_line(&out, NEEDLESS, "  zero_optimization.reduce_scatter true: gradients are always reduced by");
    expect_line(&out, OFF, "  wall_clock_breakdown false: off\n");
    expect_line(&out, OFF, "  bf16: off\n");
    assert_int_equal(out.answers[CHOSEN].n, 0);
    assert_int_equal(out.answers[UNKNOWN].n, 0);
    deepspeed_free(&out);
}

// As transformers' documentation writes it, with offload to NVMe and ZeRO++, and a misspelled key.
static const char stage_3[] =
    "{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000,"
    "  \"initial_scale_power\": 16, \"hysteresis\": 2, \"min_loss_scale\": 1},"
    " \"bf16\": {\"enabled\": \"auto\"},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\", \"eps\": "
    "\"auto\","
    "  \"weight_decay\": \"auto\"}},"
    " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\","
    "  \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\", \"total_num_steps\": \"auto\"}},"
    " \"zero_optimization\": {\"stage\": 3,"
    "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\", \"pin_memory\": "
    "true,"
    "   \"buffer_count\": 4, \"fast_init\": false, \"ratio\": 0.9},"
    "  \"offload_param\": {\"device\": \"cpu\", \"pin_memory\": true, \"max_in_cpu\": 1e9},"
    "  \"overlap_comm\": true, \"contiguous_gradients\": true, \"sub_group_size\": 1e9,"
    "  \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\","
    "  \"stage3_param_persistence_threshold\": \"auto\", \"stage3_max_live_parameters\": 1e9,"
    "  \"stage3_max_reuse_distance\": 1e9, \"stage3_gather_16bit_weights_on_model_save\": true,"
    "  \"zero_hpz_partition_size\": 8, \"zero_quantized_weights\": true,"
    "  \"zero_quantized_gradients\": false},"
    " \"aio\": {\"block_size\": 262144, \"queue_depth\": 32}, \"elasticity\": {\"enabled\": false},"
    " \"wandb\": {\"enabled\": true, \"project\": \"x\"}, \"curriculum_learning\": {\"enabled\": true},"
    " \"activation_checkpointing\": {\"partition_activations\": true, \"cpu_checkpointing\": true},"
    " \"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\","
    " \"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\","
    " \"wall_clock_breakdown\": true, \"comms_loger\": {\"enabled\": true}}";

static void test_stage_3_with_auto(void **state) {
    (void)state;
    struct deepspeed_translation out;
    translate(stage_3, &out);
    const struct config *c = &out.config;
    assert_int_equal(c->train.micro_batch_size, 8); // the Trainer's defaults
    assert_true(c->optimizer.lr == 5e-5 && c->optimizer.weight_decay == 0);
    assert_true(c->optimizer.betas.value[1] == 0.999 && c->train.gradient_clipping == 1);
    assert_int_equal(c->scheduler.type, CONFIG_SCHEDULE_LINEAR);
    assert_true(c->scheduler.warmup_steps == 0 && c->scheduler.min_lr_ratio == 0);
    assert_false(config_given(c, "precision.compute") || config_given(c, "train.max_steps"));
    assert_int_equal(c->zero_optimization.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    assert_int_equal(c->zero_optimization.offload_param.device, CONFIG_OFFLOAD_CPU);
    assert_true(c->zero_optimization.offload_optimizer.ratio == 1);
    assert_int_equal(c->top.recompute, CONFIG_RECOMPUTE_BLOCK);
    assert_int_equal(c->top.offload_activations, CONFIG_OFFLOAD_CPU);
    assert_true(c->run.profile);
    expect_line(&out, CHOSEN,
                "  optimizer.params.lr \"auto\" -> optimizer.lr=5e-05 (the Trainer's learning_rate");
    expect_line(&out, CHOSEN, "  scheduler.params.total_num_steps \"auto\": train.max_steps");
    expect_line(&out, CHOSEN, "  bf16.enabled \"auto\": the Trainer's --bf16");
    expect_line(&out, ALTERING, "  zero_optimization.zero_quantized_weights true: ");
    expect_line(&out, ALTERING, "  curriculum_learning: ");
    expect_line(&out, REPLACED, "  zero_optimization.offload_optimizer.device \"nvme\" -> ");
    expect_line(&out, NEEDLESS, "  zero_optimization.zero_hpz_partition_size 8: there is no second shard");
    expect_line(&out, NEEDLESS,
                "  zero_optimization.reduce_bucket_size \"auto\": the Trainer derives it from the model");
    expect_line(&out, NEEDLESS, "  aio: ");
    expect_line(&out, NEEDLESS, "  wandb: ");
    expect_line(&out, OFF, "  elasticity: ");
    expect_line(&out, OFF, "  zero_optimization.zero_quantized_gradients false: ");
    expect_line(&out, UNKNOWN,
                "  comms_loger: DeepSpeed's documentation has no such option; did you mean comms_logger?\n");
    deepspeed_free(&out);
}

// Every option that the table has of DeepSpeed, as a value and switched on as a section.
static void test_every_option_has_an_answer(void **state) {
    (void)state;
    for (int i = 0; i < n_foreigns; i++) {
        char names[1200], *rest;
        if (!foreign_is_deepspeed(&foreigns[i]) || foreigns[i].kind == FOREIGN_OURS)
            continue;
        snprintf(names, sizeof names, "%s", foreigns[i].names);
        for (const char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest))
            for (int section = 0; section < 2; section++) {
                struct text json = {0};
                struct deepspeed_translation out;
                int depth = 1;
                for (const char *part = name; *part; depth++) {
                    size_t length = strcspn(part, ".");
                    text_add(&json, "{\"%.*s\": ", (int)length, part);
                    part += length + (part[length] == '.');
                }
                text_add(&json, section ? "{\"enabled\": true}" : "2");
                while (--depth > 0)
                    text_add(&json, "}");
                translate(json.data, &out);
                assert_int_equal(out.answers[UNKNOWN].n, 0);
                // Members of these count only where the section is on, or names a type.
                const bool depends = strncmp(name, "fp16.", 5) == 0 || strncmp(name, "bf16.", 5) == 0 ||
                                     strncmp(name, "scheduler.", 10) == 0 ||
                                     strncmp(name, "zero_optimization.offload_param.", 32) == 0;
                if (!depends)
                    expect_line(&out, foreigns[i].kind == FOREIGN_ALTERS ? ALTERING : NEEDLESS, name);
                deepspeed_free(&out);
                text_free(&json);
            }
    }
}

static void test_optimizers(void **state) {
    (void)state;
    static const struct {
        const char *optimizer;
        enum config_optimizer type;
        double lr, weight_decay;
        const char *alters;
    } cases[] = {
        {"\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}", CONFIG_OPTIMIZER_ADAM, 1e-3, 0, NULL},
        {"\"type\": \"AdamW\", \"params\": {\"torch_adam\": true}", CONFIG_OPTIMIZER_ADAMW, 1e-3, 0.01,
         "decayed"},
        {"\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.5, \"nesterov\": true}",
         CONFIG_OPTIMIZER_SGD, 0.1, 0, "optimizer.params.nesterov true: "},
        {"\"type\": \"Lion\", \"params\": {\"lr\": 1e-4, \"weight_decay\": null}", CONFIG_OPTIMIZER_LION,
         1e-4, 0, NULL},
        {"\"type\": \"OneBitAdam\", \"params\": {\"lr\": 1e-4, \"freeze_step\": 400}", CONFIG_OPTIMIZER_ADAMW,
         1e-4, 0, "there are no 1-bit optimizers"},
        {"\"type\": \"Lamb\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1, \"max_coeff\": 5}",
         CONFIG_OPTIMIZER_ADAMW, 0.01, 0.1, "there is no LAMB here; adamw comes closest"},
        {"\"type\": \"Adafactor\"", CONFIG_OPTIMIZER_ADAMW, 1e-3, 0,
         "there is no Adafactor here; adamw comes"},
        {"\"type\": \"soap\"", CONFIG_OPTIMIZER_MUON, 1e-3, 0, "there is no SOAP here; muon comes closest"},
        {"\"type\": \"Muon\", \"params\": {\"lr\": -1}", CONFIG_OPTIMIZER_MUON, 6e-4, 0,
         "  optimizer.params.lr -1: left out, because optimizer.lr is -1, expected from 0"},
        {"\"type\": \"Muon\", \"params\": {\"lr\": -1, \"muon_lr\": 3}", CONFIG_OPTIMIZER_MUON, 3, 0,
         "  optimizer.params.lr -1: left out, because optimizer.adamw_lr is -1, expected from 0"},
        {"\"type\": \"RMSprop\"", CONFIG_OPTIMIZER_ADAMW, 1e-3, 0, "no such optimizer here"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[256];
        struct deepspeed_translation out;
        snprintf(json, sizeof json, "{\"optimizer\": {%s}}", cases[i].optimizer);
        translate(json, &out);
        assert_int_equal(out.config.optimizer.type, cases[i].type);
        assert_true(out.config.optimizer.lr == cases[i].lr);
        assert_true(out.config.optimizer.weight_decay == cases[i].weight_decay);
        if (cases[i].alters)
            expect_line(&out, ALTERING, cases[i].alters);
        else
            assert_int_equal(out.answers[ALTERING].n, 0);
        // What the file leaves out is DeepSpeed's default: no clipping, fp32, a constant rate.
        assert_true(out.config.train.gradient_clipping == 0);
        assert_int_equal(out.config.precision.compute, CONFIG_COMPUTE_FP32);
        assert_int_equal(out.config.scheduler.type, CONFIG_SCHEDULE_CONSTANT);
        deepspeed_free(&out);
    }
}

static void test_other_values(void **state) {
    (void)state;
    struct deepspeed_translation out;
    translate("{\"train_batch_size\": 64, \"train_micro_batch_size_per_gpu\": 4, "
              "\"gradient_accumulation_steps\": 2,"
              " \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 5000,"
              "  \"warmup_num_steps\": 50, \"warmup_type\": \"linear\", \"warmup_min_ratio\": 0.1}},"
              " \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true, "
              "\"bf16_master_weights_and_grads\": true},"
              " \"communication_data_type\": \"bfp16\", \"gradient_allreduce_op\": \"mean\","
              " \"steps_per_print\": 1e300, \"dump_state\": null,"
              " \"zero_optimization\": {\"stage\": 1, \"offload_param\": {\"device\": \"cpu\"},"
              "  \"offload_optimizer\": {\"device\": \"cpu\", \"super_offload\": true, \"ratio\": 0.5}}}",
              &out);
    const struct config *c = &out.config;
    assert_false(
        config_given(c, "train.gradient_accumulation_steps")); // so that any number of ranks can train
    assert_int_equal(c->train.max_steps, 5000);
    assert_true(c->scheduler.min_lr_ratio == 1e-4 && c->scheduler.warmup_steps == 51);
    assert_int_equal(c->scheduler.decay_steps, 5001);
    expect_line(&out, ALTERING,
                "DeepSpeed's first two steps have the rate that warm-up starts from (0 unless the file gives "
                "one), and its "
                "peak is never reached\n");
    assert_int_equal(c->optimizer.state_dtype, CONFIG_STATE_DTYPE_BF16);
    assert_int_equal(c->top.communication_data_type, CONFIG_COMMUNICATION_DTYPE_BF16);
    expect_line(&out, NEEDLESS, "  zero_optimization.offload_optimizer.super_offload true: ");
    assert_true(c->zero_optimization.offload_optimizer.ratio == 0.5);
    assert_false(config_given(c, "zero_optimization.offload_param.device"));
    expect_line(&out, NEEDLESS, "  zero_optimization.offload_param: it is valid only with stage 3");
    expect_line(&out, ALTERING, "  scheduler.params.warmup_min_ratio 0.1: warm-up starts from 0 here");
    expect_line(&out, ALTERING, "  bf16.bf16_master_weights_and_grads true: ");
    expect_line(&out, ALTERING, "  steps_per_print 1e+300: left out, because run.log_every is");
    expect_line(&out, OFF, "  gradient_allreduce_op \"mean\": ");
    expect_line(&out, CHOSEN, "  optimizer (not given): the script makes the optimizer");
    deepspeed_free(&out);
    translate("{\"zero_optimization\": true, \"torch_autocast\": {\"enabled\": true, \"dtype\": \"float16\", "
              "\"x\": 1},"
              " \"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1}}, \"fp16\": "
              "{\"hysteresis\": 2},"
              " \"amp\": {\"enabled\": false, \"opt_level\": \"O1\"}}",
              &out);
    assert_int_equal(out.config.zero_optimization.stage, 1);
    assert_int_equal(out.config.precision.compute, CONFIG_COMPUTE_FP16);
    assert_int_equal(out.config.scheduler.type, CONFIG_SCHEDULE_CONSTANT);
    expect_line(&out, ALTERING,
                "  scheduler.type \"OneCycle\" -> scheduler.type=\"constant\" (there is no such schedule");
    expect_line(&out, OFF, "  amp: off\n");
    deepspeed_free(&out);
}

// transformers' example for stage 2: no scheduler, no batch of its own, offload to the host.
static void test_stage_2_with_auto(void **state) {
    (void)state;
    struct deepspeed_translation out;
    translate("{\"bf16\": {\"enabled\": \"auto\"},"
              " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-5, \"betas\": \"auto\", "
              "\"eps\": \"auto\","
              "  \"weight_decay\": \"auto\"}},"
              " \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", "
              "\"pin_memory\": true},"
              "  \"allgather_partitions\": true, \"allgather_bucket_size\": 2e8, \"overlap_comm\": true,"
              "  \"reduce_scatter\": true, \"reduce_bucket_size\": 2e8, \"contiguous_gradients\": true,"
              "  \"round_robin_gradients\": true},"
              " \"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", "
              "\"train_batch_size\": 64,"
              " \"train_micro_batch_size_per_gpu\": \"auto\"}",
              &out);
    const struct config *c = &out.config;
    assert_true(c->optimizer.lr == 3e-5 && c->train.gradient_clipping == 1);
    assert_int_equal(c->train.train_batch_size, 64);
    assert_false(config_given(c, "train.micro_batch_size"));     // for the number of ranks to decide
    assert_int_equal(c->scheduler.type, CONFIG_SCHEDULE_LINEAR); // the Trainer's
    assert_true(c->scheduler.warmup_steps == 0 && c->scheduler.min_lr_ratio == 0);
    assert_int_equal(c->zero_optimization.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    assert_int_equal(c->zero_optimization.allgather_bucket_size, 200000000);
    expect_line(&out, CHOSEN, "  scheduler (not given) -> scheduler.type=\"linear\"");
    expect_line(&out, NEEDLESS, "  zero_optimization.round_robin_gradients true: ");
    assert_int_equal(out.answers[ALTERING].n, 0);
    deepspeed_free(&out);
}

// Stage 3 as DeepSpeed's documentation writes it, without "auto".
static void test_stage_3(void **state) {
    (void)state;
    struct deepspeed_translation out;
    translate(
        "{\"train_micro_batch_size_per_gpu\": 8, \"gradient_accumulation_steps\": 4,"
        " \"fp16\": {\"enabled\": true}, \"optimizer\": {\"type\": \"Adam\"},"
        " \"zero_optimization\": {\"stage\": 3, \"stage3_max_live_parameters\": 1e9,"
        "  \"stage3_prefetch_bucket_size\": 1e7, \"stage3_param_persistence_threshold\": 1e5,"
        "  \"reduce_bucket_size\": 1e7, \"sub_group_size\": 1e9,"
        "  \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/n\", \"pipeline_read\": true},"
        "  \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/n\", \"buffer_size\": 1e8}},"
        " \"aio\": {\"thread_count\": 1}, \"flops_profiler\": {\"enabled\": true, \"profile_step\": 1},"
        " \"tensorboard\": {\"enabled\": true}, \"csv_monitor\": {\"enabled\": false},"
        " \"data_types\": {\"grad_accum_dtype\": \"fp32\"}, \"checkpoint\": {\"load_universal\": true}}",
        &out);
    const struct config *c = &out.config;
    assert_int_equal(c->train.micro_batch_size, 8);
    assert_int_equal(c->train.gradient_accumulation_steps, 4);
    assert_true(c->optimizer.lr == 1e-3 && c->optimizer.betas.value[1] == 0.999); // DeepSpeed's defaults
    assert_int_equal(c->zero_optimization.stage, 3);
    assert_int_equal(c->zero_optimization.stage3_prefetch_bucket_size, 10000000);
    assert_int_equal(c->zero_optimization.offload_optimizer.device, CONFIG_OFFLOAD_CPU);
    assert_int_equal(c->zero_optimization.offload_param.device, CONFIG_OFFLOAD_CPU);
    assert_true(c->run.profile);
    expect_line(&out, NEEDLESS, "  checkpoint.load_universal true: ");
    expect_line(&out, TRANSLATED,
                "  communication_data_type (not given) -> communication_data_type=\"fp16\"");
    expect_line(&out, CHOSEN,
                "  gradient_clipping (not given) -> train.gradient_clipping=0 (DeepSpeed's default "
                "before 0.19.8; it is 1.0 since)");
    expect_line(&out, NEEDLESS, "  tensorboard: TensorBoard events are always written");
    expect_line(&out, NEEDLESS, "  data_types.grad_accum_dtype \"fp32\": gradients are accumulated in fp32");
    expect_line(&out, OFF, "  csv_monitor: ");
    deepspeed_free(&out);
}

// Every word of DeepSpeed's Muon has a counterpart, and where the file has none, DeepSpeed's default.
static void test_muon(void **state) {
    (void)state;
    static const struct {
        const char *params, *more;
        double lr, adamw_lr, momentum, beta1, beta2, eps;
    } cases[] = {
        {"", "", 0.02, 3e-4, 0.95, 0.9, 0.95, 1e-10},
        {"\"lr\": 0.01", "", 0.01, 0.01, 0.95, 0.9, 0.95, 1e-10},
        {"\"lr\": 0.01, \"adam_lr\": 1e-3, \"eps\": 1e-8", "", 0.01, 1e-3, 0.95, 0.9, 0.95, 1e-8},
        {"\"muon_lr\": 0.03, \"lr\": 0.01, \"momentum\": 0.9", "", 0.03, 0.01, 0.9, 0.9, 0.95, 1e-10},
        {"\"muon_lr\": 0.03, \"adam_lr\": 0, \"betas\": [0.8, 0.99]", "", 0.03, 0, 0.95, 0.8, 0.99, 1e-10},
        {"\"muon_lr\": 0.03", // the schedule's rate is that of all tensors
         ", \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 9}}", 1e-3, 1e-3,
         0.95, 0.9, 0.95, 1e-10},
        {"\"muon_lr\": 0.03, \"adam_lr\": 2e-3", // which WarmupLR takes from the optimizer
         ", \"scheduler\": {\"type\": \"WarmupLR\"}", 0.03, 2e-3, 0.95, 0.9, 0.95, 1e-10},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text json = {0};
        struct deepspeed_translation out;
        text_add(&json, "{\"optimizer\": {\"type\": \"Muon\", \"params\": {%s}}%s}", cases[i].params,
                 cases[i].more);
        translate(json.data, &out);
        const struct config *c = &out.config;
        assert_int_equal(c->optimizer.type, CONFIG_OPTIMIZER_MUON);
        assert_int_equal(c->optimizer.muon_scale, CONFIG_MUON_SCALE_JORDAN);
        assert_true(c->optimizer.lr == cases[i].lr && c->optimizer.adamw_lr == cases[i].adamw_lr);
        assert_true(c->optimizer.muon_momentum == cases[i].momentum && c->optimizer.eps == cases[i].eps);
        assert_true(c->optimizer.betas.value[0] == cases[i].beta1 &&
                    c->optimizer.betas.value[1] == cases[i].beta2);
        assert_true(c->optimizer.weight_decay == 0);
        assert_null(strstr(lines(&out, ALTERING), "no such parameter"));
        deepspeed_free(&out);
        text_free(&json);
    }
    struct deepspeed_translation out;
    translate(
        "{\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 1, \"muon_lr\": 0.03, \"adam_lr\": 0,"
        " \"ns_method\": \"gram\", \"per_head_muon\": true, \"adam_w_mode\": false}}, \"gradient_clipping\": "
        "1,"
        " \"zero_optimization\": {\"stage\": 1}}",
        &out);
    expect_line(&out, TRANSLATED, "  optimizer.params.lr 1: muon_lr and adam_lr replace it");
    expect_line(&out, ALTERING, "  optimizer.params.adam_lr 0: here 0 means optimizer.lr");
    expect_line(&out, ALTERING, "  optimizer.params.per_head_muon true: ");
    expect_line(&out, ALTERING, "  optimizer.params.adam_w_mode false: ");
    expect_line(&out, ALTERING,
                "  gradient_clipping 1: with ZeRO, DeepSpeed's Muon clips the orthogonalized");
    expect_line(&out, NEEDLESS, "  optimizer.params.ns_method \"gram\": ");
    deepspeed_free(&out);
}

// What pydantic takes for true, false and numbers, and what alters a run when it is off.
static void test_truth(void **state) {
    (void)state;
    static const struct {
        const char *on, *off;
    } words[] = {{"true", "false"},         {"1", "0"},         {"1.0", "0.0"},
                 {"\"true\"", "\"False\""}, {"\"1\"", "\"0\""}, {"\"YES\"", "\"no\""},
                 {"\"on\"", "\"off\""},     {"\"T\"", "\"f\""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int is_on = 0; is_on < 2; is_on++) {
            const char *word = is_on ? words[i].on : words[i].off;
            struct text json = {0};
            struct deepspeed_translation out;
            text_add(&json,
                     "{\"bf16\": {\"enabled\": %s}, \"zero_optimization\": {\"overlap_comm\": %s,"
                     " \"zero_quantized_weights\": %s, \"cpu_offload\": %s}}",
                     word, word, word, word);
            translate(json.data, &out);
            const struct config *c = &out.config;
            assert_int_equal(c->precision.compute, is_on ? CONFIG_COMPUTE_BF16 : CONFIG_COMPUTE_FP32);
            assert_int_equal(c->zero_optimization.overlap_comm, is_on);
            assert_int_equal(c->zero_optimization.offload_optimizer.device,
                             is_on ? CONFIG_OFFLOAD_CPU : CONFIG_OFFLOAD_NONE);
            expect_line(&out, is_on ? ALTERING : OFF, "  zero_optimization.zero_quantized_weights ");
            deepspeed_free(&out);
            text_free(&json);
        }
    struct deepspeed_translation out;
    translate(
        "{\"zero_optimization\": {\"stage\": \"2\", \"reduce_bucket_size\": \" 500 \", \"offload_optimizer\":"
        " {\"device\": \"cpu\", \"ratio\": \"0.5\"}}, \"fp16\": {\"enabled\": \"yes\", \"loss_scale\": "
        "\"128\"},"
        " \"bf16\": {\"enabled\": 2}, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": 0,"
        " \"bias_correction\": false, \"amsgrad\": 1, \"fp32_optimizer_states\": 0}}}",
        &out);
    const struct config *c = &out.config;
    assert_int_equal(c->zero_optimization.stage, 2);
    assert_int_equal(c->zero_optimization.reduce_bucket_size, 500);
    assert_true(c->zero_optimization.offload_optimizer.ratio == 0.5 && c->fp16.loss_scale == 128);
    assert_int_equal(c->precision.compute, CONFIG_COMPUTE_FP16);
    assert_int_equal(c->optimizer.type, CONFIG_OPTIMIZER_ADAM);
    expect_line(&out, ALTERING, "  optimizer.params.bias_correction false: adamw and adam always correct");
    expect_line(&out, ALTERING, "  optimizer.params.fp32_optimizer_states 0: ");
    expect_line(&out, ALTERING, "  optimizer.params.amsgrad 1: ");
    expect_line(&out, ALTERING, "  bf16.enabled 2: neither true nor false");
    expect_line(&out, TRANSLATED, "  zero_optimization.stage \"2\" -> zero_optimization.stage=2\n");
    deepspeed_free(&out);
    translate("{\"zero_optimization\": {\"stage\": true}, \"optimizer\": {\"type\": \"AdamW\", \"params\":"
              " {\"adam_w_mode\": false, \"torch_adam\": 1, \"bias_correction\": true}}}",
              &out);
    assert_int_equal(out.config.zero_optimization.stage, 1);
    assert_int_equal(out.config.optimizer.type, CONFIG_OPTIMIZER_ADAMW);
    assert_true(out.config.optimizer.weight_decay == 0.01);
    expect_line(&out, NEEDLESS, "  optimizer.params.bias_correction true: ");
    deepspeed_free(&out);
}

// The parent of the k-th item of a tree, and the item.
static cJSON *find_item(cJSON *node, int *k, cJSON **item) {
    cJSON *child, *parent = NULL;
    cJSON_ArrayForEach(child, node) {
        if ((*k)-- == 0) {
            *item = child;
            return node;
        }
        if ((parent = find_item(child, k, item)))
            return parent;
    }
    return NULL;
}

// Any value in any place is translated or left out, with an answer.
static void test_any_value(void **state) {
    (void)state;
    static const char *const values[] = {"null",     "true", "-1", "1e300",       "\"x\"",
                                         "\"auto\"", "[1]",  "{}", "{\"a\": [2]}"};
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (int i = 0;; i++) {
            struct deepspeed_translation out;
            cJSON *root = parse(stage_3), *item;
            int k = i;
            cJSON *parent = find_item(root, &k, &item);
            if (!parent) {
                assert_true(i > 60);
                cJSON_Delete(root);
                break;
            }
            char name[64];
            snprintf(name, sizeof name, "%s", item->string);
            assert_true(cJSON_ReplaceItemInObjectCaseSensitive(parent, name, parse(values[v])));
            EXPECT_OK(deepspeed_translate(root, "ds.json", &out));
            expect_answers(&out, root, "");
            deepspeed_free(&out);
            cJSON_Delete(root);
        }
}

// What is misspelled, of the wrong type, or a schedule's own end: each answer names what applies.
static void test_doubtful_values(void **state) {
    (void)state;
    struct deepspeed_translation out;
    translate("{\"train_batchsize\": 8, \"zero_optimisation\": {\"stage\": 2}, \"seed\": 3, \"bf16\": true,"
              " \"fp16\": false, \"zero_optimization\": {\"stge\": 2, \"stage\": \"auto\","
              "  \"offload_optimizer\": {\"devise\": \"cpu\"}},"
              " \"wall_clock_breakdown\": \"auto\", \"elasticity\": {\"enabled\": true},"
              " \"data_types\": {\"grad_accum_dtype\": \"bf16\"}, \"train_batch_size\": \"8\","
              " \"gradient_accumulation_steps\": 0,"
              " \"activation_checkpointing\": {\"cpu_chekpointing\": true},"
              " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"weight_decy\": 1, \"betas\": [0.5, 3]}},"
              " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": 2e-4}}}",
              &out);
    assert_true(out.config.scheduler.min_lr_ratio == 0.2); // of DeepSpeed's warmup_max_lr, 1e-3
    assert_true(out.config.optimizer.lr == 1e-3 && out.config.optimizer.betas.value[0] == 0.9);
    assert_int_equal(out.config.precision.compute, CONFIG_COMPUTE_BF16);
    assert_int_equal(out.config.top.communication_data_type, CONFIG_COMMUNICATION_DTYPE_BF16);
    expect_line(&out, TRANSLATED,
                "  bf16 true -> precision.compute=\"bf16\" (DeepSpeed expects {\"enabled\": true})");
    expect_line(&out, OFF, "  fp16 false: off\n");
    expect_line(&out, CHOSEN,
                "  wall_clock_breakdown \"auto\": neither DeepSpeed nor the Trainer fills it in; here "
                "run.profile=false applies\n");
    expect_line(&out, ALTERING, "expected an integer; the default, zero_optimization.stage=0, applies\n");
    expect_line(&out, ALTERING, "train.train_batch_size is derived from the other batch sizes\n");
    expect_line(&out, ALTERING, "the default, optimizer.betas=[0.9, 0.95], applies\n");
    expect_line(&out, ALTERING, "  gradient_accumulation_steps 0: left out: DeepSpeed expects at least 1");
    expect_line(&out, ALTERING, "  elasticity: ");
    expect_line(&out, ALTERING, "  data_types.grad_accum_dtype \"bf16\": ");
    static const char *const meant[] = {
        "  train_batchsize 8: DeepSpeed's documentation has no such option; did you mean train_batch_size?\n",
        "did you mean zero_optimization?\n",
        "did you mean zero_optimization.stage?\n",
        "did you mean zero_optimization.offload_optimizer.device?\n",
        "did you mean activation_checkpointing.cpu_checkpointing?\n",
        "did you mean optimizer.params.weight_decay?\n",
        "  seed 3: DeepSpeed's documentation has no such option; train.seed is an option here"};
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
        expect_line(&out, UNKNOWN, meant[i]);
    assert_int_equal(out.answers[UNKNOWN].n, sizeof meant / sizeof *meant);
    deepspeed_free(&out);
}

static void test_refusals(void **state) {
    (void)state;
    static const char batch[] =
        "ds.json: train_batch_size 10 is not a multiple of train_micro_batch_size_per_gpu 4, so";
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"[1]", "ds.json holds no object"},
        {"{\"some\": 1, \"thing\": {\"else\": 2}}", "ds.json: no key of it is DeepSpeed's"},
        {"{\"train_batch_size\": 10, \"train_micro_batch_size_per_gpu\": 4}", batch},
        {"{\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": "
         "2,"
         " \"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}",
         "2 faults in the configuration:\n  ds.json: train_batch_size 8 is not a multiple of "
         "train_micro_batch_size_per_gpu 3 x gradient_accumulation_steps 2, so"},
        {"{\"fp16\": {\"enabled\": true}, \"bfloat16\": true}", "bf16 and fp16 are both enabled"},
        {"{\"model\": {\"n_layer\": 2}, \"optimizer\": {\"lr\": 1}}",
         "ds.json is a zero.c configuration already; ./train ds.json runs it"},
        {"{\"scheduler\": {\"type\": \"cosine\"}}", "ds.json is a zero.c configuration already"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct deepspeed_translation out;
        cJSON *root = parse(cases[i].json);
        EXPECT_FAILURE(STATUS_INVALID, deepspeed_translate(root, "ds.json", &out), cases[i].message);
        deepspeed_free(&out);
        cJSON_Delete(root);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage_2),
        cmocka_unit_test(test_stage_3_with_auto),
        cmocka_unit_test(test_stage_2_with_auto),
        cmocka_unit_test(test_stage_3),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_truth),
        cmocka_unit_test(test_every_option_has_an_answer),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_other_values),
        cmocka_unit_test(test_any_value),
        cmocka_unit_test(test_doubtful_values),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
