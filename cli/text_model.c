#include "cli/text_model.h"

enum status text_model_open(struct session *session, const struct session_options *options) {
    TRY(session_open(session, options));
    return session->tokenizer
               ? STATUS_OK
               : FAIL(STATUS_INVALID, "%s has no tokenizer; give one with --tokenizer FILE", options->path);
}

enum status text_model_load(struct session *session, const struct generator_options *options,
                            struct generator **generator) {
    TRY(generator_new(&session->params, options, session->device, &session->memory.table, generator));
    TRY(session_load(session));
    TRY(generator_bind(*generator, &session->memory.table, &session->stream));
    if (session->masks_documents)
        generator_set_end_of_text(*generator, tokenizer_document_start(session->tokenizer));
    return STATUS_OK;
}
