// Rotary position embedding of a few rows on the calling thread, for operations that rotate what they load.
#ifndef ZERO_KERNELS_CPU_ISA_ROPE_H
#define ZERO_KERNELS_CPU_ISA_ROPE_H

#include "kernels/cpu/cpu.h"

// All rows of rope_forward's call, with its bits.
//   turns   [w] scratch of rope_turns_floats(D) floats
void CPU_OP(rotate_rows)(const struct rope_forward_args *args, float *turns);
size_t CPU_OP(rope_turns_floats)(int D);

#endif
