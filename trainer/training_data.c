// The data of a run: opened, compared between ranks, and on resume compared with what the run was trained on.
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "trainer/data/sources.h"
#include "trainer/trainer_internal.h"

#define MOST_PADDING 512 // ids that a vocabulary is rounded up by, for fast products

static uint64_t rows_before(const void *context, int64_t step) {
    const struct trainer *trainer = context;
    return batch_sizes_before(&trainer->batches, step);
}

static enum status open_loader(const struct trainer *trainer, bool validation, struct loader **out) {
    const struct config *config = trainer->config;
    struct source_option list[CONFIG_MAX_SOURCES];
    struct loader_options options = {.sources = data_sources(config, validation, list),
                                     .vocab_size = (int)config->model.vocab_size,
                                     .seq_len = (int)config->train.seq_len,
                                     .batch_size = (int)config->train.train_batch_size,
                                     .micro_batch_size = (int)config->train.micro_batch_size,
                                     .first_row = trainer->comm->rank * (int)config->train.micro_batch_size,
                                     .row_stride = trainer->comm->world * (int)config->train.micro_batch_size,
                                     .rows_before = rows_before,
                                     .context = trainer,
                                     .shuffle = config->data.shuffle,
                                     .seed = (uint64_t)config->train.seed};
    if (validation) { // one micro-batch per step, in file order, distributed over the ranks
        options.batch_size = options.micro_batch_size;
        options.first_row = 0;
        options.step_stride = trainer->comm->world;
        options.shuffle = false;
        options.rows_before = NULL;
    }
    return loader_new(&options, out);
}

static enum status open_data(struct trainer *trainer) {
    TRY(open_loader(trainer, false, &trainer->train));
    const int n_sources = loader_sources(trainer->train)->n;
    trainer->source_tokens = allocate((size_t)n_sources, sizeof *trainer->source_tokens);
    if (trainer->config->data.val.n == 0 && trainer->config->data.val_split == 0)
        return STATUS_OK;
    const size_t n = (size_t)trainer->config->train.micro_batch_size * (size_t)trainer->config->train.seq_len;
    trainer->val_losses = allocate(n, sizeof *trainer->val_losses);
    return open_loader(trainer, true, &trainer->val);
}

// ---- several ranks

// "data.train has 3999 tokens in 1 shards on this rank, but 4000 in 1 on rank 0: shard 1 (a.bin) differs;
// ..."
static enum status refuse_difference(const char *option, const struct identity *of_rank_0,
                                     const struct identity *mine) {
    static const struct identity_words words = {"differs", "is only on rank 0", "is only on this rank"};
    struct text changes = {0};
    identity_add_changes(of_rank_0, mine, &words, &changes);
    const enum status status = FAIL(
        STATUS_INVALID,
        "%s has %llu tokens in %llu shards on this rank, but %llu in %llu on rank 0: %s; every rank must "
        "see the same data",
        option, (unsigned long long)mine->n_tokens, (unsigned long long)mine->n_shards,
        (unsigned long long)of_rank_0->n_tokens, (unsigned long long)of_rank_0->n_shards, changes.data);
    text_free(&changes);
    return status;
}

// Ranks with different data would train on a wrong batch, so each compares its data with rank 0's.
static enum status check_same(struct trainer *trainer, const char *option, const struct identity *mine) {
    struct comm *comm = trainer->comm;
    struct identity of_rank_0 = *mine;
    of_rank_0.entries = NULL; // an address is valid on its own rank only
    TRY(comm_broadcast(comm, &of_rank_0, sizeof of_rank_0, 0));
    const size_t bytes = (size_t)of_rank_0.n_entries * sizeof *of_rank_0.entries;
    of_rank_0.entries = allocate(1, bytes);
    if (trainer_leads(trainer))
        memcpy(of_rank_0.entries, mine->entries, bytes);
    enum status status = comm_broadcast(comm, of_rank_0.entries, bytes, 0);
    if (status == STATUS_OK)
        status = trainer_agree(trainer, identity_is_same(mine, &of_rank_0)
                                            ? STATUS_OK
                                            : refuse_difference(option, &of_rank_0, mine));
    identity_free(&of_rank_0);
    return status;
}

// A loss on sequences that the model is trained on says nothing about others. Compares contents, so that
// copies and links are found too.
static void warn_of_shared_data(const struct trainer *trainer) {
    if (!trainer->val)
        return;
    const struct identity *train = loader_identity(trainer->train), *val = loader_identity(trainer->val);
    if (train->shards_per_entry != 1 || val->shards_per_entry != 1)
        return;
    for (uint32_t v = 0; v < val->n_entries; v++)
        for (uint32_t t = 0; t < train->n_entries; t++)
            if (val->entries[v].tokens > 0 && val->entries[v].tokens == train->entries[t].tokens &&
                val->entries[v].checksum == train->entries[t].checksum) {
                log_warning(
                    "data.val holds training data: %s has the contents of %s of data.train, so the "
                    "validation loss is that of training; hold out other text (train tokenize --split)",
                    val->entries[v].name, train->entries[t].name);
                return;
            }
}

// ---- resume

static const struct identity_words resume_words = {"has changed", "is gone", "is new"};

static void add_difference(const struct identity *before, const struct identity *now, struct text *out) {
    text_add(out, "%llu shard%s of %llu tokens, now %llu of %llu: ", (unsigned long long)before->n_shards,
             before->n_shards == 1 ? "" : "s", (unsigned long long)before->n_tokens,
             (unsigned long long)now->n_shards, (unsigned long long)now->n_tokens);
    identity_add_changes(before, now, &resume_words, out);
}

static enum status take_changed_data(struct trainer *trainer, const struct identity *now) {
    const long long step = trainer->step;
    struct text difference = {0};
    enum status status = STATUS_OK;
    add_difference(&trainer->run.data.train, now, &difference);
    if (!trainer->config->checkpoint.accept_new_data)
        status = FAIL(STATUS_INVALID,
                      "data.train is not what the run was trained on up to step %lld. It had %s. Restore "
                      "data.train as it was, or set checkpoint.accept_new_data=true to continue with a new "
                      "order over the new data",
                      step, difference.data);
    else {
        log_info(
            "data.train has changed, which checkpoint.accept_new_data allows: it had %s. From step %lld on, "
            "sequences follow a new order over the new data",
            difference.data, step);
        data_record_begin_order(&trainer->run.data, step, now);
    }
    text_free(&difference);
    return status;
}

// data.val may change: losses are then not comparable, but the weights are the same.
static void take_val(struct trainer *trainer) {
    struct identity *before = &trainer->run.data.val;
    const struct identity *now = trainer->val ? loader_identity(trainer->val) : NULL;
    if (now && before->n_shards > 0 && !identity_is_same(before, now)) {
        struct text difference = {0};
        add_difference(before, now, &difference);
        log_warning("data.val has changed: it had %s. Losses on it cannot be compared with those before "
                    "step %lld",
                    difference.data, (long long)trainer->step);
        trainer->run.best = (struct run_best){0};
        text_free(&difference);
    }
    identity_free(before);
    if (now)
        identity_copy(before, now);
}

// The seed of the n-th order of the data. The first is the run's own.
static uint64_t order_seed(uint64_t seed, int n) {
    return seed + (uint64_t)n * 0x9E3779B97F4A7C15u;
}

// Sequences are counted from the first step on: if earlier steps had other batch sizes, later ones would
// repeat or skip some.
static bool has_another_batch(const struct trainer *trainer) {
    if (!trainer->resumed)
        return false;
    struct batch_sizes before = batch_sizes_of(&trainer->resumed->config);
    if (trainer->resumed->run.noise.grown.n > 0)
        before.stages = trainer->resumed->run.noise.grown;
    if (batch_sizes_before(&before, trainer->step) == batch_sizes_before(&trainer->batches, trainer->step))
        return false;
    log_info("with the new batch size, sequences follow a new order from step %lld on",
             (long long)trainer->step + 1);
    return true;
}

static enum status settle_orders(struct trainer *trainer) {
    const struct identity *now = loader_identity(trainer->train);
    struct data_record *record = &trainer->run.data;
    if (record->n_orders == 0) // a new run
        data_record_begin_order(record, 0, now);
    else if (!identity_is_same(&record->train, now))
        TRY(take_changed_data(trainer, now));
    else if (has_another_batch(trainer))
        data_record_begin_order(record, trainer->step, now);
    const int last = record->n_orders - 1;
    loader_begin_order(trainer->train, record->orders[last].step,
                       order_seed((uint64_t)trainer->config->train.seed, last));
    take_val(trainer);
    return STATUS_OK;
}

// A line for each source of a mixture. With train.max_minutes the number of steps, and so of epochs, is open.
static void describe_sources(const struct loader *loader, int64_t steps, const char *until) {
    const struct sources *sources = loader_sources(loader);
    for (int i = 0; i < sources->n && sources->n > 1; i++) {
        struct text line = {0};
        data_describe_source(sources, i, (double)loader_n_drawn(loader, i, steps), until, &line);
        log_info("%s", line.data);
        text_free(&line);
    }
}

void trainer_describe_data(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const struct loader *train = trainer->train;
    char tokens[32], made_with[TOKENIZER_DESCRIPTION_BYTES];
    log_info("data: %s tokens in %d shard%s; each step takes %lld x %lld sequences of %lld tokens%s",
             text_count(tokens, sizeof tokens, (double)loader_n_tokens(train)), loader_n_shards(train),
             loader_n_shards(train) == 1 ? "" : "s", (long long)config->train.gradient_accumulation_steps,
             (long long)config->train.micro_batch_size, (long long)config->train.seq_len,
             trainer->comm->world > 1 ? " per rank" : "");
    struct text schedule = {0};
    config_print_schedule(config, &schedule);
    if (schedule.length > 0)
        log_info("%s (train.%s)", schedule.data,
                 config->train.batch_size_schedule.n > 0 ? "batch_size_schedule" : "max_batch_size");
    text_free(&schedule);
    char until[48] = "";
    if (config->train.max_minutes == 0)
        snprintf(until, sizeof until, " up to step %lld", (long long)trainer->last_step);
    describe_sources(train, trainer->last_step, until);
    data_log_sequences(loader_sources(train));
    if (loader_n_sequences(train) < (size_t)config->train.train_batch_size)
        log_warning(
            "data.train holds %zu sequences, fewer than a batch of %lld: every step repeats some of them; "
            "lower train.train_batch_size or train.seq_len, or add data",
            loader_n_sequences(train), (long long)config->train.train_batch_size);
    if (trainer->val && config->data.val_split > 0)
        log_info("validation: the last %s tokens of data.train, %g of it (data.val_split)",
                 text_count(tokens, sizeof tokens, (double)loader_n_tokens(trainer->val)),
                 config->data.val_split);
    else if (trainer->val && !config_given(config, "data.val"))
        log_info("validation: %s tokens of %s%s, found beside data.train (data.val)",
                 text_count(tokens, sizeof tokens, (double)loader_n_tokens(trainer->val)),
                 config->data.val.list[0].files.paths[0], config->data.val.n > 1 ? ", ..." : "");
    if (trainer->val) {
        describe_sources(trainer->val, 0, "");
        data_log_sequences(loader_sources(trainer->val));
    }
    if (config->data.mask_documents)
        log_info("documents: attention stays within each, from one %s (id %d) to the next; positions "
                 "count from the start of the sequence",
                 trainer->tokenizer && tokenizer_has_bos(trainer->tokenizer) ? "start of a document"
                                                                             : "end-of-text",
                 trainer_document_start(trainer));
    const int n_ids = loader_tokenizer(train)->n_ids;
    if (n_ids > 0 && config->model.vocab_size > n_ids + MOST_PADDING)
        log_info(
            "model.vocab_size is %lld, but the tokenizer of data.train has %d ids: the other rows of the "
            "embedding are never used; leave model.vocab_size out",
            (long long)config->model.vocab_size, n_ids);
    if (trainer->found_tokenizer)
        log_info("tokenizer: %s, that of model.init_from", trainer->found_tokenizer);
    else if (config->data.tokenizer[0] && !config_given(config, "data.tokenizer"))
        log_info("tokenizer: %s, that of data.train", config->data.tokenizer);
    else if (trainer->tokenizer && !config->data.tokenizer[0])
        log_info("tokenizer: %s, the copy in the checkpoint", trainer->resumed->tokenizer);
    else if (!trainer->tokenizer && n_ids > 0)
        log_info(
            "tokenizer: that of data.train, %s, is not found beside it; set data.tokenizer for samples and "
            "bits per byte",
            tokenizer_identity_describe(loader_tokenizer(train), made_with));
}

void trainer_log_drawn(const struct trainer *trainer) {
    const struct sources *sources = loader_sources(trainer->train);
    const int n = sources->n > 1 && !trainer->config->train.overfit_one_batch ? sources->n : 0;
    char tokens[32];
    for (int i = 0; i < n; i++) {
        const struct source *source = &sources->list[i];
        const double drawn = (double)loader_n_drawn(trainer->train, i, trainer->step);
        log_info("trained on %s %s: %s tokens, %.4g epochs", source->option, source->name,
                 text_count(tokens, sizeof tokens, drawn * (double)trainer->config->train.seq_len),
                 drawn / (double)source->n_sequences);
    }
}

enum status trainer_open_data(struct trainer *trainer) {
    TRY(trainer_agree(trainer, open_data(trainer)));
    TRY(check_same(trainer, "data.train", loader_identity(trainer->train)));
    if (trainer->val)
        TRY(check_same(trainer, "data.val", loader_identity(trainer->val)));
    TRY(trainer_check_same_tokenizer(trainer));
    TRY(trainer_agree(trainer, trainer_check_shard_tokenizers(trainer)));
    warn_of_shared_data(trainer);
    return trainer_agree(trainer, settle_orders(trainer));
}
