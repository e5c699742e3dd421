// What is known about each byte of a block's shared memory: who wrote it last and who has read it since, and
// which of the block's threads know of that through barriers.
//
// Time within a block is an epoch, which each __syncthreads advances and which orders everything, and within
// an epoch a time of each warp, which each __syncwarp advances and which orders what its lanes did. Atomics
// do not race with atomics. Only the last writes and the reads since are remembered (as in FastTrack,
// Flanagan and Freund, PLDI 2009), so of several races on a byte one is found.
#ifndef CUDASIM_SHADOW_H
#define CUDASIM_SHADOW_H

#include <cstddef>
#include <cstdint>

#include "tests/cudasim/block.h"

namespace cudasim {

// The lanes of one warp that accessed a byte in the same way.
struct accesses {
    uint32_t epoch;
    uint32_t time; // of the warp, at the latest access
    uint32_t lanes;
    uint32_t place; // return address of the latest, relative to the program
    uint8_t warp;
    bool many_warps; // lanes of other warps too, which nothing but a barrier of the block can order
    bool atomic;     // all of them
    bool under_way;  // a write that has begun and not ended
};

struct shadow_byte {
    accesses written, read;
};

enum access_kind {
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_WRITE_BEGINS,
    ACCESS_WRITE_ENDS,
    ACCESS_ATOMIC,
    ACCESS_ATOMIC_READ
};

enum shadow_verdict {
    SHADOW_FINE,
    SHADOW_UNINITIALISED,
    SHADOW_UNDER_WAY,
    SHADOW_AFTER_WRITE,
    SHADOW_AFTER_READ
};

struct shadow {
    uint32_t epoch = 1;       // now
    uint32_t first_epoch = 1; // of this block
    uint32_t warp_time[max_warps] = {};
    // known[warp][a][b]: lane a knows what lane b did before this time of the warp; least: the least of a
    // row.
    uint32_t known[max_warps][threads_per_warp][threads_per_warp] = {};
    uint32_t least[max_warps][threads_per_warp] = {};

    void begin_block();
    void order_block();
    void order_lanes(unsigned warp, uint32_t lanes);
    // Records one access by the running thread; `other` is what it conflicts with.
    shadow_verdict access(shadow_byte &byte, unsigned thread, access_kind kind, uint32_t place,
                          accesses *other);

  private:
    bool conflicts(const accesses &earlier, unsigned warp, unsigned lane, bool atomic) const;
    void add(accesses &list, unsigned warp, unsigned lane, bool atomic, uint32_t place) const;
};

} // namespace cudasim

#endif
