// Values over the steps of a run, in bounded memory. Each line of metrics has up to SERIES_VALUES values. A
// bucket keeps the minimum, the maximum and the mean of consecutive lines, so that no spike is lost however
// long the run is. When all buckets are used, neighbors are merged in pairs.
#ifndef ZERO_TRAINER_RUNS_SERIES_H
#define ZERO_TRAINER_RUNS_SERIES_H

#include <stdint.h>

enum { SERIES_VALUES = 9 }; // maximum number of values per line

// Statistics of one value over the lines of a bucket in which it is finite; count is 0 if there are none.
struct series_range {
    double low, high, sum;
    int64_t count;
};
struct series_bucket {
    int64_t first, last;  // steps of the bucket's first and last lines
    int64_t lines;        // number of lines in the bucket
    double tokens, hours; // tokens and hours of training up to the last line
    struct series_range ranges[SERIES_VALUES];
};
struct series {
    struct series_bucket *buckets;
    int n, capacity;
    int64_t lines_per_bucket; // number of lines in every bucket but the last, which may have fewer
};

// Creates an empty series.
//   capacity   number of buckets, even and at least 2. From `capacity` lines on, at least half of the buckets
//              are in use
void series_init(struct series *series, int capacity);
void series_free(struct series *series);
void series_clear(struct series *series);
// Adds a line. If its step is not above the last one, the run was resumed at an earlier step: buckets with
// lines of this step or later ones are dropped first.
//   values   (SERIES_VALUES); values that are not finite are left out
void series_add(struct series *series, int64_t step, double tokens, double hours, const double *values);

#endif
