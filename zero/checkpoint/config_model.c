#include "zero/checkpoint/config_model.h"

#include <string.h>

#include "options/option.h"

double config_field_get(const struct config *config, const struct gpt_field *field) {
    const struct option *option = option_find(field->option);
    const void *value = option_value(option, config);
    int choice;
    switch (field->type) {
    case FIELD_SIZE:
        return (double)*(const int64_t *)value;
    case FIELD_NUMBER:
        return *(const double *)value;
    case FIELD_BOOL:
        return *(const bool *)value;
    default:
        memcpy(&choice, value, sizeof choice);
        return choice;
    }
}

void config_field_set(struct config *config, const struct gpt_field *field, double value) {
    const struct option *option = option_find(field->option);
    void *out = option_value(option, config);
    switch (field->type) {
    case FIELD_SIZE:
        *(int64_t *)out = (int64_t)value;
        break;
    case FIELD_NUMBER:
        *(double *)out = value;
        break;
    case FIELD_BOOL:
        *(bool *)out = value != 0;
        break;
    default:
        option_choose(option, config, (int)value);
    }
}

struct gpt_config config_model(const struct config *config) {
    struct gpt_config sizes = {.n_windows = config->model.window.n,
                               .n_value_embeddings = config->model.value_embeddings.n};
    for (int i = 0; i < gpt_n_fields; i++)
        gpt_field_set(&gpt_fields[i], &sizes, config_field_get(config, &gpt_fields[i]));
    for (int i = 0; i < sizes.n_windows; i++)
        sizes.windows[i] = (int)config->model.window.values[i];
    for (int i = 0; i < sizes.n_value_embeddings; i++)
        sizes.value_embeddings[i] = (int)config->model.value_embeddings.values[i];
    gpt_config_resolve(&sizes);
    return sizes;
}
