// Launches: checks the limits that a device checks, then distributes the blocks of the grid over OpenMP
// threads.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <omp.h>

#include "cudasim.h"
#include "tests/cudasim/block.h"
#include "tests/cudasim/crash.h"
#include "tests/cudasim/device.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/stream.h"
#include "tests/cudasim/symbols.h"

namespace cudasim {

namespace {

std::mutex facts_mutex;

// Created on first use; never moved or destroyed.
kernel_facts &facts_of(const void *kernel) {
    static auto *known = new std::map<const void *, kernel_facts>;
    std::lock_guard<std::mutex> guard(facts_mutex);
    auto made = known->try_emplace(kernel);
    kernel_facts &facts = made.first->second;
    if (made.second) {
        facts.shared = thread_variables_of(kernel);
        for (const thread_variable &variable : facts.shared)
            facts.shared_bytes += variable.bytes;
    }
    return facts;
}

size_t dynamic_limit(const kernel_facts &facts) {
    if (facts.dynamic_limit)
        return facts.dynamic_limit;
    return default_shared_limit - std::min(facts.shared_bytes, default_shared_limit);
}

cudaError_t check_shape(const dim3 &grid, const dim3 &block, unsigned n_attributes) {
    if (n_attributes)
        return cudaErrorNotSupported;
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (!block.x || !block.y || !block.z || block.x > max_threads || block.y > max_threads || block.z > 64 ||
        uint64_t(block.x) * block.y * block.z > max_threads)
        return cudaErrorInvalidConfiguration;
    return cudaSuccess;
}

// The i-th block to start: a permutation given by the seed.
struct block_order {
    uint64_t n, step, offset;

    block_order(uint64_t n_, unsigned seed) : n(n_), step(1), offset(0) {
        if (!seed || n < 2)
            return;
        uint64_t mixed = seed * 0x9e3779b97f4a7c15ull;
        offset = (mixed >> 32) % n;
        step = 1 + (mixed & 0xffffffff) % (n - 1);
        while (greatest_divisor(step, n) != 1)
            step = step % (n - 1) + 1;
    }

    static uint64_t greatest_divisor(uint64_t a, uint64_t b) {
        while (b) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        return a;
    }

    uint64_t operator[](uint64_t i) const {
        return uint64_t(((unsigned __int128)i * step + offset) % n);
    }
};

void run_grid(grid_launch &launch) {
    uint64_t n = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    block_order order(n, launch.seed);
    auto run = [&](uint64_t i) {
        if (launch.failed)
            return;
        uint64_t b = order[i];
        run_block(launch, {unsigned(b % launch.grid.x), unsigned(b / launch.grid.x % launch.grid.y),
                           unsigned(b / launch.grid.x / launch.grid.y)});
    };
    int n_threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (uint64_t(n_threads) > n)
        n_threads = int(n);
    if (n_threads < 2) {
        for (uint64_t i = 0; i < n; i++)
            run(i);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
    for (uint64_t i = 0; i < n; i++)
        run(i);
}

struct held_arguments {
    char *bytes;
    held_arguments(const void *from, size_t n) {
        bytes = static_cast<char *>(aligned_alloc(64, (n + 63) / 64 * 64));
        memcpy(bytes, from, n);
    }
    ~held_arguments() {
        free(bytes);
    }
};

} // namespace

cudaError_t launch(const cudaLaunchConfig_t *config, const void *kernel, thread_call call,
                   const void *arguments, size_t arguments_bytes) {
    cudaError_t error = device_error();
    if (error == cudaSuccess)
        error = check_shape(config->gridDim, config->blockDim, config->numAttrs);
    const kernel_facts &facts = facts_of(kernel);
    if (error == cudaSuccess && config->dynamicSmemBytes > dynamic_limit(facts))
        error = cudaErrorInvalidValue;
    if (error != cudaSuccess)
        return remember(error);
    dim3 grid = config->gridDim, block = config->blockDim;
    size_t shared_bytes = config->dynamicSmemBytes;
    auto run = [=, &facts](const void *at) -> int {
        catch_crashes();
        grid_launch launch = {&facts, kernel, call,         at,           arguments_bytes,
                              grid,   block,  shared_bytes, order_seed(), {false}};
        run_grid(launch);
        return launch.failed ? cudaErrorLaunchFailure : cudaSuccess;
    };
    // Only work that runs later needs its own copy of the arguments.
    if (!work_is_delayed() && !is_captured(config->stream))
        return cudaError_t(enqueue(config->stream, "launch", [&] { return run(arguments); }));
    auto held = std::make_shared<held_arguments>(arguments, arguments_bytes);
    return cudaError_t(enqueue(config->stream, "launch", [=] { return run(held->bytes); }));
}

cudaError_t set_function_attribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    cudaError_t error = device_error();
    if (error == cudaSuccess && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        kernel_facts &facts = facts_of(kernel);
        if (value < 0 || size_t(value) + facts.shared_bytes > shared_limit)
            return remember(cudaErrorInvalidValue);
        facts.dynamic_limit = size_t(value);
    }
    return remember(error);
}

cudaError_t get_function_attributes(cudaFuncAttributes *attributes, const void *kernel) {
    *attributes = {};
    attributes->sharedSizeBytes = facts_of(kernel).shared_bytes;
    attributes->maxThreadsPerBlock = max_threads;
    attributes->maxDynamicSharedSizeBytes = int(dynamic_limit(facts_of(kernel)));
    attributes->binaryVersion = attributes->ptxVersion = device_capability();
    return remember(device_error());
}

} // namespace cudasim
