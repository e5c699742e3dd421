// See trainer/initial_weights.h.
#include "trainer/initial_weights.h"

#include <string.h>

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
