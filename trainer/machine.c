// The rate of matrix products that steps are compared with. It is measured at the start; other programs may
// have slowed that down, so it is measured again when a step exceeds it.
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "trainer/trainer_internal.h"

#define MOST_MEASURED_ROWS 65536
#define MEASURED_SECONDS   0.05
#define PROFILED_SECONDS   0.5 // a profile divides by this rate, so measure it more precisely

// The project's tests, which start thousands of runs that train for less, set ZERO_MEASURE_SECONDS to a
// shorter time. Only the measured rate, and what is reported relative to it, is less exact then.
static double measuring_seconds(const struct config *config) {
    double seconds = config->run.profile ? PROFILED_SECONDS : MEASURED_SECONDS;
    const char *shorter = getenv("ZERO_MEASURE_SECONDS");
    double wanted = shorter ? strtod(shorter, NULL) : 0;
    return wanted > 0 && wanted < seconds ? wanted : seconds;
}

// Ranks that have more threads than there are processors take turns; each then measures more than its share.
static double share_of_processors(const struct trainer *trainer) {
    const double threads = (double)trainer->device->n_threads * trainer->comm->local_world,
                 processors = trainer->comm->local_processors;
    return trainer->device->place == REGION_HOST && threads > processors ? processors / threads : 1;
}

// Of this rank.
//   memory   NULL: allocated
static enum status measure_own_rate(const struct trainer *trainer, const struct gemm_memory *memory,
                                    double *flops_per_s) {
    const struct config *config = trainer->config;
    int64_t all_rows = config->train.micro_batch_size * config->train.seq_len;
    int rows = all_rows < MOST_MEASURED_ROWS ? (int)all_rows : MOST_MEASURED_ROWS;
    struct gemm_rate rate = {0};
    enum status status = device_measure_gemm_rate(trainer->device, rows, (int)config->model.n_embd,
                                                  trainer->type, measuring_seconds(config), memory, &rate);
    *flops_per_s = rate.best * share_of_processors(trainer);
    return status;
}

// The sum over ranks, where it is known of all of them.
static enum status find_dense_peak(struct trainer *trainer) {
    const double mine = trainer->device->dense_peak[trainer->type];
    double sums[] = {mine, mine == 0};
    TRY(comm_sum(trainer->comm, sums, 2));
    trainer->dense_peak = sums[1] == 0 ? sums[0] : 0;
    return STATUS_OK;
}

enum status trainer_measure_rate(struct trainer *trainer) {
    enum status status = measure_own_rate(trainer, NULL, &trainer->gemm_rate);
    if (status == STATUS_OK)
        status = gpt_flops_per_token(&trainer->params, (int)trainer->config->train.seq_len,
                                     &trainer->flops_per_token);
    if (status == STATUS_OK)
        status = trainer_profile_limits(trainer);
    TRY(trainer_agree(trainer, status));
    TRY(find_dense_peak(trainer));
    return comm_sum(trainer->comm, &trainer->gemm_rate, 1);
}

// Of the run, for which the plan holds: between steps it needs the weights, but no activations.
static struct gemm_memory memory_between_steps(const struct trainer *trainer) {
    const struct region_memory *memory = &trainer->memory;
    const enum region_place place = trainer->device->place;
    return (struct gemm_memory){.weights = region_memory_arena(memory, REGION_PARAMS, place),
                                .matrices = region_memory_arena(memory, REGION_ACTIVATIONS, place),
                                .workspace = region_memory_arena(memory, REGION_WORKSPACE, place)};
}

enum status trainer_check_rate(struct trainer *trainer, double achieved) {
    double now, before = trainer->gemm_rate;
    if (achieved <= before)
        return STATUS_OK;
    const struct gemm_memory memory = memory_between_steps(trainer);
    if (measure_own_rate(trainer, &memory, &now) != STATUS_OK) { // the run's is too small, for example
        status_clear();
        now = 0;
    }
    trainer->limits.flops_per_s = fmax(trainer->limits.flops_per_s, now);
    TRY(comm_sum(trainer->comm, &now, 1));
    trainer->gemm_rate = fmax(now, achieved);
    log_live_end();
    log_info("GEMM rate measured again, as a step exceeded it: %.0f GFLOP/s, at the start %.0f",
             trainer->gemm_rate / 1e9, before / 1e9);
    return STATUS_OK;
}
