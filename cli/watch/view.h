// What ./train watch shows of a run: a frame of text for a screen of any size, and a plain status.
#ifndef ZERO_CLI_WATCH_VIEW_H
#define ZERO_CLI_WATCH_VIEW_H

#include <stdbool.h>

#include "base/text.h"
#include "trainer/runs/run_record.h"

enum { VIEW_CURVES = 5 };

struct view {
    int columns, rows;
    bool unicode; // braille and the sample as it is; else ASCII
    bool colors;
    bool log;     // of y
    int curve;    // the first one shown, 0 to VIEW_CURVES - 1
    int quarter;  // the steps shown: all, or the last quarter, sixteenth, ... (a power of 4: 0, 1, 2, 3)
    char *sample; // the newest, made valid; NULL: none
    long long sample_step;
};

// Appends lines that end with '\n', at most `rows`, none wider than `columns`.
enum status view_frame(const struct view *view, const struct run_record *record, struct text *out) MUST_CHECK;
// Appends a few lines without escape sequences or curves.
void view_status(const struct run_record *record, struct text *out);

#endif
