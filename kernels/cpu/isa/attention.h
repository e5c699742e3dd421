// The positions that a query sees, for attention's forward and backward, which build on tiles.h. In the
// attention files, a "block" is a block of queries or keys, as in FlashAttention; a "tile" is what
// registers hold.
#ifndef ZERO_KERNELS_CPU_ISA_ATTENTION_H
#define ZERO_KERNELS_CPU_ISA_ATTENTION_H

#include "kernels/cpu/isa/tiles.h"

static inline int clamp_to(int n, int low, int high) {
    return n < low ? low : n > high ? high : n;
}

// The first position that a query at position `own` sees.
//   of_document   first position of the query's document
//   window        maximum number of positions that the query sees; 0: no limit
static inline int first_in_window(int of_document, int window, int own) {
    return window > 0 && own - window + 1 > of_document ? own - window + 1 : of_document;
}

#endif
