// See the header. The JSON was sealed with the manifest; its bounds are checked all the same.
#include "zero/checkpoint/spike_record.h"

#include <inttypes.h>
#include <math.h>

#include "base/json.h"

#define MAX_WHOLE (INT64_C(1) << 53)

static void print_figures(const struct spike_figures *figures, struct text *out) {
    char number[2][32];
    text_add(out, "[%s, %s]", text_double(number[0], figures->loss), text_double(number[1], figures->norm));
}

void spike_record_print(const struct spike_record *record, struct text *out) {
    if (!record || (record->n == 0 && !record->has_newest && record->seen == 0))
        return;
    text_add(out,
             "  \"spikes\": {\"seen\": %" PRId64 ", \"skipped\": %" PRId64 ", \"consecutive\": %" PRId64
             ",\n    ",
             record->seen, record->skipped, record->consecutive);
    if (record->has_newest) {
        text_add(out, "\"newest\": ");
        print_figures(&record->newest, out);
        text_add(out, ", ");
    }
    text_add(out, "\"window\": [");
    for (int i = 0; i < record->n; i++) {
        text_add(out, i == 0 ? "" : i % 4 == 0 ? ",\n    " : ", ");
        print_figures(&record->window[i], out);
    }
    text_add(out, "]},\n");
}

static enum status parse_figures(const cJSON *pair, const char *source, struct spike_figures *out) {
    const cJSON *loss = cJSON_GetArrayItem(pair, 0), *norm = cJSON_GetArrayItem(pair, 1);
    if (!cJSON_IsArray(pair) || cJSON_GetArraySize(pair) != 2 || !cJSON_IsNumber(loss) ||
        !cJSON_IsNumber(norm) || !isfinite(loss->valuedouble) || !isfinite(norm->valuedouble))
        return FAIL(STATUS_INVALID, "%s: an element of spikes is not a list of a loss and a norm", source);
    *out = (struct spike_figures){loss->valuedouble, norm->valuedouble};
    return STATUS_OK;
}

enum status spike_record_parse(struct spike_record *record, const cJSON *manifest, int64_t step,
                               const char *source) {
    const cJSON *object, *window, *pair;
    if (!cJSON_GetObjectItemCaseSensitive(manifest, "spikes"))
        return STATUS_OK;
    TRY(json_get_object(manifest, "spikes", source, &object));
    TRY(json_get_integer(object, "seen", 0, MAX_WHOLE, source, &record->seen));
    TRY(json_get_integer(object, "skipped", 0, step, source, &record->skipped));
    TRY(json_get_integer(object, "consecutive", 0, record->skipped, source, &record->consecutive));
    const cJSON *newest = cJSON_GetObjectItemCaseSensitive(object, "newest");
    if (newest)
        TRY(parse_figures(newest, source, &record->newest));
    record->has_newest = newest != NULL;
    TRY(json_get_array(object, "window", source, &window));
    if (cJSON_GetArraySize(window) > SPIKE_WINDOW_MOST)
        return FAIL(STATUS_INVALID, "%s: the window of spikes has %d steps, expected at most %d", source,
                    cJSON_GetArraySize(window), SPIKE_WINDOW_MOST);
    cJSON_ArrayForEach(pair, window) {
        TRY(parse_figures(pair, source, &record->window[record->n]));
        record->n++;
    }
    return STATUS_OK;
}
