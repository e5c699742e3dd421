// Device memory and pinned host memory: filled with NaN, between red zones and guard pages, and found by
// address, so that every access can be checked.
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include <cstddef>
#include <string>

#include "cudasim/api.h"

namespace cudasim {

enum memory_kind { MEMORY_DEVICE, MEMORY_PINNED, MEMORY_REGISTERED };

struct allocation {
    char *begin;
    size_t bytes;
    memory_kind kind;
    bool live;
    size_t number; // counted from 1 over the process, for messages
    char *pages;   // the mapped pages, with red zones (not for registered memory)
    size_t pages_bytes;
};

// The allocation whose pages hold the address, live or freed, or NULL. Safe from any thread without a lock.
const allocation *find_allocation(const void *address);
// Whether an access is entirely inside one live allocation.
bool memory_is_live(const void *address, size_t bytes);
// Describes an address for messages: "12 bytes past the end of allocation 3 (cudaMalloc, 1024 bytes)".
std::string describe_address(const void *address);
// Call these around everything that may access device memory. With the environment variable CUDASIM_PROTECT
// it is inaccessible otherwise, and the process dies when the host reads or writes it.
void open_device_memory();
void close_device_memory();
void report_leaked_memory();

} // namespace cudasim

#endif
