// Internal to options/: the rules between options, also for a config that has faults, and the message of
// several faults: a check goes on after a fault, and at the end all are reported together.
#ifndef ZERO_OPTIONS_RULES_H
#define ZERO_OPTIONS_RULES_H

#include "options/config.h"

struct faults {
    struct text list; // a line each
    int n;
    bool full;    // so many that the check ended
    bool blocked; // a failure was recorded before: it stays the message, and the first fault ends the check
};

struct faults faults_begin(void);
// Takes over the recorded message of a STATUS_INVALID and returns STATUS_OK, so that the check can go on.
// Returns any other status as it is, and STATUS_INVALID at the hundredth fault: then it is the wrong file.
enum status faults_take(struct faults *faults, enum status status) MUST_CHECK;
// Ends the collection. STATUS_INVALID, with the messages of all faults, if there is one; a status that is not
// STATUS_OK (what ended the check early, with its message) stays. Frees the list.
//   advice   a last line for the message, or NULL
enum status faults_end(struct faults *faults, enum status status, const char *advice) MUST_CHECK;

// Sets the options that are not given and whose default depends on model.family.
void rules_take_defaults(struct config *config);
// Adds to `faults` what config_resolve would refuse once they are mended. Left out are the rules that depend
// on a faulty option, on model.init_from or the data, and on the number of ranks.
//   faulty   (n_options) whether an option's value was refused. NULL: none was; then no rule is left out
enum status rules_check_rest(const struct config *config, const bool *faulty,
                             struct faults *faults) MUST_CHECK;

#endif
