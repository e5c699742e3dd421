// TensorBoard event files: a run's figures for those who watch runs there. A file per start of the run;
// format as TensorFlow's record files with Event messages (event.proto, summary.proto), written without
// protobuf.
#ifndef ZERO_TRAINER_TENSORBOARD_H
#define ZERO_TRAINER_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

struct tensorboard {
    FILE *stream;
    char *path;
};

// Makes FOLDER/events.out.tfevents.TIME.HOST and writes its first event.
enum status tensorboard_open(struct tensorboard *board, const char *folder) MUST_CHECK;
// One figure under a tag ("train/loss"). Not flushed: tensorboard_flush does.
enum status tensorboard_add(struct tensorboard *board, int64_t step, const char *tag,
                            double value) MUST_CHECK;
enum status tensorboard_flush(struct tensorboard *board) MUST_CHECK;
void tensorboard_close(struct tensorboard *board);

// CRC-32C (Castagnoli, reflected 0x82f63b78), and TensorFlow's mask of it.
uint32_t tensorboard_crc32c(const void *bytes, size_t n);
uint32_t tensorboard_masked_crc32c(const void *bytes, size_t n);

#endif
