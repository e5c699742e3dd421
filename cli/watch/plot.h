// Curves in a terminal, of braille characters (2 x 4 dots each) or of ASCII.
#ifndef ZERO_CLI_WATCH_PLOT_H
#define ZERO_CLI_WATCH_PLOT_H

#include <stdbool.h>

#include "base/text.h"

struct plot {
    const char *title;
    int columns, rows; // of the whole plot: a title, the curve with labels at its left, and the axis below
    bool unicode, log; // log: of y, where all values are above 0
    double x_low, x_high;
    const double *x, *y; // (n) the curve, x ascending; a y that is not finite leaves a gap
    int n;
    const double *mark_x, *mark_y; // (n_marks) single points, drawn over the curve
    int n_marks;
};
enum { PLOT_LEAST_COLUMNS = 24, PLOT_LEAST_ROWS = 5, PLOT_MOST_COLUMNS = 600, PLOT_MOST_ROWS = 300 };

// Appends line i of the plot to lines[i], each `columns` characters wide. STATUS_FAILED: out of memory.
enum status plot_draw(const struct plot *plot, struct text *lines) MUST_CHECK;

#endif
