// Shadow memory: for each byte of a block's shared memory, which lanes wrote it last and which have read it
// since, and whether barriers order those accesses before the running thread. Four bytes share one record
// while they are accessed together.
//
// Time within a block is an epoch, advanced by each __syncthreads, which orders everything. Within an epoch
// each warp has its own time, advanced by each __syncwarp, which orders the accesses of its lanes. Atomics do
// not race with atomics. Only the last writes and the reads since are remembered (as in FastTrack, Flanagan
// and Freund, PLDI 2009), so one of several races on a byte is found.
#ifndef CUDASIM_SHADOW_H
#define CUDASIM_SHADOW_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/cudasim/block.h"

namespace cudasim {

// Accesses of one kind to a byte, by lanes of one warp.
struct accesses {
    uint32_t epoch;
    uint32_t time; // of the warp, at the latest access
    uint32_t lanes;
    uint32_t place; // return address of the latest access, relative to the program
    uint8_t warp;
    bool many_warps; // lanes of other warps have accesses too; only a barrier of the block can order them
    bool atomic;     // all of the accesses are atomic
    bool under_way;  // an asynchronous write has begun and not ended
};

struct shadow_record {
    accesses written, read;
};

struct shadow_word {
    shadow_record whole;
    uint32_t split; // index, from 1, of the records of its single bytes; 0: `whole` describes all four
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
    SHADOW_UNINITIALIZED,
    SHADOW_UNDER_WAY,
    SHADOW_AFTER_WRITE,
    SHADOW_AFTER_READ
};

struct shadow {
    uint32_t epoch = 1;       // the current epoch
    uint32_t first_epoch = 1; // the block's first epoch
    uint32_t warp_time[max_warps] = {};
    // known[warp][a][b]: accesses of lane b before this time of the warp are ordered before lane a; least:
    // the minimum of a row.
    uint32_t known[max_warps][threads_per_warp][threads_per_warp] = {};
    uint32_t least[max_warps][threads_per_warp] = {};

    void begin_block();
    void order_block();
    void order_lanes(unsigned warp, uint32_t lanes);
    // Records an access by `thread` to n bytes from `offset` on, in the memory that `words` describes. On a
    // conflict, *at is its first byte and *other the earlier access.
    shadow_verdict access(shadow_word *words, size_t offset, size_t n, unsigned thread, access_kind kind,
                          uint32_t place, size_t *at, accesses *other);

  private:
    struct bytes {
        shadow_record of[4];
    };
    std::vector<bytes> split_words; // records of single bytes
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
