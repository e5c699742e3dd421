// The translation of a DeepSpeed file: first the keys that depend on others (batch, precision, ZeRO,
// offload), then every key that is left, by the rows of foreign.def and by our own names.
#include "configs/deepspeed.h"

#include <stdlib.h>
#include <string.h>

#include "configs/deepspeed_optimizer.h"
#include "configs/deepspeed_translate.h"
#include "configs/foreign.h"
#include "configs/option.h"

// ---- batch

// Of three given sizes the accumulation is left out: the other two give it at any number of ranks.
static void take_batch(struct translator *t) {
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"},
                             *const ours[] = {"train.train_batch_size", "train.micro_batch_size",
                                              "train.gradient_accumulation_steps"},
                             *const arguments[] = {"", "per_device_train_batch_size",
                                                   "gradient_accumulation_steps"};
    static const double automatic[] = {0, 8, 1};
    const cJSON *values[3];
    int n_given = 0;
    for (int i = 0; i < 3; i++) {
        values[i] = deepspeed_take(t, paths[i]);
        if (cJSON_IsNull(values[i])) {
            deepspeed_answer(t, &t->out->off, paths[i], values[i], "not set");
            values[i] = NULL;
        }
        n_given += values[i] && !deepspeed_is_auto(values[i]);
    }
    const bool whole = values[0] && !deepspeed_is_auto(values[0]);
    for (int i = 0; i < 3; i++) {
        char why[160];
        snprintf(why, sizeof why, "the Trainer's %s; its default is written: set yours", arguments[i]);
        if (!values[i])
            continue;
        if (deepspeed_is_auto(values[i]) ? i == 0 || whole : n_given == 3 && i == 2)
            deepspeed_answer(t, &t->out->translated, paths[i], values[i],
                             "derived from the others and the number of ranks");
        else if (!deepspeed_is_auto(values[i]))
            deepspeed_set(t, &t->out->translated, paths[i], values[i], ours[i], values[i], "");
        else
            deepspeed_set_number(t, &t->out->chosen, paths[i], values[i], ours[i], automatic[i], why);
    }
}

// ---- precision

// "enabled" of a section: its value, where it is there.
static const cJSON *take_enabled(struct translator *t, const char *section) {
    char path[64];
    snprintf(path, sizeof path, "%s.enabled", section);
    return deepspeed_take(t, path);
}

// Drops a section that is switched off.
static void take_disabled(struct translator *t, const char *section) {
    const cJSON *value = deepspeed_take(t, section);
    if (value)
        deepspeed_answer(t, &t->out->off, section, value, "off");
}

static void take_precision(struct translator *t) {
    static const char *const sections[] = {"bf16", "bfloat16", "fp16", "torch_autocast", "amp"};
    enum { BF16, BFLOAT16, FP16, AUTOCAST, AMP, N };
    const cJSON *enabled[N], *dtype = deepspeed_take(t, "torch_autocast.dtype");
    if (dtype)
        deepspeed_answer(t, &t->out->translated, "torch_autocast.dtype", dtype,
                         "the type, if torch_autocast is on");
    const bool half = cJSON_IsString(dtype) && strstr(dtype->valuestring, "float16") &&
                      !strstr(dtype->valuestring, "bfloat16");
    const char *const words[] = {"bf16", "bf16", "fp16", half ? "fp16" : "bf16", "fp16"};
    bool chosen = false, automatic = false;
    for (int i = 0; i < N; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s.enabled", sections[i]);
        enabled[i] = take_enabled(t, sections[i]);
        if (cJSON_IsTrue(enabled[i])) {
            deepspeed_set_word(t, i >= AUTOCAST ? &t->out->alters : &t->out->translated, path, enabled[i],
                               "precision.compute", words[i],
                               i >= AUTOCAST ? "parameters have this type too, with fp32 master weights"
                                             : "");
            chosen = true;
            const cJSON *others = i >= AUTOCAST ? deepspeed_take(t, sections[i]) : NULL;
            if (others && others->child)
                deepspeed_answer(t, &t->out->alters, sections[i], others,
                                 "its other members have no equivalent here");
        } else if (deepspeed_is_auto(enabled[i])) {
            deepspeed_answer(
                t, &t->out->chosen, path, enabled[i],
                "the Trainer's --%s: set precision.compute (bf16, fp16 or fp32); until then it is the "
                "faster of fp32 and bf16",
                sections[i]);
            automatic = true;
        } else if (enabled[i] && !cJSON_IsFalse(enabled[i]) && !cJSON_IsNull(enabled[i]))
            deepspeed_answer(t, &t->out->alters, path, enabled[i], "neither true nor false: taken for false");
    }
    if (!chosen && !automatic)
        deepspeed_set_word(t, &t->out->translated, "fp16.enabled, bf16.enabled", NULL, "precision.compute",
                           "fp32", "neither is on");
    for (int i = 0; i < N; i++)
        if (!cJSON_IsTrue(enabled[i]) && !deepspeed_is_auto(enabled[i]))
            take_disabled(t, sections[i]);
}

static void take_communication_type(struct translator *t) {
    const cJSON *value = deepspeed_take(t, "communication_data_type");
    const char *word = cJSON_GetStringValue(value);
    if (!value || cJSON_IsNull(value))
        return;
    if (word && (strcmp(word, "bfp16") == 0 || strcmp(word, "bfloat16") == 0))
        word = "bf16";
    deepspeed_set_word(t, &t->out->translated, "communication_data_type", value, "communication_data_type",
                       word ? word : "null", "");
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
            t, &t->out->needless, path, device, path, "cpu",
            "there is no offload to NVMe: host memory must hold it; ./train plan shows how much");
        return true;
    } else if (device)
        deepspeed_set(t, &t->out->translated, path, device, path, device, "");
    return device ? word && strcmp(word, "cpu") == 0 : on;
}

static void take_offload(struct translator *t) {
    const char *optimizer = "zero_optimization.offload_optimizer.device",
               *param = "zero_optimization.offload_param.device",
               *ratio_path = "zero_optimization.offload_optimizer.ratio",
               *super = "zero_optimization.offload_optimizer.super_offload";
    const bool whole = t->out->config.zero_optimization.stage == 3;
    bool host = take_offload_device(t, "offload_optimizer", "zero_optimization.cpu_offload", NULL);
    const cJSON *ratio = deepspeed_take(t, ratio_path), *speculative = deepspeed_take(t, super);
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
    if (cJSON_IsTrue(speculative) && host)
        deepspeed_set_word(t, &t->out->translated, super, speculative,
                           "zero_optimization.offload_optimizer.speculative", "true", "");
    else if (speculative)
        deepspeed_answer(t, &t->out->off, super, speculative, "off");
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

static bool has_rows_of_members(const char *section) {
    const size_t length = strlen(section);
    for (int i = 0; i < n_foreigns; i++)
        for (const char *name = foreigns[i].names; foreign_is_deepspeed(&foreigns[i]) && name;
             name = strchr(name, ' ') ? strchr(name, ' ') + 1 : NULL)
            if (strncmp(name, section, length) == 0 && name[length] == '.')
                return true;
    return false;
}

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
        foreign_add_advice(row, &advice);
        deepspeed_check(t, !advice.failed);
        deepspeed_answer(
            t, section_exists(ours, strlen(ours)) ? &t->out->alters : &t->out->needless, path, value, "%s",
            section_exists(ours, strlen(ours)) ? "there is no such parameter here" : advice.data);
    } else
        deepspeed_set(t, &t->out->translated, path, value, ours, value, "");
    text_free(&advice);
}

// Answers for a key, or for the members of a section. cJSON limits the nesting.
static void answer(struct translator *t, const char *path, const cJSON *value) {
    const struct foreign *row = foreign_find_deepspeed(path);
    if (cJSON_IsObject(value) && (section_exists(path, strlen(path)) || has_rows_of_members(path))) {
        const cJSON *item;
        cJSON_ArrayForEach(item, value) {
            char *member = file_path("%s.%s", path, item->string);
            deepspeed_check(t, member != NULL);
            if (t->status == STATUS_OK)
                answer(t, member, item);
            free(member);
        }
    } else if (cJSON_IsNull(value)) {
        deepspeed_answer(t, &t->out->off, path, value, "not set");
    } else if (option_find(path) && deepspeed_is_auto(value)) {
        struct text now = {0};
        option_print(option_find(path), &t->out->config, &now);
        deepspeed_check(t, !now.failed);
        if (t->status == STATUS_OK)
            deepspeed_answer(t, &t->out->needless, path, value,
                             "sized by the hidden size there; here the default, %s, is good for any",
                             now.data);
        text_free(&now);
    } else if (option_find(path))
        deepspeed_set(t, &t->out->translated, path, value, path, value, "");
    else if (!row)
        deepspeed_answer(t, &t->out->unknown, path, value, "DeepSpeed's documentation has no such option");
    else if (deepspeed_is_auto(value))
        deepspeed_answer(t, &t->out->needless, path, value, "%s", row->note);
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
// none.
static void check_rules(struct translator *t, const char *source) {
    enum status status = t->status == STATUS_OK ? config_resolve(&t->out->config, 1) : t->status;
    if (status == STATUS_INVALID) {
        deepspeed_answer(t, &t->out->chosen, source, t->rest, "./train check refuses the translation: %s",
                         status_message());
        status_clear();
    } else
        t->status = status;
}

enum status deepspeed_translate(const cJSON *root, const char *source, struct deepspeed_translation *out) {
    *out = (struct deepspeed_translation){0};
    if (!cJSON_IsObject(root))
        return FAIL(STATUS_INVALID,
                    "%s holds no object, expected a DeepSpeed configuration, such as "
                    "{\"zero_optimization\": {\"stage\": 2}}",
                    source);
    TRY(config_parse(&out->config, "{}", 2, source));
    int n_known = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, root) n_known += foreign_find_deepspeed(item->string) != NULL ||
                                              has_rows_of_members(item->string) || option_find(item->string);
    if (n_known == 0)
        return FAIL(STATUS_INVALID,
                    "%s: no key of it is DeepSpeed's, expected a DeepSpeed configuration, such as "
                    "{\"zero_optimization\": {\"stage\": 2}}",
                    source);
    struct translator t = {.out = out, .rest = cJSON_Duplicate(root, true), .taken = cJSON_CreateArray()};
    deepspeed_check(&t, t.rest && t.taken);
    t.has_auto = has_auto(root);
    if (t.status == STATUS_OK) {
        take_batch(&t);
        deepspeed_take_number(&t, &(struct deepspeed_number){"gradient_clipping", "train.gradient_clipping",
                                                             0, "max_grad_norm", 1});
        deepspeed_take_optimizer(&t);
        deepspeed_take_scheduler(&t);
        take_precision(&t);
        take_communication_type(&t);
        take_stage(&t);
        take_offload(&t);
        take_activation_checkpointing(&t);
    }
    cJSON_ArrayForEach(item, t.rest) if (t.status == STATUS_OK) answer(&t, item->string, item);
    check_rules(&t, source);
    cJSON_Delete(t.rest);
    cJSON_Delete(t.taken);
    return t.status;
}

void deepspeed_free(struct deepspeed_translation *translation) {
    struct deepspeed_answers *const all[] = {&translation->translated, &translation->alters,
                                             &translation->chosen,     &translation->needless,
                                             &translation->unknown,    &translation->off};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        text_free(&all[i]->lines);
    config_free(&translation->config);
}
