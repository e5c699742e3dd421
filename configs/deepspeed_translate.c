// What the steps of the translation share: answers, options that are set, keys that are taken.
#include "configs/deepspeed_translate.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "configs/option.h"

// ---- answers

void deepspeed_check(struct translator *t, bool good) {
    if (!good && t->status == STATUS_OK)
        t->status = FAIL(STATUS_FAILED, "out of memory translating a DeepSpeed file");
}

bool deepspeed_is_auto(const cJSON *value) {
    return cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0;
}

bool deepspeed_is_on(const cJSON *value) {
    if (cJSON_IsObject(value)) {
        const cJSON *enabled = cJSON_GetObjectItemCaseSensitive(value, "enabled");
        if (!enabled)
            enabled = cJSON_GetObjectItemCaseSensitive(value, "autotp_size"); // of tensor_parallel
        return enabled ? deepspeed_is_on(enabled) : value->child != NULL;
    }
    if (cJSON_IsNumber(value))
        return value->valuedouble != 0 &&
               fabs(value->valuedouble) != 1; // 1 and -1: sizes that switch a feature off
    if (cJSON_IsString(value))
        return strcmp(value->valuestring, "none") != 0 && strcmp(value->valuestring, "mean") != 0;
    return cJSON_IsTrue(value) || (cJSON_IsArray(value) && value->child);
}

static void add_value(struct text *out, const cJSON *value) {
    enum { LONGEST = 40 };
    char *json = cJSON_IsObject(value) ? NULL : cJSON_PrintUnformatted(value);
    if (json)
        text_add(out, strlen(json) > LONGEST ? " %.*s..." : " %.*s", LONGEST, json);
    cJSON_free(json);
}

static void add_path(struct deepspeed_answers *answers, const char *path, const cJSON *value) {
    text_add(&answers->lines, "  %s", path);
    if (value)
        add_value(&answers->lines, value);
    else
        text_add(&answers->lines, " (not given)");
    answers->n++;
}

void deepspeed_answer(struct translator *t, struct deepspeed_answers *answers, const char *path,
                      const cJSON *value, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    add_path(answers, path, value);
    text_add(&answers->lines, ": %s\n", text);
    deepspeed_check(t, !answers->lines.failed);
}

void deepspeed_refuse(struct translator *t, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (t->status == STATUS_OK)
        t->status = faults_take(&t->faults, FAIL(STATUS_INVALID, "%s: %s", t->source, text));
}

// ---- options

// What applies where a value is left out: a value that another key gave, or the default.
static void add_applying(const struct option *option, const struct config *config, struct text *out) {
    static const char *const derived[][2] = {{"train.train_batch_size", ""},
                                             {"train.micro_batch_size", ", else 4"},
                                             {"train.gradient_accumulation_steps", ", else 1"}};
    const char *name = option_full_name(option);
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++)
        if (strcmp(name, derived[i][0]) == 0) {
            text_add(out, "%s is derived from the other batch sizes%s", name, derived[i][1]);
            return;
        }
    text_add(out, config->given[option - options] ? "%s=" : "the default, %s=", name);
    option_print(option, config, out);
    text_add(out, config->given[option - options] ? " applies" : ", applies");
}

// The answer for a value that config_set refused. Its message is "PATH: OURS is ..., expected ...".
static void answer_refused(struct translator *t, const char *path, const cJSON *value,
                           const struct option *option) {
    struct text applying = {0};
    add_applying(option, &t->out->config, &applying);
    deepspeed_check(t, !applying.failed);
    if (t->status == STATUS_OK)
        deepspeed_answer(t, &t->out->alters, path, value, "left out, because %s; %s",
                         status_message() + strlen(path) + 2, applying.data);
    status_clear();
    text_free(&applying);
}

void deepspeed_set(struct translator *t, struct deepspeed_answers *answers, const char *path,
                   const cJSON *value, const char *ours, const cJSON *ours_value, const char *why) {
    struct config *config = &t->out->config;
    const struct option *option = option_find(ours);
    deepspeed_check(t, ours_value != NULL);
    if (t->status != STATUS_OK)
        return;
    const bool given = config->given[option - options];
    struct config_pair before = {{0}};
    if (option->type == OPTION_PAIR)
        before = *(struct config_pair *)option_value(option, config);
    enum status status = config_set(config, path, ours, ours_value);
    if (status == STATUS_INVALID) {
        config->given[option - options] = given;
        if (option->type == OPTION_PAIR) // its first number may be set already
            *(struct config_pair *)option_value(option, config) = before;
        answer_refused(t, path, value, option);
        return;
    }
    t->status = status;
    add_path(answers, path, value);
    text_add(&answers->lines, " -> %s=", ours);
    option_print(option, config, &answers->lines);
    text_add(&answers->lines, *why ? " (%s)\n" : "\n", why);
    deepspeed_check(t, !answers->lines.failed);
}

void deepspeed_set_word(struct translator *t, struct deepspeed_answers *answers, const char *path,
                        const cJSON *value, const char *ours, const char *word, const char *why) {
    cJSON *ours_value = cJSON_Parse(word);
    if (!ours_value || cJSON_IsNumber(ours_value)) {
        cJSON_Delete(ours_value);
        ours_value = cJSON_CreateString(word);
    }
    deepspeed_set(t, answers, path, value, ours, ours_value, why);
    cJSON_Delete(ours_value);
}

void deepspeed_set_number(struct translator *t, struct deepspeed_answers *answers, const char *path,
                          const cJSON *value, const char *ours, double number, const char *why) {
    cJSON *ours_value = cJSON_CreateNumber(number);
    deepspeed_set(t, answers, path, value, ours, ours_value, why);
    cJSON_Delete(ours_value);
}

// ---- taking keys

const cJSON *deepspeed_take(struct translator *t, const char *path) {
    cJSON *parent = t->rest, *item = NULL;
    for (const char *part = path;; part += strcspn(part, ".") + 1) {
        char name[128];
        const size_t length = strcspn(part, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, part);
        item = cJSON_GetObjectItemCaseSensitive(parent, name);
        if (!item || part[length] == '\0')
            break;
        parent = item;
    }
    if (item)
        deepspeed_check(t, cJSON_AddItemToArray(t->taken, cJSON_DetachItemViaPointer(parent, item)));
    return item;
}

const cJSON *deepspeed_take_number(struct translator *t, const struct deepspeed_number *number) {
    const cJSON *value = deepspeed_take(t, number->path);
    char why[160];
    if (deepspeed_is_auto(value)) {
        const bool known = !isnan(number->automatic);
        snprintf(why, sizeof why, "the Trainer's %s; %s", number->argument,
                 known ? "its default is written: set yours" : "set yours");
        if (known)
            deepspeed_set_number(t, &t->out->chosen, number->path, value, number->ours, number->automatic,
                                 why);
        else
            deepspeed_answer(t, &t->out->chosen, number->path, value, "%s: %s", number->ours, why);
    } else if (value && !cJSON_IsNull(value))
        deepspeed_set(t, &t->out->translated, number->path, value, number->ours, value, "");
    else if (!isnan(number->missing))
        deepspeed_set_number(t, &t->out->translated, number->path, NULL, number->ours, number->missing,
                             "DeepSpeed's default");
    else
        deepspeed_answer(t, &t->out->chosen, number->path, NULL, "set %s", number->ours);
    return value;
}
