// Each line is written to the file as soon as it is complete, so that other programs can follow a run.
#include "trainer/output/metrics.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "trainer/runs/sessions.h"

#define LARGEST_METRICS ((size_t)4 << 30)

// Returns true for a line that is a JSON object of a step up to steps_done. Adds the number of steps between
// the previous step's line and this one, which have no line, to n_missing.
static bool keep_line(struct metrics *metrics, const char *line, size_t length, int64_t steps_done) {
    cJSON *entry = cJSON_ParseWithLength(line, length);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(entry, "step");
    const bool keep = cJSON_IsNumber(step) && step->valuedouble <= (double)steps_done;
    if (keep && cJSON_GetObjectItemCaseSensitive(entry, "loss")) {
        const int64_t at = (int64_t)step->valuedouble, last = metrics->last_step;
        metrics->n_missing += last > 0 && at > last ? at - last - 1 : 0;
        metrics->last_step = at > last ? at : last;
    }
    cJSON_Delete(entry);
    return keep;
}

static enum status remove_lines(struct metrics *metrics, int64_t steps_done) {
    char *text = NULL;
    size_t length;
    if (!file_exists(metrics->path))
        return STATUS_OK;
    TRY(file_read(metrics->path, LARGEST_METRICS, &text, &length));
    struct text kept = {0};
    for (char *line = text; line < text + length;) {
        char *end = memchr(line, '\n', (size_t)(text + length - line));
        if (!end)
            break;
        if (keep_line(metrics, line, (size_t)(end - line), steps_done))
            text_add_bytes(&kept, line, (size_t)(end - line) + 1);
        line = end + 1;
    }
    enum status status = STATUS_OK;
    if (kept.length != length)
        status = file_write_all(metrics->path, kept.data, kept.length);
    text_free(&kept);
    free(text);
    return status;
}

enum status metrics_open(struct metrics *metrics, const char *folder, int64_t steps_done) {
    *metrics = (struct metrics){
        .path = file_path("%s/metrics.jsonl", folder), .folder = copy_string(folder), .descriptor = -1};
    TRY(remove_lines(metrics, steps_done));
    metrics->n_missing += steps_done > metrics->last_step ? steps_done - metrics->last_step : 0;
    TRY(file_open_regular(metrics->path, O_WRONLY | O_CREAT | O_APPEND, &metrics->descriptor));
    TRY(tensorboard_trim(folder, steps_done));
    return tensorboard_open(&metrics->board, folder);
}

// Opens a new file if another program removed the file. The lines in the old file are not written again.
static enum status replace_removed(struct metrics *metrics) {
    struct stat info;
    if (fstat(metrics->descriptor, &info) != 0 || info.st_nlink > 0)
        return STATUS_OK;
    log_warning(
        "%s was removed while the run wrote to it; a new file begins, without the lines of earlier steps",
        metrics->path);
    close(metrics->descriptor);
    return file_open_regular(metrics->path, O_WRONLY | O_CREAT | O_APPEND, &metrics->descriptor);
}

static enum status write_lines(struct metrics *metrics) {
    TRY(replace_removed(metrics));
    TRY(file_append(metrics->descriptor, metrics->path, metrics->lines.data, metrics->lines.length));
    text_free(&metrics->lines);
    return STATUS_OK;
}

static enum status write_line(struct metrics *metrics, struct text *line) {
    text_add_bytes(&metrics->lines, line->data, line->length);
    text_add(&metrics->lines, "}\n");
    text_free(line);
    return write_lines(metrics);
}

static void add_number(struct text *line, const char *name, double value) {
    char number[32];
    text_add(line, ", \"%s\": %s", name, text_double(number, value));
}

// Adds "name": {"params": bytes, ...}.
static void add_kinds(struct text *line, const char *name, const size_t *bytes) {
    text_add(line, ", \"%s\": {", name);
    for (int kind = 0; kind < N_REGION_KINDS; kind++)
        text_add(line, "%s\"%s\": %zu", kind ? ", " : "", region_kind_name((enum region_kind)kind),
                 bytes[kind]);
    text_add(line, "}");
}

static size_t beyond(size_t total, size_t part) {
    return total > part ? total - part : 0;
}

void metrics_log_planned(size_t model_bytes, size_t program_bytes, int world) {
    char model[32], program[32], total[32];
    log_info("host memory%s as planned: model memory %s, program %s, total %s", world > 1 ? " of rank 0" : "",
             text_bytes(model, sizeof model, (double)model_bytes),
             text_bytes(program, sizeof program, (double)program_bytes),
             text_bytes(total, sizeof total, (double)(model_bytes + program_bytes)));
}

void metrics_log_measured(const struct step_metrics *step, int world) {
    const size_t figures[][2] = {
        {step->memory.model, step->memory.model_planned},
        {beyond(step->memory.total, step->memory.model),
         beyond(step->memory.total_planned, step->memory.model_planned)},
        {step->memory.total, step->memory.total_planned},
    };
    char texts[3][2][32];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            text_bytes(texts[i][k], sizeof texts[i][k], (double)figures[i][k]);
    log_info("host memory as measured (planned): model memory %s (%s), program %s (%s), total %s (%s)%s",
             texts[0][0], texts[0][1], texts[1][0], texts[1][1], texts[2][0], texts[2][1],
             world > 1 ? "; the total is of the largest rank, the rest of rank 0" : "");
}

// Adds the figures that are the same in all steps of a session to the line for sessions.jsonl.
static void add_constants(struct text *line, const struct step_metrics *step) {
    text_add(line, "\"step\": %" PRId64 ", \"mfu_of\": \"%s\", \"threads\": %d", step->step,
             step->mfu_of_dense_peak ? "dense peak" : "measured GEMM rate", step->threads);
    text_add(line, ", \"total_planned_bytes\": %zu, \"program_planned_bytes\": %zu",
             step->memory.total_planned, beyond(step->memory.total_planned, step->memory.model_planned));
    text_add(line, ", \"model_planned_bytes\": %zu, \"model_bytes\": %zu", step->memory.model_planned,
             step->memory.model);
    text_add(line, ", \"device_planned_bytes\": %zu, \"device_bytes\": %zu", step->memory.device_planned,
             step->memory.device);
    add_kinds(line, "model_memory_planned", step->memory.planned);
    add_kinds(line, "model_memory", step->memory.measured);
}

static enum status write_constants(struct metrics *metrics) {
    if (metrics->constants.length > 0)
        TRY(sessions_constants(metrics->folder, metrics->constants.data));
    text_free(&metrics->constants);
    return STATUS_OK;
}

enum status metrics_step(struct metrics *metrics, const struct step_metrics *step) {
    struct text line = {0};
    if (!metrics->has_constants)
        add_constants(&metrics->constants, step);
    metrics->has_constants = true;
    // The constants are written first, because readers of the step's line need them.
    const enum status constants = write_constants(metrics);
    text_add(&line, "{\"step\": %" PRId64 ", \"total_steps\": %" PRId64, step->step, step->total);
    add_number(&line, "wall_time", clock_wall_s());
    add_number(&line, "loss", step->loss);
    add_number(&line, "grad_norm", step->grad_norm);
    add_number(&line, "lr", step->lr);
    text_add(&line, ", \"batch_size\": %" PRId64, step->batch_size);
    if (step->measures_noise)
        add_number(&line, "noise_scale", step->noise_scale);
    add_number(&line, "loss_scale", step->loss_scale);
    text_add(&line, ", \"skipped_steps\": %" PRId64, step->skipped_steps);
    text_add(&line, ", \"spikes\": %" PRId64, step->spikes);
    text_add(&line, ", \"tokens\": %lld", (long long)step->tokens);
    for (int i = 0; i < step->n_sources; i++)
        text_add(&line, "%s%" PRId64 "%s", i ? ", " : ", \"source_tokens\": [", step->source_tokens[i],
                 i + 1 < step->n_sources ? "" : "]");
    add_number(&line, "tokens_per_s", step->tokens_per_s);
    add_number(&line, "step_ms", step->step_ms);
    add_number(&line, "mfu", step->mfu);
    add_number(&line, "of_gemm", step->of_gemm);
    text_add(&line, ", \"total_bytes\": %zu, \"program_bytes\": %zu", step->memory.total,
             beyond(step->memory.total, step->memory.model));
    text_add(&line, ", \"comm_bytes\": %" PRIu64 ", \"comm_planned_bytes\": %" PRIu64, step->comm.bytes,
             step->comm.planned_bytes);
    text_add(&line, ", \"comm_calls\": %" PRIu64 ", \"comm_planned_calls\": %" PRIu64, step->comm.calls,
             step->comm.planned_calls);
    add_number(&line, "comm_ms", step->comm.ms);
    add_number(&line, "comm_hidden", step->comm.hidden);
    TRY(write_line(metrics, &line));
    tensorboard_add(&metrics->board, step->step, "train/loss", step->loss);
    tensorboard_add(&metrics->board, step->step, "train/grad_norm", step->grad_norm);
    tensorboard_add(&metrics->board, step->step, "train/lr", step->lr);
    tensorboard_add(&metrics->board, step->step, "train/tokens_per_s", step->tokens_per_s);
    if (step->measures_noise && isfinite(step->noise_scale))
        tensorboard_add(&metrics->board, step->step, "train/noise_scale", step->noise_scale);
    if (step->measures_noise || step->batch_size != metrics->batch_size)
        tensorboard_add(&metrics->board, step->step, "train/batch_size", (double)step->batch_size);
    metrics->batch_size = step->batch_size;
    TRY(tensorboard_flush(&metrics->board));
    return constants;
}

// Adds the losses of a mixture's sources.
static void add_sources(struct text *line, const struct eval_metrics *eval) {
    for (int i = 0; i < eval->n_sources; i++) {
        const struct eval_source *source = &eval->sources[i];
        text_add(line, "%s{\"path\": ", i ? ", " : ", \"val_sources\": [");
        json_add_string(line, source->name);
        add_number(line, "share", source->share);
        add_number(line, "val_loss", source->loss);
        text_add(line, ", \"val_sequences\": %" PRId64 "}%s", source->sequences,
                 i + 1 < eval->n_sources ? "" : "]");
    }
}

static void draw_sources(struct tensorboard *board, const struct eval_metrics *eval) {
    for (int i = 0; i < eval->n_sources; i++) {
        char *tag = file_path("%s/%s", eval->final ? "val/final_loss" : "val/loss", eval->sources[i].name);
        tensorboard_add(board, eval->step, tag, eval->sources[i].loss);
        free(tag);
    }
}

enum status metrics_eval(struct metrics *metrics, const struct eval_metrics *eval) {
    struct text line = {0};
    text_add(&line, "{\"step\": %lld", (long long)eval->step);
    add_number(&line, "val_loss", eval->loss);
    add_number(&line, "val_bits_per_byte", eval->bits_per_byte);
    text_add(&line, ", \"val_sequences\": %lld, \"val_all_sequences\": %lld, \"final\": %s",
             (long long)eval->sequences, (long long)eval->all_sequences, eval->final ? "true" : "false");
    if (eval->averaged > 0)
        text_add(&line, ", \"averaged_updates\": %" PRId64, eval->averaged);
    if (eval->averaged > 0 && eval->final)
        add_number(&line, "latest_val_loss", eval->latest_loss);
    add_sources(&line, eval);
    TRY(write_line(metrics, &line));
    draw_sources(&metrics->board, eval);
    tensorboard_add(&metrics->board, eval->step, eval->final ? "val/final_loss" : "val/loss", eval->loss);
    if (eval->averaged > 0 && eval->final)
        tensorboard_add(&metrics->board, eval->step, "val/final_loss_latest", eval->latest_loss);
    if (isfinite(eval->bits_per_byte))
        tensorboard_add(&metrics->board, eval->step,
                        eval->final ? "val/final_bits_per_byte" : "val/bits_per_byte", eval->bits_per_byte);
    return tensorboard_flush(&metrics->board);
}

static void add_events(struct metrics *metrics, int64_t step, const char *task,
                       const struct task_result *result) {
    for (int i = 0; i < result->n_measures; i++) {
        char *tag = file_path("tasks/%s/%s", task, result->measures[i].name);
        tensorboard_add(&metrics->board, step, tag, result->measures[i].value);
        free(tag);
    }
}

enum status metrics_tasks(struct metrics *metrics, int64_t step, const struct task_list *tasks,
                          const struct task_result *results) {
    struct text line = {0};
    text_add(&line, "{\"step\": %lld, \"tasks\": {", (long long)step);
    for (int i = 0; i < tasks->n; i++) {
        text_add(&line, i ? ", " : "");
        json_add_string(&line, tasks->tasks[i].name);
        text_add(&line, ": ");
        task_result_add_json(&line, &results[i]);
    }
    text_add(&line, "}");
    TRY(write_line(metrics, &line));
    for (int i = 0; i < tasks->n; i++)
        add_events(metrics, step, tasks->tasks[i].name, &results[i]);
    return tensorboard_flush(&metrics->board);
}

void metrics_close(struct metrics *metrics) {
    if (metrics->path && metrics->descriptor >= 0) {
        // Tries again to write lines that could not be written: the disk may have room now. Failures are
        // ignored, because the first one was reported.
        const enum status written = metrics->lines.length > 0 ? write_lines(metrics) : STATUS_OK,
                          constants = write_constants(metrics);
        (void)written, (void)constants;
        close(metrics->descriptor);
    }
    text_free(&metrics->lines);
    text_free(&metrics->constants);
    tensorboard_close(&metrics->board);
    free(metrics->path);
    free(metrics->folder);
    *metrics = (struct metrics){0};
}

// Reads VmHWM, because getrusage's ru_maxrss includes the memory of the program that started this one.
size_t metrics_peak_memory(void) {
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && kib == 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "VmHWM: %llu kB", &kib);
    if (file)
        fclose(file);
    return (size_t)kib * 1024;
}

size_t metrics_resident_memory(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    if (!file)
        return 0;
    int found = fscanf(file, "%*u %lu", &pages);
    fclose(file);
    return found == 1 ? pages * (size_t)sysconf(_SC_PAGESIZE) : 0;
}
