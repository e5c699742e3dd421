// Checks that all ranks have the same config, and that a resumed run's config agrees with the config of its
// checkpoint.
#ifndef ZERO_OPTIONS_RESUME_H
#define ZERO_OPTIONS_RESUME_H

#include "options/config.h"

// Checks that this rank's config equals rank 0's. run.threads may differ: machines do, and it does not change
// results. STATUS_INVALID: the message names the first option that differs.
enum status config_check_same(const struct config *mine, const struct config *of_rank_0) MUST_CHECK;

// What a run decided for its options that are "auto".
struct config_decided {
    enum dtype compute;              // the type of precision.compute
    enum config_attention attention; // AUTO: not decided, because the run was on the CPU
    int64_t logical_ranks;           // of train.logical_ranks
};

// Checks a resumed run's config: FIXED options must be equal, RAISE options must not be smaller. NAMED and
// RAISE options that checkpoint.resume_with lists may differ. A model size that is 0 (the family's default)
// in one config is not compared here; checkpoint_check_model compares the resolved sizes.
//   before    config of the checkpoint
//   decided   what the checkpoint's run decided for "auto"
//   changed   called for each difference that resume_with allows, with both values as JSON; may be NULL
// STATUS_INVALID: an option changed that must not. The message lists all such options, and what to do.
typedef enum status config_changed(void *context, const char *option, const char *was, const char *is);
enum status config_check_resume(const struct config *before, const struct config_decided *decided,
                                const struct config *now, config_changed *changed, void *context) MUST_CHECK;

#endif
