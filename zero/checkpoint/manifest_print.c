// Writes manifests: zero/checkpoint/manifest.h.
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/json.h"
#include "options/print.h"
#include "zero/checkpoint/manifest.h"

void manifest_print_seal(const char *json, size_t length, char seal[MANIFEST_SEAL_BYTES + 1]) {
    snprintf(seal, MANIFEST_SEAL_BYTES + 1, "  \"manifest_xxh3\": \"%016" PRIx64 "\"\n}\n",
             (uint64_t)XXH3_64bits(json, length));
}

void manifest_seal(struct text *text) {
    char seal[MANIFEST_SEAL_BYTES + 1];
    manifest_print_seal(text->data, text->length, seal);
    text_add(text, "%s", seal);
}

static void add_string_member(struct text *out, const char *key, const char *value) {
    text_add(out, "  \"%s\": ", key);
    if (value)
        json_add_string(out, value);
    else
        text_add(out, "null");
    text_add(out, ",\n");
}

static void print_tensors(const struct params *params, const struct checkpoint_kinds *kinds,
                          struct text *out) {
    text_add(out, "  \"tensors\": [");
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        text_add(out, "%s\n    {\"name\": \"%s\", \"shape\": [%" PRId64, i ? "," : "", param->name,
                 param->shape[0]);
        if (param->n_dims == 2)
            text_add(out, ", %" PRId64, param->shape[1]);
        text_add(out, "], \"unit\": %d, \"offset\": %zu, \"moments\": %d}", param->unit, param->offset,
                 kinds->n_moments ? kinds->n_moments[i] : kinds->n - 1);
    }
    text_add(out, "\n  ],\n");
}

static void print_partition(const struct checkpoint_contents *contents, struct text *out) {
    const struct params *params = contents->params;
    text_add(out, "  \"world\": %d,\n  \"logical_ranks\": %" PRId64 ",\n", contents->partition->world,
             contents->config->logical_ranks);
    add_string_member(out, "partition", partition_name(contents->partition->kind));
    text_add(out, "  \"alignment\": %d,\n  \"unit_elements\": [", PARAM_ALIGNMENT);
    for (int unit = 0; unit < params->n_units; unit++)
        text_add(out, "%s%zu", unit ? ", " : "", params->units[unit].elements);
    text_add(out, "],\n  \"partition_xxh3\": \"%016" PRIx64 "\",\n",
             checkpoint_partition_digest(contents->partition));
}

static void print_files(const struct checkpoint_file *files, int n_files, int world, struct text *out) {
    text_add(out, "  \"ranks\": [");
    for (int i = 0; i < world; i++)
        text_add(out, "%s\n    [%" PRIu64 ", \"%016" PRIx64 "\"]", i ? "," : "", files[i].bytes,
                 files[i].checksum);
    text_add(out, "\n  ],\n  \"files\": [");
    for (int i = world; i < n_files; i++)
        text_add(out, "%s\n    {\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"xxh3\": \"%016" PRIx64 "\"}",
                 i > world ? "," : "", files[i].name, files[i].bytes, files[i].checksum);
    text_add(out, "\n  ],\n");
}

void manifest_print(const struct checkpoint_contents *contents, const char *version, const char *tokenizer,
                    const struct checkpoint_file *files, int n_files, struct text *out) {
    const struct checkpoint_kinds *kinds = &contents->kinds;
    text_add(out, "{\n");
    add_string_member(out, "format", MANIFEST_FORMAT);
    text_add(out, "  \"format_version\": %d,\n", MANIFEST_FORMAT_VERSION);
    add_string_member(out, "version", version);
    text_add(out, "  \"step\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n", contents->step, contents->tokens);
    add_string_member(out, "compute", dtype_name(contents->compute));
    add_string_member(out, "device", contents->device);
    if (contents->fingerprint)
        add_string_member(out, "fingerprint", contents->fingerprint);
    add_string_member(out, "attention", config_attention_name(contents->attention.kernel));
    if (contents->attention.kernel == CONFIG_ATTENTION_CUDNN)
        add_string_member(out, "cudnn", contents->attention.cudnn);
    add_string_member(out, "optimizer", config_optimizer_name(contents->config->optimizer.type));
    text_add(out, "  \"state\": [");
    for (int kind = 0; kind < kinds->n; kind++)
        text_add(out, "%s\"%s\"", kind ? ", " : "", checkpoint_kind_name((enum checkpoint_kind)kind));
    if (kinds->has_average)
        text_add(out, ", \"%s\"", checkpoint_kind_name(CHECKPOINT_AVERAGE));
    text_add(out, "],\n");
    print_partition(contents, out);
    if (contents->run)
        run_state_print(contents->run, out);
    add_string_member(out, "tokenizer", tokenizer);
    if (contents->tokenizer)
        text_add(out, "  \"tokenizer_xxh3\": \"%016" PRIx64 "\",\n", tokenizer_checksum(contents->tokenizer));
    print_tensors(contents->params, kinds, out);
    print_files(files, n_files, contents->partition->world, out);
    text_add(out, "  \"config\": ");
    config_print(contents->config, out);
    while (isspace((unsigned char)out->data[out->length - 1]))
        out->length--;
    text_add(out, ",\n");
    manifest_seal(out);
}
