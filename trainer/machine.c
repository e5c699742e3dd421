// Decisions are the same on all ranks. The micro-batch size is the smallest that any rank chose for its own
// device. The compute type and the attention kernel are chosen by rank 0.
#include "trainer/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/processors.h"
#include "base/text.h"
#include "kernels/observe.h"
#include "trainer/plan/attention.h"

// ---- the devices: one per rank, all of one kind

// Opens this rank's devices. comm_device computes the reductions between ranks. With overlap_comm, it does so
// while `device` computes, and has only one thread; otherwise it has as many threads as `device`.
static enum status open_devices(struct run *run) {
    const struct config *config = run->config;
    int threads = (int)config->run.threads, local_rank = run->comm->local_rank;
    if (threads == 0)
        threads = processors_threads(run->comm->processors);
    parallel_set_threads(threads);
    processors_warn_of_ranks(run->comm->local_world, threads, run->comm->local_processors);
    const char *device = config_device_name(config->top.device);
    TRY(device_open(device, threads, local_rank, &run->machine.device));
    TRY(device_open(device, config->zero_optimization.overlap_comm ? 1 : threads, local_rank,
                    &run->machine.comm_device));
    if (run->machine.device->place == REGION_DEVICE)
        TRY(device_open("cpu", threads, local_rank, &run->machine.host_device));
    if (config->run.debug_sync) {
        debug_sync_begin(run->machine.device);
        debug_sync_begin(run->machine.comm_device);
    }
    TRY(stream_init(&run->machine.stream, run->machine.device));
    region_memory_init(&run->memory, run->machine.device);
    return STATUS_OK;
}

// A rank's device, as each rank sends it to the others.
struct rank_device {
    int32_t place;
    char arithmetic[sizeof((struct device *)0)->arithmetic];
    char fingerprint[FINGERPRINT_BYTES];
    char host[65];
};

// Gathers the devices of all ranks. Free *out with free(), also after a failure.
static enum status gather_devices(struct run *run, struct rank_device **out) {
    struct rank_device mine = {.place = run->machine.device->place};
    *out = allocate((size_t)run->comm->world, sizeof mine);
    memcpy(mine.arithmetic, run->machine.device->arithmetic, sizeof mine.arithmetic);
    memcpy(mine.fingerprint, run->machine.fingerprint, sizeof mine.fingerprint);
    if (gethostname(mine.host, sizeof mine.host - 1) != 0)
        mine.host[0] = 0;
    return comm_gather(run->comm, &mine, sizeof mine, *out);
}

static const char *kind_of(const struct rank_device *one) {
    return one->place == REGION_DEVICE ? "a GPU" : "the CPU";
}

// Checks the devices of all ranks. Every rank has the same list, so all come to the same result.
static enum status judge_devices(const struct rank_device *all, int world) {
    const struct rank_device *first = &all[0];
    for (int rank = 1; rank < world; rank++)
        if (all[rank].place != first->place)
            return FAIL(
                STATUS_INVALID,
                "device \"auto\" is %s on rank 0 (%s) and %s on rank %d (%s), and all ranks need one kind. "
                "Start ranks only where there are GPUs and their drivers, or set device=cpu",
                kind_of(first), first->arithmetic, kind_of(&all[rank]), rank, all[rank].arithmetic);
    return STATUS_OK;
}

static enum status compare_devices(struct run *run) {
    struct rank_device *all;
    enum status status = gather_devices(run, &all);
    if (status == STATUS_OK)
        status = judge_devices(all, run->comm->world);
    free(all);
    return run_agree(run, status);
}

enum status machine_open(struct run *run) {
    TRY(run_agree(run, open_devices(run)));
    TRY(compare_devices(run));
    return run_agree(
        run, comm_attach(run->comm, run->machine.comm_device, run->config->zero_optimization.overlap_comm));
}

void machine_close(struct run *run) {
    struct machine *machine = &run->machine;
    if (machine->device) {
        region_memory_free(&run->memory);
        stream_free(&machine->stream);
        debug_sync_end(machine->device);
        device_close(machine->device);
    }
    debug_sync_end(machine->comm_device);
    device_close(machine->comm_device);
    device_close(machine->host_device);
}

// ---- the compute type

enum status machine_choose_type(struct run *run, const struct checkpoint *resumed) {
    const struct config *config = run->config;
    if (config_compute_type(config, &run->type))
        return STATUS_OK;
    if (resumed) { // a resumed run keeps its type
        run->type = resumed->compute;
        return STATUS_OK;
    }
    int32_t type = device_compute_type(run->machine.device);
    TRY(comm_broadcast(run->comm, &type, sizeof type, 0));
    run->type = (enum dtype)type;
    return STATUS_OK;
}

// ---- attention

#define REMEDY                                                                                               \
    "install cuDNN 9 (package cudnn9-cuda-13, or nvidia-cudnn-cu13 from PyPI with its lib folder in "        \
    "LD_LIBRARY_PATH)"

static enum status choose_kernel(struct run *run, const struct checkpoint *resumed,
                                 struct attention_choice *out) {
    return attention_choose(run->machine.device, run->config, &run->params.config, run->type,
                            resumed ? resumed->attention.kernel : CONFIG_ATTENTION_AUTO, out);
}

static enum status refuse_kernel(const struct run *run, const struct checkpoint *resumed,
                                 const char *reason) {
    const char *source = run->config->source;
    if (run->config->top.attention == CONFIG_ATTENTION_CUDNN)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: attention is cudnn, and cuDNN cannot be used: %s; " REMEDY ", or set attention=auto "
                    "or attention=flash",
                    source, reason);
    if (!resumed || resumed->attention.kernel != CONFIG_ATTENTION_CUDNN)
        return FAIL(STATUS_UNSUPPORTED,
                    "%s: rank 0 computes attention by cuDNN %s (attention=auto), and rank %d cannot: %s; "
                    "give all ranks the same cuDNN, or set attention=flash",
                    source, run->attention.cudnn, run->comm->rank, reason);
    return FAIL(
        STATUS_UNSUPPORTED,
        "%s: the run computes attention by cuDNN %s, as %s records, and cuDNN cannot be used now: %s; " REMEDY
        ", or change it on purpose with attention=flash checkpoint.resume_with=attention",
        source, resumed->attention.cudnn, resumed->path, reason);
}

// Sets run->attention on rank 0. If there is nothing to choose (on CPUs and in fp32), keeps what the resumed
// run recorded.
static enum status decide_kernel(struct run *run, const struct checkpoint *resumed,
                                 const struct attention_choice *choice) {
    const struct cudnn_support *cudnn = &choice->cudnn;
    const struct checkpoint_attention *before = resumed ? &resumed->attention : NULL;
    run->attention = before ? *before : (struct checkpoint_attention){.kernel = CONFIG_ATTENTION_AUTO};
    if (choice->kernel == CONFIG_ATTENTION_AUTO)
        return STATUS_OK;
    if (choice->kernel == CONFIG_ATTENTION_CUDNN && !cudnn->usable)
        return refuse_kernel(run, resumed, cudnn->reason);
    run->attention = (struct checkpoint_attention){.kernel = choice->kernel};
    if (choice->kernel == CONFIG_ATTENTION_CUDNN) {
        memcpy(run->attention.cudnn, cudnn->version, sizeof run->attention.cudnn);
        log_info("attention: cuDNN %s", cudnn->version);
        if (before && before->kernel == CONFIG_ATTENTION_CUDNN && strcmp(before->cudnn, cudnn->version) != 0)
            log_info("the checkpoint is of a run with cuDNN %s: results are equal up to rounding",
                     before->cudnn);
    } else if (cudnn->reason[0])
        log_info("attention: flash; cuDNN is not used: %s", cudnn->reason);
    return STATUS_OK;
}

// Checks that this rank can use the kernel that rank 0 chose.
static enum status follow_kernel(struct run *run, const struct checkpoint *resumed,
                                 const struct attention_choice *choice) {
    const char *wanted = run->attention.cudnn, *version = choice->cudnn.version;
    char reason[128];
    if (run->attention.kernel != CONFIG_ATTENTION_CUDNN || run->type == DTYPE_F32 ||
        run->machine.device->place == REGION_HOST)
        return STATUS_OK;
    if (!choice->cudnn.usable)
        return refuse_kernel(run, resumed, choice->cudnn.reason);
    snprintf(reason, sizeof reason, "rank 0 has version %s, and rank %d has %s", wanted, run->comm->rank,
             version);
    return strcmp(wanted, version) == 0 ? STATUS_OK : refuse_kernel(run, resumed, reason);
}

enum status machine_choose_attention(struct run *run, const struct checkpoint *resumed) {
    struct attention_choice mine;
    enum status status = choose_kernel(run, resumed, &mine);
    if (status == STATUS_OK && run->comm->rank == 0)
        status = decide_kernel(run, resumed, &mine);
    TRY(run_agree(run, status));
    TRY(comm_broadcast(run->comm, &run->attention, sizeof run->attention, 0));
    return run_agree(run, follow_kernel(run, resumed, &mine));
}

// ---- whether ranks, and the run before it was resumed, round alike

#define SAME_BITS "run.require_same_bits"

// Appends the ranks whose fingerprints differ from rank 0's: "rank 2 on HOST with DEVICE, rank 3 ...".
static void list_others(const struct rank_device *all, int world, struct text *list) {
    enum { MOST_LISTED = 8 };
    int n = 0;
    for (int rank = 1; rank < world; rank++)
        if (strcmp(all[rank].fingerprint, all[0].fingerprint) != 0 && n++ < MOST_LISTED)
            text_add(list, "%srank %d on %s with %s", n > 1 ? ", " : "", rank, all[rank].host,
                     all[rank].arithmetic);
    if (n > MOST_LISTED)
        text_add(list, ", and %d more", n - MOST_LISTED);
}

static enum status judge_ranks(const struct run *run, const struct rank_device *all) {
    struct text others = {0};
    enum status status = STATUS_OK;
    list_others(all, run->comm->world, &others);
    if (others.length > 0 && run->config->run.require_same_bits)
        status =
            FAIL(STATUS_UNSUPPORTED,
                 SAME_BITS ": ranks round differently: rank 0 on %s computes with %s, and %s. Start ranks "
                           "on machines of one kind, or leave out " SAME_BITS,
                 all[0].host, all[0].arithmetic, others.data);
    else if (others.length > 0)
        log_warning(
            "ranks round differently: rank 0 on %s computes with %s, and %s. The run repeats bit for bit "
            "only with the same device for each rank",
            all[0].host, all[0].arithmetic, others.data);
    text_free(&others);
    return status;
}

// True if the checkpoint's fingerprint can be compared with rank 0's: both are of one compute type.
static bool can_compare(const struct run *run, const struct checkpoint *resumed) {
    return resumed && resumed->compute == run->type && resumed->fingerprint;
}

// Compares rank 0's fingerprint with the checkpoint's, if the user requires that they are equal.
static enum status judge_resumed(const struct run *run, const struct checkpoint *resumed,
                                 const struct rank_device *first) {
    if (!resumed || !run->config->run.require_same_bits)
        return STATUS_OK;
    if (!can_compare(run, resumed))
        return FAIL(STATUS_UNSUPPORTED,
                    SAME_BITS ": %s records %s to compare this machine with; resume without " SAME_BITS,
                    resumed->path,
                    resumed->fingerprint ? "no fingerprint of this compute type" : "no fingerprint");
    if (strcmp(resumed->fingerprint, first->fingerprint) != 0)
        return FAIL(STATUS_UNSUPPORTED,
                    SAME_BITS
                    ": %s is of a run with %s, and rank 0 on %s, with %s, rounds differently. Resume on "
                    "a machine of that kind, or without " SAME_BITS,
                    resumed->path, resumed->device, first->host, first->arithmetic);
    return STATUS_OK;
}

enum status machine_compare_bits(struct run *run, const struct checkpoint *resumed) {
    // cuDNN's attention takes long to prepare and is not run: its version stands for it.
    const char *library = run->attention.kernel == CONFIG_ATTENTION_CUDNN ? run->attention.cudnn : NULL;
    struct rank_device *all;
    TRY(run_agree(run,
                  device_fingerprint(run->machine.device, run->type, library, run->machine.fingerprint)));
    enum status status = gather_devices(run, &all);
    if (status == STATUS_OK)
        status = judge_ranks(run, all);
    if (status == STATUS_OK)
        status = judge_resumed(run, resumed, &all[0]);
    free(all);
    return run_agree(run, status);
}

void machine_describe_bits(const struct run *run, const struct checkpoint *resumed) {
    if (!resumed)
        return;
    const char *before = resumed->device, *now = run->machine.device->arithmetic;
    if (can_compare(run, resumed) && strcmp(resumed->fingerprint, run->machine.fingerprint) != 0)
        log_warning(
            "the checkpoint is of a run with %s; now with %s: results are equal up to rounding, as this "
            "machine rounds differently",
            before, now);
    else if (!resumed->fingerprint && strcmp(before, now) != 0)
        log_info(
            "the checkpoint is of a run with %s, and records no fingerprint; now with %s: results may be "
            "equal only up to rounding",
            before, now);
}

// ---- train.micro_batch_size of a run that leaves it open, on GPUs

// A rank's choice of the micro-batch size, as each rank sends it to the others.
struct answer {
    struct micro_batch_choice choice;
    int32_t is_open; // the rank has a GPU and made a choice
    int32_t keeps;   // the size recorded in the resumed checkpoint fits into this rank's memory
};

// Finds the bytes of GPU memory that this rank's plan may use: an equal share of the free memory, if ranks
// share the GPU, plus what communication holds already, because plans count that too. Not collective.
static enum status find_device_limit(const struct run *run, uint64_t *bytes) {
    const int n_devices = run->machine.device->n_devices;
    const size_t sharing = (size_t)((run->comm->local_world + n_devices - 1) / n_devices);
    size_t free_bytes;
    TRY(device_memory_available(run->machine.device, &free_bytes));
    *bytes = free_bytes / sharing + run_device_sums_bytes(run);
    return STATUS_OK;
}

static enum status find_limits(const struct run *run, uint64_t available[N_REGION_PLACES]) {
    TRY(find_device_limit(run, &available[REGION_DEVICE]));
    available[REGION_HOST] = memory_available_to_each(run->comm->local_world);
    return STATUS_OK;
}

// Returns the micro-batch size recorded in the resumed checkpoint. 0 for a new run, or if the size does not
// divide the sequences that each rank has per step.
static int64_t recorded_size(const struct run *run, const struct checkpoint *resumed) {
    const struct config *config = run->config;
    const int64_t sequences = config_rank_sequences(config);
    const int64_t size = resumed ? resumed->config.train.micro_batch_size : 0;
    return size > 0 && sequences % size == 0 ? size : 0;
}

// Chooses this rank's size. Plans for the device of cuda_device_plan, whose workspace is an upper bound over
// GPU models. With the real GPU, each plan would first time the matrix products of its size.
static enum status answer_of(struct run *run, const struct checkpoint *resumed, struct answer *out) {
    struct engine_options planned = run_engine_options(run);
    struct device *device;
    uint64_t available[N_REGION_PLACES], limits[N_REGION_PLACES];
    const int64_t recorded = recorded_size(run, resumed);
    struct attention_choice attention;
    bool keeps = false;
    TRY(find_limits(run, available));
    TRY(choose_kernel(run, resumed, &attention));
    device = cuda_device_plan();
    planned.device = device;
    planned.attention = attention.kernel == CONFIG_ATTENTION_CUDNN ? ATTENTION_CUDNN : ATTENTION_FLASH;
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

// Combines the answers: the smallest choice of any rank.
//   out   [out] keeps: all ranks can keep the recorded size
static void settle_micro_batch(const struct answer *all, int world, struct answer *out) {
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

enum status machine_choose_micro_batch(struct run *run, const struct checkpoint *resumed,
                                       struct micro_batch_decision *out) {
    struct comm *comm = run->comm;
    struct config *config = run->config;
    struct answer mine = {.is_open = false}, found;
    if (!config->micro_batch_is_open)
        return STATUS_OK;
    enum status status = STATUS_OK;
    if (run->machine.device->place == REGION_DEVICE)
        status = answer_of(run, resumed, &mine);
    TRY(run_agree(run, status));
    struct answer *all = allocate((size_t)comm->world, sizeof *all);
    status = comm_gather(comm, &mine, sizeof mine, all);
    if (status == STATUS_OK)
        settle_micro_batch(all, comm->world, &found);
    free(all);
    TRY(status);
    if (!found.is_open) // no rank has a GPU
        return STATUS_OK;
    *out = (struct micro_batch_decision){.choice = found.choice, .was_made = true, .keeps = found.keeps};
    config_set_micro_batch(config, found.keeps ? recorded_size(run, resumed) : found.choice.size);
    return STATUS_OK;
}

void machine_describe_micro_batch(const struct run *run, const struct micro_batch_decision *decision) {
    const long long size = run->config->train.micro_batch_size;
    char why[160];
    if (!decision->was_made)
        return;
    if (decision->keeps) {
        log_info(
            "micro-batch: %lld sequence%s, as before the run was resumed; train.micro_batch_size=N changes "
            "it",
            size, size == 1 ? "" : "s");
        return;
    }
    const bool of_memory = decision->choice.reason >= MICRO_BATCH_MEMORY;
    log_info("micro-batch: %lld sequence%s, %s%s", size, size == 1 ? "" : "s",
             micro_batch_describe(&decision->choice, why, sizeof why),
             of_memory && run->comm->world > 1 ? ", on the rank with the least memory" : "");
}

// ---- logical ranks

// Sets *lacks to true if a rank lacks the memory to compute its part of n logical ranks. Collective.
static enum status lacks_memory(struct run *run, int64_t n, bool *lacks) {
    struct config config = *run->config; // a shallow copy, not to be freed
    struct engine_options planned = run_engine_options(run);
    const bool on_gpu = planned.device->place == REGION_DEVICE;
    uint64_t available[N_REGION_PLACES] = {0};
    bool fits = true;
    config.logical_ranks = n;
    planned.config = &config;
    available[REGION_HOST] = memory_available_to_each(run->comm->local_world);
    enum status status = on_gpu ? find_device_limit(run, &available[REGION_DEVICE]) : STATUS_OK;
    // Attention is chosen later, and takes the same memory whatever the logical ranks are.
    if (status == STATUS_OK) {
        planned.device = on_gpu ? cuda_device_plan() : planned.device;
        status = micro_batch_fits(&planned, available, config.train.micro_batch_size, &fits);
        if (on_gpu)
            device_close(planned.device);
    }
    double n_lacking = fits ? 0 : 1;
    TRY(run_agree(run, status));
    TRY(comm_sum(run->comm, &n_lacking, 1));
    *lacks = n_lacking > 0;
    return STATUS_OK;
}

// Fails if fewer logical ranks would fit into memory, and names the largest number that does. If none does,
// setup finds that the run as a whole does not fit. Collective.
static enum status refuse_ranks(struct run *run) {
    const struct config *config = run->config;
    const int64_t batches = config->rank_sequences * config->logical_ranks; // divides all batch sizes
    const int world = run->comm->world;
    for (int64_t n = config->logical_ranks - 1; n >= world; n--) {
        bool lacks;
        if (!config_ranks_fit(n, world) || batches % (n * config->train.micro_batch_size) != 0)
            continue;
        TRY(lacks_memory(run, n, &lacks));
        if (!lacks)
            return run_agree(
                run,
                FAIL(STATUS_INVALID,
                     "%s: train.logical_ranks is %lld, and %d rank%s the memory for so many partial sums of "
                     "gradients; start more ranks, or choose train.logical_ranks=%lld",
                     config->source, (long long)config->logical_ranks, world,
                     world == 1 ? " lacks" : "s lack", (long long)n));
    }
    return STATUS_OK;
}

enum status machine_choose_ranks(struct run *run) {
    struct config *config = run->config;
    if (config->logical_ranks == run->comm->world)
        return STATUS_OK;
    bool lacks;
    TRY(lacks_memory(run, config->logical_ranks, &lacks));
    if (!lacks)
        return STATUS_OK;
    if (config->train.logical_ranks > 0)
        return refuse_ranks(run);
    run->machine.lacks_memory = true;
    config->rank_sequences *= config->logical_ranks / run->comm->world;
    config->logical_ranks = run->comm->world;
    return STATUS_OK;
}

// ---- the GEMM rate, with which steps are compared

#define MOST_MEASURED_ROWS 65536 // maximum number of rows of the measured matrix product
#define MEASURED_SECONDS   0.05  // how long the GEMM rate is measured
#define PROFILED_SECONDS   0.5   // the same with run.profile, which needs a more precise GEMM rate

// Returns how many seconds to measure the GEMM rate. Tests start thousands of short runs, so they set
// ZERO_MEASURE_SECONDS to a shorter time. Only the GEMM rate, and figures relative to it, become less exact.
static double measuring_seconds(const struct config *config) {
    double seconds = config->run.profile ? PROFILED_SECONDS : MEASURED_SECONDS;
    const char *shorter = getenv("ZERO_MEASURE_SECONDS");
    double wanted = shorter ? strtod(shorter, NULL) : 0;
    return wanted > 0 && wanted < seconds ? wanted : seconds;
}

// Returns the fraction of its measured GEMM rate that a rank reaches while all ranks compute. If the ranks of
// a machine have more threads than processors, they take turns. A rank's best measurement is then from a time
// in which it had processors for all its threads.
static double share_of_processors(const struct run *run) {
    const double threads = (double)run->machine.device->n_threads * run->comm->local_world,
                 processors = run->comm->local_processors;
    return run->machine.device->place == REGION_HOST && threads > processors ? processors / threads : 1;
}

// Measures this rank's GEMM rate.
//   memory   memory for the matrices; NULL: allocates it
static enum status measure_own_rate(const struct run *run, const struct gemm_memory *memory,
                                    double *flops_per_s) {
    const struct config *config = run->config;
    int64_t all_rows = config->train.micro_batch_size * config->train.seq_len;
    int rows = all_rows < MOST_MEASURED_ROWS ? (int)all_rows : MOST_MEASURED_ROWS;
    struct gemm_rate rate = {0};
    enum status status = device_measure_gemm_rate(run->machine.device, rows, (int)config->model.n_embd,
                                                  run->type, measuring_seconds(config), memory, &rate);
    *flops_per_s = rate.best * share_of_processors(run);
    return status;
}

// Sets the run's dense peak to the sum over ranks, or to 0 if a rank's device has no known dense peak.
static enum status find_dense_peak(struct run *run) {
    const double mine = run->machine.device->dense_peak[run->type];
    double sums[] = {mine, mine == 0};
    TRY(comm_sum(run->comm, sums, 2));
    run->machine.dense_peak = sums[1] == 0 ? sums[0] : 0;
    return STATUS_OK;
}

// Sets machine.limits, the GEMM rate and memory bandwidth of this rank's device, with which a profile
// compares operations. Call it before gemm_rate is summed over ranks.
static enum status measure_limits(struct run *run) {
    struct machine *machine = &run->machine;
    machine->limits.flops_per_s = machine->gemm_rate;
    if (!run->config->run.profile)
        return STATUS_OK;
    return device_measure_bandwidth(machine->device, &machine->limits.bytes_per_s);
}

enum status machine_measure_rate(struct run *run) {
    enum status status = measure_own_rate(run, NULL, &run->machine.gemm_rate);
    if (status == STATUS_OK)
        status = gpt_flops_per_token(&run->params, (int)run->config->train.seq_len, &run->flops_per_token);
    if (status == STATUS_OK)
        status = measure_limits(run);
    TRY(run_agree(run, status));
    TRY(find_dense_peak(run));
    return comm_sum(run->comm, &run->machine.gemm_rate, 1);
}

// Returns the memory of the run that a measurement between two steps may use. The measurement overwrites
// activations and workspace, and only reads the weights.
static struct gemm_memory memory_between_steps(const struct run *run) {
    const struct region_memory *memory = &run->memory;
    const enum region_place place = run->machine.device->place;
    return (struct gemm_memory){.weights = region_memory_arena(memory, REGION_PARAMS, place),
                                .matrices = region_memory_arena(memory, REGION_ACTIVATIONS, place),
                                .workspace = region_memory_arena(memory, REGION_WORKSPACE, place)};
}

enum status machine_check_rate(struct run *run, double achieved) {
    double now, before = run->machine.gemm_rate;
    if (achieved <= before)
        return STATUS_OK;
    const struct gemm_memory memory = memory_between_steps(run);
    if (measure_own_rate(run, &memory, &now) != STATUS_OK) { // for example, the run's memory is too small
        status_clear();
        now = 0;
    }
    run->machine.limits.flops_per_s = fmax(run->machine.limits.flops_per_s, now);
    TRY(comm_sum(run->comm, &now, 1));
    run->machine.gemm_rate = fmax(now, achieved);
    log_live_end();
    log_info("GEMM rate measured again, as a step exceeded it: %.0f GFLOP/s instead of %.0f",
             run->machine.gemm_rate / 1e9, before / 1e9);
    return STATUS_OK;
}
