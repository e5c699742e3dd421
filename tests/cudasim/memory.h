// Memory of the device and pinned memory of the host: poisoned, between red zones and guard pages, and known
// by address, so that every access can be told to lie in live memory or not.
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
    char *pages;   // the mapped pages, red zones included (not for registered memory)
    size_t pages_bytes;
};

// The allocation whose pages hold the address, live or freed, or NULL. Safe from any thread without a lock.
const allocation *find_allocation(const void *address);
// Whether an access lies wholly in one live allocation.
bool memory_is_live(const void *address, size_t bytes);
// "12 bytes past the end of allocation 3 (cudaMalloc, 1024 bytes)": what is at an address that was not to be
// touched.
std::string describe_address(const void *address);
// Around everything that may touch memory of the device, which is closed to all else when the environment
// variable CUDASIM_PROTECT is set: then a host that reads or writes it dies of it.
void open_device_memory();
void close_device_memory();
void report_leaked_memory();

} // namespace cudasim

#endif
