// ./train export RUN --to hf|gguf DIR: writes trained weights in formats of other programs.
#include <stdio.h>
#include <string.h>

#include "base/output.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/commands.h"
#include "infer/export/export.h"

#define USAGE "usage: train export RUN --to hf|gguf DIR"

static const char *format_name = NULL, *type_name = "fp32", *tokenizer_path = NULL, *weights_name = NULL;
static uint64_t max_shard_bytes = 5000000000;
static bool force = false;

static const struct arg flags[] = {
    {"--to", ARG_STRING, &format_name, 0, 0, "hf: a folder for transformers; gguf: model.gguf for llama.cpp"},
    {"--dtype", ARG_STRING, &type_name, 0, 0,
     "fp32, bf16, fp16 or, with gguf, q8_0; gguf keeps vectors and position embeddings in fp32 (fp32)"},
    {"--tokenizer", ARG_STRING, &tokenizer_path, 0, 0,
     "tokenizer to export if the weights come without one, or \"none\" (default: the weights' own)"},
    {"--weights", ARG_STRING, &weights_name, 0, 0,
     "average or latest, if the checkpoint has both (default: average)"},
    {"--max-shard-size", ARG_BYTES, &max_shard_bytes, 1, 0x1p53,
     "hf: maximum size of a file of weights; larger models are split into several, with an index (5 GB)"},
    {"--force", ARG_FLAG, &force, 0, 0,
     "write into DIR even if it has files that no export wrote; files with other names are kept"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

static enum status find_format(enum export_format *format) {
    for (int i = 0; i < N_EXPORT_FORMATS; i++)
        if (format_name && strcmp(export_format_name((enum export_format)i), format_name) == 0) {
            *format = (enum export_format)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "train export: %s%s, expected --to hf or gguf",
                format_name ? "unknown format " : "no format is named", format_name ? format_name : "");
}

static enum status find_type(enum value_type *type) {
    for (int i = 0; i < N_VALUE_TYPES; i++)
        if (strcmp(value_type_name((enum value_type)i), type_name) == 0) {
            *type = (enum value_type)i;
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID, "train export: unknown --dtype %s, expected fp32, bf16, fp16 or q8_0",
                type_name);
}

static void print_summary(const struct exporter *exporter) {
    char weights[32], bytes[32];
    output_print("%s: %s, %s, %s parameters, %s in %d file%s%s\n", exporter->folder,
                 export_format_name(exporter->options->format), value_type_name(exporter->options->type),
                 text_count(weights, sizeof weights, (double)exporter->params.n_weights),
                 text_bytes(bytes, sizeof bytes, (double)exporter->bytes), exporter->files.n_paths,
                 exporter->files.n_paths == 1 ? "" : "s", exporter->tokenizer ? "" : ", without a tokenizer");
    for (int i = 0; i < exporter->files.n_paths; i++)
        output_print("  %s\n", exporter->files.paths[i]);
}

static enum status run_export(int n_args, char **args) {
    const char *paths[2];
    int n_paths;
    struct exporter exporter;
    struct export_options options = {0};
    TRY(args_parse("export", flags, N_FLAGS, n_args, args, paths, 2, &n_paths));
    if (n_paths < 2)
        return FAIL(STATUS_INVALID, "train export: expected the weights and the folder to write; " USAGE);
    TRY(find_format(&options.format));
    TRY(find_type(&options.type));
    options.max_shard_bytes = max_shard_bytes;
    options.tokenizer = tokenizer_path;
    options.weights = weights_name;
    options.force = force;
    options.is_stopped = signals_stop_requested;
    signals_catch();
    enum status status = export_run(&exporter, paths[0], paths[1], &options);
    if (status == STATUS_OK)
        print_summary(&exporter);
    export_free(&exporter);
    return status;
}

const struct command command_export = {
    .name = "export",
    .synopsis = "RUN_OR_CHECKPOINT --to hf|gguf DIR [--dtype fp32|bf16|fp16|q8_0] [--tokenizer FILE|none] "
                "[--weights average|latest] [--max-shard-size N] [--force]",
    .summary = "write weights and tokenizer for transformers or llama.cpp",
    .details =
        "The weights may also be a Hugging Face folder (GPT-2, Llama, Qwen2, Qwen3) or a "
        "GGUF model.\n"
        "For a run, the newest checkpoint is exported. DIR appears when all of its files are complete; "
        "DIR/" EXPORT_RECORD " lists them.",
    .examples = "A folder for transformers.\n"
                "./train export runs/quickstart --to hf my-model\n"
                "A file for llama.cpp, with 8-bit weights.\n"
                "./train export runs/quickstart --to gguf my-model --dtype q8_0\n",
    .flags = flags,
    .n_flags = N_FLAGS,
    .run = run_export,
};
