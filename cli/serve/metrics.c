#include "cli/serve/metrics.h"

#include <stdio.h>
#include <unistd.h>

static const double bounds[HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                 0.25,  0.5,    1,     2.5,  5,     10,   60};

void histogram_add(struct histogram *histogram, double seconds) {
    int i = 0;
    while (i < HISTOGRAM_BUCKETS && seconds > bounds[i])
        i++;
    histogram->counts[i]++;
    histogram->sum += seconds;
}

void metrics_count_request(struct metrics *metrics, int code) {
    int i = 0;
    while (i < MOST_CODES - 1 && metrics->requests[i].n > 0 && metrics->requests[i].code != code)
        i++;
    metrics->requests[i].code = code;
    metrics->requests[i].n++;
}

static void add_header(struct text *out, const char *name, const char *type, const char *help) {
    text_add(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_value(struct text *out, const char *name, const char *type, const char *help, double value) {
    char number[32];
    add_header(out, name, type, help);
    text_add(out, "%s %s\n", name, text_double(number, value));
}

static void add_histogram(struct text *out, const char *name, const char *help,
                          const struct histogram *histogram) {
    int64_t n = 0;
    char number[32];
    add_header(out, name, "histogram", help);
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        n += histogram->counts[i];
        text_add(out, "%s_bucket{le=\"%s\"} %lld\n", name, text_double(number, bounds[i]), (long long)n);
    }
    n += histogram->counts[HISTOGRAM_BUCKETS];
    text_add(out, "%s_bucket{le=\"+Inf\"} %lld\n%s_sum %s\n%s_count %lld\n", name, (long long)n, name,
             text_double(number, histogram->sum), name, (long long)n);
}

// 0 where the system does not tell.
static double resident_bytes(void) {
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*s %lld", &pages) != 1)
        pages = 0;
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

void metrics_print(const struct metrics *metrics, const struct metrics_now *now, struct text *out) {
    add_header(out, "zero_requests_total", "counter", "Answered requests, by HTTP status.");
    for (int i = 0; i < MOST_CODES; i++)
        if (metrics->requests[i].n > 0)
            text_add(out, "zero_requests_total{code=\"%d\"} %lld\n", metrics->requests[i].code,
                     (long long)metrics->requests[i].n);
    add_value(out, "zero_disconnected_total", "counter", "Clients that left before their answer.",
              (double)metrics->disconnected);
    add_value(out, "zero_prompt_tokens_total", "counter", "Tokens of prompts.",
              (double)metrics->prompt_tokens);
    add_value(out, "zero_generated_tokens_total", "counter", "Tokens generated.",
              (double)metrics->generated_tokens);
    add_value(out, "zero_steps_total", "counter", "Decoding steps.", (double)metrics->steps);
    add_value(out, "zero_texts_running", "gauge", "Texts that are being generated.", now->texts_running);
    add_value(out, "zero_texts_waiting", "gauge", "Texts that wait for a slot.", now->texts_waiting);
    add_value(out, "zero_slots", "gauge", "Texts that can be generated together.", now->slots);
    add_value(out, "zero_connections", "gauge", "Open connections.", now->connections);
    add_value(out, "zero_cache_positions_used", "gauge", "Positions of the key-value cache in use.",
              (double)now->cache_used);
    add_value(out, "zero_cache_positions", "gauge", "Positions of the key-value cache.",
              (double)now->cache_positions);
    add_value(out, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    add_histogram(out, "zero_request_seconds", "Seconds from a request for a completion to its end.",
                  &metrics->request_s);
    add_histogram(out, "zero_first_token_seconds", "Seconds from such a request to its first token.",
                  &metrics->first_token_s);
    add_histogram(out, "zero_step_seconds", "Seconds of a decoding step.", &metrics->step_s);
}
