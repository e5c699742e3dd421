// The ledger of a run, RUN/audit.jsonl: what `./train audit` compares a repetition of the run with. Rank 0
// appends one JSON object per line:
//   session   a start or resume: the state, and all that the run's bits depend on besides ("bound")
//   entry     the state after a step, and what was new since the last state: "steps", of each step its
//             number, the digest of its token rows and its figures; "decisions", lengths of the run by
//             train.max_minutes. Both are empty if the ledger knew the steps
// A state is "root", the digest of weights and optimizer states (zero/checkpoint/state_digest.h), and
// "records", the digest of what else a checkpoint has that later steps depend on.
//
// Each line ends with "hash": the digest of the hash before it and of the line up to there. So no line can be
// altered, added or removed but at the end, unless all later hashes are computed again. The last hash, the
// head, stands for the whole ledger. With a key, each line has a signature of its hash.
//
// In memory a ledger is the run's history. A session that repeats steps must repeat their figures and
// digests; only what the ledger does not have is appended. A session with another "bound" makes its own
// history: what the ledger has of later steps no longer counts.
#ifndef ZERO_TRAINER_RUNS_LEDGER_H
#define ZERO_TRAINER_RUNS_LEDGER_H

#include "base/digest.h"
#include "base/text.h"

#define LEDGER_NAME "audit.jsonl"

// Compared in this order.
enum ledger_figure { LEDGER_LR, LEDGER_LOSS, LEDGER_NORM, LEDGER_LOSS_SCALE, N_LEDGER_FIGURES };
struct ledger_step {
    int64_t step; // 1 for the first
    struct digest data;
    double figures[N_LEDGER_FIGURES]; // NaN: not finite
};
struct ledger_state {
    int64_t step; // number of steps done
    struct digest root, records;
};
struct ledger_decision { // of train.max_minutes, as in checkpoints (zero/checkpoint/run_state.h)
    int64_t step, total;
    double position, spent_s;
};
struct ledger_session {
    int64_t step; // number of steps done when it began
    char *bound;  // JSON object without white space
};
struct ledger_line {
    int64_t step;
    bool is_dropped; // a later session replaced the history that it belongs to
    struct digest hash;
    bool is_signed;
    unsigned char signature[SIGNATURE_BYTES];
};

// The lists are in ascending order of steps.
struct ledger {
    char *path;
    struct ledger_session *sessions; // those that the history consists of
    struct ledger_step *steps;
    struct ledger_state *states;
    struct ledger_decision *decisions;
    struct ledger_line *lines;
    size_t n_sessions, n_steps, n_states, n_decisions, n_lines;
    size_t bytes; // of the complete lines; a run that was killed may leave part of another one after them
    // For writing.
    int descriptor; // -1: nothing is written
    const struct signing_key *key;
    struct text new_steps, new_decisions; // that no line has yet, as an entry has them
};

// Reads the lines of the ledger at `path`. Free with ledger_free, also after a failure.
// STATUS_FAILED: a line was altered; the message names it.
enum status ledger_parse(struct ledger *ledger, const char *path, const char *text, size_t length) MUST_CHECK;
void ledger_free(struct ledger *ledger);

// What the ledger has of a step; NULL: nothing.
const struct ledger_step *ledger_step_at(const struct ledger *ledger, int64_t step);
const struct ledger_state *ledger_state_at(const struct ledger *ledger, int64_t step);
const struct ledger_decision *ledger_decision_at(const struct ledger *ledger, int64_t step);
// The session that trained the step after `step`.
const struct ledger_session *ledger_session_at(const struct ledger *ledger, int64_t step);

// ---- comparing, and appending what the ledger does not have. Once the ledger is open, that is written.
//
// STATUS_FAILED: the ledger has another value; the message names the step and what differs. Or the file
// cannot be written.

// Opens the file for appending. Removes an incomplete line at its end.
//   key   signs each line; NULL: no signatures. Must outlive the ledger
enum status ledger_open(struct ledger *ledger, const struct signing_key *key) MUST_CHECK;
// Begins a session that continues from `state`.
//   bound   JSON object
//   where   as below. NULL: the session begins with initial weights, which may differ if `bound` does
enum status ledger_begin_session(struct ledger *ledger, const struct ledger_state *state, const char *bound,
                                 const char *where) MUST_CHECK;
enum status ledger_add_step(struct ledger *ledger, const struct ledger_step *step) MUST_CHECK;
void ledger_add_decision(struct ledger *ledger, const struct ledger_decision *decision);
enum status ledger_add_state(struct ledger *ledger, const struct ledger_state *state) MUST_CHECK;
// Only compares. A state without an entry is a difference.
//   where   names what has the state, for the message: "the checkpoint runs/a/checkpoints/step-00000007"
enum status ledger_check_state(const struct ledger *ledger, const struct ledger_state *state,
                               const char *where) MUST_CHECK;

#endif
