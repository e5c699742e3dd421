// Values over the steps of a run, in bounded memory. Buckets of consecutive lines keep the minimum, the
// maximum and the mean, so that no spike is lost however long the run is. When the buckets are used up,
// neighbors are merged in pairs.
#ifndef ZERO_TRAINER_RUNS_SERIES_H
#define ZERO_TRAINER_RUNS_SERIES_H

#include <stdint.h>

enum { SERIES_VALUES = 9 }; // values per line, at most

// Statistics of the finite values; count is 0 if there are none.
struct series_range {
    double low, high, sum;
    int64_t count;
};
struct series_bucket {
    int64_t first, last;  // steps of its first and last lines
    int64_t lines;        // number of lines
    double tokens, hours; // of the last line
    struct series_range ranges[SERIES_VALUES];
};
struct series {
    struct series_bucket *buckets;
    int n, capacity;
    int64_t lines_per_bucket; // in all buckets except the last
};

// capacity: number of buckets, even and at least 2. With that many lines or more, at least half of them are
// in use.
void series_init(struct series *series, int capacity);
void series_free(struct series *series);
void series_clear(struct series *series);
// Adds a line. If its step is not above the last one, the run was resumed at an earlier step: buckets that
// reach the step are dropped first.
//   values   (SERIES_VALUES); values that are not finite are left out
void series_add(struct series *series, int64_t step, double tokens, double hours, const double *values);

#endif
