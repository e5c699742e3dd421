#include "trainer/plan/micro_batch.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "trainer/plan/plan.h"

#define RESERVED_PART 16
#define MOST_RESERVED ((uint64_t)2 << 30)

uint64_t micro_batch_limit(uint64_t free_bytes) {
    const uint64_t part = free_bytes / RESERVED_PART;
    return free_bytes - (part < MOST_RESERVED ? part : MOST_RESERVED);
}

// Plans a micro-batch size, and sets *fits to true if the plan fits into `limits`. It is also false if the
// size cannot be planned, for example because indices would exceed 32 bits.
//   refusal   [out] if the size does not fit: sets `refused`, `needs` (0: unknown), `limit` and `place`
static enum status try_size(const struct engine_options *options, const uint64_t limits[N_REGION_PLACES],
                            int64_t size, bool *fits, struct micro_batch_choice *refusal) {
    struct config config = *options->config; // a shallow copy, not to be freed
    struct engine_options one = *options;
    struct plan plan;
    config_set_micro_batch(&config, size);
    one.config = &config;
    enum status status = plan_make(&one, &plan);
    *fits = status == STATUS_OK;
    if (status == STATUS_INVALID || status == STATUS_UNSUPPORTED) {
        status_clear();
        refusal->refused = size;
        refusal->needs = 0;
        return STATUS_OK;
    }
    for (int place = 0; place < N_REGION_PLACES && *fits; place++)
        if (plan.taken[place] > limits[place]) {
            *fits = false;
            refusal->refused = size;
            refusal->needs = plan.taken[place];
            refusal->limit = limits[place];
            refusal->place = (enum region_place)place;
        }
    return status;
}

enum status micro_batch_fits(const struct engine_options *options, const uint64_t limits[N_REGION_PLACES],
                             int64_t size, bool *fits) {
    struct micro_batch_choice ignored;
    return try_size(options, limits, size, fits, &ignored);
}

enum status micro_batch_choose(const struct engine_options *options, const uint64_t limits[N_REGION_PLACES],
                               struct micro_batch_choice *out) {
    const struct config *config = options->config;
    const int64_t sequences = config_rank_sequences(config),
                  most = MICRO_BATCH_MOST_TOKENS / config->train.seq_len;
    *out = (struct micro_batch_choice){.size = 1, .reason = MICRO_BATCH_NONE};
    int64_t size = config_largest_divisor(sequences, most);
    enum micro_batch_reason reason = size == sequences ? MICRO_BATCH_WHOLE : MICRO_BATCH_TOKENS;
    for (bool fits = false;; size = config_largest_divisor(sequences, size - 1)) {
        TRY(try_size(options, limits, size, &fits, out));
        if (fits) {
            out->size = size;
            out->reason = reason;
        }
        if (fits || size == 1)
            return STATUS_OK;
        reason = MICRO_BATCH_MEMORY;
    }
}

enum status micro_batch_choose_for_all(const struct engine_options *options,
                                       const uint64_t limits[N_REGION_PLACES],
                                       struct micro_batch_choice *out) {
    struct engine_options one = *options;
    struct micro_batch_choice of_rank;
    int *ranks, n_ranks;
    TRY(plan_ranks(options, &ranks, &n_ranks));
    enum status status = STATUS_OK;
    for (int i = 0; i < n_ranks && status == STATUS_OK; i++) {
        one.rank = ranks[i];
        status = micro_batch_choose(&one, limits, &of_rank);
        if (i == 0 || of_rank.size < out->size)
            *out = of_rank;
    }
    free(ranks);
    return status;
}

const char *micro_batch_describe(const struct micro_batch_choice *choice, char *buffer, size_t size) {
    char needs[32], limit[32];
    switch (choice->reason) {
    case MICRO_BATCH_WHOLE:
        snprintf(buffer, size, "all sequences of a rank's step");
        break;
    case MICRO_BATCH_TOKENS:
        snprintf(buffer, size, "the largest with at most %d tokens, as more gains no speed",
                 MICRO_BATCH_MOST_TOKENS);
        break;
    case MICRO_BATCH_MEMORY:
        if (choice->needs == 0)
            snprintf(buffer, size, "the largest that can be planned");
        else
            snprintf(buffer, size, "the largest that fits into %s of %s memory: %lld would need %s",
                     text_bytes(limit, sizeof limit, (double)choice->limit),
                     choice->place == REGION_DEVICE ? "GPU" : "host", (long long)choice->refused,
                     text_bytes(needs, sizeof needs, (double)choice->needs));
        break;
    case MICRO_BATCH_NONE:
        snprintf(buffer, size, "the smallest, which may not fit into memory");
        break;
    }
    return buffer;
}
