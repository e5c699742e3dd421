// Files of evaluation tasks, of every kind: accepted ones have whole requests, within the longest sequence.
#include "infer/tasks/task.h"
#include "tests/fuzz/fuzz.h"

#define SEQ_LEN 100

static void check(const struct task *task) {
    FUZZ_REQUIRE(task->n_items > 0);
    for (int i = 0; i < task->n_items; i++) {
        const struct task_item *item = &task->items[i];
        FUZZ_REQUIRE(item->n >= 1 && item->first + item->n <= task->n_requests);
        FUZZ_REQUIRE(item->label >= 0 && item->label < item->n);
    }
    for (int i = 0; i < task->n_requests; i++) {
        const struct task_request *request = &task->requests[i];
        FUZZ_REQUIRE(request->n_scored >= 1 && request->n > request->n_scored && request->n <= SEQ_LEN + 1);
        FUZZ_REQUIRE(request->first + (size_t)request->n <= task->tokens.n && request->length >= 0);
    }
}

// The first byte chooses the kind.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizer;
    char spec[400];
    struct task task;
    if (size == 0)
        return 0;
    if (!tokenizer)
        FUZZ_REQUIRE(tokenizer_load("bytes", &tokenizer) == STATUS_OK);
    const char *path = fuzz_file("items.jsonl", data + 1, size - 1);
    snprintf(spec, sizeof spec, "%s=%s", task_kind_name((enum task_kind)(data[0] % N_TASK_KINDS)), path);
    const struct task_options options = {.tokenizer = tokenizer, .vocab_size = 257, .seq_len = SEQ_LEN};
    if (fuzz_accepted(task_load(&task, "--task", spec, &options)))
        check(&task);
    task_free(&task);
    unlink(path);
    return 0;
}
