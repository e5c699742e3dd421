// Instructions of a warp: lanes arrive one by one, and the last one does the work for all. Semantics follow
// the PTX manual (shfl.sync, vote.sync, redux.sync, match.sync, bar.warp.sync).
#include <algorithm>
#include <cstring>

#include "cudasim.h"
#include "cudasim/collectives.h"
#include "tests/cudasim/block.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/race.h"

namespace cudasim {

namespace {

// Whether all lanes of the mask wait in this instruction. A lane that waits with the same mask in another
// instruction, or with other parameters, is a finding.
bool all_agree(block_runner &r, const warp_state &w, const lane_wait &mine) {
    for (uint32_t lanes = mine.mask; lanes; lanes &= lanes - 1) {
        const lane_wait &other = w.waits[__builtin_ctz(lanes)];
        if (other.mask != mine.mask)
            return false; // it waits for other lanes first and may arrive here later
        if (other.what != mine.what && strcmp(other.what, mine.what)) {
            kernel_finding("divergent warp",
                           text("%s meets %s: %s", mine.what, other.what, who_waits(r).c_str()));
            abort_block();
        }
        if (other.apply != mine.apply || other.context != mine.context) {
            kernel_finding("divergent warp", text("the lanes of %s differ in its parameters", mine.what));
            abort_block();
        }
    }
    return true;
}

void check_mask(const warp_state &w, unsigned mask, const char *what, unsigned lane) {
    if (!(mask >> lane & 1)) {
        kernel_finding("divergent warp",
                       text("%s with mask %08x, which leaves out the calling lane %u", what, mask, lane));
        abort_block();
    }
    if (mask & ~w.live) {
        kernel_finding("divergent warp",
                       text("%s with mask %08x, of which lanes %08x do not exist or have left the kernel",
                            what, mask, mask & ~w.live));
        abort_block();
    }
}

} // namespace

void warp_collective(unsigned mask, const char *what, void *record,
                     void (*apply)(void *const records[32], unsigned mask, void *context), void *context) {
    block_runner &r = runner();
    unsigned warp = r.running / threads_per_warp, lane = r.running % threads_per_warp;
    warp_state &w = r.warps[warp];
    check_mask(w, mask, what, lane);
    lane_wait &mine = w.waits[lane];
    mine = {mask, what, record, apply, context};
    w.waiting |= 1u << lane;
    if ((w.waiting & mask) != mask || !all_agree(r, w, mine)) {
        wait_until_ready();
        return;
    }
    void *records[threads_per_warp] = {};
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1)
        records[__builtin_ctz(lanes)] = w.waits[__builtin_ctz(lanes)].record;
    apply(records, mask, context);
    w.waiting &= ~mask;
    make_ready(r, warp, r.random ? mask : mask & ~(1u << lane));
    if (r.random)
        wait_until_ready();
}

namespace {

void synchronize_lanes(void *const *, unsigned mask, void *) {
    block_runner &r = runner();
    race_warp_barrier(r, r.running / threads_per_warp, mask);
}

struct shuffle_record {
    uint64_t bits, result;
    int operand, width;
};

void apply_shuffle(void *const records[32], unsigned mask, void *context) {
    shuffle_kind kind = shuffle_kind(reinterpret_cast<intptr_t>(context));
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        shuffle_record *mine = static_cast<shuffle_record *>(records[lane]);
        int first = lane & ~(mine->width - 1), last = first + mine->width - 1, source = lane;
        switch (kind) {
        case SHUFFLE_INDEX:
            source = first + (mine->operand & (mine->width - 1));
            break;
        case SHUFFLE_UP:
            source = lane - (mine->operand & 31) >= first ? lane - (mine->operand & 31) : lane;
            break;
        case SHUFFLE_XOR:
            source = (lane ^ (mine->operand & 31)) <= last ? lane ^ (mine->operand & 31) : lane;
            break;
        }
        const shuffle_record *from = static_cast<const shuffle_record *>(records[source]);
        mine->result = from ? from->bits : ~uint64_t(0);
    }
}

struct vote_record {
    bool predicate;
    unsigned result;
};

void apply_vote(void *const records[32], unsigned mask, void *) {
    unsigned ballot = 0;
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        int lane = __builtin_ctz(lanes);
        ballot |= unsigned(static_cast<vote_record *>(records[lane])->predicate) << lane;
    }
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1)
        static_cast<vote_record *>(records[__builtin_ctz(lanes)])->result = ballot;
}

void apply_maximum(void *const records[32], unsigned mask, void *) {
    unsigned result = 0;
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1)
        result = std::max(result, *static_cast<unsigned *>(records[__builtin_ctz(lanes)]));
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1)
        *static_cast<unsigned *>(records[__builtin_ctz(lanes)]) = result;
}

struct match_record {
    uint64_t bits;
    unsigned result;
};

void apply_match(void *const records[32], unsigned mask, void *) {
    for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
        match_record *mine = static_cast<match_record *>(records[__builtin_ctz(lanes)]);
        mine->result = 0;
        for (uint32_t others = mask; others; others &= others - 1) {
            unsigned other = unsigned(__builtin_ctz(others));
            mine->result |= unsigned(static_cast<match_record *>(records[other])->bits == mine->bits)
                            << other;
        }
    }
}

} // namespace

void warp_barrier(unsigned mask) {
    warp_collective(mask, "__syncwarp", nullptr, synchronize_lanes, nullptr);
}

uint64_t shuffle(shuffle_kind kind, unsigned mask, uint64_t bits, int operand, int width) {
    static const char *const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_xor_sync"};
    if (width < 1 || width > 32 || (width & (width - 1))) {
        kernel_finding("instruction",
                       text("%s with width %d, which must be a power of two up to 32", names[kind], width));
        abort_block();
    }
    shuffle_record record = {bits, 0, operand, width};
    warp_collective(mask, names[kind], &record, apply_shuffle, reinterpret_cast<void *>(intptr_t(kind)));
    return record.result;
}

unsigned ballot(unsigned mask, bool predicate) {
    vote_record record = {predicate, 0};
    warp_collective(mask, "__ballot_sync", &record, apply_vote, nullptr);
    return record.result;
}

unsigned warp_maximum(unsigned mask, unsigned value) {
    warp_collective(mask, "__reduce_max_sync", &value, apply_maximum, nullptr);
    return value;
}

unsigned warp_match(unsigned mask, uint64_t bits) {
    match_record record = {bits, 0};
    warp_collective(mask, "__match_any_sync", &record, apply_match, nullptr);
    return record.result;
}

} // namespace cudasim
