// What the processor finds: an access to a page that is not there. In a kernel it becomes a finding like any
// other; on the host it is told, and the process dies of it as it would have.
#ifndef CUDASIM_CRASH_H
#define CUDASIM_CRASH_H

namespace cudasim {

// From now on, on the calling thread: signals get a stack of their own, since a kernel's may have run out.
void catch_crashes();

} // namespace cudasim

#endif
