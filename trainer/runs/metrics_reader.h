// Reads a run's metrics.jsonl (written by trainer/output/metrics.h), also while the run writes it. A line is
// read once it is complete; the next call continues after it. The numbers of a line are scanned without
// building a tree, because a run of 100,000 steps has about 100 MB of lines. Damaged lines are skipped and
// counted.
#ifndef ZERO_TRAINER_RUNS_METRICS_READER_H
#define ZERO_TRAINER_RUNS_METRICS_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The numbers to read, with their keys in a line. A number is NaN if its key is absent or null.
#define METRICS(X)                                                                                           \
    X(METRIC_TOTAL_STEPS, "total_steps")                                                                     \
    X(METRIC_WALL_TIME, "wall_time")                                                                         \
    X(METRIC_LOSS, "loss")                                                                                   \
    X(METRIC_GRAD_NORM, "grad_norm")                                                                         \
    X(METRIC_LR, "lr")                                                                                       \
    X(METRIC_BATCH_SIZE, "batch_size")                                                                       \
    X(METRIC_NOISE_SCALE, "noise_scale")                                                                     \
    X(METRIC_LOSS_SCALE, "loss_scale")                                                                       \
    X(METRIC_SKIPPED_STEPS, "skipped_steps")                                                                 \
    X(METRIC_SPIKES, "spikes")                                                                               \
    X(METRIC_TOKENS, "tokens")                                                                               \
    X(METRIC_TOKENS_PER_S, "tokens_per_s")                                                                   \
    X(METRIC_STEP_MS, "step_ms")                                                                             \
    X(METRIC_MFU, "mfu")                                                                                     \
    X(METRIC_TOTAL, "total_bytes")                                                                           \
    X(METRIC_COMM_BYTES, "comm_bytes")                                                                       \
    X(METRIC_COMM_PLANNED_BYTES, "comm_planned_bytes")                                                       \
    X(METRIC_COMM_CALLS, "comm_calls")                                                                       \
    X(METRIC_COMM_PLANNED_CALLS, "comm_planned_calls")                                                       \
    X(METRIC_COMM_MS, "comm_ms")                                                                             \
    X(METRIC_COMM_HIDDEN, "comm_hidden")                                                                     \
    X(METRIC_VAL_LOSS, "val_loss")                                                                           \
    X(METRIC_VAL_BITS, "val_bits_per_byte")
#define METRIC_ENUM(constant, key) constant,
enum metric { METRICS(METRIC_ENUM) N_METRICS };
#undef METRIC_ENUM

struct metrics_line {
    int64_t step;             // steps done
    bool is_step, is_eval;    // the line has "loss" or "val_loss", respectively
    double values[N_METRICS]; // by enum metric
    const char *text;         // the whole line, for values that are not numbers; valid until the next call
};

struct metrics_reader {
    char *path;
    int descriptor; // -1: no file yet
    uint64_t inode;
    uint64_t offset; // offset in the file of the next bytes to read
    char *buffer;
    size_t begin, end; // range in `buffer` of the bytes that are not yet scanned
    bool skips;        // true: skip the bytes up to the next newline
    int64_t damaged;   // number of complete lines that were skipped as damaged or too long
};

enum metrics_event {
    METRICS_LINE, // a line was read
    METRICS_END,  // there is no complete line yet, or no file
    // The file was truncated, deleted or replaced, as by a resumed run: discard what was read. The next call
    // reads from the start.
    METRICS_RESTARTED
};

// Opens a reader. The file need not exist yet.
void metrics_reader_open(struct metrics_reader *reader, const char *folder);
// Continues at the first whole line in the last `bytes` of the file. Call it before the first
// metrics_reader_next.
void metrics_reader_seek_tail(struct metrics_reader *reader, uint64_t bytes);
// Reads the next line. STATUS_FAILED: the file cannot be read.
enum status metrics_reader_next(struct metrics_reader *reader, struct metrics_line *line,
                                enum metrics_event *event) MUST_CHECK;
void metrics_reader_close(struct metrics_reader *reader);

#endif
