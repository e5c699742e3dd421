// Inside the trainer: what setup makes, the loop uses and evaluation shares.
#ifndef ZERO_ZERO_TRAINER_PARTS_H
#define ZERO_ZERO_TRAINER_PARTS_H

#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/generate.h"
#include "zero/metrics.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/run_folder.h"
#include "zero/weights.h"

struct trainer {
    struct config *config;
    const char *command;
    struct run_folder folder;
    struct checkpoint *resumed;  // NULL: a new run. Open during setup only
    struct weights weights;      // of model.init_from. Open during setup only
    struct tokenizer *tokenizer; // NULL without data.tokenizer
    int *token_bytes;            // (ids) bytes of each token's text, end-of-text having none

    struct device *device;
    struct stream stream;
    enum dtype type;
    struct params params;
    struct memory memory;
    struct state state;
    struct optimizer optimizer;
    struct gpt *gpt;
    struct generator *generator; // NULL without samples
    struct loader *train, *val;  // val NULL without data.val
    struct metrics metrics;
    double gemm_rate; // FLOP/s

    int64_t step, saved_step; // updates done; of the newest checkpoint, -1 for none
};

// Everything up to the first step. *complete: the run had all its steps already, and only the folder was
// opened.
enum status trainer_setup(struct trainer *trainer, bool *complete) MUST_CHECK;
void trainer_free(struct trainer *trainer);

// Loss on data.val, to the metrics and the log.
enum status trainer_evaluate(struct trainer *trainer) MUST_CHECK;
// One sample to the log and to samples/step-N.txt.
enum status trainer_sample(struct trainer *trainer) MUST_CHECK;
enum status trainer_save(struct trainer *trainer) MUST_CHECK;

#endif
