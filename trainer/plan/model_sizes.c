// An option that the config gives is never changed: a value that disagrees with it is an error.
#include "trainer/plan/model_sizes.h"

#include "base/text.h"

enum status model_sizes_from_weights(struct config *config, const struct gpt_config *found, const char *path,
                                     bool resumes) {
    const struct {
        const char *option;
        int64_t *value;
        int found;
    } sizes[] = {{"model.n_layer", &config->model.n_layer, found->n_layer},
                 {"model.n_head", &config->model.n_head, found->n_head},
                 {"model.n_embd", &config->model.n_embd, found->n_embd},
                 {"model.vocab_size", &config->model.vocab_size, found->vocab_size},
                 {"model.n_positions", &config->model.n_positions, found->n_positions}};
    struct text list = {0};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (config_given(config, sizes[i].option) && *sizes[i].value != sizes[i].found)
            text_add(&list, "%s%s %d (given: %lld)", n++ ? ", " : "", sizes[i].option, sizes[i].found,
                     (long long)*sizes[i].value);
        *sizes[i].value = sizes[i].found;
    }
    enum status status = text_status(&list);
    if (status == STATUS_OK && n > 0)
        status =
            FAIL(STATUS_INVALID, "%s: the weights in %s%s have %s; leave the option%s out", config->source,
                 path, resumes ? ", which the run resumes from," : "", list.data, n > 1 ? "s" : "");
    text_free(&list);
    return status;
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

struct gpt_config model_sizes(const struct config *config) {
    return (struct gpt_config){.n_layer = (int)config->model.n_layer,
                               .n_head = (int)config->model.n_head,
                               .n_embd = (int)config->model.n_embd,
                               .vocab_size = (int)config->model.vocab_size,
                               .n_positions = (int)config->model.n_positions};
}
