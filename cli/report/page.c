// ./train report RUN...: writes one self-contained HTML page with the curves and figures of one or more runs.
// page.html, page.css and the scripts are embedded in the program. With --follow, the page is rewritten while
// the runs go on, and reloads itself in the browser.
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/embedded.h"
#include "base/file.h"
#include "base/json.h"
#include "base/output.h"
#include "base/overwrite.h"
#include "base/signals.h"
#include "cli/commands.h"
#include "cli/print.h"
#include "cli/version.h"
#include "options/config.h"
#include "options/print.h"
#include "trainer/runs/run_record.h"

EMBEDDED_FILE(cli_report_page_html);
EMBEDDED_FILE(cli_report_page_css);
EMBEDDED_FILE(cli_report_core_js);
EMBEDDED_FILE(cli_report_chart_js);
EMBEDDED_FILE(cli_report_page_js);

#define MOST_RUNS 100

// Maximum points per curve: POINTS_OF_ALL_RUNS divided by the number of runs, but from LEAST_POINTS to
// MOST_POINTS. With 20 curves and about 8 characters per point, the page stays below 8 MB.
#define POINTS_OF_ALL_RUNS 40000
#define MOST_POINTS        4000
#define LEAST_POINTS       400

#define MOST_SAMPLES    40
#define SAMPLE_BYTES    ((size_t)4000)      // maximum bytes of a sample that the page shows
#define LARGEST_PROFILE ((size_t)256 << 20) // bytes of profile.json; a larger one is left out
#define MOST_OPERATIONS 25

static const char *out_path = NULL;
static bool follows = false, force = false;
static double every_s;
static const struct arg flags[] = {
    {"--out", ARG_STRING, &out_path, 0, 0, "the file to write (report.html in the first RUN)"},
    {"--force", ARG_FLAG, &force, 0, 0, "overwrite any file at --out"},
    {"--follow", ARG_FLAG, &follows, 0, 0, "rewrite the page while runs go on; an open page reloads itself"},
    {"--every", ARG_NUMBER, &every_s, 0.1, 3600, "with --follow: seconds between two updates (5)"},
};

struct report {
    const char *file;
    int n;
    const char *paths[MOST_RUNS];
    struct run_record runs[MOST_RUNS];
};

static void add_string(struct text *out, const char *name, const char *value) {
    text_add(out, ", \"%s\": ", name);
    clean_text_add_json(out, value, strlen(value));
}

// Appends a number with `digits` significant digits; null if it is not finite.
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

// ---- the curves of a run

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
                  6); // significant digits, so that losses below 100 have at least four decimals
    }
    text_add(out, "]");
}

// Returns true if any point has a value other than `usual`; with `usual` NaN, if any point has a value.
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

struct curve {
    const char *name;
    double usual; // the curve is left out if all of its values equal this; NaN: only if it has no values
};

// Appends the points of a series: {"step": [...], "tokens": [...], "hours": [...]}, and a member for each
// curve.
static void add_points(struct text *out, const struct series *series, const struct curve *curves,
                       int n_curves) {
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
    for (int i = 0; i < n_curves; i++)
        if (has_news(series, i, curves[i].usual))
            add_curve(out, series, i, curves[i].name);
    text_add(out, "}");
}

static void add_curves(struct text *out, const struct run_record *record) {
    static const struct curve evals[N_EVAL_VALUES] =
        {[EVAL_LOSS] = {"loss", NAN}, [EVAL_BITS] = {"bits", NAN}},
                              noise = {"noise_scale", NAN}, score = {"score", NAN};
    const struct curve steps[N_STEP_VALUES] = {
        [STEP_LOSS] = {"loss", NAN},
        [STEP_GRAD_NORM] = {"grad_norm", NAN},
        [STEP_LR] = {"lr", NAN},
        [STEP_TOKENS_PER_S] = {"tokens_per_s", NAN},
        [STEP_MFU] = {"mfu", 0},
        [STEP_MS] = {"step_ms", NAN},
        [STEP_LOSS_SCALE] = {"loss_scale", 1},
        [STEP_COMM_SHARE] = {"comm_share", 0},
        [STEP_BATCH_SIZE] = {"batch_size", record->last.values[METRIC_BATCH_SIZE]}};
    text_add(out, ",\n \"points\": ");
    add_points(out, &record->steps, steps, N_STEP_VALUES);
    text_add(out, ",\n \"evals\": ");
    add_points(out, &record->evals, evals, N_EVAL_VALUES);
    text_add(out, ",\n \"noise\": ");
    add_points(out, &record->noise, &noise, 1);
    text_add(out, ",\n \"scores\": {");
    for (int i = 0; i < record->n_scores; i++) {
        text_add(out, i ? ",\n  " : "");
        clean_text_add_json(out, record->scores[i].name, strlen(record->scores[i].name));
        text_add(out, ": ");
        add_points(out, &record->scores[i].series, &score, 1);
    }
    text_add(out, "}");
}

// ---- the figures of a run

struct figure {
    const char *name;
    double value;
};
// Appends a member with its preceding comma: , "name": {"key": value, ...}
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

static double number_in(const cJSON *object, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

// Appends the bytes of each kind of memory as a member: "name": {"params": bytes, ...}. Leaves out kinds
// whose value is not a number, because the file that they were read from may contain anything.
static void add_kinds(struct text *out, const char *name, const cJSON *kinds) {
    const cJSON *kind;
    const char *comma = "";
    text_add(out, "\"%s\": {", name);
    cJSON_ArrayForEach(kind, kinds) if (cJSON_IsNumber(kind) && kind->string) {
        text_add(out, "%s", comma);
        clean_text_add_json(out, kind->string, strlen(kind->string));
        text_add(out, ": ");
        add_value(out, kind->valuedouble, 17);
        comma = ", ";
    }
    text_add(out, "}");
}

// Returns the figures that are recorded once per session, as parsed JSON, of the newest session that has done
// a step. For a run of an earlier version, which recorded them in the metrics of every step, returns the
// metrics of the last step. NULL: there are none.
static cJSON *constants_of(const struct run_record *record) {
    int i = record->n_sessions - 1;
    while (i > 0 && !record->sessions[i].constants[0])
        i--;
    if (i >= 0 && record->sessions[i].constants[0])
        return cJSON_Parse(record->sessions[i].constants);
    return record->last_text.length > 0 ? cJSON_Parse(record->last_text.data) : NULL;
}

static void add_constants(struct text *out, const cJSON *constants) {
    const cJSON *mfu_of = cJSON_GetObjectItemCaseSensitive(constants, "mfu_of"),
                *planned = cJSON_GetObjectItemCaseSensitive(constants, "model_memory_planned"),
                *measured = cJSON_GetObjectItemCaseSensitive(constants, "model_memory");
    add_string(out, "mfu_of", cJSON_IsString(mfu_of) ? mfu_of->valuestring : "measured GEMM rate");
    text_add(out, ",\n \"memory\": %s", planned || measured ? "{" : "null");
    if (planned || measured) {
        add_kinds(out, "planned", planned);
        text_add(out, ", ");
        add_kinds(out, "measured", measured);
        text_add(out, "}");
    }
}

static void add_figures(struct text *out, const struct run_record *record) {
    const double *last = record->last.values;
    const bool any = record->n_steps > 0;
    const struct figure figures[] = {{"loss", run_record_recent_loss(record)},
                                     {"val_loss", record->val.last_loss},
                                     {"best_val_loss", record->val.best_loss},
                                     {"best_val_step",
                                      record->val.n > 0 ? (double)record->val.best_step : NAN},
                                     {"bits_per_byte", record->val.last_bits},
                                     {"tokens", any ? last[METRIC_TOKENS] : NAN},
                                     {"hours", any ? record->hours : NAN},
                                     {"tokens_per_s", run_record_tokens_per_s(record)},
                                     {"spikes", any ? last[METRIC_SPIKES] : NAN},
                                     {"skipped_steps", any ? last[METRIC_SKIPPED_STEPS] : NAN},
                                     {"mfu",
                                      record->mfu_seconds > 0 ? record->mfu_seconds / record->step_s : NAN}},
                        time[] = {{"steps_s", record->step_s}, {"exposed_s", record->exposed_comm_s}},
                        comm[] = {{"bytes", any ? last[METRIC_COMM_BYTES] : NAN},
                                  {"planned_bytes", any ? last[METRIC_COMM_PLANNED_BYTES] : NAN},
                                  {"calls", any ? last[METRIC_COMM_CALLS] : NAN},
                                  {"planned_calls", any ? last[METRIC_COMM_PLANNED_CALLS] : NAN},
                                  {"ms", any ? last[METRIC_COMM_MS] : NAN},
                                  {"hidden", any ? last[METRIC_COMM_HIDDEN] : NAN}};
    cJSON *constants = constants_of(record);
    const struct figure totals[] = {{"host_planned", number_in(constants, "total_planned_bytes")},
                                    {"host", any ? last[METRIC_TOTAL] : NAN},
                                    {"device_planned", number_in(constants, "device_planned_bytes")},
                                    {"device", number_in(constants, "device_bytes")}};
    ADD_OBJECT(out, "figures", figures);
    ADD_OBJECT(out, "time", time);
    ADD_OBJECT(out, "totals", totals);
    ADD_OBJECT(out, "comm", comm);
    add_constants(out, constants);
    cJSON_Delete(constants);
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

// ---- the profile of a run: profile.json

static void add_operation(struct text *out, const cJSON *operation, double steps, bool first) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(operation, "name"),
                *limit = cJSON_GetObjectItemCaseSensitive(operation, "limit");
    text_add(out, "%s{\"name\": ", first ? "" : ",\n   ");
    clean_text_add_json(out, cJSON_IsString(name) ? name->valuestring : "?",
                        cJSON_IsString(name) ? strlen(name->valuestring) : 1);
    add_number(out, "ms", 1000 * number_in(operation, "seconds") / steps);
    add_number(out, "share", number_in(operation, "share"));
    add_number(out, "of_limit", number_in(operation, "of_limit"));
    add_string(out, "limit", cJSON_IsString(limit) ? limit->valuestring : "");
    text_add(out, "}");
}

// Appends the operations whose times add up to that of a step, slowest first as in the file. The operations
// after the first MOST_OPERATIONS are summed in one line. One more line has the time outside of operations.
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
    static const char *const names[] = {"remaining operations", "other"};
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
    if (file_exists(path) && file_read(path, LARGEST_PROFILE, &text, &length) != STATUS_OK)
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

// ---- samples: RUN/samples/step-N.txt, generated after N steps

// Returns the step number in a name such as "step-00000123.txt"; -1 for other names.
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

// Lists the steps of the samples in a folder, ascending, and returns their number: 0 if the folder is absent
// or cannot be listed. Free *steps with free().
static int list_samples(const char *folder, int64_t **steps) {
    struct file_list names = {0};
    int n = 0;
    if (file_is_folder(folder) && file_list_folder(&names, folder) != STATUS_OK)
        status_clear();
    *steps = allocate((size_t)names.n_paths + 1, sizeof **steps);
    for (int i = 0; i < names.n_paths; i++) {
        (*steps)[n] = step_of(names.paths[i]);
        n += (*steps)[n] >= 0;
    }
    qsort(*steps, (size_t)n, sizeof **steps, ascending);
    file_list_free(&names);
    return n;
}

// Returns the first `most` bytes of a sample, to be freed. If it is that long or longer, the last character,
// which may be incomplete, is replaced by "…". NULL: it cannot be read.
static char *read_sample(const char *folder, int64_t step, size_t most, size_t *length) {
    int descriptor = -1;
    char *path = file_path("%s/step-%08lld.txt", folder, (long long)step),
         *text = allocate(most + sizeof "…", 1);
    ssize_t n = -1;
    if (file_open_regular(path, O_RDONLY, &descriptor) == STATUS_OK) {
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
    if (*length == most) { // probably truncated
        while (*length > 0 && ((unsigned char)text[--*length] & 0xC0) == 0x80)
            ;
        *length += (size_t)snprintf(text + *length, sizeof "…", "…");
    }
    return text;
}

// Appends at most MOST_SAMPLES samples, evenly spaced and including the last one.
static void add_samples(struct text *out, const char *run) {
    char *folder = file_path("%s/samples", run);
    int64_t *steps;
    const int n = list_samples(folder, &steps), every = n / MOST_SAMPLES + 1;
    const char *comma = "";
    text_add(out, ",\n \"samples\": [");
    for (int i = 0; i < n; i++) {
        size_t length;
        char *text = (n - 1 - i) % every == 0 ? read_sample(folder, steps[i], SAMPLE_BYTES, &length) : NULL;
        if (!text)
            continue;
        text_add(out, "%s{\"step\": %lld, \"text\": ", comma, (long long)steps[i]);
        clean_text_add_json(out, text, length);
        text_add(out, "}");
        comma = ",\n  ";
        free(text);
    }
    text_add(out, "]");
    free(folder);
    free(steps);
}

// ---- the config of a run

static void add_option(struct text *out, const char *name, const cJSON *option, const char **comma) {
    char *value = cJSON_PrintUnformatted(option);
    text_add(out, "%s", *comma);
    clean_text_add_json(out, name, strlen(name));
    text_add(out, ": ");
    clean_text_add_json(out, value ? value : "", value ? strlen(value) : 0);
    *comma = ", ";
    free(value);
}

static void add_section(struct text *out, const char *section, const cJSON *object, const char **comma) {
    const cJSON *option;
    cJSON_ArrayForEach(option, object) {
        if (!option->string)
            continue;
        char *name = file_path("%s%s%s", section, *section ? "." : "", option->string);
        if (cJSON_IsObject(option))
            add_section(out, name, option, comma); // not too deep: cJSON refuses more than 1000 levels
        else
            add_option(out, name, option, comma);
        free(name);
    }
}

// Appends {"section.option": "value", ...} for a parsed config.json, with values as JSON text; {} for NULL.
static void add_config(struct text *out, const cJSON *config) {
    const char *comma = "";
    text_add(out, "{");
    if (cJSON_IsObject(config))
        add_section(out, "", config, &comma);
    text_add(out, "}");
}

// ---- a whole run, as the object that page.js reads

static void add_notes(struct text *out, const struct run_record *record) {
    struct text notes = {0};
    if (!record->config)
        text_add(&notes, ", \"config.json is absent or cannot be read\"");
    if (record->n_sessions == 0)
        text_add(&notes, ", \"sessions.jsonl is absent: machine and version are not known\"");
    if (record->n_steps == 0)
        text_add(&notes, ", \"there are no steps yet\"");
    if (record->reader.damaged > 0)
        text_add(&notes, ", \"%lld lines of metrics.jsonl are damaged and left out\"",
                 (long long)record->reader.damaged);
    if (record->not_finite > 0)
        text_add(&notes, ", \"the loss of %lld steps is not a finite number\"",
                 (long long)record->not_finite);
    text_add(out, ",\n \"notes\": [%s]", notes.length > 0 ? notes.data + 2 : "");
    text_free(&notes);
}

// Appends a run as the object that page.js reads: figures, points, memory, samples, profile, config. Text is
// converted to valid UTF-8 without control characters. Where the run lacks something, the object has null
// or a note.
static void add_run(struct text *out, const struct run_record *record) {
    const struct session *last = record->n_sessions > 0 ? &record->sessions[record->n_sessions - 1] : NULL;
    text_add(out, "{\"path\": ");
    clean_text_add_json(out, record->path, strlen(record->path));
    text_add(out, ", \"state\": \"%s\", \"step\": %lld, \"total\": %lld, \"sessions\": %d",
             run_state_name(record->state), (long long)record->last.step, (long long)record->total,
             record->n_sessions);
    add_string(out, "message", last && record->state == RUN_FAILED ? last->message : "");
    add_number(out, "seconds_left", record->state == RUN_RUNNING ? run_record_seconds_left(record) : NAN);
    add_number(out, "began", record->n_sessions > 0 ? record->sessions[0].began : NAN);
    add_number(out, "last_wall", record->n_steps > 0 ? record->last.values[METRIC_WALL_TIME] : NAN);
    add_session(out, record);
    add_figures(out, record);
    add_curves(out, record);
    add_profile(out, record->path);
    add_samples(out, record->path);
    text_add(out, ",\n \"config\": ");
    add_config(out, record->config);
    add_notes(out, record);
    text_add(out, "}");
}

// ---- the data of the page, as JSON

// Appends the JSON with each "<" written as \u003c, so that no "</script>" in it can end the script element
// that contains it.
static void add_without_tags(struct text *out, const struct text *json) {
    const char *at = json->data ? json->data : "", *end = at + json->length;
    while (at < end) {
        const char *tag = memchr(at, '<', (size_t)(end - at));
        text_add_bytes(out, at, (size_t)((tag ? tag : end) - at));
        if (tag)
            text_add(out, "\\u003c");
        at = tag ? tag + 1 : end;
    }
}

static enum status add_defaults(struct text *json) {
    struct config config;
    struct text printed = {0};
    cJSON *defaults = NULL;
    enum status status = config_parse(&config, "{}", 2, "the defaults");
    if (status == STATUS_OK) {
        config_print(&config, &printed);
        status = json_parse(printed.data, printed.length, "the defaults", &defaults);
    }
    add_config(json, defaults);
    cJSON_Delete(defaults);
    text_free(&printed);
    config_free(&config);
    return status;
}

// Appends the data of the page as JSON.
//   reloads   true: the page reloads itself every every_s seconds
static enum status add_data(struct text *json, const struct report *report, bool reloads) {
    char number[32];
    text_add(json, "{\"made\": %s, \"version\": ", text_double(number, clock_wall_s()));
    clean_text_add_json(json, version_text(), strlen(version_text()));
    text_add(json, ", \"follow\": %s, \"defaults\": ", text_double(number, reloads ? every_s : 0));
    TRY(add_defaults(json));
    text_add(json, ", \"runs\": [\n");
    for (int i = 0; i < report->n; i++) {
        add_run(json, &report->runs[i]);
        text_add(json, i < report->n - 1 ? ",\n" : "");
    }
    text_add(json, "]}");
    return STATUS_OK;
}

// ---- the page, as HTML

static void add_title(struct text *page, const char *const *paths, int n) {
    struct text title = {0}, clean = {0};
    if (n == 1)
        text_add(&title, "%.*s: training report", run_path_length(paths[0]), paths[0]);
    else
        text_add(&title, "%d runs: training report", n);
    clean_text_add(&clean, title.data ? title.data : "", title.length);
    for (size_t i = 0; i < clean.length; i++)
        if (clean.data[i] == '<' || clean.data[i] == '&')
            text_add(page, clean.data[i] == '<' ? "&lt;" : "&amp;");
        else
            text_add_bytes(page, &clean.data[i], 1);
    text_free(&title);
    text_free(&clean);
}

static void add_script(struct text *page) {
    text_add_bytes(page, embedded_cli_report_core_js, embedded_cli_report_core_js_bytes);
    text_add_bytes(page, embedded_cli_report_chart_js, embedded_cli_report_chart_js_bytes);
    text_add_bytes(page, embedded_cli_report_page_js, embedded_cli_report_page_js_bytes);
}

// Appends page.html with its four placeholders replaced, in their order in the file.
static void add_page(struct text *page, const struct text *json, const char *const *paths, int n) {
    static const char *const marks[] = {"@TITLE@", "@STYLE@", "@DATA@", "@SCRIPT@"};
    const char *at = embedded_cli_report_page_html;
    for (int i = 0; i < 4; i++) {
        const char *mark = strstr(at, marks[i]);
        if (!mark) // page.html always has the placeholders
            break;
        text_add_bytes(page, at, (size_t)(mark - at));
        at = mark + strlen(marks[i]);
        if (i == 0)
            add_title(page, paths, n);
        else if (i == 1)
            text_add_bytes(page, embedded_cli_report_page_css, embedded_cli_report_page_css_bytes);
        else if (i == 2)
            add_without_tags(page, json);
        else
            add_script(page);
    }
    text_add(page, "%s", at);
}

// Writes the page to report->file.
//   bytes   [out] size of the page
static enum status write_page(const struct report *report, bool reloads, size_t *bytes) {
    struct text json = {0}, page = {0};
    enum status status = add_data(&json, report, reloads);
    if (status == STATUS_OK) {
        add_page(&page, &json, report->paths, report->n);
        status = file_write_all(report->file, page.data, page.length);
    }
    *bytes = page.length;
    text_free(&json);
    text_free(&page);
    return status;
}

// ---- reading and following the runs

static enum status open_runs(struct report *report) {
    int capacity = POINTS_OF_ALL_RUNS / report->n / 2 * 2;
    capacity = capacity > MOST_POINTS ? MOST_POINTS : capacity < LEAST_POINTS ? LEAST_POINTS : capacity;
    for (int i = 0; i < report->n; i++) {
        run_record_open(&report->runs[i], report->paths[i], capacity);
        TRY(run_record_update(&report->runs[i], NULL));
    }
    return STATUS_OK;
}

static bool is_running(const struct report *report) {
    for (int i = 0; i < report->n; i++)
        if (report->runs[i].state == RUN_RUNNING)
            return true;
    return false;
}

static void wait_for(double seconds) {
    const struct timespec nap = {.tv_nsec = 50000000};
    for (const double until = clock_monotonic_s() + seconds;
         clock_monotonic_s() < until && !signals_stop_requested();)
        nanosleep(&nap, NULL);
}

// Every every_s seconds, rewrites the page if a run has new metrics or another state. Ends when all runs have
// ended or a signal arrives. The last page does not reload itself.
static enum status follow(struct report *report) {
    size_t bytes;
    while (is_running(report) && !signals_stop_requested()) {
        bool any = false;
        wait_for(every_s);
        for (int i = 0; i < report->n; i++) {
            bool changed;
            TRY(run_record_update(&report->runs[i], &changed));
            any |= changed;
        }
        if (any && is_running(report))
            TRY(write_page(report, true, &bytes));
    }
    TRY(write_page(report, false, &bytes));
    return is_running(report) ? STATUS_STOPPED : STATUS_OK;
}

static enum status write_report(struct report *report) {
    char text[32];
    size_t bytes;
    TRY(open_runs(report));
    const bool goes_on = follows && is_running(report);
    TRY(write_page(report, goes_on, &bytes));
    printf("report of %d run%s: %s (%s)%s\n", report->n, report->n == 1 ? "" : "s", report->file,
           text_bytes(text, sizeof text, (double)bytes),
           goes_on ? "; it is updated until the runs end or you press Ctrl-C, which does not stop them" : "");
    if (!goes_on)
        return STATUS_OK;
    TRY(output_flush());
    return follow(report);
}

static bool all_began(const char *const *paths, int n) {
    bool all = true;
    for (int i = 0; i < n; i++)
        all = all && run_folder_is_run(paths[i]);
    return all;
}

// Waits until all runs have begun, or a signal arrives.
static enum status wait_for_runs(const char *const *paths, int n) {
    if (all_began(paths, n))
        return STATUS_OK;
    printf("waiting until %s begin%s (Ctrl-C ends)\n", n == 1 ? paths[0] : "all runs", n == 1 ? "s" : "");
    TRY(output_flush());
    while (!all_began(paths, n) && !signals_stop_requested())
        wait_for(every_s);
    return STATUS_OK;
}

static enum status check_runs(const char *const *paths, int n) {
    if (n == 0)
        return FAIL(STATUS_INVALID,
                    "no run named; usage: train report RUN [RUN ...] [--out FILE] [--follow]");
    for (int i = 0; i < n; i++) {
        if (!file_is_folder(paths[i]) && (!follows || file_exists(paths[i])))
            return FAIL(STATUS_INVALID,
                        "%s is not a folder, expected a run's folder, such as runs/quickstart", paths[i]);
        if (!follows && !run_folder_is_run(paths[i]))
            return FAIL(STATUS_INVALID,
                        "%s is not the folder of a run: it has neither metrics.jsonl nor sessions.jsonl; "
                        "./train runs FOLDER lists the runs in a folder",
                        paths[i]);
    }
    return STATUS_OK;
}

static bool is_page(const char *path) {
    return overwrite_has_words(path, "<meta name=\"generator\" content=\"zero.c\">");
}

static enum status run_report(int n_args, char **args) {
    static struct report report;
    TRY(args_parse("report", flags, sizeof flags / sizeof *flags, n_args, args, report.paths, MOST_RUNS,
                   &report.n));
    if (every_s > 0 && !follows)
        return FAIL(STATUS_INVALID, "--every is the time between two updates of --follow; add --follow");
    if (every_s == 0)
        every_s = 5;
    TRY(check_runs(report.paths, report.n));
    if (follows) {
        // Catch signals before the first page is written: it reloads itself, and after Ctrl-C a page that
        // does not reload must replace it.
        signals_catch();
        TRY(wait_for_runs(report.paths, report.n));
        if (signals_stop_requested())
            return STATUS_STOPPED;
    }
    char *file = out_path ? copy_string(out_path)
                          : file_path("%.*s/report.html", run_path_length(report.paths[0]), report.paths[0]);
    report.file = file;
    const struct overwrite overwrite = {
        .writer = "train report", .is_kind = is_page, .kind = "a report", .force = force};
    for (int i = 0; i < report.n; i++)
        report.runs[i].reader.descriptor = -1;
    enum status status = overwrite_check(&overwrite, file);
    if (status == STATUS_OK)
        status = write_report(&report);
    for (int i = 0; i < report.n; i++)
        run_record_close(&report.runs[i]);
    free(file);
    return status;
}

const struct command command_report = {
    .name = "report",
    .synopsis = "RUN [RUN ...] [--out FILE] [--force] [--follow [--every SECONDS]]",
    .summary = "write a self-contained HTML page with the curves and figures of runs, side by side",
    .details =
        "Runs may still be running. The page loads nothing from a network; open it in any browser.\n"
        "--follow waits for runs to begin, then rewrites the page until they end or you press Ctrl-C, which\n"
        "does not stop them. The open page reloads itself, and keeps its position and hidden runs.",
    .examples = "Put two runs side by side.\n"
                "./train report runs/a runs/b --out report.html\n"
                "Follow a run in a browser.\n"
                "./train report runs/quickstart --follow\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_report,
};
