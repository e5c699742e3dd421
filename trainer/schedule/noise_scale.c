// See the header.
#include "trainer/schedule/noise_scale.h"

#include <math.h>

void noise_record_add(struct noise_record *record, double small, double n_small, double large,
                      double n_large) {
    const double square = (n_large * large - n_small * small) / (n_large - n_small),
                 variance = (small - large) / (1 / n_small - 1 / n_large),
                 keep = record->n > 0 ? NOISE_DECAY : 0;
    record->square = keep * record->square + (1 - keep) * square;
    record->variance = keep * record->variance + (1 - keep) * variance;
    record->n++;
    record->n_since++;
}

double noise_scale(const struct noise_record *record) {
    return record->n > 0 && record->square > 0 ? fmax(0, record->variance) / record->square : NAN;
}

bool noise_wants_more(const struct noise_record *record, int64_t batch_size, int64_t most) {
    return record->n_since >= NOISE_PATIENCE && 2 * batch_size <= most &&
           noise_scale(record) >= 2 * (double)batch_size;
}
