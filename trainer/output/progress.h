// What a run shows while it trains: the progress line, the estimate before the first step, and the messages
// when a signal stops the run.
//
// On a terminal the progress line is redrawn after each step, and once or twice a second within a step.
// Elsewhere it is printed every run.log_every steps and, within steps that take minutes, once a minute.
#ifndef ZERO_TRAINER_OUTPUT_PROGRESS_H
#define ZERO_TRAINER_OUTPUT_PROGRESS_H

#include <pthread.h>

#include "base/log.h"
#include "options/config.h"
#include "trainer/output/metrics.h"

enum progress_phase { PROGRESS_SETUP, PROGRESS_STEP, PROGRESS_BETWEEN };

// Shared with the signal thread and with the thread that redraws the line.
struct progress {
    pthread_mutex_t lock;
    pthread_cond_t end; // signaled when `ending` is set
    pthread_t thread;
    bool ticks;  // true: `thread` runs, and redraws the progress line
    bool ending; // true: the thread must end
    const struct config *config;
    int world;
    enum progress_phase phase;
    const char *what;    // what runs between two steps, such as "evaluation"; NULL: nothing that takes long
    int64_t done, total; // steps done; expected steps of the whole run
    int64_t micro;       // micro-batches done in the running step
    int64_t n_micro;     // micro-batches per step; 0: train.gradient_accumulation_steps
    double began_s;      // when the running step or `what` began, by clock_monotonic_s
    double shown_s;      // when the line was last shown, by the same clock
    double step_s;       // seconds per step: estimated, later those of the last step; 0: unknown
    struct step_metrics last; // metrics of the last step
    bool has_last;
    int64_t saved_step; // what progress_saved was last called with; -2: not called yet
};

enum { PROGRESS_FIELDS = 10 };

// In the functions below, now_s is the present time by clock_monotonic_s.
void progress_init(struct progress *progress, const struct config *config, int world);
void progress_free(struct progress *progress);

// Called before the first step of a session: `done` of `total` steps have been done by earlier sessions.
//   step_s   estimated seconds per step, printed if it is long
//   ticks    true: a thread calls progress_tick each second until progress_free
void progress_start(struct progress *progress, int64_t done, int64_t total, double step_s, bool ticks);
void progress_step_begin(struct progress *progress, double now_s);
// Sets the number of micro-batches per step from now on; the default is train.gradient_accumulation_steps.
void progress_micro_batches(struct progress *progress, int64_t n);
void progress_micro_batch(struct progress *progress, int64_t done, double now_s);
void progress_step(struct progress *progress, const struct step_metrics *step, double now_s);
// Called when work between two steps begins and when it has ended.
//   what   name of the work, such as "evaluation"; NULL: it has ended
void progress_between(struct progress *progress, const char *what, double now_s);
// Shows the progress line if a step or other work is running and the line is due.
void progress_tick(struct progress *progress, double now_s);

// Sets the fields of the progress line, in screen order. Where the line is too long, the fields with the
// highest `rank` are dropped first (base/log.h).
void progress_fields(const struct progress *progress, double now_s, struct log_field fields[PROGRESS_FIELDS]);

// Writes the message for the first signal to `line`. With several ranks it explains SIGTERM, which mpirun
// sends after Ctrl-C.
void progress_describe_stop(struct progress *progress, int signal, double now_s, char *line, size_t size);
// Sets the message for the second signal, which ends the process at once. The message names the newest
// checkpoint.
//   saved_step   step of the newest checkpoint; -1: none
//   folder       the folder of the checkpoints
//   command      the command that resumes the run
void progress_saved(struct progress *progress, int64_t saved_step, const char *folder, const char *command);

#endif
