// The simulator's cuda_runtime.h, which comes before the toolkit's on the include path.
// tests/cudasim/README.md describes what it covers.
#ifndef CUDASIM_CUDA_RUNTIME_H
#define CUDASIM_CUDA_RUNTIME_H

#include "cudasim/api.h"
#include "cudasim/arithmetic.h"
#include "cudasim/kernel.h"
#include "cudasim/vectors.h"

#endif
