// The data of a run: data.train, data.val and the tokenizer.
//
// In the functions below, `resumed` is the checkpoint that the run resumes; NULL for a new run (but
// training_data_check_resumed needs a checkpoint).
#ifndef ZERO_TRAINER_TRAINING_DATA_H
#define ZERO_TRAINER_TRAINING_DATA_H

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/run.h"

struct training_data {
    struct run *run;
    struct loader *train, *val; // val is NULL without validation data
    // Loaded from found_tokenizer, or else data.tokenizer, or else the resumed checkpoint's copy; NULL: none.
    struct tokenizer *tokenizer;
    char *found_tokenizer; // path in the folder of model.init_from; NULL: none, or data.tokenizer is set
};

// Loads the tokenizer from found_tokenizer or data.tokenizer, if one is set. If the config leaves
// model.vocab_size out, sets it to the tokenizer's number of ids.
enum status training_data_load_tokenizer(struct training_data *data) MUST_CHECK;
// Compares the run's tokenizer with the copy in the checkpoint. If the run has no tokenizer yet, it uses the
// copy. STATUS_INVALID: they differ (the message names both), or the manifest records another copy.
enum status training_data_check_resumed(struct training_data *data,
                                        const struct checkpoint *resumed) MUST_CHECK;
// Opens data.train and data.val. Collective. STATUS_INVALID:
// - ranks have different data or tokenizers
// - shards record another tokenizer, or one with more ids than the model
// - samples or data.mask_documents need a tokenizer, and there is none
// - a resumed run has other data than before, and checkpoint.accept_new_data does not allow that
enum status training_data_open(struct training_data *data, const struct checkpoint *resumed) MUST_CHECK;
void training_data_free(struct training_data *data);

// Returns the id that begins a document (end-of-text or bos), as the tokenizer or else data.train's shards
// record it; -1: unknown.
int32_t training_data_document_start(const struct training_data *data);
// Describes the data in the log, including settings that were not in the config (trainer/data/defaults.h).
void training_data_describe(const struct training_data *data, const struct checkpoint *resumed);
// Logs how much of each source of a mixture was trained on since the current order began.
void training_data_log_drawn(const struct training_data *data);

#endif
