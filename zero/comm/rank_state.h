// The state that one rank shows to the others. It lets them tell a rank that computes from one that hangs,
// and two ranks in different collectives from two that wait for a third. Ranks on one machine read it in
// shared memory; others receive it as a report.
//
// Collectives are numbered from 0 in the order in which a rank issues them. Every rank must issue the same
// ones in the same order, so equal numbers mean the same collective.
#ifndef ZERO_ZERO_COMM_RANK_STATE_H
#define ZERO_ZERO_COMM_RANK_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum comm_collective {
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_EXCHANGE,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_GATHER,
    COLLECTIVE_SUM,
    COLLECTIVE_AGREE,
    COLLECTIVE_BARRIER,
    COLLECTIVE_CLOSE,
    N_COLLECTIVES
};
const char *comm_collective_name(enum comm_collective collective); // "reduce_scatter", "agree", ...

// Identifies one collective; sent in the header of each of its messages.
struct comm_id {
    uint64_t number;
    enum comm_collective collective;
};

// Bulk and control collectives use separate links, and a GPU runs its own collectives. So a rank may wait in
// one collective of each channel at the same time.
enum comm_channel { CHANNEL_BULK, CHANNEL_CONTROL, CHANNEL_DEVICE, N_CHANNELS };

#define STATE_HISTORY 128 // number of a rank's last collectives whose names are kept

// Times are milliseconds of CLOCK_MONOTONIC, which all processes of a machine share.
struct rank_state {
    atomic_llong heartbeat_ms; // when the watchdog last ran: the process is alive
    atomic_llong progress_ms;  // the last sign of work: collective issued, wait ended, unit computed
    atomic_ullong n_issued;    // number of collectives issued
    atomic_uchar collectives[STATE_HISTORY]; // enum comm_collective of number n, at n % STATE_HISTORY
    struct {
        atomic_int peer;       // 1 + the rank that this rank waits for; 0: not waiting
        atomic_ullong call;    // number of the collective in which it waits
        atomic_llong since_ms; // when the wait began
    } waits[N_CHANNELS];
};

// A snapshot of a rank_state, with ages instead of times.
struct rank_report {
    int64_t heartbeat_age_ms, progress_age_ms;
    uint64_t n_issued;
    uint8_t collectives[STATE_HISTORY];
    struct {
        int32_t peer; // the rank that this rank waits for; -1: not waiting
        uint64_t call;
        int64_t age_ms;
    } waits[N_CHANNELS];
};

int64_t rank_state_now_ms(void);
void rank_state_init(struct rank_state *state);
// Records that the next collective is issued, which counts as progress. Returns its number.
uint64_t rank_state_issue(struct rank_state *state, enum comm_collective collective);
void rank_state_progress(struct rank_state *state);
// Records that this rank waits for `peer` in collective `call`.
void rank_state_wait_begin(struct rank_state *state, enum comm_channel channel, int peer, uint64_t call);
void rank_state_wait_end(struct rank_state *state, enum comm_channel channel);
void rank_state_report(const struct rank_state *state, struct rank_report *out);

static inline bool report_is_waiting(const struct rank_report *report) {
    for (int channel = 0; channel < N_CHANNELS; channel++)
        if (report->waits[channel].peer >= 0)
            return true;
    return false;
}
// Finds which collective has this number. False if the rank has not issued it, or if it is not among the last
// STATE_HISTORY / 2 that the rank issued.
bool report_collective(const struct rank_report *report, uint64_t number, enum comm_collective *out);

#endif
