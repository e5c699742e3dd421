// At most as many bytes are held as one stop string and one token have, so plain searches are fast enough.
#include "infer/release.h"

#include <string.h>

#define LONGEST_CHARACTER 4

void release_init(struct release *release, const char *const *stops, int n_stops) {
    *release = (struct release){.stops = stops, .n_stops = n_stops};
}

void release_free(struct release *release) {
    text_free(&release->held);
}

// Returns true if the held bytes contain a stop string.
//   cut   [out] if so, the number of held bytes before the stop string that ends the text
static bool find_stop(const struct release *release, size_t *cut) {
    const char *data = release->held.data;
    size_t first_end = release->held.length + 1;
    for (int i = 0; i < release->n_stops; i++) {
        size_t length = strlen(release->stops[i]);
        const char *at = memmem(data, release->held.length, release->stops[i], length);
        if (!at)
            continue;
        size_t begin = (size_t)(at - data), end = begin + length;
        if (end < first_end || (end == first_end && begin < *cut)) {
            first_end = end;
            *cut = begin;
        }
    }
    return first_end <= release->held.length;
}

// Returns the length of the longest end of release->held that is the start of a stop string; 0: none is.
static size_t stop_prefix(const struct release *release) {
    size_t longest = 0;
    for (int i = 0; i < release->n_stops; i++) {
        size_t n = strlen(release->stops[i]) - 1;
        n = n < release->held.length ? n : release->held.length;
        for (; n > longest; n--)
            if (memcmp(release->held.data + release->held.length - n, release->stops[i], n) == 0)
                longest = n;
    }
    return longest;
}

// Returns the length in bytes of the UTF-8 character that begins with `first`, as its leading bits state
// it; 1 for ASCII and continuation bytes.
static size_t character_length(unsigned char first) {
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
}

// Returns how many bytes at the end of `held` are an incomplete UTF-8 character.
static size_t incomplete_character(const struct text *held) {
    for (size_t n = 1; n < LONGEST_CHARACTER && n <= held->length; n++) {
        unsigned char byte = (unsigned char)held->data[held->length - n];
        if ((byte & 0xC0) != 0x80)
            return character_length(byte) > n ? n : 0;
    }
    return 0;
}

size_t release_add(struct release *release, const char *bytes, size_t n_bytes) {
    size_t cut = 0;
    if (release->stopped)
        return 0;
    text_add_bytes(&release->held, bytes, n_bytes);
    if (find_stop(release, &cut)) {
        release->stopped = true;
        return cut;
    }
    size_t prefix = stop_prefix(release), character = incomplete_character(&release->held);
    return release->held.length - (prefix > character ? prefix : character);
}

void release_drop(struct release *release, size_t n) {
    if (n == 0)
        return;
    memmove(release->held.data, release->held.data + n, release->held.length - n);
    release->held.length -= n;
}
