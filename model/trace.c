// A mismatch between a pass and its trace is a bug in the model or in a stage, never bad input. It is still
// reported as an error that ends the run: ranks that gather in different orders would otherwise wait for
// each other forever.
#include "model/trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"

void trace_add(struct trace *trace, const struct trace_event *event) {
    RESERVE(trace->events, trace->n_events + 1, trace->capacity);
    trace->events[trace->n_events++] = *event;
}

void trace_free(struct trace *trace) {
    free(trace->events);
    *trace = (struct trace){0};
}

double trace_flops(const struct trace *trace) {
    double sum = 0;
    for (int i = 0; i < trace->n_events; i++)
        sum += trace->events[i].flops;
    return sum;
}

static const char *kind_name(enum trace_kind kind) {
    static const char *const names[N_TRACES] = {[TRACE_TRAINING] = "training",
                                                [TRACE_EVALUATION] = "evaluation",
                                                [TRACE_PROMPT] = "prompt",
                                                [TRACE_DECODING] = "decoding"};
    return names[kind];
}

struct event_text {
    char text[96];
};

static struct event_text describe(const struct trace_event *event) {
    static const char *const passes[] = {[GPT_FORWARD] = "forward",
                                         [GPT_BACKWARD] = "backward",
                                         [GPT_BACKWARD_FROZEN] = "backward, frozen",
                                         [GPT_BACKWARD_GRADS] = "its gradients"};
    struct event_text out;
    snprintf(out.text, sizeof out.text, "%s unit %d for %s", event->acquires ? "acquires" : "releases",
             event->unit, passes[event->pass]);
    return out;
}

enum status trace_begin(struct trace_cursor *cursor, const struct trace *trace) {
    if (cursor->trace && cursor->next < cursor->trace->n_events)
        return FAIL(STATUS_FAILED,
                    "internal error: a pass of %s begins where the recorded pass of %s %s (event %d of %d)",
                    kind_name(trace->kind), kind_name(cursor->trace->kind),
                    describe(&cursor->trace->events[cursor->next]).text, cursor->next,
                    cursor->trace->n_events);
    *cursor = (struct trace_cursor){.trace = trace};
    return STATUS_OK;
}

enum status trace_follow(struct trace_cursor *cursor, const struct trace_event *event) {
    if (!cursor->trace)
        return FAIL(STATUS_FAILED, "internal error: the model %s before a pass began", describe(event).text);
    if (cursor->next == cursor->trace->n_events)
        return FAIL(STATUS_FAILED, "internal error: the model %s after the end of the recorded pass of %s",
                    describe(event).text, kind_name(cursor->trace->kind));
    const struct trace_event *expected = &cursor->trace->events[cursor->next];
    if (event->acquires != expected->acquires || event->unit != expected->unit ||
        event->pass != expected->pass)
        return FAIL(STATUS_FAILED,
                    "internal error: the model %s where the recorded pass of %s %s (event %d of %d)",
                    describe(event).text, kind_name(cursor->trace->kind), describe(expected).text,
                    cursor->next, cursor->trace->n_events);
    cursor->next++;
    return STATUS_OK;
}
