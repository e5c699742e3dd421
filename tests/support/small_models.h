// Small models with every feature of their family, for tests of model/. Header only, like everything that
// tests share.
#ifndef ZERO_TESTS_SUPPORT_SMALL_MODELS_H
#define ZERO_TESTS_SUPPORT_SMALL_MODELS_H

#include "model/gpt_config.h"

// Everything that a family can switch on. A config adds its sizes, the heads of keys and values, and the
// windows, which must be shorter than its sequences; {N, 0} has blocks with and without a window.
#define LLAMA_PIECES .family = FAMILY_LLAMA, .qkv_bias = true, .qk_norm = true, .untied = true, .n_windows = 2
#define MODERN_PIECES                                                                                        \
    .family = FAMILY_MODERN, .qk_norm = true, .untied = true, .n_windows = 2, .soft_cap = 2,                 \
    .zero_init = true, .embedding_skip = true, .n_value_embeddings = 2

// Sizes that are no powers of two, heads wider than n_embd / n_head.
#define SMALL_SIZES .n_layer = 3, .n_embd = 12, .vocab_size = 29, .n_positions = 10
#define SMALL_HEADS .n_head = 4, .n_kv_head = 2, .head_dim = 8, .intermediate_size = 20

static const struct gpt_config small_gpt2 = {SMALL_SIZES, .n_head = 3};
static const struct gpt_config small_llama = {SMALL_SIZES, SMALL_HEADS, LLAMA_PIECES, .windows = {2, 0}};
static const struct gpt_config small_modern = {SMALL_SIZES, SMALL_HEADS, MODERN_PIECES, .windows = {3, 0},
                                               .value_embeddings = {0, 2}};

#endif
