// Linear layers, attention and batches of matrices on a GPU at the sizes of training, where cuBLASLt takes
// other kernels than at those of the other tests. The truth is the CPU backend in fp32 on the same numbers,
// because the reference in double would take minutes. Skipped without a GPU.
//
// usage: test_kernels_training_sizes [TOKENS N_EMBD VOCABULARY]     such as 8192 768 50257; small without
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "kernels/matrix.h"

#define UNIT   0x1p-24 // largest relative error of one rounding to fp32
#define HEAD_D 64

static int tokens = 96, n_embd = 64, vocabulary = 517;
static struct device *gpu, *cpu;

static void require(enum status status) {
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
}

// ---- tensors: the same numbers in fp32 on the host and in `type` on the GPU

struct tensor {
    float *values; // (n), representable in `type`
    void *there;   // on the GPU
    size_t n;
    enum dtype type;
};

static float *new_values(size_t n) {
    float *values = calloc(n, sizeof *values);
    assert_non_null(values);
    return values;
}

static float rounded(enum dtype type, float value) {
    return type == DTYPE_BF16  ? bf16_to_float(bf16_from_float(value))
           : type == DTYPE_F16 ? f16_to_float(f16_from_float(value))
                               : value;
}

static void copy(void *to, const void *from, size_t bytes) {
    struct stream stream;
    require(stream_init(&stream, gpu));
    require(gpu->copy(&stream, to, from, bytes));
    require(gpu->synchronize(&stream));
    stream_free(&stream);
}

static void upload(const struct tensor *tensor) {
    uint16_t *halves = malloc(tensor->n * sizeof *halves);
    assert_non_null(halves);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < tensor->n; i++)
        halves[i] = tensor->type == DTYPE_BF16 ? bf16_from_float(tensor->values[i])
                                               : f16_from_float(tensor->values[i]);
    copy(tensor->there, tensor->type == DTYPE_F32 ? (const void *)tensor->values : halves,
         tensor->n * dtype_size(tensor->type));
    free(halves);
}

static struct tensor random_tensor(enum dtype type, size_t n, uint32_t seed) {
    struct tensor tensor = {.values = new_values(n), .n = n, .type = type};
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        uint32_t words[4];
        rng_block(11, seed, i, words);
        tensor.values[i] = rounded(type, (float)(words[0] >> 8) * 0x1p-23F - 1);
    }
    require(gpu->memory_new(gpu, n * dtype_size(type), "the test", &tensor.there));
    upload(&tensor);
    return tensor;
}

static struct tensor zero_tensor(enum dtype type, size_t n) {
    struct tensor tensor = {.values = new_values(n), .n = n, .type = type};
    require(gpu->memory_new(gpu, n * dtype_size(type), "the test", &tensor.there));
    return tensor;
}

static void tensor_free(struct tensor *tensor) {
    if (tensor->there)
        gpu->memory_delete(gpu, tensor->there, tensor->n * dtype_size(tensor->type));
    free(tensor->values);
}

// What the GPU computed; free it with free().
static float *download(const struct tensor *tensor) {
    float *values = new_values(tensor->n);
    const size_t bytes = tensor->n * dtype_size(tensor->type);
    void *image = malloc(bytes);
    assert_non_null(image);
    copy(image, tensor->there, bytes);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < tensor->n; i++)
        values[i] = tensor->type == DTYPE_F32    ? ((const float *)image)[i]
                    : tensor->type == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)image)[i])
                                                 : f16_to_float(((const uint16_t *)image)[i]);
    free(image);
    return values;
}

static float *absolute(const struct tensor *tensor) {
    float *values = new_values(tensor->n);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < tensor->n; i++)
        values[i] = fabsf(tensor->values[i]);
    return values;
}

// ---- running and comparing

static enum status call_on(struct device *device, enum operation operation, const void *args) {
    struct stream stream;
    require(stream_init(&stream, device));
    enum status status = device->ops->workspace_bytes(device, operation, args, &stream.workspace_bytes);
    if (status == STATUS_OK)
        status = device->memory_new(device, stream.workspace_bytes, "the test", &stream.workspace);
    if (status == STATUS_OK)
        status = operation == OP_linear_forward    ? device->ops->linear_forward(&stream, args)
                 : operation == OP_linear_backward ? device->ops->linear_backward(&stream, args)
                 : operation == OP_matrix_product  ? device->ops->matrix_product(&stream, args)
                                                   : device->ops->attention_forward(&stream, args);
    if (status == STATUS_OK)
        status = device->synchronize(&stream);
    device->memory_delete(device, stream.workspace, stream.workspace_bytes);
    stream_free(&stream);
    return status;
}

// |result - truth| <= allowed[i], then one rounding to the type.
static void expect_close(const char *what, const struct tensor *tensor, const float *truth,
                         const float *allowed) {
    float *found = download(tensor);
    const double half = tensor->type == DTYPE_F32 ? UNIT : dtype_epsilon(tensor->type) / 2;
    double worst = 0;
    size_t n_wrong = 0, first = tensor->n;
#pragma omp parallel for schedule(static) reduction(max : worst) reduction(+ : n_wrong) reduction(min : first)
    for (size_t i = 0; i < tensor->n; i++) {
        const double bound =
            allowed[i] + half * (fabs((double)truth[i]) + allowed[i]) + dtype_smallest(tensor->type);
        const double off = fabs((double)found[i] - (double)truth[i]);
        worst = fmax(worst, off / bound);
        if (!(off <= bound)) {
            n_wrong++;
            first = i < first ? i : first;
        }
    }
    if (n_wrong > 0)
        fail_msg("%s %s: %zu of %zu elements are wrong; element %zu is %g, expected %g within %g", what,
                 dtype_name(tensor->type), n_wrong, tensor->n, first, (double)found[first],
                 (double)truth[first], (double)allowed[first]);
    printf("# %s %s: the largest error is %.2f of the bound\n", what, dtype_name(tensor->type), worst);
    free(found);
}

// magnitude * roundings, for both backends: Higham, Accuracy and Stability of Numerical Algorithms,
// section 3.1.
static void allow_sums(float *magnitude, size_t n, int n_terms) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        magnitude[i] *= (float)(2 * (n_terms + 3) * UNIT);
}

// ---- linear layers

static const double largest_gelu_slope = 1.13;
#define GELU_ROUNDINGS 8 // see op_check_linear.c; here of both backends

static void forward(const char *what, enum dtype type, int IC, int OC, bool gelu, bool residual, bool fp32) {
    const size_t N = (size_t)tokens, n_out = N * (size_t)OC;
    struct tensor x = random_tensor(type, N * (size_t)IC, 1),
                  weight = random_tensor(type, (size_t)OC * (size_t)IC, 2),
                  bias = random_tensor(type, (size_t)OC, 3), added = {0},
                  out = zero_tensor(fp32 ? DTYPE_F32 : type, n_out);
    if (residual)
        added = random_tensor(type, n_out, 4);
    struct linear_forward_args args = {.out = out.there,
                                       .x = x.there,
                                       .weight = weight.there,
                                       .bias = bias.there,
                                       .residual = added.there,
                                       .N = tokens,
                                       .IC = IC,
                                       .OC = OC,
                                       .out_stride = OC,
                                       .activation = gelu ? ACTIVATION_GELU : ACTIVATION_NONE,
                                       .type = type,
                                       .out_type = out.type};
    require(call_on(gpu, OP_linear_forward, &args));
    float *truth = new_values(n_out), *allowed = new_values(n_out), *x_abs = absolute(&x),
          *weight_abs = absolute(&weight), *bias_abs = absolute(&bias),
          *added_abs = residual ? absolute(&added) : NULL;
    args.type = args.out_type = DTYPE_F32;
    args.activation = ACTIVATION_NONE;
    args.out = allowed, args.x = x_abs, args.weight = weight_abs, args.bias = bias_abs,
    args.residual = added_abs;
    require(call_on(cpu, OP_linear_forward, &args));
    allow_sums(allowed, n_out, IC);
    args.out = truth, args.x = x.values, args.weight = weight.values, args.bias = bias.values,
    args.residual = added.values;
    if (gelu) {
        require(call_on(cpu, OP_linear_forward, &args));
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < n_out; i++) {
            const double sum = fabs((double)truth[i]) + allowed[i];
            allowed[i] = (float)(largest_gelu_slope * (allowed[i] + dtype_epsilon(type) / 2 * sum) +
                                 2 * GELU_ROUNDINGS * UNIT * sum);
        }
        args.activation = ACTIVATION_GELU;
    }
    require(call_on(cpu, OP_linear_forward, &args));
    expect_close(what, &out, truth, allowed);
    float *const values[] = {truth, allowed, x_abs, weight_abs, bias_abs, added_abs};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        free(values[i]);
    struct tensor *const tensors[] = {&x, &weight, &bias, &added, &out};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        tensor_free(tensors[i]);
}

static void backward(const char *what, enum dtype type, int IC, int OC) {
    const size_t N = (size_t)tokens, n_x = N * (size_t)IC, n_weight = (size_t)OC * (size_t)IC;
    struct tensor x = random_tensor(type, n_x, 5), weight = random_tensor(type, n_weight, 6),
                  dout = random_tensor(type, N * (size_t)OC, 7), dx = zero_tensor(type, n_x),
                  dweight = zero_tensor(DTYPE_F32, n_weight), dbias = zero_tensor(DTYPE_F32, (size_t)OC);
    struct linear_backward_args args = {.dx = dx.there,
                                        .dweight = dweight.there,
                                        .dbias = dbias.there,
                                        .dout = dout.there,
                                        .x = x.there,
                                        .weight = weight.there,
                                        .N = tokens,
                                        .IC = IC,
                                        .OC = OC,
                                        .dout_stride = OC,
                                        .beta_zero = true,
                                        .type = type};
    require(call_on(gpu, OP_linear_backward, &args));
    float *truth[3], *allowed[3], *x_abs = absolute(&x), *weight_abs = absolute(&weight),
                                  *dout_abs = absolute(&dout);
    const size_t sizes[] = {n_x, n_weight, (size_t)OC};
    for (int i = 0; i < 3; i++) {
        truth[i] = new_values(sizes[i]);
        allowed[i] = new_values(sizes[i]);
    }
    args.type = DTYPE_F32;
    args.dx = truth[0], args.dweight = truth[1], args.dbias = truth[2];
    args.dout = dout.values, args.x = x.values, args.weight = weight.values;
    require(call_on(cpu, OP_linear_backward, &args));
    args.dx = allowed[0], args.dweight = allowed[1], args.dbias = allowed[2];
    args.dout = dout_abs, args.x = x_abs, args.weight = weight_abs;
    require(call_on(cpu, OP_linear_backward, &args));
    struct tensor *const results[] = {&dx, &dweight, &dbias};
    static const char *const names[] = {"dx", "dweight", "dbias"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s %s", what, names[i]);
        allow_sums(allowed[i], sizes[i], i == 0 ? OC : tokens);
        expect_close(name, results[i], truth[i], allowed[i]);
        free(truth[i]);
        free(allowed[i]);
    }
    free(x_abs);
    free(weight_abs);
    free(dout_abs);
    struct tensor *const tensors[] = {&x, &weight, &dout, &dx, &dweight, &dbias};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        tensor_free(tensors[i]);
}

static void test_linear_forward(void **state) {
    (void)state;
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1)) {
        forward("qkv", type, n_embd, 3 * n_embd, false, false, false);
        forward("attention out", type, n_embd, n_embd, false, true, false);
        forward("mlp up, GELU", type, n_embd, 4 * n_embd, true, false, false);
        forward("mlp down", type, 4 * n_embd, n_embd, false, true, false);
        forward("lm_head", type, n_embd, vocabulary, false, false, true);
    }
}

static void test_linear_backward(void **state) {
    (void)state;
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1)) {
        backward("qkv", type, n_embd, 3 * n_embd);
        backward("mlp up", type, n_embd, 4 * n_embd);
        backward("mlp down", type, 4 * n_embd, n_embd);
        backward("lm_head", type, n_embd, vocabulary);
    }
}

// ---- attention

// out is a convex combination of rows of v. Probabilities are rounded to the type for the product with v, so
// each term is off by half an epsilon of p |v|; the scores' errors are D + 2 roundings of sums of at most D
// terms of magnitude 1 / sqrt(D), and 4 for exp, which p multiplies; the sum over S adds in fp32.
static void attention(enum dtype type, int T, int H, int B) {
    const size_t C = (size_t)H * HEAD_D, row = 3 * C, n = (size_t)B * (size_t)T;
    struct tensor qkv = random_tensor(type, n * row, 8), out = zero_tensor(type, n * C);
    const size_t step = C * dtype_size(type);
    struct attention_forward_args args = {.out = out.there,
                                          .q = qkv.there,
                                          .k = (const char *)qkv.there + step,
                                          .v = (const char *)qkv.there + 2 * step,
                                          .q_stride = row,
                                          .q_batch_stride = row * (size_t)T,
                                          .k_stride = row,
                                          .v_stride = row,
                                          .k_batch_stride = row * (size_t)T,
                                          .v_batch_stride = row * (size_t)T,
                                          .B = B,
                                          .T = T,
                                          .S = T,
                                          .H = H,
                                          .K = H,
                                          .D = HEAD_D,
                                          .type = type};
    require(call_on(gpu, OP_attention_forward, &args));
    float *truth = new_values(out.n), *allowed = new_values(out.n), *v_abs = absolute(&qkv);
    args.type = DTYPE_F32;
    args.q = qkv.values, args.k = qkv.values + C, args.v = qkv.values + 2 * C, args.out = truth;
    require(call_on(cpu, OP_attention_forward, &args));
    args.v = v_abs + 2 * C, args.out = allowed;
    require(call_on(cpu, OP_attention_forward, &args));
    const double half = type == DTYPE_F32 ? UNIT : dtype_epsilon(type) / 2,
                 of_scores = 2 * (HEAD_D + 2) * UNIT * sqrt(HEAD_D) + 4 * UNIT;
    for (size_t i = 0; i < out.n; i++)
        allowed[i] *= (float)(2 * half + 2 * (2 * of_scores + (T + 3) * UNIT));
    expect_close("attention", &out, truth, allowed);
    free(truth);
    free(allowed);
    free(v_abs);
    tensor_free(&qkv);
    tensor_free(&out);
}

static void test_attention_forward(void **state) {
    (void)state;
    const int H = n_embd / HEAD_D, T = tokens < 1024 ? tokens : 1024;
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
        attention(type, T, H, tokens / T);
}

// ---- batches of matrices, as Newton-Schulz iterations have them

// Whether each matrix of a batch has the bits that it has alone.
static void batch(enum dtype type, struct matrix_product_args args) {
    const size_t n = (size_t)args.n_matrices;
    args.x_distance = (size_t)args.rows * (size_t)args.inner;
    args.y_distance = (size_t)args.inner * (size_t)args.columns;
    args.out_distance = args.addend_distance = (size_t)args.rows * (size_t)args.columns;
    struct tensor x = random_tensor(type, n * args.x_distance, 1),
                  y = random_tensor(type, n * args.y_distance, 2),
                  addend = random_tensor(type, n * args.out_distance, 3),
                  together = zero_tensor(type, n * args.out_distance),
                  alone = zero_tensor(type, n * args.out_distance);
    args.out = together.there, args.x = x.there, args.y = y.there, args.addend = addend.there;
    args.alpha = 2.0315, args.beta = -4.775, args.type = type;
    require(call_on(gpu, OP_matrix_product, &args));
    for (int i = 0; i < args.n_matrices; i++) {
        struct matrix_product_args one = matrix_product_of(&args, i);
        one.out = matrix_at(alone.there, args.out_distance, i, type);
        require(call_on(gpu, OP_matrix_product, &one));
    }
    float *got = download(&together), *wanted = download(&alone);
    for (size_t i = 0; i < n * args.out_distance; i++)
        if (memcmp(&got[i], &wanted[i], sizeof *got) != 0)
            fail_msg("%s, %d x %d x %d, %d matrices: element %zu of matrix %zu is %g, and %g alone",
                     dtype_name(type), args.rows, args.columns, args.inner, args.n_matrices,
                     i % args.out_distance, i / args.out_distance, (double)got[i], (double)wanted[i]);
    free(got);
    free(wanted);
    struct tensor *const tensors[] = {&x, &y, &addend, &together, &alone};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        tensor_free(tensors[i]);
}

static void test_batches(void **state) {
    static const int numbers[] = {2, 7, 12, 24};
    const int n = n_embd;
    const struct matrix_product_args products[] = {
        {.rows = n, .columns = n, .inner = 4 * n, .y_transposed = true}, // of wide matrices
        {.rows = n, .columns = 4 * n, .inner = n},
        {.rows = n, .columns = n, .inner = 4 * n, .x_transposed = true}, // of tall ones
        {.rows = 4 * n, .columns = n, .inner = n},
        {.rows = n, .columns = n, .inner = n, .y_transposed = true}};
    (void)state;
    for (enum dtype type = DTYPE_F32; type < N_COMPUTE_DTYPES; type = (enum dtype)(type + 1))
        for (size_t i = 0; i < sizeof products / sizeof *products; i++)
            for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
                struct matrix_product_args args = products[i];
                args.n_matrices = numbers[k];
                batch(type, args);
            }
}

static void test_on_a_gpu(void **state) {
    (void)state;
    skip();
}

static int take_size(const char *word) {
    const long value = strtol(word, NULL, 10);
    if (value < HEAD_D || value > 1 << 20) {
        fprintf(stderr, "usage: test_kernels_training_sizes [TOKENS N_EMBD VOCABULARY], numbers from %d\n",
                HEAD_D);
        exit(2);
    }
    return (int)value;
}

int main(int n_args, char **args) {
    static const struct CMUnitTest without_a_gpu[] = {cmocka_unit_test(test_on_a_gpu)};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_forward), cmocka_unit_test(test_linear_backward),
        cmocka_unit_test(test_attention_forward), cmocka_unit_test(test_batches)};
    if (n_args == 4) {
        tokens = take_size(args[1]);
        n_embd = take_size(args[2]) / HEAD_D * HEAD_D;
        vocabulary = take_size(args[3]);
    }
    if (cuda_device_open(0, &gpu) != STATUS_OK) {
        status_clear();
        return cmocka_run_group_tests_name("training sizes on a GPU", without_a_gpu, NULL, NULL);
    }
    if (device_open("cpu", 0, 0, &cpu) != STATUS_OK)
        return 1;
    const int failed = cmocka_run_group_tests_name("training sizes on a GPU", tests, NULL, NULL);
    device_close(cpu);
    device_close(gpu);
    return failed;
}
