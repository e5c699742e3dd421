#include "trainer/runs/run_record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

#define SCORE_POINTS 400

const char *run_state_name(enum run_state state) {
#define RUN_STATE_NAME(constant, word) [constant] = word,
    static const char *const names[] = {RUN_STATES(RUN_STATE_NAME)};
#undef RUN_STATE_NAME
    return names[state];
}

static bool has_file(const char *folder, const char *name) {
    char *path = file_path("%s/%s", folder, name);
    const bool found = file_exists(path);
    free(path);
    return found;
}

int run_path_length(const char *path) {
    int length = (int)strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

bool run_folder_is_run(const char *path) {
    return has_file(path, "metrics.jsonl") || has_file(path, "sessions.jsonl");
}

// ---- config, sessions and state of the run

// Reads a JSON file; NULL if it is absent or not JSON.
static cJSON *read_json(const char *folder, const char *name) {
    cJSON *json = NULL;
    char *path = file_path("%s/%s", folder, name);
    if (file_exists(path) && json_read_file(path, &json) != STATUS_OK)
        status_clear();
    free(path);
    return json;
}

static double number_in(const cJSON *object, const char *section, const char *name) {
    const cJSON *item =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(object, section), name);
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : 0;
}

// Returns the expected number of steps of the whole run; 0: unknown. For a run with train.max_minutes, it is
// the number recorded with the last step read.
static int64_t find_total(const struct run_record *record) {
    const bool by_time = number_in(record->config, "train", "max_minutes") > 0;
    const struct session *last = record->n_sessions > 0 ? &record->sessions[record->n_sessions - 1] : NULL;
    if (last && last->end != SESSION_OPEN && last->total > 0)
        return last->total;
    const double steps =
        by_time ? record->last.values[METRIC_TOTAL_STEPS] : number_in(record->config, "train", "max_steps");
    return steps > 0 && steps < 1e15 ? (int64_t)steps : 0;
}

static enum run_state find_state(const struct run_record *record) {
    static const enum run_state ended[] = {[SESSION_OPEN] = RUN_STALE,
                                           [SESSION_FINISHED] = RUN_FINISHED,
                                           [SESSION_STOPPED] = RUN_STOPPED,
                                           [SESSION_FAILED] = RUN_FAILED};
    char *lock = file_path("%s/lock", record->path);
    const bool is_locked = file_is_locked(lock);
    free(lock);
    if (is_locked)
        return RUN_RUNNING;
    if (record->n_sessions > 0)
        return ended[record->sessions[record->n_sessions - 1].end];
    if (record->last.step == 0)
        return RUN_WAITING;
    return record->total > 0 && record->last.step >= record->total ? RUN_FINISHED : RUN_STOPPED;
}

// Reads config and sessions. Both are small, and a resumed run rewrites them.
static void read_small_files(struct run_record *record) {
    cJSON_Delete(record->config);
    free(record->sessions);
    record->config = read_json(record->path, "config.json");
    record->sessions = sessions_read(record->path, &record->n_sessions);
}

// ---- metrics

static void free_score(struct run_score *score) {
    free(score->name);
    series_free(&score->series);
}

static void forget_metrics(struct run_record *record) {
    text_free(&record->last_text);
    series_clear(&record->steps);
    series_clear(&record->evals);
    series_clear(&record->noise);
    for (int i = 0; i < record->n_scores; i++)
        free_score(&record->scores[i]);
    record->n_scores = 0;
    record->last = (struct metrics_line){0};
    record->hours = record->step_s = record->exposed_comm_s = 0;
    record->tokens_sum = record->mfu_seconds = 0;
    record->n_steps = record->not_finite = record->val.n = record->val.best_step = 0;
    record->val.best_loss = record->val.last_loss = record->val.last_bits = NAN;
    record->current.index = -1;
    record->current.began = record->current.hours_before = 0;
    record->current.step = 0;
}

// Sets record->current to the session that ran at wall_time. In record->hours, the time before a session's
// first step counts as training; the time between two sessions does not.
static void find_session(struct run_record *record, double wall_time) {
    while (record->current.index + 1 < record->n_sessions &&
           record->sessions[record->current.index + 1].began <= wall_time) {
        record->current.index++;
        record->current.hours_before = record->hours;
        record->current.began = record->sessions[record->current.index].began;
        record->current.step = record->sessions[record->current.index].step;
    }
}

static double hours_at(struct run_record *record, const struct metrics_line *line) {
    const double wall_time = line->values[METRIC_WALL_TIME],
                 step_h = fmax(0, line->values[METRIC_STEP_MS]) / 3.6e6;
    if (!isfinite(wall_time))
        return record->hours + (isfinite(step_h) ? step_h : 0);
    find_session(record, wall_time);
    if (record->current.began == 0) { // no session is recorded: use the time of the first line
        record->current.began = wall_time - (isfinite(step_h) ? 3600 * step_h : 0);
        record->current.step = line->step - 1;
    }
    return fmax(record->hours, record->current.hours_before + (wall_time - record->current.began) / 3600);
}

static double or_zero(double value) {
    return isfinite(value) ? value : 0;
}

// Sets the values of a line for a series that uses only the first value.
static void series_values_one(double value, double values[SERIES_VALUES]) {
    values[0] = value;
    for (int i = 1; i < SERIES_VALUES; i++)
        values[i] = NAN;
}

static void add_noise(struct run_record *record, const struct metrics_line *line) {
    double values[SERIES_VALUES];
    if (!isfinite(line->values[METRIC_NOISE_SCALE]))
        return;
    series_values_one(line->values[METRIC_NOISE_SCALE], values);
    series_add(&record->noise, line->step, or_zero(line->values[METRIC_TOKENS]), record->hours, values);
}

static void add_step(struct run_record *record, const struct metrics_line *line) {
    const double *v = line->values;
    const double seconds = fmax(0, or_zero(v[METRIC_STEP_MS])) / 1000,
                 exposed = fmax(0, or_zero(v[METRIC_COMM_MS])) / 1000 *
                           (1 - fmin(1, fmax(0, or_zero(v[METRIC_COMM_HIDDEN]))));
    const double values[SERIES_VALUES] = {[STEP_LOSS] = v[METRIC_LOSS],
                                          [STEP_GRAD_NORM] = v[METRIC_GRAD_NORM],
                                          [STEP_LR] = v[METRIC_LR],
                                          [STEP_TOKENS_PER_S] = v[METRIC_TOKENS_PER_S],
                                          [STEP_MFU] = v[METRIC_MFU],
                                          [STEP_MS] = v[METRIC_STEP_MS],
                                          [STEP_LOSS_SCALE] = v[METRIC_LOSS_SCALE],
                                          [STEP_COMM_SHARE] = seconds > 0 ? exposed / seconds : NAN,
                                          [STEP_BATCH_SIZE] = v[METRIC_BATCH_SIZE]};
    record->hours = hours_at(record, line);
    series_add(&record->steps, line->step, or_zero(v[METRIC_TOKENS]), record->hours, values);
    add_noise(record, line);
    record->recent[record->n_steps++ % RECENT_STEPS] = v[METRIC_LOSS];
    record->not_finite += !isfinite(v[METRIC_LOSS]);
    record->step_s += seconds;
    record->exposed_comm_s += fmin(exposed, seconds);
    record->tokens_sum += or_zero(v[METRIC_TOKENS_PER_S]) * seconds;
    record->mfu_seconds += or_zero(v[METRIC_MFU]) * seconds;
    record->last = *line;
    record->last.text = NULL;
    record->last_text.length = 0;
    text_add_bytes(&record->last_text, line->text, strlen(line->text));
}

static void add_eval(struct run_record *record, const struct metrics_line *line, bool is_final) {
    double values[SERIES_VALUES];
    series_values_one(line->values[METRIC_VAL_LOSS], values);
    values[EVAL_BITS] = line->values[METRIC_VAL_BITS];
    record->val.last_loss = values[EVAL_LOSS];
    record->val.last_bits = values[EVAL_BITS];
    // The final evaluation uses other sequences than earlier ones, so it is not a point of their curve.
    if (is_final && record->val.n > 0)
        return;
    record->val.n++;
    if (!(record->val.best_loss <= values[EVAL_LOSS])) {
        record->val.best_loss = values[EVAL_LOSS];
        record->val.best_step = line->step;
    }
    series_add(&record->evals, line->step, or_zero(record->last.values[METRIC_TOKENS]), record->hours,
               values);
}

// ---- scores

// Adds a score. Takes ownership of `name`.
static void add_score(struct run_record *record, int64_t step, char *name, double value) {
    double values[SERIES_VALUES];
    int i = 0;
    series_values_one(value, values);
    while (i < record->n_scores && strcmp(record->scores[i].name, name) != 0)
        i++;
    if (i < record->n_scores || i == MOST_SCORES)
        free(name);
    if (i == MOST_SCORES)
        return;
    if (i == record->n_scores) {
        record->scores[record->n_scores++].name = name;
        series_init(&record->scores[i].series, SCORE_POINTS);
    }
    series_add(&record->scores[i].series, step, or_zero(record->last.values[METRIC_TOKENS]), record->hours,
               values);
}

static bool is_measure(const cJSON *item) {
    static const char error[] = "_stderr";
    const size_t length = item->string ? strlen(item->string) : 0, n = sizeof error - 1;
    return cJSON_IsNumber(item) && length > 0 && strcmp(item->string, "items") != 0 &&
           !(length > n && strcmp(item->string + length - n, error) == 0);
}

static void add_tasks(struct run_record *record, int64_t step, const cJSON *tasks) {
    const cJSON *task, *measure;
    cJSON_ArrayForEach(task, tasks)
        cJSON_ArrayForEach(measure, task) if (cJSON_IsObject(task) && task->string && is_measure(measure))
            add_score(record, step, file_path("%s %s", task->string, measure->string), measure->valuedouble);
}

static void add_sources(struct run_record *record, int64_t step, const cJSON *sources) {
    const cJSON *source;
    cJSON_ArrayForEach(source, sources) {
        const cJSON *path = cJSON_GetObjectItemCaseSensitive(source, "path"),
                    *loss = cJSON_GetObjectItemCaseSensitive(source, "val_loss");
        if (cJSON_IsString(path) && cJSON_IsNumber(loss))
            add_score(record, step, file_path("validation loss of %s", path->valuestring), loss->valuedouble);
    }
}

// Adds a line that is not a step.
static void add_other(struct run_record *record, const struct metrics_line *line) {
    cJSON *json = cJSON_Parse(line->text);
    const bool is_final = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "final"));
    if (line->is_eval)
        add_eval(record, line, is_final);
    add_tasks(record, line->step, cJSON_GetObjectItemCaseSensitive(json, "tasks"));
    if (!is_final) // final evaluations use other sequences, as in add_eval
        add_sources(record, line->step, cJSON_GetObjectItemCaseSensitive(json, "val_sources"));
    cJSON_Delete(json);
}

static enum status read_metrics(struct run_record *record, bool *changed) {
    struct metrics_line line;
    enum metrics_event event;
    for (;;) {
        TRY(metrics_reader_next(&record->reader, &line, &event));
        if (event == METRICS_END)
            return STATUS_OK;
        *changed = true;
        if (event == METRICS_RESTARTED)
            forget_metrics(record);
        else
            line.is_step ? add_step(record, &line) : add_other(record, &line);
    }
}

// ---- the record

void run_record_open(struct run_record *record, const char *path, int capacity) {
    *record = (struct run_record){.path = copy_bytes(path, (size_t)run_path_length(path))};
    series_init(&record->steps, capacity);
    series_init(&record->evals, capacity);
    series_init(&record->noise, capacity);
    forget_metrics(record);
    metrics_reader_open(&record->reader, path);
}

enum status run_record_update(struct run_record *record, bool *changed) {
    bool is_new = false;
    const enum run_state before = record->state;
    // The state is read before the metrics. So if it says that the run has ended, all metrics are read.
    read_small_files(record);
    const enum run_state state = find_state(record);
    TRY(read_metrics(record, &is_new));
    record->total = find_total(record);
    // The state of a run without recorded sessions depends on its steps, which are known only now.
    record->state = record->n_sessions == 0 ? find_state(record) : state;
    if (changed)
        *changed = is_new || record->state != before;
    return STATUS_OK;
}

void run_record_close(struct run_record *record) {
    forget_metrics(record);
    cJSON_Delete(record->config);
    free(record->sessions);
    free(record->path);
    series_free(&record->steps);
    series_free(&record->evals);
    series_free(&record->noise);
    metrics_reader_close(&record->reader);
    *record = (struct run_record){.reader.descriptor = -1};
}

double run_record_recent_loss(const struct run_record *record) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < RECENT_STEPS && i < record->n_steps; i++)
        if (isfinite(record->recent[i]))
            sum += record->recent[i], n++;
    return n > 0 ? sum / n : NAN;
}

double run_record_tokens_per_s(const struct run_record *record) {
    return record->step_s > 0 ? record->tokens_sum / record->step_s : NAN;
}

double run_record_seconds_left(const struct run_record *record) {
    const double hours = record->hours - record->current.hours_before,
                 done = (double)(record->last.step - record->current.step);
    if (record->total == 0 || done <= 0 || hours <= 0)
        return NAN;
    return fmax(0, (double)(record->total - record->last.step)) * 3600 * hours / done;
}
