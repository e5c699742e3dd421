// See zero/comm/shared_word.h.
#include "zero/comm/shared_word.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool map(struct shared_word *word, int descriptor) {
    void *memory = mmap(NULL, sizeof *word->value, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    word->value = memory == MAP_FAILED ? NULL : memory;
    return word->value != NULL;
}

bool shared_word_new(struct shared_word *word) {
    *word = (struct shared_word){NULL, memfd_create("shared word", MFD_CLOEXEC)};
    if (word->descriptor < 0)
        return false;
    if (ftruncate(word->descriptor, sizeof *word->value) == 0 && map(word, word->descriptor))
        return true;
    close(word->descriptor);
    word->descriptor = -1;
    return false;
}

bool shared_word_open(struct shared_word *word, int process, int descriptor) {
    char path[64];
    struct stat found;
    *word = (struct shared_word){NULL, -1};
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, descriptor);
    // Anything but a word, such as what another process has under this number, is not touched.
    if (stat(path, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size != sizeof *word->value)
        return false;
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0)
        return false;
    bool mapped = map(word, opened);
    close(opened); // the mapping stays
    return mapped;
}

void shared_word_free(struct shared_word *word) {
    if (!word->value)
        return;
    munmap((void *)word->value, sizeof *word->value);
    if (word->descriptor >= 0)
        close(word->descriptor);
    *word = (struct shared_word){NULL, -1};
}
