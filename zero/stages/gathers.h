// Plans into which slot each gather of a stage-3 pass goes, and when it begins. A pure function of the
// recorded traces, so that a plan knows the memory, all ranks issue the same gathers, and each pass of one
// kind finds each tensor at the same address.
//
// A fetch occupies a slot from its gather until it is released. Slots are as many and as large as the fetches
// that are there at once: the ones in use and, with prefetch, the next. Blocks of different sizes, or a large
// lm_head, need no rule of their own.
#ifndef ZERO_ZERO_STAGES_GATHERS_H
#define ZERO_ZERO_STAGES_GATHERS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GATHER_SLOTS_MOST 3 // a model holds at most two units at a time (model/hooks.h); and the next one
#define NO_FETCH          (-1)

// An event of a trace: what is acquired or released, if it is gathered.
struct gather_event {
    int fetch; // or NO_FETCH
    bool acquires;
};

// What to do at this event.
struct gather_step {
    int slot;              // an acquired fetch: where it is
    int ahead, ahead_slot; // the fetch to begin to gather after the event, and where; or NO_FETCH
};

struct gather_pass {
    const struct gather_event *events;
    struct gather_step *steps; // [w] (n_events)
    int n_events;
};

struct gather_slots {
    size_t elements[GATHER_SLOTS_MOST];
    int n;
};

struct gather_options {
    const size_t *elements; // of each fetch
    bool prefetch;
};

// Fills the steps of all passes, and the slots that serve them all. Begins the gather of the next fetch as
// soon as a slot is free for it, one ahead at most.
void gathers_plan(const struct gather_pass *passes, int n_passes, const struct gather_options *options,
                  struct gather_slots *out);

#endif
