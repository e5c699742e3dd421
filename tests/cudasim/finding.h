// Findings: faults of the program under test, each reported once, with its place in the source.
#ifndef CUDASIM_FINDING_H
#define CUDASIM_FINDING_H

#include <cstdarg>
#include <string>

#include "cudasim/api.h"

namespace cudasim {

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string text_list(const char *format, va_list arguments);

// Reports "where: what", once for each text. Makes the process exit with a failure.
void report(const std::string &where, const std::string &what);
// Reports a finding about the running thread of a kernel, with its place in the source. It is reported once
// per kernel, kind and place, even if several threads have it. The launch fails. A caller that cannot
// continue then calls abort_block().
void kernel_finding(const char *kind, const std::string &what);
// Like kernel_finding, with explicit return addresses, innermost first, if they are not those of the caller.
void kernel_finding_at(const char *kind, const std::string &what, void *const *frames, int n);
// "kernel, block (0,0,0), thread (1,0,0)" for the running thread.
std::string kernel_place();
// Reports a finding about a host call, which fails with `error`.
cudaError_t refuse(const char *call, cudaError_t error, const std::string &what);

// The error that every call returns after a fault on the device (cudaSuccess: none).
cudaError_t sticky_error();
void set_sticky_error(cudaError_t error);

// Remembers `error` as the calling thread's last one and returns it.
cudaError_t remember(cudaError_t error);

} // namespace cudasim

#endif
