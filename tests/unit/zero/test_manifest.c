// Manifests: parsing returns what was printed, for every partition; forged members are refused by name;
// thousands of ranks need little space and time.
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/support/damage.h"
#include "tests/support/expect.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/manifest.h"

#define RANKS 3

static struct config config;
static struct params params;

// A manifest of files that do not exist: sizes as in the layout, checksums that contain the rank.
struct sample {
    struct partition partition;
    struct checkpoint_layout layout;
    struct checkpoint_file *files;
    char (*names)[24];
    unsigned char *n_moments; // (n_params) with VARIED
    struct text text;
};

// What the optimizer keeps: two moments of each element; none; or 0, 1 and 2 moments of the tensors in turn.
enum variant { PLAIN, NO_MOMENTS, VARIED, N_VARIANTS };

static void sample_init(struct sample *sample, const struct params *of, enum partition_kind kind, int world) {
    *sample = (struct sample){0};
    partition_init(&sample->partition, of, kind, world);
    sample->files = calloc((size_t)world, sizeof *sample->files);
    sample->names = calloc((size_t)world, sizeof *sample->names);
    sample->n_moments = calloc((size_t)of->n_params, sizeof *sample->n_moments);
    assert_true(sample->files && sample->names && sample->n_moments);
    for (int i = 0; i < of->n_params; i++)
        sample->n_moments[i] = (unsigned char)(i % 3);
}

static bool has_average(const struct sample *sample) {
    return sample->partition.world > 1;
}

static void sample_print(struct sample *sample, const struct params *of, enum variant variant) {
    const struct run_state none = {0}, run = {.average = {.n = 5, .weight_sum = 0.0625, .lr_max = 0.25}};
    const struct checkpoint_contents contents = {
        .partition = &sample->partition,
        .step = 7,
        .tokens = 448,
        .config = &config,
        .params = of,
        .compute = DTYPE_BF16,
        .device = "avx2, oneDNN 2.6.3",
        .attention = {CONFIG_ATTENTION_CUDNN, "9.19.0"},
        .kinds = {.n = variant == NO_MOMENTS ? 1 : 3,
                  .has_average = has_average(sample),
                  .n_moments = variant == VARIED ? sample->n_moments : NULL},
        .run = has_average(sample) ? &run : &none};
    int world = sample->partition.world;
    checkpoint_layout_init(&sample->layout, of, &sample->partition, &contents.kinds);
    for (int rank = 0; rank < world; rank++) {
        snprintf(sample->names[rank], sizeof *sample->names, MANIFEST_RANK_FILE, rank);
        sample->files[rank] = (struct checkpoint_file){.name = sample->names[rank],
                                                       .bytes = sample->layout.file_bytes[rank],
                                                       .checksum = 0xabcdef0000000000u + (uint64_t)rank};
    }
    manifest_print(&contents, "test", NULL, sample->files, world, &sample->text);
}

static void sample_free(struct sample *sample) {
    checkpoint_layout_free(&sample->layout);
    partition_free(&sample->partition);
    text_free(&sample->text);
    free(sample->files);
    free(sample->names);
    free(sample->n_moments);
}

static enum status parse(const struct text *text, struct checkpoint **out) {
    *out = calloc(1, sizeof **out);
    assert_non_null(*out);
    return manifest_parse(*out, text->data, text->length, "manifest.json");
}

// Finds every element of every kind where the writer put it: spans in file order, without gaps.
static void expect_places(const struct checkpoint *checkpoint, const struct sample *sample) {
    struct checkpoint_layout_cursor cursor = {0};
    struct checkpoint_span span, found;
    uint64_t *ends = calloc((size_t)sample->partition.world, sizeof *ends);
    assert_non_null(ends);
    while (checkpoint_layout_next(&sample->layout, -1, &cursor, &span)) {
        assert_int_equal(span.offset, ends[span.file]);
        ends[span.file] += (span.end - span.begin) * sizeof(float);
        const size_t elements[] = {span.begin, span.begin + (span.end - span.begin) / 2, span.end - 1};
        for (int i = 0; i < 3; i++) {
            assert_true(
                checkpoint_layout_find(&checkpoint->layout, span.kind, span.unit, elements[i], &found));
            assert_int_equal(found.file, span.file);
            assert_int_equal(found.begin, elements[i]);
            assert_int_equal(found.end, span.end);
            assert_int_equal(found.offset, span.offset + (elements[i] - span.begin) * sizeof(float));
        }
    }
    for (int rank = 0; rank < sample->partition.world; rank++)
        assert_int_equal(ends[rank], checkpoint->files[rank].bytes);
    free(ends);
    for (int kind = 0; kind < N_CHECKPOINT_KINDS; kind++)
        for (int unit = 0; unit < checkpoint->params.n_units; unit++)
            assert_false(checkpoint_layout_find(&checkpoint->layout, (enum checkpoint_kind)kind, unit,
                                                checkpoint->params.units[unit].elements, &found));
}

// Elements whose tensors lack the moment are in no file, and the others are.
static void expect_absent(const struct checkpoint *checkpoint, const struct sample *sample) {
    for (int i = 0; i < checkpoint->params.n_params; i++)
        for (int kind = CHECKPOINT_M; kind <= CHECKPOINT_V; kind++) {
            const struct param *param = &checkpoint->params.params[i];
            struct checkpoint_span found;
            assert_true(checkpoint_layout_find(&checkpoint->layout, (enum checkpoint_kind)kind, param->unit,
                                               param->offset + param->elements - 1, &found));
            assert_int_equal(found.file >= 0, sample->n_moments[i] >= kind);
        }
}

static void expect_read_back(struct sample *sample) {
    struct checkpoint *checkpoint;
    EXPECT_OK(parse(&sample->text, &checkpoint));
    assert_int_equal(checkpoint->step, 7);
    assert_int_equal(checkpoint->attention.kernel, CONFIG_ATTENTION_CUDNN);
    assert_string_equal(checkpoint->attention.cudnn, "9.19.0");
    assert_string_equal(checkpoint->device, "avx2, oneDNN 2.6.3");
    assert_int_equal(checkpoint->world, sample->partition.world);
    assert_int_equal(checkpoint->n_files, sample->partition.world);
    for (int rank = 0; rank < checkpoint->n_files; rank++) {
        assert_string_equal(checkpoint->files[rank].name, sample->names[rank]);
        assert_int_equal(checkpoint->files[rank].checksum, sample->files[rank].checksum);
    }
    assert_int_equal(checkpoint->kinds.has_average, has_average(sample));
    assert_int_equal(checkpoint->run.average.n, has_average(sample) ? 5 : 0);
    assert_true(checkpoint->run.average.weight_sum == (has_average(sample) ? 0.0625 : 0));
    assert_true(checkpoint->run.average.lr_max == (has_average(sample) ? 0.25 : 0));
    expect_places(checkpoint, sample);
    checkpoint_close(checkpoint);
}

static void test_every_partition(void **state) {
    (void)state;
    for (int kind = 0; kind < N_PARTITIONS; kind++)
        for (int world = 1; world <= 40; world = 2 * world + 1) // also ranks that own nothing
            for (int variant = 0; variant < N_VARIANTS; variant++) {
                struct sample sample;
                sample_init(&sample, &params, (enum partition_kind)kind, world);
                sample_print(&sample, &params, (enum variant)variant);
                expect_read_back(&sample);
                sample_free(&sample);
            }
}

// Replaces the first `from` by `to`, seals the manifest again, and returns the status of parsing it.
// Close *checkpoint.
static enum status forge_open(const struct text *good, const char *from, const char *to,
                              struct checkpoint **checkpoint) {
    struct text forged = {0};
    const char *at = strstr(good->data, from);
    if (!at)
        print_error("the manifest lacks %s\n", from);
    assert_non_null(at);
    size_t before = (size_t)(at - good->data), after = before + strlen(from);
    text_add_bytes(&forged, good->data, before);
    text_add(&forged, "%s", to);
    text_add_bytes(&forged, good->data + after, good->length - MANIFEST_SEAL_BYTES - after);
    manifest_seal(&forged);
    enum status status = parse(&forged, checkpoint);
    text_free(&forged);
    return status;
}

static enum status forge(const struct text *good, const char *from, const char *to) {
    struct checkpoint *checkpoint;
    enum status status = forge_open(good, from, to, &checkpoint);
    checkpoint_close(checkpoint);
    return status;
}

// Of moments, files hold those that exist.
static void test_moments_that_do_not_exist(void **state) {
    (void)state;
    struct sample sample, plain;
    struct checkpoint *checkpoint;
    uint64_t bytes = 0, plain_bytes = 0, absent = 0;
    sample_init(&sample, &params, PARTITION_EVEN, RANKS);
    sample_init(&plain, &params, PARTITION_EVEN, RANKS);
    sample_print(&sample, &params, VARIED);
    sample_print(&plain, &params, PLAIN);
    EXPECT_OK(parse(&sample.text, &checkpoint));
    expect_absent(checkpoint, &sample);
    for (int i = 0; i < params.n_params; i++) {
        const struct param_unit *unit = &params.units[params.params[i].unit];
        const bool is_last = i + 1 == unit->first_param + unit->n_params;
        const size_t end = is_last ? unit->elements : params.params[i + 1].offset;
        absent += (end - params.params[i].offset) * (uint64_t)(2 - sample.n_moments[i]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        bytes += checkpoint->files[rank].bytes;
        plain_bytes += plain.files[rank].bytes;
    }
    assert_int_equal(plain_bytes - bytes, absent * sizeof(float));
    checkpoint_close(checkpoint);
    const struct text *text = &sample.text;
    EXPECT_OK(forge(text, "\"moments\": 2", "\"moments\": 2"));
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"moments\": 2", "\"moments\": 3"), "moments");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"moments\": 2", "\"moments\": -1"), "moments");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"moments\": 2", "\"momentum\": 2"), "moments");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"moments\": 0", "\"moments\": 1"), "its spans need");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"moments\": 2", "\"moments\": 1"), "its spans need");
    sample_free(&sample);
    sample_free(&plain);
}

static void test_attention(void **state) {
    (void)state;
    struct sample sample;
    struct checkpoint *checkpoint;
    sample_init(&sample, &params, PARTITION_EVEN, RANKS);
    sample_print(&sample, &params, PLAIN);
    EXPECT_FAILURE(STATUS_INVALID, forge(&sample.text, "\"attention\"", "\"unknown\""), "attention");
    EXPECT_OK(forge_open(&sample.text, "\"cudnn\"", "\"auto\"", &checkpoint));
    assert_int_equal(checkpoint->attention.kernel, CONFIG_ATTENTION_AUTO);
    checkpoint_close(checkpoint);
    EXPECT_FAILURE(STATUS_INVALID, forge(&sample.text, "\"attention\": \"cudnn\"", "\"attention\": \"fast\""),
                   "attention is \"fast\", expected auto, flash or cudnn");
    EXPECT_FAILURE(STATUS_INVALID, forge(&sample.text, "\"cudnn\": \"9", "\"unknown\": \"9"), "cudnn");
    sample_free(&sample);
}

static void test_forged_members(void **state) {
    (void)state;
    struct sample sample;
    sample_init(&sample, &params, PARTITION_EVEN, RANKS);
    sample_print(&sample, &params, PLAIN);
    const struct text *text = &sample.text;
    EXPECT_OK(forge(text, "\"test\"", "\"tost\""));
    EXPECT_FAILURE(STATUS_UNSUPPORTED, forge(text, "\"format_version\": 4", "\"format_version\": 3"),
                   "has format version 3, written by version test of the program",
                   "reads only format version 4", "./train export RUN --to hf DIR");
    EXPECT_FAILURE(STATUS_UNSUPPORTED, forge(text, "\"format_version\": 4", "\"format_version\": 5"),
                   "has format version 5");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"device\"", "\"unknown\""), "device");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"n_layer\": 2", "\"n_layer\": 3"), "the model's sizes give");
    EXPECT_FAILURE(STATUS_UNSUPPORTED, forge(text, "\"n_head\": 2", "\"n_head\": 3"), "n_head");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"alignment\": 128", "\"alignment\": 64"), "alignment");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"unit_elements\": [", "\"unit_elements\": [128, "),
                   "unit_elements");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"unit_elements\": [", "\"unit_elements\": [0.5, "),
                   "unit_elements");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"world\": 3", "\"world\": 2"), "3 ranks, expected 2");
    EXPECT_FAILURE(STATUS_UNSUPPORTED, forge(text, "\"partition\": \"even\"", "\"partition\": \"layer\""),
                   "divides units among 3 ranks differently");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"partition_xxh3\": \"", "\"partition_xxh3\": \"x"),
                   "partition_xxh3");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"partition_xxh3\"", "\"other\""), "partition_xxh3");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"ranks\": [\n    [", "\"ranks\": [\n    [1"), "rank 0",
                   "its spans need");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"ranks\": [\n    [", "\"ranks\": [\n    [0, "),
                   "entry 0 of ranks");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"ranks\": [\n    [", "\"ranks\": [\n    [-"),
                   "entry 0 of ranks");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "abcdef0000000001", "abcdef000000000"),
                   "16 hexadecimal digits");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"ranks\": [", "\"ranks\": [7,"), "4 ranks, expected 3");
    EXPECT_FAILURE(STATUS_INVALID, forge(text, "\"files\": [", "\"files\": [{\"name\": \"../x\"}"),
                   "not the name of a file");
    EXPECT_FAILURE(
        STATUS_INVALID,
        forge(text, "\"files\": [",
              "\"files\": [{\"name\": \"x\\u0000y\", \"bytes\": 1, \"xxh3\": \"0000000000000000\"}"),
        "zero byte");
    EXPECT_FAILURE(STATUS_INVALID,
                   forge(text, "\"tokenizer\": null", "\"tokenizer\": \"rank-00000.bin\\u0000x\""),
                   "zero byte");
    sample_free(&sample);
}

static struct damage_random damage_numbers = {.seed = 17};

static void make_damaged(int i, struct bytes *bytes) {
    static const char meaningful[] = "{}[]\",:0123456789-.eu\\nf ";
    struct sample sample;
    sample_init(&sample, &params, i % 2 ? PARTITION_TENSOR : PARTITION_EVEN, RANKS);
    sample_print(&sample, &params, i % 5 == 0 ? NO_MOMENTS : i % 5 == 1 ? VARIED : PLAIN);
    bytes->n = sample.text.length - MANIFEST_SEAL_BYTES;
    assert_true(bytes->n < sizeof bytes->data);
    memcpy(bytes->data, sample.text.data, bytes->n);
    sample_free(&sample);
    struct damage_random *random = &damage_numbers;
    size_t at = damage_below(random, bytes->n), kind = damage_below(random, 8);
    if (!damage_length(bytes, kind, at, damage_below(random, bytes->n - at < 40 ? bytes->n - at : 40)))
        bytes->data[at] = damage_byte(random, meaningful, sizeof meaningful - 1);
}

static bool try_sealed(const struct bytes *bytes) {
    struct text sealed = {0};
    text_add_bytes(&sealed, bytes->data, bytes->n);
    manifest_seal(&sealed);
    struct checkpoint *checkpoint;
    enum status status = parse(&sealed, &checkpoint);
    assert_true(status == STATUS_OK || status == STATUS_INVALID || status == STATUS_UNSUPPORTED);
    for (int unit = 0; status == STATUS_OK && unit < checkpoint->params.n_units; unit++) {
        struct checkpoint_span span;
        assert_true(checkpoint_layout_find(&checkpoint->layout, CHECKPOINT_MASTER, unit, 0, &span));
        assert_in_range(span.offset + (span.end - span.begin) * sizeof(float), 0,
                        checkpoint->files[span.file].bytes);
    }
    checkpoint_close(checkpoint);
    status_clear();
    text_free(&sealed);
    return status == STATUS_OK;
}

// Damage under a correct seal is refused or harmless, but never causes an access out of bounds.
static void test_sealed_damage(void **state) {
    (void)state;
    damage_try_all(
        &(struct damage_trials){.what = "manifests", .n = 2000, .make = make_damaged, .try = try_sealed});
}

// CPU time of this process, which other processes do not affect.
static double cpu_s(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

// The costs of a large run, without running it: the manifest that rank 0 prints, parsing it on every rank,
// and lookups.
static void check_large(int world, const struct params *large, enum variant variant) {
    struct sample sample;
    struct checkpoint *checkpoint;
    char bytes[32];
    double began = cpu_s();
    sample_init(&sample, large, PARTITION_EVEN, world);
    sample_print(&sample, large, variant);
    double printed = cpu_s();
    EXPECT_OK(parse(&sample.text, &checkpoint));
    double parsed = cpu_s();
    struct checkpoint_layout_cursor cursor = {0};
    struct checkpoint_span span, found;
    int64_t n_found = 0;
    while (checkpoint_layout_next(&sample.layout, -1, &cursor, &span)) {
        assert_true(checkpoint_layout_find(&checkpoint->layout, span.kind, span.unit, span.end - 1, &found));
        assert_int_equal(found.offset, span.offset + (span.end - 1 - span.begin) * sizeof(float));
        n_found++;
    }
    double read = cpu_s();
    print_message("%d ranks x %d layers: manifest of %s, printed in %.3f s, parsed in %.3f s, %" PRId64
                  " spans found in %.3f s\n",
                  world, large->config.n_layer, text_bytes(bytes, sizeof bytes, (double)sample.text.length),
                  printed - began, parsed - printed, n_found, read - parsed);
    assert_true(sample.text.length < (size_t)1 << 20);
    assert_true(n_found >= (int64_t)(variant == VARIED ? 2 : 3) * world * large->config.n_layer);
    assert_true(read - began < 20); // about fifty times the time without a sanitizer
    checkpoint_close(checkpoint);
    sample_free(&sample);
}

static void set_sizes(const struct gpt_config *sizes) {
    config.model.n_layer = sizes->n_layer;
    config.model.n_head = sizes->n_head;
    config.model.n_embd = sizes->n_embd;
    config.model.vocab_size = sizes->vocab_size;
    config.model.n_positions = sizes->n_positions;
}

static void test_thousands_of_ranks(void **state) {
    (void)state;
    struct params large;
    EXPECT_OK(params_init(
        &large,
        &(struct gpt_config){
            .n_layer = 256, .n_head = 128, .n_embd = 16384, .vocab_size = 50257, .n_positions = 2048}));
    set_sizes(&large.config);
    check_large(1024, &large, PLAIN);
    check_large(4096, &large, PLAIN);
    check_large(4096, &large, VARIED);
    set_sizes(&params.config);
    params_free(&large);
}

static int set_up_model(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"vocab_size\": 31, "
        "\"n_positions\": 8}}";
    if (config_parse(&config, json, sizeof json - 1, "c.json") != STATUS_OK ||
        config_resolve(&config, 1) != STATUS_OK)
        return -1;
    return params_init(&params,
                       &(struct gpt_config){
                           .n_layer = 2, .n_head = 2, .n_embd = 8, .vocab_size = 31, .n_positions = 8}) ==
                   STATUS_OK
               ? 0
               : -1;
}

static int free_model(void **state) {
    (void)state;
    config_free(&config);
    params_free(&params);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_partition), cmocka_unit_test(test_moments_that_do_not_exist),
        cmocka_unit_test(test_forged_members),  cmocka_unit_test(test_attention),
        cmocka_unit_test(test_sealed_damage),   cmocka_unit_test(test_thousands_of_ranks),
    };
    return cmocka_run_group_tests(tests, set_up_model, free_model);
}
