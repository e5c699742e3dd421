// train.micro_batch_size of a run that leaves it open, on GPUs: chosen by each rank's memory plan, the same
// on all ranks, and kept by a resumed run.
#include <stdlib.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/memory.h"
#include "trainer/plan/micro_batch.h"
#include "trainer/trainer_internal.h"

// What each rank tells the others.
struct answer {
    struct micro_batch_choice choice;
    int32_t is_open; // the rank computes on a GPU
    int32_t keeps;   // the size of the resumed checkpoint fits
};

static enum status find_limits(const struct trainer *trainer, uint64_t available[N_REGION_PLACES]) {
    TRY(trainer_device_limit(trainer, &available[REGION_DEVICE]));
    available[REGION_HOST] = memory_available_to_each(trainer->comm->local_world);
    return STATUS_OK;
}

// The micro-batch size of the checkpoint that is resumed, if the batch divides by it; else 0.
static int64_t recorded_size(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const int64_t sequences = config_rank_sequences(config);
    const int64_t size = trainer->resumed ? trainer->resumed->config.train.micro_batch_size : 0;
    return size > 0 && sequences % size == 0 ? size : 0;
}

// Plans for a GPU of any model, whose workspace is an upper bound: this GPU would measure the matrix products
// of every size.
static enum status answer_of(struct trainer *trainer, struct answer *out) {
    struct engine_options planned = trainer_engine_options(trainer);
    struct device *device;
    uint64_t available[N_REGION_PLACES], limits[N_REGION_PLACES];
    const int64_t recorded = recorded_size(trainer);
    bool keeps = false, by_cudnn;
    TRY(find_limits(trainer, available));
    TRY(trainer_may_use_cudnn(trainer, &by_cudnn));
    device = cuda_device_plan();
    device->attention = by_cudnn ? ATTENTION_CUDNN : ATTENTION_FLASH;
    planned.device = device;
    limits[REGION_HOST] = available[REGION_HOST];
    limits[REGION_DEVICE] = micro_batch_limit(available[REGION_DEVICE]);
    enum status status = recorded > 0 ? micro_batch_fits(&planned, available, recorded, &keeps) : STATUS_OK;
    if (status == STATUS_OK)
        status = micro_batch_choose(&planned, limits, &out->choice);
    out->is_open = true;
    out->keeps = keeps;
    device_close(device);
    return status;
}

// The answer of the rank that can take least; keeps: whether all ranks can keep the recorded size.
static void settle(const struct answer *all, int world, struct answer *out) {
    *out = (struct answer){.keeps = true};
    for (int rank = 0; rank < world; rank++) {
        if (!all[rank].is_open)
            continue;
        if (!out->is_open || all[rank].choice.size < out->choice.size)
            out->choice = all[rank].choice;
        out->is_open = true;
        out->keeps = out->keeps && all[rank].keeps;
    }
}

enum status trainer_choose_micro_batch(struct trainer *trainer) {
    struct comm *comm = trainer->comm;
    struct config *config = trainer->config;
    struct answer mine = {.is_open = false}, found;
    if (!config->micro_batch_is_open)
        return STATUS_OK;
    enum status status = STATUS_OK;
    if (trainer->device->place == REGION_DEVICE)
        status = answer_of(trainer, &mine);
    TRY(trainer_agree(trainer, status));
    struct answer *all = allocate((size_t)comm->world, sizeof *all);
    status = comm_gather(comm, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        settle(all, comm->world, &found);
    free(all);
    TRY(status);
    if (!found.is_open) // no rank has a GPU
        return STATUS_OK;
    trainer->micro_batch = found.choice;
    trainer->has_micro_batch = true;
    trainer->keeps_micro_batch = found.keeps;
    config_set_micro_batch(config, found.keeps ? recorded_size(trainer) : found.choice.size);
    return STATUS_OK;
}

void trainer_describe_micro_batch(const struct trainer *trainer) {
    const long long size = trainer->config->train.micro_batch_size;
    char why[160];
    if (!trainer->has_micro_batch)
        return;
    if (trainer->keeps_micro_batch) {
        log_info(
            "micro-batch: %lld sequence%s, as before the run was resumed; train.micro_batch_size=N changes "
            "it",
            size, size == 1 ? "" : "s");
        return;
    }
    const bool of_memory = trainer->micro_batch.reason >= MICRO_BATCH_MEMORY;
    log_info("micro-batch: %lld sequence%s, %s%s", size, size == 1 ? "" : "s",
             micro_batch_describe(&trainer->micro_batch, why, sizeof why),
             of_memory && trainer->comm->world > 1 ? ", on the rank with the least memory" : "");
    const int64_t before = trainer->resumed ? trainer->resumed->config.train.micro_batch_size : size;
    if (before != size)
        log_info(
            "the checkpoint is of a run with micro-batches of %lld: results are equal to rounding, as sums "
            "are added in another order",
            (long long)before);
}
