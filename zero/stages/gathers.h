// Plans, for a stage-3 pass, the slot of each gather and when the gather begins. A pure function of the
// recorded traces. So a plan knows the memory, all ranks issue the same gathers, and each pass of a kind
// finds each tensor at the same address.
//
// A fetch occupies a slot from its gather until its release. The number and sizes of slots suffice for the
// fetches that overlap: those in use and, with prefetch, the next one. Blocks of different sizes or a large
// lm_head need no special rule.
#ifndef ZERO_ZERO_STAGES_GATHERS_H
#define ZERO_ZERO_STAGES_GATHERS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define GATHER_SLOTS_MOST 3 // a pass holds at most two units at a time (model/hooks.h), plus the next one
#define NO_FETCH          (-1)

// An event of a trace: the fetch that is acquired or released, if the unit is gathered.
struct gather_event {
    int fetch; // or NO_FETCH
    bool acquires;
};

// The actions at one event.
struct gather_step {
    int slot;              // if a fetch is acquired: its slot
    int ahead, ahead_slot; // the fetch whose gather begins after the event, and its slot; or NO_FETCH
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
    const size_t *elements; // size of each fetch
    bool prefetch;
};

// Computes the steps of all passes, and slots that suffice for all of them. Begins the gather of the next
// fetch as soon as a slot is free for it, at most one ahead.
void gathers_plan(const struct gather_pass *passes, int n_passes, const struct gather_options *options,
                  struct gather_slots *out);

#endif
