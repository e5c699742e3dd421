// What is known about each byte of a block's shared memory: who wrote it last and who has read it since, and
// which of the block's threads know of that through barriers. Four bytes share one record for as long as they
// are accessed together.
//
// Time within a block is an epoch, which each __syncthreads advances and which orders everything, and within
// an epoch a time of each warp, which each __syncwarp advances and which orders what its lanes did. Atomics
// do not race with atomics. Only the last writes and the reads since are remembered (as in FastTrack,
// Flanagan and Freund, PLDI 2009), so of several races on a byte one is found.
#ifndef CUDASIM_SHADOW_H
#define CUDASIM_SHADOW_H

#include <cstddef>
#include <cstdint>
#include <vector>

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

struct shadow_record {
    accesses written, read;
};

struct shadow_word {
    shadow_record whole;
    uint32_t parts; // where its bytes have records of their own: their number, from 1
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
    // Records an access by the running thread to n bytes from `offset` of the memory that `words` describes.
    // The first byte that it may not be made to is *at, and `other` what it conflicts with.
    shadow_verdict access(shadow_word *words, size_t offset, size_t n, unsigned thread, access_kind kind,
                          uint32_t place, size_t *at, accesses *other);

  private:
    struct bytes {
        shadow_record of[4];
    };
    std::vector<bytes> split; // words' parts
    std::vector<uint32_t> unused;

    bool conflicts(const accesses &earlier, unsigned warp, unsigned lane, bool atomic) const;
    void add(accesses &list, unsigned warp, unsigned lane, bool atomic, uint32_t place) const;
    shadow_verdict access_record(shadow_record &record, unsigned thread, access_kind kind, uint32_t place,
                                 accesses *other) const;
    void split_word(shadow_word &word);
    void join_word(shadow_word &word);
};

} // namespace cudasim

#endif
