// The files of a run folder: whatever metrics.jsonl and sessions.jsonl hold, what is read keeps its bounds.
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/runs/run_record.h"

enum { POINTS = 8 };

static void check_series(const struct series *series) {
    FUZZ_REQUIRE(series->n >= 0 && series->n <= POINTS);
    for (int i = 0; i < series->n; i++) {
        const struct series_bucket *bucket = &series->buckets[i];
        FUZZ_REQUIRE(bucket->first <= bucket->last && bucket->lines >= 1 && isfinite(bucket->hours));
        FUZZ_REQUIRE(i == 0 || series->buckets[i - 1].last < bucket->first);
        for (int k = 0; k < SERIES_VALUES; k++)
            FUZZ_REQUIRE(bucket->ranges[k].count == 0 || bucket->ranges[k].low <= bucket->ranges[k].high);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char metrics[320], folder[320];
    struct run_record record;
    snprintf(metrics, sizeof metrics, "%s", fuzz_file("metrics.jsonl", data, size));
    const char *sessions = fuzz_file("sessions.jsonl", data, size);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(metrics, '/') - metrics), metrics);
    run_record_open(&record, folder, POINTS);
    FUZZ_REQUIRE(run_record_update(&record, NULL) == STATUS_OK);
    check_series(&record.steps);
    check_series(&record.evals);
    FUZZ_REQUIRE(record.n_sessions <= SESSIONS_MOST && record.n_scores <= MOST_SCORES);
    (void)run_record_recent_loss(&record);
    (void)run_record_seconds_left(&record);
    run_record_close(&record);
    unlink(metrics);
    unlink(sessions);
    return 0;
}
