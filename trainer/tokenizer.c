// The tokenizer of a run: loaded, and compared with what the run's checkpoint and its token shards record.
// With another tokenizer the same ids mean other text, so bits per byte and samples would silently be wrong.
#include <stdlib.h>

#include "base/alloc.h"
#include "trainer/data/sources.h"
#include "trainer/plan/model_sizes.h"
#include "trainer/trainer_internal.h"

// The tokenizer of model.init_from comes before one that was found with the shards; the two are compared.
static const char *path_of(const struct trainer *trainer) {
    return trainer->found_tokenizer ? trainer->found_tokenizer : trainer->config->data.tokenizer;
}

enum status trainer_load_tokenizer(struct trainer *trainer) {
    struct config *config = trainer->config;
    if (!path_of(trainer)[0])
        return STATUS_OK;
    TRY(tokenizer_load(path_of(trainer), &trainer->tokenizer));
    return model_sizes_from_tokenizer(config, path_of(trainer), tokenizer_n_ids(trainer->tokenizer));
}

// ---- several ranks

enum status trainer_check_same_tokenizer(struct trainer *trainer) {
    struct tokenizer_identity mine = {0}, of_rank_0;
    char here[TOKENIZER_DESCRIPTION_BYTES], there[TOKENIZER_DESCRIPTION_BYTES];
    if (trainer->tokenizer)
        mine = tokenizer_identify(trainer->tokenizer, path_of(trainer));
    of_rank_0 = mine;
    TRY(comm_broadcast(trainer->comm, &of_rank_0, sizeof of_rank_0, 0));
    const bool same = mine.n_ids == of_rank_0.n_ids && mine.checksum == of_rank_0.checksum;
    return trainer_agree(
        trainer,
        same ? STATUS_OK
             : FAIL(STATUS_INVALID,
                    "the tokenizer is %s on this rank, but %s on rank 0; every rank must see the same file",
                    mine.n_ids ? tokenizer_identity_describe(&mine, here) : "absent",
                    of_rank_0.n_ids ? tokenizer_identity_describe(&of_rank_0, there) : "absent"));
}

// ---- resume

static enum status identify_recorded(const struct checkpoint *checkpoint, const struct tokenizer *copy,
                                     struct tokenizer_identity *out) {
    const char *given = checkpoint->config.data.tokenizer;
    *out = tokenizer_identify(copy, given[0] ? given : checkpoint->tokenizer);
    if (checkpoint->tokenizer_checksum != out->checksum)
        return FAIL(STATUS_INVALID, "%s: %s is not the tokenizer that its manifest records", checkpoint->path,
                    checkpoint->tokenizer);
    return STATUS_OK;
}

static enum status refuse_tokenizer(const struct trainer *trainer, const struct tokenizer_identity *before,
                                    const struct tokenizer_identity *now) {
    char was[TOKENIZER_DESCRIPTION_BYTES], is[TOKENIZER_DESCRIPTION_BYTES];
    return FAIL(
        STATUS_INVALID,
        "data.tokenizer %s is not the tokenizer of this run: up to step %lld it was %s, now it is %s. "
        "Bits per byte and samples would be wrong. Restore it (the checkpoint has a copy: "
        "data.tokenizer=%s), or start a new run with another run.dir",
        path_of(trainer), (long long)trainer->resumed->step, tokenizer_identity_describe(before, was),
        tokenizer_identity_describe(now, is), trainer->resumed->tokenizer);
}

enum status trainer_check_resumed_tokenizer(struct trainer *trainer) {
    const struct checkpoint *checkpoint = trainer->resumed;
    struct tokenizer *copy = NULL;
    struct tokenizer_identity before;
    if (!checkpoint->tokenizer)
        return STATUS_OK;
    TRY(tokenizer_load(checkpoint->tokenizer, &copy));
    enum status status = identify_recorded(checkpoint, copy, &before);
    if (status == STATUS_OK && !trainer->tokenizer) {
        trainer->tokenizer = copy;
        return STATUS_OK;
    }
    if (status == STATUS_OK) {
        const struct tokenizer_identity now = tokenizer_identify(trainer->tokenizer, path_of(trainer));
        if (tokenizer_identity_differs(&before, &now))
            status = refuse_tokenizer(trainer, &before, &now);
    }
    tokenizer_delete(copy);
    return status;
}

// ---- token shards

int32_t trainer_document_start(const struct trainer *trainer) {
    const struct tokenizer_identity *of_shards = loader_tokenizer(trainer->train);
    return trainer->tokenizer     ? tokenizer_document_start(trainer->tokenizer)
           : of_shards->n_ids > 0 ? of_shards->document_start
                                  : -1;
}

static enum status check_documents(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int32_t start = config->data.mask_documents ? trainer_document_start(trainer) : 0;
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
                    "model.vocab_size %lld: no document "
                    "would ever begin; raise model.vocab_size",
                    config->source, start, (long long)config->model.vocab_size);
    return STATUS_OK;
}

enum status trainer_check_shard_tokenizers(const struct trainer *trainer) {
    char train[TOKENIZER_DESCRIPTION_BYTES];
    const struct config *config = trainer->config;
    struct tokenizer_identity own = {0};
    if (trainer->tokenizer)
        own = tokenizer_identify(trainer->tokenizer, path_of(trainer));
    TRY(data_check_tokenizers(config, loader_sources(trainer->train),
                              trainer->val ? loader_sources(trainer->val) : NULL, &own, path_of(trainer)));
    TRY(check_documents(trainer));
    const struct tokenizer_identity *of_train = loader_tokenizer(trainer->train);
    const bool is_recorded = of_train->n_ids > 0;
    if (config->train.sample_every > 0 && !trainer->tokenizer)
        return FAIL(STATUS_INVALID,
                    "%s: train.sample_every is %lld, but samples need a tokenizer, and %s%s%s; set "
                    "data.tokenizer, or train.sample_every=0",
                    config->source, (long long)config->train.sample_every,
                    is_recorded ? "that of data.train, " : "data.train does not record one",
                    is_recorded ? tokenizer_identity_describe(of_train, train) : "",
                    is_recorded ? ", is not found beside it" : "");
    return STATUS_OK;
}
