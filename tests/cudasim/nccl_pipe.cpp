#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cudasim/nccl.h"

namespace cudasim {

size_t byte_pipe::push(const char *from, size_t n) {
    const uint64_t at = written.load(std::memory_order_relaxed);
    n = std::min(n, size_t(pipe_bytes - (at - read.load(std::memory_order_acquire))));
    const size_t begin = at % pipe_bytes, first = std::min(n, pipe_bytes - begin);
    memcpy(bytes + begin, from, first);
    memcpy(bytes, from + first, n - first);
    written.store(at + n, std::memory_order_release);
    return n;
}

size_t byte_pipe::pull(char *to, size_t n) {
    const uint64_t at = read.load(std::memory_order_relaxed);
    n = std::min(n, size_t(written.load(std::memory_order_acquire) - at));
    const size_t begin = at % pipe_bytes, first = std::min(n, pipe_bytes - begin);
    memcpy(to, bytes + begin, first);
    memcpy(to + first, bytes, n - first);
    read.store(at + n, std::memory_order_release);
    return n;
}

size_t nccl_shared_bytes(int world) {
    return sizeof(nccl_shared) + size_t(world) * size_t(world) * sizeof(byte_pipe);
}

nccl_shared *open_nccl_shared(const char *name, int world) {
    const int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0)
        return nullptr;
    void *memory = MAP_FAILED;
    if (ftruncate(file, off_t(nccl_shared_bytes(world))) == 0) // zeros, unless another rank was here
        memory = mmap(nullptr, nccl_shared_bytes(world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? nullptr : static_cast<nccl_shared *>(memory);
}

void close_nccl_shared(nccl_shared *shared, int world) {
    munmap(shared, nccl_shared_bytes(world));
}

} // namespace cudasim
