// One thread's part of a product of bf16 on matrix units (isa/unit_product.c), in tiles.
#ifndef ZERO_KERNELS_CPU_MATMUL_UNITS_H
#define ZERO_KERNELS_CPU_MATMUL_UNITS_H

#include "kernels/cpu/matmul.h"

// True if the device's instruction set has matrix units, and the product is for them.
bool matmul_is_on_units(const struct cpu_device *cpu, const struct tiled_matmul *part);

// As matmul_tiles_size and matmul_tiles_run.
void matmul_units_size(const struct cpu_device *cpu, const struct tiled_matmul *part, size_t *bytes);
void matmul_units_run(const struct cpu_device *cpu, const struct tiled_matmul *part, char *scratch);

#endif
