// See the header. The JSON was sealed with the manifest; its bounds are checked all the same.
#include "zero/checkpoint/noise_record.h"

#include <inttypes.h>
#include <math.h>

#include "base/json.h"

#define MAX_WHOLE (INT64_C(1) << 53)

void noise_record_print(const struct noise_record *record, struct text *out) {
    char number[2][32];
    if (!record || record->n == 0)
        return;
    text_add(out,
             "  \"noise_scale\": {\"variance\": %s, \"square\": %s, \"n\": %" PRId64 ", \"n_since\": %" PRId64
             ", \"batch_sizes\": [",
             text_double(number[0], record->variance), text_double(number[1], record->square), record->n,
             record->n_since);
    for (int i = 0; i < record->grown.n; i++)
        text_add(out, "%s[%" PRId64 ", %" PRId64 "]", i ? ", " : "", record->grown.stages[i].step,
                 record->grown.stages[i].value);
    text_add(out, "]},\n");
}

static enum status parse_stage(const cJSON *item, int64_t lowest, int64_t step, const char *source,
                               struct config_stage *out) {
    const cJSON *at = cJSON_GetArrayItem(item, 0), *value = cJSON_GetArrayItem(item, 1);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsNumber(at) ||
        !cJSON_IsNumber(value) || !(at->valuedouble >= (double)lowest && at->valuedouble <= (double)step) ||
        !(value->valuedouble >= 1 && value->valuedouble <= 1e9) ||
        at->valuedouble != floor(at->valuedouble) || value->valuedouble != floor(value->valuedouble))
        return FAIL(STATUS_INVALID,
                    "%s: an element of noise_scale's batch_sizes is not a list of a step and a batch size",
                    source);
    *out = (struct config_stage){(int64_t)at->valuedouble, (int64_t)value->valuedouble};
    return STATUS_OK;
}

enum status noise_record_parse(struct noise_record *record, const cJSON *manifest, int64_t step,
                               const char *source) {
    const cJSON *object, *sizes, *item;
    struct config_stages *grown = &record->grown;
    if (!cJSON_GetObjectItemCaseSensitive(manifest, "noise_scale"))
        return STATUS_OK;
    TRY(json_get_object(manifest, "noise_scale", source, &object));
    TRY(json_get_number(object, "variance", source, &record->variance));
    TRY(json_get_number(object, "square", source, &record->square));
    TRY(json_get_integer(object, "n", 1, MAX_WHOLE, source, &record->n));
    TRY(json_get_integer(object, "n_since", 0, record->n, source, &record->n_since));
    TRY(json_get_array(object, "batch_sizes", source, &sizes));
    if (cJSON_GetArraySize(sizes) > CONFIG_SCHEDULE_MOST)
        return FAIL(STATUS_INVALID, "%s: noise_scale has %d batch sizes, expected at most %d", source,
                    cJSON_GetArraySize(sizes), CONFIG_SCHEDULE_MOST);
    cJSON_ArrayForEach(item, sizes) {
        // The last one may hold from the step after the checkpoint's on.
        TRY(parse_stage(item, grown->n > 0 ? grown->stages[grown->n - 1].step + 1 : 0, step + 1, source,
                        &grown->stages[grown->n]));
        grown->n++;
    }
    return STATUS_OK;
}
