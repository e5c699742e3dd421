// Hugging Face GPT-2 folders: every value is read into its place, in each dtype and with both naming schemes.
// Messages about invalid folders name what is wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
// cmocka needs the headers above.
#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/text.h"
#include "model/formats/huggingface.h"
#include "tests/support/temporary.h"

static struct temporary temporary;
static char weights_path[300], config_path[300];

static const struct gpt_config small_config = {
    .n_layer = 2, .n_head = 2, .n_embd = 4, .vocab_size = 5, .n_positions = 3};

// ---- making folders

// A tensor to be written. Its values depend on its name and the element.
struct tensor_entry {
    char name[64], dtype[8];
    int n_dims;
    int64_t shape[2]; // as in the file
    int seed;
};

struct tensor_entries {
    struct tensor_entry list[64];
    int n;
};

// Small integers: exact in every type.
static int value_of(int seed, int64_t row, int64_t column) {
    return (int)((seed * 7 + row * 31 + column * 11) % 61) - 30;
}

static uint16_t half_from_integer(int value) {
    unsigned magnitude = (unsigned)(value < 0 ? -value : value), exponent = 25; // of 1024 x 2^0
    if (magnitude == 0)
        return 0;
    for (; magnitude < 1024; magnitude *= 2)
        exponent--;
    return (uint16_t)((value < 0 ? 0x8000 : 0) | exponent << 10 | (magnitude - 1024));
}

static void add_value(struct text *data, const char *dtype, int value) {
    float single = (float)value;
    double wide = value;
    uint16_t half = strcmp(dtype, "F16") == 0 ? half_from_integer(value) : bf16_from_float(single);
    if (strcmp(dtype, "F32") == 0)
        text_add_bytes(data, &single, sizeof single);
    else if (strcmp(dtype, "F64") == 0)
        text_add_bytes(data, &wide, sizeof wide);
    else
        text_add_bytes(data, &half, sizeof half);
}

static void write_weights(const struct tensor_entries *entries) {
    struct text header = {0}, data = {0}, whole = {0};
    text_add(&header, "{");
    for (int i = 0; i < entries->n; i++) {
        const struct tensor_entry *entry = &entries->list[i];
        int64_t columns = entry->n_dims == 2 ? entry->shape[1] : 1;
        size_t begin = data.length;
        for (int64_t e = 0; e < entry->shape[0] * columns; e++)
            add_value(&data, entry->dtype, value_of(entry->seed, e / columns, e % columns));
        text_add(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld", i ? "," : "", entry->name,
                 entry->dtype, (long long)entry->shape[0]);
        if (entry->n_dims == 2)
            text_add(&header, ",%lld", (long long)entry->shape[1]);
        text_add(&header, "],\"data_offsets\":[%zu,%zu]}", begin, data.length);
    }
    text_add(&header, "}");
    uint64_t length = header.length;
    text_add_bytes(&whole, &length, sizeof length);
    text_add_bytes(&whole, header.data, header.length);
    text_add_bytes(&whole, data.data, data.length);
    assert_int_equal(file_write_all(weights_path, whole.data, whole.length), STATUS_OK);
    text_free(&header);
    text_free(&data);
    text_free(&whole);
}

static struct tensor_entry *add_entry(struct tensor_entries *entries, const char *name, const char *dtype,
                                      int n_dims, int64_t rows, int64_t columns) {
    struct tensor_entry *entry = &entries->list[entries->n];
    *entry = (struct tensor_entry){.n_dims = n_dims, .shape = {rows, columns}, .seed = entries->n++};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->dtype, sizeof entry->dtype, "%s", dtype);
    return entry;
}

// GPT-2's shapes, written out instead of taken from the table under test.
static void make_entries(struct tensor_entries *entries, const char *prefix, const char *dtype) {
    static const struct {
        const char *name;
        int n_dims, rows, columns;
    } block[] = {
        {"ln_1.weight", 1, 4, 0},       {"ln_1.bias", 1, 4, 0},          {"attn.c_attn.weight", 2, 4, 12},
        {"attn.c_attn.bias", 1, 12, 0}, {"attn.c_proj.weight", 2, 4, 4}, {"attn.c_proj.bias", 1, 4, 0},
        {"ln_2.weight", 1, 4, 0},       {"ln_2.bias", 1, 4, 0},          {"mlp.c_fc.weight", 2, 4, 16},
        {"mlp.c_fc.bias", 1, 16, 0},    {"mlp.c_proj.weight", 2, 16, 4}, {"mlp.c_proj.bias", 1, 4, 0}};
    char name[64];
    *entries = (struct tensor_entries){0};
    snprintf(name, sizeof name, "%sln_f.bias", prefix); // in another order than the table's
    add_entry(entries, name, dtype, 1, 4, 0);
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < sizeof block / sizeof *block; i++) {
            snprintf(name, sizeof name, "%sh.%d.%s", prefix, layer, block[i].name);
            add_entry(entries, name, dtype, block[i].n_dims, block[i].rows, block[i].columns);
        }
    snprintf(name, sizeof name, "%swpe.weight", prefix);
    add_entry(entries, name, dtype, 2, 3, 4);
    snprintf(name, sizeof name, "%sln_f.weight", prefix);
    add_entry(entries, name, dtype, 1, 4, 0);
    snprintf(name, sizeof name, "%swte.weight", prefix);
    add_entry(entries, name, dtype, 2, 5, 4);
}

static struct tensor_entry *find_entry(struct tensor_entries *entries, const char *name) {
    for (int i = 0; i < entries->n; i++)
        if (strcmp(entries->list[i].name, name) == 0)
            return &entries->list[i];
    fail_msg("no entry %s", name);
    return NULL;
}

// ---- weights

static void check_values(const struct tensor_entries *entries, const char *prefix) {
    struct params params;
    struct huggingface_weights weights;
    assert_int_equal(params_init(&params, &small_config), STATUS_OK);
    if (huggingface_open(&weights, temporary.folder, &params) != STATUS_OK)
        fail_msg("%s", status_message());
    float *values = malloc(params.n_elements * sizeof *values);
    assert_non_null(values);
    int n_seen = 0;
    for (int unit = 0; unit < params.n_units; unit++) {
        const struct param_unit *u = &params.units[unit];
        memset(values, 0xff, u->elements * sizeof *values);
        assert_int_equal(huggingface_span(&weights, unit, 0, u->elements, values), STATUS_OK);
        for (int i = u->first_param; i < u->first_param + u->n_params; i++, n_seen++) {
            const struct param *param = &params.params[i];
            char name[64];
            snprintf(name, sizeof name, "%s%s", prefix, param->name);
            const struct tensor_entry *entry = find_entry((struct tensor_entries *)(uintptr_t)entries, name);
            // Conv1D weights, and only they, are transposed: (in, out) in the file, (out, in) here.
            bool conv = entry->n_dims == 2 && strstr(name, ".c_");
            float *of_param = values + param->offset;
            int64_t columns = param->n_dims == 2 ? param->shape[1] : 1;
            for (int64_t e = 0; e < (int64_t)param->elements; e++) {
                int64_t row = e / columns, column = e % columns;
                int expected = conv ? value_of(entry->seed, column, row) : value_of(entry->seed, row, column);
                if (of_param[e] != (float)expected)
                    fail_msg("%s[%lld] is %g, expected %d", name, (long long)e, (double)of_param[e],
                             expected);
                of_param[e] = 0;
            }
        }
        for (size_t e = 0; e < u->elements; e++) // the rest is padding
            assert_true(values[e] == 0);
    }
    assert_int_equal(n_seen, 28);
    free(values);
    huggingface_close(&weights);
    params_free(&params);
}

static void test_every_value_is_read(void **state) {
    (void)state;
    static const char *const types[] = {"F32", "F16", "BF16", "F64"}, *const prefixes[] = {"",
                                                                                           "transformer."};
    for (size_t t = 0; t < 4; t++)
        for (size_t p = 0; p < 2; p++) {
            struct tensor_entries entries;
            make_entries(&entries, prefixes[p], types[t]);
            write_weights(&entries);
            check_values(&entries, prefixes[p]);
        }
}

// A span may begin and end at any element.
static void test_spans_of_a_unit(void **state) {
    (void)state;
    struct tensor_entries entries;
    struct params params;
    struct huggingface_weights weights;
    make_entries(&entries, "", "F32");
    write_weights(&entries);
    assert_int_equal(params_init(&params, &small_config), STATUS_OK);
    assert_int_equal(huggingface_open(&weights, temporary.folder, &params), STATUS_OK);
    size_t n = params.units[1].elements;
    float *whole = malloc(n * sizeof *whole), *part = malloc((n + 1) * sizeof *part);
    assert_true(whole && part);
    assert_int_equal(huggingface_span(&weights, 1, 0, n, whole), STATUS_OK);
    for (size_t begin = 0; begin < n; begin += 37)
        for (size_t end = begin; end <= n; end += 101) {
            part[end - begin] = 12345;
            assert_int_equal(huggingface_span(&weights, 1, begin, end, part), STATUS_OK);
            assert_memory_equal(part, whole + begin, (end - begin) * sizeof *part);
            assert_true(part[end - begin] == 12345);
        }
    free(whole);
    free(part);
    huggingface_close(&weights);
    params_free(&params);
}

// Weights are read, not mapped: a file that is cut while they are read is an error, and no signal.
static void test_a_truncated_file(void **state) {
    (void)state;
    struct tensor_entries entries;
    struct params params;
    struct huggingface_weights weights;
    float values[64];
    make_entries(&entries, "", "F32");
    write_weights(&entries);
    assert_int_equal(params_init(&params, &small_config), STATUS_OK);
    assert_int_equal(huggingface_open(&weights, temporary.folder, &params), STATUS_OK);
    assert_int_equal(truncate(weights_path, 100), 0);
    assert_int_equal(huggingface_span(&weights, 1, 0, 64, values), STATUS_FAILED);
    assert_non_null(strstr(status_message(), weights_path));
    assert_non_null(strstr(status_message(), "was truncated while it was read"));
    status_clear();
    huggingface_close(&weights);
    params_free(&params);
}

static void test_ignored_tensors(void **state) {
    (void)state;
    struct tensor_entries entries;
    make_entries(&entries, "transformer.", "F32");
    add_entry(&entries, "transformer.h.0.attn.bias", "F64", 2, 3, 3);
    add_entry(&entries, "transformer.h.1.attn.masked_bias", "F32", 1, 1, 0);
    add_entry(&entries, "lm_head.weight", "F32", 2, 5, 4)->seed =
        find_entry(&entries, "transformer.wte.weight")->seed;
    write_weights(&entries);
    check_values(&entries, "transformer.");
}

static void assert_weights_refused(const struct tensor_entries *entries, const char *expected) {
    struct params params;
    struct huggingface_weights weights;
    write_weights(entries);
    assert_int_equal(params_init(&params, &small_config), STATUS_OK);
    assert_int_equal(huggingface_open(&weights, temporary.folder, &params), STATUS_INVALID);
    assert_null(weights.tensor_of_param);
    if (!strstr(status_message(), weights_path) || !strstr(status_message(), expected))
        fail_msg("\"%s\" lacks \"%s\" or the path", status_message(), expected);
    status_clear();
    params_free(&params);
}

static void test_wrong_tensors_are_named(void **state) {
    (void)state;
    struct tensor_entries entries;
    struct tensor_entry *entry;
    make_entries(&entries, "", "F32");
    *find_entry(&entries, "h.1.ln_2.bias") = entries.list[--entries.n]; // wte takes its place
    assert_weights_refused(&entries, "\"h.1.ln_2.bias\" is missing");

    make_entries(&entries, "", "F32");
    add_entry(&entries, "h.2.ln_1.bias", "F32", 1, 4, 0);
    assert_weights_refused(&entries,
                           "config.json says n_layer 2, the tensors have 3; \"h.2.ln_1.bias\" is not a "
                           "tensor of a GPT-2 with 2 layers");

    make_entries(&entries, "", "F32");
    entry = find_entry(&entries, "h.0.attn.c_attn.weight"); // as our own (out, in)
    entry->shape[0] = 12;
    entry->shape[1] = 4;
    assert_weights_refused(&entries, "\"h.0.attn.c_attn.weight\" is 12 x 4, expected 4 x 12");

    make_entries(&entries, "", "F32");
    find_entry(&entries, "wte.weight")->shape[0] = 6;
    assert_weights_refused(&entries,
                           "config.json says vocab_size 5, the tensors have 6; \"wte.weight\" is 6 x 4, "
                           "expected 5 x 4");

    make_entries(&entries, "", "F32");
    find_entry(&entries, "ln_f.weight")->n_dims = 2;
    find_entry(&entries, "ln_f.weight")->shape[1] = 1;
    assert_weights_refused(&entries, "\"ln_f.weight\" is 4 x 1, expected 4");

    make_entries(&entries, "", "F32");
    strcpy(find_entry(&entries, "h.0.mlp.c_fc.bias")->dtype, "U16");
    assert_weights_refused(&entries, "\"h.0.mlp.c_fc.bias\" is U16, expected F32, F16, BF16 or F64");

    make_entries(&entries, "", "F32");
    add_entry(&entries, "transformer.wpe.weight", "F32", 2, 3, 4);
    assert_weights_refused(&entries, "\"wpe.weight\" is given twice");

    make_entries(&entries, "", "F32");
    add_entry(&entries, "lm_head.weight", "F32", 2, 5, 4);
    assert_weights_refused(&entries, "with an untied lm_head cannot be read");

    make_entries(&entries, "", "F32");
    entries.n = 3; // of many missing tensors, the first few are named and the rest counted
    assert_weights_refused(&entries, "and 20 more");
}

// ---- config

#define SIZES "\"vocab_size\":5,\"n_positions\":3,\"n_embd\":4,\"n_layer\":2,\"n_head\":2"

static enum status read_config(const char *text, struct gpt_config *config) {
    assert_int_equal(file_write_all(config_path, text, strlen(text)), STATUS_OK);
    return huggingface_read_config(temporary.folder, config);
}

static void test_good_configs(void **state) {
    (void)state;
    static const char *const configs[] = {
        "{\"model_type\":\"gpt2\"," SIZES "}",
        "{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5,"
        "\"tie_word_embeddings\":true,\"n_inner\":null,\"n_ctx\":3,\"attn_pdrop\":0.1,"
        "\"task_specific_params\":{\"text-generation\":{\"do_sample\":true}},"
        "\"scale_attn_weights\":true,\"scale_attn_by_inverse_layer_idx\":false}",
        "{\"model_type\":\"gpt2\"," SIZES
        ",\"activation_function\":\"gelu_pytorch_tanh\",\"n_inner\":16,\"layer_norm_epsilon\":0.00001000}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct gpt_config config;
        if (read_config(configs[i], &config) != STATUS_OK)
            fail_msg("%s", status_message());
        assert_memory_equal(&config, &small_config, sizeof config);
    }
    struct gpt_config config;
    assert_int_equal(huggingface_read_config("tests/golden/gpt2-tiny", &config), STATUS_OK);
    assert_int_equal(config.n_layer, 2);
    assert_int_equal(config.n_head, 3);
    assert_int_equal(config.n_embd, 48);
    assert_int_equal(config.vocab_size, 257);
    assert_int_equal(config.n_positions, 64);
}

// A model of the Llama family with 4 layers; MORE replaces or adds keys.
#define LLAMA(type, more)                                                                                    \
    "{\"model_type\":\"" type "\",\"vocab_size\":5,\"max_position_embeddings\":3,\"hidden_size\":4,"         \
    "\"num_hidden_layers\":4,\"num_attention_heads\":2,\"intermediate_size\":8,\"head_dim\":2" more "}"

static void test_windows(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int windows[4]; // all 0: none
    } cases[] = {
        {LLAMA("qwen2", ",\"num_key_value_heads\":1,\"use_sliding_window\":false,\"sliding_window\":2,\"max_"
                        "window_layers\":0"),
         {0}},
        {LLAMA("qwen2", ",\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_window\":null"),
         {0}},
        {LLAMA("qwen2", ",\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_window\":2"),
         {0}}, // from layer 28 on
        {LLAMA("qwen3", ",\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_window\":2,\"max_"
                        "window_layers\":3"),
         {0, 0, 0, 2}},
        {LLAMA("qwen3", ",\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_window\":2,\"max_"
                        "window_layers\":3,"
                        "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","
                        "\"full_attention\"]"),
         {2, 0, 2, 0}},
        {LLAMA("llama", ",\"use_sliding_window\":true,\"sliding_window\":2,\"max_window_layers\":0"), {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gpt_config config;
        int any = 0;
        if (read_config(cases[i].text, &config) != STATUS_OK)
            fail_msg("%s", status_message());
        for (int k = 0; k < 4; k++) {
            any |= cases[i].windows[k];
            assert_int_equal(config.windows[k], cases[i].windows[k]);
        }
        assert_int_equal(config.n_windows, any ? 4 : 0);
    }
}

// What transformers 5.24 makes of these keys, in a model with 2 heads.
static void test_variants(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double theta, attention_factor;
        int n_kv_head, window;
        bool has_biases;
    } cases[] = {
        {LLAMA("llama", ",\"hidden_act\":\"swish\",\"attention_bias\":true"), 1e4, 0, 2, 0, true},
        {LLAMA("qwen3", ",\"num_key_value_heads\":1,\"attention_bias\":true"), 1e4, 0, 1, 0, true},
        {LLAMA("mistral", ",\"num_key_value_heads\":1,\"sliding_window\":null"), 1e4, 0, 1, 0, false},
        {LLAMA("mistral", ",\"num_key_value_heads\":1"), 1e4, 0, 1, 0,
         false}, // of 4096: longer than the context
        {LLAMA("mistral", ",\"num_key_value_heads\":null,\"sliding_window\":2"), 1e4, 0, 2, 2, false},
        {LLAMA("llama", ",\"rope_theta\":7,\"rope_parameters\":{\"rope_theta\":5e5},\"rope_scaling\":{}"),
         5e5, 0, 2, 0, false},
        {LLAMA("llama", ",\"rope_theta\":7,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
                        "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2}"),
         7, 0, 2, 0, false},
        {LLAMA("llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":0.7}"), 1e4, 0, 2,
         0, false},
        {LLAMA("llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":0.7,"
                        "\"mscale_all_dim\":0.7}"),
         1e4, 1, 2, 0, false},
        {LLAMA("llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":0.7,"
                        "\"mscale_all_dim\":0.3}"),
         1e4, 1.0532377, 2, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gpt_config config;
        if (read_config(cases[i].text, &config) != STATUS_OK)
            fail_msg("%s", status_message());
        assert_true(config.rope.theta == cases[i].theta);
        assert_true(fabs(config.rope.attention_factor - cases[i].attention_factor) < 1e-6);
        assert_int_equal(config.n_kv_head, cases[i].n_kv_head);
        assert_int_equal(gpt_window(&config, 3), cases[i].window);
        assert_int_equal(config.qkv_bias && config.o_bias, cases[i].has_biases);
    }
}

static void test_bad_configs_name_the_key(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "empty"},
        {"[]", "expected an object"},
        {"{", "JSON"},
        {"{" SIZES "}", "\"model_type\""},
        {"{\"model_type\":\"bert\"," SIZES "}", "\"bert\", expected gpt2, llama"},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":\"relu\"}", "\"activation_function\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"activation_function\":1}", "\"activation_function\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":1e-6}", "\"layer_norm_epsilon\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"layer_norm_epsilon\":\"1e-5\"}", "\"layer_norm_epsilon\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"tie_word_embeddings\":false}", "\"tie_word_embeddings\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_weights\":false}", "\"scale_attn_weights\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"scale_attn_by_inverse_layer_idx\":true}",
         "\"scale_attn_by_inverse_layer_idx\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"add_cross_attention\":true}", "\"add_cross_attention\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"n_inner\":17}", "\"n_inner\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"n_layer\":2}", "\"n_layer\" is given twice"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":3,\"n_embd\":4,\"n_head\":2}",
         "\"n_layer\" is missing"},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":0,\"n_positions\":3,\"n_embd\":4,\"n_layer\":2,\"n_head\":"
         "2}",
         "\"vocab_size\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":-3,\"n_embd\":4,\"n_layer\":2,\"n_head\":"
         "2}",
         "\"n_positions\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":3,\"n_embd\":4.5,\"n_layer\":2,"
         "\"n_head\":2}",
         "\"n_embd\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":3,\"n_embd\":4,\"n_layer\":1e30,"
         "\"n_head\":2}",
         "\"n_layer\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":3,\"n_embd\":4,\"n_layer\":2,"
         "\"n_head\":\"2\"}",
         "\"n_head\""},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":5,\"n_positions\":3,\"n_embd\":4,\"n_layer\":2,\"n_head\":"
         "3}",
         "not a multiple of \"n_head\""},
        {LLAMA("llama", ",\"rope_theta\":0"), "\"rope_theta\" is 0"},
        {LLAMA("llama", ",\"rms_norm_eps\":-1e-6"), "\"rms_norm_eps\" is -1e-06"},
        {LLAMA("llama", ",\"partial_rotary_factor\":0.5"), "\"partial_rotary_factor\" is 0.5"},
        {LLAMA("llama", ",\"quantization_config\":{\"bits\":4}"), "\"quantization_config\""},
        {LLAMA("llama", ",\"rope_scaling\":\"linear\""), "\"rope_scaling\" must be one object"},
        {LLAMA("llama", ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"),
         "the same for all layers"},
        {LLAMA("llama", ",\"rope_scaling\":{\"factor\":2}"), "no \"rope_type\""},
        {LLAMA("llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}"), "\"factor\" is 0"},
        {LLAMA("llama", ",\"rope_scaling\":{\"type\":\"linear\"}"), "\"factor\" is missing"},
        {LLAMA("llama", ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}"), "\"dynamic\""},
        {LLAMA("llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"mscale\":-1}"),
         "\"mscale\""},
        {LLAMA("llama", ",\"rope_parameters\":{\"rope_theta\":5e5},\"rope_scaling\":{\"type\":\"linear\","
                        "\"factor\":2}"),
         "that differ in rope.theta; transformers 5 uses \"rope_scaling\" alone, with a theta of 10000"},
        {LLAMA("qwen3", ",\"num_key_value_heads\":1,\"is_causal\":false"), "\"is_causal\" must be true"},
        {LLAMA("llama", ",\"hidden_act\":\"gelu_new\""), "\"hidden_act\" is \"gelu_new\", expected \"silu\""},
        {LLAMA("llama", ",\"mlp_bias\":true"), "\"mlp_bias\" must be false"},
        {LLAMA("mistral", ",\"num_key_value_heads\":2,\"sliding_window\":\"2\""), "\"sliding_window\""},
        {"{\"model_type\":\"gpt2\"," SIZES ",\"is_causal\":false}", "\"is_causal\" must be true"},
        {LLAMA("llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":false}"),
         "\"truncate\" must be true"},
        {LLAMA("qwen2", ",\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_window\":2,\"layer_"
                        "types\":[\"full_attention\"]"),
         "1 entries, expected 4"},
        {LLAMA("qwen2", ",\"num_key_value_heads\":1,\"use_sliding_window\":true,\"sliding_window\":2,\"layer_"
                        "types\":[\"linear_attention\","
                        "1,2,3]"),
         "linear_attention for layer 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gpt_config config;
        if (read_config(cases[i].text, &config) != STATUS_INVALID)
            fail_msg("not refused: %s", cases[i].text);
        if (!strstr(status_message(), config_path) || !strstr(status_message(), cases[i].expected))
            fail_msg("\"%s\" lacks \"%s\" or the path", status_message(), cases[i].expected);
        status_clear();
    }
}

static void test_absent_folders(void **state) {
    (void)state;
    struct gpt_config config;
    struct params params;
    struct huggingface_weights weights;
    assert_int_equal(huggingface_read_config("/nowhere/at/all", &config), STATUS_INVALID);
    assert_non_null(strstr(status_message(), "/nowhere/at/all/config.json"));
    status_clear();
    assert_int_equal(params_init(&params, &small_config), STATUS_OK);
    assert_int_equal(huggingface_open(&weights, "/nowhere/at/all", &params), STATUS_INVALID);
    assert_non_null(strstr(status_message(), "/nowhere/at/all/model.safetensors"));
    status_clear();
    params_free(&params);
}

static int set_up(void **state) {
    (void)state;
    if (!temporary_init(&temporary))
        return -1;
    temporary_path(&temporary, "model.safetensors", weights_path, sizeof weights_path);
    temporary_path(&temporary, "config.json", config_path, sizeof config_path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return temporary_free(&temporary) ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_value_is_read),
        cmocka_unit_test(test_spans_of_a_unit),
        cmocka_unit_test(test_a_truncated_file),
        cmocka_unit_test(test_ignored_tensors),
        cmocka_unit_test(test_wrong_tensors_are_named),
        cmocka_unit_test(test_good_configs),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_bad_configs_name_the_key),
        cmocka_unit_test(test_absent_folders),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
