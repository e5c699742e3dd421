// Derives values that are left open, and checks the rules between options. Several faults are reported in one
// message.
#include "options/rules.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "options/foreign.h"
#include "options/option.h"
#include "options/unused.h"

// ---- faults. base/status.h records one failure per process, so each fault's message is taken from there and
// cleared.

enum {
    MOST_FAULTS = 100,
    MOST_BYTES = STATUS_MESSAGE_BYTES - 1024 // of the list; the rest is for the other parts of the message
};

struct faults faults_begin(void) {
    return (struct faults){.blocked = status_message()[0] != '\0'};
}

enum status faults_take(struct faults *faults, enum status status) {
    if (status != STATUS_INVALID || faults->blocked)
        return status;
    text_add(&faults->list, "%s%s", faults->n ? "\n  " : "", status_message());
    faults->n++;
    status_clear();
    faults->full = faults->n == MOST_FAULTS;
    return faults->full ? STATUS_INVALID : STATUS_OK;
}

// Truncates the list at the end of a line; returns the number of lines kept.
static int shorten(struct text *list) {
    int n = 1;
    size_t end = MOST_BYTES;
    while (end > 0 && list->data[end] != '\n')
        end--;
    list->data[end] = '\0';
    for (size_t i = 0; i < end; i++)
        n += list->data[i] == '\n';
    return n;
}

enum status faults_end(struct faults *faults, enum status status, const char *advice) {
    struct text message = {0};
    if (faults->full || (status == STATUS_OK && faults->n > 0)) {
        const int shown = faults->list.length > MOST_BYTES ? shorten(&faults->list) : faults->n;
        if (faults->n > 1)
            text_add(&message, "%s%d faults in the configuration:\n  ", faults->full ? "at least " : "",
                     faults->n);
        text_add(&message, "%s", faults->list.data);
        if (shown < faults->n)
            text_add(&message, "\n  and %d others", faults->n - shown);
        if (advice)
            text_add(&message, "\n  %s", advice);
        status = FAIL(STATUS_INVALID, "%s", message.data);
    }
    text_free(&message);
    text_free(&faults->list);
    return status;
}

// ---- the folder of a run

void config_derive_run_folder(struct config *config) {
    if (config->run.dir[0])
        return;
    const char *slash = strrchr(config->source, '/'), *name = slash ? slash + 1 : config->source;
    const size_t length = strlen(name), ending = text_ends_with(name, ".json") && length > 5 ? 5 : 0;
    free(config->run.dir); // only ".json" is cut off: gpt3-2.7b.json gives gpt3-2.7b
    config->run.dir = file_path("runs/%.*s", (int)(length - ending), name);
}

// ---- batch sizes

static enum status schedule_fixes_accumulation(const struct config *config) {
    return FAIL(STATUS_INVALID,
                "%s: train.gradient_accumulation_steps is %lld, but train.batch_size_schedule changes the "
                "batch size, and with it the number of micro-batches; leave gradient_accumulation_steps out, "
                "or set train.micro_batch_size instead",
                config->source, (long long)config->train.gradient_accumulation_steps);
}

static enum status batch_disagrees(const struct config *config, int world) {
    const long long micro = config->train.micro_batch_size,
                    accumulation = config->train.gradient_accumulation_steps;
    if (config->train.batch_size_schedule.n > 0)
        return schedule_fixes_accumulation(config);
    return FAIL(
        STATUS_INVALID,
        "%s: train.train_batch_size is %lld, but train.micro_batch_size %lld x "
        "train.gradient_accumulation_steps %lld x %d rank%s = %lld; leave out one of the three options",
        config->source, (long long)config->train.train_batch_size, micro, accumulation, world,
        world == 1 ? "" : "s", micro * accumulation * world);
}

// Appends, as a way on, the largest number of logical ranks that `world` ranks can compute and that divides
// `sequences`, up to train.logical_ranks or `world`. Nothing if there is none, or train.logical_ranks is not
// set.
static void add_largest_ranks(const struct config *config, int world, int64_t sequences, struct text *out) {
    int64_t n = config->train.logical_ranks;
    if (n > 0 && n < world)
        n = world;
    while (n >= world && !(config_ranks_fit(n, world) && sequences % n == 0))
        n--;
    if (n >= world)
        text_add(out, ", or train.logical_ranks=%lld", (long long)n);
}

static const char *ranks_word(const struct config *config) {
    const bool one = config->logical_ranks == 1;
    return config->train.logical_ranks ? (one ? "logical rank" : "logical ranks") : one ? "rank" : "ranks";
}

// Fails because train_batch_size is not a multiple of the other factors.
//   name    the other factor that is set, "train.micro_batch_size" or "train.gradient_accumulation_steps"
//   given   its value; 0: neither is set
static enum status batch_does_not_divide(const struct config *config, int world, const char *name,
                                         int64_t given) {
    const bool scheduled = config->train.batch_size_schedule.n > 0;
    const int64_t batch = config->train.train_batch_size, L = config->logical_ranks;
    struct text product = {0}, way = {0};
    if (scheduled && config->train.gradient_accumulation_steps > 0)
        return schedule_fixes_accumulation(config);
    text_add(&product, "%lld %s", (long long)L, ranks_word(config));
    if (given)
        text_add(&product, " x %s %lld", name, (long long)given);
    if (batch % (given ? given : 1) == 0)
        add_largest_ranks(config, world, batch / (given ? given : 1), &way);
    enum status status =
        FAIL(STATUS_INVALID, "%s: train.%s %lld is not divisible by %s; choose a multiple of %lld%s",
             config->source,
             config->batch_is_auto ? "min_batch_size"
             : scheduled && !option_given("train.train_batch_size", config)
                 ? "batch_size_schedule's first batch size"
                 : "train_batch_size",
             (long long)batch, product.data, (long long)(given ? given * L : L), way.data ? way.data : "");
    text_free(&product);
    text_free(&way);
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
    return config->train.batch_size_schedule.n > 0 || config->batch_is_auto
               ? config->rank_sequences
               : config->train.train_batch_size / config->logical_ranks;
}

int64_t config_stages_at(const struct config_stages *schedule, int64_t base, int64_t step) {
    int64_t value = base;
    for (int i = 0; i < schedule->n && schedule->stages[i].step <= step; i++)
        value = schedule->stages[i].value;
    return value;
}

// On a CPU, larger micro-batches gain no speed. If only train_batch_size is set, a micro-batch has at most
// CPU_SEQUENCES sequences or, with micro_batch_size=auto, CPU_AUTO_TOKENS tokens.
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

// The number that the micro-batch size must divide: the greatest common divisor of the sequences per logical
// rank and step, over all batch sizes of the run; 0: a batch size is not divisible by the logical ranks. With
// train_batch_size=auto on one logical rank, it also divides half the initial batch size, so that a step has
// several micro-batches.
static int64_t divisor_of_batches(const struct config *config) {
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    int64_t divisor = config->train.train_batch_size;
    for (int i = 0; i < schedule->n; i++)
        divisor = greatest_common_divisor(divisor, schedule->stages[i].value);
    if (config->batch_is_auto && config->logical_ranks == 1)
        divisor = greatest_common_divisor(divisor, divisor / 2);
    return divisor % config->logical_ranks == 0 ? divisor / config->logical_ranks : 0;
}

static enum status check_batch_schedule(const struct config *config, int world) {
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    const int64_t micro = config->train.micro_batch_size, unit = micro * config->logical_ranks,
                  batch = config->train.train_batch_size;
    struct text way = {0};
    if (schedule->n > 0 && schedule->stages[0].step == 0 && schedule->stages[0].value != batch &&
        !config->batch_is_auto)
        return FAIL(STATUS_INVALID,
                    "%s: train.train_batch_size is %lld, but train.batch_size_schedule begins at step 0 with "
                    "%lld; leave train_batch_size out, or begin the schedule at a later step",
                    config->source, (long long)batch, (long long)schedule->stages[0].value);
    for (int i = 0; i < schedule->n; i++) {
        if (schedule->stages[i].value % unit == 0)
            continue;
        if (option_given("train.gradient_accumulation_steps", config) &&
            !option_given("train.micro_batch_size", config))
            return schedule_fixes_accumulation(config);
        if (schedule->stages[i].value % micro == 0)
            add_largest_ranks(config, world,
                              greatest_common_divisor(batch, schedule->stages[i].value) / micro, &way);
        enum status status =
            FAIL(STATUS_INVALID,
                 "%s: train.batch_size_schedule has the batch size %lld, which is not divisible by %lld %s x "
                 "train.micro_batch_size %lld; choose a multiple of %lld%s",
                 config->source, (long long)schedule->stages[i].value, (long long)config->logical_ranks,
                 ranks_word(config), (long long)micro, (long long)unit, way.data ? way.data : "");
        text_free(&way);
        return status;
    }
    return STATUS_OK;
}

// ---- train_batch_size = auto

static enum status auto_needs(const struct config *config, const char *why, const char *what) {
    return FAIL(STATUS_INVALID, "%s: train.train_batch_size is \"auto\", %s; set %s", config->source, why,
                what);
}

// Replaces "auto" by the initial train_batch_size, which then grows. If min_batch_size is given, the
// micro-batch size may be left open; otherwise the initial batch size follows from the micro-batch size.
static enum status begin_auto_batch(struct config *config, int world) {
    int64_t *micro = &config->train.micro_batch_size, *least = &config->train.min_batch_size;
    const int64_t accumulation = config->train.gradient_accumulation_steps;
    if (config->train.train_batch_size != CONFIG_AUTO)
        return STATUS_OK;
    if (config->train.max_batch_size == 0)
        return auto_needs(config, "and grows by the gradient noise scale up to train.max_batch_size",
                          "train.max_batch_size");
    if (*micro == CONFIG_AUTO && *least == 0)
        return auto_needs(config, "and so is train.micro_batch_size, so the initial batch size is unknown",
                          "train.min_batch_size, or train.micro_batch_size to a number");
    if (*least == 0 && *micro == 0)
        *micro = CPU_SEQUENCES;
    config->batch_is_auto = true;
    config->train.train_batch_size = *least ? *least
                                            : *micro * (accumulation                 ? accumulation * world
                                                        : config->logical_ranks == 1 ? 2
                                                                                     : config->logical_ranks);
    *least = 0;
    return STATUS_OK;
}

// The noise scale compares micro-batches with the whole step, so a step needs several micro-batches.
static enum status check_auto_batch(const struct config *config) {
    const long long batch = (long long)config->train.train_batch_size;
    if (!config->batch_is_auto)
        return STATUS_OK;
    if (batch <= config->train.micro_batch_size)
        return FAIL(
            STATUS_INVALID,
            "%s: train.train_batch_size is \"auto\", which compares the gradients of micro-batches with "
            "those of the step, but a step of %lld sequence%s is one micro-batch; lower "
            "train.micro_batch_size, or raise train.min_batch_size",
            config->source, batch, batch == 1 ? "" : "s");
    if (batch > config->train.max_batch_size)
        return FAIL(STATUS_INVALID,
                    "%s: train.max_batch_size is %lld, but train.train_batch_size=auto begins with %lld "
                    "sequences; raise it, or lower train.min_batch_size or train.micro_batch_size",
                    config->source, (long long)config->train.max_batch_size, batch);
    return STATUS_OK;
}

// Checks noise_scale_every without train_batch_size=auto: the largest batch of the run must have several
// micro-batches, because the noise scale compares them with the whole step.
static enum status check_noise_scale(const struct config *config) {
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    int64_t largest = config->train.train_batch_size;
    if (config->train.noise_scale_every == 0 || config->batch_is_auto)
        return STATUS_OK;
    for (int i = 0; i < schedule->n; i++)
        largest = schedule->stages[i].value > largest ? schedule->stages[i].value : largest;
    if (largest > config->train.micro_batch_size)
        return STATUS_OK;
    return FAIL(
        STATUS_INVALID,
        "%s: train.noise_scale_every is %lld, which compares the gradients of micro-batches with those of "
        "the step, but a step of %lld sequence%s is one micro-batch; lower train.micro_batch_size, raise "
        "train.train_batch_size, or leave it out",
        config->source, (long long)config->train.noise_scale_every, (long long)largest,
        largest == 1 ? "" : "s");
}

// Sets the members that follow from the batch size, the micro-batch size and the logical ranks. Returns false
// if these do not fit together.
static bool settle_batch(struct config *config, int world) {
    const int64_t batch = config->train.train_batch_size, micro = config->train.micro_batch_size;
    config->rank_sequences = divisor_of_batches(config);
    config->train.gradient_accumulation_steps = batch / (micro * world);
    return config->rank_sequences > 0 && config->rank_sequences % micro == 0 &&
           (!config->batch_is_auto || batch > micro);
}

void config_resume_batch(struct config *config, const struct config *before, int64_t logical_ranks,
                         int world) {
    struct config kept = *config; // a shallow copy, not to be freed
    if (config->batch_is_auto && !option_given("train.min_batch_size", config))
        kept.train.train_batch_size = before->train.train_batch_size;
    if (settle_batch(&kept, world))
        *config = kept;
    if (config->train.logical_ranks || !config_ranks_fit(logical_ranks, world))
        return;
    kept.logical_ranks = logical_ranks;
    if (kept.micro_batch_is_open)
        kept.train.micro_batch_size = before->train.micro_batch_size;
    if (settle_batch(&kept, world))
        *config = kept;
}

// ---- deriving

static enum status derive_logical_ranks(struct config *config, int world) {
    const int64_t n = config->train.logical_ranks, micro = config->train.micro_batch_size,
                  batch = config->train.train_batch_size;
    int least = world;
    struct text way = {0};
    config->logical_ranks = n ? n : world;
    if (config_ranks_fit(config->logical_ranks, world))
        return STATUS_OK;
    while (least > 1 && !config_ranks_fit(n, least))
        least--;
    add_largest_ranks(config, world, batch > 0 ? batch / (micro > 0 ? micro : 1) : 0, &way);
    enum status status = FAIL(STATUS_INVALID,
                              "%s: train.logical_ranks is %lld, which %d ranks cannot compute: their number "
                              "must be %lld, or a power of two that divides it; start %d rank%s%s",
                              config->source, (long long)n, world, (long long)n, least, least == 1 ? "" : "s",
                              way.data ? way.data : "");
    text_free(&way);
    return status;
}

// train_batch_size = micro_batch_size x gradient_accumulation_steps x world: any two determine the third.
static enum status derive_batch_sizes(struct config *config, int world) {
    int64_t *micro = &config->train.micro_batch_size,
            *accumulation = &config->train.gradient_accumulation_steps,
            *batch = &config->train.train_batch_size;
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    const int64_t L = config->logical_ranks, per_rank = L / world; // logical ranks per rank
    const bool is_auto = *micro == CONFIG_AUTO;
    if (!*batch && schedule->n > 0)
        *batch = schedule->stages[0].value;
    if (is_auto && !*batch)
        return auto_needs_a_batch(config);
    if (is_auto)
        *micro = 0;
    if (*accumulation % per_rank != 0)
        return FAIL(
            STATUS_INVALID,
            "%s: train.gradient_accumulation_steps is %lld, but each of %d rank%s computes %lld of %lld "
            "logical ranks (train.logical_ranks); choose a multiple of %lld, or leave it out",
            config->source, (long long)*accumulation, world, world == 1 ? "" : "s", (long long)per_rank,
            (long long)L, (long long)per_rank);
    if (*micro && *accumulation && *batch)
        return *batch == *micro * *accumulation * world ? STATUS_OK : batch_disagrees(config, world);
    if (!*batch) {
        *micro = *micro ? *micro : 4;
        *accumulation = *accumulation ? *accumulation : per_rank;
        *batch = *micro * *accumulation * world;
        return STATUS_OK;
    }
    const int64_t given = *micro ? *micro : *accumulation / per_rank;
    if (*batch % (L * (given ? given : 1)) != 0)
        return batch_does_not_divide(
            config, world, *micro ? "train.micro_batch_size" : "train.gradient_accumulation_steps", given);
    if (!given) { // only train_batch_size is set
        const int64_t sequences = divisor_of_batches(config);
        config->micro_batch_is_open = true;
        *micro = config_largest_divisor(sequences ? sequences : 1,
                                        is_auto ? CPU_AUTO_TOKENS / config->train.seq_len : CPU_SEQUENCES);
    }
    if (*micro)
        *accumulation = *batch / (world * *micro);
    else
        *micro = *batch / (world * *accumulation);
    return STATUS_OK;
}

// Checks that derived values are within the bounds of their options, so that a printed config can be read
// again.
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

// Derives the missing ones of micro_batch_size, gradient_accumulation_steps and train_batch_size. Checks that
// they are consistent with each other and with train.batch_size_schedule.
static enum status derive_batches(struct config *config, int world) {
    TRY(derive_logical_ranks(config, world));
    TRY(begin_auto_batch(config, world));
    TRY(derive_batch_sizes(config, world));
    TRY(check_derived(config));
    TRY(check_auto_batch(config));
    TRY(check_noise_scale(config));
    TRY(check_batch_schedule(config, world));
    config->rank_sequences = divisor_of_batches(config);
    return STATUS_OK;
}

// ---- rules of the model. Each rule returns STATUS_OK or fails with the values that conflict and what to
// change.

static enum config_activation activation_of(enum config_family family) {
    return family == CONFIG_FAMILY_GPT2    ? CONFIG_ACTIVATION_GELU
           : family == CONFIG_FAMILY_LLAMA ? CONFIG_ACTIVATION_SWIGLU
                                           : CONFIG_ACTIVATION_RELU_SQUARED;
}

void rules_take_defaults(struct config *c) {
    const bool modern = c->model.family == CONFIG_FAMILY_MODERN;
    const struct {
        const char *option;
        bool *value, initial;
    } flags[] = {{"model.qk_norm", &c->model.qk_norm, modern},
                 {"model.tied", &c->model.tied, !modern},
                 {"model.zero_init", &c->model.zero_init, modern},
                 {"model.embedding_skip", &c->model.embedding_skip, modern}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!option_given(flags[i].option, c))
            *flags[i].value = flags[i].initial;
    if (!option_given("model.activation", c))
        c->model.activation = activation_of(c->model.family);
    if (!option_given("model.soft_cap", c))
        c->model.soft_cap = modern ? 15 : 0;
}

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

// RoPE rotates pairs of channels, so a head's width must be even.
static enum status check_rotation(const struct config *c) {
    const long long width = c->model.head_dim ? c->model.head_dim : c->model.n_embd / c->model.n_head;
    const double factor = c->model.partial_rotary_factor;
    if (c->model.family == CONFIG_FAMILY_GPT2)
        return STATUS_OK;
    if (width % 2 != 0)
        return FAIL(
            STATUS_INVALID,
            "%s: a head has %lld channels, but rotary positions rotate pairs; make model.head_dim even",
            c->source, width);
    if (factor > 0 && (double)width * factor < 2)
        return FAIL(STATUS_INVALID,
                    "%s: model.partial_rotary_factor %g of heads that are %lld wide is less than one pair; "
                    "expected at least %g",
                    c->source, factor, width, 2 / (double)width);
    return STATUS_OK;
}

static enum status check_rope_scaling(const struct config *c) {
    const enum config_rope_type type = c->model.rope_scaling.rope_type;
    if (type != CONFIG_ROPE_TYPE_DEFAULT && option_given("model.rope_scaling.rope_type", c) &&
        !option_given("model.rope_scaling.factor", c))
        return FAIL(STATUS_INVALID,
                    "%s: model.rope_scaling.rope_type is %s, but without a factor above 1 it scales nothing; "
                    "set model.rope_scaling.factor",
                    c->source, config_rope_type_name(type));
    const bool low_first = type != CONFIG_ROPE_TYPE_LLAMA3 ||
                           c->model.rope_scaling.low_freq_factor < c->model.rope_scaling.high_freq_factor,
               slow_first = type != CONFIG_ROPE_TYPE_YARN ||
                            c->model.rope_scaling.beta_slow < c->model.rope_scaling.beta_fast;
    if (low_first && slow_first)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s: model.rope_scaling.%s must be less than %s", c->source,
                low_first ? "beta_slow" : "low_freq_factor", low_first ? "beta_fast" : "high_freq_factor");
}

static enum status check_window(const struct config *c) {
    if (c->model.window.n <= c->model.n_layer)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: model.window has %d entries, but model.n_layer is %lld; expected one for each block, or "
                "fewer, which are repeated",
                c->source, c->model.window.n, (long long)c->model.n_layer);
}

static enum status check_value_embeddings(const struct config *c) {
    const struct config_integers *blocks = &c->model.value_embeddings;
    for (int i = 0; i < blocks->n; i++) {
        if (blocks->values[i] >= c->model.n_layer)
            return FAIL(
                STATUS_INVALID,
                "%s: model.value_embeddings has block %lld, but model.n_layer is %lld; expected 0 to %lld",
                c->source, (long long)blocks->values[i], (long long)c->model.n_layer,
                (long long)c->model.n_layer - 1);
        for (int k = 0; k < i; k++)
            if (blocks->values[k] == blocks->values[i])
                return FAIL(STATUS_INVALID, "%s: model.value_embeddings has block %lld twice; leave one out",
                            c->source, (long long)blocks->values[i]);
    }
    return STATUS_OK;
}

// ---- other rules

static enum status check_sequence(const struct config *c) {
    if (c->train.seq_len <= c->model.n_positions)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: train.seq_len %lld is above model.n_positions %lld; lower the first or raise the second",
                c->source, (long long)c->train.seq_len, (long long)c->model.n_positions);
}

static enum status check_max_batch(const struct config *c) {
    if (c->train.max_batch_size == 0)
        return STATUS_OK;
    if (c->train.batch_size_schedule.n > 0)
        return FAIL(
            STATUS_INVALID,
            "%s: both train.max_batch_size and train.batch_size_schedule are set; leave out one of them",
            c->source);
    if (c->train.max_batch_size < c->train.train_batch_size)
        return FAIL(
            STATUS_INVALID,
            "%s: train.max_batch_size is %lld, less than train.train_batch_size=%lld, from which the batch "
            "grows",
            c->source, (long long)c->train.max_batch_size, (long long)c->train.train_batch_size);
    return STATUS_OK;
}

// If data.tokenizer is not given, the shards of data.train may name a tokenizer; the trainer checks that.
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
                "%s: data.mask_documents is true, but attention is cudnn, which cannot mask documents; set "
                "attention=flash or attention=auto",
                c->source);
}

// Parameters on the host need the whole optimizer there. DeepSpeed requires this too: its partial optimizer
// offload keeps all parameters on the device.
static enum status check_offload_param(const struct config *c) {
    if (c->zero_optimization.offload_param.device == CONFIG_OFFLOAD_NONE)
        return STATUS_OK;
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

// Muon gathers and multiplies whole matrices on the device, so no matrix can be split between a device and
// the host.
static enum status check_matrices(const struct config *c) {
    if (c->optimizer.type != CONFIG_OPTIMIZER_MUON)
        return STATUS_OK;
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

// A group's rate follows the schedule of optimizer.lr. A group's type=adamw has an effect only with muon.
static enum status check_groups(const struct config *c) {
    for (int i = 0; i < c->optimizer.groups.n; i++) {
        const struct config_group *group = &c->optimizer.groups.list[i];
        if (group->has_lr && c->optimizer.lr == 0)
            return FAIL(
                STATUS_INVALID,
                "%s: optimizer.groups[%d].lr follows the schedule of optimizer.lr, which is 0; set an "
                "optimizer.lr above 0, and freeze the tensors that are not to change",
                c->source, i);
        if (group->by_adamw && c->optimizer.type != CONFIG_OPTIMIZER_MUON &&
            c->optimizer.type != CONFIG_OPTIMIZER_ADAMW)
            return FAIL(STATUS_INVALID,
                        "%s: optimizer.groups[%d].type is adamw, but optimizer.type=%s updates all tensors; "
                        "leave the group's type out, or set optimizer.type to muon or adamw",
                        c->source, i, config_optimizer_name(c->optimizer.type));
    }
    return STATUS_OK;
}

// The state z of schedule-free AdamW holds weights, so it must be fp32. train.ema is refused, because the
// weights are averaged already.
static enum status check_schedule_free(const struct config *c) {
    if (c->optimizer.type != CONFIG_OPTIMIZER_SCHEDULEFREE_ADAMW)
        return STATUS_OK;
    if (c->optimizer.state_dtype != CONFIG_STATE_DTYPE_FP32)
        return FAIL(
            STATUS_INVALID,
            "%s: optimizer.state_dtype is %s, but optimizer.type=schedulefree_adamw keeps weights in the "
            "place of the first moment, in fp32; set state_dtype=fp32",
            c->source, config_state_dtype_name(c->optimizer.state_dtype));
    if (c->optimizer.betas.value[0] <= 0)
        return FAIL(
            STATUS_INVALID,
            "%s: the first of optimizer.betas is %g, but optimizer.type=schedulefree_adamw divides by "
            "it; set it above 0, such as 0.9",
            c->source, c->optimizer.betas.value[0]);
    if (c->train.ema.type != CONFIG_EMA_NONE)
        return FAIL(STATUS_INVALID,
                    "%s: train.ema.type is %s, but optimizer.type=schedulefree_adamw averages the weights by "
                    "itself; set train.ema.type=none",
                    c->source, config_ema_name(c->train.ema.type));
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
        if (option || gone_option(name)) // an old run may list an option that was removed since
            continue;
        if (section_exists(name, strlen(name)))
            return FAIL(STATUS_INVALID,
                        "%s: checkpoint.resume_with lists %s, which is a section; list its options that "
                        "change, such as %s",
                        c->source, name, option_full_name(option_first_of(name)));
        for (int i = 0; i < n_options; i++)
            names[i] = option_full_name(&options[i]);
        const char *nearest = text_nearest(name, names, n_options);
        return FAIL(STATUS_INVALID,
                    "%s: checkpoint.resume_with lists %s, which is not an option%s%s; expected names such as "
                    "\"optimizer.lr,train.train_batch_size\"",
                    c->source, name, nearest ? "; did you mean " : "", nearest ? nearest : "");
    }
    return STATUS_OK;
}

enum { MOST_OF_RULE = 7 };
static const struct {
    enum status (*check)(const struct config *);
    bool from_files;                   // checked values may come from model.init_from or from the data
    const char *options[MOST_OF_RULE]; // options that the rule reads
} rules[] = {
    {check_heads, true, {"model.n_embd", "model.n_head", "model.n_kv_head", "model.head_dim"}},
    {check_rotation, true, {"model.n_embd", "model.n_head", "model.head_dim", "model.partial_rotary_factor"}},
    {check_rope_scaling,
     true,
     {"model.rope_scaling.rope_type", "model.rope_scaling.factor", "model.rope_scaling.low_freq_factor",
      "model.rope_scaling.high_freq_factor", "model.rope_scaling.beta_fast", "model.rope_scaling.beta_slow"}},
    {check_window, true, {"model.window", "model.n_layer"}},
    {check_value_embeddings, true, {"model.value_embeddings", "model.n_layer"}},
    {check_sequence, true, {"train.seq_len", "model.n_positions"}},
    {check_max_batch, false, {"train.max_batch_size", "train.batch_size_schedule", "train.train_batch_size"}},
    {check_samples, true, {"train.sample_every", "data.tokenizer", "data.train"}},
    {check_documents, false, {"data.mask_documents", "attention"}},
    {check_offload_param,
     false,
     {"zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device",
      "zero_optimization.offload_optimizer.ratio"}},
    {check_matrices,
     false,
     {"optimizer.type", "optimizer.lr", "optimizer.adamw_lr", "zero_optimization.offload_optimizer.device"}},
    {check_groups, false, {"optimizer.groups", "optimizer.type", "optimizer.lr"}},
    {check_schedule_free,
     false,
     {"optimizer.type", "optimizer.state_dtype", "optimizer.betas", "train.ema.type"}},
    {check_resume_with, false, {"checkpoint.resume_with"}},
};
enum { N_RULES = sizeof rules / sizeof *rules };

enum status rules_check_rest(const struct config *config, const bool *faulty, struct faults *faults) {
    const bool has_files = faulty && option_given("model.init_from", config); // its files are not read yet
    for (int i = 0; i < N_RULES; i++) {
        bool skip = rules[i].from_files && has_files;
        for (int k = 0; faulty && k < MOST_OF_RULE && rules[i].options[k]; k++)
            skip |= faulty[option_find(rules[i].options[k]) - options];
        if (!skip)
            TRY(faults_take(faults, rules[i].check(config)));
    }
    for (int i = 0; i < n_options; i++)
        if (!has_files || strncmp(options[i].section, "model", 5) != 0)
            TRY(faults_take(faults, unused_check(&options[i], config, faulty)));
    return STATUS_OK;
}

// With train.max_minutes and without train.max_steps, sets max_steps to its upper bound, because the run does
// as many steps as fit into the time.
static void derive_max_steps(struct config *config) {
    if (config->train.max_minutes > 0 && !option_given("train.max_steps", config))
        config->train.max_steps = (int64_t)option_find("train.max_steps")->maximum;
}

enum status config_resolve(struct config *config, int world) {
    struct faults faults = faults_begin();
    derive_max_steps(config);
    unused_derive_choices(config);
    if (!config->train.seq_len)
        config->train.seq_len = config->model.n_positions;
    config_derive_run_folder(config);
    enum status status = faults_take(&faults, derive_batches(config, world));
    if (status == STATUS_OK)
        status = rules_check_rest(config, NULL, &faults);
    return faults_end(&faults, status, NULL);
}

enum status config_check_backend(const struct config *config, bool on_gpu) {
    if (on_gpu || config->comm.backend != CONFIG_COMM_BACKEND_NCCL)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: comm.backend is nccl, which is for GPUs, but the device is the CPU; leave comm.backend "
                "out, or set device=cuda",
                config->source);
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
