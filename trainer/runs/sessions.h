// The sessions of a run. A session is one start of ./train in a run folder. RUN/sessions.jsonl gets a line
// when a session begins (machine, version, sizes), a line at its first step (the constants that metrics.jsonl
// leaves out), and a line when it ends (how). The file is only appended to. A session without the last line
// is still running, or was killed.
#ifndef ZERO_TRAINER_RUNS_SESSIONS_H
#define ZERO_TRAINER_RUNS_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

// How a session ended, with the words in the file.
#define SESSION_ENDS(X)                                                                                      \
    X(SESSION_OPEN, "running")      /* its end is not recorded yet */                                        \
    X(SESSION_FINISHED, "finished") /* all steps of the run are done */                                      \
    X(SESSION_STOPPED, "stopped")   /* by a signal; the checkpoint is written */                             \
    X(SESSION_FAILED, "failed")     /* with a message */
#define SESSION_ENUM(constant, word) constant,
enum session_end { SESSION_ENDS(SESSION_ENUM) N_SESSION_ENDS };
#undef SESSION_ENUM
const char *session_end_name(enum session_end end);

struct session {
    double began, ended;     // wall-clock times in seconds; ended 0: the end is not recorded
    int64_t step;            // steps done when the session began
    int64_t end_step, total; // at the session's end: steps done, and expected steps of the whole run
    char machine[72];        // host name
    char device[200];        // description of rank 0's device
    char fingerprint[40];    // how rank 0's device rounds; "": not recorded
    char compute[16];        // name of the compute dtype
    char version[100];       // version of the program
    int ranks, threads;      // threads: of rank 0
    double parameters;       // number of the model's parameters
    double gemm_flops_per_s; // measured GEMM rate, sum over ranks
    double dense_peak_flops; // dense peak in FLOP/s, sum over ranks; 0: not known
    enum session_end end;
    char message[1000]; // message of the failure; "" without one
    // The line of the session's first step, a JSON object with the figures that are the same in all its
    // steps; "": absent. Earlier versions of this program wrote them to metrics.jsonl in every step.
    char constants[1600];
};

// sessions_begin, sessions_constants and sessions_end append a line to FOLDER/sessions.jsonl. If the file
// ends in an incomplete line, they first end that line.
//   session   sessions_end reads ended, end_step, total, end and message; sessions_begin the other members
enum status sessions_begin(const char *folder, const struct session *session) MUST_CHECK;
// Appends the line of the first step, for the session that began last.
//   constants   the members of a JSON object
enum status sessions_constants(const char *folder, const char *constants) MUST_CHECK;
enum status sessions_end(const char *folder, const struct session *session) MUST_CHECK;

// Reads the newest SESSIONS_MOST sessions of a run, oldest first; free them with free(). *n is 0 if there is
// no file. Lines that do not belong to sessions are skipped.
#define SESSIONS_MOST 1000
struct session *sessions_read(const char *folder, int *n);

#endif
