// What a run shows while it trains: the progress line, the micro-batches of a long step, the estimate before
// the first step, and the messages when a signal stops the run.
//
// On a terminal the line is redrawn after each step, and twice a second within a step. Elsewhere a line is
// printed every run.log_every steps and, within steps that take minutes, once a minute.
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
    pthread_cond_t end;
    pthread_t thread;
    bool ticks, ending;
    const struct config *config;
    int world;
    enum progress_phase phase;
    const char *what;    // what runs between two steps, such as "evaluation"; NULL: nothing that takes long
    int64_t done, total; // steps; total: of the whole run, as far as known
    int64_t micro;       // micro-batches done in the running step
    int64_t n_micro;     // micro-batches per step; 0: train.gradient_accumulation_steps
    double began_s, shown_s;  // when the step, or `what`, began; when a line was last shown
    double step_s;            // seconds per step: estimated, then measured; 0: unknown
    struct step_metrics last; // metrics of the last step
    bool has_last;
    int64_t saved_step; // step of the checkpoint that the second signal's message names
};

enum { PROGRESS_FIELDS = 10 };

// All times are seconds by base/clock.h.
void progress_init(struct progress *progress, const struct config *config, int world);
void progress_free(struct progress *progress);

// Starts the steps: `done` of `total` steps were done before.
//   step_s   estimated seconds per step, printed if it is long
//   ticks    a thread redraws the line (progress_tick) until progress_free
void progress_start(struct progress *progress, int64_t done, int64_t total, double step_s, bool ticks);
void progress_step_begin(struct progress *progress, double now_s);
// Sets the number of micro-batches per step from now on; the default is train.gradient_accumulation_steps.
void progress_micro_batches(struct progress *progress, int64_t n);
void progress_micro_batch(struct progress *progress, int64_t done, double now_s);
void progress_step(struct progress *progress, const struct step_metrics *step, double now_s);
// Reports what begins between two steps, such as "evaluation"; NULL: it has ended.
void progress_between(struct progress *progress, const char *what, double now_s);
// Shows the line if it is due within a step or between two.
void progress_tick(struct progress *progress, double now_s);

// The fields of the progress line, in screen order. Each has a rank by which it is dropped (base/log.h).
void progress_fields(const struct progress *progress, double now_s, struct log_field fields[PROGRESS_FIELDS]);

// Writes the message for the first signal to `line`. Under mpirun it explains SIGTERM, which mpirun sends
// after Ctrl-C.
void progress_describe_stop(struct progress *progress, int signal, double now_s, char *line, size_t size);
// Sets the message for the second signal, which says what is kept.
//   saved_step   step of the newest checkpoint; -1: none
//   command      the command that resumes the run
void progress_saved(struct progress *progress, int64_t saved_step, const char *folder, const char *command);

#endif
