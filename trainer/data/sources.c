#include "trainer/data/sources.h"

#include "base/log.h"

struct sources_options data_sources(const struct config *config, bool validation,
                                    struct source_option list[CONFIG_MAX_SOURCES]) {
    const bool splits = config->data.val_split > 0;
    const struct config_sources *from = validation && !splits ? &config->data.val : &config->data.train;
    for (int i = 0; i < from->n; i++)
        list[i] = (struct source_option){.patterns = &from->list[i].files, .weight = from->list[i].weight};
    return (struct sources_options){.list = list,
                                    .n = from->n,
                                    .option = !validation ? "data.train"
                                              : splits    ? "data.val_split"
                                                          : "data.val",
                                    .held_out = config->data.val_split,
                                    .of_held_out = validation && splits};
}

void data_describe_source(const struct sources *sources, int index, double n_drawn, const char *until,
                          struct text *out) {
    const struct source *source = &sources->list[index];
    char tokens[32];
    text_add(out, "%s %s: %.4g %% of sequences, %s tokens in %d shard%s", source->option, source->name,
             100 * source->share, text_count(tokens, sizeof tokens, (double)source->n_tokens),
             source->n_shards, source->n_shards == 1 ? "" : "s");
    if (until[0])
        text_add(out, ", %.3g epochs%s", n_drawn / (double)source->n_sequences, until);
}

static double rows_of_run(const struct config *config) {
    const struct config_stages *batches = &config->train.batch_size_schedule;
    const int64_t steps = config->train.max_steps;
    double rows = 0;
    int64_t at = 0;
    for (int i = 0; i <= batches->n; i++) {
        const int64_t end =
            i < batches->n && batches->stages[i].step < steps ? batches->stages[i].step : steps;
        rows += (double)(end - at) * (double)config_stages_at(batches, config->train.train_batch_size, at);
        at = end;
    }
    return rows;
}

static void log_sources(const struct config *config, const struct sources *sources) {
    const double rows = rows_of_run(config);
    char until[64];
    snprintf(until, sizeof until, " in %lld steps", (long long)config->train.max_steps);
    for (int i = 0; i < sources->n; i++) {
        struct text line = {0};
        data_describe_source(sources, i, rows * sources->list[i].share, until, &line);
        log_info("%s", line.data);
        text_free(&line);
    }
}

void data_log_mixture(const struct config *config, bool warn) {
    struct source_option list[CONFIG_MAX_SOURCES];
    struct sources sources;
    if (config->data.train.n < 2)
        return;
    struct sources_options options = data_sources(config, false, list);
    options.seq_len = (int)config->train.seq_len;
    const enum status status = sources_open(&sources, &options);
    if (status == STATUS_OK)
        log_sources(config, &sources);
    else if (warn)
        log_warning("%s", status_message());
    status_clear();
    sources_free(&sources);
}
