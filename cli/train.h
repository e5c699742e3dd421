// Shared by the commands that train.
#ifndef ZERO_CLI_TRAIN_H
#define ZERO_CLI_TRAIN_H

#include "options/config.h"
#include "zero/comm/comm.h"

// Returns the options for comm_open.
//   config   NULL: it could not be read. The defaults then suffice for all ranks to agree on the failure
struct comm_options train_comm_options(const struct config *config);

#endif
