#include "cli/watch/view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/clock.h"
#include "cli/clean_text.h"
#include "cli/watch/plot.h"

enum {
    SAMPLE_ROWS = 5,  // with its title
    PLOT_ROWS = 9,    // that a plot needs before there is another below
    PLOT_COLUMNS = 55 // the same, beside it
};

static const struct {
    const char *title;
    enum step_value value;
    bool has_marks; // validation losses
} curves[VIEW_CURVES] = {
    {"training loss", STEP_LOSS, true},           {"gradient norm", STEP_GRAD_NORM, false},
    {"tokens/s", STEP_TOKENS_PER_S, false},       {"learning rate", STEP_LR, false},
    {"model FLOPs utilization", STEP_MFU, false},
};

// ---- lines of text

// Appends UTF-8 text up to the first newline or `columns`, and a newline. Without `unicode`, other characters
// than ASCII become '?'. Returns what is left of the text.
static const char *add_cut(struct text *out, const char *text, int columns, bool unicode) {
    while (*text && *text != '\n') {
        utf8proc_int32_t c;
        const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &c);
        const int width = n < 1 || c == '\t' || (!unicode && c >= 0x80) ? 1 : utf8proc_charwidth(c);
        if (width > columns)
            break;
        columns -= width;
        if (n < 1 || c == '\t')
            text_add(out, " ");
        else if (!unicode && c >= 0x80)
            text_add(out, "?");
        else
            text_add_bytes(out, text, (size_t)n);
        text += n < 1 ? 1 : n;
    }
    text_add(out, "\n");
    return text;
}

static void add_style(const struct view *view, struct text *out, const char *style) {
    if (view->colors)
        text_add(out, "\x1b[%sm", style);
}

static void add_styled(const struct view *view, struct text *out, const char *style, const char *text) {
    add_style(view, out, style);
    (void)add_cut(out, text, view->columns, view->unicode);
}

// ---- the figures

static void add_figure(struct text *line, const char *name, const char *format, double value) {
    if (!isfinite(value))
        return;
    char number[48];
    snprintf(number, sizeof number, format, value);
    text_add(line, "%s%s %s", line->length ? "  " : "", name, number);
}

static double last_of(const struct run_record *record, enum metric metric) {
    return record->last.step > 0 ? record->last.values[metric] : NAN;
}

static void describe_progress(const struct run_record *record, struct text *line) {
    char text[32];
    text_add(line, "%s  step %lld", run_state_name(record->state), (long long)record->last.step);
    if (record->total > 0)
        text_add(line, "/%lld (%.0f%%)", (long long)record->total,
                 100.0 * (double)record->last.step / (double)record->total);
    const double left = run_record_seconds_left(record);
    if (record->state == RUN_RUNNING && isfinite(left))
        text_add(line, "  %s left", text_duration(text, sizeof text, left));
    const double silent = clock_wall_s() - last_of(record, METRIC_WALL_TIME);
    if (record->state == RUN_RUNNING && silent > 60)
        text_add(line, "  last step %s ago", text_duration(text, sizeof text, silent));
}

static void describe_losses(const struct run_record *record, struct text *line) {
    add_figure(line, "loss", "%.4f", last_of(record, METRIC_LOSS));
    add_figure(line, "mean of 100", "%.4f", run_record_recent_loss(record));
    add_figure(line, "val", "%.4f", record->last_val);
    if (record->n_evals > 1)
        add_figure(line, "best", "%.4f", record->best_loss);
    add_figure(line, "bits/byte", "%.4f", record->last_bits);
}

static void describe_speed(const struct run_record *record, struct text *line) {
    char text[32];
    if (record->last.step == 0)
        return;
    add_figure(line, "norm", "%.3f", last_of(record, METRIC_GRAD_NORM));
    add_figure(line, "lr", "%.2e", last_of(record, METRIC_LR));
    text_add(line, "  %s tok/s", text_count(text, sizeof text, last_of(record, METRIC_TOKENS_PER_S)));
    add_figure(line, "MFU", "%.0f%%", 100 * last_of(record, METRIC_MFU));
    text_add(line, "  %s tokens", text_count(text, sizeof text, last_of(record, METRIC_TOKENS)));
    text_add(line, "  %s", text_bytes(text, sizeof text, last_of(record, METRIC_TOTAL)));
    text_add(line, "  %s", text_duration(text, sizeof text, 3600 * record->hours));
}

static const char *message_of(const struct run_record *record) {
    return record->state == RUN_FAILED && record->n_sessions > 0
               ? record->sessions[record->n_sessions - 1].message
               : "";
}

void view_status(const struct run_record *record, struct text *out) {
    struct text progress = {0}, losses = {0}, speed = {0}, name = {0};
    clean_text_add(&name, record->path, strlen(record->path));
    clean_text_add(&name, ": ", 2);
    describe_progress(record, &progress);
    describe_losses(record, &losses);
    describe_speed(record, &speed);
    const struct text *const lines[] = {&progress, &losses, &speed};
    for (int i = 0; i < 3; i++)
        if (lines[i]->length > 0)
            text_add(out, "%s%s\n", i == 0 && name.data ? name.data : "  ", lines[i]->data);
    if (*message_of(record)) {
        struct text message = {0};
        clean_text_add(&message, message_of(record), strlen(message_of(record)));
        text_add(out, "  %s\n", message.data ? message.data : "");
        text_free(&message);
    }
    text_free(&progress);
    text_free(&losses);
    text_free(&speed);
    text_free(&name);
}

// Three or four lines. Returns how many.
static int add_head(const struct view *view, const struct run_record *record, struct text *out) {
    struct text first = {0}, losses = {0}, speed = {0}, message = {0};
    clean_text_add(&first, record->path, strlen(record->path));
    if ((int)first.length > view->columns / 2) { // the end of a long path says more
        const size_t cut = first.length - (size_t)(view->columns / 2);
        memmove(first.data, first.data + cut, first.length - cut + 1);
        first.length -= cut;
    }
    text_add(&first, "  ");
    describe_progress(record, &first);
    describe_losses(record, &losses);
    describe_speed(record, &speed);
    clean_text_add(&message, message_of(record), strlen(message_of(record)));
    add_styled(view, out, "1", first.data ? first.data : "");
    add_styled(view, out, "0", losses.data ? losses.data : "");
    add_styled(view, out, "0", speed.data ? speed.data : "");
    if (message.length > 0)
        add_styled(view, out, "31", message.data);
    const int n = message.length > 0 ? 4 : 3;
    text_free(&first);
    text_free(&losses);
    text_free(&speed);
    text_free(&message);
    return n;
}

// ---- curves

// Arrays for a plot: the curve, then the marks; `x` and `y` have room for all points of the run.
static void fill_plot(struct plot *plot, const struct run_record *record, int curve, double *x, double *y) {
    const struct series *steps = &record->steps, *evals = &record->evals;
    plot->x = x;
    plot->y = y;
    for (int i = 0; i < steps->n; i++, plot->n++) {
        const struct series_range *range = &steps->buckets[i].ranges[curves[curve].value];
        x[i] = (double)steps->buckets[i].last;
        y[i] = range->count > 0 ? range->sum / (double)range->count : NAN;
    }
    plot->mark_x = x + steps->n;
    plot->mark_y = y + steps->n;
    for (int i = 0; i < evals->n && curves[curve].has_marks; i++, plot->n_marks++) {
        const struct series_range *range = &evals->buckets[i].ranges[EVAL_LOSS];
        x[steps->n + i] = (double)evals->buckets[i].last;
        y[steps->n + i] = range->count > 0 ? range->sum / (double)range->count : NAN;
    }
}

static enum status draw_curve(const struct view *view, const struct run_record *record, int curve,
                              int columns, int rows, struct text *lines) {
    const size_t most = (size_t)record->steps.n + (size_t)record->evals.n + 1;
    double *x = malloc(most * sizeof *x), *y = malloc(most * sizeof *y);
    const double last = (double)record->last.step;
    char title[64];
    snprintf(title, sizeof title, "%s%s%s", curves[curve].title,
             curves[curve].has_marks && record->n_evals > 0
                 ? (view->unicode ? ", validation \xE2\x97\x8F" : ", validation o")
                 : "",
             view->log ? ", log scale" : "");
    struct plot plot = {.title = title,
                        .columns = columns < PLOT_MOST_COLUMNS ? columns : PLOT_MOST_COLUMNS,
                        .rows = rows < PLOT_MOST_ROWS ? rows : PLOT_MOST_ROWS,
                        .unicode = view->unicode,
                        .log = view->log,
                        .x_low = last - last / pow(4, view->quarter),
                        .x_high = last};
    enum status status = STATUS_OK;
    if (x && y) {
        fill_plot(&plot, record, curve, x, y);
        status = plot_draw(&plot, lines);
    } else
        status = FAIL(STATUS_FAILED, "out of memory for a plot of %zu points", most);
    free(x);
    free(y);
    return status;
}

// As many plots as there is room for, in `rows` lines.
static enum status add_curves(const struct view *view, const struct run_record *record, int rows,
                              struct text *out) {
    const int across = view->columns / PLOT_COLUMNS > 1 ? view->columns / PLOT_COLUMNS : 1,
              down = rows / PLOT_ROWS > 1 ? rows / PLOT_ROWS : 1, columns = view->columns / across;
    int shown_across = across < VIEW_CURVES ? across : VIEW_CURVES, shown_down = down;
    while (shown_across * (shown_down - 1) >= VIEW_CURVES)
        shown_down--;
    const int height = rows / shown_down;
    enum status status = STATUS_OK;
    for (int row = 0; row < shown_down && status == STATUS_OK; row++) {
        struct text *lines = calloc((size_t)height, sizeof *lines);
        if (!lines)
            return FAIL(STATUS_FAILED, "out of memory for %d lines", height);
        for (int i = 0; i < shown_across && row * shown_across + i < VIEW_CURVES && status == STATUS_OK; i++)
            status = draw_curve(view, record, (view->curve + row * shown_across + i) % VIEW_CURVES, columns,
                                height, lines);
        for (int i = 0; i < height; i++) {
            add_style(view, out, i == 0 ? "1" : "36");
            text_add(out, "%s\n", lines[i].data ? lines[i].data : "");
            out->failed |= lines[i].failed;
            text_free(&lines[i]);
        }
        free(lines);
    }
    return status;
}

static void add_sample(const struct view *view, int rows, struct text *out) {
    char title[64];
    snprintf(title, sizeof title, "sample after step %lld:", view->sample_step);
    add_styled(view, out, "1", title);
    const char *rest = view->sample;
    while (*rest == '\n' || *rest == ' ')
        rest++;
    for (int i = 1; i < rows; i++) {
        add_style(view, out, "0");
        rest = add_cut(out, rest, view->columns, view->unicode);
        rest += *rest == '\n';
    }
}

enum status view_frame(const struct view *view, const struct run_record *record, struct text *out) {
    const int head = add_head(view, record, out),
              sample =
                  view->sample && view->rows >= head + SAMPLE_ROWS + PLOT_LEAST_ROWS + 1 ? SAMPLE_ROWS : 0,
              rows = view->rows - head - sample - 1;
    if (record->steps.n > 0 && rows >= PLOT_LEAST_ROWS && view->columns >= PLOT_LEAST_COLUMNS)
        TRY(add_curves(view, record, rows, out));
    if (sample > 0)
        add_sample(view, sample, out);
    add_styled(view, out, "2", "q quit   Tab next curve   l log scale   z zoom to the last quarter");
    return text_status(out);
}
