// The model card of a Hugging Face folder: sizes, and of a run's checkpoint data, steps and losses. The
// losses are in metrics.jsonl, two folders above the checkpoint.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "infer/export/internal.h"

#define LONGEST_LINE 65536 // of metrics.jsonl; longer ones are passed over
#define DATA_LISTED  8

struct losses {
    double train, validation; // of the checkpoint's step, and the last at or before it
    bool has_train, has_validation;
};

//   latest   of the latest weights, where there is an average beside them
static void read_line(const char *line, int64_t step, bool latest, struct losses *losses) {
    cJSON *object = NULL;
    int64_t of_step = 0;
    double value;
    if (json_parse(line, strlen(line), "metrics.jsonl", &object) == STATUS_OK &&
        json_get_integer(object, "step", 0, INT64_MAX, "metrics.jsonl", &of_step) == STATUS_OK &&
        of_step <= step) {
        if (of_step == step && json_get_number(object, "loss", "metrics.jsonl", &value) == STATUS_OK)
            losses->train = value, losses->has_train = true;
        if ((latest && json_get_number(object, "latest_val_loss", "metrics.jsonl", &value) == STATUS_OK) ||
            json_get_number(object, "val_loss", "metrics.jsonl", &value) == STATUS_OK)
            losses->validation = value, losses->has_validation = true;
    }
    status_clear(); // a line without one of them
    cJSON_Delete(object);
}

// Whether a line may matter; most lines of a long run do not, and are not parsed.
static bool is_of_interest(const char *line, int64_t step) {
    char key[40];
    snprintf(key, sizeof key, "\"step\": %lld,", (long long)step);
    return strstr(line, "\"val_loss\"") || strstr(line, key);
}

static struct losses read_losses(const struct checkpoint *checkpoint, bool latest) {
    struct losses losses = {0};
    char *path = file_path("%s/../../metrics.jsonl", checkpoint->path), *line = malloc(LONGEST_LINE);
    FILE *stream = path && line ? fopen(path, "re") : NULL;
    bool whole = true; // whether this is the start of a line
    while (stream && fgets(line, LONGEST_LINE, stream)) {
        const bool ends = strchr(line, '\n') != NULL;
        if (whole && ends && is_of_interest(line, checkpoint->step))
            read_line(line, checkpoint->step, latest, &losses);
        whole = ends;
    }
    if (stream)
        fclose(stream);
    free(line);
    free(path);
    return losses;
}

// The last components of a path: a card is published, and need not tell where things were.
static const char *last_components(const char *path, int n) {
    const char *at = path + strlen(path);
    while (at > path && !(at[-1] == '/' && --n == 0))
        at--;
    return at;
}

// The name of the model: that of the run, or of the folder of the weights.
static char *find_name(const struct exporter *exporter) {
    const struct checkpoint *checkpoint = exporter->weights.checkpoint;
    char *path = file_path("%s", checkpoint ? checkpoint->path : exporter->weights.folder);
    for (size_t n = path ? strlen(path) : 0; n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    char *folder = checkpoint && path ? strstr(path, "/checkpoints/") : NULL;
    if (folder)
        *folder = '\0';
    const char *last = path ? last_components(path, 1) : "";
    char *name = path ? file_path("%s", last[strspn(last, "./")] ? last : "model") : NULL;
    free(path);
    return name;
}

// The first paths of the sources, each with its weight in a mixture.
static void add_sources(const struct config_sources *sources, struct text *out) {
    int n = 0;
    for (int s = 0; s < sources->n; s++) {
        const struct config_source *source = &sources->list[s];
        for (int i = 0; i < source->files.n_paths; i++, n++)
            if (n < DATA_LISTED)
                text_add(out, "%s `%s`", n > 0 ? "," : "", last_components(source->files.paths[i], 2));
        if (source->weight > 0 && n <= DATA_LISTED)
            text_add(out, " (weight %g)", source->weight);
    }
    text_add(out, n > DATA_LISTED ? ", ..." : "");
}

static void add_training(const struct weights *weights, struct text *out) {
    const struct checkpoint *checkpoint = weights->checkpoint;
    const struct losses losses = read_losses(checkpoint, !weights->uses_average);
    text_add(out, "| training data |");
    add_sources(&checkpoint->config.data.train, out);
    text_add(out, " |\n");
    text_add(out, "| steps | %lld |\n| tokens | %lld |\n", (long long)checkpoint->step,
             (long long)checkpoint->tokens);
    if (losses.has_train)
        text_add(out, "| training loss | %.4f nats per token |\n", losses.train);
    if (losses.has_validation)
        text_add(out, "| validation loss | %.4f nats per token |\n", losses.validation);
    text_add(out, "| optimizer | %s |\n| compute | %s |\n", checkpoint->optimizer,
             dtype_name(checkpoint->compute));
}

void export_add_card(const struct exporter *exporter, struct text *out) {
    const struct gpt_config *config = &exporter->params.config;
    const struct checkpoint *checkpoint = exporter->weights.checkpoint;
    const bool gpt2 = config->family == FAMILY_GPT2;
    char count[32], *name = find_name(exporter);
    text_count(count, sizeof count, (double)exporter->params.n_weights);
    text_add(out,
             "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- %s\n---\n\n# %s\n\n"
             "A %s model of %s parameters, %s zero.c.\n\n| | |\n|---|---|\n| layers | %d |\n"
             "| attention heads | %d |\n| width | %d |\n| context | %d tokens |\n| vocabulary | %d |\n",
             gpt2 ? "gpt2" : "llama", name ? name : "model", gpt2 ? "GPT-2" : "Llama-family", count,
             checkpoint ? "trained with" : "converted by", config->n_layer, config->n_head, config->n_embd,
             config->n_positions, config->vocab_size);
    if (checkpoint)
        add_training(&exporter->weights, out);
    text_add(out, "| weights | %s |\n", value_type_name(exporter->options->type));
    if (exporter->tokenizer)
        text_add(out,
                 "\n```python\nfrom transformers import pipeline\n\nprint(pipeline(\"text-generation\", "
                 "\"%s\")(\"Once upon a time\"))\n```\n",
                 name ? name : "model");
    out->failed = out->failed || !name;
    free(name);
}
