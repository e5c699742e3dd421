// Recorded traces: the order in which a pass acquires and releases units, and the FLOPs in between. A model's
// passes do not depend on the tokens, so a dry run records each of them once (gpt_trace). A ZeRO stage plans
// its gathers, buffers and communication from the traces, and follows them at run time: an acquire or release
// that the trace does not have at this place is an error.
#ifndef ZERO_MODEL_TRACE_H
#define ZERO_MODEL_TRACE_H

#include "model/hooks.h"

struct trace_event {
    bool acquires; // false: releases
    int unit;
    enum gpt_pass pass; // what the unit is acquired for
    double flops;       // of the operations after this event and before the next
};

struct trace {
    enum trace_kind kind;
    struct trace_event *events;
    int n_events, capacity;
    // FLOPs of recomputing attention's scores in backward. The events' `flops` include them.
    double recomputed_scores;
};

void trace_add(struct trace *trace, const struct trace_event *event);
void trace_free(struct trace *trace);

double trace_flops(const struct trace *trace);

// The progress of a pass through a trace.
struct trace_cursor {
    const struct trace *trace; // NULL: before the first pass
    int next;                  // the event that must come next
};
// Begins a pass. STATUS_FAILED: the previous pass has not reached the end of its trace.
enum status trace_begin(struct trace_cursor *cursor, const struct trace *trace) MUST_CHECK;
// Compares an event of the pass, except `flops`, with the trace's next event, and moves the cursor past it.
// STATUS_FAILED if they differ; the message names both. Afterwards cursor->next - 1 is the event's index.
enum status trace_follow(struct trace_cursor *cursor, const struct trace_event *event) MUST_CHECK;

#endif
