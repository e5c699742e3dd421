// llm.c's evaluation files, such as its hellaswag_val.bin: multiple choice, as tokens. A header of 256 int32
// ([0] magic 20240522, [1] version 1, [2] number of examples), then for each example uint16 words: 65535, the
// bytes of the example, its index, the label, the number of choices, then the context and each choice as a
// count and tokens.
#ifndef ZERO_INFER_TASKS_LLMC_H
#define ZERO_INFER_TASKS_LLMC_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "infer/tasks/item.h"

struct llmc_examples {
    const char *path;     // for messages
    const char *at, *end; // what is left to read
    int n, n_read;
};

// Words are little-endian and may be unaligned: read them with llmc_word.
struct llmc_example {
    int label, n_choices, n_context;
    const char *context;
    int n_tokens[TASK_MOST_CHOICES];
    const char *tokens[TASK_MOST_CHOICES];
};

static inline int32_t llmc_word(const char *words, int i) {
    return (unsigned char)words[2 * i] | (unsigned char)words[2 * i + 1] << 8;
}

// STATUS_INVALID: the file is cut, of another version, or an example is not as it says.
enum status llmc_examples_begin(struct llmc_examples *examples, const char *data, size_t bytes,
                                const char *path) MUST_CHECK;
// Reads the next example; while n_read < n.
enum status llmc_examples_next(struct llmc_examples *examples, struct llmc_example *example) MUST_CHECK;

#endif
