// Decides which bytes of a text that grows token by token can be shown: bytes are held back while they may
// become part of a stop string or are an incomplete UTF-8 character.
#ifndef ZERO_INFER_RELEASE_H
#define ZERO_INFER_RELEASE_H

#include "base/text.h"

struct release {
    const char *const *stops; // (n_stops) NUL-terminated, not empty
    int n_stops;
    struct text held;
    bool stopped; // a stop string is complete; what follows is dropped
};

void release_init(struct release *release, const char *const *stops, int n_stops);
void release_free(struct release *release);
// Adds the bytes of a token and returns the number of bytes, from release->held.data on, that can be shown;
// call release_drop with it after that. The text ends before the stop string that is complete first, byte
// by byte, so it does not depend on how the text was cut into tokens; of several that are complete with the
// same byte, before the longest.
size_t release_add(struct release *release, const char *bytes, size_t n_bytes);
void release_drop(struct release *release, size_t n);

#endif
