// The functions behind kernel.h in which a thread waits for others.
#ifndef CUDASIM_COLLECTIVES_H
#define CUDASIM_COLLECTIVES_H

#include <cstdint>

namespace cudasim {

// Waits for all threads of the block. file:line name the barrier in messages and distinguish barriers.
void block_barrier(const char *file, int line);
// Waits for the lanes of the mask and orders their memory accesses.
void warp_barrier(unsigned mask);
// Orders the running thread's accesses to global memory before it and after it, for all blocks.
void fence();

enum shuffle_kind { SHUFFLE_INDEX, SHUFFLE_UP, SHUFFLE_XOR };
// A lane that reads from a lane outside the mask gets all bits set; CUDA leaves that value undefined.
uint64_t shuffle(shuffle_kind kind, unsigned mask, uint64_t bits, int operand, int width);

// The lanes of the mask whose predicate is true.
unsigned ballot(unsigned mask, bool predicate);
// The largest value of the mask's lanes.
unsigned warp_maximum(unsigned mask, unsigned value);
// The lanes of the mask whose bits equal the caller's.
unsigned warp_match(unsigned mask, uint64_t bits);

} // namespace cudasim

#endif
