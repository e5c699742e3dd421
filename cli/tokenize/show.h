// What ./train tokenize shows while it works: on a terminal a line that is redrawn, elsewhere one per minute.
#ifndef ZERO_CLI_TOKENIZE_SHOW_H
#define ZERO_CLI_TOKENIZE_SHOW_H

#include <stdint.h>

struct show {
    double began_s, shown_s;     // base/clock.h
    uint64_t began_bytes, total; // of files; total 0: unknown
};

//   done, total   bytes of all files: read before this run, and in all (0: unknown)
void show_begin(struct show *show, uint64_t done, uint64_t total);
//   tokens   of all splits so far
void show_progress(struct show *show, uint64_t done, uint64_t tokens);
void show_end(void);

#endif
