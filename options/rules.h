// Internal to options/: the rules between options, and collecting faults. A check goes on after a fault, so
// that one message reports all of them. Rules can be checked for a config that has faults already.
#ifndef ZERO_OPTIONS_RULES_H
#define ZERO_OPTIONS_RULES_H

#include "options/config.h"

struct faults {
    struct text list; // one line per fault
    int n;
    bool full; // there were too many faults, so the check ended
    // A failure was recorded before faults_begin. Its message stays, and the first fault ends the check.
    bool blocked;
};

struct faults faults_begin(void);
// If `status` is STATUS_INVALID, moves the recorded message to the list and returns STATUS_OK, so that the
// check can go on. At the hundredth fault returns STATUS_INVALID instead, because the file is then probably
// not a configuration. Returns any other status unchanged, and with `blocked` every status.
enum status faults_take(struct faults *faults, enum status status) MUST_CHECK;
// Ends the collection and frees the list. If a failure that is not in the list ended the check, returns its
// `status` and keeps its message. Otherwise returns STATUS_INVALID with the messages of all faults, or
// STATUS_OK if there are none.
//   status   what the check returned
//   advice   a last line for the message, or NULL
enum status faults_end(struct faults *faults, enum status status, const char *advice) MUST_CHECK;

// Sets the options that are not given and whose default depends on model.family.
void rules_take_defaults(struct config *config);
// Adds to `faults` what config_resolve would still refuse after the present faults are corrected. Skips rules
// that depend on a faulty option, on model.init_from, on the data, or on the number of ranks.
//   faulty   (n_options) whether an option's value was refused. NULL: none was; then no rule is skipped
enum status rules_check_rest(const struct config *config, const bool *faulty,
                             struct faults *faults) MUST_CHECK;

#endif
