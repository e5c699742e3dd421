// Weights are read as fp32, chunk by chunk, and converted on the device to the compute dtype (session->type).
#include "infer/session.h"

#include "base/parallel.h"
#include "kernels/ops.h"

static enum status find_document_start(struct session *session) {
    const struct checkpoint *checkpoint = session->weights.checkpoint;
    session->masks_documents = checkpoint && checkpoint->config.data.mask_documents;
    if (session->masks_documents && !session->tokenizer)
        return FAIL(STATUS_INVALID,
                    "the model was trained with data.mask_documents, which needs the id of end-of-text, and "
                    "it has no tokenizer; name its tokenizer with --tokenizer FILE");
    session->document_start = session->masks_documents ? tokenizer_document_start(session->tokenizer) : -1;
    return STATUS_OK;
}

enum status session_open(struct session *session, const struct session_options *options) {
    *session = (struct session){0};
    TRY(weights_open(&session->weights, options->path));
    TRY(weights_choose(&session->weights, options->weights));
    TRY(params_init(&session->params, &session->weights.config));
    TRY(weights_bind(&session->weights, &session->params));
    TRY(weights_load_tokenizer(&session->weights, options->tokenizer, &session->tokenizer,
                               &session->identity));
    if (options->needs_tokenizer && !session->tokenizer)
        return FAIL(STATUS_INVALID, "%s has no tokenizer; give one with --tokenizer FILE", options->path);
    TRY(find_document_start(session));
    if (options->threads > 0)
        parallel_set_threads((int)options->threads);
    TRY(device_open(options->device, (int)options->threads, 0, &session->device));
    TRY(stream_init(&session->stream, session->device));
    session->type = session->weights.checkpoint ? session->weights.checkpoint->compute : DTYPE_F32;
    session->hooks = unsharded_hooks(&session->unsharded);
    region_memory_init(&session->memory, session->device);
    return region_add(&session->memory.table, REGION_PARAMS, session->device->place, session->type,
                      params_memory(&session->params, session->device->place), &session->span_region,
                      "params");
}

static enum status load_unit(struct session *session, int unit, float *chunk, float *staged) {
    const struct param_unit *u = &session->params.units[unit];
    for (size_t begin = 0; begin < u->elements; begin += CHECKPOINT_CHUNK) {
        size_t n = u->elements - begin < CHECKPOINT_CHUNK ? u->elements - begin : CHECKPOINT_CHUNK;
        TRY(weights_read_span(&session->weights, unit, begin, begin + n, chunk));
        TRY(session->device->copy(&session->stream, staged, chunk, n * sizeof *chunk));
        TRY(session->device->ops->cast(
            &session->stream,
            &(struct cast_args){.out = session->span + (u->offset + begin) * dtype_size(session->type),
                                .x = staged,
                                .n = n,
                                .type = DTYPE_F32,
                                .out_type = session->type}));
        TRY(session->device->synchronize(&session->stream));
    }
    return STATUS_OK;
}

enum status session_load(struct session *session) {
    int chunk, staged;
    struct region_table *table = &session->memory.table;
    TRY(region_add(table, REGION_DATA, REGION_HOST, DTYPE_F32, CHECKPOINT_CHUNK, &chunk, "bounce"));
    TRY(region_add(table, REGION_DATA, session->device->place, DTYPE_F32, CHECKPOINT_CHUNK, &staged,
                   "staged"));
    TRY(region_memory_allocate(&session->memory));
    session->span = region_data(table, session->span_region);
    unsharded_init(&session->unsharded, &session->params, session->type, session->span, DTYPE_F32, NULL);
    for (int unit = 0; unit < session->params.n_units; unit++)
        TRY(load_unit(session, unit, region_data(table, chunk), region_data(table, staged)));
    weights_close(&session->weights);
    return STATUS_OK;
}

enum status session_load_generator(struct session *session, const struct generator_options *options,
                                   struct generator **generator) {
    TRY(generator_new(&session->params, options, session->device, &session->memory.table, generator));
    TRY(session_load(session));
    TRY(generator_bind(*generator, &session->memory.table, &session->stream));
    if (session->masks_documents)
        generator_set_end_of_text(*generator, session->document_start);
    return STATUS_OK;
}

void session_close(struct session *session) {
    if (session->device) {
        region_memory_free(&session->memory);
        stream_free(&session->stream);
        device_close(session->device);
    }
    unsharded_free(&session->unsharded);
    params_free(&session->params);
    tokenizer_delete(session->tokenizer);
    weights_close(&session->weights);
    *session = (struct session){0};
}
