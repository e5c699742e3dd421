// Internal to options/: the rules between options, and collecting faults. A check goes on after a fault, so
// that one message reports all of them. Rules can be checked for a config that has faults already.
#ifndef ZERO_OPTIONS_RULES_H
#define ZERO_OPTIONS_RULES_H

#include "options/config.h"

struct faults {
    struct text list; // a line each
    int n;
    bool full;    // there were too many faults, so the check ended
    bool blocked; // a failure was already recorded: its message stays, and the first fault ends the check
};

struct faults faults_begin(void);
// Takes over the recorded message of a STATUS_INVALID and returns STATUS_OK, so that the check can go on.
// Returns any other status unchanged. Returns STATUS_INVALID at the hundredth fault, because the file is then
// probably not a configuration.
enum status faults_take(struct faults *faults, enum status status) MUST_CHECK;
// Ends the collection and frees the list. Returns `status` and keeps its message if it is not STATUS_OK,
// because it ended the check early. Else returns STATUS_INVALID with the messages of all faults, if there are
// any.
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
