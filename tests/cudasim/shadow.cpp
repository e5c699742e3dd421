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

// Whether one of these accesses is not ordered before the running lane.
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

// Adds the access to the list, or replaces the list where all its accesses are ordered before the lane.
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
        verdict = SHADOW_UNINITIALIZED;
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
    // Atomics of several threads are kept together; any other write replaces the accesses ordered before it.
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
        split_words.emplace_back();
        unused.push_back(uint32_t(split_words.size()));
    }
    word.split = unused.back();
    unused.pop_back();
    for (shadow_record &byte : split_words[word.split - 1].of)
        byte = word.whole;
}

// Called after a write to all four bytes.
void shadow::join_word(shadow_word &word) {
    word.whole = split_words[word.split - 1].of[0];
    unused.push_back(word.split);
    word.split = 0;
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
        if (all && !word.split) {
            record(word.whole, i);
            i = last;
            continue;
        }
        if (!word.split)
            split_word(word);
        for (; i < last; i++)
            record(split_words[word.split - 1].of[i % 4], i);
        if (all && kind == ACCESS_WRITE)
            join_word(word);
    }
    return first;
}

} // namespace cudasim
