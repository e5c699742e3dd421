// Prompts for `train generate`: one from the command line, or a file of them.
#ifndef ZERO_CLI_PROMPTS_H
#define ZERO_CLI_PROMPTS_H

#include "infer/prompt.h"

struct prompts {
    char *file;             // the text that the prompts point into; NULL for one of the command line
    struct prompt *prompts; // (n)
    char **strings;         // (n) of a jsonl file's prompts, or NULL
    int64_t n;
};

// Reads a file with one prompt per line, or, where its name ends in .jsonl, a JSON object per line with the
// string "prompt". "-" reads lines from standard input. STATUS_INVALID: it cannot be read, holds no prompt,
// or a line is not as expected; the message names the line.
enum status prompts_read(struct prompts *prompts, const char *path) MUST_CHECK;
enum status prompts_set_one(struct prompts *prompts, const char *prompt) MUST_CHECK;
void prompts_free(struct prompts *prompts); // also after a failure

#endif
