// Internal to configs/: the rules between options, for a config that has other faults.
#ifndef ZERO_OPTIONS_RULES_H
#define ZERO_OPTIONS_RULES_H

#include "options/config.h"
#include "options/faults.h"

// Adds to `faults` what config_resolve would refuse once they are mended. Left out are the rules that depend
// on a faulty option, on model.init_from or the data, and on the number of ranks.
//   faulty   (n_options) whether an option's value was refused
enum status rules_check_rest(const struct config *config, const bool *faulty,
                             struct faults *faults) MUST_CHECK;

#endif
