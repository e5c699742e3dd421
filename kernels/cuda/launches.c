// How many launches an operation takes: the launchers of this folder, counted. Tests compare it with what a
// simulated GPU counts.
#include "kernels/cuda/workspace.h"

// GELU is fused with 16-bit results only; all other epilogues are.
static bool gelu_fuses(enum dtype type) {
    return type != DTYPE_F32;
}

static int linear_forward_launches(const struct linear_forward_args *args) {
    if (!args->gelu || gelu_fuses(args->type))
        return 1;
    int rows = linear_rows_at_a_time(args); // a product and an epilogue each
    return 2 * ((args->N + rows - 1) / rows);
}

// A bias gradient comes with the product for the weight, but a further kernel adds it to what is there.
// Without that product, two kernels sum the columns.
static int linear_backward_launches(const struct linear_backward_args *args) {
    int dx = args->dx ? 1 + (args->pre_gelu && !gelu_fuses(args->type)) : 0;
    int dbias = !args->dbias ? 0 : !args->dweight ? 2 : !args->beta_zero;
    return dx + (args->dweight ? 1 : 0) + dbias;
}

int cuda_launches(enum operation operation, const void *args) {
    switch (operation) {
    case OP_linear_forward:
        return linear_forward_launches(args);
    case OP_linear_backward:
        return linear_backward_launches(args);
    case OP_attention_backward:
        return 3; // dout's product with out; dq; dk and dv
    case OP_embedding_backward:
        return 3; // a fill of the counts; the counts, with dwpe; dwte
    default:
        return 1;
    }
}
