// FLOPs by the formula that papers use, for comparison with the counted FLOPs.
#ifndef ZERO_TESTS_SUPPORT_FLOPS_FORMULA_H
#define ZERO_TESTS_SUPPORT_FLOPS_FORMULA_H

#include "model/params.h"

// FLOPs per token, forward and backward: 6 P + 12 sum over layers of H D keys, for P parameters
// (without value embeddings, and without the embedding where lm_head has a matrix of its own) and `keys`
// positions that a query attends to on average: T / 2 in sequences of T tokens (half of the full square), w -
// w^2 / (2T) with a window of w < T. It counts all parameters as if they were in products;
// gpt_flops_per_token counts the products.
static inline double flops_by_formula(const struct params *params, int T) {
    const struct gpt_config *config = &params->config;
    size_t multiplied = params->n_weights;
    if (config->untied)
        multiplied -= params_tensor(params, 0, PARAM_WTE)->elements;
    double width = (double)config->n_head * config->head_dim, keys = 0; // sum over all layers
    for (int block = 0; block < config->n_layer; block++) {
        const struct param *values = params_tensor(params, 1 + block, PARAM_VALUE_EMBEDDING);
        multiplied -= values ? values->elements : 0;
        double window = gpt_window(config, block);
        keys += window > 0 && window < T ? window - window * window / (2.0 * T) : T / 2.0;
    }
    return 6.0 * (double)multiplied + 12.0 * width * keys;
}

#endif
