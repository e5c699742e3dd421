// A word that processes of one machine share although they share no other memory: a page of anonymous memory
// (memfd), which other processes open through /proc. It needs no file system and none of /dev/shm, outlives
// the process that made it, and is gone with the last one that uses it.
#ifndef ZERO_ZERO_COMM_SHARED_WORD_H
#define ZERO_ZERO_COMM_SHARED_WORD_H

#include <stdatomic.h>
#include <stdbool.h>

struct shared_word {
    atomic_int *value; // NULL: not open
    int descriptor;    // in the process that made it: what shared_word_open needs; else -1
};

// Both return false, with value NULL, where the system refuses: no failure is recorded, and the caller does
// without. A new word is 0.
bool shared_word_new(struct shared_word *word);
//   process, descriptor   of the process that made the word and has not freed it. The caller can only open it
//                         in the same namespace of process ids, and as the same user
bool shared_word_open(struct shared_word *word, int process, int descriptor);
void shared_word_free(struct shared_word *word); // no-op when it is not open

#endif
