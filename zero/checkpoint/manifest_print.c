// Writes manifests: zero/checkpoint/manifest.h.
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/json.h"
#include "zero/checkpoint/manifest.h"
#include "zero/checkpoint/manifest_model.h"

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

// Prints nothing if losses are not scaled.
static void print_loss_scale(const struct loss_scale *loss_scale, struct text *out) {
    char scale[32];
    if (loss_scale->scale > 0)
        text_add(out,
                 "  \"loss_scale\": {\"scale\": %s, \"hysteresis_left\": %" PRId64
                 ", \"last_overflow\": %" PRId64 ", \"skipped\": %" PRId64 ", \"consecutive\": %" PRId64
                 "},\n",
                 text_double(scale, loss_scale->scale), loss_scale->hysteresis_left,
                 loss_scale->last_overflow, loss_scale->skipped, loss_scale->consecutive);
}

// n_moments NULL: not printed.
static void print_tensors(const struct params *params, const unsigned char *n_moments, struct text *out) {
    text_add(out, "  \"tensors\": [");
    for (int i = 0; i < params->n_params; i++) {
        const struct param *param = &params->params[i];
        text_add(out, "%s\n    {\"name\": \"%s\", \"shape\": [%" PRId64, i ? "," : "", param->name,
                 param->shape[0]);
        if (param->n_dims == 2)
            text_add(out, ", %" PRId64, param->shape[1]);
        text_add(out, "], \"unit\": %d, \"offset\": %zu", param->unit, param->offset);
        if (n_moments)
            text_add(out, ", \"moments\": %d", n_moments[i]);
        text_add(out, "}");
    }
    text_add(out, "\n  ],\n");
}

// *regular: whether partition_init gives a reader the same partition.
static enum status compare_regular(const struct checkpoint_contents *contents, uint64_t digest,
                                   bool *regular) {
    struct partition made;
    TRY(partition_init(&made, contents->params, contents->partition->kind, contents->partition->world));
    *regular = checkpoint_partition_digest(&made) == digest;
    partition_free(&made);
    return STATUS_OK;
}

static void print_spans(const struct checkpoint_layout *layout, struct text *out) {
    struct checkpoint_layout_cursor cursor = {0};
    struct checkpoint_span span;
    text_add(out, "  \"spans\": [");
    for (bool first = true; checkpoint_layout_next(layout, -1, &cursor, &span); first = false)
        text_add(out,
                 "%s\n    {\"unit\": %d, \"kind\": \"%s\", \"begin\": %zu, \"end\": %zu, \"file\": %d, "
                 "\"offset\": %" PRIu64 "}",
                 first ? "" : ",", span.unit, checkpoint_kind_name(span.kind), span.begin, span.end,
                 span.file, span.offset);
    text_add(out, "\n  ],\n");
}

static enum status print_partition(const struct checkpoint_contents *contents,
                                   const struct checkpoint_layout *layout, struct text *out) {
    const struct params *params = contents->params;
    uint64_t digest = checkpoint_partition_digest(contents->partition);
    bool regular;
    TRY(compare_regular(contents, digest, &regular));
    text_add(out, "  \"world\": %d,\n", contents->partition->world);
    add_string_member(out, "partition", partition_name(contents->partition->kind));
    text_add(out, "  \"alignment\": %d,\n  \"unit_elements\": [", PARAM_ALIGNMENT);
    for (int unit = 0; unit < params->n_units; unit++)
        text_add(out, "%s%zu", unit ? ", " : "", params->units[unit].elements);
    text_add(out, "],\n");
    if (regular)
        text_add(out, "  \"partition_xxh3\": \"%016" PRIx64 "\",\n", digest);
    else
        print_spans(layout, out);
    return STATUS_OK;
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

enum status manifest_print(const struct checkpoint_contents *contents, const char *version,
                           const char *tokenizer, const struct checkpoint_file *files, int n_files,
                           const struct checkpoint_layout *layout, struct text *out) {
    const struct params *params = contents->params;
    const struct checkpoint_kinds *kinds = &contents->kinds;
    const bool varies = checkpoint_kinds_vary(kinds, params);
    text_add(out, "{\n");
    add_string_member(out, "format", MANIFEST_FORMAT);
    text_add(out, "  \"format_version\": %d,\n", varies ? MANIFEST_FORMAT_VERSION : 2);
    add_string_member(out, "version", version);
    text_add(out, "  \"step\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n", contents->step, contents->tokens);
    manifest_add_model(out, params);
    add_string_member(out, "compute", dtype_name(contents->compute));
    if (contents->device)
        add_string_member(out, "device", contents->device);
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
    TRY(print_partition(contents, layout, out));
    print_loss_scale(&contents->loss_scale, out);
    data_record_print(contents->data, out);
    history_print(contents->history, out);
    spike_record_print(contents->spikes, out);
    noise_record_print(contents->noise, out);
    average_record_print(contents->average, out);
    add_string_member(out, "tokenizer", tokenizer);
    if (contents->tokenizer)
        text_add(out, "  \"tokenizer_xxh3\": \"%016" PRIx64 "\",\n", tokenizer_checksum(contents->tokenizer));
    print_tensors(params, varies ? kinds->n_moments : NULL, out);
    print_files(files, n_files, contents->partition->world, out);
    text_add(out, "  \"config\": ");
    config_print(contents->config, out);
    while (!out->failed && out->length > 0 && isspace((unsigned char)out->data[out->length - 1]))
        out->length--;
    text_add(out, ",\n");
    TRY(text_status(out));
    manifest_seal(out);
    return text_status(out);
}
