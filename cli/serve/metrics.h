// Counters of the server, for /metrics in Prometheus's text format.
#ifndef ZERO_CLI_SERVE_METRICS_H
#define ZERO_CLI_SERVE_METRICS_H

#include <stdint.h>

#include "base/text.h"

#define HISTOGRAM_BUCKETS 14

struct histogram {
    int64_t counts[HISTOGRAM_BUCKETS + 1]; // the last one: above all bounds
    double sum;
};

#define MOST_CODES 16

struct metrics {
    struct {
        int code;
        int64_t n;
    } requests[MOST_CODES]; // by HTTP status
    int64_t disconnected;   // clients that left before their answer
    int64_t prompt_tokens, generated_tokens, steps;
    struct histogram request_s, first_token_s, step_s;
};

// What is so at this moment.
struct metrics_now {
    int texts_running, texts_waiting, slots, connections;
    size_t cache_used, cache_positions;
};

void histogram_add(struct histogram *histogram, double seconds);
void metrics_count_request(struct metrics *metrics, int code);
void metrics_print(const struct metrics *metrics, const struct metrics_now *now, struct text *out);

#endif
