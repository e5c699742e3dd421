// ./train watch RUN: follows a run in a terminal. It reads what the run appends to its files, and nothing of
// the run waits for it.
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/clean_text.h"
#include "cli/commands.h"
#include "cli/watch/screen.h"
#include "cli/watch/view.h"
#include "trainer/runs/run_samples.h"

#define POINTS       4000 // that are kept of a run
#define SAMPLE_BYTES ((size_t)4000)
#define ZOOMS        4

static double every_s = 1;
static const struct arg flags[] = {
    {"--every", ARG_NUMBER, &every_s, 0.1, 3600, "seconds between two looks at the run (1)"},
};

static enum status read_sample(struct view *view, const char *run) {
    int64_t *steps;
    int n;
    size_t length;
    TRY(run_samples_list(run, &steps, &n));
    char *bytes = n > 0 ? run_samples_read(run, steps[n - 1], SAMPLE_BYTES, &length) : NULL;
    struct text clean = {0};
    if (bytes) {
        clean_text_add(&clean, bytes, length);
        text_add(&clean, "%s", ""); // so that an empty sample is a string too
        free(view->sample);
        view->sample = clean.data;
        view->sample_step = steps[n - 1];
    }
    free(bytes);
    free(steps);
    return clean.failed ? FAIL(STATUS_FAILED, "out of memory for a sample") : STATUS_OK;
}

static bool take_key(struct view *view, int key) {
    if (key == '\t')
        view->curve = (view->curve + 1) % VIEW_CURVES;
    else if (key == 'l')
        view->log = !view->log;
    else if (key == 'z')
        view->quarter = (view->quarter + 1) % ZOOMS;
    else
        return key == SCREEN_RESIZED;
    return true;
}

static enum status draw(const struct screen *screen, struct view *view, const struct run_record *record) {
    struct text frame = {0};
    view->columns = screen->columns;
    view->rows = screen->rows;
    enum status status = view_frame(view, record, &frame);
    if (status == STATUS_OK)
        screen_draw(screen, &frame);
    text_free(&frame);
    return status;
}

// Until the user quits. The time that is left and the state change without new lines too, so each look draws.
static enum status follow(struct screen *screen, struct view *view, struct run_record *record) {
    double next_look = 0;
    for (;;) {
        const double now = clock_monotonic_s();
        if (now >= next_look) {
            TRY(run_record_update(record, NULL));
            TRY(read_sample(view, record->path));
            next_look = now + every_s;
        }
        screen_measure(screen);
        TRY(draw(screen, view, record));
        int key;
        do
            key = screen_wait(screen, next_look - clock_monotonic_s());
        while (key >= 0 && !take_key(view, key));
        if (key == SCREEN_QUIT)
            return STATUS_OK;
    }
}

static enum status watch_screen(struct run_record *record) {
    struct screen screen;
    setlocale(LC_CTYPE, "");
    struct view view = {.unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0, .colors = !getenv("NO_COLOR")};
    TRY(screen_open(&screen));
    const enum status status = follow(&screen, &view, record);
    screen_close(&screen);
    free(view.sample);
    return status;
}

static enum status print_status(struct run_record *record) {
    struct text out = {0};
    if (!file_is_folder(record->path))
        return FAIL(STATUS_INVALID, "%s is not a folder, expected that of a run, such as runs/quickstart",
                    record->path);
    TRY(run_record_update(record, NULL));
    view_status(record, &out);
    const enum status status = text_status(&out);
    if (status == STATUS_OK)
        printf("%s", out.data);
    text_free(&out);
    return status;
}

static enum status run_watch(int n_args, char **args) {
    const char *path = NULL;
    int n;
    TRY(args_parse("watch", flags, sizeof flags / sizeof *flags, n_args, args, &path, 1, &n));
    if (n == 0)
        return FAIL(STATUS_INVALID, "no run named; usage: train watch RUN");
    if (file_exists(path) && !file_is_folder(path))
        return FAIL(STATUS_INVALID, "%s is a file, expected the folder of a run, such as runs/quickstart",
                    path);
    struct run_record record;
    enum status status = run_record_open(&record, path, POINTS);
    if (status == STATUS_OK)
        status = screen_is_possible() ? watch_screen(&record) : print_status(&record);
    run_record_close(&record);
    return status;
}

const struct command command_watch = {
    .name = "watch",
    .synopsis = "RUN [--every SECONDS]",
    .summary = "follow a run in the terminal: curves, figures, the last sample, the time left",
    .details = "The run may not have begun yet, and may be stopped and resumed. q or Ctrl-C quits; the run "
               "goes on.\n"
               "Where standard output is not a terminal, it prints the run's status once.",
    .examples = "Follow a run, or one that is about to begin.\n"
                "./train watch runs/quickstart\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_watch,
};
