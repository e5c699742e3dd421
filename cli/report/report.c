// ./train report RUN...: one self-contained HTML page with the curves and figures of one or more runs. Its
// parts (page.html, page.css and the scripts) are embedded in the program. With --follow it is written again
// while the runs write, and loads itself again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/embedded.h"
#include "base/file.h"
#include "base/json.h"
#include "base/output.h"
#include "cli/clean_text.h"
#include "cli/commands.h"
#include "cli/report/run_json.h"
#include "cli/version.h"
#include "options/config.h"
#include "trainer/signals.h"

EMBEDDED_FILE(cli_report_page_html);
EMBEDDED_FILE(cli_report_page_css);
EMBEDDED_FILE(cli_report_core_js);
EMBEDDED_FILE(cli_report_chart_js);
EMBEDDED_FILE(cli_report_page_js);

#define MOST_RUNS 100

// Points per run: all together, and bounds for one. With 20 curves of about 8 characters per point, the page
// stays below 8 MB.
#define POINTS_OF_ALL_RUNS 40000
#define MOST_POINTS        4000
#define LEAST_POINTS       400

static const char *out_path = NULL;
static bool follows = false;
static double every_s = 5;
static const struct arg flags[] = {
    {"--out", ARG_STRING, &out_path, 0, 0, "the file to write (report.html in the first RUN)"},
    {"--follow", ARG_FLAG, &follows, 0, 0, "write it again while a run goes on; the open page follows"},
    {"--every", ARG_NUMBER, &every_s, 0.1, 3600, "--follow: seconds between two looks (5)"},
};

struct report {
    const char *file;
    int n;
    const char *paths[MOST_RUNS];
    struct run_record runs[MOST_RUNS];
};

// ---- the data

// So that nothing in the data ends the script element that it is in.
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
        status = text_status(&printed);
    }
    if (status == STATUS_OK)
        status = json_parse(printed.data, printed.length, "the defaults", &defaults);
    run_json_add_config(json, defaults);
    cJSON_Delete(defaults);
    text_free(&printed);
    config_free(&config);
    return status;
}

//   reloads   the page loads itself again
static enum status add_data(struct text *json, const struct report *report, bool reloads) {
    char number[32];
    text_add(json, "{\"made\": %s, \"version\": ", text_double(number, clock_wall_s()));
    run_json_add_string(json, version_text(), strlen(version_text()));
    text_add(json, ", \"follow\": %s, \"defaults\": ", text_double(number, reloads ? every_s : 0));
    TRY(add_defaults(json));
    text_add(json, ", \"runs\": [\n");
    for (int i = 0; i < report->n; i++) {
        TRY(run_json_add(json, &report->runs[i]));
        text_add(json, i < report->n - 1 ? ",\n" : "");
    }
    text_add(json, "]}");
    return text_status(json);
}

// ---- the page

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
    page->failed |= title.failed || clean.failed;
    text_free(&title);
    text_free(&clean);
}

static void add_script(struct text *page) {
    text_add_bytes(page, embedded_cli_report_core_js, embedded_cli_report_core_js_bytes);
    text_add_bytes(page, embedded_cli_report_chart_js, embedded_cli_report_chart_js_bytes);
    text_add_bytes(page, embedded_cli_report_page_js, embedded_cli_report_page_js_bytes);
}

// page.html with its four marks replaced, in their order there.
static void add_page(struct text *page, const struct text *json, const char *const *paths, int n) {
    static const char *const marks[] = {"@TITLE@", "@STYLE@", "@DATA@", "@SCRIPT@"};
    const char *at = embedded_cli_report_page_html;
    for (int i = 0; i < 4; i++) {
        const char *mark = strstr(at, marks[i]);
        if (!mark) // page.html always has them
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

//   bytes   [out] of the page
static enum status write_page(const struct report *report, bool reloads, size_t *bytes) {
    struct text json = {0}, page = {0};
    enum status status = add_data(&json, report, reloads);
    if (status == STATUS_OK) {
        add_page(&page, &json, report->paths, report->n);
        status = text_status(&page);
    }
    if (status == STATUS_OK)
        status = file_write_all(report->file, page.data, page.length);
    *bytes = page.length;
    text_free(&json);
    text_free(&page);
    return status;
}

// ---- the runs

static enum status open_runs(struct report *report) {
    int capacity = POINTS_OF_ALL_RUNS / report->n / 2 * 2;
    capacity = capacity > MOST_POINTS ? MOST_POINTS : capacity < LEAST_POINTS ? LEAST_POINTS : capacity;
    for (int i = 0; i < report->n; i++) {
        TRY(run_record_open(&report->runs[i], report->paths[i], capacity));
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

// Until no run is under way, or a signal comes. The last page does not load itself again.
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
    return write_page(report, false, &bytes);
}

static enum status write_report(struct report *report) {
    char text[32];
    size_t bytes;
    TRY(open_runs(report));
    const bool goes_on = follows && is_running(report);
    TRY(write_page(report, goes_on, &bytes));
    printf("report of %d run%s: %s (%s)%s\n", report->n, report->n == 1 ? "" : "s", report->file,
           text_bytes(text, sizeof text, (double)bytes),
           goes_on ? "; it follows until the end, or Ctrl-C, which the run does not notice" : "");
    if (!goes_on)
        return STATUS_OK;
    TRY(output_flush());
    signals_catch();
    return follow(report);
}

static enum status check_runs(const char *const *paths, int n) {
    if (n == 0)
        return FAIL(STATUS_INVALID,
                    "no run named; usage: train report RUN [RUN ...] [--out FILE] [--follow]");
    for (int i = 0; i < n; i++) {
        if (!file_is_folder(paths[i]))
            return FAIL(STATUS_INVALID, "%s is not a folder, expected that of a run, such as runs/quickstart",
                        paths[i]);
        if (!run_folder_is_run(paths[i]))
            return FAIL(STATUS_INVALID,
                        "%s is not the folder of a run: it has neither metrics.jsonl nor sessions.jsonl; "
                        "./train runs FOLDER lists the runs in a folder",
                        paths[i]);
    }
    return STATUS_OK;
}

static enum status run_report(int n_args, char **args) {
    struct report *report = calloc(1, sizeof *report);
    if (!report)
        return FAIL(STATUS_FAILED, "out of memory for a report");
    enum status status = args_parse("report", flags, sizeof flags / sizeof *flags, n_args, args,
                                    report->paths, MOST_RUNS, &report->n);
    for (int i = 0; i < MOST_RUNS; i++)
        report->runs[i].reader.descriptor = -1;
    if (status == STATUS_OK)
        status = check_runs(report->paths, report->n);
    char *file = status != STATUS_OK ? NULL
                 : out_path
                     ? file_path("%s", out_path)
                     : file_path("%.*s/report.html", run_path_length(report->paths[0]), report->paths[0]);
    report->file = file;
    if (status == STATUS_OK)
        status = file ? write_report(report) : STATUS_FAILED;
    for (int i = 0; i < MOST_RUNS; i++)
        run_record_close(&report->runs[i]);
    free(file);
    free(report);
    return status;
}

const struct command command_report = {
    .name = "report",
    .synopsis = "RUN [RUN ...] [--out FILE] [--follow [--every SECONDS]]",
    .summary = "write a self-contained HTML page with the curves and figures of runs, side by side",
    .details =
        "Runs may be under way. The page loads nothing from a network; open it in any browser.\n"
        "--follow writes it again until the runs end, or Ctrl-C; the runs do not notice. The open page\n"
        "loads itself again and keeps its place and what is hidden.",
    .examples = "Put two runs side by side.\n"
                "./train report runs/a runs/b --out report.html\n"
                "Follow a run in a browser.\n"
                "./train report runs/quickstart --follow\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_report,
};
