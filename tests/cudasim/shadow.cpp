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
bool shadow::conflicts(const accesses &earlier, unsigned warp, unsigned lane, bool atomic) const {
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
void shadow::add(accesses &list, unsigned warp, unsigned lane, bool atomic, uint32_t place) const {
    uint32_t time = warp_time[warp];
    bool fresh = list.epoch != epoch;
    if (!fresh && !list.many_warps && list.warp == warp && list.time != time)
        fresh = !conflicts(list, warp, lane, false);
    if (fresh) {
        list = {epoch, time, 1u << lane, place, uint8_t(warp), false, atomic, false};
        return;
    }
    list.many_warps |= list.warp != warp;
    list.atomic &= atomic;
    list.lanes |= 1u << lane;
    list.time = time;
    list.place = place;
}

shadow_verdict shadow::access(shadow_byte &byte, unsigned thread, access_kind kind, uint32_t place,
                              accesses *other) {
    unsigned warp = thread / threads_per_warp, lane = thread % threads_per_warp;
    bool atomic = kind == ACCESS_ATOMIC || kind == ACCESS_ATOMIC_READ;
    bool reads = atomic || kind == ACCESS_READ;
    shadow_verdict verdict = SHADOW_FINE;
    if (reads && byte.written.epoch < first_epoch) {
        verdict = SHADOW_UNINITIALISED;
    } else if (byte.written.under_way && byte.written.epoch >= first_epoch && kind != ACCESS_WRITE_ENDS) {
        verdict = SHADOW_UNDER_WAY;
        *other = byte.written;
    } else if (conflicts(byte.written, warp, lane, atomic)) {
        verdict = SHADOW_AFTER_WRITE;
        *other = byte.written;
    }
    if (kind == ACCESS_READ || kind == ACCESS_ATOMIC_READ) {
        add(byte.read, warp, lane, atomic, place);
        return verdict;
    }
    if (verdict == SHADOW_FINE && conflicts(byte.read, warp, lane, atomic)) {
        verdict = SHADOW_AFTER_READ;
        *other = byte.read;
    }
    // Atomics of several threads stand side by side; any other write stands for all that it knows of.
    if (atomic && byte.written.epoch == epoch && byte.written.atomic)
        add(byte.written, warp, lane, true, place);
    else
        byte.written = {epoch,         warp_time[warp], 1u << lane, place,
                        uint8_t(warp), false,           atomic,     kind == ACCESS_WRITE_BEGINS};
    byte.read.epoch = 0;
    return verdict;
}

} // namespace cudasim
