// `train generate --interactive`: lines from the user and text from the model take turns.
#ifndef ZERO_CLI_INTERACTIVE_H
#define ZERO_CLI_INTERACTIVE_H

#include "infer/sample.h"
#include "infer/session.h"

struct interactive_options {
    struct session *session; // loaded
    struct generator *generator;
    struct sample_request request;     // of one text; interactive_run sets prompts, samples and callbacks
    const char *in_prefix, *in_suffix; // added before and after each line of the user
};

// Keeps Ctrl-C from ending the program on a terminal, so that interactive_run can stop a text by it. Call it
// before any other thread is started.
void interactive_prepare(void);
// Reads lines until the end of the input or /quit. On a terminal with line editing and history; otherwise
// (a pipe, a file) without a prompt.
enum status interactive_run(const struct interactive_options *options) MUST_CHECK;

#endif
