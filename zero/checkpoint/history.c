// See zero/checkpoint/history.h. The JSON was sealed with the manifest; its bounds are checked all the same.
#include "zero/checkpoint/history.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define MAX_WHOLE (INT64_C(1) << 53)

void history_free(struct history *history) {
    for (int i = 0; i < history->n_changes; i++) {
        free(history->changes[i].option);
        free(history->changes[i].was);
        free(history->changes[i].is);
    }
    free(history->changes);
    *history = (struct history){0};
}

enum status history_add_change(struct history *history, int64_t step, const char *option, const char *was,
                               const char *is) {
    struct history_change *grown =
        realloc(history->changes, ((size_t)history->n_changes + 1) * sizeof *history->changes);
    if (!grown)
        return FAIL(STATUS_FAILED, "out of memory for the history of the run");
    history->changes = grown;
    struct history_change *change = &grown[history->n_changes++];
    *change = (struct history_change){step, strdup(option), strdup(was), strdup(is)};
    return change->option && change->was && change->is
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "out of memory for the history of the run");
}

// ---- printing

void history_print(const struct history *history, struct text *out) {
    char number[2][32];
    if (!history)
        return;
    for (int i = 0; i < history->n_changes; i++) {
        const struct history_change *change = &history->changes[i];
        text_add(out, "%s{\"step\": %" PRId64 ", \"option\": ", i ? ",\n    " : "  \"history\": [\n    ",
                 change->step);
        json_add_string(out, change->option);
        text_add(out, ", \"was\": ");
        json_add_string(out, change->was);
        text_add(out, ", \"is\": ");
        json_add_string(out, change->is);
        text_add(out, "}%s", i == history->n_changes - 1 ? "],\n" : "");
    }
    if (history->best.sequences > 0)
        text_add(out,
                 "  \"best\": {\"step\": %" PRId64 ", \"val_loss\": %s, \"val_sequences\": %" PRId64 "},\n",
                 history->best.step, text_double(number[0], history->best.loss), history->best.sequences);
    if (history->max_minutes > 0) {
        const struct history_decision *decision = &history->decision;
        text_add(out, "  \"pacing\": {\"max_minutes\": %s, \"spent_s\": %s, ",
                 text_double(number[0], history->max_minutes), text_double(number[1], history->spent_s));
        text_add(out,
                 "\"step\": %" PRId64 ", \"total\": %" PRId64 ", \"position\": %s, \"decided_s\": %s},\n",
                 decision->step, decision->total, text_double(number[0], decision->position),
                 text_double(number[1], decision->spent_s));
    }
}

// ---- parsing

static enum status get_number(const cJSON *object, const char *key, double maximum, const char *source,
                              double *out) {
    TRY(json_get_number(object, key, source, out));
    if (!(*out >= 0 && *out <= maximum))
        return FAIL(STATUS_INVALID, "%s: %s is %g, expected 0 to %g", source, key, *out, maximum);
    return STATUS_OK;
}

static enum status parse_changes(struct history *history, const cJSON *manifest, int64_t step,
                                 const char *source) {
    const cJSON *array, *item;
    if (!cJSON_GetObjectItemCaseSensitive(manifest, "history"))
        return STATUS_OK;
    TRY(json_get_array(manifest, "history", source, &array));
    cJSON_ArrayForEach(item, array) {
        const char *option, *was, *is;
        int64_t at;
        TRY(json_get_integer(item, "step", 0, step, source, &at));
        TRY(json_get_string(item, "option", source, &option));
        TRY(json_get_string(item, "was", source, &was));
        TRY(json_get_string(item, "is", source, &is));
        TRY(history_add_change(history, at, option, was, is));
    }
    return STATUS_OK;
}

static enum status parse_best(struct history *history, const cJSON *manifest, int64_t step,
                              const char *source) {
    const cJSON *object;
    if (!cJSON_GetObjectItemCaseSensitive(manifest, "best"))
        return STATUS_OK;
    TRY(json_get_object(manifest, "best", source, &object));
    TRY(json_get_integer(object, "step", 0, step, source, &history->best.step));
    TRY(json_get_integer(object, "val_sequences", 1, MAX_WHOLE, source, &history->best.sequences));
    return get_number(object, "val_loss", 1e300, source, &history->best.loss);
}

static enum status parse_pacing(struct history *history, const cJSON *manifest, int64_t step,
                                const char *source) {
    struct history_decision *decision = &history->decision;
    const cJSON *object;
    if (!cJSON_GetObjectItemCaseSensitive(manifest, "pacing"))
        return STATUS_OK;
    TRY(json_get_object(manifest, "pacing", source, &object));
    TRY(get_number(object, "max_minutes", 1e9, source, &history->max_minutes));
    TRY(get_number(object, "spent_s", 1e300, source, &history->spent_s));
    TRY(json_get_integer(object, "step", 0, step, source, &decision->step));
    TRY(json_get_integer(object, "total", decision->step, MAX_WHOLE, source, &decision->total));
    TRY(get_number(object, "position", 1, source, &decision->position));
    return get_number(object, "decided_s", 1e300, source, &decision->spent_s);
}

enum status history_parse(struct history *history, const cJSON *manifest, int64_t step, const char *source) {
    TRY(parse_changes(history, manifest, step, source));
    TRY(parse_best(history, manifest, step, source));
    return parse_pacing(history, manifest, step, source);
}
