#include "model/runner.h"

enum status runner_dry_run(struct runner *runner, enum operation operation, const void *args) {
    size_t bytes = 0;
    TRY(runner->device->ops->workspace_bytes(runner->device, operation, args, &bytes));
    if (bytes > runner->workspace_bytes)
        runner->workspace_bytes = bytes;
    if (runner->work)
        gpt_work_add(runner->work, runner->device, operation, args, runner->repeats);
    return STATUS_OK;
}

void *buffer_find(const struct region_table *table, int index) {
    if (index < 0)
        return NULL;
    return table ? region_data(table, index) : DRY_RUN_BUFFER;
}

static enum status dry_run_acquire(void *context, struct stream *stream, int unit, enum gpt_pass pass,
                                   struct gpt_next next, struct unit_view *view) {
#define FOUR(x) x, x, x, x
    static void *const buffers[UNIT_PARAMS_MOST] = {FOUR(FOUR(DRY_RUN_BUFFER)), FOUR(FOUR(DRY_RUN_BUFFER))};
#undef FOUR
    (void)stream, (void)unit, (void)next;
    *view = (struct unit_view){.params = pass == GPT_BACKWARD_GRADS ? NULL : buffers,
                               .grads = pass == GPT_FORWARD ? NULL : buffers,
                               .beta_zero = context != NULL};
    return STATUS_OK;
}

static enum status dry_run_release(void *context, struct stream *stream, int unit, enum gpt_pass pass) {
    (void)context, (void)stream, (void)unit, (void)pass;
    return STATUS_OK;
}

static enum status dry_run_ready(void *context, struct stream *stream, int unit) {
    (void)context, (void)stream, (void)unit;
    return STATUS_OK;
}

_Static_assert(N_BLOCK_PARAMS <= UNIT_PARAMS_MOST, "a dry run has an address for each tensor of a unit");
const struct unit_hooks dry_run_hooks = {
    .params_acquire = dry_run_acquire, .params_release = dry_run_release, .grads_ready = dry_run_ready};
