// The simulated device: what it pretends to be, and what the environment asks of it.
#ifndef CUDASIM_DEVICE_H
#define CUDASIM_DEVICE_H

#include <cstddef>

#include "cudasim/api.h"

namespace cudasim {

// Why no call can do anything: no device, no driver, or a fault that happened before (cudaSuccess: it can).
cudaError_t device_error();
int device_capability(); // 90 for 9.0
size_t device_memory_bytes();
unsigned order_seed(); // of threads and blocks; 0: in order

} // namespace cudasim

#endif
