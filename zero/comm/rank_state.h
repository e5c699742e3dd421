// Inside communication: what one rank shows of itself, so that others can tell a rank that computes from one
// that hangs, and two ranks in different collectives from two that wait for a third. Ranks on one machine
// read it in shared memory; to others it travels as a report.
//
// Call numbers count the collectives that a rank has issued, from 0. Every rank must issue the same ones in
// the same order, so equal numbers mean the same collective.
#ifndef ZERO_ZERO_COMM_RANK_STATE_H
#define ZERO_ZERO_COMM_RANK_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum comm_collective {
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_GATHER,
    COLLECTIVE_SUM,
    COLLECTIVE_AGREE,
    COLLECTIVE_BARRIER,
    COLLECTIVE_CLOSE,
    N_COLLECTIVES
};
const char *comm_collective_name(enum comm_collective collective); // "reduce_scatter", "agree", ...

// One collective: what heads each of its messages.
struct comm_id {
    uint64_t number;
    enum comm_collective collective;
};

// Bulk calls and control calls use links of their own, so a rank may wait in one of each.
enum comm_channel { CHANNEL_BULK, CHANNEL_CONTROL, N_CHANNELS };

#define STATE_HISTORY 128 // collectives whose names are kept

// Times are milliseconds of CLOCK_MONOTONIC, which all processes of a machine share.
struct rank_state {
    atomic_llong heartbeat_ms; // the watching thread was here: the process runs
    atomic_llong progress_ms;  // the last sign of work: a call issued, a message taken, a unit computed
    atomic_ullong n_issued;
    atomic_uchar collectives[STATE_HISTORY]; // of call n at n % STATE_HISTORY
    struct {
        atomic_int peer; // rank + 1 of the one that is waited for; 0: not waiting
        atomic_ullong call;
        atomic_llong since_ms;
    } waits[N_CHANNELS];
};

// A rank_state as it was at one moment, with ages instead of times.
struct rank_report {
    int64_t heartbeat_age_ms, progress_age_ms;
    uint64_t n_issued;
    uint8_t collectives[STATE_HISTORY];
    struct {
        int32_t peer; // rank, or -1
        uint64_t call;
        int64_t age_ms;
    } waits[N_CHANNELS];
};

int64_t rank_state_now_ms(void);
void rank_state_init(struct rank_state *state);
// The next call is issued: its number. A sign of progress.
uint64_t rank_state_issue(struct rank_state *state, enum comm_collective collective);
void rank_state_progress(struct rank_state *state);
void rank_state_wait_begin(struct rank_state *state, enum comm_channel channel, int peer, uint64_t call);
void rank_state_wait_end(struct rank_state *state, enum comm_channel channel);
void rank_state_report(const struct rank_state *state, struct rank_report *out);

static inline bool report_is_waiting(const struct rank_report *report) {
    return report->waits[CHANNEL_BULK].peer >= 0 || report->waits[CHANNEL_CONTROL].peer >= 0;
}
// Whether the rank has issued call `number` and its name is still known: then *out.
bool report_collective(const struct rank_report *report, uint64_t number, enum comm_collective *out);

#endif
