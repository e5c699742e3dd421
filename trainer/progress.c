// The most important fields come first: a narrow terminal truncates the line.
#include "trainer/progress.h"

#include <math.h>

#include "base/log.h"
#include "base/text.h"

void progress_step(const struct config *config, const struct step_metrics *step) {
    int64_t done = step->step, left = step->total - done;
    bool terminal = log_is_terminal();
    if (!terminal && done % config->run.log_every != 0 && left > 0)
        return;
    double norm = fabs(step->grad_norm); // "nan" rather than "-nan" after an overflow
    char line[256], rate[32], memory[32], time_left[32];
    snprintf(line, sizeof line,
             "step %lld/%lld  loss %.4f  norm %.3f  lr %.2e  %s tok/s  %.0f ms  %.0f%% of GEMM  %s  %s left",
             (long long)done, (long long)step->total, step->loss, norm, step->lr,
             text_count(rate, sizeof rate, step->tokens_per_s), step->step_ms, 100 * step->mfu,
             text_bytes(memory, sizeof memory,
                        (double)(step->device_bytes ? step->device_bytes : step->memory_peak_bytes)),
             text_duration(time_left, sizeof time_left, (double)left * step->step_ms / 1e3));
    if (terminal)
        log_live("%s", line);
    else
        log_info("%s", line);
}
