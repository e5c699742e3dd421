#include "trainer/data/sources.h"

#include "base/log.h"
#include "base/text.h"

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

#define MUCH_LEFT_OUT 0.05 // from this fraction of a source's tokens on, data_log_sequences warns

void data_log_sequences(const struct sources *sources) {
    for (int i = 0; i < sources->n; i++) {
        const struct source *source = &sources->list[i];
        const size_t used = source->n_sequences * (size_t)sources->seq_len, left = source->n_tokens - used;
        const double fraction = (double)left / (double)source->n_tokens;
        struct text line = {0};
        text_add(&line, "%s%s%s: %zu sequence%s of %d tokens, %zu of %zu tokens; %zu (%.2g %%) left out",
                 source->option, sources->n > 1 ? " " : "", sources->n > 1 ? source->name : "",
                 source->n_sequences, source->n_sequences == 1 ? "" : "s", sources->seq_len, used,
                 source->n_tokens, left, 100 * fraction);
        if (fraction < MUCH_LEFT_OUT)
            log_info("%s", line.data);
        else
            log_warning(
                "%s: the rest of each shard, and whole shards with fewer than train.seq_len %d + 1 tokens; "
                "make longer shards, or lower train.seq_len",
                line.data, sources->seq_len);
        text_free(&line);
    }
}

void data_log_mixture(const struct config *config) {
    struct source_option list[CONFIG_MAX_SOURCES];
    struct sources sources;
    if (config->data.train.n < 2)
        return;
    struct sources_options options = data_sources(config, false, list);
    options.seq_len = (int)config->train.seq_len;
    if (sources_open(&sources, &options) == STATUS_OK) {
        log_sources(config, &sources);
        data_log_sequences(&sources);
    }
    status_clear();
    sources_free(&sources);
}

// ---- checking shards and their tokenizers

static enum status check_shards(const struct config *config, const char *option,
                                const struct tokenizer_identity *of_shards,
                                const struct tokenizer_identity *own, const char *path) {
    char theirs[TOKENIZER_DESCRIPTION_BYTES], ours[TOKENIZER_DESCRIPTION_BYTES];
    if (tokenizer_identity_differs(own, of_shards))
        return FAIL(STATUS_INVALID,
                    "%s was tokenized with %s, but data.tokenizer %s is %s; set data.tokenizer to the "
                    "first, or tokenize the text again with the second",
                    option, tokenizer_identity_describe(of_shards, theirs), path,
                    tokenizer_identity_describe(own, ours));
    if (of_shards->n_ids > config->model.vocab_size)
        return FAIL(STATUS_INVALID,
                    "%s was tokenized with %s, which has more ids than model.vocab_size %lld; leave "
                    "model.vocab_size out, or tokenize the text again with a smaller tokenizer",
                    option, tokenizer_identity_describe(of_shards, theirs),
                    (long long)config->model.vocab_size);
    return STATUS_OK;
}

enum status data_check_tokenizers(const struct config *config, const struct sources *train,
                                  const struct sources *val, const struct tokenizer_identity *own,
                                  const char *path) {
    char of_train[TOKENIZER_DESCRIPTION_BYTES], of_val[TOKENIZER_DESCRIPTION_BYTES];
    TRY(check_shards(config, "data.train", &train->tokenizer, own, path));
    if (!val)
        return STATUS_OK;
    if (tokenizer_identity_differs(&train->tokenizer, &val->tokenizer))
        return FAIL(STATUS_INVALID,
                    "data.train was tokenized with %s, but data.val with %s; tokenize both with the same "
                    "tokenizer",
                    tokenizer_identity_describe(&train->tokenizer, of_train),
                    tokenizer_identity_describe(&val->tokenizer, of_val));
    return check_shards(config, "data.val", &val->tokenizer, own, path);
}

// Opens the sources of data.train or, for validation, of data.val.
//   opened   [out] false: the data is absent or too short for a sequence, which is logged as a warning
static enum status open_part(const struct config *config, bool validation, struct sources *sources,
                             bool *opened) {
    struct source_option list[CONFIG_MAX_SOURCES];
    struct sources_options options = data_sources(config, validation, list);
    options.seq_len = (int)config->train.seq_len;
    *opened = false;
    if (options.n == 0)
        return STATUS_OK;
    const enum status status = sources_open(sources, &options);
    *opened = status == STATUS_OK;
    const bool all_found = sources->shards, all_shards = sources->identity.entries;
    if (*opened || (all_found && !all_shards))
        return status;
    log_warning("%s", status_message());
    status_clear();
    return STATUS_OK;
}

enum status data_check(const struct config *config) {
    static const struct tokenizer_identity unknown;
    struct sources train = {0}, val = {0};
    bool has_train, has_val = false;
    enum status status = open_part(config, false, &train, &has_train);
    if (status == STATUS_OK && (has_train || config->data.val_split == 0))
        status = open_part(config, true, &val, &has_val);
    if (status == STATUS_OK && has_train)
        status = data_check_tokenizers(config, &train, has_val ? &val : NULL, &unknown, "");
    if (status == STATUS_OK && has_train && train.n > 1)
        log_sources(config, &train);
    if (status == STATUS_OK && has_train)
        data_log_sequences(&train);
    if (status == STATUS_OK && has_val)
        data_log_sequences(&val);
    sources_free(&train);
    sources_free(&val);
    return status;
}
