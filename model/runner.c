#include "model/runner.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

// Returns whether the operation has been sized with these arguments before; if not, adds it to the list.
// Equal arguments may differ in padding bytes; the operation is then sized again, which does no harm.
static bool was_sized(struct runner_sized *sized, enum operation operation, const void *args, size_t bytes) {
    for (int i = 0; i < RUNNER_SIZED_MOST && i < sized->n; i++)
        if (sized->list[i].operation == operation && sized->list[i].bytes == bytes &&
            memcmp(sized->list[i].args, args, bytes) == 0)
            return true;
    const int64_t at = sized->n++ % RUNNER_SIZED_MOST;
    sized->list[at].operation = operation;
    sized->list[at].bytes = bytes;
    memcpy(sized->list[at].args, args, bytes);
    return false;
}

static enum status size_workspace(struct runner *runner, enum operation operation, const void *args) {
    size_t bytes = 0;
    TRY(runner->device->ops->workspace_bytes(runner->device, operation, args, &bytes));
    if (bytes > runner->workspace_bytes)
        runner->workspace_bytes = bytes;
    return STATUS_OK;
}

enum status runner_dry_run(struct runner *runner, enum operation operation, const void *args, size_t bytes) {
    if (runner->trace) {
        const double flops = cost_of_operation(operation, args).flops;
        runner->trace->events[runner->trace->n_events - 1].flops += flops;
        if (operation == OP_attention_backward) // recomputing the scores is one of its five products
            runner->trace->recomputed_scores += flops / 5;
        return STATUS_OK;
    }
    if (!was_sized(runner->sized, operation, args, bytes))
        TRY(size_workspace(runner, operation, args));
    if (runner->work)
        gpt_work_add(runner->work, runner->device, operation, args);
    return STATUS_OK;
}

void *buffer_find(const struct region_table *table, int index) {
    if (index < 0)
        return NULL;
    return table ? region_data(table, index) : DRY_RUN_BUFFER;
}

static void list_buffer(struct buffer_list *buffers, int region, void *pointer) {
    RESERVE(buffers->list, buffers->n + 1, buffers->capacity);
    buffers->list[buffers->n++] = (struct listed_buffer){region, pointer};
}

enum status buffer_add(struct buffer_list *buffers, struct region_table *table, enum region_kind kind,
                       enum region_place place, enum dtype type, size_t elements, void *pointer,
                       const char *name) {
    int region;
    if (elements == 0)
        return STATUS_OK;
    TRY(region_add(table, kind, place, type, elements, &region, "%s", name));
    list_buffer(buffers, region, pointer);
    return STATUS_OK;
}

void buffer_share(struct buffer_list *buffers, void *pointer) {
    list_buffer(buffers, buffers->list[buffers->n - 1].region, pointer);
}

void buffers_find(const struct buffer_list *buffers, const struct region_table *table) {
    for (int i = 0; i < buffers->n; i++) {
        void *found = buffer_find(table, buffers->list[i].region);
        memcpy(buffers->list[i].pointer, &found, sizeof found); // the pointer may have any type
    }
}

// ---- the hooks of a dry run

static void record(const struct dry_run *run, bool acquires, int unit, enum gpt_pass pass) {
    const struct trace_event event = {.acquires = acquires, .unit = unit, .pass = pass};
    if (run->trace)
        trace_add(run->trace, &event);
}

static enum status begin(void *context, enum trace_kind kind) {
    const struct dry_run *run = context;
    if (run->trace)
        run->trace->kind = kind;
    return STATUS_OK;
}

static enum status acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                           struct unit_view *view) {
#define FOUR(x) x, x, x, x
    static void *const buffers[UNIT_PARAMS_MOST] = {FOUR(FOUR(DRY_RUN_BUFFER)), FOUR(FOUR(DRY_RUN_BUFFER))};
#undef FOUR
    const struct dry_run *run = context;
    (void)stream;
    *view = (struct unit_view){.params = pass == GPT_BACKWARD_GRADS ? NULL : buffers,
                               .grads = gpt_pass_adds_grads(pass) ? buffers : NULL,
                               .beta_zero = run->beta_zero};
    record(run, true, unit, pass);
    return STATUS_OK;
}

static enum status release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    (void)stream;
    record(context, false, unit, pass);
    return STATUS_OK;
}

static enum status ready(void *context, struct stream *stream, int unit) {
    (void)context, (void)stream, (void)unit;
    return STATUS_OK;
}

_Static_assert(N_BLOCK_PARAMS <= UNIT_PARAMS_MOST, "a dry run has an address for each tensor of a unit");

struct unit_hooks dry_run_hooks(struct dry_run *run) {
    return (struct unit_hooks){.context = run,
                               .begin = begin,
                               .params_acquire = acquire,
                               .params_release = release,
                               .grads_ready = ready};
}
