// Reads a run's metrics.jsonl (trainer/output/metrics.h writes it), also while the run writes: a line is read
// once it is complete, and reading goes on where it ended. The numbers of a line are scanned without building
// a tree, as a run of 100,000 steps has about 100 MB of them. Reading trusts nothing: what is not such a line
// is counted and skipped.
#ifndef ZERO_TRAINER_RUNS_METRICS_READER_H
#define ZERO_TRAINER_RUNS_METRICS_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

// The numbers that are read, with their keys. NaN where the key is absent or null.
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
    bool is_step, is_eval;    // it has "loss", or "val_loss"
    double values[N_METRICS]; // by enum metric
    const char *text;         // all of it, for what is no number; valid until the next call
};

struct metrics_reader {
    char *path;
    int descriptor; // -1: there is no file yet
    uint64_t inode;
    uint64_t offset; // in the file, of the bytes to read next
    char *buffer;
    size_t begin, end; // of the bytes in the buffer that are not yet scanned
    bool skips;        // within a line that is too long
    int64_t damaged;   // complete lines that were skipped
};

enum metrics_event {
    METRICS_LINE,     // a line
    METRICS_END,      // no complete line yet, or no file
    METRICS_RESTARTED // a resumed run rewrote the file: reading starts over, and what was read is void
};

// The file need not exist yet.
void metrics_reader_open(struct metrics_reader *reader, const char *folder);
// Goes on at the first whole line of the last `bytes` of the file. Before the first call of next.
void metrics_reader_seek_tail(struct metrics_reader *reader, uint64_t bytes);
// STATUS_FAILED: the file cannot be read.
enum status metrics_reader_next(struct metrics_reader *reader, struct metrics_line *line,
                                enum metrics_event *event) MUST_CHECK;
void metrics_reader_close(struct metrics_reader *reader);

#endif
