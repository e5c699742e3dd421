// See the header.
#include "options/batches.h"

#include "options/option.h"

// ---- messages

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

// given: the value of `name`, the one factor that is set; 0 when neither factor is.
static enum status batch_does_not_divide(const struct config *config, int world, const char *name,
                                         int64_t given) {
    const bool scheduled = config->train.batch_size_schedule.n > 0;
    struct text product = {0};
    if (scheduled && config->train.gradient_accumulation_steps > 0)
        return schedule_fixes_accumulation(config);
    text_add(&product, "%d rank%s", world, world == 1 ? "" : "s");
    if (given)
        text_add(&product, " x %s %lld", name, (long long)given);
    enum status status = text_status(&product);
    if (status == STATUS_OK)
        status = FAIL(STATUS_INVALID, "%s: train.%s %lld does not divide by %s; choose a multiple of %lld",
                      config->source,
                      config->batch_is_auto ? "min_batch_size"
                      : scheduled && !option_given("train.train_batch_size", config)
                          ? "batch_size_schedule's first batch size"
                          : "train_batch_size",
                      (long long)config->train.train_batch_size, product.data,
                      (long long)(given ? given * world : world));
    text_free(&product);
    return status;
}

// ---- sizes

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
    if (config->batch_is_auto && world == 1)
        divisor = greatest_common_divisor(divisor, divisor / 2);
    return divisor / world;
}

static enum status check_batch_schedule(const struct config *config, int world) {
    const struct config_stages *schedule = &config->train.batch_size_schedule;
    const int64_t unit = config->train.micro_batch_size * world, batch = config->train.train_batch_size;
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
        return FAIL(STATUS_INVALID,
                    "%s: train.batch_size_schedule has the batch size %lld, which does not divide by %d "
                    "rank%s x train.micro_batch_size %lld; choose a multiple of %lld",
                    config->source, (long long)schedule->stages[i].value, world, world == 1 ? "" : "s",
                    (long long)config->train.micro_batch_size, (long long)unit);
    }
    return STATUS_OK;
}

// ---- train_batch_size = auto

#define AUTO_NOISE_SCALE_EVERY 10

static enum status auto_needs(const struct config *config, const char *why, const char *what) {
    return FAIL(STATUS_INVALID, "%s: train.train_batch_size is \"auto\", %s; set %s", config->source, why,
                what);
}

// From here on the config is one with a train_batch_size, which grows. With min_batch_size alone,
// micro-batches are left open; without it, they decide on the batch.
static enum status begin_auto_batch(struct config *config, int world) {
    int64_t *micro = &config->train.micro_batch_size, *least = &config->train.min_batch_size;
    const int64_t accumulation = config->train.gradient_accumulation_steps;
    if (config->train.train_batch_size != CONFIG_AUTO)
        return *least == 0 ? STATUS_OK
                           : FAIL(STATUS_INVALID,
                                  "%s: train.min_batch_size is what train.train_batch_size=auto begins with, "
                                  "but train_batch_size is not auto; leave out one of them",
                                  config->source);
    if (!option_given("train.noise_scale_every", config))
        config->train.noise_scale_every = AUTO_NOISE_SCALE_EVERY;
    if (config->train.max_batch_size == 0)
        return auto_needs(config, "and grows by the gradient noise scale up to train.max_batch_size",
                          "train.max_batch_size");
    if (*micro == CONFIG_AUTO && *least == 0)
        return auto_needs(config, "and so is train.micro_batch_size, so nothing says where the batch begins",
                          "train.min_batch_size, or train.micro_batch_size to a number");
    if (*least == 0 && *micro == 0)
        *micro = CPU_SEQUENCES;
    config->batch_is_auto = true;
    config->train.train_batch_size = *least ? *least
                                            : *micro *
                                                  (accumulation ? accumulation
                                                   : world == 1 ? 2
                                                                : 1) *
                                                  world;
    *least = 0;
    return STATUS_OK;
}

// The noise scale compares micro-batches with the step.
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

// The same without "auto": some step must have more than one micro-batch.
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

void config_resume_batch(struct config *config, const struct config *before, int world) {
    const int64_t batch = before->train.train_batch_size, unit = config->train.micro_batch_size * world;
    if (!config->batch_is_auto || option_given("train.min_batch_size", config) || batch % unit != 0 ||
        batch <= config->train.micro_batch_size)
        return;
    config->train.train_batch_size = batch;
    config->train.gradient_accumulation_steps = batch / unit;
    config->rank_sequences = divisor_of_batches(config, world);
}

// ---- deriving

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

enum status batches_derive(struct config *config, int world) {
    TRY(begin_auto_batch(config, world));
    TRY(derive_batch_sizes(config, world));
    TRY(check_derived(config));
    TRY(check_auto_batch(config));
    TRY(check_noise_scale(config));
    TRY(check_batch_schedule(config, world));
    config->rank_sequences = divisor_of_batches(config, world);
    return STATUS_OK;
}
