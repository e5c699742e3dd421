// What the processor finds: an access to a page that is not there. In a kernel it becomes a finding like any
// other; on the host it is told, and the process dies of it as it would have.
#ifndef CUDASIM_CRASH_H
#define CUDASIM_CRASH_H

namespace cudasim {

// On the calling thread: signals get a stack of their own, since a kernel's may have run out. Called again
// before each launch, since test frameworks and MPI like to have these signals too.
void catch_crashes();
// When the calling thread ends.
void uncatch_crashes();

} // namespace cudasim

#endif
