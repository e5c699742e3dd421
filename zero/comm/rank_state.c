// See zero/comm/rank_state.h. Relaxed atomics suffice: a reader in another process wants a recent value of
// each member, not a consistent snapshot. Only a collective's name must be visible before its number counts.
#include "zero/comm/rank_state.h"

#include "base/clock.h"

const char *comm_collective_name(enum comm_collective collective) {
    static const char *const names[N_COLLECTIVES] = {"reduce_scatter", "all_gather", "exchange",
                                                     "broadcast",      "gather",     "sum",
                                                     "agree",          "barrier",    "close"};
    return collective < N_COLLECTIVES ? names[collective] : "unknown";
}

int64_t rank_state_now_ms(void) {
    return (int64_t)(clock_monotonic_s() * 1e3);
}

void rank_state_init(struct rank_state *state) {
    atomic_store(&state->heartbeat_ms, rank_state_now_ms());
    atomic_store(&state->progress_ms, rank_state_now_ms());
    atomic_store(&state->n_issued, 0);
    for (int channel = 0; channel < N_CHANNELS; channel++)
        atomic_store(&state->waits[channel].peer, 0);
}

uint64_t rank_state_issue(struct rank_state *state, enum comm_collective collective) {
    uint64_t number = atomic_load_explicit(&state->n_issued, memory_order_relaxed);
    atomic_store_explicit(&state->collectives[number % STATE_HISTORY], (unsigned char)collective,
                          memory_order_relaxed);
    atomic_store_explicit(&state->n_issued, number + 1, memory_order_release);
    rank_state_progress(state);
    return number;
}

void rank_state_progress(struct rank_state *state) {
    atomic_store_explicit(&state->progress_ms, rank_state_now_ms(), memory_order_relaxed);
}

void rank_state_wait_begin(struct rank_state *state, enum comm_channel channel, int peer, uint64_t call) {
    atomic_store_explicit(&state->waits[channel].call, call, memory_order_relaxed);
    atomic_store_explicit(&state->waits[channel].since_ms, rank_state_now_ms(), memory_order_relaxed);
    atomic_store_explicit(&state->waits[channel].peer, peer + 1, memory_order_release);
}

void rank_state_wait_end(struct rank_state *state, enum comm_channel channel) {
    atomic_store_explicit(&state->waits[channel].peer, 0, memory_order_release);
    rank_state_progress(state);
}

void rank_state_report(const struct rank_state *state, struct rank_report *out) {
    int64_t now = rank_state_now_ms();
    out->heartbeat_age_ms = now - atomic_load(&state->heartbeat_ms);
    out->progress_age_ms = now - atomic_load(&state->progress_ms);
    out->n_issued = atomic_load_explicit(&state->n_issued, memory_order_acquire);
    for (int i = 0; i < STATE_HISTORY; i++)
        out->collectives[i] = atomic_load_explicit(&state->collectives[i], memory_order_relaxed);
    for (int channel = 0; channel < N_CHANNELS; channel++) {
        out->waits[channel].peer =
            atomic_load_explicit(&state->waits[channel].peer, memory_order_acquire) - 1;
        out->waits[channel].call = atomic_load(&state->waits[channel].call);
        out->waits[channel].age_ms = now - atomic_load(&state->waits[channel].since_ms);
    }
}

// Uses only the newer half of the history: the older half may be overwritten while a report is made.
bool report_collective(const struct rank_report *report, uint64_t number, enum comm_collective *out) {
    if (number >= report->n_issued || report->n_issued - number > STATE_HISTORY / 2)
        return false;
    *out = (enum comm_collective)report->collectives[number % STATE_HISTORY];
    return true;
}
