// The simulated device: its properties, and the settings from the environment.
#ifndef CUDASIM_DEVICE_H
#define CUDASIM_DEVICE_H

#include <cstddef>

#include "cudasim/api.h"

namespace cudasim {

// The error that every call now returns: no device, no driver, or an earlier fault (cudaSuccess: none).
cudaError_t device_error();
int device_capability(); // 90 for 9.0
size_t device_memory_bytes();
unsigned order_seed(); // seed for the order of threads and blocks; 0: by number

} // namespace cudasim

#endif
