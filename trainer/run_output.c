// Before each write, run_check_folder checks that the run's folder was not removed or replaced.
#include "trainer/run_output.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "trainer/profile/profile_report.h"

enum status run_output_begin_session(struct run_output *output) {
    struct run *run = output->run;
    struct session *session = &output->session;
    *session = (struct session){.began = clock_wall_s(),
                                .step = run->step,
                                .ranks = run->comm->world,
                                .threads = run->machine.device->n_threads,
                                .parameters = (double)run->params.n_weights,
                                .gemm_flops_per_s = run->machine.gemm_rate,
                                .dense_peak_flops = run->machine.dense_peak};
    if (gethostname(session->machine, sizeof session->machine - 1) != 0)
        session->machine[0] = '\0';
    snprintf(session->device, sizeof session->device, "%s", run->machine.device->description);
    snprintf(session->fingerprint, sizeof session->fingerprint, "%s", run->machine.fingerprint);
    snprintf(session->compute, sizeof session->compute, "%s", dtype_name(run->type));
    snprintf(session->version, sizeof session->version, "%s", checkpoint_version());
    return sessions_begin(run->folder.path, session);
}

void run_output_end_session(struct run_output *output, enum status status) {
    struct run *run = output->run;
    struct session *session = &output->session;
    // If the folder was removed or replaced, there is nowhere to record the end.
    if (session->began == 0 || run_check_folder(run) != STATUS_OK)
        return;
    session->ended = clock_wall_s();
    session->end_step = run->step;
    session->total = run->last_step;
    session->end = status == STATUS_OK        ? SESSION_FINISHED
                   : status == STATUS_STOPPED ? SESSION_STOPPED
                                              : SESSION_FAILED;
    if (session->end == SESSION_FAILED)
        snprintf(session->message, sizeof session->message, "%s", status_message());
    if (sessions_end(run->folder.path, session) != STATUS_OK && session->end != SESSION_FAILED) {
        log_warning("%s", status_message());
        status_clear();
    }
}

enum status run_output_begin_metrics(struct run_output *output) {
    struct run *run = output->run;
    struct metrics *metrics = &output->metrics;
    if (!run_leads(run))
        return STATUS_OK;
    TRY(run_check_folder(run));
    TRY(metrics_open(metrics, run->folder.path, run->step));
    // There is no warning if the run resumes from another run's checkpoint: this folder never had lines of
    // earlier steps.
    if (metrics->n_missing > 0 && (metrics->last_step > 0 || run->saved_step >= 0))
        log_warning(
            "%s/metrics.jsonl was cut: it lacks the lines of %lld of the steps up to %lld, which are done "
            "and are not repeated; reports have no figures of these steps",
            run->folder.path, (long long)metrics->n_missing, (long long)run->step);
    return STATUS_OK;
}

bool run_output_writes_metrics(struct run_output *output) {
    const enum status status = run_check_folder(output->run);
    run_fail_later(output->run, status);
    return run_leads(output->run) && status == STATUS_OK;
}

// ---- run.profile

enum status run_output_start_profile(struct run_output *output, int region) {
    struct run *run = output->run;
    if (!run->config->run.profile)
        return STATUS_OK;
    return profiler_start(&output->profiler,
                          &(struct profiler_request){.memory = region_data(&run->memory.table, region),
                                                     .comm = run->comm,
                                                     .device = run->machine.device,
                                                     .comm_device = run->machine.comm_device,
                                                     .host_device = run->machine.host_device,
                                                     .hooks = &run->engine.state.hooks,
                                                     .last_unit = run->params.n_units - 1,
                                                     .step = run->step + 1});
}

// Sets about->origin, the start of this rank's timeline, and about->shift_us, its offset to rank 0's. The
// offset is by wall clocks, which differ little enough between machines to compare ranks by eye.
static enum status align_clocks(struct run_output *output, struct profile_about *about) {
    double here = clock_wall_s() - clock_monotonic_s(), of_rank_0[2] = {here, about->profile->steps[0].begin};
    TRY(comm_broadcast(output->run->comm, of_rank_0, sizeof of_rank_0, 0));
    about->origin = about->profile->steps[0].begin;
    about->shift_us = ((about->origin + here) - (of_rank_0[1] + of_rank_0[0])) * 1e6;
    return STATUS_OK;
}

static void log_lines(const char *text) {
    log_live_end();
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        log_info("%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static void print(const struct run_output *output, const struct profile_about *about) {
    struct text text = {0};
    profile_print(about, &text);
    log_lines(text.data);
    if (about->profile->n_left_out > 0)
        log_info("the timeline is full: the last %lld spans of rank 0 are in profile.json only",
                 (long long)about->profile->n_left_out);
    log_info("profile: %s/profile.json, and trace.json for ui.perfetto.dev", output->run->folder.path);
    text_free(&text);
}

enum status run_output_end_profile(struct run_output *output) {
    struct run *run = output->run;
    struct profiler *profiler = &output->profiler;
    if (!profiler->profile)
        return STATUS_OK;
    TRY(profiler_stop(profiler));
    struct profile_about about = {.profile = profiler->profile,
                                  .config = &run->params.config,
                                  .device = run->machine.device->description,
                                  .compute = dtype_name(run->type),
                                  .limits = run->machine.limits,
                                  .dense_peak = run->machine.device->dense_peak[run->type],
                                  .rank = run->comm->rank,
                                  .first_step = profiler->first_step};
    enum status status = STATUS_OK;
    if (profiler->profile->n_steps > 0) {
        TRY(run_agree_between_steps(run, run_check_folder(run)));
        TRY(align_clocks(output, &about));
        status = profile_write(&about, run->comm, run->folder.path);
        if (status == STATUS_OK && run_leads(run))
            print(output, &about);
    }
    profiler_free(profiler);
    return run_agree_between_steps(run, status);
}
