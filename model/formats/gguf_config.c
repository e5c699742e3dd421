// Reads the model's description from the keys of a GGUF file: architecture, sizes, and RoPE's frequency
// scaling.
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "model/formats/gguf.h"
#include "model/rope_table.h"

#define PI                3.14159265358979323846
#define LAYERNORM_EPSILON 1e-5      // the epsilon of GPT-2
#define EPSILON_RELATIVE  1e-6      // relative tolerance for 1e-5, which fp32 does not represent exactly
#define FACTOR_RELATIVE   1e-5      // relative tolerance for numbers that files store as fp32
#define USUAL_LOW         1.0       // Llama 3's low_freq_factor
#define USUAL_HIGH        4.0       // Llama 3's high_freq_factor
#define USUAL_POSITIONS   8192      // Llama 3's context length before it was extended
#define LARGEST_SIZE      (1 << 28) // limit of a size in a file; small multiples of it fit an int

const char *gguf_architecture(const struct gpt_config *config) {
    if (config->family == FAMILY_GPT2)
        return "gpt2";
    if (config->family != FAMILY_LLAMA || config->o_bias || (config->qkv_bias && config->qk_norm))
        return NULL;
    return config->qkv_bias ? "qwen2" : config->qk_norm ? "qwen3" : "llama";
}

// A file, and the name of its architecture, which is also the prefix of its keys.
struct reading {
    const struct gguf_file *file;
    const char *architecture;
};

struct key_text {
    char text[96];
};

static struct key_text key_of(const struct reading *reading, const char *name) {
    struct key_text key;
    snprintf(key.text, sizeof key.text, "%s.%s", reading->architecture, name);
    return key;
}

static enum status refuse_missing(const struct reading *reading, const char *name) {
    return FAIL(STATUS_INVALID, "%s: the key \"%s\" is missing", reading->file->path,
                key_of(reading, name).text);
}

static enum status get_size(const struct reading *reading, const char *name, bool is_needed, int *size) {
    const struct key_text key = key_of(reading, name);
    int64_t value = *size;
    bool found;
    TRY(gguf_get_integer(reading->file, key.text, 1, LARGEST_SIZE, &value, &found));
    *size = (int)value;
    return found || !is_needed ? STATUS_OK : refuse_missing(reading, name);
}

// Reads a number; *value is unchanged if the key is absent. Files store numbers as fp32. The result is the
// shortest decimal that rounds to the fp32 value: 1e-5 instead of 9.99999975e-6.
static enum status get_number(const struct reading *reading, const char *name, double *value) {
    const struct key_text key = key_of(reading, name);
    char decimal[32];
    double read = 0;
    bool found;
    TRY(gguf_get_number(reading->file, key.text, &read, &found));
    if (!found)
        return STATUS_OK;
    if (!(read > 0 && isfinite(read)))
        return FAIL(STATUS_INVALID, "%s: the key \"%s\" is %g, expected a number greater than 0",
                    reading->file->path, key.text, read);
    *value = strtod(text_float(decimal, (float)read), NULL);
    return STATUS_OK;
}

// Reads the fields that have a GGUF key in gpt_fields.
//   needed  true: the fields that every file must have; false: the others, which only the Llama family has
static enum status read_fields(const struct reading *reading, bool needed, struct gpt_config *config) {
    for (const struct gpt_field *field = gpt_fields; field < gpt_fields + gpt_n_fields; field++) {
        void *value = (char *)config + field->offset;
        if (field->gguf && field->is_needed == needed)
            TRY(field->type == FIELD_NUMBER ? get_number(reading, field->gguf, value)
                                            : get_size(reading, field->gguf, needed, value));
    }
    return STATUS_OK;
}

// Refuses unsupported variants. Each key in `keys` must be absent, have its usual value, or be the number
// 0, which llama.cpp treats as absent.
//   known  [out] the function appends the names of these keys
static enum status refuse_variants(const struct reading *reading, const struct gpt_config *config,
                                   struct text *known) {
    const struct {
        const char *name;
        double usual;
    } keys[] = {{"attention.causal", 1},
                {"attention.scale", 1 / sqrt(config->head_dim)},
                {"attention.sliding_window", 0},
                {"attention.max_alibi_bias", 0},
                {"attention.clamp_kqv", 0},
                {"logit_scale", 1},
                {"residual_scale", 1},
                {"embedding_scale", 1},
                {"use_parallel_residual", 0},
                {"nextn_predict_layers", 0},
                {"expert_count", 0}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct key_text name = key_of(reading, keys[i].name);
        const struct gguf_key *key = gguf_find(reading->file, name.text);
        const bool is_bool = key && key->type == GGUF_KEY_BOOL;
        double value = key && is_bool && key->data[0];
        text_add(known, " %s", keys[i].name);
        if (key && !is_bool)
            TRY(gguf_get_number(reading->file, name.text, &value, NULL));
        if (key && !(fabs(value - keys[i].usual) <= FACTOR_RELATIVE * keys[i].usual) &&
            (value != 0 || is_bool))
            return FAIL(STATUS_INVALID,
                        "%s: the key \"%s\" is %g, expected %g: such models are not supported",
                        reading->file->path, name.text, value, keys[i].usual);
    }
    return STATUS_OK;
}

// Keys of which check_others does not warn, besides those in gpt_fields and refuse_variants: keys that the
// functions below read, and keys that llama.cpp writes but does not read for these architectures.
static const char known_keys[] =
    "vocab_size attention.value_length attention.layer_norm_epsilon rope.freq_base rope.dimension_count "
    "rope.scaling.type rope.scaling.factor rope.scale_linear rope.scaling.original_context_length "
    "rope.scaling.attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.finetuned "
    "rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor rope.freq_base_swa rope.dimension_count_swa "
    "attention.key_length_swa attention.value_length_swa attention.rope_pattern attn_logit_softcapping "
    "router_logit_softcapping final_logit_softcapping token_shift_count kda.gate_lower_bound "
    "deepstack_mapping attention.indexer.kpool_select_tail pooling_type decoder_start_token_id "
    "tensor_data_layout";

static enum status check_others(const struct reading *reading, const struct gpt_config *config) {
    struct text known = {0};
    text_add(&known, "%s", known_keys);
    for (int i = 0; i < gpt_n_fields; i++)
        if (gpt_fields[i].gguf)
            text_add(&known, " %s", gpt_fields[i].gguf);
    const enum status status = refuse_variants(reading, config, &known);
    if (status == STATUS_OK)
        gguf_warn_of_unknown(reading->file, key_of(reading, "").text, known.data);
    text_free(&known);
    return status;
}

static enum status refuse_part(const struct reading *reading) {
    int64_t n_files = 1;
    TRY(gguf_get_integer(reading->file, "split.count", 0, INT_MAX, &n_files, NULL));
    if (n_files > 1)
        return FAIL(STATUS_INVALID,
                    "%s is one of %d files; join them first: llama-gguf-split --merge FIRST_FILE WHOLE.gguf",
                    reading->file->path, (int)n_files);
    return STATUS_OK;
}

// ---- rotary position embedding

void gguf_rope_factors(const struct gpt_config *config, float *factors) {
    const int n = config->head_dim / 2;
    double *frequencies = allocate((size_t)n, sizeof *frequencies), scale;
    rope_frequencies(config, frequencies, &scale);
    for (int i = 0; i < n; i++)
        factors[i] = (float)(pow(config->rope.theta, -2.0 * i / config->head_dim) / frequencies[i]);
    free(frequencies);
}

// Returns the context length that the factors were computed for. It follows from the first factor that is
// neither 1 nor the largest: such a factor depends on how often its pair turns within that context. Returns
// `otherwise` if there is no such factor.
static int original_positions(const struct gpt_config *config, const float *factors, int otherwise) {
    const double largest = config->rope.factor;
    for (int i = 0; i < config->head_dim / 2; i++) {
        const double factor = (double)factors[i];
        if (!(factor > 1 + FACTOR_RELATIVE && factor < largest * (1 - FACTOR_RELATIVE)))
            continue;
        const double ramp = (1 - 1 / factor) / (1 - 1 / largest);
        const double turns = USUAL_LOW + (1 - ramp) * (USUAL_HIGH - USUAL_LOW);
        const double positions = turns * 2 * PI * pow(config->rope.theta, 2.0 * i / config->head_dim);
        return positions < INT_MAX ? (int)lround(positions) : otherwise;
    }
    return otherwise;
}

static enum status check_factors(const struct reading *reading, const struct gpt_config *config,
                                 const float *factors, float *made) {
    gguf_rope_factors(config, made);
    for (int i = 0; i < config->head_dim / 2; i++)
        if (!(fabs((double)made[i] / (double)factors[i] - 1) < FACTOR_RELATIVE))
            return FAIL(STATUS_INVALID,
                        "%s: the factors of \"" GGUF_ROPE_FACTORS
                        "\" are not Llama 3's with low_freq_factor 1 and high_freq_factor 4; other "
                        "scalings cannot be read from GGUF: use the model's safetensors files",
                        reading->file->path);
    return STATUS_OK;
}

static enum status use_factors(const struct reading *reading, struct gpt_config *config, const float *factors,
                               float *made) {
    struct rope_config *rope = &config->rope;
    *rope = (struct rope_config){.theta = rope->theta,
                                 .type = ROPE_LLAMA3,
                                 .low_freq_factor = USUAL_LOW,
                                 .high_freq_factor = USUAL_HIGH};
    for (int i = 0; i < config->head_dim / 2; i++)
        rope->factor = fmax(rope->factor, (double)factors[i]);
    if (!(rope->factor >= 1))
        rope->factor = 1;
    rope->original_positions = original_positions(config, factors, USUAL_POSITIONS);
    if (check_factors(reading, config, factors, made) == STATUS_OK)
        return STATUS_OK;
    // If each factor is 1 or the largest, they are the same for several context lengths: try powers of two.
    status_clear();
    for (rope->original_positions = 1; rope->original_positions < config->n_positions;
         rope->original_positions *= 2)
        if (check_factors(reading, config, factors, made) == STATUS_OK)
            return STATUS_OK;
        else
            status_clear();
    return check_factors(reading, config, factors, made);
}

// Reads Llama 3's RoPE scaling from the tensor GGUF_ROPE_FACTORS, if the file has that tensor.
static enum status read_factors(const struct reading *reading, struct gpt_config *config) {
    const struct gguf_tensor *tensor = gguf_find_tensor(reading->file, GGUF_ROPE_FACTORS);
    const int n = config->head_dim / 2;
    if (!tensor)
        return STATUS_OK;
    if (tensor->type != GGUF_F32 || tensor->elements != (uint64_t)n || config->rope.type != ROPE_DEFAULT)
        return FAIL(STATUS_INVALID,
                    "%s: tensor \"" GGUF_ROPE_FACTORS
                    "\" has %llu elements, expected %d of type F32, and no RoPE scaling in the file's keys",
                    reading->file->path, (unsigned long long)tensor->elements, n);
    float *factors = allocate(2 * (size_t)n, sizeof *factors);
    enum status status = gguf_read(reading->file, tensor, 0, (size_t)n * sizeof *factors, factors);
    if (status == STATUS_OK)
        status = use_factors(reading, config, factors, factors + n);
    free(factors);
    return status;
}

static enum status read_yarn(const struct reading *reading, struct rope_config *rope) {
    double multiplier = 0;
    TRY(get_size(reading, "rope.scaling.original_context_length", false, &rope->original_positions));
    TRY(get_number(reading, "rope.scaling.yarn_beta_fast", &rope->beta_fast));
    TRY(get_number(reading, "rope.scaling.yarn_beta_slow", &rope->beta_slow));
    // llama.cpp multiplies YaRN's default attention factor, 0.1 log(factor) + 1, by this key's value.
    TRY(get_number(reading, "rope.scaling.attn_factor", &multiplier));
    rope->attention_factor = multiplier == 1 ? 0 : multiplier * (0.1 * log(rope->factor) + 1);
    return STATUS_OK;
}

// Reads RoPE's scaling factor. *factor is unchanged if the file has none, or 0, which means no scaling.
// Files from before 2023-09 have the factor in rope.scale_linear.
static enum status get_factor(const struct reading *reading, double *factor) {
    static const char *const names[] = {"rope.scaling.factor", "rope.scale_linear"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        double value = 0;
        TRY(gguf_get_number(reading->file, key_of(reading, names[i]).text, &value, &found));
        if (value != 0)
            TRY(get_number(reading, names[i], factor));
    }
    return STATUS_OK;
}

static enum status read_rope(const struct reading *reading, struct gpt_config *config) {
    struct rope_config *rope = &config->rope;
    struct gguf_string type = {"linear", 6}; // llama.cpp's default
    int rotated = config->head_dim;
    *rope = (struct rope_config){.theta = 10000};
    TRY(get_number(reading, "rope.freq_base", &rope->theta));
    TRY(get_size(reading, "rope.dimension_count", false, &rotated));
    if (rotated != config->head_dim)
        return FAIL(STATUS_INVALID, "%s: RoPE rotates %d dimensions of each head, expected all %d",
                    reading->file->path, rotated, config->head_dim);
    TRY(gguf_get_string(reading->file, key_of(reading, "rope.scaling.type").text, &type, NULL));
    if (gguf_string_is(type, "none"))
        return read_factors(reading, config);
    rope->factor = 1;
    TRY(get_factor(reading, &rope->factor));
    if (gguf_string_is(type, "linear"))
        rope->type = rope->factor == 1 ? ROPE_DEFAULT : ROPE_LINEAR;
    else if (gguf_string_is(type, "yarn"))
        rope->type = ROPE_YARN;
    else
        return FAIL(STATUS_INVALID, "%s: RoPE's scaling is \"%.*s\", expected none, linear or yarn",
                    reading->file->path, (int)(type.n < 60 ? type.n : 60), type.bytes);
    if (rope->type == ROPE_YARN)
        TRY(read_yarn(reading, rope));
    return read_factors(reading, config);
}

// ---- sizes and architecture

static enum status read_gpt2(const struct reading *reading, struct gpt_config *config) {
    double epsilon = 0;
    TRY(get_number(reading, "attention.layer_norm_epsilon", &epsilon));
    if (epsilon == 0)
        return refuse_missing(reading, "attention.layer_norm_epsilon");
    if (!(fabs(epsilon / LAYERNORM_EPSILON - 1) < EPSILON_RELATIVE))
        return FAIL(STATUS_INVALID, "%s: the epsilon of LayerNorm is %g, expected %g", reading->file->path,
                    epsilon, LAYERNORM_EPSILON);
    if (config->intermediate_size != 4 * config->n_embd)
        return FAIL(STATUS_INVALID, "%s: the MLP's width is %d, expected 4 x %d", reading->file->path,
                    config->intermediate_size, config->n_embd);
    return STATUS_OK;
}

static enum status read_llama(const struct reading *reading, struct gpt_config *config) {
    int value_length = 0;
    config->family = FAMILY_LLAMA;
    config->qkv_bias = strcmp(reading->architecture, "qwen2") == 0;
    config->qk_norm = strcmp(reading->architecture, "qwen3") == 0;
    config->n_kv_head = config->n_head;
    config->head_dim = config->n_embd / config->n_head;
    TRY(read_fields(reading, false, config));
    if (config->norm_eps == 0)
        return refuse_missing(reading, "attention.layer_norm_rms_epsilon");
    value_length = config->head_dim;
    TRY(get_size(reading, "attention.value_length", false, &value_length));
    if (value_length != config->head_dim)
        return FAIL(STATUS_INVALID, "%s: the value heads have %d dimensions, expected %d, like the key heads",
                    reading->file->path, value_length, config->head_dim);
    config->untied = gguf_find_tensor(reading->file, "output.weight") != NULL;
    gpt_config_resolve(config); // read_rope compares the file's factors with those of this config
    return config->head_dim > 0 ? read_rope(reading, config) : STATUS_OK;
}

static enum status read_sizes(const struct reading *reading, struct gpt_config *config) {
    const struct gguf_tensor *embedding = gguf_find_tensor(reading->file, "token_embd.weight");
    TRY(refuse_part(reading));
    TRY(read_fields(reading, true, config));
    if (!embedding || embedding->n_dims != 2 || embedding->shape[0] > LARGEST_SIZE)
        return FAIL(STATUS_INVALID, "%s: tensor \"token_embd.weight\" is missing, or is not a matrix",
                    reading->file->path);
    config->vocab_size = (int)embedding->shape[0];
    TRY(strcmp(reading->architecture, "gpt2") == 0 ? read_gpt2(reading, config)
                                                   : read_llama(reading, config));
    gpt_config_resolve(config);
    TRY(gpt_config_check_read(config, reading->file->path));
    return check_others(reading, config);
}

static enum status read_architecture(const struct gguf_file *file, const char **architecture) {
    static const char *const known[] = {"gpt2", "llama", "qwen2", "qwen3"};
    struct gguf_string name = {"", 0};
    TRY(gguf_get_string(file, "general.architecture", &name, NULL));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (gguf_string_is(name, known[i])) {
            *architecture = known[i];
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "%s: its architecture is \"%.*s\", expected gpt2, llama, qwen2 or qwen3",
                file->path, (int)(name.n < 60 ? name.n : 60), name.bytes);
}

enum status gguf_read_config(const char *path, struct gpt_config *config) {
    struct gguf_file file;
    struct reading reading = {.file = &file};
    *config = (struct gpt_config){0};
    TRY(gguf_open(&file, path));
    enum status status = read_architecture(&file, &reading.architecture);
    if (status == STATUS_OK)
        status = read_sizes(&reading, config);
    gguf_close(&file);
    return status;
}
