// See zero/optimizer/rules/optimizer_groups.h.
#include "zero/optimizer/rules/optimizer_groups.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/params.h"

// Returns a group with the rule and the number of moments of an optimizer. Schedule-free AdamW stores z in
// place of m.
static struct optimizer_group group_of_type(const struct config *config, enum config_optimizer type) {
    static const struct optimizer_group table[] = {
        [CONFIG_OPTIMIZER_ADAMW] = {.rule = OPTIMIZER_ADAMW, .n_moments = 2},
        [CONFIG_OPTIMIZER_ADAM] = {.rule = OPTIMIZER_ADAM, .n_moments = 2},
        [CONFIG_OPTIMIZER_SGD] = {.rule = OPTIMIZER_SGD, .n_moments = 1},
        [CONFIG_OPTIMIZER_LION] = {.rule = OPTIMIZER_LION, .n_moments = 1},
        [CONFIG_OPTIMIZER_SCHEDULEFREE_ADAMW] = {.rule = OPTIMIZER_SCHEDULE_FREE, .n_moments = 2},
        [CONFIG_OPTIMIZER_MUON] = {.rule = OPTIMIZER_MUON, .n_moments = 1},
    };
    struct optimizer_group group = table[type];
    group.lr_scale = 1;
    if (type == CONFIG_OPTIMIZER_SGD && config->optimizer.momentum == 0)
        group.n_moments = 0;
    return group;
}

// ---- the entry of optimizer.groups that a tensor is in

// Prefixes that the names of tensors may have in Hugging Face files.
static const char *const prefixes[] = {"", "transformer.", "model."};

// True if a pattern matches the name of a tensor. A pattern without wildcards may also name a module. It then
// matches the tensors of that module.
static bool matches_name(const char *pattern, const char *name) {
    const size_t n_module = strpbrk(pattern, "*?[\\") ? 0 : strlen(pattern);
    char full[96];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(full, sizeof full, "%s%s", prefixes[i], name);
        if (fnmatch(pattern, full, 0) == 0 ||
            (strncmp(full, pattern, n_module) == 0 && full[n_module] == '.'))
            return true;
    }
    return false;
}

static bool matches_group(const struct config_group *group, const char *name) {
    for (int i = 0; i < group->n_patterns; i++)
        if (matches_name(group->patterns[i], name))
            return true;
    return false;
}

static enum status part_only(const struct config *config, int entry, const char *pattern, const char *part,
                             const struct param *param) {
    return FAIL(
        STATUS_INVALID,
        "%s: optimizer.groups[%d].match: \"%.80s\" matches %s, which is a part of %s; match the whole "
        "tensor",
        config->source, entry, pattern, part, param->name);
}

// Returns the number of parts of a fused tensor that a pattern matches, and prints the name of one to `part`.
static int matched_parts(const struct param *param, const char *pattern, char *part, size_t size) {
    int n = 0;
    for (int k = 0; k < param->n_parts; k++) {
        char name[64];
        params_part_name(param, k, name, sizeof name);
        if (matches_name(pattern, name)) {
            snprintf(part, size, "%s", name);
            n++;
        }
    }
    return n;
}

// Fails for a pattern that matches no tensor. The message depends on what it matches instead: a part of a
// fused tensor, the lm_head of a model that has none of its own, or nothing.
static enum status no_tensor(const struct config *config, const struct params *params, int entry,
                             const char *pattern) {
    const char *names[params->n_params];
    char part[64];
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        names[i] = param->name;
        if (matched_parts(param, pattern, part, sizeof part) > 0)
            return part_only(config, entry, pattern, part, param);
    }
    if (matches_name(pattern, "lm_head.weight"))
        return FAIL(STATUS_INVALID,
                    "%s: optimizer.groups[%d].match: \"%.80s\" matches lm_head, which is tied to %s; match "
                    "that tensor",
                    config->source, entry, pattern, params_lm_head(params)->name);
    const char *nearest = text_nearest(pattern, names, params->n_params);
    return FAIL(
        STATUS_INVALID,
        "%s: optimizer.groups[%d].match: \"%.80s\" matches no tensor of the model%s%s; its tensors have "
        "names such as %s and %s",
        config->source, entry, pattern, nearest ? ", did you mean " : "", nearest ? nearest : "", names[0],
        names[params->n_params / 2]);
}

// Fails if a pattern of an entry matches no tensor, or matches some parts of a fused tensor but not all.
// That is checked even if it also matches the fused tensor's own name: "*v_proj.weight" matches
// "qkv_proj.weight".
static enum status check_patterns(const struct config *config, const struct params *params, int entry) {
    const struct config_group *group = &config->optimizer.groups.list[entry];
    for (int i = 0; i < group->n_patterns; i++) {
        const char *pattern = group->patterns[i];
        bool matches = false;
        for (int tensor = 0; tensor < params->n_params; tensor++) {
            const struct param *param = &params->params[tensor];
            char part[64];
            const int n = matched_parts(param, pattern, part, sizeof part);
            if (!matches_name(pattern, param->name))
                continue;
            if (n > 0 && n < param->n_parts)
                return part_only(config, entry, pattern, part, param);
            matches = true;
        }
        if (!matches)
            return no_tensor(config, params, entry, pattern);
    }
    return STATUS_OK;
}

static enum status find_entries(struct optimizer_groups *groups, const struct config *config,
                                const struct params *params) {
    const struct config_groups *entries = &config->optimizer.groups;
    int n_of[CONFIG_MAX_GROUPS] = {0}, n_updated = 0;
    for (int i = 0; i < params->n_params; i++) {
        int entry = 0;
        while (entry < entries->n && !matches_group(&entries->list[entry], params->params[i].name))
            entry++;
        groups->entry_of[i] = (signed char)(entry < entries->n ? entry : -1);
        n_updated += entry == entries->n || !entries->list[entry].is_frozen;
        if (entry < entries->n)
            n_of[entry]++;
    }
    for (int entry = 0; entry < entries->n; entry++) {
        TRY(check_patterns(config, params, entry));
        if (n_of[entry] == 0)
            return FAIL(
                STATUS_INVALID,
                "%s: optimizer.groups[%d] has no effect: all its tensors match an entry before it, and "
                "the first match applies; move this entry to the front",
                config->source, entry);
    }
    // Check only the last entry: an earlier one that sets nothing keeps its tensors out of later entries.
    const int last = entries->n - 1;
    const struct config_group *group = last >= 0 ? &entries->list[last] : NULL;
    if (group && !group->has_lr && !group->has_weight_decay && !group->by_adamw && !group->is_frozen)
        return FAIL(
            STATUS_INVALID,
            "%s: optimizer.groups[%d] sets nothing; give it lr, weight_decay, type or freeze, or leave "
            "it out",
            config->source, last);
    if (n_updated == 0)
        return FAIL(STATUS_INVALID,
                    "%s: optimizer.groups freezes all tensors of the model; leave some to be trained",
                    config->source);
    return STATUS_OK;
}

// ---- groups

static bool is_same(const struct optimizer_group *a, const struct optimizer_group *b) {
    return a->is_frozen == b->is_frozen && a->rule == b->rule && a->lr_scale == b->lr_scale &&
           a->weight_decay == b->weight_decay;
}

// Puts a tensor into its group. Adds the group if it is new.
static enum status put(struct optimizer_groups *groups, const struct config *config, int tensor,
                       const struct optimizer_group *wanted) {
    int i = 0;
    while (i < groups->n && !is_same(&groups->groups[i], wanted))
        i++;
    if (i == OPTIMIZER_GROUPS)
        return FAIL(STATUS_INVALID,
                    "%s: optimizer.groups makes more than %d groups of tensors that differ in type, learning "
                    "rate or weight decay (tensors of one dimension have no weight decay unless their entry "
                    "sets it); join some of its %d entries",
                    config->source, OPTIMIZER_GROUPS, config->optimizer.groups.n);
    if (i == groups->n)
        groups->groups[groups->n++] = *wanted;
    groups->of_param[tensor] = (unsigned char)i;
    groups->n_moments_of[tensor] = (unsigned char)wanted->n_moments;
    groups->has_muon |= wanted->rule == OPTIMIZER_MUON;
    return STATUS_OK;
}

// Returns a tensor's group, before lr, weight_decay or freeze of its entry in optimizer.groups are applied.
// With optimizer.type muon, Muon updates matrices inside blocks, and AdamW the other tensors.
//   by_adamw   the tensor's entry sets type adamw
static struct optimizer_group default_group(const struct config *config, const struct param *param,
                                            bool by_adamw) {
    const bool is_muon = config->optimizer.type == CONFIG_OPTIMIZER_MUON;
    by_adamw |= is_muon && !param->is_matrix;
    struct optimizer_group group =
        group_of_type(config, by_adamw ? CONFIG_OPTIMIZER_ADAMW : config->optimizer.type);
    group.weight_decay = param->decay ? config->optimizer.weight_decay : 0;
    if (by_adamw && is_muon && config->optimizer.adamw_lr > 0)
        group.lr_scale = config->optimizer.adamw_lr / config->optimizer.lr;
    return group;
}

static struct optimizer_group make_group(const struct optimizer_groups *groups, const struct config *config,
                                         const struct params *params, int tensor) {
    static const struct config_group no_entry;
    const int entry = groups->entry_of[tensor];
    const struct config_group *given = entry < 0 ? &no_entry : &config->optimizer.groups.list[entry];
    struct optimizer_group group = default_group(config, &params->params[tensor], given->by_adamw);
    if (given->is_frozen)
        return (struct optimizer_group){.is_frozen = true};
    if (given->has_lr)
        group.lr_scale = given->lr / config->optimizer.lr;
    if (given->has_weight_decay)
        group.weight_decay = given->weight_decay;
    return group;
}

enum status optimizer_groups_init(struct optimizer_groups *groups, const struct config *config,
                                  const struct params *params) {
    const struct optimizer_group of_run = group_of_type(config, config->optimizer.type);
    const size_t n = (size_t)params->n_params;
    *groups = (struct optimizer_groups){
        .n_moments = of_run.rule == OPTIMIZER_MUON ? group_of_type(config, CONFIG_OPTIMIZER_ADAMW).n_moments
                                                   : of_run.n_moments,
        .of_param = allocate(n, sizeof *groups->of_param),
        .n_moments_of = allocate(n, sizeof *groups->n_moments_of),
        .entry_of = allocate(n, sizeof *groups->entry_of)};
    TRY(find_entries(groups, config, params));
    for (int i = 0; i < params->n_params; i++) {
        const struct optimizer_group group = make_group(groups, config, params, i);
        TRY(put(groups, config, i, &group));
    }
    return STATUS_OK;
}

void optimizer_groups_free(struct optimizer_groups *groups) {
    free(groups->of_param);
    free(groups->n_moments_of);
    free(groups->entry_of);
    *groups = (struct optimizer_groups){0};
}

const struct optimizer_group *optimizer_group_of(const struct optimizer_groups *groups, int param) {
    return &groups->groups[groups->of_param[param]];
}

enum status optimizer_groups_freeze(const struct config *config, struct params *params) {
    struct optimizer_groups groups;
    enum status status = optimizer_groups_init(&groups, config, params);
    for (int i = 0; i < params->n_params && status == STATUS_OK; i++)
        params->params[i].is_frozen = optimizer_group_of(&groups, i)->is_frozen;
    params_lay_out_gradients(params);
    optimizer_groups_free(&groups);
    return status;
}

bool optimizer_groups_orthogonalize(const struct optimizer_groups *groups, int param) {
    return optimizer_group_of(groups, param)->rule == OPTIMIZER_MUON;
}

bool optimizer_groups_keep(const struct optimizer_groups *was, const struct optimizer_groups *is, int param,
                           int moment) {
    const struct optimizer_group *before = optimizer_group_of(was, param),
                                 *now = optimizer_group_of(is, param);
    return before->rule == now->rule && moment <= before->n_moments && moment <= now->n_moments;
}

// ---- descriptions

// Appends a line for those tensors of an entry that are in `group`; nothing if there are none.
//   entry   index in optimizer.groups; -1: the tensors that are in no entry
static void print_line(const struct optimizer_groups *groups, const struct config *config,
                       const struct params *params, int entry, int group, struct text *out) {
    const struct optimizer_group *of = &groups->groups[group];
    size_t elements = 0;
    int n = 0;
    char count[32], number[32];
    for (int i = 0; i < params->n_params; i++)
        if (groups->entry_of[i] == entry && groups->of_param[i] == group) {
            elements += params->params[i].elements;
            n++;
        }
    if (n == 0)
        return;
    text_add(out, out->length ? "\n" : "");
    if (entry >= 0)
        text_add(out, "optimizer.groups[%d]", entry);
    else
        text_add(out, "optimizer, other tensors");
    text_add(out, ": %d tensor%s, %s parameters, ", n, n > 1 ? "s" : "",
             text_count(count, sizeof count, (double)elements));
    if (of->is_frozen) {
        text_add(out, "frozen");
        return;
    }
    text_add(
        out, "%s, lr %s",
        config_optimizer_name(of->rule == OPTIMIZER_ADAMW ? CONFIG_OPTIMIZER_ADAMW : config->optimizer.type),
        text_float(number, (float)(of->lr_scale * config->optimizer.lr)));
    text_add(out, ", weight decay %s", text_float(number, (float)of->weight_decay));
}

void optimizer_groups_print(const struct optimizer_groups *groups, const struct config *config,
                            const struct params *params, struct text *out) {
    for (int i = 0; i <= config->optimizer.groups.n; i++)
        for (int group = 0; group < groups->n; group++)
            print_line(groups, config, params, i < config->optimizer.groups.n ? i : -1, group, out);
}

struct optimizer_step_args optimizer_group_step(const struct config *config,
                                                const struct optimizer_group *group, int64_t step,
                                                double lr) {
    const enum optimizer_rule rule = group->rule;
    return (struct optimizer_step_args){.rule = rule,
                                        .step = step,
                                        .lr = lr * group->lr_scale,
                                        .beta1 = rule == OPTIMIZER_SGD    ? config->optimizer.momentum
                                                 : rule == OPTIMIZER_MUON ? config->optimizer.muon_momentum
                                                                          : config->optimizer.betas.value[0],
                                        .beta2 = config->optimizer.betas.value[1],
                                        .epsilon = config->optimizer.eps,
                                        .weight_decay = group->weight_decay};
}
