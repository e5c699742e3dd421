// For some kernels, ptxas chooses a bad number of registers on one architecture. The table in pinned_blocks
// pins the number of blocks per multiprocessor there: each row gives the second argument of
// __launch_bounds__, the minimum number of resident blocks per multiprocessor. RESOURCES.md, written by
// scripts/cuda_resources.py, lists the registers and spills of all kernels. Delete a row once its reason is
// gone.
#ifndef ZERO_KERNELS_CUDA_LAUNCH_BOUNDS_CUH
#define ZERO_KERNELS_CUDA_LAUNCH_BOUNDS_CUH

// The architecture being compiled for: 10 times its compute capability; 0 in host code.
#ifdef __CUDA_ARCH__
constexpr int ARCHITECTURE = __CUDA_ARCH__ / 10;
#else
constexpr int ARCHITECTURE = 0;
#endif

enum pinned_kernel {
    PINNED_ATTENTION_FORWARD, // attention_forward.cu: forward, when some query may not see key 0
    PINNED_QUERIES_BACKWARD,  // attention_backward.cu: queries_backward (dq), likewise
    PINNED_KEYS_BACKWARD,     // attention_backward.cu: keys_backward (dk and dv), likewise
    PINNED_SCHEDULE_FREE,     // optimizer.cu: step_spans of schedule-free AdamW
};

// Returns the minimum number of resident blocks per multiprocessor for a kernel; 0 lets ptxas decide.
//   width   head dimension of an attention kernel; 0 for other kernels
constexpr int pinned_blocks(enum pinned_kernel kernel, int width) {
    constexpr struct {
        enum pinned_kernel kernel;
        int architecture, width, blocks;
    } rows[] = {
        {PINNED_ATTENTION_FORWARD, 90, 80, 4}, // ptxas chooses three blocks; four fit without spilling
        {PINNED_QUERIES_BACKWARD, 80, 96, 3},  // shared memory allows three; ptxas aims at four and spills
        {PINNED_KEYS_BACKWARD, 100, 80, 2},    // ptxas aims at three and spills
        {PINNED_SCHEDULE_FREE, 120, 0, 5},     // ptxas aims at six and spills
    };
    for (const auto &row : rows)
        if (row.kernel == kernel && row.architecture == ARCHITECTURE && row.width == width)
            return row.blocks;
    return 0;
}

#endif
