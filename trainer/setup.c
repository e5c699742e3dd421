// In setup, cheap checks come first. The config is resolved only after model.init_from and the tokenizer are
// open, because model sizes may come from them.
//
// Two functions measure this machine, so they take time, and their results vary with its load:
// - machine_measure_rate measures the GEMM rate and, with run.profile, the memory bandwidth
// - make_model times, on a GPU, the algorithms that cuBLASLt offers for each matrix product of the model
// pacing_check_minutes uses the GEMM rate.
#include "trainer/setup.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/generate.h"
#include "options/print.h"
#include "options/resume.h"
#include "trainer/auditing.h"
#include "trainer/checkpoints.h"
#include "trainer/data/defaults.h"
#include "trainer/data/input_files.h"
#include "trainer/machine.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/model_sizes.h"
#include "zero/checkpoint/ranks.h"

// State that is needed during setup only.
struct setup {
    struct trainer *trainer;
    struct checkpoint *resumed; // the checkpoint to resume; NULL: a new run
    struct weights weights;     // the weights of model.init_from; not open if weights.path is NULL
    struct micro_batch_decision micro_batch;
    int profile_region; // the region of the profiler's memory; only set with run.profile
};

// Closes the checkpoint and the weights, which are not needed once the states are loaded.
static void close_sources(struct setup *setup) {
    checkpoint_close(setup->resumed);
    weights_close(&setup->weights);
    setup->resumed = NULL;
    setup->weights = (struct weights){0};
}

// ---- configuration and tokenizer

// Sets the model's sizes in the config from the checkpoint to resume or, for a new run, from model.init_from.
// A run that resumes does not open model.init_from, which may no longer exist.
static enum status find_model_sizes(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    struct config *config = run->config;
    struct gpt_config sizes;
    bool resumes = false;
    config_derive_run_folder(config);
    const char *resume = config->checkpoint.resume,
               *path = strcmp(resume, "auto") == 0 ? config->run.dir : resume;
    if (strcmp(resume, "never") != 0)
        TRY(checkpoint_peek(path, &sizes, &resumes));
    if (resumes)
        return model_sizes_from_weights(config, &sizes, path, true);
    TRY(initial_weights_open(&setup->weights, config));
    TRY(model_sizes_from_weights(config, &setup->weights.config, config->model.init_from, false));
    // A tokenizer found in the folder of model.init_from is not stored in the config. So a run that resumes
    // with its own config.json does not need that folder.
    if (!config->data.tokenizer[0])
        setup->trainer->data.found_tokenizer = weights_find_tokenizer(&setup->weights);
    return STATUS_OK;
}

// Sets options that the config leaves open from its input files: the model's sizes from weights, and the
// defaults of data options from the shards. The tokenizer's file is read later, by resolve_config.
static enum status find_inputs(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    TRY(config_require_training(run->config));
    if (run->config->model.init_from[0])
        TRY(find_model_sizes(setup));
    data_defaults_apply(run->config);
    return STATUS_OK;
}

static enum status resolve_config(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    struct config *config = run->config;
    TRY(training_data_load_tokenizer(&setup->trainer->data));
    TRY(config_resolve(config, run->comm->world));
    const struct gpt_config sizes = config_model(config);
    TRY(params_init(&run->params, &sizes));
    // This also checks optimizer.groups. It does so before anything is created, so that a wrong pattern
    // leaves no run folder behind.
    TRY(optimizer_groups_freeze(config, &run->params));
    if (!setup->weights.path)
        return STATUS_OK;
    if (run_leads(run))
        model_sizes_log_context(config, &setup->weights.config);
    return weights_bind(&setup->weights, &run->params);
}

// ---- checks that the ranks agree

// Checks that all ranks have the same config: each rank compares its own with rank 0's. Both are read from
// text, which leaves out options that have no effect; those are refused later.
static enum status check_same_config(struct run *run) {
    struct text json = {0}, text = {0};
    struct config mine = {0}, of_rank_0 = {0};
    if (run->comm->world == 1)
        return STATUS_OK;
    config_print(run->config, &json);
    enum status status = comm_broadcast_text(run->comm, &json, &text);
    if (status == STATUS_OK)
        status = config_parse(&of_rank_0, text.data, text.length, "rank 0's configuration");
    if (status == STATUS_OK)
        status = config_parse(&mine, json.data, json.length, run->config->source);
    if (status == STATUS_OK)
        status = config_check_same(&mine, &of_rank_0);
    status = run_agree(run, status);
    config_free(&mine);
    config_free(&of_rank_0);
    text_free(&json);
    text_free(&text);
    return status;
}

// Appends the files of model.init_from, if it is open: the manifest of a checkpoint, the GGUF file, or the
// safetensors files.
static void add_weights(struct text *files, const struct weights *weights) {
    char *pattern = weights->checkpoint // the manifest has checksums of the other files
                        ? file_path("%s/manifest.json", weights->checkpoint->path)
                        : weights->gguf_path ? copy_string(weights->gguf_path)
                          : weights->folder  ? file_path("%s/*.safetensors", weights->folder)
                                             : NULL;
    if (pattern)
        input_files_add(files, "model.init_from", pattern, true);
    free(pattern);
}

// Checks that every rank finds the same input files.
static enum status check_same_files(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    struct text mine = {0}, of_rank_0 = {0};
    char place[RANKS_PLACE];
    if (run->comm->world == 1)
        return STATUS_OK;
    ranks_describe_place("", place);
    text_add(&mine, "%s\n", place);
    input_files_add_config(&mine, run->config);
    add_weights(&mine, &setup->weights);
    enum status status = comm_broadcast_text(run->comm, &mine, &of_rank_0);
    if (status == STATUS_OK)
        status = run_agree(run, input_files_compare(&mine, &of_rank_0));
    text_free(&mine);
    text_free(&of_rank_0);
    return status;
}

// ---- memory and initial state

// The memory that one rank needs and has in one place (host or GPU).
struct memory_need {
    uint64_t wanted;    // bytes that the rank's plan takes there
    uint64_t available; // free bytes; of host memory, an equal share of what is free on the rank's machine
    uint64_t ranks;     // number of ranks on the rank's machine
};

// Gathers the needs of all ranks.
//   out   [out] the need with the least `available` minus `wanted`; this is negative if a rank lacks memory
static enum status gather_memory(struct run *run, enum region_place place, struct memory_need *out) {
    struct comm *comm = run->comm;
    size_t available;
    if (place == REGION_HOST)
        available = memory_available_to_each(comm->local_world);
    else
        TRY(run_agree(run, device_memory_available(run->machine.device, &available)));
    const struct memory_need mine = {region_memory_bytes(&run->memory, place), available,
                                     (uint64_t)comm->local_world};
    struct memory_need *all = allocate((size_t)comm->world, sizeof mine);
    enum status status = comm_gather(comm, &mine, sizeof mine, all);
    *out = all[0];
    for (int rank = 1; rank < comm->world && status == STATUS_OK; rank++)
        if ((double)all[rank].available - (double)all[rank].wanted <
            (double)out->available - (double)out->wanted)
            *out = all[rank];
    free(all);
    return status;
}

static enum status refuse_memory(struct run *run, const struct memory_need needs[N_REGION_PLACES],
                                 enum region_place place) {
    const struct engine_options options = run_engine_options(run);
    const struct memory_need *need = &needs[place];
    const struct fit_machine machine = {.device = needs[REGION_DEVICE].available,
                                        .host =
                                            needs[REGION_HOST].available * (uint64_t)run->comm->local_world};
    struct text advice = {0};
    char wanted[32], there[32];
    enum status status = fit_advise(&options, &machine, &advice);
    if (status == STATUS_OK)
        status = FAIL(STATUS_FAILED, "the run needs %s of model memory per rank%s, and %s are available%s%s",
                      text_bytes(wanted, sizeof wanted, (double)need->wanted),
                      place == REGION_HOST ? "" : " in GPU memory",
                      text_bytes(there, sizeof there, (double)need->available),
                      place == REGION_HOST && need->ranks > 1 ? " to each rank" : "",
                      advice.data ? advice.data : "");
    text_free(&advice);
    return status;
}

// Refuses a run that does not fit into memory. Each rank may use an equal share of its machine's host memory
// and all free memory of its GPU. Ranks that share a GPU may pass this check, and then fail to allocate.
static enum status check_memory(struct run *run) {
    struct memory_need needs[N_REGION_PLACES] = {0};
    TRY(gather_memory(run, REGION_HOST, &needs[REGION_HOST]));
    if (run->machine.device->place == REGION_DEVICE)
        TRY(gather_memory(run, REGION_DEVICE, &needs[REGION_DEVICE]));
    for (int place = 0; place < N_REGION_PLACES; place++)
        if (needs[place].wanted > needs[place].available)
            return refuse_memory(run, needs, (enum region_place)place);
    return STATUS_OK;
}

// Estimates the bytes of heap memory that the CPU's matrix products will allocate to buffer parts of their
// operands: twice the size of the largest tensor in fp32, but at most heap_per_thread for each thread.
static size_t product_heap(const struct engine_options *options) {
    const struct params *params = options->params;
    const size_t most = (size_t)options->device->n_threads * options->device->heap_per_thread;
    size_t largest = 0;
    for (int i = 0; i < params->n_params; i++)
        if (params->params[i].elements > largest)
            largest = params->params[i].elements;
    return 2 * sizeof(float) * largest < most ? 2 * sizeof(float) * largest : most;
}

// Estimates the bytes of host memory that the process takes besides model memory. This is what is resident
// now, plus the heap of matrix products, minus the communication buffers that model memory includes. If
// measuring the machine took more than this and model memory together, the result is that peak minus model
// memory.
static size_t program_memory(const struct engine_options *options, size_t model_bytes) {
    const size_t resident = metrics_resident_memory() - engine_links_bytes(options) -
                            (options->device->place == REGION_HOST
                                 ? comm_sums_bytes(options->world, REGION_HOST, options->for_gpu, false)
                                 : 0) +
                            product_heap(options),
                 peak = metrics_peak_memory();
    return peak > resident + model_bytes ? peak - model_bytes : resident;
}

static enum status make_model(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    struct region_table *table = &run->memory.table;
    const struct engine_options options = run_engine_options(run);
    TRY(run_agree(run, plan_run(&run->engine, &options, table, &setup->profile_region)));
    if (run->config->data.mask_documents && run->engine.generator)
        generator_set_end_of_text(run->engine.generator, training_data_document_start(&setup->trainer->data));
    const struct comm_volume volume =
        engine_volume(&run->engine, run_micro_batches(run, batch_sizes_at(&run->batches, run->step)));
    plan_print(table, &volume, run->comm->world, run->engine.gpt);
    TRY(run_agree(run, check_memory(run)));
    setup->trainer->output.program_bytes = program_memory(&options, region_place_bytes(table, REGION_HOST));
    if (run_leads(run))
        metrics_log_planned(region_place_bytes(table, REGION_HOST), setup->trainer->output.program_bytes,
                            run->comm->world);
    TRY(run_agree(run, region_memory_allocate(&run->memory)));
    enum status status =
        engine_bind(&run->engine, table, &run->machine.stream, run->comm,
                    run->machine.host_device ? run->machine.host_device : run->machine.device);
    return run_agree(run, status);
}

static enum status read_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                float *out) {
    (void)kind; // only master weights are read
    return weights_read_span(context, unit, begin, end, out);
}

static enum status make_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                float *out) {
    const struct run *run = context;
    (void)kind;
    params_init_span(&run->params, (uint64_t)run->config->train.seed, unit, begin, end, out);
    return STATUS_OK;
}

// Sets the source of a new run's initial weights: model.init_from, or else random numbers.
static enum status find_weights(struct setup *setup, struct checkpoint_source *source) {
    struct run *run = &setup->trainer->run;
    *source = (struct checkpoint_source){.context = run, .read = make_weights};
    if (!run->config->model.init_from[0])
        return STATUS_OK;
    *source = (struct checkpoint_source){.context = &setup->weights, .read = read_weights};
    // find_model_sizes saw a checkpoint and left the weights closed, but checkpoints_find did not resume it.
    if (!setup->weights.path) {
        TRY(initial_weights_open(&setup->weights, run->config));
        TRY(weights_bind(&setup->weights, &run->params));
    }
    if (run_leads(run) && setup->weights.uses_average)
        log_info("model.init_from: the weights' average over %lld updates",
                 (long long)setup->weights.checkpoint->run.average.n);
    return STATUS_OK;
}

static enum status load_weights(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    struct checkpoint_source source;
    TRY(run_agree(run, find_weights(setup, &source)));
    return model_states_load(&run->engine.state, &run->machine.stream, &source, false);
}

// Sets aside checkpoints that are later than the resumed one, because their steps will be repeated. Makes the
// link `best` name the run's best checkpoint again, or removes the link if there is none.
static enum status clear_later(struct run *run) {
    const struct run_best *best = &run->state.best;
    if (!run_leads(run))
        return STATUS_OK;
    TRY(run_check_folder(run));
    TRY(checkpoint_set_aside_later(run->folder.checkpoints, run->step));
    checkpoint_name_best(run->folder.checkpoints, best->sequences > 0 ? best->step : -1);
    return STATUS_OK;
}

static enum status load_state(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    // clear_later comes second, so that a checkpoint that cannot be loaded leaves the folder unchanged.
    if (setup->resumed) {
        TRY(checkpoints_load_states(run, setup->resumed));
        TRY(audit_begin(run->audit, setup->resumed));
        TRY(run_agree(run, clear_later(run)));
    } else {
        TRY(load_weights(setup));
        TRY(audit_begin(run->audit, NULL));
    }
    close_sources(setup);
    return STATUS_OK;
}

// ---- setup

// Logs the options that make the training loss differ from the cross entropy that evaluations compute.
static void describe_regularization(const struct config *config) {
    const struct {
        const char *name;
        double value;
    } parts[] = {{"dropout", config->train.dropout},
                 {"label smoothing", config->train.label_smoothing},
                 {"z-loss", config->train.z_loss}};
    struct text list = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].value > 0)
            text_add(&list, "%s%s %g", list.length ? ", " : "", parts[i].name, parts[i].value);
    if (list.length > 0)
        log_info("the training loss includes %s; evaluations do not", list.data);
    text_free(&list);
}

// Appends to `when`, for the log, when bulk collectives run. Stages 0 and 1 reduce a bucket as soon as
// backward has filled it. If a bucket is larger than all units but the first, it is full only at the end of
// backward, because the first unit's gradients are computed last. Then nothing overlaps.
static void describe_overlap(const struct run *run, struct text *when) {
    const struct config *config = run->config;
    const struct params *params = &run->params;
    const long long bucket = config->zero_optimization.reduce_bucket_size,
                    most = (long long)(params->n_elements - params->units[0].elements);
    if (!config->zero_optimization.overlap_comm)
        text_add(when, "between computations");
    else if (stage_shards_grads(config) || bucket <= most)
        text_add(when, "while computing");
    else
        text_add(when,
                 "after computing: zero_optimization.reduce_bucket_size=%lld puts the model into one bucket; "
                 "with at most %lld, stages 0 and 1 reduce while backward computes",
                 bucket, most);
}

static void describe_ranks(const struct run *run) {
    const struct config *config = run->config;
    const struct comm *comm = run->comm;
    struct text when = {0};
    if (comm->world == 1)
        return;
    describe_overlap(run, &when);
    log_info("ranks: %d, %d on this machine; ZeRO stage %lld, partition %s, communication %s", comm->world,
             comm->local_world, (long long)config->zero_optimization.stage,
             config_partition_name(config->zero_optimization.partition), when.data);
    text_free(&when);
    if (comm->path_text[0])
        log_info("ranks exchange %s", comm->path_text);
}

static void describe(const struct setup *setup) {
    struct run *run = &setup->trainer->run;
    const struct config *config = run->config;
    log_info("device: %s; %s, GEMM %.0f GFLOP/s%s; fingerprint %.8s", run->machine.device->description,
             dtype_name(run->type), run->machine.gemm_rate / 1e9, run->comm->world > 1 ? " in total" : "",
             run->machine.fingerprint);
    if (run->machine.dense_peak > 0)
        log_info(
            "utilization (MFU) is relative to the dense peak, %.0f GFLOP/s; the GEMM rate is %.0f%% of it",
            run->machine.dense_peak / 1e9, 100 * run->machine.gemm_rate / run->machine.dense_peak);
    else if (run->machine.device->place == REGION_DEVICE)
        log_info(
            "the dense peak of this GPU is not known: utilization is relative to the measured GEMM rate");
    describe_ranks(run);
    bool asked = config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU ||
                 config->top.offload_activations == CONFIG_OFFLOAD_CPU;
    if (asked && run->machine.device->place == REGION_HOST)
        log_info("offload: ignored, as the device is the CPU and everything is in host memory");
    struct text line = {0};
    model_sizes_print(&run->params, &line);
    log_info("%s", line.data);
    text_free(&line);
    if (config->train.ema.type != CONFIG_EMA_NONE)
        log_info("evaluations use the exponential average of the weights (train.ema)");
    else if (optimizer_averages(config))
        log_info("evaluations use the average of the weights that schedule-free AdamW makes");
    training_data_describe(&setup->trainer->data, setup->resumed);
    evaluator_describe_tasks(&setup->trainer->evaluator);
    machine_describe_micro_batch(run, &setup->micro_batch);
    describe_regularization(config);
}

static void describe_groups(const struct run *run) {
    struct text lines = {0};
    if (!run_leads(run) || run->config->optimizer.groups.n == 0)
        return;
    optimizer_groups_print(&run->engine.state.groups, run->config, &run->params, &lines);
    log_info("%s", lines.data);
    text_free(&lines);
}

// Opens the run folder and checks that it is the same on all ranks.
static enum status open_folder(struct run *run) {
    const char *path = run->config->run.dir;
    run_folder_join(&run->folder, path);
    TRY(run_agree(run, run_leads(run) ? run_folder_open(&run->folder) : STATUS_OK));
    return run_folder_meet(&run->folder, run->comm);
}

// Tries to write to the folder: a run that cannot save must fail now, not when its first checkpoint is due.
static enum status try_folder(const struct run *run) {
    return run_folder_try(&run->folder, run->config, run->comm->rank, run_leads(run));
}

static enum status begin_folder(struct setup *setup) {
    struct run *run = &setup->trainer->run;
    if (!run_leads(run))
        return STATUS_OK;
    TRY(run_check_folder(run));
    TRY(run_folder_begin(&run->folder, run->config));
    describe(setup);
    return run_output_begin_session(&setup->trainer->output);
}

// Runs the parts of setup in order. Each needs the results of those before it.
static enum status set_up(struct setup *setup, bool *complete) {
    struct trainer *trainer = setup->trainer;
    struct run *run = &trainer->run;
    // Ranks compare their input files before they derive anything from them. So a file that one rank lacks is
    // reported as missing, not as a difference between configs. The second comparison includes what
    // find_inputs found.
    TRY(check_same_config(run));
    TRY(check_same_files(setup));
    TRY(run_agree(run, find_inputs(setup)));
    TRY(check_same_files(setup));
    TRY(run_agree(run, resolve_config(setup)));
    TRY(check_same_config(run));
    TRY(open_folder(run));
    TRY(run_agree(run, try_folder(run)));
    TRY(checkpoints_find(run, &trainer->data, &setup->resumed));
    pacing_resume(&trainer->pacing, setup->resumed);
    audit_limit(run);
    *complete = setup->resumed && run->step >= run->last_step;
    if (*complete)
        return STATUS_OK;
    TRY(machine_open(run));
    TRY(machine_choose_type(run, setup->resumed));
    TRY(machine_choose_micro_batch(run, setup->resumed, &setup->micro_batch));
    TRY(machine_choose_ranks(run));
    TRY(run_agree(run, checkpoints_check_sums(run, setup->resumed)));
    run_take_batches(run);
    TRY(training_data_open(&trainer->data, setup->resumed)); // needs the micro-batch size
    TRY(evaluator_open(&trainer->evaluator));
    TRY(machine_choose_attention(run, setup->resumed));
    TRY(machine_compare_bits(run, setup->resumed));
    TRY(machine_measure_rate(run));
    if (!audit_repeats(run->audit)) // a repetition has the length of the run that it repeats
        TRY(run_agree(run, pacing_check_minutes(&trainer->pacing)));
    TRY(run_agree(run, begin_folder(setup)));
    TRY(make_model(setup));
    describe_groups(run);
    checkpoints_describe_resumed(run, setup->resumed);
    machine_describe_bits(run, setup->resumed);
    pacing_describe_schedule(&trainer->pacing, setup->resumed);
    TRY(load_state(setup));
    steps_begin(&trainer->steps);
    TRY(run_agree(run, run_output_begin_metrics(&trainer->output)));
    return run_agree(run, run_output_start_profile(&trainer->output, setup->profile_region));
}

enum status trainer_setup(struct trainer *trainer, bool *complete) {
    struct setup setup = {.trainer = trainer};
    *complete = false;
    const enum status status = set_up(&setup, complete);
    close_sources(&setup);
    return status;
}

struct trainer *trainer_new(struct config *config, const char *command, struct comm *comm,
                            const struct audit_task *task) {
    struct trainer *trainer = allocate(1, sizeof *trainer);
    struct run *run = &trainer->run;
    trainer->command = command;
    *run = (struct run){.config = config, .comm = comm, .folder.lock = -1};
    run->audit = audit_new(run, task);
    trainer->data.run = run;
    trainer->output.run = run;
    trainer->evaluator = (struct evaluator){.run = run, .data = &trainer->data, .output = &trainer->output};
    trainer->pacing =
        (struct pacing){.run = run, .evaluator = &trainer->evaluator, .began_s = clock_monotonic_s()};
    trainer->steps = (struct steps){
        .run = run, .data = &trainer->data, .output = &trainer->output, .pacing = &trainer->pacing};
    progress_init(&trainer->output.progress, config, comm->world);
    return trainer;
}

void trainer_delete(struct trainer *trainer) {
    struct run *run = &trainer->run;
    progress_free(&trainer->output.progress);
    metrics_close(&trainer->output.metrics);
    // A step that failed may have left operations and collectives in flight. They must end before their
    // memory is freed.
    stream_drain(&run->machine.stream);
    comm_detach(run->comm);
    steps_free(&trainer->steps);
    profiler_free(&trainer->output.profiler);
    engine_free(&run->engine);
    machine_close(run);
    evaluator_free(&trainer->evaluator);
    training_data_free(&trainer->data);
    run_state_free(&run->state);
    audit_delete(run->audit);
    params_free(&run->params);
    run_folder_close(&run->folder);
    log_close_file();
    free(trainer);
}
