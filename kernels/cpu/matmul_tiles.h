// One thread's part of a matrix product, in tiles that fit in its cache.
#ifndef ZERO_KERNELS_CPU_MATMUL_TILES_H
#define ZERO_KERNELS_CPU_MATMUL_TILES_H

#include "kernels/cpu/matmul.h"

#define MATMUL_ALIGNMENT 256 // of scratch, in bytes

static inline size_t matmul_aligned(size_t bytes) {
    return (bytes + MATMUL_ALIGNMENT - 1) / MATMUL_ALIGNMENT * MATMUL_ALIGNMENT;
}

// Raises *bytes to the scratch that the thread needs for a part of a product.
enum status matmul_tiles_size(struct cpu_device *cpu, const struct tiled_matmul *part, int thread,
                              size_t *bytes) MUST_CHECK;
enum status matmul_tiles_run(struct cpu_device *cpu, const struct tiled_matmul *part, int thread,
                             char *scratch) MUST_CHECK;

// The epilogue of a product's part, from (row, column) on; its c and sizes are left to the caller.
struct linear_epilogue_args matmul_epilogue(const struct tiled_matmul *part, int64_t row, int64_t column);
// Rotates the heads that end in these columns (tiled_matmul.rope), of one that began before them too: its
// thread has computed all of it.
void matmul_rotate(const struct cpu_device *cpu, const struct tiled_matmul *part, int64_t row, int64_t rows,
                   int64_t column, int64_t columns);

static inline const void *matmul_element(const void *tensor, enum dtype type, int64_t index) {
    return tensor ? (const char *)tensor + index * (int64_t)dtype_size(type) : NULL;
}

// The size that divides n into the fewest equal tiles of at most `most`, rounded up to a multiple of grain. 0
// for n = 0.
static inline int64_t matmul_tile_size(int64_t n, int64_t most, int64_t grain) {
    int64_t n_tiles = n > most ? (n + most - 1) / most : 1, mine = (n + n_tiles - 1) / n_tiles;
    return (mine + grain - 1) / grain * grain;
}

static inline int64_t matmul_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#endif
