// A line of the table sums the rows of a profile (kernels/profile.h) that have the same name and track.
#include "trainer/profile/profile_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

// ---- names of layers, lines and units

// Returns the label's scope, if it has one. Otherwise names a linear layer by the shape of its weight, and
// lm_head by its phase. Returns "" for operations without a weight.
static const char *layer_name(const struct profile_about *about, const struct profile_label *label,
                              char *buffer, size_t size) {
    const struct gpt_config *config = about->config;
    const int C = config->n_embd, in = label->shape.in, out = label->shape.out;
    const int heads = config->n_head * config->head_dim, F = config->intermediate_size;
    const int up = gpt_mlp_width(config);
    if (label->scope)
        return label->scope;
    if (in == 0)
        return "";
    if (label->place.phase == PROFILER_LM_HEAD)
        return "lm_head";
    if (in == heads && out == C)
        return "attention output";
    if (in == C && (out == gpt_qkv_width(config) || out == up))
        return out == up ? "mlp up" : "qkv";
    if (in == F && out == C)
        return "mlp down";
    snprintf(buffer, size, "%d to %d", in, out);
    return buffer;
}

static bool is_recomputed(const struct profile_label *label) {
    return label->place.phase == PROFILER_BACKWARD && strstr(label->name, "_forward");
}

static void line_name(const struct profile_about *about, const struct profile_label *label, char *name,
                      size_t size) {
    char buffer[32];
    const char *layer = layer_name(about, label, buffer, sizeof buffer);
    if (label->scope) // all operations of a scope share one line
        snprintf(name, size, "%s", label->scope);
    else
        snprintf(name, size, "%s%s%s%s", label->name, layer[0] ? ", " : "", layer,
                 is_recomputed(label) ? ", recomputed" : "");
}

static const char *unit_name(const struct profile_about *about, int unit, char *buffer, size_t size) {
    if (unit < 0)
        return "";
    if (unit == 0 || unit > about->config->n_layer)
        return unit == 0 ? "embeddings" : "final norm";
    snprintf(buffer, size, "block %d", unit - 1);
    return buffer;
}

// ---- the summary

static double step_seconds(const struct profile *profile, int step) {
    return profile->steps[step].end - profile->steps[step].begin;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// Sorts `values`. Returns the median; of an even number of values, the lower middle one.
static double median_of(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return n > 0 ? values[(n - 1) / 2] : 0;
}

static void add_sample(struct profile_sample *sum, const struct profile_sample *sample) {
    sum->calls += sample->calls;
    sum->seconds += sample->seconds;
    sum->work.flops += sample->work.flops;
    sum->work.bytes += sample->work.bytes;
}

static int compare_lines(const void *a, const void *b) {
    const struct profile_line *x = a, *y = b;
    if (x->counts != y->counts)
        return x->counts ? -1 : 1;
    if (!x->counts && x->track != y->track)
        return x->track - y->track;
    return x->sum.seconds > y->sum.seconds ? -1 : x->sum.seconds < y->sum.seconds;
}

// True if profile_about.limits apply to a row. In a run on a GPU they are the GPU's, so they do not apply to
// operations on the host.
static bool is_limited(const struct profile_about *about, const struct profile_row *row) {
    const struct profile_track *tracks = about->profile->tracks;
    return row->label.kind == PROFILE_OPERATION &&
           tracks[row->track].is_stream == tracks[about->profile->account].is_stream;
}

// Returns the index of a row's line, and adds the line if it is new.
static int line_of(const struct profile_about *about, const struct profile_row *row,
                   struct profile_summary *summary) {
    struct profile_line line = {.track = row->track,
                                .counts = row->track == about->profile->account,
                                .is_limited = is_limited(about, row)};
    line_name(about, &row->label, line.name, sizeof line.name);
    for (int i = 0; i < summary->n_lines; i++)
        if (summary->lines[i].track == line.track && strcmp(summary->lines[i].name, line.name) == 0)
            return i;
    summary->lines[summary->n_lines] = line;
    return summary->n_lines++;
}

// Adds the rows of all steps to the summary.
//   steps   [scratch] (PROFILE_MOST_ROWS, PROFILER_STEPS) seconds of each line in each step; zeroed by the
//           caller
static void add_rows(const struct profile_about *about, struct profile_summary *summary, double *steps) {
    const struct profile *profile = about->profile;
    for (int row = 0; row < profile->n_rows; row++) {
        int line = line_of(about, &profile->rows[row], summary);
        for (int step = 0; step < summary->n_steps; step++) {
            const struct profile_sample *sample = profile_sample_at(profile, row, summary->first + step);
            add_sample(&summary->lines[line].sum, sample);
            steps[line * PROFILER_STEPS + step] += sample->seconds;
        }
    }
    for (int i = 0; i < summary->n_lines; i++) {
        summary->lines[i].median_s = median_of(steps + i * PROFILER_STEPS, summary->n_steps);
        summary->lines[i].least_s = steps[i * PROFILER_STEPS];
    }
}

void profile_summary_make(const struct profile_about *about, struct profile_summary *out) {
    const struct profile *profile = about->profile;
    int first = profile->n_steps > 1 ? 1 : 0, n = profile->n_steps - first;
    *out = (struct profile_summary){.first = first, .n_steps = n};
    out->lines = allocate(PROFILE_MOST_ROWS, sizeof *out->lines);
    double *steps = allocate(PROFILE_MOST_ROWS * PROFILER_STEPS, sizeof *steps);
    add_rows(about, out, steps);
    for (int step = 0; step < n; step++) {
        out->seconds += steps[step] = step_seconds(profile, first + step);
        out->launches += profile->steps[first + step].launches;
    }
    out->median_s = median_of(steps, n);
    free(steps);
    out->other = out->seconds;
    for (int i = 0; i < out->n_lines; i++)
        out->other -= out->lines[i].counts ? out->lines[i].sum.seconds : 0;
    qsort(out->lines, (size_t)out->n_lines, sizeof *out->lines, compare_lines);
}

void profile_summary_free(struct profile_summary *summary) {
    free(summary->lines);
    *summary = (struct profile_summary){0};
}

// ---- the printed table

static void print_line(const struct profile_about *about, const struct profile_summary *summary,
                       const struct profile_line *line, struct text *out) {
    const struct profile_sample *sum = &line->sum;
    double n = summary->n_steps;
    enum cost_limit limit;
    double least = cost_least_seconds(&sum->work, &about->limits, &limit);
    text_add(out, "%-40s %7.4g %10.3f %6.2f %%", line->name, (double)sum->calls / n, sum->seconds / n * 1e3,
             100 * sum->seconds / summary->seconds);
    if (line->is_limited && sum->seconds > 0)
        text_add(out, " %9.3f %8.3f %6.2f of %s", sum->work.flops / n / 1e9, sum->work.bytes / n / 1e9,
                 least / sum->seconds, cost_limit_name(limit));
    text_add(out, "\n");
}

static void print_rest(const struct profile_summary *summary, const char *name, double seconds,
                       struct text *out) {
    text_add(out, "%-40s %7s %10.3f %6.2f %%", name, "", seconds / summary->n_steps * 1e3,
             100 * seconds / summary->seconds);
}

// Prints the time outside all lines, and the whole step. The limit of the step is the sum of the least times
// that its operations would take at their limits.
static void print_whole(const struct profile_about *about, const struct profile_summary *summary,
                        struct text *out) {
    double flops = 0, bytes = 0, least = 0;
    for (int i = 0; i < summary->n_lines; i++) {
        const struct profile_line *line = &summary->lines[i];
        enum cost_limit limit;
        if (!line->counts || !line->is_limited)
            continue;
        flops += line->sum.work.flops;
        bytes += line->sum.work.bytes;
        least += cost_least_seconds(&line->sum.work, &about->limits, &limit);
    }
    print_rest(summary, "other", summary->other, out);
    text_add(out, "\n");
    print_rest(summary, "the step", summary->seconds, out);
    text_add(out, " %9.3f %8.3f %6.2f of both\n", flops / summary->n_steps / 1e9,
             bytes / summary->n_steps / 1e9, least / summary->seconds);
    if (about->dense_peak > 0)
        text_add(out, "all operations: %.1f %% of the dense peak, %.1f %% of GEMM\n",
                 100 * flops / summary->seconds / about->dense_peak,
                 100 * flops / summary->seconds / about->limits.flops_per_s);
}

static void print_summary(const struct profile_about *about, const struct profile_summary *summary,
                          struct text *out) {
    const struct profile *profile = about->profile;
    int track = profile->account;
    text_add(out, "profile of rank %d, %d step%s%s: %.3f ms on average, median %.3f\n", about->rank,
             summary->n_steps, summary->n_steps == 1 ? "" : "s",
             summary->first > 0 ? ", after one warm-up step" : "", summary->seconds / summary->n_steps * 1e3,
             summary->median_s * 1e3);
    text_add(out, "limits: GEMM %s %.1f GFLOP/s, ", about->compute, about->limits.flops_per_s / 1e9);
    if (about->dense_peak > 0)
        text_add(out, "%.0f %% of the dense peak, ", 100 * about->limits.flops_per_s / about->dense_peak);
    text_add(out, "memory %.1f GB/s; figures are per step\n", about->limits.bytes_per_s / 1e9);
    if (summary->launches > 0)
        text_add(out, "launches: %.0f\n", (double)summary->launches / summary->n_steps);
    text_add(out, "%-40s %7s %10s %8s %9s %8s %s\n", "operation", "calls", "ms", "share", "GFLOP", "GB",
             " of limit");
    for (int i = 0; i < summary->n_lines; i++) {
        const struct profile_line *line = &summary->lines[i];
        if (track == profile->account && line->track != track)
            print_whole(about, summary, out);
        if (line->track != track)
            text_add(out, "at the same time, on %s:\n", profile->tracks[line->track].name);
        track = line->track;
        print_line(about, summary, line, out);
    }
    if (track == profile->account)
        print_whole(about, summary, out);
}

void profile_print(const struct profile_about *about, struct text *out) {
    struct profile_summary summary;
    profile_summary_make(about, &summary);
    print_summary(about, &summary, out);
    profile_summary_free(&summary);
}

// ---- profile.json

static void add_number(struct text *out, const char *name, double value) {
    char number[32];
    text_add(out, ", \"%s\": %s", name, text_double(number, value));
}

static void add_figures(const struct profile_about *about, const struct profile_sample *sample, bool limited,
                        double whole, struct text *out) {
    enum cost_limit limit;
    double least = cost_least_seconds(&sample->work, &about->limits, &limit);
    text_add(out, ", \"calls\": %" PRId64, sample->calls);
    add_number(out, "seconds", sample->seconds);
    add_number(out, "flops", sample->work.flops);
    add_number(out, "bytes", sample->work.bytes);
    add_number(out, "share", sample->seconds / whole);
    if (limited && limit != COST_LIMIT_NONE && sample->seconds > 0) {
        text_add(out, ", \"limit\": \"%s\"", cost_limit_name(limit));
        add_number(out, "of_limit", least / sample->seconds);
    }
}

static void add_row(const struct profile_about *about, int row, int step, struct text *out) {
    const struct profile *profile = about->profile;
    const struct profile_label *label = &profile->rows[row].label;
    char buffer[32];
    text_add(out, "{\"name\": \"%s\", \"layer\": \"%s\", \"phase\": \"%s\", \"track\": %d", label->name,
             layer_name(about, label, buffer, sizeof buffer), profiler_phase_name(label->place.phase),
             profile->rows[row].track);
    add_figures(about, profile_sample_at(profile, row, step), is_limited(about, &profile->rows[row]),
                step_seconds(profile, step), out);
    text_add(out, "}");
}

// Adds the rows that had calls in this step: those of the main track (`counts`), or of all other tracks.
// Returns the sum of their seconds.
static double add_rows_of(const struct profile_about *about, int step, bool counts, struct text *out) {
    const struct profile *profile = about->profile;
    const char *separator = "";
    double seconds = 0;
    for (int row = 0; row < profile->n_rows; row++) {
        const struct profile_sample *sample = profile_sample_at(profile, row, step);
        if ((profile->rows[row].track == profile->account) != counts || sample->calls == 0)
            continue;
        text_add(out, "%s\n    ", separator);
        add_row(about, row, step, out);
        separator = ",";
        seconds += sample->seconds;
    }
    return seconds;
}

static void add_step_json(const struct profile_about *about, int step, struct text *out) {
    double seconds = step_seconds(about->profile, step);
    text_add(out, "  {\"step\": %lld", (long long)about->first_step + step);
    add_number(out, "seconds", seconds);
    text_add(out, ", \"launches\": %" PRId64, about->profile->steps[step].launches);
    text_add(out, ", \"operations\": [");
    double other = seconds - add_rows_of(about, step, true, out);
    text_add(out, "],\n   \"meanwhile\": [");
    add_rows_of(about, step, false, out);
    text_add(out, "]");
    add_number(out, "other_seconds", other);
    add_number(out, "other_share", other / seconds);
    text_add(out, "}");
}

static void add_summary(const struct profile_about *about, const struct profile_summary *summary,
                        struct text *out) {
    text_add(out, "{\"first_step\": %lld, \"steps\": %d", (long long)about->first_step + summary->first,
             summary->n_steps);
    add_number(out, "seconds", summary->seconds);
    add_number(out, "step_median_seconds", summary->median_s);
    text_add(out, ", \"launches\": %" PRId64, summary->launches);
    add_number(out, "other_seconds", summary->other);
    add_number(out, "other_share", summary->other / summary->seconds);
    text_add(out, ", \"operations\": [");
    for (int i = 0; i < summary->n_lines; i++) {
        const struct profile_line *line = &summary->lines[i];
        text_add(out, "%s\n    {\"name\": \"%s\", \"track\": %d, \"counts\": %s", i ? "," : "", line->name,
                 line->track, line->counts ? "true" : "false");
        add_figures(about, &line->sum, line->is_limited, summary->seconds, out);
        add_number(out, "step_least_seconds", line->least_s);
        add_number(out, "step_median_seconds", line->median_s);
        text_add(out, "}");
    }
    text_add(out, "]}");
}

void profile_add_json(const struct profile_about *about, struct text *out) {
    const struct profile *profile = about->profile;
    struct profile_summary summary;
    text_add(out, "{\"rank\": %d, \"device\": ", about->rank);
    json_add_string(out, about->device);
    text_add(out, ", \"compute\": \"%s\"", about->compute);
    add_number(out, "gemm_flops_per_s", about->limits.flops_per_s);
    add_number(out, "dense_peak_flops_per_s", about->dense_peak);
    add_number(out, "bandwidth_bytes_per_s", about->limits.bytes_per_s);
    text_add(out, ",\n \"tracks\": [");
    for (int track = 0; track < profile->n_tracks; track++)
        text_add(out, "%s\"%s\"", track ? ", " : "", profile->tracks[track].name);
    text_add(out, "], \"events_left_out\": %" PRId64 ",\n \"summary\": ", profile->n_left_out);
    profile_summary_make(about, &summary);
    add_summary(about, &summary, out);
    profile_summary_free(&summary);
    text_add(out, ",\n \"steps\": [\n");
    for (int step = 0; step < profile->n_steps; step++) {
        text_add(out, "%s", step ? ",\n" : "");
        add_step_json(about, step, out);
    }
    text_add(out, "]}");
}

// ---- trace.json

static void add_event(const struct profile_about *about, const struct profile_event *event,
                      struct text *out) {
    const struct profile_label *label = &event->label;
    char name[64], buffer[32];
    const char *unit = unit_name(about, label->place.unit, buffer, sizeof buffer);
    line_name(about, label, name, sizeof name);
    bool frame_of_unit = label->kind == PROFILE_FRAME && unit[0];
    text_add(out,
             ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"name\": \"%s\"",
             about->rank, event->track, (event->begin - about->origin) * 1e6 + about->shift_us,
             (event->end - event->begin) * 1e6, frame_of_unit ? unit : name);
    text_add(out, ", \"cat\": \"%s\", \"args\": {\"unit\": \"%s\"",
             label->place.phase < 0 ? "none" : profiler_phase_name(label->place.phase), unit);
    if (event->work.flops > 0)
        add_number(out, "GFLOP", event->work.flops / 1e9);
    if (event->work.bytes > 0)
        add_number(out, "MB", event->work.bytes / 1e6);
    text_add(out, "}}");
}

void profile_add_trace(const struct profile_about *about, struct text *out) {
    const struct profile *profile = about->profile;
    text_add(out,
             "{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": {\"name\": \"rank %d\"}}",
             about->rank, about->rank);
    for (int track = 0; track < profile->n_tracks; track++)
        text_add(
            out,
            ",\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", \"args\": {\"name\": "
            "\"%s\"}}",
            about->rank, track, profile->tracks[track].name);
    for (int64_t i = 0; i < profile->n_events; i++)
        add_event(about, &profile->events[i], out);
}

// ---- writing the files

#define LARGEST_RANK_FILE ((size_t)1 << 30)

// Returns FOLDER/NAME-rank-N.part.
static char *rank_path(const char *folder, const char *name, int rank) {
    return file_path("%s/%s-rank-%d.part", folder, name, rank);
}

static enum status write_rank(const struct profile_about *about, const char *folder, const char *name,
                              void (*add)(const struct profile_about *about, struct text *out)) {
    struct text text = {0};
    char *path = rank_path(folder, name, about->rank);
    add(about, &text);
    const enum status status = file_write_all(path, text.data, text.length);
    text_free(&text);
    free(path);
    return status;
}

static enum status copy_rank(struct file_writer *writer, const char *folder, const char *name, int rank) {
    char *path = rank_path(folder, name, rank), *data = NULL;
    size_t bytes;
    enum status status = file_read(path, LARGEST_RANK_FILE, &data, &bytes);
    if (status == STATUS_OK) {
        file_write(writer, rank ? ",\n" : "", rank ? 2 : 0);
        file_write(writer, data, bytes);
        status = file_remove_tree(path);
    }
    free(data);
    free(path);
    return status;
}

// Writes FOLDER/NAME.json, a list of the contents of all ranks' files, and removes those files.
static enum status join_ranks(const char *folder, const char *name, const char *begin, int world) {
    struct file_writer writer;
    char *path = file_path("%s/%s.json", folder, name);
    enum status status = file_writer_open(&writer, path);
    free(path);
    TRY(status);
    file_write(&writer, begin, strlen(begin));
    for (int rank = 0; rank < world && status == STATUS_OK; rank++)
        status = copy_rank(&writer, folder, name, rank);
    file_write(&writer, "\n]}\n", 4);
    if (status == STATUS_OK)
        return file_commit(&writer);
    file_discard(&writer);
    return status;
}

enum status profile_write(const struct profile_about *about, struct comm *comm, const char *folder) {
    enum status status = write_rank(about, folder, "profile", profile_add_json);
    if (status == STATUS_OK)
        status = write_rank(about, folder, "trace", profile_add_trace);
    TRY(comm_agree(comm, status));
    if (comm->rank == 0)
        status = join_ranks(folder, "profile", "{\"ranks\": [\n", comm->world);
    if (comm->rank == 0 && status == STATUS_OK)
        status =
            join_ranks(folder, "trace", "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", comm->world);
    return comm_agree(comm, status);
}
