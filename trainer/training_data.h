// The data of a run: data.train, data.val and the tokenizer.
//   resumed   the checkpoint to resume; NULL: a new run
#ifndef ZERO_TRAINER_TRAINING_DATA_H
#define ZERO_TRAINER_TRAINING_DATA_H

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/run.h"

struct training_data {
    struct run *run;
    struct loader *train, *val;  // val NULL without data.val
    struct tokenizer *tokenizer; // data.tokenizer, else that of the resumed checkpoint; NULL: none
    char *found_tokenizer; // the tokenizer file in the folder of model.init_from, used if data.tokenizer is
                           // not set
};

// Loads data.tokenizer, if it is set; model.vocab_size may depend on it.
enum status training_data_load_tokenizer(struct training_data *data) MUST_CHECK;
// Compares the tokenizer with the checkpoint's. Without data.tokenizer, uses the checkpoint's copy.
// STATUS_INVALID: they differ; the message names both.
enum status training_data_check_resumed(struct training_data *data,
                                        const struct checkpoint *resumed) MUST_CHECK;
// Opens data.train and data.val. Collective. STATUS_INVALID:
// - ranks have different data or tokenizers
// - shards record another tokenizer, or one with more ids than the model
// - samples or data.mask_documents need a tokenizer, and there is none
// - a resumed run has other data than before, and checkpoint.accept_new_data does not allow that
enum status training_data_open(struct training_data *data, const struct checkpoint *resumed) MUST_CHECK;
void training_data_free(struct training_data *data);

// The id that begins a document (end-of-text, or bos), by the tokenizer or by data.train's records; -1:
// unknown.
int32_t training_data_document_start(const struct training_data *data);
// Describes the data in the log, including settings that were not in the config (trainer/data/defaults.h).
void training_data_describe(const struct training_data *data, const struct checkpoint *resumed);
// Logs how much of each source of a mixture was trained on since the current order began.
void training_data_log_drawn(const struct training_data *data);

#endif
