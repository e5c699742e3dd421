// Chooses train.micro_batch_size for a GPU if the configuration leaves it open (options/config.h): the
// largest that fits into memory, up to a number of tokens beyond which larger micro-batches are not faster.
#ifndef ZERO_TRAINER_PLAN_MICRO_BATCH_H
#define ZERO_TRAINER_PLAN_MICRO_BATCH_H

#include "zero/engine.h"

// The maximum number of tokens per micro-batch. GPT-2 124M fills the largest GPUs with fewer tokens.
#define MICRO_BATCH_MOST_TOKENS 65536

enum micro_batch_reason {
    MICRO_BATCH_WHOLE,  // all sequences of a rank's step
    MICRO_BATCH_TOKENS, // the next larger size has more than MICRO_BATCH_MOST_TOKENS
    MICRO_BATCH_MEMORY, // the next larger size does not fit
    MICRO_BATCH_NONE,   // not even one sequence fits; size is 1
};

struct micro_batch_choice {
    int64_t size;
    enum micro_batch_reason reason;
    // A size that does not fit: with MICRO_BATCH_MEMORY the next larger one, with MICRO_BATCH_NONE size 1. It
    // needs `needs` bytes in `place`, where `limit` are available.
    int64_t refused;
    uint64_t needs, limit; // needs 0: the size cannot even be planned
    enum region_place place;
};

// The bytes of a GPU's free memory that the plan may use: all but a reserve, which is a sixteenth, but at
// most 2 GiB. The reserve is for memory that no plan counts: code loaded at first use, libraries' own memory,
// rounding to pages.
uint64_t micro_batch_limit(uint64_t free_bytes);

// Chooses the largest size that divides the sequences per rank and step, has at most MICRO_BATCH_MOST_TOKENS
// tokens, and fits by the run's plan. Only plans; allocates nothing.
//   options   options of the run
//   limits    bytes of each place's memory that this rank may use
enum status micro_batch_choose(const struct engine_options *options, const uint64_t limits[N_REGION_PLACES],
                               struct micro_batch_choice *out) MUST_CHECK;

// micro_batch_choose for a run whose ranks all have these limits: the smallest choice of any rank.
// options->rank is ignored.
enum status micro_batch_choose_for_all(const struct engine_options *options,
                                       const uint64_t limits[N_REGION_PLACES],
                                       struct micro_batch_choice *out) MUST_CHECK;

// Sets *fits to true if the run's plan with this micro-batch size fits into `limits`.
enum status micro_batch_fits(const struct engine_options *options, const uint64_t limits[N_REGION_PLACES],
                             int64_t size, bool *fits) MUST_CHECK;

// Describes why a size was chosen, such as "the largest that fits into 20.9 GiB of GPU memory: 16 would
// need 30.4 GiB". buffer: 160 bytes.
const char *micro_batch_describe(const struct micro_batch_choice *choice, char *buffer, size_t size);

#endif
