#include "tests/cudasim/shadow.h"

#include <algorithm>

namespace cudasim {

void shadow::begin_block() {
    first_epoch = ++epoch;
}

void shadow::order_block() {
    epoch++;
}

void shadow::order_lanes(unsigned warp, uint32_t lanes) {
    uint32_t now = ++warp_time[warp];
    auto &table = known[warp];
    uint32_t joint[threads_per_warp] = {};
    for (uint32_t left = lanes; left; left &= left - 1) {
        const uint32_t *row = table[__builtin_ctz(left)];
        for (unsigned b = 0; b < threads_per_warp; b++)
            joint[b] = std::max(joint[b], row[b]);
    }
    for (uint32_t left = lanes; left; left &= left - 1)
        joint[__builtin_ctz(left)] = now;
    uint32_t lowest = *std::min_element(joint, joint + threads_per_warp);
    for (uint32_t left = lanes; left; left &= left - 1) {
        unsigned a = unsigned(__builtin_ctz(left));
        std::copy(joint, joint + threads_per_warp, table[a]);
        least[warp][a] = lowest;
    }
}

// Whether the running lane does not know of one of these accesses.
inline bool shadow::conflicts(const accesses &earlier, unsigned warp, unsigned lane, bool atomic) const {
    if (earlier.epoch != epoch || (atomic && earlier.atomic))
        return false;
    if (earlier.many_warps || earlier.warp != warp)
        return true;
    if (earlier.time < least[warp][lane])
        return false;
    for (uint32_t left = earlier.lanes & ~(1u << lane); left; left &= left - 1)
        if (known[warp][lane][__builtin_ctz(left)] <= earlier.time)
            return true;
    return false;
}

// Joins those that were there, or takes their place where the lane knows of them all.
inline void shadow::add(accesses &list, unsigned warp, unsigned lane, bool atomic, uint32_t place) const {
    uint32_t time = warp_time[warp];
    bool fresh = list.epoch != epoch;
    if (!fresh && !list.many_warps && list.warp == warp && list.time != time)
        fresh = !conflicts(list, warp, lane, false);
    if (fresh) {
        list = {epoch, time, 1u << lane, place, uint8_t(warp), false, atomic, false};
        return;
    }
    if (list.warp == warp) {
        list.lanes |= 1u << lane;
    } else {
        list.many_warps = true;
        list.warp = uint8_t(warp);
        list.lanes = 1u << lane;
    }
    list.atomic &= atomic;
    list.time = time;
    list.place = place;
}

inline shadow_verdict shadow::access_record(shadow_record &record, unsigned thread, access_kind kind,
                                            uint32_t place, accesses *other) const {
    unsigned warp = thread / threads_per_warp, lane = thread % threads_per_warp;
    bool atomic = kind == ACCESS_ATOMIC || kind == ACCESS_ATOMIC_READ;
    bool reads = atomic || kind == ACCESS_READ;
    shadow_verdict verdict = SHADOW_FINE;
    if (reads && record.written.epoch < first_epoch) {
        verdict = SHADOW_UNINITIALISED;
    } else if (record.written.under_way && record.written.epoch >= first_epoch && kind != ACCESS_WRITE_ENDS) {
        verdict = SHADOW_UNDER_WAY;
        *other = record.written;
    } else if (conflicts(record.written, warp, lane, atomic)) {
        verdict = SHADOW_AFTER_WRITE;
        *other = record.written;
    }
    if (kind == ACCESS_READ || kind == ACCESS_ATOMIC_READ) {
        add(record.read, warp, lane, atomic, place);
        return verdict;
    }
    if (verdict == SHADOW_FINE && conflicts(record.read, warp, lane, atomic)) {
        verdict = SHADOW_AFTER_READ;
        *other = record.read;
    }
    // Atomics of several threads stand side by side; any other write stands for all that it knows of.
    if (atomic && record.written.epoch == epoch && record.written.atomic)
        add(record.written, warp, lane, true, place);
    else
        record.written = {epoch,         warp_time[warp], 1u << lane, place,
                          uint8_t(warp), false,           atomic,     kind == ACCESS_WRITE_BEGINS};
    record.read.epoch = 0;
    return verdict;
}

void shadow::split_word(shadow_word &word) {
    if (unused.empty()) {
        split.emplace_back();
        unused.push_back(uint32_t(split.size()));
    }
    word.parts = unused.back();
    unused.pop_back();
    for (shadow_record &part : split[word.parts - 1].of)
        part = word.whole;
}

// After a write of all four.
void shadow::join_word(shadow_word &word) {
    word.whole = split[word.parts - 1].of[0];
    unused.push_back(word.parts);
    word.parts = 0;
}

shadow_verdict shadow::access(shadow_word *words, size_t offset, size_t n, unsigned thread, access_kind kind,
                              uint32_t place, size_t *at, accesses *other) {
    shadow_verdict first = SHADOW_FINE;
    accesses conflicting;
    auto record = [&](shadow_record &of, size_t i) {
        shadow_verdict verdict = access_record(of, thread, kind, place, &conflicting);
        if (verdict == SHADOW_FINE || first != SHADOW_FINE)
            return;
        first = verdict;
        *at = i;
        *other = conflicting;
    };
    for (size_t i = offset, end = offset + n; i < end;) {
        shadow_word &word = words[i / 4];
        size_t last = std::min(end, i / 4 * 4 + 4);
        bool all = last - i == 4;
        if (all && !word.parts) {
            record(word.whole, i);
            i = last;
            continue;
        }
        if (!word.parts)
            split_word(word);
        for (; i < last; i++)
            record(split[word.parts - 1].of[i % 4], i);
        if (all && kind == ACCESS_WRITE)
            join_word(word);
    }
    return first;
}

} // namespace cudasim
