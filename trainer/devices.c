// The devices of a run: one per rank, all of one kind.
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/processors.h"
#include "kernels/observe.h"
#include "trainer/trainer_internal.h"

// With overlap_comm, reductions between ranks use one thread while the others compute. Without it, they use
// all.
static enum status open_devices(struct trainer *trainer) {
    const struct config *config = trainer->config;
    int threads = (int)config->run.threads, local_rank = trainer->comm->local_rank;
    if (threads == 0)
        threads = processors_threads(trainer->comm->processors);
    parallel_set_threads(threads);
    processors_warn_of_ranks(trainer->comm->local_world, threads, trainer->comm->local_processors);
    const char *device = config_device_name(config->top.device);
    TRY(device_open(device, threads, local_rank, &trainer->device));
    TRY(device_open(device, config->zero_optimization.overlap_comm ? 1 : threads, local_rank,
                    &trainer->comm_device));
    if (trainer->device->place == REGION_DEVICE)
        TRY(device_open("cpu", threads, local_rank, &trainer->host_device));
    if (config->run.debug_sync) {
        debug_sync_begin(trainer->device);
        debug_sync_begin(trainer->comm_device);
    }
    TRY(stream_init(&trainer->stream, trainer->device));
    region_memory_init(&trainer->memory, trainer->device);
    return STATUS_OK;
}

// What ranks tell each other of their devices.
struct rank_device {
    int32_t place;
    char arithmetic[sizeof((struct device *)0)->arithmetic];
};

static const char *kind_of(const struct rank_device *one) {
    return one->place == REGION_DEVICE ? "a GPU" : "the CPU";
}

// The same conclusion on every rank, as all draw it from the same answers.
static enum status judge(const struct rank_device *all, int world) {
    const struct rank_device *first = &all[0];
    for (int rank = 1; rank < world; rank++)
        if (all[rank].place != first->place)
            return FAIL(
                STATUS_INVALID,
                "device \"auto\" is %s on rank 0 (%s) and %s on rank %d (%s), and all ranks need one kind. "
                "Start ranks only where there are GPUs and their drivers, or set device=cpu",
                kind_of(first), first->arithmetic, kind_of(&all[rank]), rank, all[rank].arithmetic);
    for (int rank = 1; rank < world; rank++)
        if (strcmp(all[rank].arithmetic, first->arithmetic) != 0) {
            log_warning("rank 0 computes by %s, and rank %d by %s: results round differently there, so the "
                        "run repeats to the bit only with the same device for each rank",
                        first->arithmetic, rank, all[rank].arithmetic);
            return STATUS_OK;
        }
    return STATUS_OK;
}

static enum status compare(struct trainer *trainer) {
    struct comm *comm = trainer->comm;
    struct rank_device mine = {.place = trainer->device->place},
                       *all = allocate((size_t)comm->world, sizeof *all);
    memcpy(mine.arithmetic, trainer->device->arithmetic, sizeof mine.arithmetic);
    enum status status = comm_gather(comm, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        status = judge(all, comm->world);
    free(all);
    return trainer_agree(trainer, status);
}

enum status trainer_open_devices(struct trainer *trainer) {
    TRY(trainer_agree(trainer, open_devices(trainer)));
    TRY(compare(trainer));
    return trainer_agree(trainer, comm_attach(trainer->comm, trainer->comm_device,
                                              trainer->config->zero_optimization.overlap_comm));
}
