// How slots get their sizes: at each event of a pass, the fetches that occupy slots are sorted by size,
// largest first. Slot k is as large as the largest fetch that is ever in place k of this order. Each fetch
// then goes into the smallest free slot that can hold it. If a smaller fetch already occupies the only slot
// that is large enough, another slot grows, and all passes are planned again.
#include "zero/stages/gathers.h"

#include <assert.h>

// The contents of the slots at one time.
struct occupancy {
    int fetches[GATHER_SLOTS_MOST]; // NO_FETCH: the slot is free
};

static int slot_holding(const struct occupancy *now, int fetch) {
    for (int i = 0; i < GATHER_SLOTS_MOST; i++)
        if (now->fetches[i] == fetch)
            return i;
    return -1;
}

// Returns the smallest free slot of at least `elements`; -1 if there is none.
static int smallest_free(const struct occupancy *now, const struct gather_slots *slots, size_t elements) {
    int best = -1;
    for (int i = 0; i < slots->n; i++)
        if (now->fetches[i] == NO_FETCH && slots->elements[i] >= elements &&
            (best < 0 || slots->elements[i] < slots->elements[best]))
            best = i;
    return best;
}

// Makes room for a fetch that found no slot: enlarges the largest free slot, or adds one.
static void grow(const struct occupancy *now, struct gather_slots *slots, size_t elements) {
    int largest = -1;
    for (int i = 0; i < slots->n; i++)
        if (now->fetches[i] == NO_FETCH && (largest < 0 || slots->elements[i] > slots->elements[largest]))
            largest = i;
    assert(largest >= 0 || slots->n < GATHER_SLOTS_MOST);
    if (largest < 0)
        largest = slots->n++;
    slots->elements[largest] = elements;
}

// Returns the next fetch that is acquired after event i; NO_FETCH if there is none, or without prefetch.
static int next_fetch(const struct gather_pass *pass, int i, const struct gather_options *options) {
    for (i++; options->prefetch && i < pass->n_events; i++)
        if (pass->events[i].acquires && pass->events[i].fetch != NO_FETCH)
            return pass->events[i].fetch;
    return NO_FETCH;
}

// Sorts the sizes of n simultaneous fetches, largest first, and enlarges each slot k to at least the k-th.
static void raise_slots(struct gather_slots *slots, size_t *sizes, int n) {
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && sizes[k] > sizes[k - 1]; k--) {
            const size_t smaller = sizes[k - 1];
            sizes[k - 1] = sizes[k];
            sizes[k] = smaller;
        }
    for (int k = 0; k < n; k++)
        if (sizes[k] > slots->elements[k])
            slots->elements[k] = sizes[k];
    if (n > slots->n)
        slots->n = n;
}

static struct occupancy nothing(void) {
    struct occupancy now;
    for (int i = 0; i < GATHER_SLOTS_MOST; i++)
        now.fetches[i] = NO_FETCH;
    return now;
}

static void size_slots(const struct gather_pass *pass, const struct gather_options *options,
                       struct gather_slots *slots) {
    struct occupancy now = nothing();
    for (int i = 0; i < pass->n_events; i++) {
        const int fetch = pass->events[i].fetch;
        if (fetch == NO_FETCH)
            continue;
        const int at = slot_holding(&now, pass->events[i].acquires ? NO_FETCH : fetch);
        assert(at >= 0);
        now.fetches[at] = pass->events[i].acquires ? fetch : NO_FETCH;
        const int next = next_fetch(pass, i, options);
        size_t sizes[GATHER_SLOTS_MOST + 1];
        int n = 0;
        for (int k = 0; k < GATHER_SLOTS_MOST; k++)
            if (now.fetches[k] != NO_FETCH)
                sizes[n++] = options->elements[now.fetches[k]];
        if (next != NO_FETCH && slot_holding(&now, next) < 0)
            sizes[n++] = options->elements[next];
        assert(n <= GATHER_SLOTS_MOST);
        raise_slots(slots, sizes, n);
    }
}

// Assigns slots to a pass. Returns false if a slot had to grow.
static bool place(const struct gather_pass *pass, const struct gather_options *options,
                  struct gather_slots *slots) {
    struct occupancy now = nothing();
    for (int i = 0; i < pass->n_events; i++) {
        const struct gather_event event = pass->events[i];
        struct gather_step *step = &pass->steps[i];
        *step = (struct gather_step){.slot = -1, .ahead = NO_FETCH, .ahead_slot = -1};
        if (event.fetch == NO_FETCH)
            continue;
        step->slot = slot_holding(&now, event.fetch);
        if (step->slot < 0)
            step->slot = smallest_free(&now, slots, options->elements[event.fetch]);
        if (step->slot < 0) {
            grow(&now, slots, options->elements[event.fetch]);
            return false;
        }
        now.fetches[step->slot] = event.acquires ? event.fetch : NO_FETCH;
        const int next = next_fetch(pass, i, options);
        const int free_slot = next == NO_FETCH || slot_holding(&now, next) >= 0
                                  ? -1
                                  : smallest_free(&now, slots, options->elements[next]);
        if (free_slot < 0)
            continue;
        now.fetches[free_slot] = step->ahead = next;
        step->ahead_slot = free_slot;
    }
    return true;
}

void gathers_plan(const struct gather_pass *passes, int n_passes, const struct gather_options *options,
                  struct gather_slots *out) {
    *out = (struct gather_slots){.n = 0};
    for (int i = 0; i < n_passes; i++)
        size_slots(&passes[i], options, out);
    for (int i = 0; i < n_passes;)
        i = place(&passes[i], options, out) ? i + 1 : 0;
}
