// ./train report RUN...: one self-contained HTML page with the curves and figures of one or more runs. Its
// parts (page.html, page.css and the scripts) are embedded in the program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/embedded.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/clean_text.h"
#include "cli/commands.h"
#include "cli/report/run_json.h"
#include "cli/version.h"
#include "configs/config.h"

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
static const struct arg flags[] = {
    {"--out", ARG_STRING, &out_path, 0, 0, "the file to write (report.html in the first RUN)"},
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

static enum status add_run(struct text *json, const char *path, int capacity) {
    struct run_record record;
    enum status status = run_record_open(&record, path, capacity);
    if (status == STATUS_OK)
        status = run_record_update(&record, NULL);
    if (status == STATUS_OK)
        status = run_json_add(json, &record);
    run_record_close(&record);
    return status;
}

static enum status add_data(struct text *json, const char *const *paths, int n) {
    int capacity = POINTS_OF_ALL_RUNS / n / 2 * 2;
    capacity = capacity > MOST_POINTS ? MOST_POINTS : capacity < LEAST_POINTS ? LEAST_POINTS : capacity;
    char number[32];
    text_add(json, "{\"made\": %s, \"version\": ", text_double(number, clock_wall_s()));
    run_json_add_string(json, version_text(), strlen(version_text()));
    text_add(json, ", \"defaults\": ");
    TRY(add_defaults(json));
    text_add(json, ", \"runs\": [\n");
    for (int i = 0; i < n; i++) {
        TRY(add_run(json, paths[i], capacity));
        text_add(json, i < n - 1 ? ",\n" : "");
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

static enum status write_page(const char *const *paths, int n, const char *file) {
    struct text json = {0}, page = {0};
    enum status status = add_data(&json, paths, n);
    if (status == STATUS_OK) {
        add_page(&page, &json, paths, n);
        status = text_status(&page);
    }
    if (status == STATUS_OK)
        status = file_write_all(file, page.data, page.length);
    if (status == STATUS_OK) {
        char bytes[32];
        printf("report of %d run%s: %s (%s)\n", n, n == 1 ? "" : "s", file,
               text_bytes(bytes, sizeof bytes, (double)page.length));
    }
    text_free(&json);
    text_free(&page);
    return status;
}

static enum status check_runs(const char *const *paths, int n) {
    if (n == 0)
        return FAIL(STATUS_INVALID, "no run named; usage: train report RUN [RUN ...] [--out FILE]");
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
    const char *paths[MOST_RUNS];
    int n;
    TRY(args_parse("report", flags, sizeof flags / sizeof *flags, n_args, args, paths, MOST_RUNS, &n));
    TRY(check_runs(paths, n));
    char *file = out_path ? file_path("%s", out_path)
                          : file_path("%.*s/report.html", run_path_length(paths[0]), paths[0]);
    enum status status = file ? write_page(paths, n, file) : STATUS_FAILED;
    free(file);
    return status;
}

const struct command command_report = {
    .name = "report",
    .synopsis = "RUN [RUN ...] [--out FILE]",
    .summary = "write a self-contained HTML page with the curves and figures of runs, side by side",
    .details = "Runs may be under way. The page loads nothing from a network; open it in any browser.",
    .examples = "Put two runs side by side.\n"
                "./train report runs/a runs/b --out report.html\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_report,
};
