// Decides which bytes of a text that grows token by token can be shown. Bytes are held back while they may
// become part of a stop string, and while a UTF-8 character is incomplete.
#ifndef ZERO_INFER_RELEASE_H
#define ZERO_INFER_RELEASE_H

#include "base/text.h"

struct release {
    const char *const *stops; // (n_stops) NUL-terminated, not empty
    int n_stops;
    struct text held;
    bool stopped; // a stop string is complete; later bytes are dropped
};

void release_init(struct release *release, const char *const *stops, int n_stops);
void release_free(struct release *release);
// Adds the bytes of a token. Returns how many bytes of release->held.data can be shown; then call
// release_drop with that number. The text ends before the first stop string to be completed, byte by byte, so
// the result does not depend on token boundaries. If several are completed by the same byte, it ends before
// the longest.
size_t release_add(struct release *release, const char *bytes, size_t n_bytes);
void release_drop(struct release *release, size_t n);

#endif
