// Findings: what the simulator has to say about the program under test, said once, with the place.
#ifndef CUDASIM_FINDING_H
#define CUDASIM_FINDING_H

#include <cstdarg>
#include <string>

#include "cudasim/api.h"

namespace cudasim {

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string text_list(const char *format, va_list arguments);

// Reports `what`, begun with `where`, once for each text. Makes the process exit with a failure.
void report(const std::string &where, const std::string &what);
// The same for the running thread of a kernel, with the place in the source; once for each kernel, kind and
// place, however many threads it befalls. The launch fails; whoever cannot go on calls give_up_block() after
// it.
void kernel_finding(const char *kind, const std::string &what);
// With the return addresses from the innermost out, where they are not those of the caller.
void kernel_finding_at(const char *kind, const std::string &what, void *const *frames, int n);
// "kernel, block (0,0,0), thread (1,0,0)" for the running thread.
std::string kernel_place();
// The same for a call of the host: it is refused with `error`.
cudaError_t refuse(const char *call, cudaError_t error, const std::string &what);

// The error that every later call gives, after a fault on the device (cudaSuccess: none).
cudaError_t sticky_error();
void set_sticky_error(cudaError_t error);

// Remembers `error` as the calling thread's last one and returns it.
cudaError_t remember(cudaError_t error);

} // namespace cudasim

#endif
