// Evaluation tasks. A task is a file of items (JSON Lines). Each item is a context and its possible
// continuations. Each continuation makes a request: the tokens of the context and of the continuation. The
// model computes the log-probability of the continuation (infer/tasks/score.h).
//
// Definitions follow lm-evaluation-harness, so that figures are comparable:
// - A continuation is a space followed by the choice. White space at the end of the context belongs to the
//   continuation instead.
// - Context and continuation are tokenized together. If the context alone has n tokens, those after the first
//   n are the continuation's.
// - The context begins with the document-start token (tokenizer_document_start) if it has no text, or if the
//   tokenizer has a separate token that begins documents (tokenizer_has_bos).
// - If a request is longer than seq_len + 1 tokens, the start of the context is dropped.
#ifndef ZERO_INFER_TASKS_TASK_H
#define ZERO_INFER_TASKS_TASK_H

#include "base/text.h"
#include "data/tokenizer/tokenizer.h"

enum task_kind {
    TASK_HELLASWAG,       // HellaSwag's published files
    TASK_LAMBADA,         // {"text": ...}: the last word is the continuation
    TASK_MULTIPLE_CHOICE, // {"context": ..., "choices": [...], "label": ...}
    N_TASK_KINDS
};
const char *task_kind_name(enum task_kind kind); // "hellaswag", "lambada", "multiple_choice"

// An item as text, from one line of a file.
#define TASK_MOST_CHOICES 256
struct task_text {
    struct text context;
    struct text choices[TASK_MOST_CHOICES]; // (n_choices) without the space before it; LAMBADA: the word
    int n_choices, label;                   // label: index of the right choice
};
// Reads one item. Call task_text_free after each, also after a failure.
// STATUS_INVALID: the message names `source` (file and line) and what was expected.
enum status task_text_read(struct task_text *item, enum task_kind kind, const char *line, size_t length,
                           const char *source) MUST_CHECK;
void task_text_free(struct task_text *item);

struct task_request {
    size_t first;    // index of its first token in task->tokens
    int n, n_scored; // number of its tokens; the last n_scored are the continuation's
    double length;   // divisor for acc_norm: characters of the choice, without the space before it
};

struct task_item {
    int first, n; // its requests: task->requests[first .. first + n)
    int label;    // index of the right one among them, from 0
};

struct task {
    enum task_kind kind;
    char *name; // "hellaswag", "lambada"; for multiple_choice the file's name without extension
    char *path;
    uint64_t checksum; // XXH3 of the file
    struct token_list tokens;
    struct task_request *requests;
    struct task_item *items;
    int n_requests, n_items;
};

struct task_options {
    const struct tokenizer *tokenizer; // the model's
    int vocab_size;                    // the model's
    int seq_len;                       // tokens of the longest sequence that the model is given
    int64_t limit;                     // use only the first `limit` items of each file; 0: all
};

// Splits `text`, which must be "KIND=FILE". STATUS_INVALID: it has another form; the message lists the
// kinds.
//   option   name of the option or flag that `text` is from, for the message
//   path     [out] the FILE: a pointer into `text`
enum status task_parse(const char *option, const char *text, enum task_kind *kind,
                       const char **path) MUST_CHECK;
// Loads the task given as "KIND=FILE". STATUS_INVALID: `text` has another form, or the file is malformed;
// the message names `option`, or the file and line. Free the task also after a failure.
enum status task_load(struct task *task, const char *option, const char *text,
                      const struct task_options *options) MUST_CHECK;
void task_free(struct task *task);

// A list of tasks with different names.
struct task_list {
    struct task *tasks;
    int n;
};
// Loads n tasks, each given as "KIND=FILE". Fails like task_load, or with STATUS_INVALID if two have the same
// name. Free the list also after a failure.
enum status task_list_load(struct task_list *list, const char *option, const char *const *texts, int n,
                           const struct task_options *options) MUST_CHECK;
void task_list_free(struct task_list *list);

#endif
