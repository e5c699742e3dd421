// What a checkpoint records about the data that its run was trained on: "data" in the manifest.
//   train, val   identity of the shards (val absent without data.val) and, of a mixture, of its sources
//   tasks        eval.tasks of the run (absent without)
//   orders       the steps at which an order of training sequences began: step 0, and each step at which
//                changed data was accepted (checkpoint.accept_new_data)
// Absent where nothing is recorded.
#ifndef ZERO_ZERO_CHECKPOINT_DATA_RECORD_H
#define ZERO_ZERO_CHECKPOINT_DATA_RECORD_H

#include <cjson/cJSON.h>

#include "data/identity.h"

struct data_order {
    int64_t step;
    uint64_t n_shards, n_tokens, digest;
};

#define DATA_TASK_NAME_BYTES 64
struct data_task {
    char name[DATA_TASK_NAME_BYTES]; // may be cut
    int64_t items;                   // evaluated
    uint64_t checksum;               // of the file
};

struct data_record {
    struct identity train, val; // val without shards: none
    struct data_task *tasks;
    int n_tasks;
    struct data_order *orders;
    int n_orders; // 0: nothing is recorded
};

void data_record_free(struct data_record *record);
// Adds an order that begins at `step`, or replaces the one that began there, and copies `train`.
enum status data_record_begin_order(struct data_record *record, int64_t step,
                                    const struct identity *train) MUST_CHECK;

// Appends the manifest's member with its comma and newline. Appends nothing if nothing is recorded, or
// `record` is NULL.
void data_record_print(const struct data_record *record, struct text *out);
// Reads the member. `step` is the checkpoint's: later orders are refused. STATUS_INVALID names `source` and
// what is wrong.
enum status data_record_parse(struct data_record *record, const cJSON *manifest, int64_t step,
                              const char *source) MUST_CHECK;

#endif
