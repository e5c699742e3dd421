// Shared by attention's forward and backward: what queries see, on top of tiles.h. "Block" there is a block
// of queries or keys, as in FlashAttention; a tile is what is summed in registers.
#ifndef ZERO_KERNELS_CPU_ISA_ATTENTION_H
#define ZERO_KERNELS_CPU_ISA_ATTENTION_H

#include "kernels/cpu/isa/tiles.h"

static inline int clamp_to(int n, int low, int high) {
    return n < low ? low : n > high ? high : n;
}

// The first position that a query at position `own` sees: of its document, and with a window (0: none) the
// lowest that this reaches.
static inline int first_in_window(int of_document, int window, int own) {
    return window > 0 && own - window + 1 > of_document ? own - window + 1 : of_document;
}

#endif
