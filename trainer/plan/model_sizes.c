// A value that the config gives is never changed: if the weights or the tokenizer disagree with it, that is
// an error.
#include "trainer/plan/model_sizes.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "options/option.h"

// The options that the config gives and that the weights contradict.
struct contradictions {
    const struct config *config;
    // True: the config may give another n_positions, RoPE and windows, because no tensor depends on them.
    bool other_context;
    struct text list; // the options with both values, for the message
    int n;            // number of options in `list`
};

static void add_value(const struct option *option, double value, struct text *out) {
    if (option->type == OPTION_CHOICE)
        text_add(out, "%s", option->choices[(int)value]);
    else if (option->type == OPTION_BOOL)
        text_add(out, "%s", value != 0 ? "true" : "false");
    else
        text_add(out, "%.10g", value);
}

// Sets the option to the weights' value. If the config gives another value, lists it as a contradiction,
// unless it is a 0 that stands for the default.
static void take(struct config *config, const struct gpt_field *field, const struct gpt_config *found,
                 struct contradictions *all) {
    const struct option *option = option_find(field->option);
    const double given = config_field_get(config, field), of_weights = gpt_field_get(field, found);
    if (config_given(config, field->option) && given != of_weights &&
        !(field->zero_is_default && given == 0)) {
        text_add(&all->list, "%s%s ", all->n++ ? ", " : "", field->option);
        add_value(option, of_weights, &all->list);
        text_add(&all->list, " (given: ");
        add_value(option, given, &all->list);
        text_add(&all->list, ")");
    }
    // In other families the option partial_rotary_factor stays at its default 0, which stands for 1.
    if (!GPT_FIELD_IS(field, partial_rotary_factor) || found->family == FAMILY_MODERN)
        config_field_set(config, field, of_weights);
}

static bool same_list(const struct config_integers *given, const int *found, int n) {
    bool same = given->n == n;
    for (int i = 0; i < given->n && same; i++)
        same = given->values[i] == found[i];
    return same;
}

static void take_list(struct contradictions *all, const char *option, struct config_integers *list,
                      const int *found, int n) {
    if (config_given(all->config, option) && !same_list(list, found, n))
        text_add(&all->list, "%sanother %s", all->n++ ? ", " : "", option);
    list->n = n;
    for (int i = 0; i < n; i++)
        list->values[i] = found[i];
}

static bool is_scaling(const struct gpt_field *field) {
    return gpt_field_is_rope(field) && !GPT_FIELD_IS(field, rope.theta);
}

static bool gives_rope_scaling(const struct config *config) {
    bool any = false;
    for (int i = 0; i < gpt_n_fields; i++)
        any = any || (is_scaling(&gpt_fields[i]) && config_given(config, gpt_fields[i].option));
    return any;
}

// Sets original_max_position_embeddings of RoPE scaling to the context of the weights, if it is not given.
static void default_original(struct config *config, const struct gpt_config *found) {
    const enum config_rope_type type = config->model.rope_scaling.rope_type;
    int64_t *original = &config->model.rope_scaling.original_max_position_embeddings;
    if (*original == 0 && (type == CONFIG_ROPE_TYPE_LLAMA3 || type == CONFIG_ROPE_TYPE_YARN))
        *original = found->rope.original_positions ? found->rope.original_positions : found->n_positions;
}

// Sets the options of RoPE and windows. All options of model.rope_scaling come from the same place: from the
// config, if it may give another context and gives one of them, otherwise from the weights.
static void take_context(struct config *config, const struct gpt_config *found, struct contradictions *all) {
    const bool keeps_theta = all->other_context && config_given(config, "model.rope_theta"),
               keeps_scaling = all->other_context && gives_rope_scaling(config);
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++) {
        const bool is_unused = found->rope.type == ROPE_DEFAULT && !GPT_FIELD_IS(field, rope.type);
        if (GPT_FIELD_IS(field, rope.theta) ? !keeps_theta
                                            : is_scaling(field) && !keeps_scaling && !is_unused)
            take(config, field, found, all);
    }
    if (keeps_scaling)
        default_original(config, found);
    if (!all->other_context || !config_given(config, "model.window"))
        take_list(all, "model.window", &config->model.window, found->windows, found->n_windows);
}

enum status model_sizes_from_weights(struct config *config, const struct gpt_config *found, const char *path,
                                     bool resumes) {
    struct contradictions all = {.config = config, .other_context = !resumes && found->family != FAMILY_GPT2};
    struct gpt_config of_weights = *found;
    gpt_config_resolve(&of_weights);
    const int n = found->family == FAMILY_GPT2 ? GPT_N_SIZES + 1 : gpt_n_fields;
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + n; field++) {
        const bool keeps = GPT_FIELD_IS(field, n_positions) && all.other_context &&
                           config_given(config, "model.n_positions");
        if (!keeps && !gpt_field_is_rope(field) && !GPT_FIELD_IS(field, zero_init))
            take(config, field, &of_weights, &all);
    }
    if (found->family != FAMILY_GPT2) {
        take_list(&all, "model.value_embeddings", &config->model.value_embeddings, found->value_embeddings,
                  found->n_value_embeddings);
        take_context(config, &of_weights, &all);
    }
    enum status status = STATUS_OK;
    if (all.n > 0)
        status =
            FAIL(STATUS_INVALID, "%s: the weights in %s%s have %s; leave the option%s out", config->source,
                 path, resumes ? ", which the run resumes from," : "", all.list.data, all.n > 1 ? "s" : "");
    text_free(&all.list);
    return status;
}

void model_sizes_log_context(const struct config *config, const struct gpt_config *found) {
    struct gpt_config now = config_model(config), before = now;
    struct text list = {0};
    gpt_config_take_context(&before, found);
    gpt_config_resolve(&before);
    if (!gpt_config_difference(&now, &before))
        return;
    if (now.n_positions != before.n_positions)
        text_add(&list, ", model.n_positions %d", before.n_positions);
    if (now.rope.theta != before.rope.theta)
        text_add(&list, ", model.rope_theta %g", before.rope.theta);
    before.n_positions = now.n_positions;
    before.rope.theta = now.rope.theta;
    const char *other = gpt_config_difference(&now, &before);
    if (other)
        text_add(&list, ", another model.%s", strncmp(other, "rope", 4) == 0 ? "rope_scaling" : other);
    log_info("%s: the weights were trained with%s", config->model.init_from, list.data + 1);
    text_free(&list);
}

bool model_sizes_want_tokenizer(const struct config *config) {
    return config->data.tokenizer[0] && !config_given(config, "model.vocab_size") &&
           !config->model.init_from[0];
}

enum status model_sizes_from_tokenizer(struct config *config, const char *path, int n_ids) {
    if (model_sizes_want_tokenizer(config))
        config->model.vocab_size = n_ids;
    if (n_ids <= config->model.vocab_size)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s: the tokenizer %s (data.tokenizer) has %d ids, more than model.vocab_size %lld",
                config->source, path, n_ids, (long long)config->model.vocab_size);
}

void model_sizes_print(const struct params *params, struct text *out) {
    const struct gpt_config *sizes = &params->config;
    const bool gpt2 = sizes->family == FAMILY_GPT2;
    char weights[16];
    text_add(out, "model: %s%s%s parameters (n_layer %d, n_head %d",
             gpt2 ? "" : config_family_name((enum config_family)sizes->family), gpt2 ? "" : ", ",
             text_count(weights, sizeof weights, (double)params->n_weights), sizes->n_layer, sizes->n_head);
    if (!gpt2)
        text_add(out, ", n_kv_head %d, head_dim %d", sizes->n_kv_head, sizes->head_dim);
    text_add(out, ", n_embd %d", sizes->n_embd);
    if (!gpt2)
        text_add(out, ", intermediate_size %d", sizes->intermediate_size);
    text_add(out, ", vocab_size %d, n_positions %d", sizes->vocab_size, sizes->n_positions);
    for (int i = 0; i < sizes->n_windows; i++)
        text_add(out, "%s%d%s", i ? ", " : ", window [", sizes->windows[i],
                 i == sizes->n_windows - 1 ? "]" : "");
    text_add(out, ")");
}

// ---- the initial weights

enum status initial_weights_open(struct weights *weights, const struct config *config) {
    const char *path = config->model.init_from;
    enum status status = weights_open(weights, path);
    char message[STATUS_MESSAGE_BYTES];
    if (status != STATUS_INVALID)
        return status;
    strcpy(message, status_message());
    status_clear();
    return FAIL(STATUS_INVALID, "%s: model.init_from: %s", config->source, message);
}

enum status initial_weights_sizes(const struct config *config, struct gpt_config *sizes) {
    struct weights weights;
    enum status status = initial_weights_open(&weights, config);
    *sizes = weights.config;
    weights_close(&weights);
    return status;
}
