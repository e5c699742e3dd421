// Checks the reference's operations of Llama's layers against finite differences, as
// test_kernels_ref_gradients.c does those of GPT-2's.
#include "tests/ops/ref_gradients.h"

// ---- rmsnorm

enum { LN = 3, LC = 7 };

struct rmsnorm_case {
    double *x, *weight, *out, *rstd, *dout; // weight: or NULL
};

static double rmsnorm_loss(void *context) {
    struct rmsnorm_case *c = context;
    RUN(rmsnorm_forward, .out = c->out, .rstd = c->rstd, .x = c->x, .weight = c->weight, .N = LN, .C = LC,
        .epsilon = 1e-2f, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, LN * LC);
}

static void check_rmsnorm(bool has_weight) {
    struct rmsnorm_case c = {tensor(71, LN * LC), has_weight ? tensor(72, LC) : NULL, zeros(LN * LC),
                             zeros(LN), tensor(73, LN * LC)};
    double *dx = zeros(LN * LC), *dweight = has_weight ? tensor(74, LC) : NULL, *out = zeros(LN * LC);
    rmsnorm_loss(&c); // for rstd
    RUN(rmsnorm_backward, .dx = dx, .dweight = dweight, .dout = c.dout, .x = c.x, .weight = c.weight,
        .rstd = c.rstd, .out = out, .N = LN, .C = LC, .beta_zero = true, .type = DTYPE_F64);
    assert_memory_equal(out, c.out, LN * LC * sizeof *out);
    expect_gradient("dx", c.x, dx, LN * LC, rmsnorm_loss, &c);
    if (has_weight)
        expect_gradient("dweight", c.weight, dweight, LC, rmsnorm_loss, &c);
    free(c.x), free(c.weight), free(c.out), free(c.rstd), free(c.dout), free(dx), free(dweight), free(out);
}

static void test_rmsnorm(void **state) {
    (void)state;
    check_rmsnorm(true);
    check_rmsnorm(false);
}

// ---- rope: two query heads and one key head, in rows with values between them

enum { RB = 2, RT = 3, RH = 2, RK = 1, RD = 6, RHEADS = RB * RT * (RH + RK), RSTRIDE = (RH + RK) * RD + 2 };

struct rope_case {
    double *x, *q_weight, *k_weight, *table, *out, *rstd, *dout;
    bool norm;
};

static double rope_loss(void *context) {
    struct rope_case *c = context;
    RUN(rope_forward, .out = c->out, .rstd = c->rstd, .x = c->x, .q_weight = c->q_weight,
        .k_weight = c->k_weight, .table = c->table, .B = RB, .T = RT, .H = RH, .K = RK, .D = RD,
        .x_stride = RSTRIDE, .out_stride = RSTRIDE, .norm = c->norm, .epsilon = 1e-2f, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, RB * RT * RSTRIDE);
}

static void check_rope(bool norm, bool weights) {
    enum { N = RB * RT * RSTRIDE };
    struct rope_case c = {tensor(81, N), NULL,          NULL,          tensor(82, RT * RD),
                          zeros(N),      zeros(RHEADS), tensor(83, N), norm};
    double *dx = zeros(N), dq[RD], dk[RD];
    if (weights)
        c.q_weight = tensor(84, RD), c.k_weight = tensor(85, RD);
    rope_loss(&c); // for rstd
    RUN(rope_backward, .dx = dx, .dq_weight = weights ? dq : NULL, .dk_weight = weights ? dk : NULL,
        .dout = c.dout, .x = norm ? c.x : NULL, .rstd = norm ? c.rstd : NULL, .q_weight = c.q_weight,
        .k_weight = c.k_weight, .table = c.table, .B = RB, .T = RT, .H = RH, .K = RK, .D = RD,
        .dx_stride = RSTRIDE, .dout_stride = RSTRIDE, .x_stride = RSTRIDE, .norm = norm, .beta_zero = true,
        .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, N, rope_loss, &c);
    if (weights) {
        expect_gradient("dq_weight", c.q_weight, dq, RD, rope_loss, &c);
        expect_gradient("dk_weight", c.k_weight, dk, RD, rope_loss, &c);
    }
    free(c.x), free(c.q_weight), free(c.k_weight), free(c.table), free(c.out), free(c.rstd), free(c.dout);
    free(dx);
}

static void test_rope(void **state) {
    (void)state;
    check_rope(false, false);
    check_rope(true, false);
    check_rope(true, true);
}

// ---- attention with RoPE, with and without normalization: q, k and v are ranges of one tensor, and what is
// rotated is in another one

enum { ROWS = RB * RT, WIDTH = (RH + 2 * RK) * RD, ROTATED = (RH + RK) * RD };

struct attention_case {
    double *qkv, *q_weight, *k_weight, *table, *rotated, *rstd, *out, *lse, *dout;
    bool norm;
};

static struct attention_rope rope_of(const struct attention_case *c) {
    return (struct attention_rope){.table = c->table,
                                   .q_weight = c->q_weight,
                                   .k_weight = c->k_weight,
                                   .norm = c->norm,
                                   .epsilon = 1e-2f,
                                   .rotated_q = c->rotated,
                                   .rotated_k = c->rotated + RH * RD,
                                   .q_stride = ROTATED,
                                   .k_stride = ROTATED,
                                   .rstd = c->rstd};
}

#define ATTENDED(c)                                                                                          \
    .q = (c)->qkv, .k = (c)->qkv + RH * RD, .v = (c)->qkv + ROTATED, .q_stride = WIDTH, .k_stride = WIDTH,   \
    .v_stride = WIDTH, .q_batch_stride = RT * WIDTH, .k_batch_stride = RT * WIDTH,                           \
    .v_batch_stride = RT * WIDTH, .B = RB, .T = RT, .H = RH, .K = RK, .D = RD, .type = DTYPE_F64

static double attention_loss(void *context) {
    struct attention_case *c = context;
    RUN(attention_forward, .out = c->out, .lse = c->lse, .S = RT, .rope = rope_of(c), ATTENDED(c));
    return weighted_sum(c->out, c->dout, ROWS * RH * RD);
}

static void check_attention(bool norm) {
    struct attention_case c = {tensor(46, ROWS * WIDTH),     norm ? tensor(47, RD) : NULL,
                               norm ? tensor(48, RD) : NULL, tensor(49, RT * RD),
                               zeros(ROWS * ROTATED),        zeros(RHEADS),
                               zeros(ROWS * RH * RD),        zeros(RB * RH * RT),
                               tensor(50, ROWS * RH * RD),   norm};
    double *dqkv = zeros(ROWS * WIDTH), *drotated = zeros(ROWS * ROTATED), dq[RD], dk[RD];
    attention_loss(&c); // for what it saves
    struct attention_rope rope = rope_of(&c);
    rope.drotated_q = drotated;
    rope.drotated_k = drotated + RH * RD;
    rope.dq_weight = norm ? dq : NULL;
    rope.dk_weight = norm ? dk : NULL;
    rope.beta_zero = true;
    RUN(attention_backward, .dq = dqkv, .dk = dqkv + RH * RD, .dv = dqkv + ROTATED, .dout = c.dout,
        .out = c.out, .lse = c.lse, .rope = rope, ATTENDED(&c));
    expect_gradient("dqkv", c.qkv, dqkv, ROWS * WIDTH, attention_loss, &c);
    if (norm) {
        expect_gradient("dq_weight", c.q_weight, dq, RD, attention_loss, &c);
        expect_gradient("dk_weight", c.k_weight, dk, RD, attention_loss, &c);
    }
    free(c.qkv), free(c.q_weight), free(c.k_weight), free(c.table), free(c.rotated), free(c.rstd);
    free(c.out), free(c.lse), free(c.dout), free(dqkv), free(drotated);
}

static void test_attention_with_rope(void **state) {
    (void)state;
    check_attention(false);
    check_attention(true);
}

// ---- squared ReLU and SwiGLU

enum { GN = 41 };

struct activation_case {
    double *x, *out, *dout;
};

static double relu_squared_loss(void *context) {
    struct activation_case *c = context;
    RUN(relu_squared_forward, .out = c->out, .x = c->x, .n = GN, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, GN);
}

// Differences are not taken across the kink of the derivative at 0.
static void test_relu_squared(void **state) {
    (void)state;
    struct activation_case c = {zeros(GN), zeros(GN), tensor(43, GN)};
    double *dx = zeros(GN);
    for (int i = 0; i < GN; i++)
        c.x[i] = (i - GN / 2) / 4.0 + 0.1;
    RUN(relu_squared_backward, .dx = dx, .dout = c.dout, .x = c.x, .n = GN, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, GN, relu_squared_loss, &c);
    double x[] = {-2, 0, 3, NAN};
    RUN(relu_squared_forward, .out = x, .x = x, .n = 4, .type = DTYPE_F64);
    assert_true(x[0] == 0 && x[1] == 0 && x[2] == 9 && isnan(x[3]));
    free(c.x), free(c.out), free(c.dout), free(dx);
}

enum { SN = 3, SF = 5 };

static double swiglu_loss(void *context) {
    struct activation_case *c = context;
    RUN(swiglu_forward, .out = c->out, .x = c->x, .N = SN, .F = SF, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, SN * SF);
}

static void test_swiglu(void **state) {
    (void)state;
    struct activation_case c = {tensor(44, SN * 2 * SF), zeros(SN * SF), tensor(45, SN * SF)};
    double *dx = zeros(SN * 2 * SF), *again = zeros(SN * SF);
    swiglu_loss(&c);
    memcpy(again, c.dout, SN * SF * sizeof *again);
    RUN(swiglu_backward, .dx = dx, .dout = again, .x = c.x, .out = again, .N = SN, .F = SF,
        .type = DTYPE_F64);
    assert_memory_equal(again, c.out, SN * SF * sizeof *again);
    expect_gradient("dx", c.x, dx, SN * 2 * SF, swiglu_loss, &c);
    free(c.x), free(c.out), free(c.dout), free(dx), free(again);
}

static void test_every_gradient_is_checked(void **state) {
    (void)state;
    expect_all_checked(GRADIENTS_OF_LLAMA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_attention_with_rope),
        cmocka_unit_test(test_relu_squared),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_every_gradient_is_checked),
    };
    return cmocka_run_group_tests_name("ref gradients of Llama", tests, open_device, close_device);
}
