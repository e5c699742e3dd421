// ./train from-deepspeed DS.json [--out FILE]: translates a DeepSpeed configuration into a configuration of
// this program, and reports what became of each key.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/output.h"
#include "base/overwrite.h"
#include "cli/commands.h"
#include "options/deepspeed.h"
#include "options/print.h"

#define LARGEST_FILE ((size_t)16 << 20) // bytes of DS.json

static const char *out_path = NULL;
static bool force = false;
static const struct arg flags[] = {
    {"--out", ARG_STRING, &out_path, 0, 0, "file to write the configuration to (standard output)"},
    {"--force", ARG_FLAG, &force, 0, 0, "overwrite any file at --out but DS.json"},
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

enum { COLUMNS = 100 };

// Prints a line, wrapped at spaces to COLUMNS characters; continuation lines are indented.
static void print_folded(FILE *stream, const char *line, size_t length) {
    static const char indent[] = "      ";
    for (size_t room = COLUMNS; length > room; room = COLUMNS - strlen(indent)) {
        size_t end = room;
        while (end > strspn(line, " ") && line[end] != ' ')
            end--;
        if (line[end] != ' ' || end <= strspn(line, " ")) // the first word is wider than the line
            break;
        output_to(stream, line, end);
        fprintf(stream, "\n%s", indent);
        line += end + 1, length -= end + 1;
    }
    output_to(stream, line, length);
    fprintf(stream, "\n");
}

// Prints which options the user should set next, because a DeepSpeed file does not have them, and their
// current values.
//   path   the translated configuration
static void print_next(FILE *stream, const char *path, const struct config *config) {
    fprintf(stream,
            "\nName the model and the data next, in the file or on the command line. Also set what "
            "your script\nsets: train.seed (%lld now)",
            (long long)config->train.seed);
    if (!config_given(config, "train.max_steps"))
        fprintf(stream, " and train.max_steps, the length of the run (%lld now)",
                (long long)config->train.max_steps);
    fprintf(stream,
            ".\n  ./train check %s model.n_layer=12 model.n_head=12 model.n_embd=768 \\\n"
            "      data.train='data/train-*.bin'\n",
            path);
}

static void print_report(FILE *stream, const char *path, const struct deepspeed_translation *translation) {
    static const char *const titles[DEEPSPEED_KINDS] = {
        [TRANSLATED] = "Translated",
        [REPLACED] = "Replaced by another setting: not supported, same results",
        [CHOSEN] = "Check these values: a script, transformers' Trainer or DeepSpeed's version sets them",
        [ALTERING] = "Warning: these change what the run computes",
        [NEEDLESS] = "Left out: nothing to set here, same results",
        [OFF] = "Left out: switched off in the file",
        [UNKNOWN] = "Left out: unknown"};
    for (int i = 0; i < DEEPSPEED_KINDS; i++) {
        const char *line = translation->answers[i].lines.data;
        if (translation->answers[i].n > 0)
            fprintf(stream, "\n%s (%d):\n", titles[i], translation->answers[i].n);
        for (; line && *line; line += strcspn(line, "\n") + 1)
            print_folded(stream, line, strcspn(line, "\n"));
    }
    print_next(stream, path, &translation->config);
}

static enum status write_translation(const char *path, const struct deepspeed_translation *translation,
                                     const struct text *config) {
    if (out_path) {
        TRY(file_write_all(out_path, config->data, config->length));
        printf("%s is translated to %s.\n", path, out_path);
    } else {
        output_to(stdout, config->data, config->length);
        fflush(stdout); // the report goes to stderr; on a terminal it must come after the configuration
    }
    print_report(out_path ? stdout : stderr, out_path ? out_path : "CONFIG.json", translation);
    return STATUS_OK;
}

// Reads the input as DeepSpeed does, as Hjson: JSON that may have comments and trailing commas.
static enum status read_hjson(const char *path, cJSON **root) {
    char *text = NULL;
    size_t length;
    TRY(file_read_stream(path, LARGEST_FILE, &text, &length));
    json_blank_extensions(text, length);
    enum status status = json_parse(text, length, path, root);
    free(text);
    return status;
}

static enum status run_from_deepspeed(int n_args, char **args) {
    const char *path = NULL;
    int n_positional;
    struct deepspeed_translation translation = {0};
    struct text config = {0};
    cJSON *root = NULL;
    TRY(args_parse("from-deepspeed", flags, N_FLAGS, n_args, args, &path, 1, &n_positional));
    if (n_positional < 1)
        return FAIL(STATUS_INVALID,
                    "train from-deepspeed: no file named; usage: train from-deepspeed DS.json "
                    "[--out FILE]");
    // Without --force, any existing file at --out is kept, even a translated configuration: the user may have
    // edited it. With --force, any file but the input is overwritten.
    const struct overwrite overwrite = {.writer = "train from-deepspeed",
                                        .inputs = &path,
                                        .n_inputs = 1,
                                        .is_kind = force ? file_exists : NULL,
                                        .instead = force ? "choose another name" : NULL};
    if (out_path)
        TRY(overwrite_check(&overwrite, out_path));
    enum status status = read_hjson(path, &root);
    if (status == STATUS_OK)
        status = deepspeed_translate(root, path, &translation);
    if (status == STATUS_OK) {
        config_print_given(&translation.config, &config);
        status = write_translation(path, &translation, &config);
    }
    text_free(&config);
    deepspeed_free(&translation);
    cJSON_Delete(root);
    return status;
}

const struct command command_from_deepspeed = {
    .name = "from-deepspeed",
    .synopsis = "DS.json [--out FILE] [--force]",
    .summary = "translate a DeepSpeed configuration, and report what became of each of its keys",
    .details =
        "The configuration goes to standard output and the report to standard error; with --out FILE, the\n"
        "configuration goes to FILE and the report to standard output.",
    .examples = "Translate a configuration, and read what became of each key.\n"
                "./train from-deepspeed ds_config.json --out config.json\n",
    .flags = flags,
    .n_flags = N_FLAGS,
    .run = run_from_deepspeed,
};
