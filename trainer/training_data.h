// The data of a run: data.train and data.val, and the tokenizer.
//   resumed   the checkpoint to resume; NULL: a new run
#ifndef ZERO_TRAINER_TRAINING_DATA_H
#define ZERO_TRAINER_TRAINING_DATA_H

#include "data/loader.h"
#include "data/tokenizer/tokenizer.h"
#include "trainer/run.h"

struct training_data {
    struct run *run;
    struct loader *train, *val;  // val NULL without data.val
    struct tokenizer *tokenizer; // data.tokenizer, else that of the checkpoint to resume; NULL: none
    char *found_tokenizer;       // the file in the folder of model.init_from, where data.tokenizer is not set
};

// Loads data.tokenizer, if it is set; model.vocab_size may follow from it.
enum status training_data_load_tokenizer(struct training_data *data) MUST_CHECK;
// Compares the tokenizer with that of the checkpoint; without data.tokenizer, uses the checkpoint's copy.
// STATUS_INVALID names both when they differ.
enum status training_data_check_resumed(struct training_data *data,
                                        const struct checkpoint *resumed) MUST_CHECK;
// Opens data.train and data.val. STATUS_INVALID: ranks have different data or tokenizers; shards record
// another tokenizer, or one with more ids than the model; samples or data.mask_documents need a tokenizer
// that is absent; a resumed run has other data than it was trained on, and checkpoint.accept_new_data does
// not allow that. Collective.
enum status training_data_open(struct training_data *data, const struct checkpoint *resumed) MUST_CHECK;
void training_data_free(struct training_data *data);

// The id that begins a document (end-of-text, or bos), by the tokenizer or by what data.train records; -1:
// not known.
int32_t training_data_document_start(const struct training_data *data);
// Logs what the data is, and what of it was not in the config (trainer/data/defaults.h).
void training_data_describe(const struct training_data *data, const struct checkpoint *resumed);
// Logs how much each source of a mixture was trained on, since its order began.
void training_data_log_drawn(const struct training_data *data);

#endif
