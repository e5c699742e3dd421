// Decides which bytes of a text that grows token by token can be shown. Bytes are held back while they may
// become part of a stop string, and while a UTF-8 character is incomplete.
#ifndef ZERO_INFER_RELEASE_H
#define ZERO_INFER_RELEASE_H

#include "base/text.h"

struct release {
    const char *const *stops; // (n_stops) NUL-terminated, not empty
    int n_stops;
    struct text held; // bytes added and not dropped yet
    bool stopped;     // a stop string has been found; bytes added later are ignored
};

void release_init(struct release *release, const char *const *stops, int n_stops);
void release_free(struct release *release);
// Adds the bytes of a token. Returns how many bytes of release->held.data can be shown; after showing them,
// call release_drop with that number. The text ends before the stop string whose last byte comes first,
// regardless of token boundaries. If several stop strings end with the same byte, it ends before the longest.
size_t release_add(struct release *release, const char *bytes, size_t n_bytes);
// Removes the first n bytes of release->held.
void release_drop(struct release *release, size_t n);

#endif
