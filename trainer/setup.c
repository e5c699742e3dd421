// From a config to a trainer that can take its first step. Cheap checks come first. The config is resolved
// only after model.init_from and the tokenizer are open, because model sizes may come from them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/observe.h"
#include "model/generate.h"
#include "trainer/data/defaults.h"
#include "trainer/data/input_files.h"
#include "trainer/initial_weights.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/model_sizes.h"
#include "trainer/trainer_internal.h"
#include "zero/checkpoint/ranks.h"

// ---- configuration and tokenizer

// A run that will resume needs its own checkpoints only: model.init_from may be gone by then.
static enum status find_model_sizes(struct trainer *trainer) {
    struct config *config = trainer->config;
    struct gpt_config sizes;
    bool resumes = false;
    config_derive_run_folder(config);
    const char *resume = config->checkpoint.resume,
               *path = strcmp(resume, "auto") == 0 ? config->run.dir : resume;
    if (strcmp(resume, "never") != 0)
        TRY(checkpoint_peek(path, &sizes, &resumes));
    if (resumes)
        return model_sizes_from_weights(config, &sizes, path, true);
    TRY(initial_weights_open(&trainer->weights, config));
    TRY(model_sizes_from_weights(config, &trainer->weights.config, config->model.init_from, false));
    // Not kept in the config, so that resuming from the run's config.json does not need that folder either.
    if (!config->data.tokenizer[0])
        trainer->found_tokenizer = weights_find_tokenizer(&trainer->weights);
    return STATUS_OK;
}

// Before anything is made, so that a wrong pattern of optimizer.groups leaves no run folder.
static enum status check_groups(const struct trainer *trainer) {
    struct optimizer_groups groups;
    enum status status = optimizer_groups_init(&groups, trainer->config, &trainer->params);
    optimizer_groups_free(&groups);
    return status;
}

// What the config leaves to its input files, but for what depends on the tokenizer.
static enum status find_inputs(struct trainer *trainer) {
    TRY(config_require_training(trainer->config));
    if (trainer->config->model.init_from[0])
        TRY(find_model_sizes(trainer));
    data_defaults_apply(trainer->config);
    return STATUS_OK;
}

static enum status resolve_config(struct trainer *trainer) {
    struct config *config = trainer->config;
    TRY(trainer_load_tokenizer(trainer));
    TRY(config_resolve(config, trainer->comm->world));
    const struct gpt_config sizes = config_model(config);
    TRY(params_init(&trainer->params, &sizes));
    TRY(check_groups(trainer));
    if (!trainer->weights.path)
        return STATUS_OK;
    if (trainer_leads(trainer))
        model_sizes_log_context(config, &trainer->weights.config);
    return weights_bind(&trainer->weights, &trainer->params);
}

// ---- several ranks

// Rank 0's text; free it with text_free.
static enum status broadcast_text(struct comm *comm, const struct text *mine, struct text *of_rank_0) {
    uint64_t length = mine->length;
    TRY(comm_broadcast(comm, &length, sizeof length, 0));
    *of_rank_0 = (struct text){allocate(1, length + 1), length, length + 1};
    if (comm->rank == 0)
        memcpy(of_rank_0->data, mine->data, length);
    return comm_broadcast(comm, of_rank_0->data, length, 0);
}

// Checks that every rank was started with the same config: each compares its own with rank 0's.
static enum status check_same_config(struct trainer *trainer) {
    struct text json = {0}, text = {0};
    struct config of_rank_0 = {0};
    if (trainer->comm->world == 1)
        return STATUS_OK;
    config_print(trainer->config, &json);
    enum status status = broadcast_text(trainer->comm, &json, &text);
    if (status == STATUS_OK)
        status = config_parse(&of_rank_0, text.data, text.length, "rank 0's configuration");
    if (status == STATUS_OK)
        status = config_check_same(trainer->config, &of_rank_0);
    status = trainer_agree(trainer, status);
    config_free(&of_rank_0);
    text_free(&json);
    text_free(&text);
    return status;
}

// Of the weights to begin with, once they are open: the checkpoint, or another program's files.
static void add_weights(struct text *files, const struct weights *weights) {
    char *pattern = weights->checkpoint // its manifest has checksums of the rest
                        ? file_path("%s/manifest.json", weights->checkpoint->path)
                        : weights->gguf_path ? copy_string(weights->gguf_path)
                          : weights->folder  ? file_path("%s/*.safetensors", weights->folder)
                                             : NULL;
    if (pattern)
        input_files_add(files, "model.init_from", pattern, true);
    free(pattern);
}

// Checks that every rank finds the same files.
static enum status check_same_files(struct trainer *trainer) {
    struct text mine = {0}, of_rank_0 = {0};
    char place[RANKS_PLACE];
    if (trainer->comm->world == 1)
        return STATUS_OK;
    ranks_describe_place("", place);
    text_add(&mine, "%s\n", place);
    input_files_add_config(&mine, trainer->config);
    add_weights(&mine, &trainer->weights);
    enum status status = broadcast_text(trainer->comm, &mine, &of_rank_0);
    if (status == STATUS_OK)
        status = trainer_agree(trainer, input_files_compare(&mine, &of_rank_0));
    text_free(&mine);
    text_free(&of_rank_0);
    return status;
}

// The compute type of the config or, for "auto", the one that rank 0 measures as faster.
static enum status choose_type(struct trainer *trainer) {
    const struct config *config = trainer->config;
    if (config_compute_type(config, &trainer->type))
        return STATUS_OK;
    if (trainer->resumed) { // decided once; the run keeps it
        trainer->type = trainer->resumed->compute;
        return STATUS_OK;
    }
    int32_t type = device_compute_type(trainer->device);
    TRY(comm_broadcast(trainer->comm, &type, sizeof type, 0));
    trainer->type = (enum dtype)type;
    return STATUS_OK;
}

// ---- memory and initial state

// Memory of one place, per rank. Host memory is divided equally among the ranks of a machine.
struct memory_need {
    uint64_t wanted, available; // bytes
    uint64_t ranks;             // ranks on the machine
};

// Finds the rank that lacks most, or has least to spare.
static enum status gather_memory(struct trainer *trainer, enum region_place place, struct memory_need *out) {
    struct comm *comm = trainer->comm;
    size_t available;
    if (place == REGION_HOST)
        available = memory_available_to_each(comm->local_world);
    else
        TRY(trainer_agree(trainer, device_memory_available(trainer->device, &available)));
    const struct memory_need mine = {region_memory_bytes(&trainer->memory, place), available,
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

static enum status refuse_memory(struct trainer *trainer, const struct memory_need needs[N_REGION_PLACES],
                                 enum region_place place) {
    const struct engine_options options = trainer_engine_options(trainer);
    const struct memory_need *need = &needs[place];
    const struct fit_machine machine = {.device = needs[REGION_DEVICE].available,
                                        .host = needs[REGION_HOST].available *
                                                (uint64_t)trainer->comm->local_world};
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

// Refuses a run that does not fit into memory. Ranks on a machine share its host memory. Each has a GPU of
// its own; if ranks share a GPU, it is the allocation that fails.
static enum status check_memory(struct trainer *trainer) {
    struct memory_need needs[N_REGION_PLACES] = {0};
    TRY(gather_memory(trainer, REGION_HOST, &needs[REGION_HOST]));
    if (trainer->device->place == REGION_DEVICE)
        TRY(gather_memory(trainer, REGION_DEVICE, &needs[REGION_DEVICE]));
    for (int place = 0; place < N_REGION_PLACES; place++)
        if (needs[place].wanted > needs[place].available)
            return refuse_memory(trainer, needs, (enum region_place)place);
    return STATUS_OK;
}

// What the process takes besides model memory. Arrays that measured this machine are freed again; they count
// where they took more than the model will.
static size_t program_memory(const struct engine_options *options, size_t model_bytes) {
    const size_t resident = metrics_resident_memory() - engine_links_bytes(options) -
                            (options->device->place == REGION_HOST
                                 ? comm_sums_bytes(options->world, REGION_HOST, options->for_gpu, false)
                                 : 0),
                 peak = metrics_peak_memory();
    return peak > resident + model_bytes ? peak - model_bytes : resident;
}

static enum status make_model(struct trainer *trainer) {
    struct region_table *table = &trainer->memory.table;
    const struct engine_options options = trainer_engine_options(trainer);
    TRY(trainer_agree(trainer, plan_run(&trainer->engine, &options, table, &trainer->profile_region)));
    if (trainer->config->data.mask_documents) {
        gpt_set_end_of_text(trainer->engine.gpt, trainer_document_start(trainer));
        if (trainer->engine.generator)
            generator_set_end_of_text(trainer->engine.generator, trainer_document_start(trainer));
    }
    trainer->volume_steps = trainer_micro_batches(trainer, batch_sizes_at(&trainer->batches, trainer->step));
    comm_volume_make(&trainer->engine, trainer->volume_steps, &trainer->volume);
    plan_print(table, &trainer->volume, trainer->comm->world, trainer->engine.gpt);
    TRY(trainer_agree(trainer, check_memory(trainer)));
    trainer->program_bytes = program_memory(&options, region_place_bytes(table, REGION_HOST));
    if (trainer_leads(trainer))
        metrics_log_planned(region_place_bytes(table, REGION_HOST), trainer->program_bytes,
                            trainer->comm->world);
    TRY(trainer_agree(trainer, region_memory_allocate(&trainer->memory)));
    enum status status = engine_bind(&trainer->engine, table, &trainer->stream, trainer->comm,
                                     trainer->host_device ? trainer->host_device : trainer->device);
    return trainer_agree(trainer, status);
}

static enum status read_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                float *out) {
    const struct trainer *trainer = context;
    (void)kind; // only master weights are read
    return weights_read_span(&trainer->weights, unit, begin, end, out);
}

static enum status make_weights(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                                float *out) {
    const struct trainer *trainer = context;
    (void)kind;
    params_init_span(&trainer->params, (uint64_t)trainer->config->train.seed, unit, begin, end, out);
    return STATUS_OK;
}

// The weights that a run begins with: drawn, or model.init_from's.
static enum status find_weights(struct trainer *trainer, struct checkpoint_source *source) {
    *source = (struct checkpoint_source){.context = trainer, .read = make_weights};
    if (!trainer->config->model.init_from[0])
        return STATUS_OK;
    source->read = read_weights;
    if (!trainer->weights.path) { // find_model_sizes saw a checkpoint that find_checkpoint did not open
        TRY(initial_weights_open(&trainer->weights, trainer->config));
        TRY(weights_bind(&trainer->weights, &trainer->params));
    }
    if (trainer_leads(trainer) && trainer->weights.uses_average)
        log_info("model.init_from: the weights' average over %lld updates",
                 (long long)trainer->weights.checkpoint->run.average.n);
    return STATUS_OK;
}

static enum status load_weights(struct trainer *trainer) {
    struct checkpoint_source source;
    TRY(trainer_agree(trainer, find_weights(trainer, &source)));
    return model_states_load(&trainer->engine.state, &trainer->stream, &source, false);
}

// What is later than the checkpoint is of steps that will be done again.
static enum status clear_later(struct trainer *trainer) {
    const struct run_best *best = &trainer->run.best;
    if (!trainer_leads(trainer))
        return STATUS_OK;
    TRY(trainer_check_folder(trainer));
    TRY(checkpoint_set_aside_later(trainer->folder.checkpoints, trainer->step));
    checkpoint_name_best(trainer->folder.checkpoints, best->sequences > 0 ? best->step : -1);
    return STATUS_OK;
}

static enum status load_state(struct trainer *trainer) {
    if (trainer->resumed) { // what cannot be loaded leaves the folder as it is
        TRY(trainer_load_states(trainer, trainer->resumed));
        TRY(trainer_agree(trainer, clear_later(trainer)));
    } else {
        TRY(load_weights(trainer));
    }
    checkpoint_close(trainer->resumed);
    weights_close(&trainer->weights);
    trainer->resumed = NULL;
    trainer->weights = (struct weights){0};
    return STATUS_OK;
}

// ---- setup

// What the training loss has beyond the cross entropy.
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
        log_info("the training loss is with %s; evaluations are without", list.data);
    text_free(&list);
}

// When bulk collectives run. Stages 0 and 1 reduce a bucket as soon as backward has filled it: one that holds
// all units but the first, whose gradients come last, is not full before.
static void describe_overlap(const struct trainer *trainer, struct text *when) {
    const struct config *config = trainer->config;
    const struct params *params = &trainer->params;
    const long long bucket = config->zero_optimization.reduce_bucket_size,
                    most = (long long)(params->n_elements - params->units[0].elements);
    if (!config->zero_optimization.overlap_comm)
        text_add(when, "between computations");
    else if (config->zero_optimization.stage >= 2 || bucket <= most)
        text_add(when, "while computing");
    else
        text_add(when,
                 "after computing: zero_optimization.reduce_bucket_size=%lld holds the model; at most %lld "
                 "lets stages 0 and 1 reduce while backward computes",
                 bucket, most);
}

static void describe_ranks(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const struct comm *comm = trainer->comm;
    struct text when = {0};
    if (comm->world == 1)
        return;
    describe_overlap(trainer, &when);
    log_info("ranks: %d, %d on this machine; ZeRO stage %lld, partition %s, communication %s", comm->world,
             comm->local_world, (long long)config->zero_optimization.stage,
             config_partition_name(config->zero_optimization.partition), when.data);
    text_free(&when);
    if (comm->path_text[0])
        log_info("ranks exchange %s", comm->path_text);
}

static void describe(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    log_info("device: %s; %s, GEMM %.0f GFLOP/s%s", trainer->device->description, dtype_name(trainer->type),
             trainer->gemm_rate / 1e9, trainer->comm->world > 1 ? " in total" : "");
    if (trainer->dense_peak > 0)
        log_info("utilization (MFU) is of the dense peak, %.0f GFLOP/s; GEMM is %.0f%% of it",
                 trainer->dense_peak / 1e9, 100 * trainer->gemm_rate / trainer->dense_peak);
    else if (trainer->device->place == REGION_DEVICE)
        log_info("the dense peak of this GPU is not known: utilization is of the measured GEMM rate");
    describe_ranks(trainer);
    bool asked = config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU ||
                 config->top.offload_activations == CONFIG_OFFLOAD_CPU;
    if (asked && trainer->device->place == REGION_HOST)
        log_info("offload: ignored, as the device is the CPU and everything is in host memory");
    struct text line = {0};
    model_sizes_print(&trainer->params, &line);
    log_info("%s", line.data);
    text_free(&line);
    if (config->train.ema.type != CONFIG_EMA_NONE)
        log_info("evaluations use the exponential average of the weights (train.ema)");
    else if (optimizer_averages(config))
        log_info("evaluations use the average of the weights that schedule-free AdamW makes");
    trainer_describe_data(trainer);
    trainer_describe_tasks(trainer);
    trainer_describe_micro_batch(trainer);
    describe_regularization(config);
}

static void describe_groups(const struct trainer *trainer) {
    struct text lines = {0};
    if (!trainer_leads(trainer) || trainer->config->optimizer.groups.n == 0)
        return;
    optimizer_groups_print(&trainer->engine.state.stage.groups, trainer->config, &trainer->params, &lines);
    log_info("%s", lines.data);
    text_free(&lines);
}

// Opens the run folder and checks that it is the same on all ranks.
static enum status open_folder(struct trainer *trainer) {
    const char *path = trainer->config->run.dir;
    run_folder_join(&trainer->folder, path);
    TRY(trainer_agree(trainer, trainer_leads(trainer) ? run_folder_open(&trainer->folder) : STATUS_OK));
    return run_folder_meet(&trainer->folder, trainer->comm);
}

// A run that cannot save must fail now, not when its first checkpoint is due.
static enum status try_folder(const struct trainer *trainer) {
    return run_folder_try(&trainer->folder, trainer->config, trainer->comm->rank, trainer_leads(trainer));
}

static enum status begin_session(struct trainer *trainer) {
    struct session *session = &trainer->session;
    *session = (struct session){.began = clock_wall_s(),
                                .step = trainer->step,
                                .ranks = trainer->comm->world,
                                .threads = trainer->device->n_threads,
                                .parameters = (double)trainer->params.n_weights,
                                .gemm_flops_per_s = trainer->gemm_rate,
                                .dense_peak_flops = trainer->dense_peak};
    if (gethostname(session->machine, sizeof session->machine - 1) != 0)
        session->machine[0] = '\0';
    snprintf(session->device, sizeof session->device, "%s", trainer->device->description);
    snprintf(session->compute, sizeof session->compute, "%s", dtype_name(trainer->type));
    snprintf(session->version, sizeof session->version, "%s", checkpoint_version());
    return sessions_begin(trainer->folder.path, session);
}

void trainer_end_session(struct trainer *trainer, enum status status) {
    struct session *session = &trainer->session;
    if (session->began == 0 || trainer_check_folder(trainer) != STATUS_OK) // which has ended the run
        return;
    session->ended = clock_wall_s();
    session->end_step = trainer->step;
    session->total = trainer->last_step;
    session->end = status == STATUS_OK        ? SESSION_FINISHED
                   : status == STATUS_STOPPED ? SESSION_STOPPED
                                              : SESSION_FAILED;
    if (session->end == SESSION_FAILED)
        snprintf(session->message, sizeof session->message, "%s", status_message());
    if (sessions_end(trainer->folder.path, session) != STATUS_OK && session->end != SESSION_FAILED) {
        log_warning("%s", status_message());
        status_clear();
    }
}

static enum status begin_folder(struct trainer *trainer) {
    if (!trainer_leads(trainer))
        return STATUS_OK;
    TRY(trainer_check_folder(trainer));
    TRY(run_folder_begin(&trainer->folder, trainer->config));
    describe(trainer);
    return begin_session(trainer);
}

static enum status begin_metrics(struct trainer *trainer) {
    struct metrics *metrics = &trainer->metrics;
    if (!trainer_leads(trainer))
        return STATUS_OK;
    TRY(trainer_check_folder(trainer));
    TRY(metrics_open(metrics, trainer->folder.path, trainer->step));
    // A run that resumes from another one's checkpoint has no lines of the steps before.
    if (metrics->n_missing > 0 && (metrics->last_step > 0 || trainer->saved_step >= 0))
        log_warning(
            "%s/metrics.jsonl was cut: it lacks the lines of %lld of the steps up to %lld, which are done "
            "and are not repeated; reports have no figures of them",
            trainer->folder.path, (long long)metrics->n_missing, (long long)trainer->step);
    return STATUS_OK;
}

enum status trainer_setup(struct trainer *trainer, bool *complete) {
    *complete = false;
    trainer->folder.lock = -1;
    // A missing file is named as such, before what would follow from it differs; so are those found beside
    // others.
    TRY(check_same_config(trainer));
    TRY(check_same_files(trainer));
    TRY(trainer_agree(trainer, find_inputs(trainer)));
    TRY(check_same_files(trainer));
    TRY(trainer_agree(trainer, resolve_config(trainer)));
    TRY(check_same_config(trainer));
    TRY(open_folder(trainer));
    TRY(trainer_agree(trainer, try_folder(trainer)));
    TRY(trainer_find_resume(trainer));
    trainer_pacing_resume(trainer);
    *complete = trainer->resumed && trainer->step >= trainer->last_step;
    if (*complete)
        return STATUS_OK;
    TRY(trainer_open_devices(trainer));
    TRY(choose_type(trainer));
    TRY(trainer_choose_micro_batch(trainer));
    trainer_take_batches(trainer);
    TRY(trainer_open_data(trainer)); // whose batches have the chosen size
    TRY(trainer_open_tasks(trainer));
    TRY(trainer_choose_attention(trainer));
    TRY(trainer_measure_rate(trainer));
    TRY(trainer_agree(trainer, trainer_check_minutes(trainer)));
    TRY(trainer_agree(trainer, begin_folder(trainer)));
    TRY(make_model(trainer));
    describe_groups(trainer);
    trainer_describe_resume(trainer);
    trainer_describe_schedule(trainer);
    TRY(load_state(trainer));
    trainer_graphs_init(trainer);
    TRY(trainer_agree(trainer, begin_metrics(trainer)));
    return trainer_agree(trainer, trainer_profile_start(trainer));
}

void trainer_free(struct trainer *trainer) {
    metrics_close(&trainer->metrics);
    loader_delete(trainer->train);
    loader_delete(trainer->val);
    free(trainer->val_losses);
    trainer_tasks_free(&trainer->tasks);
    free(trainer->source_tokens);
    run_state_free(&trainer->run);
    // A step that failed half-way leaves operations and collectives in flight. Let them end before their
    // memory is freed.
    stream_drain(&trainer->stream);
    comm_detach(trainer->comm);
    trainer_graphs_free(trainer);
    profiler_free(&trainer->profiler);
    engine_free(&trainer->engine);
    if (trainer->device) {
        region_memory_free(&trainer->memory);
        stream_free(&trainer->stream);
        debug_sync_end(trainer->device);
        device_close(trainer->device);
    }
    debug_sync_end(trainer->comm_device);
    device_close(trainer->comm_device);
    device_close(trainer->host_device);
    params_free(&trainer->params);
    checkpoint_close(trainer->resumed);
    weights_close(&trainer->weights);
    tokenizer_delete(trainer->tokenizer);
    free(trainer->found_tokenizer);
    run_folder_close(&trainer->folder);
    log_close_file();
}
