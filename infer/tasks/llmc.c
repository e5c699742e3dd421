// Every count is checked against what is left of the file before it is used.
#include "infer/tasks/llmc.h"

#include <string.h>

#define HEADER_BYTES 1024
#define VERSION      1
#define START        65535

enum status llmc_examples_begin(struct llmc_examples *examples, const char *data, size_t bytes,
                                const char *path) {
    int32_t header[3];
    if (bytes < HEADER_BYTES)
        return FAIL(STATUS_INVALID, "%s is cut: it has %zu bytes, its header alone %d", path, bytes,
                    HEADER_BYTES);
    memcpy(header, data, sizeof header);
    if (header[1] != VERSION || header[2] < 1)
        return FAIL(STATUS_INVALID, "%s: version %d with %d examples, expected version %d and examples", path,
                    header[1], header[2], VERSION);
    *examples =
        (struct llmc_examples){.path = path, .at = data + HEADER_BYTES, .end = data + bytes, .n = header[2]};
    return STATUS_OK;
}

static enum status refuse(const struct llmc_examples *examples, const char *what) {
    return FAIL(STATUS_INVALID, "%s, example %d: %s", examples->path, examples->n_read + 1, what);
}

// Words that are left.
static size_t left(const struct llmc_examples *examples) {
    return (size_t)(examples->end - examples->at) / 2;
}

static enum status next_tokens(struct llmc_examples *examples, int *n, const char **tokens) {
    if (left(examples) < 1 || left(examples) - 1 < (size_t)llmc_word(examples->at, 0))
        return refuse(examples, "the file is cut");
    *n = llmc_word(examples->at, 0);
    *tokens = examples->at + 2;
    examples->at += 2 * (1 + *n);
    return STATUS_OK;
}

enum status llmc_examples_next(struct llmc_examples *examples, struct llmc_example *example) {
    const char *start = examples->at;
    if (left(examples) < 5)
        return refuse(examples, "the file is cut");
    example->label = llmc_word(start, 3);
    example->n_choices = llmc_word(start, 4);
    if (llmc_word(start, 0) != START || llmc_word(start, 2) != (examples->n_read & 0xffff))
        return refuse(examples, "no example begins here; the file is damaged");
    if (example->n_choices < 2 || example->n_choices > TASK_MOST_CHOICES ||
        example->label >= example->n_choices)
        return refuse(examples, "expected 2 to 256 choices and the index of one of them");
    examples->at += 10;
    TRY(next_tokens(examples, &example->n_context, &example->context));
    for (int i = 0; i < example->n_choices; i++)
        TRY(next_tokens(examples, &example->n_tokens[i], &example->tokens[i]));
    if (examples->at - start != llmc_word(start, 1))
        return refuse(examples, "it is not as long as it says; the file is damaged");
    examples->n_read++;
    return STATUS_OK;
}
