// See op_check.h. Tensors are copied to and from images in host memory, because a device may have memory of
// its own.
#include "tests/ops/op_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

#define GUARD_BYTES      64
#define POISON           0xff // NaN in every floating type
#define PRINTED_PER_CALL 3
#define MAX_TENSORS      ((int)(sizeof((struct op_call *)0)->tensors / sizeof(struct op_tensor)))
#define N_TYPES          ((int)(sizeof((struct op_call *)0)->types / sizeof(enum dtype *)))
#define REQUIRE_OK(...)  require_ok((__VA_ARGS__), __LINE__)

static void require_ok(enum status status, int line) {
    if (status != STATUS_OK)
        fail_msg("op_check.c:%d: %s", line, status_message());
}

static void *allocate(size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    assert_non_null(memory);
    return memory;
}

// ---- describing a call

struct op_layout op_span(size_t n) {
    return (struct op_layout){{1, 1, n}, {0, 0, 1}};
}

struct op_layout op_rows(size_t rows, size_t columns, size_t stride) {
    return (struct op_layout){{1, rows, columns}, {0, stride, 1}};
}

static size_t span_of(const struct op_layout *layout) {
    size_t last = 0;
    for (int i = 0; i < 3; i++)
        last += (layout->counts[i] - 1) * layout->strides[i];
    return last + 1;
}

static void mark_inside(const struct op_layout *layout, bool *inside) {
    for (size_t i = 0; i < layout->counts[0]; i++)
        for (size_t j = 0; j < layout->counts[1]; j++)
            for (size_t k = 0; k < layout->counts[2]; k++)
                inside[i * layout->strides[0] + j * layout->strides[1] + k * layout->strides[2]] = true;
}

void op_call_init(struct op_call *call, struct op_bench *bench, enum operation operation, const char *name,
                  void *args, enum dtype *type, const char *label_format, ...) {
    *call = (struct op_call){
        .bench = bench, .operation = operation, .operation_name = name, .args = args, .types = {type}};
    va_list list;
    va_start(list, label_format);
    vsnprintf(call->label, sizeof call->label, label_format, list);
    va_end(list);
}

double op_round(enum dtype type, double value) {
    switch (type) {
    case DTYPE_F32:
        return (double)(float)value;
    case DTYPE_BF16:
        return (double)bf16_to_float(bf16_from_float((float)value));
    case DTYPE_F16:
        return (double)f16_to_float(f16_from_float((float)value));
    case DTYPE_I32:
        return (double)(int32_t)value;
    default:
        return value;
    }
}

// Normal values. They repeat after a prime number: drawing each anew would take longer than most operations.
static double given_value(uint32_t stream, size_t i) {
    enum { N_VALUES = 65521 };
    static double values[N_VALUES];
    static bool is_drawn;
    for (size_t k = 0; k < N_VALUES && !is_drawn; k++)
        values[k] = rng_normal(20, 1, k);
    is_drawn = true;
    return values[(i + (size_t)stream * 7919) % N_VALUES];
}

struct op_tensor *op_add_tensor(struct op_call *call, const char *name, void *field, enum dtype type,
                                enum op_role role, struct op_layout layout) {
    assert_true(call->n_tensors < MAX_TENSORS);
    struct op_tensor *tensor = &call->tensors[call->n_tensors++];
    *tensor = (struct op_tensor){.name = name,
                                 .fields = {field},
                                 .n_fields = 1,
                                 .type = type,
                                 .role = role,
                                 .layout = layout,
                                 .span = span_of(&layout)};
    tensor->inside = allocate(tensor->span, sizeof *tensor->inside);
    tensor->given = allocate(tensor->span, sizeof *tensor->given);
    tensor->truth = allocate(tensor->span, sizeof *tensor->truth);
    tensor->magnitude = allocate(tensor->span, sizeof *tensor->magnitude);
    tensor->allowed = allocate(tensor->span, sizeof *tensor->allowed);
    mark_inside(&layout, tensor->inside);
    uint32_t stream = call->bench->n_tensors++;
    for (size_t i = 0; i < tensor->span && type != DTYPE_I32; i++)
        tensor->given[i] = op_round(type, given_value(stream, i));
    return tensor;
}

void op_alias(struct op_tensor *tensor, void *field) {
    assert_true(tensor->n_fields < (int)(sizeof tensor->fields / sizeof *tensor->fields));
    tensor->fields[tensor->n_fields++] = field;
}

void op_give(struct op_tensor *tensor, size_t i, double value) {
    tensor->given[i] = op_round(tensor->type, value);
}

void op_scale(struct op_tensor *tensor, double mean, double deviation) {
    for (size_t i = 0; i < tensor->span; i++)
        op_give(tensor, i, mean + deviation * tensor->given[i]);
}

// ---- running

static enum status run(const struct op_call *call, struct stream *stream) {
    if (call->arrange)
        call->arrange(call->args);
    switch (call->operation) {
#define RUN_CASE(name)                                                                                       \
    case OP_##name:                                                                                          \
        return stream->device->ops->name(stream, call->args);
        OPERATIONS(RUN_CASE)
#undef RUN_CASE
    default:
        return FAIL(STATUS_FAILED, "no such operation");
    }
}

static void point_at(const struct op_tensor *tensor, void *memory) {
    for (int i = 0; i < tensor->n_fields; i++)
        memcpy(tensor->fields[i], &memory, sizeof memory);
}

// One element of an image.
static void image_set(void *image, enum dtype type, size_t i, double value) {
    char *at = (char *)image + i * dtype_size(type);
    const float single = (float)value;
    uint16_t half;
    int32_t integer;
    switch (type) {
    case DTYPE_F64:
        memcpy(at, &value, sizeof value);
        return;
    case DTYPE_BF16:
    case DTYPE_F16:
        half = type == DTYPE_F16 ? f16_from_float(single) : bf16_from_float(single);
        memcpy(at, &half, sizeof half);
        return;
    case DTYPE_I32:
        integer = isnan(value) ? -1 : (int32_t)value;
        memcpy(at, &integer, sizeof integer);
        return;
    default:
        memcpy(at, &single, sizeof single);
    }
}

static double image_get(const void *image, enum dtype type, size_t i) {
    const char *at = (const char *)image + i * dtype_size(type);
    double wide;
    float single;
    uint16_t half;
    int32_t integer;
    switch (type) {
    case DTYPE_F64:
        memcpy(&wide, at, sizeof wide);
        return wide;
    case DTYPE_BF16:
        memcpy(&half, at, sizeof half);
        return (double)bf16_to_float(half);
    case DTYPE_F16:
        memcpy(&half, at, sizeof half);
        return (double)f16_to_float(half);
    case DTYPE_I32:
        memcpy(&integer, at, sizeof integer);
        return integer;
    default:
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
}

static void new_stream(struct device *device, const struct op_call *call, size_t guard,
                       struct stream *stream) {
    REQUIRE_OK(stream_init(stream, device));
    REQUIRE_OK(device->ops->workspace_bytes(device, call->operation, call->args, &stream->workspace_bytes));
    size_t bytes = stream->workspace_bytes + guard;
    char *poison = allocate(bytes, 1);
    memset(poison, POISON, bytes);
    REQUIRE_OK(device->memory_new(device, bytes, "tests", &stream->workspace));
    REQUIRE_OK(device->copy(stream, stream->workspace, poison, bytes));
    REQUIRE_OK(device->synchronize(stream));
    free(poison);
}

static void delete_stream(struct stream *stream, size_t guard) {
    stream->device->memory_delete(stream->device, stream->workspace, stream->workspace_bytes + guard);
    stream_free(stream);
}

// Runs the reference in double. Results go to `truth`, or with absolute values to `magnitude`.
static void run_reference(struct op_call *call, bool magnitudes) {
    struct device *device = call->bench->reference;
    void *memory[MAX_TENSORS];
    enum dtype types[N_TYPES] = {DTYPE_F64};
    for (int k = 0; k < call->n_tensors; k++) {
        struct op_tensor *tensor = &call->tensors[k];
        enum dtype wide = tensor->type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F64;
        memory[k] = allocate(tensor->span, dtype_size(wide));
        for (size_t i = 0; i < tensor->span; i++)
            image_set(memory[k], wide, i,
                      tensor->role == OP_WRITE ? (double)NAN
                      : magnitudes             ? fabs(tensor->given[i])
                                               : tensor->given[i]);
        point_at(tensor, memory[k]);
    }
    for (int k = 0; k < N_TYPES && call->types[k]; k++) {
        types[k] = *call->types[k];
        *call->types[k] = DTYPE_F64;
    }
    struct stream stream;
    new_stream(device, call, 0, &stream);
    REQUIRE_OK(run(call, &stream));
    delete_stream(&stream, 0);
    for (int k = 0; k < N_TYPES && call->types[k]; k++)
        *call->types[k] = types[k];
    for (int k = 0; k < call->n_tensors; k++) {
        struct op_tensor *tensor = &call->tensors[k];
        double *results = magnitudes ? tensor->magnitude : tensor->truth;
        for (size_t i = 0; i < tensor->span; i++)
            results[i] = image_get(memory[k], tensor->type == DTYPE_I32 ? DTYPE_I32 : DTYPE_F64, i);
        free(memory[k]);
    }
}

void op_reference_call(const struct op_bench *bench, enum operation operation, void *args) {
    struct op_call call = {.operation = operation, .args = args};
    struct stream stream;
    new_stream(bench->reference, &call, 0, &stream);
    REQUIRE_OK(run(&call, &stream));
    delete_stream(&stream, 0);
}

void op_call_reference(struct op_call *call) {
    run_reference(call, false);
}

void op_call_magnitudes(struct op_call *call) {
    run_reference(call, true);
}

void op_allow_roundings(struct op_tensor *tensor, double roundings) {
    for (size_t i = 0; i < tensor->span; i++)
        tensor->allowed[i] = roundings * OP_UNIT * fabs(tensor->magnitude[i]);
}

void op_same_when_rounded(struct op_tensor *tensor, const struct op_tensor *from) {
    tensor->rounds = from;
}

// ---- judging

static void wrong(struct op_call *call, int *n_printed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void wrong(struct op_call *call, int *n_printed, const char *format, ...) {
    char text[256];
    call->bench->n_wrong++;
    if ((*n_printed)++ >= PRINTED_PER_CALL)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    print_error("%s, %s %s, %s: %s\n", call->bench->device->description, dtype_name(*call->types[0]),
                call->operation_name, call->label, text);
}

// A tensor on the device: its allocation, and its contents before and after the call.
struct placed_tensor {
    void *memory;
    size_t bytes, offset; // offset: of the tensor in the allocation
    char *before, *after, *first_after;
};

// The error of rounding a result to its type; absolute below the normal numbers.
static double result_rounding(enum dtype type, double value) {
    return fmax(dtype_epsilon(type) * fabs(value), dtype_smallest(type)) / 2;
}

double op_overflow(enum dtype type) {
    static const double limits[N_DTYPES] = {
        [DTYPE_F32] = 0x1.ffffffp127, [DTYPE_BF16] = 0x1.ffp127, [DTYPE_F16] = 65520, [DTYPE_F64] = HUGE_VAL};
    return limits[type];
}

static void judge_element(struct op_call *call, const struct op_tensor *tensor, size_t i, double got,
                          int *n_printed) {
    double truth = tensor->truth[i], error = fabs(got - truth);
    if (isinf(tensor->allowed[i]))
        return;
    if (tensor->exact || !isfinite(truth)) {
        double rounded = op_round(tensor->type, truth);
        if (got != rounded && !(isnan(got) && isnan(rounded)))
            wrong(call, n_printed, "%s[%zu] is %.9g, expected exactly %.9g", tensor->name, i, got, rounded);
        return;
    }
    // Where rounding overflows, infinity is correct and the largest finite number is wrong.
    double limit = op_overflow(tensor->type);
    if (isinf(got) ? fabs(truth) + tensor->allowed[i] >= limit && !signbit(got) == !signbit(truth)
                   : fabs(truth) - tensor->allowed[i] > limit) {
        if (!isinf(got))
            wrong(call, n_printed, "%s[%zu] is %.9g, expected infinity for %.9g", tensor->name, i, got,
                  truth);
        return;
    }
    // Rounding a value that already has an error may increase that error by this factor.
    double allowed =
        tensor->allowed[i] * (1 + dtype_epsilon(tensor->type)) + result_rounding(tensor->type, truth);
    if (!(error <= allowed))
        wrong(call, n_printed, "%s[%zu] is %.9g, expected %.9g: off by %.3g, allowed %.3g", tensor->name, i,
              got, truth, error, allowed);
    else if (error > allowed * call->bench->worst_ratio[*call->types[0]])
        call->bench->worst_ratio[*call->types[0]] = error / allowed;
}

// Reports the bytes of [begin, end) that a call changed.
static void judge_unchanged(struct op_call *call, const struct op_tensor *tensor,
                            const struct placed_tensor *placed, size_t begin, size_t end, const char *where,
                            int *n_printed) {
    if (memcmp(placed->before + begin, placed->after + begin, end - begin) == 0)
        return;
    for (size_t byte = begin; byte < end; byte++)
        if (placed->before[byte] != placed->after[byte])
            wrong(call, n_printed, "byte %td of %s was overwritten: %s",
                  (ptrdiff_t)byte - (ptrdiff_t)placed->offset, tensor->name, where);
}

static void judge_tensor(struct op_call *call, const struct op_tensor *tensor,
                         const struct placed_tensor *placed, int *n_printed) {
    const size_t size = dtype_size(tensor->type), begin = placed->offset, end = begin + tensor->span * size;
    judge_unchanged(call, tensor, placed, 0, begin, "outside the tensor", n_printed);
    judge_unchanged(call, tensor, placed, end, placed->bytes, "outside the tensor", n_printed);
    if (tensor->role == OP_READ) {
        judge_unchanged(call, tensor, placed, begin, end, "it is an input", n_printed);
        return;
    }
    for (size_t i = 0; i < tensor->span; i++)
        if (tensor->inside[i])
            judge_element(call, tensor, i, image_get(placed->after + placed->offset, tensor->type, i),
                          n_printed);
        else
            judge_unchanged(call, tensor, placed, begin + i * size, begin + (i + 1) * size,
                            "it lies between the rows", n_printed);
}

// Checks op_tensor.rounds: both tensors are results of the same call.
static void judge_rounding(struct op_call *call, int k, const struct placed_tensor *placed, int *n_printed) {
    const struct op_tensor *tensor = &call->tensors[k], *from = tensor->rounds;
    for (size_t i = 0; i < tensor->span; i++) {
        double got = image_get(placed[k].after + placed[k].offset, tensor->type, i);
        const struct placed_tensor *source = &placed[from - call->tensors];
        double wanted = op_round(tensor->type, image_get(source->after + source->offset, from->type, i));
        if (got != wanted && !(isnan(got) && isnan(wanted)))
            wrong(call, n_printed, "%s[%zu] is %.9g, but %s rounds to %.9g", tensor->name, i, got, from->name,
                  wanted);
    }
}

static void place(struct device *device, const struct op_tensor *tensor, size_t guard,
                  struct placed_tensor *placed) {
    size_t size = dtype_size(tensor->type);
    placed->offset = guard ? guard + size : 0; // aligned to the element only
    placed->bytes = placed->offset + tensor->span * size + guard;
    placed->before = allocate(placed->bytes, 1);
    placed->after = allocate(placed->bytes, 1);
    placed->first_after = allocate(placed->bytes, 1);
    memset(placed->before, POISON, placed->bytes);
    for (size_t i = 0; i < tensor->span && tensor->role != OP_WRITE; i++)
        if (tensor->inside[i])
            image_set(placed->before + placed->offset, tensor->type, i, tensor->given[i]);
    REQUIRE_OK(device->memory_new(device, placed->bytes, "tests", &placed->memory));
}

static void run_placed(struct op_call *call, struct device *device, struct placed_tensor *placed,
                       size_t guard, int *n_printed) {
    struct stream stream;
    size_t n = 0;
    for (int k = 0; k < call->n_tensors; k++)
        point_at(&call->tensors[k], (char *)placed[k].memory + placed[k].offset);
    new_stream(device, call, guard, &stream);
    for (int k = 0; k < call->n_tensors; k++)
        REQUIRE_OK(device->copy(&stream, placed[k].memory, placed[k].before, placed[k].bytes));
    REQUIRE_OK(run(call, &stream));
    for (int k = 0; k < call->n_tensors; k++)
        REQUIRE_OK(device->copy(&stream, placed[k].after, placed[k].memory, placed[k].bytes));
    char end[GUARD_BYTES];
    REQUIRE_OK(device->copy(&stream, end, (char *)stream.workspace + stream.workspace_bytes, guard));
    REQUIRE_OK(device->synchronize(&stream));
    for (size_t i = 0; i < guard; i++)
        if ((unsigned char)end[i] != POISON)
            wrong(call, n_printed, "byte %zu after the workspace's %zu was overwritten", i,
                  stream.workspace_bytes);
    delete_stream(&stream, guard);
    for (int k = 0; k < call->n_tensors; k++)
        n = call->tensors[k].span > n ? call->tensors[k].span : n;
    op_count_call(call->bench, call->operation, n);
}

// tests/cudasim; NULL on a real GPU.
void cudasim_reorder(unsigned seed) __attribute__((weak));

bool op_is_short(const struct op_bench *bench) {
    bool is_covered = (bench->device->place == REGION_DEVICE && cudasim_reorder) ||
                      bench->device->ops == bench->reference->ops;
#ifdef __clang__
    is_covered = true;
#endif
    return is_covered && !getenv("ZERO_TESTS_FULL");
}

bool op_leaves_repeats(void) {
#if defined __SANITIZE_ADDRESS__ || defined __clang__
    return !getenv("ZERO_TESTS_FULL");
#else
    return false;
#endif
}

bool op_has_turn(enum dtype type, size_t number) {
    return number % N_COMPUTE_DTYPES == (size_t)type || getenv("ZERO_TESTS_FULL");
}

// Which calls are made in memory with guard bytes and odd alignment, and which in aligned memory: all of them
// in both; where the run is short, in turn, and the address sanitizer's build takes those that the others do
// not.
static bool is_placed(const struct op_bench *bench, size_t guard) {
#ifdef __SANITIZE_ADDRESS__
    const bool odd = true;
#else
    const bool odd = false;
#endif
    if (bench->by_cudnn)
        return !guard;
    return !op_is_short(bench) || (bench->n_judged % 2 == odd) == (guard > 0);
}

// Whether a call is made again, to compare its bits: where the run is short, each fourth one.
static bool is_repeated(const struct op_bench *bench) {
    return !op_is_short(bench) || bench->n_judged % 4 < 2;
}

// Makes a call again and compares its bits with those of the first time.
//   device   with the memory of the first one; NULL: no-op
static void repeat_placed(struct op_call *call, struct device *device, struct placed_tensor *placed,
                          size_t guard, int *n_printed) {
    if (!device)
        return;
    run_placed(call, device, placed, guard, n_printed);
    for (int k = 0; k < call->n_tensors; k++)
        if (memcmp(placed[k].first_after, placed[k].after, placed[k].bytes) != 0)
            wrong(call, n_printed, "%s has different bits when called again, by %d threads instead of %d",
                  call->tensors[k].name, device->n_threads, call->bench->device->n_threads);
}

static void judge_with_guards(struct op_call *call, size_t guard) {
    struct device *device = call->bench->device;
    struct placed_tensor placed[MAX_TENSORS];
    int n_printed = 0;
    for (int k = 0; k < call->n_tensors; k++)
        place(device, &call->tensors[k], guard, &placed[k]);
    run_placed(call, device, placed, guard, &n_printed);
    for (int k = 0; k < call->n_tensors; k++) {
        judge_tensor(call, &call->tensors[k], &placed[k], &n_printed);
        if (call->tensors[k].rounds)
            judge_rounding(call, k, placed, &n_printed);
        memcpy(placed[k].first_after, placed[k].after, placed[k].bytes);
    }
    for (int i = 0; guard && is_repeated(call->bench) && i < OP_OTHERS; i++)
        repeat_placed(call, call->bench->others[i], placed, guard, &n_printed);
    for (int k = 0; k < call->n_tensors; k++) {
        device->memory_delete(device, placed[k].memory, placed[k].bytes);
        free(placed[k].before), free(placed[k].after), free(placed[k].first_after);
    }
}

void op_call_judge(struct op_call *call) {
    const size_t guards[] = {GUARD_BYTES, 0};
    for (int k = 0; k < 2; k++)
        if (is_placed(call->bench, guards[k]))
            judge_with_guards(call, guards[k]);
    call->bench->n_judged++;
    for (int k = 0; k < call->n_tensors; k++) {
        struct op_tensor *tensor = &call->tensors[k];
        free(tensor->inside), free(tensor->given), free(tensor->truth);
        free(tensor->magnitude), free(tensor->allowed);
    }
}
