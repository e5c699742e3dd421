// The sessions of a run: each start of ./train in a run folder. RUN/sessions.jsonl gets a line when one
// begins (machine, version, sizes), one at its first step (what metrics.jsonl then leaves out), and a line
// when it ends (how). It is only appended to. A session without the last line still runs, or was killed.
#ifndef ZERO_TRAINER_RUNS_SESSIONS_H
#define ZERO_TRAINER_RUNS_SESSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

// How a session ended, with the words of the file.
#define SESSION_ENDS(X)                                                                                      \
    X(SESSION_OPEN, "running")      /* no second line */                                                     \
    X(SESSION_FINISHED, "finished") /* all steps of the run are done */                                      \
    X(SESSION_STOPPED, "stopped")   /* by a signal; the checkpoint is written */                             \
    X(SESSION_FAILED, "failed")     /* with a message */
#define SESSION_ENUM(constant, word) constant,
enum session_end { SESSION_ENDS(SESSION_ENUM) N_SESSION_ENDS };
#undef SESSION_ENUM
const char *session_end_name(enum session_end end);

struct session {
    double began, ended;     // wall-clock times; ended 0: no second line
    int64_t step;            // steps done when it began
    int64_t end_step, total; // steps done when it ended, and those of the whole run; as far as known
    char machine[72];        // host name
    char device[200];        // description of rank 0's device
    char compute[16];        // dtype
    char version[100];       // of the program
    int ranks, threads;      // threads: of rank 0
    double parameters;       // of the model
    double gemm_flops_per_s; // measured, sum over ranks
    double dense_peak_flops; // sum over ranks; 0: not known
    enum session_end end;
    char message[1000]; // of a failure
    // The line of its first step, a JSON object: what does not change in a session. "": none, or an earlier
    // version's, whose steps have it
    char constants[1600];
};

// Append the line to FOLDER/sessions.jsonl, and one of its own where an incomplete line is last.
//   session   sessions_end reads ended, end_step, total, end and message; sessions_begin the other members
enum status sessions_begin(const char *folder, const struct session *session) MUST_CHECK;
// The line of the first step, of the session that began last.
//   constants   the members of a JSON object
enum status sessions_constants(const char *folder, const char *constants) MUST_CHECK;
enum status sessions_end(const char *folder, const struct session *session) MUST_CHECK;

// Reads the sessions of a run, oldest first: the newest SESSIONS_MOST. Free them with free(). None (*n 0)
// without the file. Lines that are not of sessions are skipped.
#define SESSIONS_MOST 1000
struct session *sessions_read(const char *folder, int *n);

#endif
