// Memory is planned for the larger of data and tasks, checked, and then allocated.
#include "cli/eval/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/eval/progress.h"

struct model {
    const struct eval_options *options;
    struct session session;
    struct eval_data data;
    struct task_list tasks;
    struct gpt *gpt;
    int B, T;
};

static enum status check_place(const struct model *model, enum region_place place, size_t more) {
    const struct session *session = &model->session;
    size_t wanted = region_memory_bytes(&session->memory, place) + more, available;
    char needed[32], there[32];
    if (place == REGION_HOST)
        available = memory_available_bytes();
    else
        TRY(device_memory_available(session->device, &available));
    if (wanted <= available)
        return STATUS_OK;
    return FAIL(
        STATUS_FAILED,
        "train eval: a batch of %d sequences of %d tokens needs %s of %smemory, but %s are available; "
        "lower --batch-size or --seq-len",
        model->B, model->T, text_bytes(needed, sizeof needed, (double)wanted),
        place == REGION_HOST ? "" : "GPU ", text_bytes(there, sizeof there, (double)available));
}

static enum status check_memory(const struct model *model) {
    TRY(check_place(model, REGION_HOST,
                    eval_data_bytes(model->B, model->T) + task_scorer_bytes(model->B, model->T)));
    return model->session.device->place == REGION_HOST ? STATUS_OK : check_place(model, REGION_DEVICE, 0);
}

static enum status open_inputs(struct model *model) {
    const struct eval_options *options = model->options;
    struct session *session = &model->session;
    TRY(eval_data_open(&model->data, session, &options->files, options->end_of_text));
    if (options->tasks->n == 0)
        return STATUS_OK;
    if (!session->tokenizer)
        return FAIL(STATUS_INVALID,
                    "--task needs a tokenizer, and %s comes without one; give --tokenizer FILE",
                    session->weights.path);
    return task_list_load(&model->tasks, "--task", options->tasks->strings, options->tasks->n,
                          &(struct task_options){.tokenizer = session->tokenizer,
                                                 .vocab_size = session->params.config.vocab_size,
                                                 .seq_len = model->T,
                                                 .limit = options->limit});
}

static enum status choose_seq_len(struct model *model, const char *path) {
    const int n_positions = model->session.params.config.n_positions;
    const int64_t wanted = model->options->seq_len;
    if (wanted > n_positions)
        return FAIL(STATUS_INVALID, "train eval: --seq-len is %lld, but %s has n_positions %d",
                    (long long)wanted, path, n_positions);
    model->T = wanted ? (int)wanted : n_positions;
    return STATUS_OK;
}

// No more and no longer sequences per batch than there are: the rest would be padding.
static void choose_batch(struct model *model) {
    size_t length = eval_data_longest(&model->data, 1);
    for (int i = 0; i < model->tasks.n; i++) {
        const struct task *task = &model->tasks.tasks[i];
        for (int k = 0; k < task->n_requests; k++)
            if ((size_t)task->requests[k].n > length)
                length = (size_t)task->requests[k].n;
    }
    if ((size_t)model->T > length)
        model->T = (int)length;
    size_t most = eval_data_longest(&model->data, model->T);
    for (int i = 0; i < model->tasks.n; i++)
        if ((size_t)model->tasks.tasks[i].n_requests > most)
            most = (size_t)model->tasks.tasks[i].n_requests;
    model->B = (int)model->options->batch_size;
    if ((size_t)model->B > most)
        model->B = (int)most;
}

static enum status load(struct model *model) {
    struct session *session = &model->session;
    const struct gpt_options options = {.type = session->type,
                                        .B = model->B,
                                        .T = model->T,
                                        .mask_documents = session->masks_documents,
                                        .scoring = model->tasks.n > 0};
    TRY(gpt_new(&session->params, &options, session->device, &session->memory.table, &model->gpt));
    if (session->masks_documents)
        TRY(session_mask_documents(session, model->gpt));
    TRY(check_memory(model));
    TRY(session_load(session));
    return gpt_bind(model->gpt, &session->memory.table, &session->stream);
}

static enum status score_batches(struct task_scorer *scorer, const struct task *task,
                                 const struct task_batches *batches, struct task_scores *scores) {
    for (int i = 0; i < batches->n; i++) {
        eval_progress(task->name, (size_t)batches->batches[i].first, (size_t)task->n_requests, "requests");
        TRY(task_score_batch(scorer, task, batches, i, scores));
    }
    return STATUS_OK;
}

static enum status run_task(struct task_scorer *scorer, const struct task *task, struct task_result *result) {
    struct task_batches batches;
    struct task_scores scores = {0};
    enum status status = task_batches_make(&batches, task, scorer->B, scorer->T);
    if (status == STATUS_OK)
        status = task_scores_init(&scores, task);
    if (status == STATUS_OK)
        status = score_batches(scorer, task, &batches, &scores);
    if (status == STATUS_OK)
        *result = task_result_of(task, &scores);
    task_scores_free(&scores);
    task_batches_free(&batches);
    return status;
}

static enum status run_tasks(struct model *model, struct eval_result *result) {
    struct task_scorer scorer;
    const struct task_list *tasks = &model->tasks;
    result->tasks = calloc((size_t)tasks->n + 1, sizeof *result->tasks);
    result->task_names = calloc((size_t)tasks->n + 1, sizeof *result->task_names);
    if (!result->tasks || !result->task_names)
        return FAIL(STATUS_FAILED, "out of memory for the results of %d tasks", tasks->n);
    enum status status = task_scorer_init(&scorer, model->B, model->T);
    scorer.gpt = model->gpt;
    scorer.stream = &model->session.stream;
    scorer.hooks = &model->session.hooks;
    for (int i = 0; i < tasks->n && status == STATUS_OK; i++) {
        status = run_task(&scorer, &tasks->tasks[i], &result->tasks[i]);
        result->task_names[i] = tasks->tasks[i].name; // passes on
        tasks->tasks[i].name = NULL;
        result->n_tasks = i + 1;
    }
    task_scorer_free(&scorer);
    return status;
}

static enum status evaluate(struct model *model, struct eval_result *result) {
    struct session *session = &model->session;
    const struct eval_options *options = model->options;
    TRY(session_open(session, &(struct session_options){result->path, options->device, options->threads,
                                                        options->tokenizer, options->weights}));
    TRY(choose_seq_len(model, result->path));
    TRY(open_inputs(model));
    choose_batch(model);
    TRY(load(model));
    result->tokenizer = session->identity;
    result->has_data = model->data.n > 0;
    if (result->has_data)
        TRY(eval_data_run(&model->data, session, model->gpt, model->B, model->T, &result->totals));
    return run_tasks(model, result);
}

enum status eval_model(const char *path, const struct eval_options *options, struct eval_result *result) {
    struct model model = {.options = options};
    *result = (struct eval_result){.path = path};
    enum status status = evaluate(&model, result);
    eval_progress_end();
    gpt_delete(model.gpt);
    task_list_free(&model.tasks);
    eval_data_free(&model.data);
    session_close(&model.session);
    return status;
}

void eval_result_free(struct eval_result *result) {
    for (int i = 0; i < result->n_tasks; i++)
        free(result->task_names[i]);
    free(result->task_names);
    free(result->tasks);
    *result = (struct eval_result){0};
}
