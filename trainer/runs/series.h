// Values over the steps of a run, in bounded memory: buckets of consecutive lines with the least, the
// greatest and the mean value, so that no spike is lost however long the run is. When the buckets are used
// up, each two neighbours become one.
#ifndef ZERO_TRAINER_RUNS_SERIES_H
#define ZERO_TRAINER_RUNS_SERIES_H

#include <stdint.h>

enum { SERIES_VALUES = 9 }; // values per line, at most

// Of the values that are finite: count 0 where none is.
struct series_range {
    double low, high, sum;
    int64_t count;
};
struct series_bucket {
    int64_t first, last;  // steps of its lines
    int64_t lines;        // how many
    double tokens, hours; // of its last line
    struct series_range ranges[SERIES_VALUES];
};
struct series {
    struct series_bucket *buckets;
    int n, capacity;
    int64_t lines_per_bucket; // of all but the last
};

// capacity: an even number of buckets, from 2; half of them to all are in use once there are as many lines.
void series_init(struct series *series, int capacity);
void series_free(struct series *series);
void series_clear(struct series *series);
// Adds a line. If its step is not above the last one, the run was resumed before it: buckets that reach the
// step are dropped first.
//   values   SERIES_VALUES of them; those that are not finite are left out
void series_add(struct series *series, int64_t step, double tokens, double hours, const double *values);

#endif
