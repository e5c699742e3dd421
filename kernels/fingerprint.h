// A fingerprint of how a device rounds: a digest of the results of some operations on fixed numbers. Two
// devices with equal fingerprints very probably give the same bits in training, whatever their names are.
#ifndef ZERO_KERNELS_FINGERPRINT_H
#define ZERO_KERNELS_FINGERPRINT_H

#include "kernels/device.h"

#define FINGERPRINT_BYTES 33 // 32 hexadecimal digits and a NUL

// Computes the fingerprint: matrix products and their gradients, norms, activations, attention,
// cross-entropy, updates with fp32 and with stochastically rounded moments, and functions of the C library
// that the host calls. It does not depend on the number of ranks or threads. Takes a few milliseconds on a
// CPU.
//   type     compute type of the operations
//   library  version of a library that the run uses and that is not run here; or NULL
// Errors: STATUS_FAILED if an operation fails or memory is missing.
enum status device_fingerprint(struct device *device, enum dtype type, const char *library,
                               char out[FINGERPRINT_BYTES]) MUST_CHECK;

#endif
