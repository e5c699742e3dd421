// See infer/export/export.h. Formats are in files of their own.
#include "infer/export/export.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "data/tokenizer_export.h"
#include "data/tokenizer_identity.h"
#include "infer/export/internal.h"

#define LIVE_S   0.2  // between two updates of the progress line
#define REPORT_S 30.0 // between two messages where there is no such line

// ---- the source

static void report_progress(struct exporter *exporter) {
    const double now = clock_monotonic_s(), interval = log_is_terminal() ? LIVE_S : REPORT_S;
    if (now - exporter->reported < interval)
        return;
    exporter->reported = now;
    struct log_field field = {.rank = 0};
    snprintf(field.text, sizeof field.text, "%.0f%% of the weights read",
             100 * (double)exporter->done / (double)exporter->total);
    if (log_is_terminal())
        log_live(&field, 1);
    else
        log_info("%s: %s", exporter->folder, field.text);
}

static enum status read_param(void *context, int index, size_t first, size_t n, float *out) {
    struct exporter *exporter = context;
    const struct param *param = &exporter->params.params[index];
    if (exporter->options->is_stopped && exporter->options->is_stopped())
        return FAIL(STATUS_FAILED, "stopped by a signal; no file of %s has changed", exporter->folder);
    TRY(weights_read_span(&exporter->weights, param->unit, param->offset + first, param->offset + first + n,
                          out));
    exporter->done += n;
    report_progress(exporter);
    return STATUS_OK;
}

static enum status load_found(struct exporter *exporter, struct tokenizer **tokenizer,
                              struct tokenizer_identity *identity) {
    char *path;
    *tokenizer = NULL;
    TRY(weights_find_tokenizer(&exporter->weights, &path));
    enum status status = path ? tokenizer_load(path, tokenizer) : STATUS_OK;
    if (*tokenizer)
        *identity = tokenizer_identify(*tokenizer, path);
    free(path);
    return status;
}

// The tokenizer that was named; another one than that of the weights is refused.
static enum status load_given(struct exporter *exporter, const char *path) {
    struct tokenizer *found;
    struct tokenizer_identity own = {0};
    char ours[TOKENIZER_DESCRIPTION_BYTES], theirs[TOKENIZER_DESCRIPTION_BYTES];
    TRY(tokenizer_load(path, &exporter->tokenizer));
    const struct tokenizer_identity given = tokenizer_identify(exporter->tokenizer, path);
    TRY(load_found(exporter, &found, &own));
    tokenizer_delete(found);
    if (!tokenizer_identity_differs(&own, &given))
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "%s is not the tokenizer of %s: it is %s, the model's is %s; leave --tokenizer out", path,
                exporter->path, tokenizer_identity_describe(&given, theirs),
                tokenizer_identity_describe(&own, ours));
}

static enum status open_tokenizer(struct exporter *exporter) {
    const char *path = exporter->options->tokenizer;
    struct tokenizer_identity identity;
    if (path && strcmp(path, "none") == 0)
        return STATUS_OK;
    TRY(path ? load_given(exporter, path) : load_found(exporter, &exporter->tokenizer, &identity));
    if (!exporter->tokenizer) {
        log_warning("%s has no tokenizer, and none is exported; name one with --tokenizer FILE",
                    exporter->path);
        return STATUS_OK;
    }
    const int n_ids = tokenizer_n_ids(exporter->tokenizer);
    if (n_ids > exporter->params.config.vocab_size)
        return FAIL(
            STATUS_INVALID,
            "the tokenizer has %d ids, and %s has a vocab_size of %d; name the model's tokenizer with "
            "--tokenizer FILE, or export without one: --tokenizer none",
            n_ids, exporter->path, exporter->params.config.vocab_size);
    return STATUS_OK;
}

// ---- the export

static enum status check_type(const struct export_options *options) {
    const bool fits = options->type == VALUE_F32 || options->type == VALUE_BF16 ||
                      options->type == VALUE_F16 ||
                      (options->type == VALUE_Q8_0 && options->format == EXPORT_GGUF);
    static const char *const expected[N_EXPORT_FORMATS] = {"fp32, bf16 or fp16", "fp32, bf16, fp16 or q8_0"};
    return fits ? STATUS_OK
                : FAIL(STATUS_INVALID, "%s files cannot hold %s, expected --dtype %s",
                       export_format_name(options->format), value_type_name(options->type),
                       expected[options->format]);
}

enum status export_run(struct exporter *exporter, const char *path, const char *folder,
                       const struct export_options *options) {
    *exporter = (struct exporter){.path = path, .folder = folder, .options = options};
    TRY(check_type(options));
    TRY(weights_open(&exporter->weights, path));
    TRY(weights_choose(&exporter->weights, options->weights));
    TRY(params_init(&exporter->params, &exporter->weights.config));
    TRY(weights_bind(&exporter->weights, &exporter->params));
    TRY(open_tokenizer(exporter));
    exporter->total = exporter->params.n_weights;
    exporter->reported = clock_monotonic_s();
    exporter->source = (struct param_source){&exporter->params, path, exporter, read_param};
    TRY(export_make_folder(exporter));
    enum status status = options->format == EXPORT_HF ? export_huggingface(exporter) : export_gguf(exporter);
    log_live_end();
    return status == STATUS_OK ? export_commit(exporter) : status;
}

void export_free(struct exporter *exporter) {
    export_remove_temporary(exporter);
    file_list_free(&exporter->files);
    tokenizer_delete(exporter->tokenizer);
    weights_close(&exporter->weights);
    params_free(&exporter->params);
}
