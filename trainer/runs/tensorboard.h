// TensorBoard event files, one per session. Format: TensorFlow record files with Event messages (event.proto,
// summary.proto), written without protobuf. The `step` of an event is the number of
// training steps done by then. The first event of a file names its writer.
#ifndef ZERO_TRAINER_RUNS_TENSORBOARD_H
#define ZERO_TRAINER_RUNS_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct tensorboard {
    char *path; // NULL: not open
    int descriptor;
    struct text events; // events that are not written yet
};

// Removes the events of steps after `steps_done` from FOLDER's event files, and incomplete records at their
// ends. Removes files that then have no values. A resumed run writes these steps again, and TensorBoard would
// otherwise draw both.
enum status tensorboard_trim(const char *folder, int64_t steps_done) MUST_CHECK;
// Creates FOLDER/events.out.tfevents.TIME.HOST and writes its first event.
enum status tensorboard_open(struct tensorboard *board, const char *folder) MUST_CHECK;
// Adds a scalar under a tag such as "train/loss". Buffered until tensorboard_flush.
void tensorboard_add(struct tensorboard *board, int64_t step, const char *tag, double value);
// Writes the buffered events. After a failure they are kept for the next flush.
enum status tensorboard_flush(struct tensorboard *board) MUST_CHECK;
void tensorboard_close(struct tensorboard *board);

// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), and TensorFlow's masked form of it.
uint32_t tensorboard_crc32c(const void *bytes, size_t n);
uint32_t tensorboard_masked_crc32c(const void *bytes, size_t n);

#endif
