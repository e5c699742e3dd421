// The translation of a DeepSpeed file: first the keys that depend on others (batch, optimizer, precision,
// ZeRO, offload), then every key that is left, by the rows of foreign.def and by our own names.
#include "configs/deepspeed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "configs/deepspeed_names.h"
#include "configs/deepspeed_optimizer.h"
#include "configs/deepspeed_precision.h"
#include "configs/deepspeed_translate.h"
#include "configs/foreign.h"
#include "configs/option.h"

// ---- batch

enum { BATCH, MICRO, ACCUMULATION, N_SIZES };
static const struct {
    const char *path, *ours;
    const char *argument; // the Trainer's that "auto" stands for
    double automatic;     // its default
} batch_sizes[N_SIZES] = {
    [BATCH] = {"train_batch_size", "train.train_batch_size", "", 0},
    [MICRO] = {"train_micro_batch_size_per_gpu", "train.micro_batch_size", "per_device_train_batch_size", 8},
    [ACCUMULATION] = {"gradient_accumulation_steps", "train.gradient_accumulation_steps",
                      "gradient_accumulation_steps", 1},
};

// A batch size that is given and valid, else 0.
static double read_size(int i, const cJSON *value) {
    const bool valid = cJSON_IsNumber(value) && value->valuedouble >= 1 &&
                       value->valuedouble <= option_find(batch_sizes[i].ours)->maximum &&
                       value->valuedouble == floor(value->valuedouble);
    return valid ? value->valuedouble : 0;
}

// Whether train_batch_size = micro-batch x accumulation x ranks holds at some number of ranks.
static bool check_batch(struct translator *t, const double *sizes) {
    struct text product = {0};
    double each = 1;
    for (int i = MICRO; i < N_SIZES; i++)
        if (sizes[i] > 0) {
            text_add(&product, "%s%s %.0f", product.length ? " x " : "", batch_sizes[i].path, sizes[i]);
            each *= sizes[i];
        }
    const bool fits = sizes[BATCH] == 0 || fmod(sizes[BATCH], each) == 0;
    deepspeed_check(t, !product.failed);
    if (!fits && t->status == STATUS_OK)
        deepspeed_refuse(
            t,
            "%s %.0f is no multiple of %s, so these contradict each other at any number of ranks; "
            "change one of them",
            batch_sizes[BATCH].path, sizes[BATCH], product.data);
    text_free(&product);
    return fits;
}

// Of three given sizes the accumulation is left out: the other two give it at any number of ranks.
static void answer_accumulation(struct translator *t, const cJSON *value, const double *sizes) {
    const double ranks = sizes[BATCH] / sizes[MICRO] / sizes[ACCUMULATION];
    deepspeed_answer(t, &t->out->translated, batch_sizes[ACCUMULATION].path, value,
                     "derived from the others and the number of ranks: %.0f on %.0f rank%s",
                     sizes[ACCUMULATION], ranks, ranks == 1 ? "" : "s");
}

static void answer_size(struct translator *t, int i, const cJSON *value, bool whole) {
    char why[160];
    snprintf(why, sizeof why, "the Trainer's %s; its default is written: set yours", batch_sizes[i].argument);
    if (cJSON_IsNumber(value) && value->valuedouble == 0) // which would mean "derive it" here
        deepspeed_answer(t, &t->out->alters, batch_sizes[i].path, value,
                         "left out: DeepSpeed expects at least 1; %s is derived from the others",
                         batch_sizes[i].ours);
    else if (!deepspeed_is_auto(value))
        deepspeed_set(t, &t->out->translated, batch_sizes[i].path, value, batch_sizes[i].ours, value, "");
    else if (i == BATCH || whole)
        deepspeed_answer(t, &t->out->translated, batch_sizes[i].path, value,
                         "derived from the others and the number of ranks");
    else
        deepspeed_set_number(t, &t->out->chosen, batch_sizes[i].path, value, batch_sizes[i].ours,
                             batch_sizes[i].automatic, why);
}

static void take_batch(struct translator *t) {
    const cJSON *values[N_SIZES];
    double sizes[N_SIZES];
    for (int i = 0; i < N_SIZES; i++) {
        values[i] = deepspeed_take(t, batch_sizes[i].path);
        sizes[i] = read_size(i, values[i]);
        if (cJSON_IsNull(values[i]))
            deepspeed_answer(t, &t->out->off, batch_sizes[i].path, values[i], "not set");
    }
    if (!check_batch(t, sizes))
        return;
    for (int i = 0; i < N_SIZES; i++)
        if (i == ACCUMULATION && sizes[BATCH] > 0 && sizes[MICRO] > 0 && sizes[ACCUMULATION] > 0)
            answer_accumulation(t, values[i], sizes);
        else if (values[i] && !cJSON_IsNull(values[i]))
            answer_size(t, i, values[i], sizes[BATCH] > 0);
}

// DeepSpeed's default depends on its version.
static void take_clipping(struct translator *t) {
    const char *path = "gradient_clipping", *ours = "train.gradient_clipping";
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(t->rest, path);
    if (value && !cJSON_IsNull(value))
        deepspeed_take_number(t, &(struct deepspeed_number){path, ours, 0, "max_grad_norm", 1});
    else
        deepspeed_set_number(t, &t->out->chosen, path, deepspeed_take(t, path), ours, 0,
                             "DeepSpeed's default before 0.19.8; it is 1.0 since");
}

// ---- ZeRO

// "zero_optimization": true is the oldest form, and means stage 1.
static void take_stage(struct translator *t) {
    const cJSON *zero = cJSON_GetObjectItemCaseSensitive(t->rest, "zero_optimization");
    if (cJSON_IsBool(zero)) {
        zero = deepspeed_take(t, "zero_optimization");
        deepspeed_set_number(t, &t->out->translated, "zero_optimization", zero, "zero_optimization.stage",
                             cJSON_IsTrue(zero), "");
    }
    const cJSON *stage = deepspeed_take(t, "zero_optimization.stage");
    if (stage)
        deepspeed_set(t, &t->out->translated, "zero_optimization.stage", stage, "zero_optimization.stage",
                      stage, "");
}

// The device of offload_optimizer or offload_param, also in an old form (older_form may be
// NULL); returns whether it is the host.
static bool take_offload_device(struct translator *t, const char *section, const char *old_form,
                                const char *older_form) {
    char path[96];
    const cJSON *old = deepspeed_take(t, old_form),
                *older = older_form ? deepspeed_take(t, older_form) : NULL;
    snprintf(path, sizeof path, "zero_optimization.%s.device", section);
    const cJSON *device = deepspeed_take(t, path);
    const char *word = cJSON_GetStringValue(device);
    const bool on = cJSON_IsTrue(old) || cJSON_IsTrue(older);
    if (old)
        deepspeed_answer(t, on ? &t->out->translated : &t->out->off, old_form, old, "the old form of %s",
                         path);
    if (older)
        deepspeed_answer(t, on ? &t->out->translated : &t->out->off, older_form, older, "the old form of %s",
                         path);
    if (!device && on)
        deepspeed_set_word(t, &t->out->translated, path, NULL, path, "cpu", "by its old form");
    else if (word && strcmp(word, "nvme") == 0) {
        deepspeed_set_word(
            t, &t->out->replaced, path, device, path, "cpu",
            "there is no offload to NVMe: host memory must hold it; ./train plan shows how much");
        return true;
    } else if (device)
        deepspeed_set(t, &t->out->translated, path, device, path, device, "");
    return device ? word && strcmp(word, "cpu") == 0 : on;
}

static void take_offload(struct translator *t) {
    const char *optimizer = "zero_optimization.offload_optimizer.device",
               *param = "zero_optimization.offload_param.device",
               *ratio_path = "zero_optimization.offload_optimizer.ratio";
    const bool whole = t->out->config.zero_optimization.stage == 3;
    bool host = take_offload_device(t, "offload_optimizer", "zero_optimization.cpu_offload", NULL);
    const cJSON *ratio = deepspeed_take(t, ratio_path);
    bool params = false;
    if (whole)
        params = take_offload_device(t, "offload_param", "zero_optimization.cpu_offload_param",
                                     "zero_optimization.cpu_offload_params");
    else {
        const cJSON *useless = deepspeed_take(t, "zero_optimization.offload_param");
        if (useless)
            deepspeed_answer(t, &t->out->needless, "zero_optimization.offload_param", useless,
                             "it is valid only with stage 3, as in DeepSpeed");
    }
    if (params && !host) {
        deepspeed_set_word(t, &t->out->translated, param, NULL, optimizer, "cpu",
                           "parameters on the host need it: the host updates them");
        host = true;
    }
    if (ratio && params)
        deepspeed_answer(t, &t->out->needless, ratio_path, ratio,
                         "with parameters on the host, the host updates all of them");
    else if (ratio && host)
        deepspeed_set(t, &t->out->translated, ratio_path, ratio, ratio_path, ratio, "");
    else if (ratio)
        deepspeed_answer(t, &t->out->off, ratio_path, ratio, "off");
}

static void take_activation_checkpointing(struct translator *t) {
    const char *path = "activation_checkpointing.cpu_checkpointing";
    const cJSON *value = deepspeed_take(t, path);
    if (cJSON_IsTrue(value)) {
        deepspeed_set_word(t, &t->out->translated, path, value, "recompute", "block", "");
        deepspeed_set_word(t, &t->out->translated, path, value, "offload_activations", "cpu", "");
    } else if (cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(t->rest, "activation_checkpointing")))
        deepspeed_answer(
            t, &t->out->chosen, "activation_checkpointing", NULL,
            "the model's code switches it on there: set recompute=block or attention for less memory; "
            "same bits");
}

// ---- the rest

static void answer_row(struct translator *t, const char *path, const cJSON *value,
                       const struct foreign *row) {
    struct text advice = {0};
    char ours[128];
    const char *word = row->ours ? strchr(row->ours, '=') : NULL;
    snprintf(ours, sizeof ours, "%.*s", row->ours ? (int)strcspn(row->ours, "=") : 0,
             row->ours ? row->ours : "");
    if (row->kind == FOREIGN_ALTERS)
        deepspeed_answer(t, deepspeed_is_on(value) ? &t->out->alters : &t->out->off, path, value, "%s",
                         row->note);
    else if (row->kind == FOREIGN_NONE)
        deepspeed_answer(t,
                         cJSON_IsObject(value) && !deepspeed_is_on(value) ? &t->out->off : &t->out->needless,
                         path, value, "%s", row->note);
    else if (word && !deepspeed_is_on(value))
        deepspeed_answer(t, &t->out->off, path, value, "off");
    else if (word)
        deepspeed_set_word(t, &t->out->translated, path, value, ours, word + 1, "");
    else if (*row->note) { // not the same thing
        foreign_add_advice(row, false, &advice);
        deepspeed_check(t, !advice.failed);
        deepspeed_answer(
            t, section_exists(ours, strlen(ours)) ? &t->out->alters : &t->out->needless, path, value, "%s",
            section_exists(ours, strlen(ours)) ? "there is no such parameter here" : advice.data);
    } else
        deepspeed_set(t, &t->out->translated, path, value, ours, value, "");
    text_free(&advice);
}

// Sizes that the Trainer derives from the model's hidden size.
static bool is_sized_by_trainer(const char *path) {
    static const char *const names[] = {"zero_optimization.reduce_bucket_size",
                                        "zero_optimization.stage3_prefetch_bucket_size",
                                        "zero_optimization.stage3_param_persistence_threshold"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(path, names[i]) == 0)
            return true;
    return false;
}

// Answers for "auto" where the translation does not read the key itself.
//   row    the key's row, or NULL
//   same   our option of the same name, or NULL
static void answer_auto(struct translator *t, const char *path, const cJSON *value, const struct foreign *row,
                        const struct option *same) {
    struct text now = {0};
    char ours[128];
    snprintf(ours, sizeof ours, "%.*s", row && row->ours ? (int)strcspn(row->ours, "=") : 0,
             row && row->ours ? row->ours : "");
    const struct option *option = same ? same : option_find(ours);
    if (option)
        option_print(option, &t->out->config, &now);
    deepspeed_check(t, !now.failed);
    if (t->status != STATUS_OK)
        ; // the caller ends the translation
    else if (same && is_sized_by_trainer(path))
        deepspeed_answer(t, &t->out->needless, path, value,
                         "sized by the hidden size there; here the default, %s, is good for any", now.data);
    else if (option)
        deepspeed_answer(t, &t->out->chosen, path, value,
                         "neither DeepSpeed nor the Trainer fills it in; here %s=%s applies",
                         option_full_name(option), now.data);
    else
        deepspeed_answer(t, &t->out->needless, path, value, "%s", row->note);
    text_free(&now);
}

static void answer_unknown(struct translator *t, const char *path, const cJSON *value) {
    struct text nearest = {0};
    deepspeed_add_nearest(path, &nearest);
    deepspeed_check(t, !nearest.failed);
    if (t->status == STATUS_OK)
        deepspeed_answer(t, &t->out->unknown, path, value, "DeepSpeed's documentation has no such option%s",
                         nearest.length ? nearest.data : "");
    text_free(&nearest);
}

// Answers for a key, or for the members of a section. cJSON limits the nesting.
static void answer(struct translator *t, const char *path, const cJSON *value) {
    const struct foreign *row = foreign_find_deepspeed(path);
    const struct option *same = deepspeed_same_option(path);
    if (cJSON_IsObject(value) && (section_exists(path, strlen(path)) || deepspeed_is_section(path))) {
        const cJSON *item;
        cJSON_ArrayForEach(item, value) {
            char *member = file_path("%s.%s", path, item->string);
            deepspeed_check(t, member != NULL);
            if (t->status == STATUS_OK)
                answer(t, member, item);
            free(member);
        }
    } else if ((!row && !same) || (!same && deepspeed_is_misspelled(path))) {
        answer_unknown(t, path, value);
    } else if (cJSON_IsNull(value)) {
        deepspeed_answer(t, &t->out->off, path, value, "not set");
    } else if (deepspeed_is_auto(value) && (same || row->kind != FOREIGN_ALTERS)) {
        answer_auto(t, path, value, row, same);
    } else if (same)
        deepspeed_set(t, &t->out->translated, path, value, path, value, "");
    else
        answer_row(t, path, value, row);
}

static bool has_auto(const cJSON *node) {
    bool found = deepspeed_is_auto(node);
    const cJSON *item;
    cJSON_ArrayForEach(item, node) found = found || has_auto(item);
    return found;
}

// The rules between options, for one rank. The printed options are the given ones, so deriving others changes
// none. The message begins with the file's path.
static void check_rules(struct translator *t) {
    enum status status = t->status == STATUS_OK ? config_resolve(&t->out->config, 1) : t->status;
    if (status == STATUS_INVALID) {
        const char *message = status_message(), *rule = strstr(message, t->source);
        deepspeed_answer(t, &t->out->alters, t->source, t->rest,
                         "./train refuses the translation; change it: %s",
                         rule == message ? message + strlen(t->source) + 2 : message);
        status_clear();
    } else
        t->status = status;
}

static enum status check_kind(const cJSON *root, const char *source) {
    if (!cJSON_IsObject(root))
        return FAIL(STATUS_INVALID,
                    "%s holds no object, expected a DeepSpeed configuration, such as "
                    "{\"zero_optimization\": {\"stage\": 2}}",
                    source);
    if (deepspeed_is_ours(root))
        return FAIL(STATUS_INVALID, "%s is a zero.c configuration already; ./train %s runs it", source,
                    source);
    const cJSON *item;
    cJSON_ArrayForEach(item, root) if (foreign_find_deepspeed(item->string) ||
                                       deepspeed_is_section(item->string) ||
                                       deepspeed_same_option(item->string)) return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: no key of it is DeepSpeed's, expected a DeepSpeed configuration, such as "
                "{\"zero_optimization\": {\"stage\": 2}}",
                source);
}

enum status deepspeed_translate(const cJSON *root, const char *source, struct deepspeed_translation *out) {
    *out = (struct deepspeed_translation){0};
    TRY(check_kind(root, source));
    TRY(config_parse(&out->config, "{}", 2, source));
    struct translator t = {.out = out,
                           .source = source,
                           .rest = cJSON_Duplicate(root, true),
                           .taken = cJSON_CreateArray(),
                           .has_auto = has_auto(root),
                           .faults = faults_begin()};
    const cJSON *item;
    deepspeed_check(&t, t.rest && t.taken);
    if (t.status == STATUS_OK) {
        take_batch(&t);
        take_clipping(&t);
        deepspeed_take_optimizer(&t);
        deepspeed_take_scheduler(&t);
        deepspeed_take_precision(&t);
        take_stage(&t);
        take_offload(&t);
        take_activation_checkpointing(&t);
    }
    cJSON_ArrayForEach(item, t.rest) if (t.status == STATUS_OK) answer(&t, item->string, item);
    check_rules(&t);
    cJSON_Delete(t.rest);
    cJSON_Delete(t.taken);
    return faults_end(&t.faults, t.status, NULL);
}

void deepspeed_free(struct deepspeed_translation *translation) {
    struct deepspeed_answers *const all[] = {
        &translation->translated, &translation->replaced, &translation->alters, &translation->chosen,
        &translation->needless,   &translation->unknown,  &translation->off};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        text_free(&all[i]->lines);
    config_free(&translation->config);
}
