// Items of evaluation tasks, read from the lines of a file (JSON Lines): a context, and what may continue it.
#ifndef ZERO_INFER_TASKS_ITEM_H
#define ZERO_INFER_TASKS_ITEM_H

#include "base/status.h"
#include "base/text.h"

enum task_kind {
    TASK_HELLASWAG,       // as published
    TASK_LAMBADA,         // {"text": ...}: the last word is the continuation
    TASK_MULTIPLE_CHOICE, // {"context": ..., "choices": [...], "label": ...}
    N_TASK_KINDS
};
const char *task_kind_name(enum task_kind kind); // "hellaswag", "lambada", "multiple_choice"

#define TASK_MOST_CHOICES 256

struct task_text {
    struct text context;
    struct text choices[TASK_MOST_CHOICES]; // (n_choices) without the blank before; of LAMBADA the last word
    int n_choices, label;                   // label: index of the right choice
};

// Reads one line as an item of this kind. Call task_text_free after each, also after a failure.
// STATUS_INVALID names `source` (file and line), and what was expected.
enum status task_text_read(struct task_text *item, enum task_kind kind, const char *line, size_t length,
                           const char *source) MUST_CHECK;
void task_text_free(struct task_text *item);

#endif
