// What a run shows while it trains: the progress line, the micro-batches of a long step, the estimate before
// the first step, and the answers to signals that stop the run.
//
// On a terminal the line is redrawn after each step and twice a second within one. Elsewhere it is a line
// every run.log_every steps and, within a step of minutes, one per minute.
#ifndef ZERO_TRAINER_OUTPUT_PROGRESS_H
#define ZERO_TRAINER_OUTPUT_PROGRESS_H

#include <pthread.h>

#include "base/log.h"
#include "options/config.h"
#include "trainer/output/metrics.h"

enum progress_phase { PROGRESS_SETUP, PROGRESS_STEP, PROGRESS_BETWEEN };

// Shared with the thread that receives signals, and with one that redraws the line.
struct progress {
    pthread_mutex_t lock;
    pthread_cond_t end;
    pthread_t thread;
    bool ticks, ending;
    const struct config *config;
    int world;
    enum progress_phase phase;
    const char *what;         // what is under way between two steps; NULL: nothing that takes long
    int64_t done, total;      // steps; total: of the whole run, as far as known
    int64_t micro;            // micro-batches done of the step under way
    int64_t n_micro;          // of it; 0: train.gradient_accumulation_steps
    double began_s, shown_s;  // when that step, or `what`, began; when a line was last shown
    double step_s;            // seconds that a step takes: estimated, then measured; 0: unknown
    struct step_metrics last; // of the last step
    bool has_last;
    int64_t saved_step; // that the second signal's message names
};

enum { PROGRESS_FIELDS = 10 };

// Times are seconds of base/clock.h.
void progress_init(struct progress *progress, const struct config *config, int world);
void progress_free(struct progress *progress);

// The steps begin: `done` of `total` were done before. step_s: the estimated seconds of one, which is printed
// if it is long. ticks: a thread redraws the line (progress_tick), until progress_free.
void progress_start(struct progress *progress, int64_t done, int64_t total, double step_s, bool ticks);
void progress_step_begin(struct progress *progress, double now_s);
// The micro-batches of the steps from now on; without it train.gradient_accumulation_steps.
void progress_micro_batches(struct progress *progress, int64_t n);
void progress_micro_batch(struct progress *progress, int64_t done, double now_s);
void progress_step(struct progress *progress, const struct step_metrics *step, double now_s);
// Something begins between two steps, such as "evaluation"; NULL: it has ended.
void progress_between(struct progress *progress, const char *what, double now_s);
// Shows the line if it is due within a step or between two.
void progress_tick(struct progress *progress, double now_s);

// The progress line, in the order of the screen; the ranks are those of use.
void progress_fields(const struct progress *progress, double now_s, struct log_field fields[PROGRESS_FIELDS]);

// The answer to the first signal, in `line`. Under mpirun it says what SIGTERM means, which mpirun sends
// after Ctrl-C.
void progress_describe_stop(struct progress *progress, int signal, double now_s, char *line, size_t size);
// Sets the answer to the second signal: what is kept. saved_step: of the newest checkpoint, -1 without one.
// command: what resumes the run.
void progress_saved(struct progress *progress, int64_t saved_step, const char *folder, const char *command);

#endif
