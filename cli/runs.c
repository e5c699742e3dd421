// ./train runs [FOLDER]: lists the runs below a folder with state, steps, losses, age and disk space. Writes
// no files. Of each run's metrics, reads only the last TAIL_BYTES, unless these contain no evaluation.
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/print.h"
#include "trainer/runs/run_record.h"

#define DEFAULT_FOLDER "runs"
#define TAIL_BYTES     ((uint64_t)8 << 20) // bytes read from the end of a run's metrics: about 8,000 steps
#define DEEPEST        4                   // levels of folders below FOLDER that are searched for runs
#define OPEN_FOLDERS   16                  // folders that nftw may keep open

static bool as_json = false;
static const struct arg flags[] = {
    {"--json", ARG_FLAG, &as_json, 0, 0, "print a JSON array, with sizes in bytes and times in seconds"},
};

// A run, as the list shows it. Unknown doubles are NaN, except `changed`.
struct listed_run {
    char *path;
    enum run_state state;
    int64_t step, total; // steps done, and steps of the whole run (0: unknown)
    double loss, val_loss, tokens_per_s, seconds_left;
    double changed;    // wall-clock time of the last change, in seconds; 0: unknown
    double disk_bytes; // bytes on disk of the run folder
    char *message;     // why the run failed; NULL: it did not
};

struct list {
    struct listed_run *runs;
    int n, capacity;
};

static void list_free(struct list *list) {
    for (int i = 0; i < list->n; i++) {
        free(list->runs[i].path);
        free(list->runs[i].message);
    }
    free(list->runs);
}

// ---- reading the runs

// Bytes on disk of the files that nftw has visited. Static, because nftw passes no context to add_size.
static double disk_bytes;

static int add_size(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)path, (void)kind, (void)place;
    disk_bytes += 512 * (double)info->st_blocks;
    return 0;
}

static double last_change(const char *folder) {
    static const char *const names[] = {"metrics.jsonl", "sessions.jsonl"};
    double newest = 0;
    for (int i = 0; i < 2; i++) {
        struct stat info;
        char *path = file_path("%s/%s", folder, names[i]);
        if (stat(path, &info) == 0)
            newest = fmax(newest, (double)info.st_mtim.tv_sec + 1e-9 * (double)info.st_mtim.tv_nsec);
        free(path);
    }
    return newest;
}

static bool evaluates(const struct run_record *record) {
    const cJSON *val =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(record->config, "data"), "val");
    return !record->config || cJSON_GetArraySize(val) > 0;
}

static enum status read_record(struct run_record *record, const char *path, bool whole) {
    run_record_open(record, path, 2);
    if (!whole)
        metrics_reader_seek_tail(&record->reader, TAIL_BYTES);
    return run_record_update(record, NULL);
}

static enum status read_run(const char *path, struct listed_run *run) {
    struct run_record record;
    enum status status = read_record(&record, path, false);
    if (status == STATUS_OK && record.val.n == 0 && record.reader.offset > TAIL_BYTES && evaluates(&record)) {
        run_record_close(&record); // the part that was read contains no evaluation, so read all metrics
        status = read_record(&record, path, true);
    }
    *run = (struct listed_run){.path = file_path("%.*s", run_path_length(path), path),
                               .state = record.state,
                               .step = record.last.step,
                               .total = record.total,
                               .loss = record.last.step > 0 ? run_record_recent_loss(&record) : NAN,
                               .val_loss = record.val.last_loss,
                               .tokens_per_s = run_record_tokens_per_s(&record),
                               .seconds_left =
                                   record.state == RUN_RUNNING ? run_record_seconds_left(&record) : NAN,
                               .changed = last_change(path)};
    if (run->state == RUN_FAILED && record.n_sessions > 0)
        run->message = copy_string(record.sessions[record.n_sessions - 1].message);
    disk_bytes = 0;
    (void)nftw(path, add_size, OPEN_FOLDERS, FTW_PHYS); // unreadable files do not count
    run->disk_bytes = disk_bytes;
    run_record_close(&record);
    return status;
}

static enum status add_run(struct list *list, const char *path) {
    RESERVE(list->runs, list->n + 1, list->capacity);
    return read_run(path, &list->runs[list->n++]);
}

// Adds the run at `path`, or else all runs below it. A folder that cannot be listed is skipped; but if it is
// the one that the user named (depth 0), this fails.
//   depth   levels of folders between the user's folder and `path`
static enum status find_runs(struct list *list, const char *path, int depth) {
    struct file_list names = {0};
    if (run_folder_is_run(path))
        return add_run(list, path);
    enum status status = file_list_folder(&names, path);
    if (status != STATUS_OK && depth > 0) {
        status_clear();
        return STATUS_OK;
    }
    for (int i = 0; i < names.n_paths && status == STATUS_OK && depth < DEEPEST; i++) {
        struct stat info;
        char *below = file_path("%.*s/%s", run_path_length(path), path, names.paths[i]);
        if (lstat(below, &info) == 0 && S_ISDIR(info.st_mode)) // links could form a cycle
            status = find_runs(list, below, depth + 1);
        free(below);
    }
    file_list_free(&names);
    return status;
}

static int newest_first(const void *a, const void *b) {
    const struct listed_run *x = a, *y = b;
    return x->changed != y->changed ? (x->changed < y->changed) - (x->changed > y->changed)
                                    : strcmp(x->path, y->path);
}

// ---- printing

static void add_json_number(struct text *out, const char *name, double value) {
    char number[32];
    text_add(out, ", \"%s\": %s", name, text_double(number, value));
}

static void add_json(struct text *out, const struct listed_run *run, double now) {
    text_add(out, "{\"path\": ");
    clean_text_add_json(out, run->path, strlen(run->path));
    text_add(out, ", \"state\": \"%s\", \"step\": %lld", run_state_name(run->state), (long long)run->step);
    add_json_number(out, "total", run->total > 0 ? (double)run->total : NAN);
    add_json_number(out, "loss", run->loss);
    add_json_number(out, "val_loss", run->val_loss);
    add_json_number(out, "tokens_per_s", run->tokens_per_s);
    add_json_number(out, "seconds_left", run->seconds_left);
    add_json_number(out, "age_s", fmax(0, now - run->changed));
    add_json_number(out, "disk_bytes", run->disk_bytes);
    text_add(out, ", \"message\": ");
    if (run->message)
        clean_text_add_json(out, run->message, strlen(run->message));
    else
        text_add(out, "null");
    text_add(out, "}");
}

enum { COLUMNS = 8 };

static void add_loss(struct text *cell, double loss) {
    if (isfinite(loss))
        text_add(cell, "%.4f", loss);
    else
        text_add(cell, "-");
}

// Appends an age in its largest unit of which it has at least 2: "40 s", "3 min", "5 h", "12 d".
static void add_age(struct text *cell, double seconds) {
    static const struct {
        double seconds;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    int unit = 0;
    while (unit < 3 && seconds < 2 * units[unit].seconds)
        unit++;
    text_add(cell, "%.0f %s", floor(fmax(0, seconds) / units[unit].seconds), units[unit].unit);
}

static void fill_row(struct text *cells, const struct listed_run *run, double now) {
    char text[32];
    clean_text_add(&cells[0], run->path, strlen(run->path));
    text_add(&cells[1], "%s", run_state_name(run->state));
    text_add(&cells[2], "%lld", (long long)run->step);
    if (run->total > 0)
        text_add(&cells[2], "/%lld", (long long)run->total);
    add_loss(&cells[3], run->loss);
    add_loss(&cells[4], run->val_loss);
    text_add(&cells[5], "%s",
             isfinite(run->seconds_left) ? text_duration(text, sizeof text, run->seconds_left) : "-");
    add_age(&cells[6], now - run->changed);
    text_add(&cells[7], "%s", text_bytes(text, sizeof text, run->disk_bytes));
}

static void print_table(const struct list *list, double now) {
    static const char *const titles[COLUMNS] = {"RUN",      "STATE",     "STEP",    "LOSS",
                                                "VAL LOSS", "TIME LEFT", "CHANGED", "DISK"};
    struct table table = {.rows = list->n + 1, .columns = COLUMNS, .n_left = 2, .gap = "  "};
    struct text failures = {0};
    table.cells = allocate((size_t)table.rows * COLUMNS, sizeof *table.cells);
    for (int c = 0; c < COLUMNS; c++)
        text_add(&table.cells[c], "%s", titles[c]);
    for (int i = 0; i < list->n; i++) {
        const struct listed_run *run = &list->runs[i];
        fill_row(table.cells + (i + 1) * COLUMNS, run, now);
        if (run->message) {
            clean_text_add(&failures, run->path, strlen(run->path));
            text_add(&failures, " failed: ");
            clean_text_add(&failures, run->message, strlen(run->message));
            text_add(&failures, "\n");
        }
    }
    table_print(&table);
    output_text(&failures);
}

static void print_json(const struct list *list, double now) {
    struct text json = {0};
    for (int i = 0; i < list->n; i++) {
        text_add(&json, i ? ",\n " : "[");
        add_json(&json, &list->runs[i], now);
    }
    text_add(&json, list->n ? "]\n" : "[]\n");
    output_text(&json);
}

static enum status run_runs(int n_args, char **args) {
    const char *folder = DEFAULT_FOLDER;
    int n;
    TRY(args_parse("runs", flags, sizeof flags / sizeof *flags, n_args, args, &folder, 1, &n));
    if (!file_is_folder(folder))
        return FAIL(STATUS_INVALID,
                    "%s is not a folder; usage: train runs [FOLDER], the folder that contains the runs%s",
                    folder, n == 0 ? " (" DEFAULT_FOLDER ")" : "");
    struct list list = {0};
    enum status status = find_runs(&list, folder, 0);
    const double now = clock_wall_s();
    if (status == STATUS_OK) {
        if (list.n > 0)
            qsort(list.runs, (size_t)list.n, sizeof *list.runs, newest_first);
        if (as_json)
            print_json(&list, now);
        else if (list.n == 0)
            output_print("no runs in %s\n", folder);
        else
            print_table(&list, now);
    }
    list_free(&list);
    return status;
}

const struct command command_runs = {
    .name = "runs",
    .synopsis = "[FOLDER] [--json]",
    .summary = "list the runs in a folder (" DEFAULT_FOLDER "), most recently changed first",
    .details =
        "States: running; finished; stopped (by a signal, to be resumed); failed (with its message); stale\n"
        "(killed: its process is gone and recorded no end); not begun. LOSS is the mean of the last 100\n"
        "steps, VAL LOSS the validation loss of the last evaluation.",
    .examples = "All runs, with state, step and loss.\n"
                "./train runs\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_runs,
};
