// Embeddings: forward adds a row of the token table and one of the position table; backward sums the
// gradients per row.
#include "tests/ref/ref.h"

enum status ref_embedding_forward(struct stream *stream, const struct embedding_forward_args *a) {
    (void)stream;
    size_t C = (size_t)a->C;
    for (int b = 0; b < a->B; b++)
        for (int t = 0; t < a->T; t++)
            for (size_t c = 0; c < C; c++) {
                size_t row = (size_t)b * (size_t)a->T + (size_t)t;
                int position = (a->positions ? a->positions[b] : a->position) + t;
                double of_token = ref_load(a->wte, a->type, (size_t)a->tokens[row] * C + c);
                double of_position = a->wpe ? ref_load(a->wpe, a->type, (size_t)position * C + c) : 0;
                double before = a->accumulate ? ref_load(a->out, a->type, row * a->out_stride + c) : 0;
                ref_store(a->out, a->type, row * a->out_stride + c, before + of_token + of_position);
            }
    return STATUS_OK;
}

enum status ref_embedding_backward(struct stream *stream, const struct embedding_backward_args *a) {
    (void)stream;
    size_t C = (size_t)a->C;
    for (size_t i = 0; a->dwpe && a->beta_zero && i < (size_t)a->P * C; i++)
        ref_store(a->dwpe, ref_wide(a->type), i, 0);
    for (int b = 0; b < a->B; b++)
        for (int t = 0; t < a->T; t++)
            for (size_t c = 0; c < C; c++) {
                size_t row = (size_t)b * (size_t)a->T + (size_t)t;
                double dout = ref_load(a->dout, a->type, row * a->dout_stride + c);
                if (a->dwte)
                    ref_accumulate(a->dwte, ref_wide(a->type), (size_t)a->tokens[row] * C + c, dout);
                if (a->dwpe)
                    ref_accumulate(a->dwpe, ref_wide(a->type), (size_t)t * C + c, dout);
            }
    return STATUS_OK;
}
