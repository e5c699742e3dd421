// The CUDA runtime for the host: found before the toolkit's header when the .cu files are built for the
// simulator. tests/cudasim/README.md says what it covers.
#ifndef CUDASIM_CUDA_RUNTIME_H
#define CUDASIM_CUDA_RUNTIME_H

#include "cudasim/api.h"
#include "cudasim/arithmetic.h"
#include "cudasim/kernel.h"
#include "cudasim/vectors.h"

#endif
