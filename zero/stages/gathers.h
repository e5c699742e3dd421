// Plans the fetches of stage-3 passes: into which slot each unit is gathered, and when the gather begins.
// The result is a pure function of the recorded traces. So `./train plan` knows the memory, all ranks issue
// the same gathers, and passes of the same kind find each tensor at the same address.
//
// A fetch occupies a slot from the start of its gather until the unit's release. There are enough slots, of
// sufficient size, for the fetches that overlap: those in use and, with prefetch, the next one. Blocks of
// different sizes or a large lm_head need no special rule.
#ifndef ZERO_ZERO_STAGES_GATHERS_H
#define ZERO_ZERO_STAGES_GATHERS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

// Maximum number of slots: a pass holds at most two units at a time (model/hooks.h), and one is prefetched.
#define GATHER_SLOTS_MOST 3
#define NO_FETCH          (-1)

// An event of a trace: a unit is acquired or released.
struct gather_event {
    // The unit, if it is gathered into a slot for this use. NO_FETCH: all its tensors are persistent, or it
    // is used only for its gradients.
    int fetch;
    bool acquires; // true: the unit is acquired; false: it is released
};

// The actions at one event.
struct gather_step {
    int slot; // slot of the event's fetch; -1 with NO_FETCH
    // The fetch whose gather begins after this event, and its slot. NO_FETCH and -1: none begins.
    int ahead, ahead_slot;
};

struct gather_pass {
    const struct gather_event *events;
    struct gather_step *steps; // (n_events) the memory is the caller's; gathers_plan sets the contents
    int n_events;
};

struct gather_slots {
    size_t elements[GATHER_SLOTS_MOST]; // size of each slot
    int n;
};

struct gather_options {
    const size_t *elements; // (n_units) size of each unit's fetch, in elements
    bool prefetch;          // begin the next fetch while the current one is in use
};

// Computes the steps of all passes, and slots that suffice for all of them. With prefetch, the next fetch
// begins as soon as a slot is free for it; at most one fetch is ahead.
void gathers_plan(const struct gather_pass *passes, int n_passes, const struct gather_options *options,
                  struct gather_slots *out);

#endif
