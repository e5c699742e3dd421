#include "cli/watch/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL = 8, DOTS_X = 2, DOTS_Y = 4 };

// Bits of a braille character, by row and column of its dots.
static const unsigned char dot_bits[DOTS_Y][DOTS_X] = {
    {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};

struct canvas {
    const struct plot *plot;
    int columns, rows;    // in characters
    int width, height;    // in dots
    unsigned char *cells; // (rows, columns) bits of dots
    bool *marks;          // (rows, columns)
    double low, high;     // of y, as drawn (logarithms with `log`)
    bool log;
};

static double scaled(const struct canvas *canvas, double y) {
    return canvas->log ? (y > 0 ? log10(y) : NAN) : y;
}

static void include(double value, double *low, double *high) {
    if (isfinite(value)) {
        *low = fmin(*low, value);
        *high = fmax(*high, value);
    }
}

static bool is_in_view(const struct plot *plot, double x) {
    return x >= plot->x_low && x <= plot->x_high;
}

static void find_range(struct canvas *canvas) {
    const struct plot *plot = canvas->plot;
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < plot->n; i++)
        if (is_in_view(plot, plot->x[i]))
            include(scaled(canvas, plot->y[i]), &low, &high);
    for (int i = 0; i < plot->n_marks; i++)
        if (is_in_view(plot, plot->mark_x[i]))
            include(scaled(canvas, plot->mark_y[i]), &low, &high);
    if (!(low <= high))
        low = 0, high = 1;
    if (low == high) {
        const double margin = fmax(fabs(low) * 0.05, 1e-12);
        low -= margin;
        high += margin;
    }
    canvas->low = low;
    canvas->high = high;
}

static int dot_x(const struct canvas *canvas, double x) {
    const struct plot *plot = canvas->plot;
    const double width = plot->x_high > plot->x_low ? plot->x_high - plot->x_low : 1;
    return (int)lround((x - plot->x_low) / width * (canvas->width - 1));
}

static int dot_y(const struct canvas *canvas, double y) {
    const double part = (y - canvas->low) / (canvas->high - canvas->low);
    return (int)lround((1 - fmin(1, fmax(0, part))) * (canvas->height - 1));
}

static void set_dot(struct canvas *canvas, int x, int y) {
    canvas->cells[y / DOTS_Y * canvas->columns + x / DOTS_X] |= dot_bits[y % DOTS_Y][x % DOTS_X];
}

// Points that share a column of dots become their mean; columns with nothing between are joined.
static void draw_curve(struct canvas *canvas) {
    const struct plot *plot = canvas->plot;
    int last_x = -1, last_y = 0;
    for (int i = 0; i < plot->n;) {
        if (!is_in_view(plot, plot->x[i])) {
            i++;
            continue;
        }
        const int x = dot_x(canvas, plot->x[i]);
        double sum = 0;
        int n = 0;
        bool gap = false;
        for (; i < plot->n && is_in_view(plot, plot->x[i]) && dot_x(canvas, plot->x[i]) == x; i++) {
            const double y = scaled(canvas, plot->y[i]);
            gap |= !isfinite(y);
            sum += isfinite(y) ? y : 0;
            n += isfinite(y);
        }
        if (n == 0) {
            last_x = -1;
            continue;
        }
        const int y = dot_y(canvas, sum / n);
        for (int at = last_x < 0 ? x : last_x; at <= x; at++) {
            const double part = last_x < 0 || x == last_x ? 1 : (double)(at - last_x) / (x - last_x),
                         before = last_x < 0 || x == last_x
                                      ? 1
                                      : fmax(0, (double)(at - 1 - last_x) / (x - last_x));
            const int from = last_x < 0 ? y : (int)lround(last_y + before * (y - last_y)),
                      to = last_x < 0 ? y : (int)lround(last_y + part * (y - last_y));
            for (int k = from < to ? from : to; k <= (from < to ? to : from); k++)
                set_dot(canvas, at, k);
        }
        last_x = gap ? -1 : x;
        last_y = y;
    }
}

static void draw_marks(struct canvas *canvas) {
    const struct plot *plot = canvas->plot;
    for (int i = 0; i < plot->n_marks; i++) {
        const double y = scaled(canvas, plot->mark_y[i]);
        if (is_in_view(plot, plot->mark_x[i]) && isfinite(y))
            canvas->marks[dot_y(canvas, y) / DOTS_Y * canvas->columns +
                          dot_x(canvas, plot->mark_x[i]) / DOTS_X] = true;
    }
}

// ---- text

static void add_cell(struct text *line, const struct canvas *canvas, int index) {
    const unsigned char bits = canvas->cells[index];
    if (canvas->marks[index])
        text_add(line, canvas->plot->unicode ? "\xE2\x97\x8F" : "o"); // black circle
    else if (bits == 0)
        text_add(line, " ");
    else if (canvas->plot->unicode) {
        const char braille[] = {(char)0xE2, (char)(0xA0 | bits >> 6), (char)(0x80 | (bits & 0x3F)), '\0'};
        text_add(line, "%s", braille);
    } else // upper dots, lower dots, or both
        text_add(line, bits & 0x1B ? (bits & 0xE4 ? ":" : "'") : ".");
}

static void add_label(struct text *line, double value) {
    char label[32];
    const double size = fabs(value);
    if (size >= 10000)
        text_count(label, sizeof label, value);
    else
        snprintf(label, sizeof label, size != 0 && size < 1e-3 ? "%.1e" : size < 10 ? "%.4f" : "%.1f", value);
    text_add(line, "%*.*s ", LABEL - 1, LABEL - 1, label);
}

static void add_rows(const struct canvas *canvas, struct text *lines) {
    for (int row = 0; row < canvas->rows; row++) {
        const bool labelled = row == 0 || row == canvas->rows - 1 || row == canvas->rows / 2;
        const double y = canvas->high - (canvas->high - canvas->low) * row / (canvas->rows - 1);
        if (labelled)
            add_label(&lines[row + 1], canvas->log ? pow(10, y) : y);
        else
            text_add(&lines[row + 1], "%*s", LABEL, "");
        for (int column = 0; column < canvas->columns; column++)
            add_cell(&lines[row + 1], canvas, row * canvas->columns + column);
    }
}

// Padded by characters, of which UTF-8's bytes 0x80 to 0xBF begin none.
static void add_title(const struct canvas *canvas, struct text *line) {
    int width = 0;
    text_add(line, "%*s", LABEL, "");
    for (const char *at = canvas->plot->title; *at; at++) {
        width += ((unsigned char)*at & 0xC0) != 0x80;
        if (width > canvas->columns)
            break;
        text_add_bytes(line, at, 1);
    }
    text_add(line, "%*s", width < canvas->columns ? canvas->columns - width : 0, "");
}

static void add_axis(const struct plot *plot, struct text *line) {
    char low[32], high[32];
    text_count(low, sizeof low, plot->x_low);
    text_count(high, sizeof high, plot->x_high);
    text_add(line, "%*s%s%*s", LABEL, "", low, plot->columns - LABEL - (int)strlen(low), high);
}

enum status plot_draw(const struct plot *plot, struct text *lines) {
    struct canvas canvas = {
        .plot = plot, .columns = plot->columns - LABEL, .rows = plot->rows - 2, .log = plot->log};
    for (int i = 0; i < plot->n && canvas.log; i++)
        canvas.log = !(plot->y[i] <= 0);
    canvas.width = canvas.columns * DOTS_X;
    canvas.height = canvas.rows * DOTS_Y;
    const size_t n = (size_t)canvas.columns * (size_t)canvas.rows;
    canvas.cells = calloc(n, 1);
    canvas.marks = calloc(n, sizeof *canvas.marks);
    if (canvas.cells && canvas.marks) {
        find_range(&canvas);
        draw_curve(&canvas);
        draw_marks(&canvas);
        add_title(&canvas, &lines[0]);
        add_rows(&canvas, lines);
        add_axis(plot, &lines[plot->rows - 1]);
    }
    const bool failed = !canvas.cells || !canvas.marks;
    free(canvas.cells);
    free(canvas.marks);
    return failed ? FAIL(STATUS_FAILED, "out of memory for a plot of %d x %d", plot->columns, plot->rows)
                  : STATUS_OK;
}
