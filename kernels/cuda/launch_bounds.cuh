// Kernels whose blocks per processor are pinned on one architecture, where ptxas decides badly by itself.
// Each row is the second argument of __launch_bounds__: the blocks that a processor holds at least. What
// ptxas makes of all kernels is in RESOURCES.md (scripts/cuda_resources.py); a row whose reason has gone goes
// too.
#ifndef ZERO_KERNELS_CUDA_LAUNCH_BOUNDS_CUH
#define ZERO_KERNELS_CUDA_LAUNCH_BOUNDS_CUH

// What is compiled for: 10 times the compute capability; 0 in the host's code.
#ifdef __CUDA_ARCH__
constexpr int ARCHITECTURE = __CUDA_ARCH__ / 10;
#else
constexpr int ARCHITECTURE = 0;
#endif

enum pinned_kernel {
    PINNED_ATTENTION_FORWARD, // of attention_forward.cu, with windows or documents
    PINNED_QUERIES_BACKWARD,  // of attention_backward.cu, likewise
    PINNED_KEYS_BACKWARD,     // likewise
    PINNED_SCHEDULE_FREE,     // step_spans of schedule-free AdamW, in optimizer.cu
};

// The bound of a kernel; 0: ptxas decides.
//   width   of its heads; 0: it has none
constexpr int pinned_blocks(enum pinned_kernel kernel, int width) {
    constexpr struct {
        enum pinned_kernel kernel;
        int architecture, width, blocks;
    } rows[] = {
        {PINNED_ATTENTION_FORWARD, 90, 80, 4}, // ptxas decides for three, though four need not spill
        {PINNED_QUERIES_BACKWARD, 80, 96, 3},  // shared memory holds three; ptxas aims at four and spills
        {PINNED_KEYS_BACKWARD, 100, 80, 2},    // ptxas aims at three and spills
        {PINNED_SCHEDULE_FREE, 120, 0, 5},     // ptxas aims at six and spills
    };
    for (const auto &row : rows)
        if (row.kernel == kernel && row.architecture == ARCHITECTURE && row.width == width)
            return row.blocks;
    return 0;
}

#endif
