// Redrawing is bounded in time, as a batch may take a millisecond.
#include "cli/eval/progress.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define REDRAW_S 0.5

static char run[64];
static double shown_s; // 0: no line

// The end of a path says most.
static void shorten(char *out, size_t size, const char *path) {
    const size_t length = strlen(path);
    if (length < size)
        snprintf(out, size, "%s", path);
    else
        snprintf(out, size, "...%s", path + length - (size - 4));
}

void eval_progress_run(const char *path, int number, int n) {
    char name[40];
    run[0] = 0;
    if (!path)
        return;
    shorten(name, sizeof name, path);
    snprintf(run, sizeof run, "%s (%d of %d)", name, number, n);
}

void eval_progress(const char *what, size_t done, size_t total, const char *unit) {
    struct log_field fields[3] = {{.rank = 1}, {.rank = 0}, {.rank = 2}};
    const double now_s = clock_monotonic_s();
    if (!log_is_terminal() || (shown_s > 0 && now_s - shown_s < REDRAW_S))
        return;
    shown_s = now_s;
    shorten(fields[0].text, 40, what);
    snprintf(fields[1].text, sizeof fields[1].text, "%zu/%zu %s", done, total, unit);
    snprintf(fields[2].text, sizeof fields[2].text, "%s", run);
    log_live(fields, run[0] ? 3 : 2);
}

void eval_progress_end(void) {
    if (shown_s > 0)
        log_live_end();
    shown_s = 0;
}
