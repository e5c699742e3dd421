// Copies and fills in stream order. Whether a call returns before its copy runs depends on the memory, as in
// the CUDA runtime's "API synchronization behavior". Pinned memory is read and written when the copy runs.
// Pageable memory is read before the call returns, and a copy into it is complete by then.
#include <cstring>
#include <memory>
#include <vector>

#include "cudasim.h"
#include "tests/cudasim/device.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"
#include "tests/cudasim/stream.h"

namespace cudasim {

namespace {

enum side { SIDE_DEVICE, SIDE_PINNED, SIDE_PAGEABLE };

side side_of(const void *address) {
    const allocation *a = find_allocation(address);
    if (a)
        return a->kind == MEMORY_DEVICE ? SIDE_DEVICE : SIDE_PINNED;
    return memory_is_live(address, 1) ? SIDE_PINNED : SIDE_PAGEABLE;
}

struct rows {
    size_t width, height, to_pitch, from_pitch;

    size_t span(size_t pitch) const {
        return height ? pitch * (height - 1) + width : 0;
    }
};

// When the copy runs, both sides must still be live.
int copy_now(const char *call, void *to, side to_side, const void *from, side from_side, const rows &shape) {
    if (to_side != SIDE_PAGEABLE && !check_device_memory(call, to, shape.span(shape.to_pitch)))
        return cudaErrorIllegalAddress;
    if (from_side != SIDE_PAGEABLE && !check_device_memory(call, from, shape.span(shape.from_pitch)))
        return cudaErrorIllegalAddress;
    for (size_t i = 0; i < shape.height; i++)
        memmove(static_cast<char *>(to) + i * shape.to_pitch,
                static_cast<const char *>(from) + i * shape.from_pitch, shape.width);
    return cudaSuccess;
}

bool kind_fits(cudaMemcpyKind kind, side to, side from) {
    static const bool to_device[] = {false, true, false, true}, from_device[] = {false, false, true, true};
    return kind == cudaMemcpyDefault ||
           (to_device[kind] == (to == SIDE_DEVICE) && from_device[kind] == (from == SIDE_DEVICE));
}

cudaError_t copy(const char *call, void *to, const void *from, const rows &shape, cudaMemcpyKind kind,
                 cudaStream_t stream) {
    if (unsigned(kind) > cudaMemcpyDefault)
        return remember(cudaErrorInvalidMemcpyDirection);
    if (!shape.width || !shape.height)
        return check_stream(call, stream);
    if (!to || !from ||
        (shape.height > 1 && (shape.to_pitch < shape.width || shape.from_pitch < shape.width)))
        return remember(cudaErrorInvalidValue);
    side to_side = side_of(to), from_side = side_of(from);
    if (!kind_fits(kind, to_side, from_side))
        return refuse(call, cudaErrorInvalidValue,
                      "the direction does not match the pointers: to " + describe_address(to) + ", from " +
                          describe_address(from));
    cudaError_t error;
    if ((from_side == SIDE_PAGEABLE || to_side == SIDE_PAGEABLE) && is_captured(stream))
        return refuse_in_capture(
            call, place_of(stream),
            "a copy from or to pageable memory waits for the device; the stream is being captured");
    if (from_side == SIDE_PAGEABLE && to_side == SIDE_DEVICE && work_is_delayed()) {
        const char *bytes = static_cast<const char *>(from);
        auto staged = std::make_shared<std::vector<char>>(bytes, bytes + shape.span(shape.from_pitch));
        error = cudaError_t(enqueue(
            stream, call, [=] { return copy_now(call, to, to_side, staged->data(), SIDE_PAGEABLE, shape); }));
    } else {
        error = cudaError_t(
            enqueue(stream, call, [=] { return copy_now(call, to, to_side, from, from_side, shape); }));
    }
    bool waits = to_side == SIDE_PAGEABLE || (to_side == SIDE_PINNED && from_side != SIDE_DEVICE);
    if (error == cudaSuccess && (waits || from_side == SIDE_PAGEABLE))
        count_host_wait(call);
    return error == cudaSuccess && waits ? finish_stream(stream) : error;
}

} // namespace

} // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return copy("cudaMemcpyAsync", to, from, {bytes, 1, bytes, bytes}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy("cudaMemcpy2DAsync", to, from, {width, height, to_pitch, from_pitch}, kind, stream);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    if (!bytes)
        return check_stream("cudaMemsetAsync", stream);
    return cudaError_t(enqueue(stream, "cudaMemsetAsync", [=]() -> int {
        if (!check_device_memory("cudaMemsetAsync", pointer, bytes))
            return cudaErrorIllegalAddress;
        memset(pointer, value, bytes);
        return cudaSuccess;
    }));
}

cudaError_t cudaMemcpy(void *, const void *, size_t, cudaMemcpyKind) {
    return check_stream("cudaMemcpy", nullptr);
}

cudaError_t cudaMemset(void *, int, size_t) {
    return check_stream("cudaMemset", nullptr);
}

} // extern "C"
