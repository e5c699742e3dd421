// Checks that all ranks have the same config, and that a resumed run's config agrees with the config of its
// checkpoint.
#include "options/resume.h"

#include <string.h>

#include "base/dtype.h"
#include "base/text.h"
#include "options/option.h"
#include "options/unused.h"

// ---- several ranks

enum status config_check_same(const struct config *mine, const struct config *of_rank_0) {
    struct text here = {0}, there = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < n_options && status == STATUS_OK; i++) {
        here.length = there.length = 0;
        option_print(&options[i], mine, &here);
        option_print(&options[i], of_rank_0, &there);
        if (strcmp(here.data, there.data) != 0 && &options[i] != option_find("run.threads"))
            status = FAIL(STATUS_INVALID,
                          "%s: %s is %s, but %s on rank 0; start every rank with the same configuration",
                          mine->source, option_full_name(&options[i]), here.data, there.data);
    }
    text_free(&here);
    text_free(&there);
    return status;
}

// ---- resuming

// Whether one of the two values is 0, which stands for a default of the model's family. Checkpoints record
// the resolved sizes; checkpoint_check_model compares those with the model's.
static bool is_open_size(const struct option *option, const struct config *before, const struct config *now) {
    return strncmp(option->section, "model", 5) == 0 &&
           (option->type == OPTION_INTEGER || option->type == OPTION_NUMBER) &&
           strcmp(option->initial, "0") == 0 &&
           (option_is_default(option, before) || option_is_default(option, now));
}

// Whether two values mean the same: "auto" equals the value that the checkpoint's run decided, because a
// resumed run keeps that decision.
static bool means_the_same(const struct option *option, const struct config *before,
                           const struct config_decided *decided, const struct config *now) {
    enum dtype named;
    if (option == option_find("precision.compute"))
        return !config_compute_type(now, &named) || named == decided->compute;
    if (option == option_find("attention"))
        return now->top.attention == CONFIG_ATTENTION_AUTO || decided->attention == CONFIG_ATTENTION_AUTO ||
               now->top.attention == decided->attention;
    if (option == option_find("train.logical_ranks"))
        return now->train.logical_ranks == 0 || now->train.logical_ranks == decided->logical_ranks;
    if (option == option_find("fp16.loss_scaling"))
        return config_scales_losses(before) == config_scales_losses(now);
    return is_open_size(option, before, now) || unused_on_resume(option, before) ||
           unused_on_resume(option, now);
}

// Whether checkpoint.resume_with lists the option.
static bool resumes_with(const struct config *config, const char *option) {
    return text_has_word(config->checkpoint.resume_with, option, strlen(option));
}

// The refused changes of a resumed run's config.
struct refused {
    struct text list;     // one line per change
    struct text nameable; // options that checkpoint.resume_with could allow, separated by commas
    struct text named;    // options that it already allows, separated by commas
};

static void add_name(struct text *names, const struct option *option) {
    text_add(names, "%s%s", names->length ? "," : "", option_full_name(option));
}

static void refuse_change(struct refused *refused, const struct option *option, const char *was,
                          const char *resolved, const char *is) {
    text_add(&refused->list, "\n  %s was %s%s%s%s and is now %s%s", option_full_name(option), was,
             resolved ? ", resolved to \"" : "", resolved ? resolved : "", resolved ? "\"," : "", is,
             option->resume == RAISE   ? " (it may only grow)"
             : option->resume == FIXED ? " (it never changes in a run)"
                                       : "");
    if (option->resume != FIXED)
        add_name(&refused->nameable, option);
}

static enum status refuse_resume(const struct config *now, const struct refused *refused) {
    struct text ways = {0};
    if (refused->nameable.length)
        text_add(&ways, "; or change %s on purpose with checkpoint.resume_with=\"%s%s%s\"",
                 refused->nameable.data, refused->named.length ? refused->named.data : "",
                 refused->named.length ? "," : "", refused->nameable.data);
    enum status status =
        FAIL(STATUS_INVALID,
             "%s: these options must not change when a run is resumed:%s\n  restore them%s; or start a "
             "new run from its weights with model.init_from=%s and another run.dir",
             now->source, refused->list.data, ways.data ? ways.data : "", now->run.dir);
    text_free(&ways);
    return status;
}

static bool has_grown(const struct option *option, const struct config *before, const struct config *now) {
    if (option == option_find("scheduler.decay_steps")) // 0 stands for train.max_steps
        return config_decay_steps(now) >= config_decay_steps(before);
    return option->resume == RAISE &&
           *(int64_t *)option_value(option, now) > *(int64_t *)option_value(option, before);
}

// The word that "auto" resolved to; NULL for options that were not "auto".
static const char *decided_word(const struct option *option, const struct config *before,
                                const struct config_decided *decided) {
    if (option == option_find("precision.compute") && before->precision.compute == CONFIG_COMPUTE_AUTO)
        return dtype_name(decided->compute);
    if (option == option_find("attention") && before->top.attention == CONFIG_ATTENTION_AUTO)
        return config_attention_name(decided->attention);
    return NULL;
}

static enum status check_options(const struct config *before, const struct config_decided *decided,
                                 const struct config *now, struct refused *refused, config_changed *changed,
                                 void *context) {
    struct text was = {0}, is = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < n_options && status == STATUS_OK; i++) {
        const struct option *option = &options[i];
        was.length = is.length = 0;
        option_print(option, before, &was);
        option_print(option, now, &is);
        if (option->resume == FREE || strcmp(was.data, is.data) == 0 ||
            means_the_same(option, before, decided, now) || has_grown(option, before, now))
            continue;
        if (option->resume != FIXED && resumes_with(now, option_full_name(option))) {
            add_name(&refused->named, option);
            status = changed ? changed(context, option_full_name(option), was.data, is.data) : STATUS_OK;
        } else
            refuse_change(refused, option, was.data, decided_word(option, before, decided), is.data);
    }
    text_free(&was);
    text_free(&is);
    return status;
}

enum status config_check_resume(const struct config *before, const struct config_decided *decided,
                                const struct config *now, config_changed *changed, void *context) {
    struct refused refused = {0};
    enum status status = check_options(before, decided, now, &refused, changed, context);
    if (status == STATUS_OK && refused.list.length)
        status = refuse_resume(now, &refused);
    text_free(&refused.list);
    text_free(&refused.nameable);
    text_free(&refused.named);
    return status;
}
