// Where the device functions of kernel.h meet the runtime: whatever makes a thread wait for others.
#ifndef CUDASIM_COLLECTIVES_H
#define CUDASIM_COLLECTIVES_H

#include <cstdint>

namespace cudasim {

enum barrier_kind { BARRIER_PLAIN, BARRIER_OR, BARRIER_AND, BARRIER_COUNT };
// Waits for all threads of the block and combines their predicates. file:line name the barrier in messages
// and tell one barrier from another.
int block_barrier(barrier_kind kind, int predicate, const char *file, int line);
// Waits for the lanes of the mask and orders their accesses to memory.
void warp_barrier(unsigned mask);

enum shuffle_kind { SHUFFLE_INDEX, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };
// A lane that reads one outside the mask gets all bits set: CUDA leaves that value undefined.
uint64_t shuffle(shuffle_kind kind, unsigned mask, uint64_t bits, int operand, int width);

enum vote_kind { VOTE_BALLOT, VOTE_ANY, VOTE_ALL };
unsigned vote(vote_kind kind, unsigned mask, bool predicate);

enum reduction_kind { REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_AND, REDUCE_OR, REDUCE_XOR };
int64_t warp_reduce(reduction_kind kind, unsigned mask, int64_t value);
// The lanes of the mask whose bits equal the caller's.
unsigned warp_match(unsigned mask, uint64_t bits);
// The lanes of the warp that have not left the kernel.
unsigned active_lanes();

} // namespace cudasim

#endif
