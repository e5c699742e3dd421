// See the header.
#include "trainer/plan/model_line.h"

#include "options/config.h"

void model_line_print(const struct params *params, struct text *out) {
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
