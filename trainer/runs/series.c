#include "trainer/runs/series.h"

#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"

void series_init(struct series *series, int capacity) {
    *series = (struct series){.buckets = allocate((size_t)capacity, sizeof *series->buckets),
                              .capacity = capacity,
                              .lines_per_bucket = 1};
}

void series_free(struct series *series) {
    free(series->buckets);
    *series = (struct series){0};
}

void series_clear(struct series *series) {
    series->n = 0;
    series->lines_per_bucket = 1;
}

static void merge_ranges(struct series_range *into, const struct series_range *from) {
    if (from->count == 0)
        return;
    into->low = into->count > 0 ? fmin(into->low, from->low) : from->low;
    into->high = into->count > 0 ? fmax(into->high, from->high) : from->high;
    into->sum += from->sum;
    into->count += from->count;
}

// Merges a bucket into the one before it.
static void merge(struct series_bucket *into, const struct series_bucket *from) {
    into->last = from->last;
    into->lines += from->lines;
    into->tokens = from->tokens;
    into->hours = from->hours;
    for (int i = 0; i < SERIES_VALUES; i++)
        merge_ranges(&into->ranges[i], &from->ranges[i]);
}

static void halve(struct series *series) {
    for (int i = 0; i < series->n / 2; i++) {
        series->buckets[i] = series->buckets[2 * i];
        merge(&series->buckets[i], &series->buckets[2 * i + 1]);
    }
    series->n /= 2;
    series->lines_per_bucket *= 2;
}

void series_add(struct series *series, int64_t step, double tokens, double hours, const double *values) {
    struct series_bucket line = {.first = step, .last = step, .lines = 1, .tokens = tokens, .hours = hours};
    for (int i = 0; i < SERIES_VALUES; i++)
        if (isfinite(values[i]))
            line.ranges[i] = (struct series_range){values[i], values[i], values[i], 1};
    while (series->n > 0 && series->buckets[series->n - 1].last >= step)
        series->n--;
    struct series_bucket *last = series->n > 0 ? &series->buckets[series->n - 1] : NULL;
    if (last && last->lines < series->lines_per_bucket) {
        merge(last, &line);
        return;
    }
    if (series->n == series->capacity)
        halve(series);
    series->buckets[series->n++] = line;
}
