// Helpers for ranks that open a checkpoint together: rank 0 decides and broadcasts, and all agree on the
// outcome without ending the run. `comm` is NULL for a process that opens a checkpoint alone. Used by the
// checkpoint modules and the code of the run folder.
#ifndef ZERO_ZERO_CHECKPOINT_RANKS_H
#define ZERO_ZERO_CHECKPOINT_RANKS_H

#include "zero/comm/comm.h"

bool ranks_is_root(const struct comm *comm); // true on rank 0, and if comm is NULL
enum status ranks_agree(struct comm *comm, enum status status) MUST_CHECK;           // as comm_agree
enum status ranks_broadcast(struct comm *comm, void *data, size_t bytes) MUST_CHECK; // sends rank 0's data

// Prints "host:/absolute/path", for messages that compare what two ranks find at a path.
#define RANKS_PLACE 1024
void ranks_describe_place(const char *path, char out[RANKS_PLACE]);

#endif
