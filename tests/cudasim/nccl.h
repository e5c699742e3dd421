// The simulated NCCL's exchange of bytes between processes, through shared memory.
#ifndef CUDASIM_NCCL_H
#define CUDASIM_NCCL_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cudasim {

constexpr int most_ranks = 16;
constexpr size_t pipe_bytes = 256 << 10;

// A pipe of bytes from one rank to another, in order, with one reader and one writer.
struct byte_pipe {
    std::atomic<uint64_t> written, read;
    char bytes[pipe_bytes];

    // Each moves as many bytes as it can now, and returns their number.
    size_t push(const char *from, size_t n);
    size_t pull(char *to, size_t n);
};

// The memory that the processes of a communicator share. Initially zeros.
struct nccl_shared {
    std::atomic<int> n_joined;
    std::atomic<int> devices[most_ranks];      // 1 + the GPU of each rank
    std::atomic<uint64_t> n_begun[most_ranks]; // groups of calls whose turn has come on each rank
    byte_pipe pipes[];                         // (world, world): from, to
};

size_t nccl_shared_bytes(int world);
// Returns the shared memory of this name, created by the first process that asks for it; NULL on failure.
nccl_shared *open_nccl_shared(const char *name, int world);
void close_nccl_shared(nccl_shared *shared, int world);

} // namespace cudasim

#endif
