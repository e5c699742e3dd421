// run.profile in the training loop: starts after setup, ends after PROFILER_STEPS steps or the run's last
// one.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "trainer/profile/profile_report.h"
#include "trainer/trainer_internal.h"

enum status trainer_profile_limits(struct trainer *trainer) {
    trainer->limits.flops_per_s = trainer->gemm_rate; // of this rank; the sum over ranks comes later
    if (!trainer->config->run.profile)
        return STATUS_OK;
    return device_measure_bandwidth(trainer->device, &trainer->limits.bytes_per_s);
}

enum status trainer_profile_start(struct trainer *trainer) {
    if (!trainer->config->run.profile)
        return STATUS_OK;
    return profiler_start(
        &trainer->profiler,
        &(struct profiler_request){.memory = region_data(&trainer->memory.table, trainer->profile_region),
                                   .comm = trainer->comm,
                                   .device = trainer->device,
                                   .comm_device = trainer->comm_device,
                                   .host_device = trainer->host_device,
                                   .hooks = &trainer->engine.state.hooks,
                                   .last_unit = trainer->params.n_units - 1,
                                   .step = trainer->step + 1});
}

// Sets the timeline's origin on this rank and its offset to rank 0's, by the wall clocks of the machines:
// exact enough to look at ranks side by side.
static enum status align_clocks(struct trainer *trainer, struct profile_about *about) {
    double here = clock_wall_s() - clock_monotonic_s(), of_rank_0[2] = {here, about->profile->steps[0].begin};
    TRY(comm_broadcast(trainer->comm, of_rank_0, sizeof of_rank_0, 0));
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

static void print(const struct trainer *trainer, const struct profile_about *about) {
    struct text text = {0};
    profile_print(about, &text);
    log_lines(text.data);
    if (about->profile->n_left_out > 0)
        log_info("the timeline is full: the last %lld spans of rank 0 are in profile.json only",
                 (long long)about->profile->n_left_out);
    log_info("profile: %s/profile.json, and trace.json for ui.perfetto.dev", trainer->folder.path);
    text_free(&text);
}

enum status trainer_profile_end(struct trainer *trainer) {
    struct profiler *profiler = &trainer->profiler;
    if (!profiler->profile)
        return STATUS_OK;
    TRY(profiler_stop(profiler));
    struct profile_about about = {.profile = profiler->profile,
                                  .config = &trainer->params.config,
                                  .device = trainer->device->description,
                                  .compute = dtype_name(trainer->type),
                                  .limits = trainer->limits,
                                  .dense_peak = trainer->device->dense_peak[trainer->type],
                                  .rank = trainer->comm->rank,
                                  .first_step = profiler->first_step};
    enum status status = STATUS_OK;
    if (profiler->profile->n_steps > 0) {
        TRY(trainer_agree_between_steps(trainer, trainer_check_folder(trainer)));
        TRY(align_clocks(trainer, &about));
        status = profile_write(&about, trainer->comm, trainer->folder.path);
        if (status == STATUS_OK && trainer_leads(trainer))
            print(trainer, &about);
    }
    profiler_free(profiler);
    return trainer_agree_between_steps(trainer, status);
}
