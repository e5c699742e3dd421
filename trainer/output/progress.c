// If the progress line is too long for the terminal, fields are dropped in reverse order of importance
// (log_field.rank). The most important come first here:
// - step, loss, tokens/s and time left, which fit into 60 columns
// - memory
// - micro-batch (during the first step as important as the loss)
// - fraction of the GEMM rate, gradient norm, learning rate, step time
#include "trainer/output/progress.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/signals.h"
#include "base/text.h"

// All in seconds.
#define REDRAW_S    0.5            // minimum time between two redraws within a step, on a terminal
#define LINE_S      60.0           // minimum time between two lines within a step, elsewhere
#define TICK_S      1              // time between two calls of progress_tick
#define LONG_RUN_S  (14 * 86400.0) // for a longer run, the estimate includes advice on shortening it
#define LONG_STEP_S 5.0            // the estimate is logged if a step takes at least this long

enum { SHORT_TEXT = 20 };

// Formats a duration as "20 s", "4:10" or "3d 04h".
static const char *rough_duration(char *out, size_t size, double seconds) {
    const double day = 86400;
    if (seconds < 100)
        snprintf(out, size, "%.0f s", seconds);
    else if (seconds < day)
        text_duration(out, size, seconds);
    else
        snprintf(out, size, "%.0fd %02.0fh", floor(seconds / day), floor(fmod(seconds, day) / 3600));
    return out;
}

static void answer_signal(void *context, int signal) {
    char line[256];
    progress_describe_stop(context, signal, clock_monotonic_s(), line, sizeof line);
    log_info("%s", line);
}

void progress_init(struct progress *progress, const struct config *config, int world) {
    pthread_condattr_t monotonic;
    *progress = (struct progress){.config = config, .world = world, .saved_step = -2};
    pthread_mutex_init(&progress->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&progress->end, &monotonic);
    pthread_condattr_destroy(&monotonic);
    signals_on_stop(answer_signal, progress);
}

void progress_free(struct progress *progress) {
    signals_on_stop(NULL, NULL);
    signals_set_farewell("");
    pthread_mutex_lock(&progress->lock);
    progress->ending = true;
    pthread_cond_signal(&progress->end);
    pthread_mutex_unlock(&progress->lock);
    if (progress->ticks)
        pthread_join(progress->thread, NULL);
    pthread_cond_destroy(&progress->end);
    pthread_mutex_destroy(&progress->lock);
}

// ---- the progress line

static int64_t micro_batches_of(const struct progress *progress) {
    return progress->n_micro > 0 ? progress->n_micro : progress->config->train.gradient_accumulation_steps;
}

// Returns the expected seconds of the running step. In the first step of a session it follows from the
// micro-batches that are done, if any. Otherwise it is step_s, but at least what the step has taken so far.
static double expected_step_s(const struct progress *progress, double now_s) {
    const double n = (double)micro_batches_of(progress);
    if (progress->phase == PROGRESS_STEP && progress->micro > 0 && !progress->has_last)
        return (now_s - progress->began_s) / (double)progress->micro * n;
    return progress->phase == PROGRESS_STEP ? fmax(progress->step_s, now_s - progress->began_s)
                                            : progress->step_s;
}

// Returns the expected seconds for the remaining steps, minus those that the running step has taken. A
// running step that is slower than the previous one does not change the estimate of later steps.
static double expected_left_s(const struct progress *progress, double now_s) {
    const double left = progress->has_last && progress->last.steps_left > 0
                            ? progress->last.steps_left
                            : (double)(progress->total - progress->done);
    double step_s = progress->has_last ? progress->step_s : expected_step_s(progress, now_s);
    double taken_s = progress->phase == PROGRESS_STEP ? now_s - progress->began_s : 0;
    return fmax(0, left * step_s - taken_s);
}

#define FIELD(field, use, ...)                                                                               \
    ((field).rank = (use), (void)snprintf((field).text, sizeof(field).text, __VA_ARGS__))

static void add_figures(const struct step_metrics *step, struct log_field *fields) {
    char text[SHORT_TEXT];
    FIELD(fields[2], 1, "loss %.4f", text_plain_nan(step->loss));
    FIELD(fields[3], 7, "norm %.3f", text_plain_nan(step->grad_norm));
    FIELD(fields[4], 8, "lr %.2e", step->lr);
    FIELD(fields[5], 2, "%s tok/s", text_count(text, sizeof text, step->tokens_per_s));
    if (step->step_ms < 1e4)
        FIELD(fields[6], 9, "%.0f ms", step->step_ms);
    else
        FIELD(fields[6], 9, "%.1f s", step->step_ms / 1e3);
    if (step->mfu_of_dense_peak)
        FIELD(fields[7], 6, "%.0f%% MFU, %.0f%% of GEMM", 100 * step->mfu, 100 * step->of_gemm);
    else
        FIELD(fields[7], 6, "%.0f%% of GEMM", 100 * step->of_gemm);
    text_bytes(text, sizeof text, (double)(step->memory.device ? step->memory.device : step->memory.total));
    FIELD(fields[8], 4, "%s %s", step->memory.device ? "GPU" : "total", text);
}

static void add_micro_batch(const struct progress *progress, double now_s, struct log_field *fields) {
    char passed[SHORT_TEXT], whole[SHORT_TEXT];
    const int64_t n = micro_batches_of(progress);
    const int64_t at = progress->micro < n ? progress->micro + 1 : n;
    const double step_s = expected_step_s(progress, now_s);
    FIELD(fields[1], progress->has_last ? 5 : 1, "micro-batch %lld/%lld", (long long)at, (long long)n);
    rough_duration(passed, sizeof passed, now_s - progress->began_s);
    if (step_s > now_s - progress->began_s)
        FIELD(fields[6], 9, "%s of about %s", passed, rough_duration(whole, sizeof whole, step_s));
    else
        FIELD(fields[6], 9, "%s", passed);
}

void progress_fields(const struct progress *progress, double now_s,
                     struct log_field fields[PROGRESS_FIELDS]) {
    const double left_s = expected_left_s(progress, now_s);
    char text[SHORT_TEXT];
    memset(fields, 0, PROGRESS_FIELDS * sizeof *fields);
    FIELD(fields[0], 0, "step %lld/%lld", (long long)progress->done, (long long)progress->total);
    if (progress->has_last)
        add_figures(&progress->last, fields);
    if (progress->phase == PROGRESS_STEP)
        add_micro_batch(progress, now_s, fields);
    if (progress->phase == PROGRESS_BETWEEN && progress->what) {
        FIELD(fields[1], 1, "%s", progress->what);
        FIELD(fields[6], 9, "%s", rough_duration(text, sizeof text, now_s - progress->began_s));
    }
    if (left_s < 86400)
        text_duration(text, sizeof text, left_s);
    else
        rough_duration(text, sizeof text, left_s);
    if (progress->has_last || left_s > 0)
        FIELD(fields[9], 3, "%s left", text);
}

// Shows the progress line. The caller holds the lock, so that progress_tick never overwrites a newer line.
static void show(struct progress *progress, double now_s) {
    struct log_field fields[PROGRESS_FIELDS];
    char line[512];
    progress->shown_s = now_s;
    progress_fields(progress, now_s, fields);
    if (log_is_terminal())
        log_live(fields, PROGRESS_FIELDS);
    else
        log_info("%s", log_join_fields(fields, PROGRESS_FIELDS, sizeof line, line, sizeof line));
}

// ---- following the run

// Shows the progress line, but at most twice a second on a terminal, and once a minute elsewhere.
static void show_if_due(struct progress *progress, double now_s) {
    if (now_s - progress->shown_s >= (log_is_terminal() ? REDRAW_S : LINE_S))
        show(progress, now_s);
}

void progress_tick(struct progress *progress, double now_s) {
    pthread_mutex_lock(&progress->lock);
    if (progress->phase == PROGRESS_STEP || (progress->phase == PROGRESS_BETWEEN && progress->what))
        show_if_due(progress, now_s);
    pthread_mutex_unlock(&progress->lock);
}

static void *tick_until_end(void *context) {
    struct progress *progress = context;
    bool ending = false;
    while (!ending) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += TICK_S;
        pthread_mutex_lock(&progress->lock);
        while (!progress->ending && pthread_cond_timedwait(&progress->end, &progress->lock, &until) == 0)
            ;
        ending = progress->ending;
        pthread_mutex_unlock(&progress->lock);
        if (!ending)
            progress_tick(progress, clock_monotonic_s());
    }
    return NULL;
}

void progress_start(struct progress *progress, int64_t done, int64_t total, double step_s, bool ticks) {
    const int64_t left = total - done;
    char one[SHORT_TEXT], all[SHORT_TEXT];
    pthread_mutex_lock(&progress->lock);
    progress->done = done;
    progress->total = total;
    progress->step_s = step_s;
    progress->phase = PROGRESS_BETWEEN;
    pthread_mutex_unlock(&progress->lock);
    if (step_s >= LONG_STEP_S && left > 0)
        log_info("each step takes about %s (estimated from the GEMM rate), %lld step%s about %s%s",
                 rough_duration(one, sizeof one, step_s), (long long)left, left == 1 ? "" : "s",
                 rough_duration(all, sizeof all, (double)left * step_s),
                 (double)left * step_s > LONG_RUN_S && progress->config->train.max_minutes == 0
                     ? "; a smaller train.train_batch_size makes shorter steps, and train.max_minutes fits "
                       "the schedule to a time"
                     : "");
    if (ticks) // if this fails, the line is only redrawn less often
        progress->ticks = pthread_create(&progress->thread, NULL, tick_until_end, progress) == 0;
}

void progress_step_begin(struct progress *progress, double now_s) {
    pthread_mutex_lock(&progress->lock);
    progress->phase = PROGRESS_STEP;
    progress->micro = 0;
    progress->began_s = now_s;
    if (!progress->has_last)
        progress->shown_s = now_s;
    if (!progress->has_last && progress->step_s >= LONG_STEP_S)
        show(progress, now_s);
    pthread_mutex_unlock(&progress->lock);
}

void progress_micro_batches(struct progress *progress, int64_t n) {
    pthread_mutex_lock(&progress->lock);
    progress->n_micro = n;
    pthread_mutex_unlock(&progress->lock);
}

void progress_micro_batch(struct progress *progress, int64_t done, double now_s) {
    pthread_mutex_lock(&progress->lock);
    progress->micro = done;
    if (done < micro_batches_of(progress))
        show_if_due(progress, now_s);
    pthread_mutex_unlock(&progress->lock);
}

void progress_step(struct progress *progress, const struct step_metrics *step, double now_s) {
    pthread_mutex_lock(&progress->lock);
    progress->phase = PROGRESS_BETWEEN;
    progress->what = NULL;
    progress->last = *step;
    progress->has_last = true;
    progress->done = step->step;
    progress->total = step->total;
    progress->step_s = step->step_ms / 1e3;
    if (log_is_terminal() || progress->done % progress->config->run.log_every == 0 ||
        progress->done >= progress->total)
        show(progress, now_s);
    pthread_mutex_unlock(&progress->lock);
}

void progress_between(struct progress *progress, const char *what, double now_s) {
    pthread_mutex_lock(&progress->lock);
    progress->phase = PROGRESS_BETWEEN;
    progress->what = what;
    progress->began_s = progress->shown_s = now_s;
    pthread_mutex_unlock(&progress->lock);
}

// ---- messages when a signal stops the run

void progress_describe_stop(struct progress *progress, int signal, double now_s, char *line, size_t size) {
    struct text text = {0};
    char about[SHORT_TEXT];
    pthread_mutex_lock(&progress->lock);
    const double step_s = expected_step_s(progress, now_s);
    if (progress->phase == PROGRESS_SETUP)
        text_add(&text, "stopping before the first step");
    else if (progress->phase == PROGRESS_BETWEEN)
        text_add(&text, "finishing %s", progress->what ? progress->what : "the current work");
    else
        text_add(&text, "finishing this step");
    if (progress->phase == PROGRESS_STEP && step_s > 0)
        text_add(&text, " (about %s)",
                 rough_duration(about, sizeof about, fmax(1, step_s - (now_s - progress->began_s))));
    text_add(&text, "; a second signal stops at once");
    if (progress->world > 1 && signal == SIGTERM)
        text_add(&text,
                 ". After Ctrl-C, mpirun kills the ranks within a second or so; to give them more time, "
                 "send SIGUSR1 to mpirun instead");
    pthread_mutex_unlock(&progress->lock);
    snprintf(line, size, "%s", text.data ? text.data : "");
    text_free(&text);
}

void progress_saved(struct progress *progress, int64_t saved_step, const char *folder, const char *command) {
    struct text text = {0};
    if (saved_step == progress->saved_step)
        return;
    progress->saved_step = saved_step;
    if (saved_step < 0)
        text_add(&text, "stopped at once, before the first checkpoint: nothing of this run is kept");
    else
        text_add(&text, "stopped at once: the checkpoint of step %lld in %s is kept; resume with: %s",
                 (long long)saved_step, folder, command);
    signals_set_farewell(text.data ? text.data : "");
    text_free(&text);
}
