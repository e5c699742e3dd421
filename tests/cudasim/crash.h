// Page faults. In a kernel, a page fault becomes a finding. On the host it is reported, and then ends the
// process as usual.
#ifndef CUDASIM_CRASH_H
#define CUDASIM_CRASH_H

namespace cudasim {

// Installs the signal handlers, and a signal stack for the calling thread, since a kernel's stack may have
// overflowed. Called again before each launch, because test frameworks and MPI install handlers too.
void catch_crashes();
// Call when the calling thread ends.
void uncatch_crashes();

} // namespace cudasim

#endif
