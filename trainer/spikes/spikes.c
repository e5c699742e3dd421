// Windows are short, so medians are found by sorting a copy in each step.
#include "trainer/spikes/spikes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAD_TO_DEVIATION 1.4826 // 1 / the 75th percentile of a normal distribution

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// values (n) are overwritten.
static double limit(double *values, int n, double threshold, double floor, double *middle) {
    *middle = median(values, n);
    for (int i = 0; i < n; i++)
        values[i] = fabs(values[i] - *middle);
    return *middle + threshold * fmax(MAD_TO_DEVIATION * median(values, n), floor * fabs(*middle));
}

static void append(struct spike_record *record, const struct spike_figures *figures, int64_t most) {
    const int n_dropped = record->n >= most ? record->n - (int)most + 1 : 0;
    record->n -= n_dropped;
    memmove(record->window, record->window + n_dropped, (size_t)record->n * sizeof *record->window);
    record->window[record->n++] = *figures;
}

struct spike_limits spikes_limits(const struct config *config, const struct spike_record *record,
                                  bool is_ahead) {
    struct spike_limits limits = {0};
    double losses[SPIKE_WINDOW_MOST + 1], norms[SPIKE_WINDOW_MOST + 1];
    const int most = (int)config->train.spike_window;
    int n = 0, first = record->n + (is_ahead && record->has_newest) - most;
    if (config->train.on_spike == CONFIG_ON_SPIKE_OFF || config->train.spike_threshold == 0)
        return limits;
    for (int i = first > 0 ? first : 0; i < record->n; i++, n++) {
        losses[n] = record->window[i].loss;
        norms[n] = record->window[i].norm;
    }
    if (is_ahead && record->has_newest) {
        losses[n] = record->newest.loss;
        norms[n++] = record->newest.norm;
    }
    if (n < SPIKE_FEWEST)
        return limits;
    limits.n_steps = n;
    limits.loss = limit(losses, n, config->train.spike_threshold, SPIKE_FLOOR_LOSS, &limits.median_loss);
    limits.norm = limit(norms, n, config->train.spike_threshold, SPIKE_FLOOR_NORM, &limits.median_norm);
    return limits;
}

void spikes_add(const struct config *config, struct spike_record *record,
                const struct spike_figures *figures) {
    if (config->train.on_spike == CONFIG_ON_SPIKE_OFF)
        return;
    if (record->has_newest)
        append(record, &record->newest, config->train.spike_window);
    record->has_newest = figures != NULL;
    if (figures)
        record->newest = *figures;
}
