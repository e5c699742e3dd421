// Derived values, and rules between options.
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "configs/option.h"
#include "configs/rules.h"

// ---- deriving

static enum status batch_disagrees(const struct config *config, int world) {
    const long long micro = config->train.micro_batch_size,
                    accumulation = config->train.gradient_accumulation_steps;
    return FAIL(
        STATUS_INVALID,
        "%s: train.train_batch_size is %lld, but train.micro_batch_size %lld x "
        "train.gradient_accumulation_steps %lld x %d rank%s = %lld; leave out one of the three options",
        config->source, (long long)config->train.train_batch_size, micro, accumulation, world,
        world == 1 ? "" : "s", micro * accumulation * world);
}

// given: the value of `name`, the one factor that is set; 0 when neither factor is.
static enum status batch_does_not_divide(const struct config *config, int world, const char *name,
                                         int64_t given) {
    struct text product = {0};
    text_add(&product, "%d rank%s", world, world == 1 ? "" : "s");
    if (given)
        text_add(&product, " x %s %lld", name, (long long)given);
    enum status status = text_status(&product);
    if (status == STATUS_OK)
        status = FAIL(STATUS_INVALID,
                      "%s: train.train_batch_size %lld does not divide by %s; choose a multiple of %lld",
                      config->source, (long long)config->train.train_batch_size, product.data,
                      (long long)(given ? given * world : world));
    text_free(&product);
    return status;
}

int64_t config_largest_divisor(int64_t sequences, int64_t most) {
    int64_t size = most < sequences ? most : sequences;
    while (size > 1 && sequences % size != 0)
        --size;
    return size < 1 ? 1 : size;
}

void config_set_micro_batch(struct config *config, int64_t size) {
    const int64_t sequences = config->train.micro_batch_size * config->train.gradient_accumulation_steps;
    config->train.micro_batch_size = size;
    config->train.gradient_accumulation_steps = sequences / size;
}

int64_t config_rank_sequences(const struct config *config) {
    return config->train.batch_size_schedule.n > 0
               ? config->rank_sequences
               : config->train.micro_batch_size * config->train.gradient_accumulation_steps;
}

int64_t config_stages_at(const struct config_stages *schedule, int64_t base, int64_t step) {
    int64_t value = base;
    for (int i = 0; i < schedule->n && schedule->stages[i].step <= step; i++)
        value = schedule->stages[i].value;
    return value;
}

// What a CPU takes where only train_batch_size is set: more gains no speed there.
#define CPU_SEQUENCES   4
#define CPU_AUTO_TOKENS 4096

static enum status auto_needs_a_batch(const struct config *config) {
    return FAIL(
        STATUS_INVALID,
        "%s: train.micro_batch_size is \"auto\", which divides train.train_batch_size into micro-batches "
        "that fit into memory; set train.train_batch_size, or train.micro_batch_size to a number",
        config->source);
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

// What micro-batches divide: the greatest common divisor of a rank's sequences, over the run's batch sizes.
static int64_t divisor_of_batches(const struct config *config, int world) {
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    int64_t divisor = config->train.train_batch_size;
    for (int i = 0; i < schedule->n; i++)
        divisor = greatest_common_divisor(divisor, schedule->stages[i].value);
    return divisor / world;
}

static enum status check_batch_schedule(const struct config *config, int world) {
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    const int64_t unit = config->train.micro_batch_size * world;
    for (int i = 0; i < schedule->n; i++)
        if (schedule->stages[i].value % unit != 0)
            return FAIL(STATUS_INVALID,
                        "%s: train.batch_size_schedule has the batch size %lld, which does not divide by %d "
                        "rank%s x train.micro_batch_size %lld; choose a multiple of %lld",
                        config->source, (long long)schedule->stages[i].value, world, world == 1 ? "" : "s",
                        (long long)config->train.micro_batch_size, (long long)unit);
    return STATUS_OK;
}

// train_batch_size = micro_batch_size x gradient_accumulation_steps x world: any two determine the third.
static enum status derive_batch_sizes(struct config *config, int world) {
    int64_t *micro = &config->train.micro_batch_size,
            *accumulation = &config->train.gradient_accumulation_steps,
            *batch = &config->train.train_batch_size;
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    const bool is_auto = *micro == CONFIG_AUTO;
    if (!*batch && schedule->n > 0)
        *batch = schedule->stages[0].value;
    if (is_auto && !*batch)
        return auto_needs_a_batch(config);
    if (is_auto)
        *micro = 0;
    if (*micro && *accumulation && *batch)
        return *batch == *micro * *accumulation * world ? STATUS_OK : batch_disagrees(config, world);
    if (!*batch) {
        *micro = *micro ? *micro : 4;
        *accumulation = *accumulation ? *accumulation : 1;
        *batch = *micro * *accumulation * world;
        return STATUS_OK;
    }
    int64_t per_rank = *batch / world;
    int64_t given = *micro ? *micro : *accumulation;
    if (*batch % world != 0 || (given && per_rank % given != 0) || per_rank == 0)
        return batch_does_not_divide(
            config, world, *micro ? "train.micro_batch_size" : "train.gradient_accumulation_steps", given);
    if (!given) { // only train_batch_size is set
        config->micro_batch_is_open = true;
        *micro = config_largest_divisor(divisor_of_batches(config, world),
                                        is_auto ? CPU_AUTO_TOKENS / config->train.seq_len : CPU_SEQUENCES);
    }
    if (*micro)
        *accumulation = per_rank / *micro;
    else
        *micro = per_rank / *accumulation;
    return STATUS_OK;
}

// Derived values obey the bounds of their options, so that a printed config can be read again.
static enum status check_derived(const struct config *config) {
    static const char *const names[] = {"train.micro_batch_size", "train.gradient_accumulation_steps",
                                        "train.train_batch_size"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct option *option = option_find(names[i]);
        int64_t value = *(int64_t *)option_value(option, config);
        if ((double)value > option->maximum)
            return FAIL(STATUS_INVALID, "%s: the derived %s is %lld, expected at most %.0f", config->source,
                        names[i], (long long)value, option->maximum);
    }
    return STATUS_OK;
}

enum status config_derive_run_folder(struct config *config) {
    if (config->run.dir[0])
        return STATUS_OK;
    const char *slash = strrchr(config->source, '/'), *name = slash ? slash + 1 : config->source;
    size_t length = strlen(name);
    if (length > 5 &&
        strcmp(name + length - 5, ".json") == 0) // cut only ".json": gpt3-2.7b.json gives gpt3-2.7b
        length -= 5;
    char *folder = file_path("runs/%.*s", (int)length, name);
    if (!folder)
        return STATUS_FAILED;
    free(config->run.dir);
    config->run.dir = folder;
    return STATUS_OK;
}

// ---- rules

// Each rule returns STATUS_OK or fails with the values that conflict and what to change.
static enum status check_heads(const struct config *c) {
    const long long kv_heads = (long long)c->model.n_kv_head;
    if (kv_heads > 0 && c->model.n_head % kv_heads != 0)
        return FAIL(STATUS_INVALID, "%s: model.n_head %lld is not a multiple of model.n_kv_head %lld",
                    c->source, (long long)c->model.n_head, kv_heads);
    if (c->model.head_dim > 0 || c->model.n_embd % c->model.n_head == 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: model.n_embd %lld is not a multiple of model.n_head %lld", c->source,
                (long long)c->model.n_embd, (long long)c->model.n_head);
}

// RoPE rotates pairs.
static enum status check_head_dim(const struct config *c) {
    const long long width = c->model.head_dim ? c->model.head_dim : c->model.n_embd / c->model.n_head;
    if (c->model.family == CONFIG_FAMILY_GPT2 || width % 2 == 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: a head is %lld wide, but rotary positions rotate pairs; make model.head_dim even",
                c->source, width);
}

// GPT-2 has none of the Llama family's options.
static enum status check_family(const struct config *c) {
    const struct {
        const char *option;
        bool is_set;
    } llama[] = {{"model.n_kv_head", c->model.n_kv_head != 0},
                 {"model.head_dim", c->model.head_dim != 0},
                 {"model.intermediate_size", c->model.intermediate_size != 0},
                 {"model.rope_theta", c->model.rope_theta != 0},
                 {"model.norm_eps", c->model.norm_eps != 0},
                 {"model.qkv_bias", c->model.qkv_bias},
                 {"model.qk_norm", c->model.qk_norm},
                 {"model.tied=false", !c->model.tied},
                 {"model.window", c->model.window.n > 0},
                 {"model.rope_scaling", c->model.rope_scaling.rope_type != CONFIG_ROPE_TYPE_DEFAULT}};
    for (size_t i = 0; i < sizeof llama / sizeof *llama && c->model.family == CONFIG_FAMILY_GPT2; i++)
        if (llama[i].is_set)
            return FAIL(STATUS_INVALID,
                        "%s: model.family is gpt2, which has no %s; leave it out, or set model.family=llama",
                        c->source, llama[i].option);
    return STATUS_OK;
}

static enum status check_sequence(const struct config *c) {
    if (c->train.seq_len <= c->model.n_positions)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: train.seq_len %lld is above model.n_positions %lld; lower the first or raise the second",
                c->source, (long long)c->train.seq_len, (long long)c->model.n_positions);
}

static enum status check_seq_len_schedule(const struct config *c) {
    const struct config_stages *schedule = &c->train.seq_len_schedule;
    const int64_t T = c->train.seq_len ? c->train.seq_len : c->model.n_positions;
    for (int i = 0; i < schedule->n; i++)
        if (T % schedule->stages[i].value != 0)
            return FAIL(STATUS_INVALID,
                        "%s: train.seq_len_schedule has the length %lld, which does not divide train.seq_len "
                        "%lld; choose a divisor, such as %lld",
                        c->source, (long long)schedule->stages[i].value, (long long)T,
                        (long long)config_largest_divisor(T, schedule->stages[i].value));
    return STATUS_OK;
}

static enum status check_max_batch(const struct config *c) {
    if (c->train.max_batch_size == 0)
        return STATUS_OK;
    if (c->train.noise_scale_every == 0)
        return FAIL(STATUS_INVALID,
                    "%s: train.max_batch_size is %lld, but the batch grows by the noise scale, which is not "
                    "measured; set train.noise_scale_every",
                    c->source, (long long)c->train.max_batch_size);
    if (c->train.batch_size_schedule.n > 0)
        return FAIL(
            STATUS_INVALID,
            "%s: both train.max_batch_size and train.batch_size_schedule are set; leave out one of them",
            c->source);
    return STATUS_OK;
}

// A tokenizer that is not given may come with the shards of data.train; the trainer checks that.
static enum status check_samples(const struct config *c) {
    bool comes_with_data = c->data.train.n > 0 && !option_given("data.tokenizer", c);
    if (c->train.sample_every == 0 || c->data.tokenizer[0] || comes_with_data)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: train.sample_every is %lld, but samples need a tokenizer; set data.tokenizer", c->source,
                (long long)c->train.sample_every);
}

static enum status check_documents(const struct config *c) {
    if (!c->data.mask_documents || c->top.attention != CONFIG_ATTENTION_CUDNN)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: data.mask_documents is true, but attention is cudnn, which is causal only; set "
                "attention=flash or attention=auto",
                c->source);
}

static enum status check_offload_activations(const struct config *c) {
    if (c->top.offload_activations == CONFIG_OFFLOAD_NONE || c->top.recompute == CONFIG_RECOMPUTE_BLOCK)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: offload_activations=cpu moves block inputs, so it needs recompute=block, which keeps only "
        "those (as DeepSpeed's cpu_checkpointing needs activation checkpointing); recompute is %s; "
        "set recompute=block, or offload_activations=none",
        c->source, config_recompute_name(c->top.recompute));
}

// As in DeepSpeed, whose documentation says "offload_param ... is valid only with stage 3", and whose partial
// optimizer offload keeps whole parameters on the device.
static enum status check_offload_param(const struct config *c) {
    if (c->zero_optimization.offload_param.device == CONFIG_OFFLOAD_NONE)
        return STATUS_OK;
    if (c->zero_optimization.stage != 3)
        return FAIL(
            STATUS_INVALID,
            "%s: zero_optimization.offload_param.device is cpu, which is valid only with ZeRO stage 3, "
            "and zero_optimization.stage is %lld: below stage 3 every rank keeps all parameters on its "
            "device; set stage=3, or offload_param.device=none",
            c->source, (long long)c->zero_optimization.stage);
    if (c->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU &&
        c->zero_optimization.offload_optimizer.ratio == 1)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: with zero_optimization.offload_param.device=cpu the host must update all parameters, but "
        "offload_optimizer.device is %s with ratio %g; set offload_optimizer.device=cpu and ratio=1",
        c->source, config_offload_name(c->zero_optimization.offload_optimizer.device),
        c->zero_optimization.offload_optimizer.ratio);
}

static enum status check_speculative(const struct config *c) {
    if (!c->zero_optimization.offload_optimizer.speculative ||
        c->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: zero_optimization.offload_optimizer.speculative updates on the host, but "
                "offload_optimizer.device is none; set device=cpu, or speculative=false",
                c->source);
}

// Adafactor has no moments to store in a narrower type, and each update needs sums over whole tensors of
// clipped gradients.
static enum status check_comm(const struct config *c) {
    if (c->comm.reduce != CONFIG_COMM_REDUCE_NCCL || c->comm.backend != CONFIG_COMM_BACKEND_MPI)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: comm.reduce=nccl sums by NCCL, but comm.backend is mpi; set comm.backend=nccl, or "
                "comm.reduce=exact",
                c->source);
}

static enum status check_adafactor(const struct config *c) {
    if (c->optimizer.type != CONFIG_OPTIMIZER_ADAFACTOR)
        return STATUS_OK;
    if (c->optimizer.state_dtype != CONFIG_STATE_DTYPE_FP32)
        return FAIL(STATUS_INVALID,
                    "%s: optimizer.state_dtype is %s, but optimizer.type=adafactor keeps only row and column "
                    "second moments, which are small, in fp32; set state_dtype=fp32",
                    c->source, config_state_dtype_name(c->optimizer.state_dtype));
    if (c->zero_optimization.offload_optimizer.speculative)
        return FAIL(STATUS_INVALID,
                    "%s: zero_optimization.offload_optimizer.speculative updates each unit on its own, but "
                    "optimizer.type=adafactor needs sums over all ranks' gradients, clipped by their norm; "
                    "set speculative=false",
                    c->source);
    return STATUS_OK;
}

// Matrices are gathered and multiplied by devices; none is split between a device and the host.
static enum status check_muon(const struct config *c) {
    if (c->optimizer.type != CONFIG_OPTIMIZER_MUON) {
        if (c->optimizer.adamw_lr > 0)
            return FAIL(
                STATUS_INVALID,
                "%s: optimizer.adamw_lr is of the tensors that optimizer.type=muon leaves to adamw, but "
                "the type is %s; set optimizer.lr",
                c->source, config_optimizer_name(c->optimizer.type));
        return STATUS_OK;
    }
    if (c->zero_optimization.offload_optimizer.device != CONFIG_OFFLOAD_NONE)
        return FAIL(STATUS_INVALID,
                    "%s: zero_optimization.offload_optimizer updates elements on the host, but "
                    "optimizer.type=muon multiplies whole matrices on the device; set "
                    "offload_optimizer.device=none",
                    c->source);
    if (c->optimizer.adamw_lr > 0 && c->optimizer.lr == 0)
        return FAIL(STATUS_INVALID,
                    "%s: optimizer.adamw_lr follows the schedule of optimizer.lr, which is 0; set an "
                    "optimizer.lr above 0",
                    c->source);
    return STATUS_OK;
}

static enum status check_resume_with(const struct config *c) {
    for (const char *at = c->checkpoint.resume_with + strspn(c->checkpoint.resume_with, ", "); *at;
         at += strspn(at, ", ")) {
        char name[128];
        const char *names[MAX_OPTIONS];
        const size_t n = strcspn(at, ", ");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        at += n;
        const struct option *option = option_find(name);
        if (option && option->resume == FIXED)
            return FAIL(
                STATUS_INVALID,
                "%s: checkpoint.resume_with lists %s, which cannot change in a run; start a new run from its "
                "weights with model.init_from=RUN and another run.dir",
                c->source, name);
        if (option)
            continue;
        for (int i = 0; i < n_options; i++)
            names[i] = option_full_name(&options[i]);
        const char *nearest = text_nearest(name, names, n_options);
        return FAIL(STATUS_INVALID,
                    "%s: checkpoint.resume_with lists %s, which is no option%s%s; expected names such as "
                    "\"optimizer.lr,train.train_batch_size\"",
                    c->source, name, nearest ? "; did you mean " : "", nearest ? nearest : "");
    }
    return STATUS_OK;
}

enum { MOST_OF_RULE = 4 };
static const struct {
    enum status (*check)(const struct config *);
    bool from_files;                   // what it checks may come from model.init_from, or from the data
    const char *options[MOST_OF_RULE]; // that it reads
} rules[] = {
    {check_heads, true, {"model.n_embd", "model.n_head", "model.n_kv_head", "model.head_dim"}},
    {check_head_dim, true, {"model.n_embd", "model.n_head", "model.head_dim", "model.family"}},
    {check_family, true, {"model.family"}},
    {check_sequence, true, {"train.seq_len", "model.n_positions"}},
    {check_seq_len_schedule, true, {"train.seq_len_schedule", "train.seq_len", "model.n_positions"}},
    {check_max_batch,
     false,
     {"train.max_batch_size", "train.noise_scale_every", "train.batch_size_schedule"}},
    {check_samples, true, {"train.sample_every", "data.tokenizer", "data.train"}},
    {check_documents, false, {"data.mask_documents", "attention"}},
    {check_offload_activations, false, {"offload_activations", "recompute"}},
    {check_offload_param,
     false,
     {"zero_optimization.offload_param.device", "zero_optimization.stage",
      "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.ratio"}},
    {check_speculative,
     false,
     {"zero_optimization.offload_optimizer.speculative", "zero_optimization.offload_optimizer.device"}},
    {check_adafactor,
     false,
     {"optimizer.type", "optimizer.state_dtype", "zero_optimization.offload_optimizer.speculative"}},
    {check_muon,
     false,
     {"optimizer.type", "optimizer.lr", "optimizer.adamw_lr", "zero_optimization.offload_optimizer.device"}},
    {check_comm, false, {"comm.reduce", "comm.backend"}},
    {check_resume_with, false, {"checkpoint.resume_with"}},
};
enum { N_RULES = sizeof rules / sizeof *rules };

enum status rules_check_rest(const struct config *config, const bool *faulty, struct faults *faults) {
    for (int i = 0; i < N_RULES; i++) {
        bool skip = rules[i].from_files && option_given("model.init_from", config);
        for (int k = 0; k < MOST_OF_RULE && rules[i].options[k]; k++)
            skip |= faulty[option_find(rules[i].options[k]) - options];
        if (!skip)
            TRY(faults_take(faults, rules[i].check(config)));
    }
    return STATUS_OK;
}

// With train.max_minutes, the steps are as many as fit, unless the user limits them.
static void derive_max_steps(struct config *config) {
    if (config->train.max_minutes > 0 && !option_given("train.max_steps", config))
        config->train.max_steps = (int64_t)option_find("train.max_steps")->maximum;
}

enum status config_resolve(struct config *config, int world) {
    struct faults faults = faults_begin();
    derive_max_steps(config);
    if (!config->train.seq_len)
        config->train.seq_len = config->model.n_positions;
    enum status status = derive_batch_sizes(config, world);
    if (status == STATUS_OK)
        status = check_derived(config);
    if (status == STATUS_OK)
        status = check_batch_schedule(config, world);
    if (status == STATUS_OK)
        config->rank_sequences = divisor_of_batches(config, world);
    status = faults_take(&faults, status);
    if (status == STATUS_OK)
        status = config_derive_run_folder(config);
    for (int i = 0; i < N_RULES && status == STATUS_OK; i++)
        status = faults_take(&faults, rules[i].check(config));
    return faults_end(&faults, status, NULL);
}

enum status config_require_training(const struct config *config) {
    if (config->data.train.n > 0)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: data.train names no token shards; create them with ./train tokenize, then set "
                "\"data\": {\"train\": \"corpus/train-*.bin\"}",
                config->source);
}

bool config_compute_type(const struct config *config, enum dtype *type) {
    static const enum dtype types[] = {[CONFIG_COMPUTE_FP32] = DTYPE_F32,
                                       [CONFIG_COMPUTE_BF16] = DTYPE_BF16,
                                       [CONFIG_COMPUTE_FP16] = DTYPE_F16};
    if (config->precision.compute == CONFIG_COMPUTE_AUTO)
        return false;
    *type = types[config->precision.compute];
    return true;
}

int64_t config_decay_steps(const struct config *config) {
    return config->scheduler.decay_steps ? config->scheduler.decay_steps : config->train.max_steps;
}

bool config_scales_losses(const struct config *config) {
    if (config->fp16.loss_scaling == CONFIG_LOSS_SCALING_AUTO)
        return config->precision.compute == CONFIG_COMPUTE_FP16;
    return config->fp16.loss_scaling == CONFIG_LOSS_SCALING_ON;
}
