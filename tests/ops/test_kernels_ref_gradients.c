// Checks the reference, against which all backends are checked: every backward operation against finite
// differences of its forward, in double, and its contract (accumulation, optional outputs). Forward
// operations are checked with known values here and with the golden figures of tests/golden.
#include "tests/ops/ref_gradients.h"

// ---- embedding

enum { EB = 3, ET = 4, EC = 5, EV = 6, EP = 7, EPOSITION = 2 };

struct embedding_case {
    double *wte, *wpe, *out, *dout;
    int32_t tokens[EB * ET];
};

static double embedding_loss(void *context) {
    struct embedding_case *c = context;
    RUN(embedding_forward, .out = c->out, .wte = c->wte, .wpe = c->wpe, .tokens = c->tokens, .B = EB, .T = ET,
        .C = EC, .V = EV, .out_stride = EC, .position = EPOSITION, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, EB * ET * EC);
}

static void test_embedding(void **state) {
    (void)state;
    struct embedding_case c = {
        .wte = tensor(1, EV * EC),
        .wpe = tensor(2, EP * EC),
        .out = zeros(EB * ET * EC),
        .dout = tensor(3, EB * ET * EC),
        .tokens = {0, 3, 3, 5, 1, 3, 0, 0, 5, 5, 2, 3}, // 4 never, 3 four times
    };
    double *dwte = zeros(EV * EC), *dwpe = zeros(ET * EC);
    RUN(embedding_backward, .dwte = dwte, .dwpe = dwpe, .dout = c.dout, .tokens = c.tokens, .B = EB, .T = ET,
        .C = EC, .V = EV, .dout_stride = EC, .P = ET, .type = DTYPE_F64);
    expect_gradient("dwte", c.wte, dwte, EV * EC, embedding_loss, &c);
    expect_gradient("dwpe", c.wpe + EPOSITION * EC, dwpe, ET * EC, embedding_loss, &c);

    // Without positions, dwte is the same.
    double *alone = zeros(EV * EC);
    RUN(embedding_backward, .dwte = alone, .dout = c.dout, .tokens = c.tokens, .B = EB, .T = ET, .C = EC,
        .V = EV, .dout_stride = EC, .P = ET, .beta_zero = true, .type = DTYPE_F64);
    assert_memory_equal(alone, dwte, EV * EC * sizeof *alone);
    free(c.wpe), c.wpe = NULL;
    expect_gradient("dwte", c.wte, alone, EV * EC, embedding_loss, &c);
    free(alone);

    // Value embeddings: added to a range of columns.
    enum { STRIDE = EC + 2 };
    double *wide = tensor(4, EB * ET * STRIDE), *before = tensor(4, EB * ET * STRIDE);
    RUN(embedding_forward, .out = wide, .wte = c.wte, .tokens = c.tokens, .B = EB, .T = ET, .C = EC, .V = EV,
        .out_stride = STRIDE, .accumulate = true, .type = DTYPE_F64);
    for (int i = 0; i < EB * ET * STRIDE; i++) {
        const int row = i / STRIDE, column = i % STRIDE;
        assert_true(wide[i] == before[i] + (column < EC ? c.wte[c.tokens[row] * EC + column] : 0));
    }
    double *from_wide = zeros(EV * EC), *sums = zeros(EV * EC);
    RUN(embedding_backward, .dwte = from_wide, .dout = wide, .tokens = c.tokens, .B = EB, .T = ET, .C = EC,
        .V = EV, .dout_stride = STRIDE, .type = DTYPE_F64);
    for (int i = 0; i < EB * ET * EC; i++)
        sums[c.tokens[i / EC] * EC + i % EC] += wide[i / EC * STRIDE + i % EC];
    assert_memory_equal(from_wide, sums, EV * EC * sizeof *sums);
    free(wide), free(before), free(from_wide), free(sums);
    free(c.wte), free(c.wpe), free(c.out), free(c.dout), free(dwte), free(dwpe);
}

// ---- layernorm

enum { LN = 3, LC = 7 };

struct layernorm_case {
    double *x, *weight, *bias, *out, *mean, *rstd, *dout;
};

static double layernorm_loss(void *context) {
    struct layernorm_case *c = context;
    RUN(layernorm_forward, .out = c->out, .mean = c->mean, .rstd = c->rstd, .x = c->x, .weight = c->weight,
        .bias = c->bias, .N = LN, .C = LC, .epsilon = 1e-2f, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, LN * LC);
}

static void test_layernorm(void **state) {
    (void)state;
    struct layernorm_case c = {tensor(11, LN * LC), tensor(12, LC), tensor(13, LC),     zeros(LN * LC),
                               zeros(LN),           zeros(LN),      tensor(14, LN * LC)};
    double *dx = zeros(LN * LC), *dweight = zeros(LC), *dbias = zeros(LC);
    layernorm_loss(&c); // for mean and rstd
    RUN(layernorm_backward, .dx = dx, .dweight = dweight, .dbias = dbias, .dout = c.dout, .x = c.x,
        .weight = c.weight, .mean = c.mean, .rstd = c.rstd, .N = LN, .C = LC, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, LN * LC, layernorm_loss, &c);
    expect_gradient("dweight", c.weight, dweight, LC, layernorm_loss, &c);
    expect_gradient("dbias", c.bias, dbias, LC, layernorm_loss, &c);

    // In place over the residual stream's gradient, adding to dweight and dbias.
    double *both = tensor(15, LN * LC), *residual = tensor(15, LN * LC), *twice = zeros(LC);
    memcpy(twice, dweight, LC * sizeof *twice);
    layernorm_loss(&c);
    RUN(layernorm_backward, .dx = both, .dresidual = both, .dweight = twice, .dbias = dbias, .dout = c.dout,
        .x = c.x, .weight = c.weight, .mean = c.mean, .rstd = c.rstd, .N = LN, .C = LC, .type = DTYPE_F64);
    for (size_t i = 0; i < LN * LC; i++)
        assert_true(fabs(both[i] - residual[i] - dx[i]) < 1e-14 * (1 + fabs(dx[i]) + fabs(residual[i])));
    for (size_t i = 0; i < LC; i++)
        assert_true(fabs(twice[i] - 2 * dweight[i]) < 1e-14 * (1 + fabs(dweight[i])));
    free(c.x), free(c.weight), free(c.bias), free(c.out), free(c.mean), free(c.rstd), free(c.dout);
    free(dx), free(dweight), free(dbias), free(both), free(residual), free(twice);
}

// ---- linear, with gaps between rows of dout, and with GELU

enum { FN = 4, FI = 3, FO = 5, FSTRIDE = 6 };

struct linear_case {
    double *x, *weight, *bias, *residual, *pre_gelu, *out, *dout;
    int stride;
    bool gelu;
};

static double linear_loss(void *context) {
    struct linear_case *c = context;
    RUN(linear_forward, .out = c->out, .pre_activation = c->pre_gelu, .x = c->x, .weight = c->weight,
        .bias = c->bias, .residual = c->residual, .N = FN, .IC = FI, .OC = FO, .out_stride = c->stride,
        .activation = c->gelu ? ACTIVATION_GELU : ACTIVATION_NONE, .type = DTYPE_F64, .out_type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, (size_t)(FN * c->stride));
}

static void test_linear(void **state) {
    (void)state;
    struct linear_case c = {.x = tensor(21, FN * FI),
                            .weight = tensor(22, FO * FI),
                            .bias = tensor(23, FO),
                            .out = zeros(FN * FSTRIDE),
                            .dout = tensor(24, FN * FSTRIDE),
                            .stride = FSTRIDE};
    double *dx = zeros(FN * FI), *dweight = zeros(FO * FI), *dbias = zeros(FO);
    RUN(linear_backward, .dx = dx, .dweight = dweight, .dbias = dbias, .dout = c.dout, .x = c.x,
        .weight = c.weight, .N = FN, .IC = FI, .OC = FO, .dout_stride = FSTRIDE, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, FN * FI, linear_loss, &c);
    expect_gradient("dweight", c.weight, dweight, FO * FI, linear_loss, &c);
    expect_gradient("dbias", c.bias, dbias, FO, linear_loss, &c);

    // Only dweight, accumulated.
    double *twice = zeros(FO * FI);
    memcpy(twice, dweight, FO * FI * sizeof *twice);
    RUN(linear_backward, .dweight = twice, .dout = c.dout, .x = c.x, .N = FN, .IC = FI, .OC = FO,
        .dout_stride = FSTRIDE, .type = DTYPE_F64);
    for (size_t i = 0; i < FO * FI; i++)
        assert_true(fabs(twice[i] - 2 * dweight[i]) < 1e-14 * (1 + fabs(dweight[i])));
    free(twice), free(c.x), free(c.weight), free(c.bias), free(c.out), free(c.dout);
    free(dx), free(dweight), free(dbias);
}

static void test_linear_gelu(void **state) {
    (void)state;
    struct linear_case c = {.x = tensor(31, FN * FI),
                            .weight = tensor(32, FO * FI),
                            .bias = tensor(33, FO),
                            .pre_gelu = zeros(FN * FO),
                            .out = zeros(FN * FO),
                            .dout = tensor(34, FN * FO),
                            .stride = FO,
                            .gelu = true};
    double *dx = zeros(FN * FI), *dweight = zeros(FO * FI), *dpre = zeros(FN * FO);
    linear_loss(&c); // for pre_gelu
    RUN(gelu_backward, .dx = dpre, .dout = c.dout, .x = c.pre_gelu, .n = FN * FO, .type = DTYPE_F64);
    RUN(linear_backward, .dx = dx, .dweight = dweight, .dout = dpre, .x = c.x, .weight = c.weight, .N = FN,
        .IC = FI, .OC = FO, .dout_stride = FO, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, FN * FI, linear_loss, &c);
    expect_gradient("dweight", c.weight, dweight, FO * FI, linear_loss, &c);

    // The gradient through a second layer to the first one's pre_gelu, in one call and in two.
    double *one = zeros(FN * FO), *two = zeros(FN * FO), *second = tensor(36, FI * FO),
           *dy = tensor(37, FN * FI);
    RUN(linear_backward, .dx = one, .dout = dy, .weight = second, .pre_activation = c.pre_gelu,
        .activation = ACTIVATION_GELU, .N = FN, .IC = FO, .OC = FI, .dout_stride = FI, .type = DTYPE_F64);
    RUN(linear_backward, .dx = two, .dout = dy, .weight = second, .N = FN, .IC = FO, .OC = FI,
        .dout_stride = FI, .type = DTYPE_F64);
    RUN(gelu_backward, .dx = two, .dout = two, .x = c.pre_gelu, .n = FN * FO, .type = DTYPE_F64);
    assert_memory_equal(one, two, FN * FO * sizeof *one);
    free(one), free(two), free(second), free(dy);

    free(c.pre_gelu);
    c.gelu = false, c.pre_gelu = NULL;
    double plain = linear_loss(&c);
    c.residual = tensor(35, FN * FO);
    double more = weighted_sum(c.residual, c.dout, FN * FO);
    assert_true(fabs(linear_loss(&c) - plain - more) < 1e-13 * (1 + fabs(plain) + fabs(more)));
    free(c.x), free(c.weight), free(c.bias), free(c.residual), free(c.out), free(c.dout);
    free(dx), free(dweight), free(dpre);
}

// ---- GELU

enum { GN = 41 };

struct gelu_case {
    double *x, *out, *dout;
};

static double gelu_loss(void *context) {
    struct gelu_case *c = context;
    RUN(gelu_forward, .out = c->out, .x = c->x, .n = GN, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, GN);
}

static void test_gelu(void **state) {
    (void)state;
    struct gelu_case c = {zeros(GN), zeros(GN), tensor(41, GN)};
    double *dx = zeros(GN);
    for (int i = 0; i < GN; i++)
        c.x[i] = (i - GN / 2) / 4.0; // -5 to 5
    RUN(gelu_backward, .dx = dx, .dout = c.dout, .x = c.x, .n = GN, .type = DTYPE_F64);
    expect_gradient("dx", c.x, dx, GN, gelu_loss, &c);

    // In place, against values computed from the formulas in decimal arithmetic with 60 digits.
    static const double x[] = {-6, -3, -1, 0, 0.5, 1, 3};
    static const double wanted[] = {
        -8.43964670076229702e-11, -3.63739208177301905e-03, -1.58808009391723293e-01, 0,
        3.45714009825143942e-01,  8.41191990608276652e-01,  2.99636260791822684e+00};
    static const double slopes[] = {
        -7.70997393095369596e-10, -1.15841666309697260e-02, -8.29640838457825491e-02, 0.5,
        8.67369903534642273e-01,  1.08296408384578258e+00,  1.01158416663096973e+00};
    double inplace[7], derivative[7], ones[7] = {1, 1, 1, 1, 1, 1, 1};
    memcpy(inplace, x, sizeof x);
    RUN(gelu_forward, .out = inplace, .x = inplace, .n = 7, .type = DTYPE_F64);
    RUN(gelu_backward, .dx = derivative, .dout = ones, .x = x, .n = 7, .type = DTYPE_F64);
    for (int i = 0; i < 7; i++) { // absolute error: 1 + tanh(u) may cancel
        assert_true(fabs(inplace[i] - wanted[i]) <= 1e-15 * (1 + fabs(x[i])));
        assert_true(fabs(derivative[i] - slopes[i]) <= 1e-14 * (1 + fabs(x[i])));
    }
    free(c.x), free(c.out), free(c.dout), free(dx);
}

// ---- attention, q, k and v in one (B, T, 3C) tensor

enum { AB = 2, AT = 5, AH = 2, AD = 3, AC = AH * AD, ASIZE = AB * AT * 3 * AC };

struct attention_case {
    double *qkv, *out, *lse, *dout;
    const int32_t *first; // NULL: no documents
};

static double attention_loss(void *context) {
    struct attention_case *c = context;
    RUN(attention_forward, .out = c->out, .lse = c->lse, .q = c->qkv, .k = c->qkv + AC, .v = c->qkv + 2 * AC,
        .q_stride = 3 * AC, .q_batch_stride = AT * 3 * AC, .k_stride = 3 * AC, .v_stride = 3 * AC,
        .k_batch_stride = AT * 3 * AC, .v_batch_stride = AT * 3 * AC, .first = c->first, .B = AB, .T = AT,
        .S = AT, .H = AH, .K = AH, .D = AD, .type = DTYPE_F64);
    return weighted_sum(c->out, c->dout, AB * AT * AC);
}

static void check_attention_gradient(const int32_t *first) {
    struct attention_case c = {tensor(51, ASIZE), zeros(AB * AT * AC), zeros(AB * AH * AT),
                               tensor(52, AB * AT * AC), first};
    double *dqkv = tensor(53, ASIZE); // to be overwritten
    attention_loss(&c);               // for out and lse
    RUN(attention_backward, .dq = dqkv, .dk = dqkv + AC, .dv = dqkv + 2 * AC, .dout = c.dout, .out = c.out,
        .lse = c.lse, .q = c.qkv, .k = c.qkv + AC, .v = c.qkv + 2 * AC, .q_stride = 3 * AC,
        .q_batch_stride = AT * 3 * AC, .k_stride = 3 * AC, .k_batch_stride = AT * 3 * AC, .v_stride = 3 * AC,
        .v_batch_stride = AT * 3 * AC, .first = first, .B = AB, .T = AT, .H = AH, .K = AH, .D = AD,
        .type = DTYPE_F64);
    expect_gradient("dqkv", c.qkv, dqkv, ASIZE, attention_loss, &c);
    free(c.qkv), free(c.out), free(c.lse), free(c.dout), free(dqkv);
}

static const int32_t documents[AB * AT] = {0, 0, 0, 3, 3, 0, 1, 1, 1, 4};

static void test_attention(void **state) {
    (void)state;
    check_attention_gradient(NULL);
    check_attention_gradient(documents);
}

// A document's positions get what they get in a sequence of their own.
static void test_attention_of_documents(void **state) {
    (void)state;
    struct attention_case c = {tensor(57, ASIZE), zeros(AB * AT * AC), zeros(AB * AH * AT),
                               zeros(AB * AT * AC), documents};
    attention_loss(&c);
    for (int b = 0; b < AB; b++)
        for (int t = 0; t < AT; t++) {
            const int start = documents[b * AT + t], n = t + 1 - start;
            double *from = c.qkv + (b * AT + start) * 3 * AC;
            double alone[AT * AC], lse[AH * AT];
            RUN(attention_forward, .out = alone, .lse = lse, .q = from, .k = from + AC, .v = from + 2 * AC,
                .q_stride = 3 * AC, .k_stride = 3 * AC, .v_stride = 3 * AC, .B = 1, .T = n, .S = n, .H = AH,
                .K = AH, .D = AD, .type = DTYPE_F64);
            for (int i = 0; i < AC; i++)
                assert_true(fabs(alone[(n - 1) * AC + i] - c.out[(b * AT + t) * AC + i]) < 1e-15);
            for (int h = 0; h < AH; h++)
                assert_true(fabs(lse[h * n + n - 1] - c.lse[(b * AH + h) * AT + t]) < 1e-14);
        }
    free(c.qkv), free(c.out), free(c.lse), free(c.dout);
}

// Queries that continue a key-value cache give the same result as within the whole sequence. Equal keys give
// the mean of the visible values, and lse is the logarithm of their number.
static void test_attention_with_a_cache(void **state) {
    (void)state;
    struct attention_case c = {tensor(54, ASIZE), zeros(AB * AT * AC), zeros(AB * AH * AT),
                               tensor(55, AB * AT * AC), NULL};
    attention_loss(&c);
    double last[2 * AC];
    RUN(attention_forward, .out = last, .q = c.qkv + (AT - 2) * 3 * AC, .k = c.qkv + AC, .v = c.qkv + 2 * AC,
        .q_stride = 3 * AC, .k_stride = 3 * AC, .v_stride = 3 * AC, .B = 1, .T = 2, .S = AT, .H = AH, .K = AH,
        .D = AD, .type = DTYPE_F64);
    for (int i = 0; i < 2 * AC; i++)
        assert_true(fabs(last[i] - c.out[(AT - 2) * AC + i]) < 1e-15);

    double q[AT] = {1, 2, 3, 4, 5}, k[AT] = {0}, v[AT] = {1, 3, 8, 4, 9}, out[AT], lse[AT], sum = 0;
    RUN(attention_forward, .out = out, .lse = lse, .q = q, .k = k, .v = v, .q_stride = 1, .k_stride = 1,
        .v_stride = 1, .B = 1, .T = AT, .S = AT, .H = 1, .K = 1, .D = 1, .type = DTYPE_F64);
    for (int i = 0; i < AT; i++) {
        sum += v[i];
        assert_true(fabs(out[i] - sum / (i + 1)) < 1e-14);
        assert_true(fabs(lse[i] - log(i + 1)) < 1e-14);
    }
    free(c.qkv), free(c.out), free(c.lse), free(c.dout);
}

// Decoding position n of a sequence gives what attention gives it within the whole sequence, and completes
// the cache, whatever was there.
static void test_decoding(void **state) {
    (void)state;
    static const int32_t sequences[AB] = {1, 0}, lengths[AB] = {AT - 1, 2};
    struct attention_case c = {tensor(58, ASIZE), zeros(AB * AT * AC), zeros(AB * AH * AT),
                               zeros(AB * AT * AC), NULL};
    double *cache = tensor(58, ASIZE), rows[AB * 3 * AC], out[AB * AC];
    attention_loss(&c);
    for (int b = 0; b < AB; b++) {
        double *at = cache + (sequences[b] * AT + lengths[b]) * 3 * AC;
        memcpy(rows + b * 3 * AC, at, 3 * AC * sizeof *at);
        for (int i = AC; i < 3 * AC; i++)
            at[i] = NAN;
    }
    RUN(attention_decode, .out = out, .keys = cache + AC, .values = cache + 2 * AC, .q = rows, .k = rows + AC,
        .v = rows + 2 * AC, .sequences = sequences, .lengths = lengths, .q_stride = 3 * AC,
        .k_stride = 3 * AC, .v_stride = 3 * AC, .cache_stride = 3 * AC, .cache_batch_stride = AT * 3 * AC,
        .n_keys = AT + 3, .B = AB, .H = AH, .K = AH, .D = AD, .type = DTYPE_F64);
    assert_memory_equal(cache, c.qkv, ASIZE * sizeof *cache);
    for (int b = 0; b < AB; b++)
        assert_memory_equal(out + b * AC, c.out + (sequences[b] * AT + lengths[b]) * AC, AC * sizeof *out);
    free(c.qkv), free(c.out), free(c.lse), free(c.dout), free(cache);
}

// ---- cross-entropy

enum { CN = 3, CV = 7, CSTRIDE = 9 };
static const float cross_entropy_scale = 0.25f;

struct cross_entropy_case {
    double *logits, *losses;
    int32_t targets[CN];
    float soft_cap, label_smoothing, z_loss;
    const double *weights;
};

static double cross_entropy_loss(void *context) {
    struct cross_entropy_case *c = context;
    RUN(cross_entropy, .losses = c->losses, .logits = c->logits, .targets = c->targets, .weights = c->weights,
        .N = CN, .V = CV, .logits_stride = CSTRIDE, .dlogits_stride = CSTRIDE, .scale = cross_entropy_scale,
        .soft_cap = c->soft_cap, .label_smoothing = c->label_smoothing, .z_loss = c->z_loss,
        .type = DTYPE_F64);
    double sum = 0;
    for (int i = 0; i < CN; i++)
        sum += c->losses[i] * (double)cross_entropy_scale;
    return sum;
}

static void test_cross_entropy(void **state) {
    (void)state;
    struct cross_entropy_case c = {
        .logits = tensor(61, CN * CSTRIDE), .losses = zeros(CN), .targets = {0, 6, 3}};
    double *dlogits = zeros(CN * CSTRIDE);
    RUN(cross_entropy, .losses = c.losses, .dlogits = dlogits, .logits = c.logits, .targets = c.targets,
        .N = CN, .V = CV, .logits_stride = CSTRIDE, .dlogits_stride = CSTRIDE, .scale = cross_entropy_scale,
        .type = DTYPE_F64);
    expect_gradient("dlogits", c.logits, dlogits, CN * CSTRIDE, cross_entropy_loss, &c);

    static const float options[][3] = {{2, 0, 0},        {0, 0.1f, 0}, {0, 0, 0.01f},
                                       {3, 0.2f, 0.05f}, {0, 0, 0},    {3, 0.2f, 0.05f}};
    static const double weights[CN] = {0.3, 0, 2.5};
    for (int i = 0; i < 6; i++) {
        c.weights = i < 4 ? NULL : weights;
        c.soft_cap = options[i][0], c.label_smoothing = options[i][1], c.z_loss = options[i][2];
        RUN(cross_entropy, .losses = c.losses, .dlogits = dlogits, .logits = c.logits, .targets = c.targets,
            .N = CN, .V = CV, .logits_stride = CSTRIDE, .dlogits_stride = CSTRIDE, .weights = c.weights,
            .scale = cross_entropy_scale, .soft_cap = c.soft_cap, .label_smoothing = c.label_smoothing,
            .z_loss = c.z_loss, .type = DTYPE_F64);
        expect_gradient("dlogits", c.logits, dlogits, CN * CSTRIDE, cross_entropy_loss, &c);
    }

    // In place over the logits; equal logits cost log(V), and huge ones do not overflow.
    // 1e-12: lse near 1000 is rounded to 1e-13.
    for (int i = 0; i < CN * CSTRIDE; i++)
        c.logits[i] = i < CSTRIDE ? 1e3 : -1e300 * (i % CSTRIDE == 6 || i % CSTRIDE == 3 ? 0 : 1);
    RUN(cross_entropy, .losses = c.losses, .dlogits = c.logits, .logits = c.logits, .targets = c.targets,
        .N = CN, .V = CV, .logits_stride = CSTRIDE, .dlogits_stride = CSTRIDE, .scale = 1, .type = DTYPE_F64);
    assert_true(fabs(c.losses[0] - log(CV)) < 1e-12);
    assert_true(fabs(c.losses[1] - log(2)) < 1e-15 && fabs(c.losses[2] - log(2)) < 1e-15);
    assert_true(fabs(c.logits[0] - (1.0 / CV - 1)) < 1e-12 && fabs(c.logits[1] - 1.0 / CV) < 1e-12);
    assert_true(c.logits[CSTRIDE] == 0 && fabs(c.logits[CSTRIDE + 6] + 0.5) < 1e-15);
    assert_true(c.logits[CV] == 1e3); // between the rows
    free(c.logits), free(c.losses), free(dlogits);
}

static void test_every_gradient_is_checked(void **state) {
    (void)state;
    expect_all_checked(GRADIENTS_OF_GPT2);
    assert_true(is_run[OP_cross_entropy]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_gelu),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_of_documents),
        cmocka_unit_test(test_attention_with_a_cache),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_every_gradient_is_checked),
    };
    return cmocka_run_group_tests_name("ref gradients", tests, open_device, close_device);
}
