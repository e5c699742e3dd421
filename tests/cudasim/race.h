// The race build's checks (race.cpp): each memory access of a kernel is checked for bounds, for shared memory
// that no thread wrote, and for races between the threads of a block. Other builds skip all of it.
#ifndef CUDASIM_RACE_H
#define CUDASIM_RACE_H

#include "tests/cudasim/block.h"

namespace cudasim {

extern bool sees_accesses; // kernels were compiled with -fsanitize=thread

void race_block_begins(block_runner &r);
void race_block_ends(block_runner &r);
void race_thread_runs(block_runner &r);
void race_block_ordered(block_runner &r);
void race_lanes_ordered(block_runner &r, unsigned warp, uint32_t lanes);

inline void race_block(block_runner &r) {
    if (sees_accesses)
        race_block_begins(r);
}
inline void race_end(block_runner &r) {
    if (sees_accesses)
        race_block_ends(r);
}
inline void race_thread(block_runner &r) {
    if (sees_accesses)
        race_thread_runs(r);
}
inline void race_block_barrier(block_runner &r) {
    if (sees_accesses)
        race_block_ordered(r);
}
inline void race_warp_barrier(block_runner &r, unsigned warp, uint32_t lanes) {
    if (sees_accesses)
        race_lanes_ordered(r, warp, lanes);
}

} // namespace cudasim

#endif
