#include "tests/cudasim/race.h"

#include "cudasim.h"
#include "tests/cudasim/finding.h"
#include "tests/cudasim/memory.h"

namespace cudasim {

bool sees_accesses;

void race_block_begins(block_runner &) {}
void race_thread_runs(block_runner &, unsigned) {}
void race_block_ordered(block_runner &) {}
void race_lanes_ordered(block_runner &, unsigned, uint32_t) {}

void shared_read(const void *, size_t) {}
void shared_written(const void *, size_t) {}
void global_read(const void *, size_t) {}
void global_written(const void *, size_t) {}

} // namespace cudasim

extern "C" int cudasim_sees_accesses(void) {
    return cudasim::sees_accesses;
}
