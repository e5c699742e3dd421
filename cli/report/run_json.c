#include "cli/report/run_json.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/clean_text.h"

#define MOST_SAMPLES    40
#define SAMPLE_BYTES    ((size_t)4000) // of each sample
#define LARGEST_PROFILE ((size_t)256 << 20)
#define MOST_OPERATIONS 25

void run_json_add_string(struct text *out, const char *bytes, size_t n) {
    struct text clean = {0};
    clean_text_add(&clean, bytes, n);
    json_add_string(out, clean.data ? clean.data : "");
    out->failed |= clean.failed;
    text_free(&clean);
}

static void add_string(struct text *out, const char *name, const char *value) {
    text_add(out, ", \"%s\": ", name);
    run_json_add_string(out, value, strlen(value));
}

// digits: significant ones; JSON's null for what is not finite
static void add_value(struct text *out, double value, int digits) {
    if (isfinite(value))
        text_add(out, "%.*g", digits, value);
    else
        text_add(out, "null");
}

static void add_number(struct text *out, const char *name, double value) {
    text_add(out, ", \"%s\": ", name);
    add_value(out, value, 12);
}

// ---- curves

enum part { PART_MEAN, PART_LOW, PART_HIGH };

static void add_part(struct text *out, const struct series *series, int value, const char *name,
                     enum part part) {
    text_add(out, "%s\"%s\": [", part == PART_MEAN ? "" : ", ", name);
    for (int i = 0; i < series->n; i++) {
        const struct series_range *range = &series->buckets[i].ranges[value];
        text_add(out, i ? "," : "");
        add_value(out,
                  range->count == 0   ? NAN
                  : part == PART_MEAN ? range->sum / (double)range->count
                  : part == PART_LOW  ? range->low
                                      : range->high,
                  5);
    }
    text_add(out, "]");
}

// Whether any point has a value, and one that is not `usual`.
static bool has_news(const struct series *series, int value, double usual) {
    for (int i = 0; i < series->n; i++) {
        const struct series_range *range = &series->buckets[i].ranges[value];
        if (range->count > 0 && !(range->low == usual && range->high == usual))
            return true;
    }
    return false;
}

static void add_curve(struct text *out, const struct series *series, int value, const char *name) {
    text_add(out, ",\n  \"%s\": {", name);
    add_part(out, series, value, "mean", PART_MEAN);
    if (series->lines_per_bucket > 1) {
        add_part(out, series, value, "low", PART_LOW);
        add_part(out, series, value, "high", PART_HIGH);
    }
    text_add(out, "}");
}

// {"step": [...], "tokens": [...], "hours": [...], each curve}
//   usual   per value: a curve that has no other value is left out; NaN: it is kept
static void add_points(struct text *out, const struct series *series, const char *const *names,
                       const double *usual, int n_values) {
    text_add(out, "{\"step\": [");
    for (int i = 0; i < series->n; i++)
        text_add(out, "%s%lld", i ? "," : "", (long long)series->buckets[i].last);
    text_add(out, "], \"tokens\": [");
    for (int i = 0; i < series->n; i++) {
        text_add(out, i ? "," : "");
        add_value(out, series->buckets[i].tokens, 15);
    }
    text_add(out, "], \"hours\": [");
    for (int i = 0; i < series->n; i++) {
        text_add(out, i ? "," : "");
        add_value(out, series->buckets[i].hours, 7);
    }
    text_add(out, "]");
    for (int value = 0; value < n_values; value++)
        if (has_news(series, value, usual[value]))
            add_curve(out, series, value, names[value]);
    text_add(out, "}");
}

static void add_curves(struct text *out, const struct run_record *record) {
    static const char *const steps[N_STEP_VALUES] = {[STEP_LOSS] = "loss",
                                                     [STEP_GRAD_NORM] = "grad_norm",
                                                     [STEP_LR] = "lr",
                                                     [STEP_TOKENS_PER_S] = "tokens_per_s",
                                                     [STEP_MFU] = "mfu",
                                                     [STEP_MS] = "step_ms",
                                                     [STEP_LOSS_SCALE] = "loss_scale",
                                                     [STEP_COMM_SHARE] = "comm_share",
                                                     [STEP_BATCH_SIZE] = "batch_size"},
                             *const evals[N_EVAL_VALUES] = {[EVAL_LOSS] = "loss", [EVAL_BITS] = "bits"},
                             *const noise[N_NOISE_VALUES] = {[NOISE_SCALE] = "noise_scale"};
    static const double usual_evals[N_EVAL_VALUES] = {NAN, NAN};
    const double usual[SERIES_VALUES] = {[STEP_LOSS] = NAN,
                                         [STEP_GRAD_NORM] = NAN,
                                         [STEP_LR] = NAN,
                                         [STEP_TOKENS_PER_S] = NAN,
                                         [STEP_MFU] = 0,
                                         [STEP_MS] = NAN,
                                         [STEP_LOSS_SCALE] = 1,
                                         [STEP_COMM_SHARE] = 0,
                                         [STEP_BATCH_SIZE] = record->last.values[METRIC_BATCH_SIZE]};
    text_add(out, ",\n \"points\": ");
    add_points(out, &record->steps, steps, usual, N_STEP_VALUES);
    text_add(out, ",\n \"evals\": ");
    add_points(out, &record->evals, evals, usual_evals, N_EVAL_VALUES);
    text_add(out, ",\n \"noise\": ");
    add_points(out, &record->noise, noise, usual_evals, N_NOISE_VALUES);
    text_add(out, ",\n \"scores\": {");
    for (int i = 0; i < record->n_scores; i++) {
        text_add(out, i ? ",\n  " : "");
        run_json_add_string(out, record->scores[i].name, strlen(record->scores[i].name));
        text_add(out, ": ");
        add_points(out, &record->scores[i].series, (const char *const[]){"score"}, usual_evals, 1);
    }
    text_add(out, "}");
}

// ---- figures

// , "name": {"key": value, ...}; the values of the last step
struct figure {
    const char *name;
    double value;
};
static void add_object(struct text *out, const char *name, const struct figure *figures, int n) {
    text_add(out, ",\n \"%s\": {", name);
    for (int i = 0; i < n; i++) {
        text_add(out, "%s\"%s\": ", i ? ", " : "", figures[i].name);
        add_value(out, figures[i].value, 12);
    }
    text_add(out, "}");
}
#define ADD_OBJECT(out, name, figures)                                                                       \
    add_object(out, name, figures, (int)(sizeof(figures) / sizeof *(figures)))

static void add_figures(struct text *out, const struct run_record *record) {
    const double *last = record->last.values;
    const bool any = record->n_steps > 0;
    const struct figure figures[] = {{"loss", run_record_recent_loss(record)},
                                     {"val_loss", record->last_val},
                                     {"best_val_loss", record->best_loss},
                                     {"best_val_step", record->n_evals > 0 ? (double)record->best_step : NAN},
                                     {"bits_per_byte", record->last_bits},
                                     {"tokens", any ? last[METRIC_TOKENS] : NAN},
                                     {"hours", any ? record->hours : NAN},
                                     {"tokens_per_s",
                                      record->step_s > 0 ? record->tokens_sum / record->step_s : NAN},
                                     {"spikes", any ? last[METRIC_SPIKES] : NAN},
                                     {"skipped_steps", any ? last[METRIC_SKIPPED_STEPS] : NAN},
                                     {"mfu",
                                      record->mfu_seconds > 0 ? record->mfu_seconds / record->step_s : NAN}},
                        time[] = {{"steps_s", record->step_s}, {"exposed_s", record->exposed_comm_s}},
                        totals[] = {{"host_planned", any ? last[METRIC_TOTAL_PLANNED] : NAN},
                                    {"host", any ? last[METRIC_TOTAL] : NAN},
                                    {"device_planned", any ? last[METRIC_DEVICE_PLANNED] : NAN},
                                    {"device", any ? last[METRIC_DEVICE] : NAN}},
                        comm[] = {{"bytes", any ? last[METRIC_COMM_BYTES] : NAN},
                                  {"planned_bytes", any ? last[METRIC_COMM_PLANNED_BYTES] : NAN},
                                  {"calls", any ? last[METRIC_COMM_CALLS] : NAN},
                                  {"planned_calls", any ? last[METRIC_COMM_PLANNED_CALLS] : NAN},
                                  {"ms", any ? last[METRIC_COMM_MS] : NAN},
                                  {"hidden", any ? last[METRIC_COMM_HIDDEN] : NAN}};
    ADD_OBJECT(out, "figures", figures);
    ADD_OBJECT(out, "time", time);
    ADD_OBJECT(out, "totals", totals);
    ADD_OBJECT(out, "comm", comm);
}

// Only the numbers of {"params": bytes, ...}, as anything could be there.
static void add_kinds(struct text *out, const char *name, const cJSON *kinds) {
    const cJSON *kind;
    const char *comma = "";
    text_add(out, "\"%s\": {", name);
    cJSON_ArrayForEach(kind, kinds) if (cJSON_IsNumber(kind) && kind->string) {
        text_add(out, "%s", comma);
        run_json_add_string(out, kind->string, strlen(kind->string));
        text_add(out, ": ");
        add_value(out, kind->valuedouble, 17);
        comma = ", ";
    }
    text_add(out, "}");
}

// What the last step's line has that is no number.
static void add_last(struct text *out, const struct run_record *record) {
    cJSON *line = record->last_text.length > 0 ? cJSON_Parse(record->last_text.data) : NULL;
    const cJSON *mfu_of = cJSON_GetObjectItemCaseSensitive(line, "mfu_of"),
                *planned = cJSON_GetObjectItemCaseSensitive(line, "model_memory_planned"),
                *measured = cJSON_GetObjectItemCaseSensitive(line, "model_memory");
    add_string(out, "mfu_of", cJSON_IsString(mfu_of) ? mfu_of->valuestring : "measured GEMM rate");
    text_add(out, ",\n \"memory\": %s", planned || measured ? "{" : "null");
    if (planned || measured) {
        add_kinds(out, "planned", planned);
        text_add(out, ", ");
        add_kinds(out, "measured", measured);
        text_add(out, "}");
    }
    cJSON_Delete(line);
}

static void add_session(struct text *out, const struct run_record *record) {
    text_add(out, ",\n \"session\": ");
    if (record->n_sessions == 0) {
        text_add(out, "null");
        return;
    }
    const struct session *session = &record->sessions[record->n_sessions - 1];
    text_add(out, "{\"ranks\": %d, \"threads\": %d", session->ranks, session->threads);
    add_string(out, "version", session->version);
    add_string(out, "machine", session->machine);
    add_string(out, "device", session->device);
    add_string(out, "compute", session->compute);
    add_number(out, "parameters", session->parameters);
    add_number(out, "gemm_flops", session->gemm_flops_per_s);
    add_number(out, "dense_peak", session->dense_peak_flops);
    text_add(out, "}");
}

// ---- profile

static double number_in(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static void add_operation(struct text *out, const cJSON *operation, double steps, bool first) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(operation, "name"),
                *limit = cJSON_GetObjectItemCaseSensitive(operation, "limit");
    text_add(out, "%s{\"name\": ", first ? "" : ",\n   ");
    run_json_add_string(out, cJSON_IsString(name) ? name->valuestring : "?",
                        cJSON_IsString(name) ? strlen(name->valuestring) : 1);
    add_number(out, "ms", 1000 * number_in(operation, "seconds") / steps);
    add_number(out, "share", number_in(operation, "share"));
    add_number(out, "of_limit", number_in(operation, "of_limit"));
    add_string(out, "limit", cJSON_IsString(limit) ? limit->valuestring : "");
    text_add(out, "}");
}

// The lines that add up to the step, slowest first as in the file; the rest and idle time as one each.
static void add_operations(struct text *out, const cJSON *summary, double steps) {
    const cJSON *operation;
    double rest_s = 0, seconds = number_in(summary, "seconds");
    int n = 0;
    cJSON_ArrayForEach(operation, cJSON_GetObjectItemCaseSensitive(summary, "operations")) {
        const double taken = number_in(operation, "seconds");
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(operation, "counts")) || !(taken >= 0))
            continue;
        if (n < MOST_OPERATIONS)
            add_operation(out, operation, steps, n++ == 0);
        else
            rest_s += taken;
    }
    const double other[] = {rest_s, number_in(summary, "other_seconds")};
    static const char *const names[] = {"all operations below these", "other"};
    for (int i = 0; i < 2; i++)
        if (other[i] > 0 && seconds > 0) {
            text_add(out, "%s{\"name\": \"%s\"", n++ ? ",\n   " : "", names[i]);
            add_number(out, "ms", 1000 * other[i] / steps);
            add_number(out, "share", other[i] / seconds);
            text_add(out, "}");
        }
}

static void add_profile(struct text *out, const char *folder) {
    char *text = NULL, *path = file_path("%s/profile.json", folder);
    size_t length = 0;
    if (path && file_exists(path) && file_read(path, LARGEST_PROFILE, &text, &length) != STATUS_OK)
        status_clear();
    cJSON *json = text ? cJSON_ParseWithLength(text, length) : NULL;
    const cJSON *summary = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "ranks"), 0), "summary");
    const double steps = number_in(summary, "steps"), seconds = number_in(summary, "seconds");
    text_add(out, ",\n \"profile\": ");
    if (steps > 0 && seconds > 0) {
        text_add(out, "{\"steps\": %.0f", steps);
        add_number(out, "step_ms", 1000 * seconds / steps);
        text_add(out, ", \"operations\": [");
        add_operations(out, summary, steps);
        text_add(out, "]}");
    } else
        text_add(out, "null");
    cJSON_Delete(json);
    free(text);
    free(path);
}

// ---- samples: RUN/samples/step-N.txt, what the model wrote after N steps

// The step in "step-00000123.txt"; -1 for other names.
static int64_t step_of(const char *name) {
    long long step;
    int end = 0;
    if (sscanf(name, "step-%18lld.txt%n", &step, &end) != 1 || end == 0 || name[end] != '\0' || step < 0)
        return -1;
    return step;
}

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// The steps of the samples in RUN/samples, ascending; none for a folder that is absent or cannot be listed.
// Free *steps with free().
static enum status list_samples(const char *run, int64_t **steps, int *n) {
    struct file_list names = {0};
    char *folder = file_path("%s/samples", run);
    *n = 0;
    *steps = NULL;
    if (folder && file_is_folder(folder) && file_list_folder(&names, folder) != STATUS_OK)
        status_clear();
    if (folder)
        *steps = malloc(((size_t)names.n_paths + 1) * sizeof **steps);
    for (int i = 0; *steps && i < names.n_paths; i++) {
        (*steps)[*n] = step_of(names.paths[i]);
        *n += (*steps)[*n] >= 0;
    }
    if (*n > 0)
        qsort(*steps, (size_t)*n, sizeof **steps, ascending);
    file_list_free(&names);
    free(folder);
    return *steps ? STATUS_OK : FAIL(STATUS_FAILED, "out of memory for the samples of %s", run);
}

// The first `most` bytes of one, without a character that is cut at the end; NULL if it cannot be read.
static char *read_sample(const char *run, int64_t step, size_t most, size_t *length) {
    int descriptor = -1;
    char *path = file_path("%s/samples/step-%08lld.txt", run, (long long)step), *text = malloc(most + 1);
    ssize_t n = -1;
    if (path && text && file_open_regular(path, O_RDONLY, &descriptor) == STATUS_OK) {
        n = read(descriptor, text, most);
        close(descriptor);
    } else
        status_clear();
    free(path);
    if (n < 0) {
        free(text);
        return NULL;
    }
    *length = (size_t)n;
    if (*length == most) // probably cut: go back to where a character begins
        while (*length > 0 && ((unsigned char)text[--*length] & 0xC0) == 0x80)
            ;
    return text;
}

// MOST_SAMPLES, evenly spaced, the last one included.
static enum status add_samples(struct text *out, const char *run) {
    int64_t *steps;
    int n;
    TRY(list_samples(run, &steps, &n));
    const int every = n / MOST_SAMPLES + 1;
    const char *comma = "";
    text_add(out, ",\n \"samples\": [");
    for (int i = 0; i < n; i++) {
        size_t length;
        char *text = (n - 1 - i) % every == 0 ? read_sample(run, steps[i], SAMPLE_BYTES, &length) : NULL;
        if (!text)
            continue;
        text_add(out, "%s{\"step\": %lld, \"text\": ", comma, (long long)steps[i]);
        run_json_add_string(out, text, length);
        text_add(out, "}");
        comma = ",\n  ";
        free(text);
    }
    text_add(out, "]");
    free(steps);
    return STATUS_OK;
}

// ---- config

static void add_option(struct text *out, const char *section, const cJSON *option, const char **comma) {
    char *value = cJSON_PrintUnformatted(option);
    struct text name = {0};
    text_add(&name, "%s%s%s", section, *section ? "." : "", option->string);
    text_add(out, "%s", *comma);
    run_json_add_string(out, name.data ? name.data : "", name.length);
    text_add(out, ": ");
    run_json_add_string(out, value ? value : "", value ? strlen(value) : 0);
    out->failed |= !value || name.failed;
    *comma = ", ";
    text_free(&name);
    free(value);
}

static void add_section(struct text *out, const char *section, const cJSON *object, const char **comma) {
    const cJSON *option;
    cJSON_ArrayForEach(option, object) {
        if (!option->string)
            continue;
        if (!cJSON_IsObject(option)) {
            add_option(out, section, option, comma);
            continue;
        }
        char *name = file_path("%s%s%s", section, *section ? "." : "", option->string);
        out->failed |= !name;
        if (name)
            add_section(out, name, option, comma); // as deep as cJSON parses: 1000 levels
        free(name);
    }
}

void run_json_add_config(struct text *out, const cJSON *config) {
    const char *comma = "";
    text_add(out, "{");
    if (cJSON_IsObject(config))
        add_section(out, "", config, &comma);
    text_add(out, "}");
}

// ---- a run

static void add_notes(struct text *out, const struct run_record *record) {
    const char *comma = "";
    text_add(out, ",\n \"notes\": [");
    if (!record->config)
        text_add(out, "%s\"config.json is absent or cannot be read\"", comma), comma = ", ";
    if (record->n_sessions == 0)
        text_add(out, "%s\"sessions.jsonl is absent: machine and version are not known\"", comma),
            comma = ", ";
    if (record->n_steps == 0)
        text_add(out, "%s\"there are no steps yet\"", comma), comma = ", ";
    if (record->reader.damaged > 0)
        text_add(out, "%s\"%lld lines of metrics.jsonl are damaged and left out\"", comma,
                 (long long)record->reader.damaged),
            comma = ", ";
    if (record->not_finite > 0)
        text_add(out, "%s\"the loss of %lld steps is not a finite number\"", comma,
                 (long long)record->not_finite);
    text_add(out, "]");
}

enum status run_json_add(struct text *out, const struct run_record *record) {
    const struct session *last = record->n_sessions > 0 ? &record->sessions[record->n_sessions - 1] : NULL;
    text_add(out, "{\"path\": ");
    run_json_add_string(out, record->path, strlen(record->path));
    text_add(out, ", \"state\": \"%s\", \"step\": %lld, \"total\": %lld, \"sessions\": %d",
             run_state_name(record->state), (long long)record->last.step, (long long)record->total,
             record->n_sessions);
    add_string(out, "message", last && record->state == RUN_FAILED ? last->message : "");
    add_number(out, "seconds_left", record->state == RUN_RUNNING ? run_record_seconds_left(record) : NAN);
    add_number(out, "began", record->n_sessions > 0 ? record->sessions[0].began : NAN);
    add_number(out, "last_wall", record->n_steps > 0 ? record->last.values[METRIC_WALL_TIME] : NAN);
    add_session(out, record);
    add_figures(out, record);
    add_last(out, record);
    add_curves(out, record);
    add_profile(out, record->path);
    TRY(add_samples(out, record->path));
    text_add(out, ",\n \"config\": ");
    run_json_add_config(out, record->config);
    add_notes(out, record);
    text_add(out, "}");
    return text_status(out);
}
