// The data and the tokenizer of a run are compared between ranks, and on resume with what the checkpoint
// records. With another tokenizer the same ids mean other text, so bits per byte and samples would silently
// be wrong.
#include "trainer/training_data.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "options/print.h"
#include "trainer/auditing.h"
#include "trainer/data/sources.h"
#include "trainer/plan/model_sizes.h"

// If model.vocab_size exceeds the tokenizer's ids by at most this, it is padding for faster matrix products.
#define MOST_PADDING 512

// ---- the tokenizer

// Returns the path of the run's tokenizer; "": none. The tokenizer of model.init_from takes precedence over
// one found beside the shards. check_shard_tokenizers checks that it is the one the shards were made with.
static const char *path_of(const struct training_data *data) {
    return data->found_tokenizer ? data->found_tokenizer : data->run->config->data.tokenizer;
}

enum status training_data_load_tokenizer(struct training_data *data) {
    struct config *config = data->run->config;
    if (!path_of(data)[0])
        return STATUS_OK;
    TRY(tokenizer_load(path_of(data), &data->tokenizer));
    return model_sizes_from_tokenizer(config, path_of(data), tokenizer_n_ids(data->tokenizer));
}

static enum status check_same_tokenizer(struct training_data *data) {
    struct tokenizer_identity mine = {0}, of_rank_0;
    char here[TOKENIZER_DESCRIPTION_BYTES], there[TOKENIZER_DESCRIPTION_BYTES];
    if (data->tokenizer)
        mine = tokenizer_identify(data->tokenizer, path_of(data));
    of_rank_0 = mine;
    TRY(comm_broadcast(data->run->comm, &of_rank_0, sizeof of_rank_0, 0));
    const bool same = mine.n_ids == of_rank_0.n_ids && mine.checksum == of_rank_0.checksum;
    return run_agree(
        data->run,
        same ? STATUS_OK
             : FAIL(STATUS_INVALID,
                    "the tokenizer is %s on this rank, but %s on rank 0; every rank must see the same file",
                    mine.n_ids ? tokenizer_identity_describe(&mine, here) : "absent",
                    of_rank_0.n_ids ? tokenizer_identity_describe(&of_rank_0, there) : "absent"));
}

static enum status identify_recorded(const struct checkpoint *checkpoint, const struct tokenizer *copy,
                                     struct tokenizer_identity *out) {
    const char *given = checkpoint->config.data.tokenizer;
    *out = tokenizer_identify(copy, given[0] ? given : checkpoint->tokenizer);
    if (checkpoint->tokenizer_checksum != out->checksum)
        return FAIL(STATUS_INVALID, "%s: %s is not the tokenizer that its manifest records", checkpoint->path,
                    checkpoint->tokenizer);
    return STATUS_OK;
}

static enum status refuse_tokenizer(const struct training_data *data, const struct checkpoint *resumed,
                                    const struct tokenizer_identity *before,
                                    const struct tokenizer_identity *now) {
    char was[TOKENIZER_DESCRIPTION_BYTES], is[TOKENIZER_DESCRIPTION_BYTES];
    return FAIL(
        STATUS_INVALID,
        "data.tokenizer %s is not the tokenizer of this run: up to step %lld it was %s, now it is %s. "
        "Bits per byte and samples would be wrong. Restore it (the checkpoint has a copy: "
        "data.tokenizer=%s), or start a new run with another run.dir",
        path_of(data), (long long)resumed->step, tokenizer_identity_describe(before, was),
        tokenizer_identity_describe(now, is), resumed->tokenizer);
}

enum status training_data_check_resumed(struct training_data *data, const struct checkpoint *resumed) {
    struct tokenizer *copy = NULL;
    struct tokenizer_identity before;
    if (!resumed->tokenizer)
        return STATUS_OK;
    TRY(tokenizer_load(resumed->tokenizer, &copy));
    enum status status = identify_recorded(resumed, copy, &before);
    if (status == STATUS_OK && !data->tokenizer) {
        data->tokenizer = copy;
        return STATUS_OK;
    }
    if (status == STATUS_OK) {
        const struct tokenizer_identity now = tokenizer_identify(data->tokenizer, path_of(data));
        if (tokenizer_identity_differs(&before, &now))
            status = refuse_tokenizer(data, resumed, &before, &now);
    }
    tokenizer_delete(copy);
    return status;
}

int32_t training_data_document_start(const struct training_data *data) {
    const struct tokenizer_identity *of_shards = loader_tokenizer(data->train);
    return data->tokenizer        ? tokenizer_document_start(data->tokenizer)
           : of_shards->n_ids > 0 ? of_shards->document_start
                                  : -1;
}

static enum status check_documents(const struct training_data *data) {
    const struct config *config = data->run->config;
    const int32_t start = config->data.mask_documents ? training_data_document_start(data) : 0;
    if (start < 0)
        return FAIL(
            STATUS_INVALID,
            "%s: data.mask_documents needs to know end-of-text, which begins a document, but there is "
            "no tokenizer, and data.train does not record one; set data.tokenizer (for GPT-2's shards "
            "its vocab.bpe, tokenizer.json or tiktoken file)",
            config->source);
    if (start >= config->model.vocab_size)
        return FAIL(STATUS_INVALID,
                    "%s: data.mask_documents: the token that begins a document is %d, outside "
                    "model.vocab_size %lld, so no document would ever begin; raise model.vocab_size",
                    config->source, start, (long long)config->model.vocab_size);
    return STATUS_OK;
}

static enum status check_shard_tokenizers(const struct training_data *data) {
    char train[TOKENIZER_DESCRIPTION_BYTES];
    const struct config *config = data->run->config;
    struct tokenizer_identity own = {0};
    if (data->tokenizer)
        own = tokenizer_identify(data->tokenizer, path_of(data));
    TRY(data_check_tokenizers(config, loader_sources(data->train),
                              data->val ? loader_sources(data->val) : NULL, &own, path_of(data)));
    TRY(check_documents(data));
    const struct tokenizer_identity *of_train = loader_tokenizer(data->train);
    const bool is_recorded = of_train->n_ids > 0;
    if (config->train.sample_every > 0 && !data->tokenizer)
        return FAIL(STATUS_INVALID,
                    "%s: train.sample_every is %lld, but samples need a tokenizer, and %s%s%s; set "
                    "data.tokenizer, or train.sample_every=0",
                    config->source, (long long)config->train.sample_every,
                    is_recorded ? "that of data.train, " : "data.train does not record one",
                    is_recorded ? tokenizer_identity_describe(of_train, train) : "",
                    is_recorded ? ", is not found beside it" : "");
    return STATUS_OK;
}

// ---- opening

static uint64_t rows_before(const void *context, int64_t step) {
    return batch_sizes_before(context, step);
}

static enum status open_loader(const struct training_data *data, bool validation, struct loader **out) {
    const struct run *run = data->run;
    const struct config *config = run->config;
    struct source_option list[CONFIG_MAX_SOURCES];
    // The order of logical_micro_batch_of (zero/partition/logical.h).
    const int64_t ranks_per_pass =
        stage_reduces_every_micro_batch(config) ? run->comm->world : config->logical_ranks;
    struct loader_options options = {.sources = data_sources(config, validation, list),
                                     .vocab_size = (int)config->model.vocab_size,
                                     .seq_len = (int)config->train.seq_len,
                                     .batch_size = (int)config->train.train_batch_size,
                                     .micro_batch_size = (int)config->train.micro_batch_size,
                                     .first_row = run->comm->rank * (int)config->train.micro_batch_size,
                                     .row_stride = (int)(ranks_per_pass * config->train.micro_batch_size),
                                     .pass_stride = run->comm->world * (int)config->train.micro_batch_size,
                                     .rows_before = rows_before,
                                     .context = &run->batches,
                                     .shuffle = config->data.shuffle,
                                     .seed = (uint64_t)config->train.seed};
    // For validation, a step of the loader is one micro-batch, in file order. Rank r takes the steps r,
    // r + world, and so on.
    if (validation) {
        options.batch_size = options.micro_batch_size;
        options.first_row = 0;
        options.row_stride = options.pass_stride = options.batch_size;
        options.step_stride = run->comm->world;
        options.shuffle = false;
        options.rows_before = NULL;
    }
    return loader_new(&options, out);
}

static enum status open_data(struct training_data *data) {
    const struct config *config = data->run->config;
    TRY(open_loader(data, false, &data->train));
    return config->data.val.n > 0 || config->data.val_split > 0 ? open_loader(data, true, &data->val)
                                                                : STATUS_OK;
}

// ---- comparing the data of all ranks

// Fails with "data.train has 3999 tokens in 1 shards on this rank, but 4000 in 1 on rank 0: shard 1 (a.bin)
// differs; ...".
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

// Compares each rank's data with rank 0's, because ranks with different data would train on a wrong batch.
static enum status check_same(struct training_data *data, const char *option, const struct identity *mine) {
    struct run *run = data->run;
    struct comm *comm = run->comm;
    struct identity of_rank_0 = *mine;
    of_rank_0.entries = NULL; // an address is valid on its own rank only
    TRY(comm_broadcast(comm, &of_rank_0, sizeof of_rank_0, 0));
    const size_t bytes = (size_t)of_rank_0.n_entries * sizeof *of_rank_0.entries;
    of_rank_0.entries = allocate(1, bytes);
    if (run_leads(run))
        memcpy(of_rank_0.entries, mine->entries, bytes);
    enum status status = comm_broadcast(comm, of_rank_0.entries, bytes, 0);
    if (status == STATUS_OK)
        status =
            run_agree(run, identity_is_same(mine, &of_rank_0) ? STATUS_OK
                                                              : refuse_difference(option, &of_rank_0, mine));
    identity_free(&of_rank_0);
    return status;
}

// Warns if data.val shares a shard with data.train: a loss on sequences that the model was trained on says
// nothing about others. Compares contents, so that copies and links are found too. With so many shards that
// an entry covers several, checks nothing.
static void warn_of_shared_data(const struct training_data *data) {
    if (!data->val)
        return;
    const struct identity *train = loader_identity(data->train), *val = loader_identity(data->val);
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

// ---- comparing the data with that of the resumed run

static const struct identity_words resume_words = {"has changed", "is gone", "is new"};

static void add_difference(const struct identity *before, const struct identity *now, struct text *out) {
    text_add(out, "%llu shard%s of %llu tokens, now %llu of %llu: ", (unsigned long long)before->n_shards,
             before->n_shards == 1 ? "" : "s", (unsigned long long)before->n_tokens,
             (unsigned long long)now->n_shards, (unsigned long long)now->n_tokens);
    identity_add_changes(before, now, &resume_words, out);
}

static enum status take_changed_data(struct training_data *data, const struct identity *now) {
    struct run *run = data->run;
    const long long step = run->step;
    struct text difference = {0};
    enum status status = STATUS_OK;
    if (audit_repeats(run->audit) &&
        !run->config->checkpoint.accept_new_data) // the ledger has digests of rows
        return STATUS_OK;
    add_difference(&run->state.data.train, now, &difference);
    if (!run->config->checkpoint.accept_new_data)
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
        data_record_begin_order(&run->state.data, step, now);
    }
    text_free(&difference);
    return status;
}

// Records data.val. If it has changed, forgets the best loss, because losses are no longer comparable. That
// is only a warning: training does not depend on data.val.
static void take_val(struct training_data *data) {
    struct run *run = data->run;
    struct identity *before = &run->state.data.val;
    const struct identity *now = data->val ? loader_identity(data->val) : NULL;
    if (now && before->n_shards > 0 && !identity_is_same(before, now)) {
        struct text difference = {0};
        add_difference(before, now, &difference);
        log_warning("data.val has changed: it had %s. Losses on it cannot be compared with those before "
                    "step %lld",
                    difference.data, (long long)run->step);
        run->state.best = (struct run_best){0};
        text_free(&difference);
    }
    identity_free(before);
    if (now)
        identity_copy(before, now);
}

// Returns the seed of order `n` (from 0) of the data. Order 0 uses the run's own seed.
static uint64_t order_seed(uint64_t seed, int n) {
    return seed + (uint64_t)n * 0x9E3779B97F4A7C15u;
}

// True if the steps that are done took another number of sequences than they would with the run's present
// batch sizes. Then a new order must begin: in the old one, later steps would repeat or skip sequences.
static bool has_another_batch(const struct training_data *data, const struct checkpoint *resumed) {
    const struct run *run = data->run;
    if (!resumed)
        return false;
    struct batch_sizes before = batch_sizes_of(&resumed->config);
    if (resumed->run.noise.grown.n > 0)
        before.stages = resumed->run.noise.grown;
    if (batch_sizes_before(&before, run->step) == batch_sizes_before(&run->batches, run->step))
        return false;
    log_info("with the new batch size, sequences follow a new order from step %lld on",
             (long long)run->step + 1);
    return true;
}

static enum status settle_orders(struct training_data *data, const struct checkpoint *resumed) {
    struct run *run = data->run;
    const struct identity *now = loader_identity(data->train);
    struct data_record *record = &run->state.data;
    if (record->n_orders == 0) // a new run
        data_record_begin_order(record, 0, now);
    else if (!identity_is_same(&record->train, now))
        TRY(take_changed_data(data, now));
    else if (has_another_batch(data, resumed))
        data_record_begin_order(record, run->step, now);
    const int last = record->n_orders - 1;
    loader_begin_order(data->train, record->orders[last].step,
                       order_seed((uint64_t)run->config->train.seed, last));
    take_val(data);
    return STATUS_OK;
}

// Logs a line for each source of a mixture.
//   steps   epochs are counted up to this step
//   until   as for data_describe_source; "" leaves the epochs out
static void describe_sources(const struct loader *loader, int64_t steps, const char *until) {
    const struct sources *sources = loader_sources(loader);
    for (int i = 0; i < sources->n && sources->n > 1; i++) {
        struct text line = {0};
        data_describe_source(sources, i, (double)loader_n_drawn(loader, i, steps), until, &line);
        log_info("%s", line.data);
        text_free(&line);
    }
}

void training_data_describe(const struct training_data *data, const struct checkpoint *resumed) {
    const struct run *run = data->run;
    const struct config *config = run->config;
    const struct loader *train = data->train;
    char tokens[32], made_with[TOKENIZER_DESCRIPTION_BYTES];
    log_info("data: %s tokens in %d shard%s; each step takes %lld x %lld sequences of %lld tokens%s",
             text_count(tokens, sizeof tokens, (double)loader_n_tokens(train)), loader_n_shards(train),
             loader_n_shards(train) == 1 ? "" : "s", (long long)config->train.gradient_accumulation_steps,
             (long long)config->train.micro_batch_size, (long long)config->train.seq_len,
             run->comm->world > 1 ? " per rank" : "");
    struct text schedule = {0};
    config_print_schedule(config, &schedule);
    if (schedule.length > 0)
        log_info("%s (train.%s)", schedule.data,
                 config->train.batch_size_schedule.n > 0 ? "batch_size_schedule" : "max_batch_size");
    text_free(&schedule);
    char until[48] = "";
    if (config->train.max_minutes == 0)
        snprintf(until, sizeof until, " up to step %lld", (long long)run->last_step);
    describe_sources(train, run->last_step, until);
    data_log_sequences(loader_sources(train));
    if (loader_n_sequences(train) < (size_t)config->train.train_batch_size)
        log_warning(
            "data.train holds %zu sequences, fewer than a batch of %lld: every step repeats some of them; "
            "lower train.train_batch_size or train.seq_len, or add data",
            loader_n_sequences(train), (long long)config->train.train_batch_size);
    if (data->val && config->data.val_split > 0)
        log_info("validation: the last %s tokens of data.train, %g of it (data.val_split)",
                 text_count(tokens, sizeof tokens, (double)loader_n_tokens(data->val)),
                 config->data.val_split);
    else if (data->val && !config_given(config, "data.val"))
        log_info("validation: %s tokens of %s%s, found beside data.train (data.val)",
                 text_count(tokens, sizeof tokens, (double)loader_n_tokens(data->val)),
                 config->data.val.list[0].files.paths[0], config->data.val.n > 1 ? ", ..." : "");
    if (data->val) {
        describe_sources(data->val, 0, "");
        data_log_sequences(loader_sources(data->val));
    }
    if (config->data.mask_documents)
        log_info("documents: attention stays within each, from one %s (id %d) to the next; positions "
                 "count from the start of the sequence",
                 data->tokenizer && tokenizer_has_bos(data->tokenizer) ? "start of a document"
                                                                       : "end-of-text",
                 training_data_document_start(data));
    const int n_ids = loader_tokenizer(train)->n_ids;
    if (n_ids > 0 && config->model.vocab_size > n_ids + MOST_PADDING)
        log_info(
            "model.vocab_size is %lld, but the tokenizer of data.train has %d ids: the other rows of the "
            "embedding are never used; leave model.vocab_size out",
            (long long)config->model.vocab_size, n_ids);
    if (data->found_tokenizer)
        log_info("tokenizer: %s, that of model.init_from", data->found_tokenizer);
    else if (config->data.tokenizer[0] && !config_given(config, "data.tokenizer"))
        log_info("tokenizer: %s, that of data.train", config->data.tokenizer);
    else if (data->tokenizer && !config->data.tokenizer[0])
        log_info("tokenizer: %s, the copy in the checkpoint", resumed->tokenizer);
    else if (!data->tokenizer && n_ids > 0)
        log_info(
            "tokenizer: that of data.train, %s, is not found beside it; set data.tokenizer for samples and "
            "bits per byte",
            tokenizer_identity_describe(loader_tokenizer(train), made_with));
}

void training_data_log_drawn(const struct training_data *data) {
    const struct run *run = data->run;
    const struct sources *sources = loader_sources(data->train);
    const int n = sources->n > 1 && !run->config->train.overfit_one_batch ? sources->n : 0;
    char tokens[32];
    for (int i = 0; i < n; i++) {
        const struct source *source = &sources->list[i];
        const double drawn = (double)loader_n_drawn(data->train, i, run->step);
        log_info("trained on %s %s: %s tokens, %.4g epochs", source->option, source->name,
                 text_count(tokens, sizeof tokens, drawn * (double)run->config->train.seq_len),
                 drawn / (double)source->n_sequences);
    }
}

enum status training_data_open(struct training_data *data, const struct checkpoint *resumed) {
    struct run *run = data->run;
    TRY(run_agree(run, open_data(data)));
    TRY(check_same(data, "data.train", loader_identity(data->train)));
    if (data->val)
        TRY(check_same(data, "data.val", loader_identity(data->val)));
    TRY(check_same_tokenizer(data));
    TRY(run_agree(run, check_shard_tokenizers(data)));
    loader_set_document_start(data->train, training_data_document_start(data));
    if (data->val)
        loader_set_document_start(data->val, training_data_document_start(data));
    warn_of_shared_data(data);
    return run_agree(run, settle_orders(data, resumed));
}

void training_data_free(struct training_data *data) {
    loader_delete(data->train);
    loader_delete(data->val);
    tokenizer_delete(data->tokenizer);
    free(data->found_tokenizer);
}
