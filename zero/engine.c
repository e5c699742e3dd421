// Each member of struct engine plans and binds its own memory. The engine decides which members a rank has.
#include "zero/engine.h"

#include "model/generate.h"
#include "zero/optimizer/noise_probe.h"

bool engine_has_generator(const struct engine_options *options) {
    return options->config->train.sample_every > 0 &&
           (options->rank == 0 || stage_shards_params(options->config));
}

size_t engine_links_bytes(const struct engine_options *options) {
    return comm_memory_bytes(options->world, options->config->comm.shared_memory ? options->local_world : 1,
                             options->for_gpu);
}

enum status engine_plan_states(struct engine *engine, const struct engine_options *options,
                               struct region_table *table) {
    const struct stage stage = {.config = options->config,
                                .params = options->params,
                                .type = options->type,
                                .device = options->device,
                                .rank = options->rank,
                                .world = options->world,
                                .partition = options->partition};
    TRY(model_states_init(&engine->state, &stage, table));
    return optimizer_init(&engine->optimizer, &engine->state, table);
}

enum status engine_plan_model(struct engine *engine, const struct engine_options *options,
                              struct region_table *table) {
    const struct config *config = options->config;
    struct gpt_options gpt_options = {.type = options->type,
                                      .B = (int)config->train.micro_batch_size,
                                      .T = (int)config->train.seq_len,
                                      .recompute = stage_recompute(config),
                                      .attention = options->attention,
                                      .offload_activations =
                                          config->top.offload_activations == CONFIG_OFFLOAD_CPU,
                                      .mask_documents = config->data.mask_documents,
                                      .dropout = (float)config->train.dropout,
                                      .dropout_seed = (uint64_t)config->train.seed,
                                      .label_smoothing = (float)config->train.label_smoothing,
                                      .z_loss = (float)config->train.z_loss,
                                      .training = true,
                                      .scoring = config->eval.tasks.n_paths > 0};
    TRY(gpt_new(options->params, &gpt_options, options->device, table, &engine->gpt));
    if (engine_has_generator(options))
        TRY(generator_new(options->params,
                          &(struct generator_options){.type = options->type,
                                                      .positions = (int)config->train.seq_len,
                                                      .sequences = 1,
                                                      .mask_documents = config->data.mask_documents,
                                                      .attention = options->attention},
                          options->device, table, &engine->generator));
    engine->noise_region = -1;
    if (config->train.noise_scale_every > 0)
        TRY(region_add(table, REGION_DATA, options->device->place, DTYPE_F64,
                       noise_probe_elements(options->params), &engine->noise_region,
                       "noise scale: sums of squares"));
    if (options->world == 1)
        return STATUS_OK;
    enum region_place place = options->device->place;
    TRY(region_add_external(
        table, REGION_COMMUNICATION, place,
        comm_sums_bytes(options->world, place, options->for_gpu, options->by_nccl && place == REGION_DEVICE),
        "sums between ranks"));
    return region_add_external(table, REGION_COMMUNICATION, REGION_HOST, engine_links_bytes(options),
                               "links between ranks");
}

enum status engine_plan(struct engine *engine, const struct engine_options *options,
                        struct region_table *table) {
    *engine = (struct engine){0};
    TRY(engine_plan_states(engine, options, table));
    return engine_plan_model(engine, options, table);
}

struct comm_volume engine_volume(const struct engine *engine, int64_t n_micro_batches) {
    struct comm_volume volume = {0};
    if (engine->state.stage.world == 1)
        return volume;
    gradients_volume(&engine->state.gradients, n_micro_batches, &volume);
    parameters_volume(&engine->state.parameters, n_micro_batches, &volume);
    muon_volume(&engine->optimizer.muon, &volume);
    return volume;
}

enum status engine_bind(struct engine *engine, const struct region_table *table, struct stream *stream,
                        struct comm *comm, struct device *host) {
    TRY(model_states_bind(&engine->state, table, comm, host));
    TRY(optimizer_bind(&engine->optimizer, table));
    TRY(gpt_bind(engine->gpt, table, stream));
    engine->noise_sums = engine->noise_region >= 0 ? region_data(table, engine->noise_region) : NULL;
    if (engine->generator)
        TRY(generator_bind(engine->generator, table, stream));
    return STATUS_OK;
}

void engine_free(struct engine *engine) {
    optimizer_free(&engine->optimizer);
    model_states_free(&engine->state);
    gpt_delete(engine->gpt);
    generator_delete(engine->generator);
    *engine = (struct engine){0};
}
