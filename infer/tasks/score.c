// The rows of a batch are padded on the right, where causal attention does not see the padding.
#include "infer/tasks/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

// ---- batches

struct by_length {
    int request, n; // index of a request, and its number of tokens
};

static int compare_lengths(const void *a, const void *b) {
    const struct by_length *x = a, *y = b;
    return x->n != y->n ? (x->n > y->n ? -1 : 1) : x->request - y->request;
}

static void sort_requests(struct task_batches *batches, const struct task *task) {
    const size_t n = (size_t)task->n_requests;
    struct by_length *sorted = allocate(n, sizeof *sorted);
    for (int i = 0; i < task->n_requests; i++)
        sorted[i] = (struct by_length){i, task->requests[i].n};
    qsort(sorted, n, sizeof *sorted, compare_lengths);
    batches->order = allocate(n, sizeof *batches->order);
    for (int i = 0; i < task->n_requests; i++)
        batches->order[i] = sorted[i].request;
    free(sorted);
}

void task_batches_make(struct task_batches *batches, const struct task *task, int B, int T) {
    struct gpt_shape shapes[GPT_MOST_SHAPES];
    const int n_shapes = gpt_shapes(B, T, shapes);
    *batches = (struct task_batches){.batches = allocate((size_t)task->n_requests, sizeof *batches->batches)};
    sort_requests(batches, task);
    for (int first = 0; first < task->n_requests;) {
        const int longest = task->requests[batches->order[first]].n - 1, left = task->n_requests - first;
        int shape = 0;
        while (shape + 1 < n_shapes && shapes[shape + 1].T >= longest)
            shape++;
        const int n = left < shapes[shape].B ? left : shapes[shape].B;
        batches->batches[batches->n++] = (struct task_batch){shapes[shape], first, n};
        first += n;
    }
}

void task_batches_free(struct task_batches *batches) {
    free(batches->order);
    free(batches->batches);
    *batches = (struct task_batches){0};
}

// ---- scoring

void task_scores_init(struct task_scores *scores, const struct task *task) {
    const size_t n = (size_t)task->n_requests;
    scores->log_probabilities = allocate(n, sizeof *scores->log_probabilities);
    scores->greedy = allocate(n, sizeof *scores->greedy);
}

void task_scores_free(struct task_scores *scores) {
    free(scores->log_probabilities);
    free(scores->greedy);
    *scores = (struct task_scores){0};
}

void task_scorer_init(struct task_scorer *scorer, int B, int T, int32_t document_start) {
    const size_t n = (size_t)B * (size_t)T;
    *scorer = (struct task_scorer){.B = B,
                                   .T = T,
                                   .document_start = document_start,
                                   .starts = allocate(n, sizeof *scorer->starts),
                                   .tokens = allocate(n, sizeof *scorer->tokens),
                                   .targets = allocate(n, sizeof *scorer->targets),
                                   .losses = allocate(n, sizeof *scorer->losses),
                                   .rows = allocate(n, sizeof *scorer->rows),
                                   .predictions = allocate(n, sizeof *scorer->predictions)};
}

void task_scorer_free(struct task_scorer *scorer) {
    free(scorer->tokens);
    free(scorer->targets);
    free(scorer->starts);
    free(scorer->losses);
    free(scorer->rows);
    free(scorer->predictions);
    *scorer = (struct task_scorer){0};
}

size_t task_scorer_bytes(int B, int T) {
    const struct task_scorer *scorer = NULL;
    return (size_t)B * (size_t)T *
           (sizeof *scorer->tokens + sizeof *scorer->targets + sizeof *scorer->starts +
            sizeof *scorer->losses + sizeof *scorer->rows + sizeof *scorer->predictions);
}

// Fills the scorer's arrays with a batch, one request per row. For LAMBADA, also lists in scorer->rows the
// positions whose next tokens are the last words, and returns their number; else returns 0.
static int fill(struct task_scorer *scorer, const struct task *task, const int *order,
                const struct task_batch *batch) {
    const size_t T = (size_t)batch->shape.T;
    int n_rows = 0;
    memset(scorer->tokens, 0, (size_t)batch->shape.B * T * sizeof *scorer->tokens);
    memset(scorer->targets, 0, (size_t)batch->shape.B * T * sizeof *scorer->targets);
    for (int row = 0; row < batch->n; row++) {
        const struct task_request *request = &task->requests[order[row]];
        const int32_t *ids = task->tokens.ids + request->first;
        const size_t bytes = (size_t)(request->n - 1) * sizeof *ids;
        memcpy(scorer->tokens + (size_t)row * T, ids, bytes);
        memcpy(scorer->targets + (size_t)row * T, ids + 1, bytes);
        for (int i = request->n - 1 - request->n_scored; i < request->n - 1 && task->kind == TASK_LAMBADA;
             i++)
            scorer->rows[n_rows++] = row * batch->shape.T + i;
    }
    token_batch_find_starts(scorer->tokens, batch->shape.B, batch->shape.T, scorer->document_start,
                            scorer->starts);
    return n_rows;
}

static void read_scores(const struct task_scorer *scorer, const struct task *task, const int *order,
                        const struct task_batch *batch, struct task_scores *scores) {
    const int32_t *predicted = scorer->predictions;
    for (int row = 0; row < batch->n; row++) {
        const struct task_request *request = &task->requests[order[row]];
        const int begin = row * batch->shape.T + request->n - 1 - request->n_scored;
        double sum = 0;
        bool greedy = task->kind == TASK_LAMBADA;
        for (int i = 0; i < request->n_scored; i++) {
            sum += (double)scorer->losses[begin + i];
            if (task->kind == TASK_LAMBADA && *predicted++ != scorer->targets[begin + i])
                greedy = false;
        }
        scores->log_probabilities[order[row]] = -sum;
        scores->greedy[order[row]] = greedy;
    }
}

enum status task_score_batch(struct task_scorer *scorer, const struct task *task,
                             const struct task_batches *batches, int batch, struct task_scores *scores) {
    const struct task_batch *chosen = &batches->batches[batch];
    const int *order = batches->order + chosen->first;
    const int n_rows = fill(scorer, task, order, chosen);
    TRY(gpt_score(
        scorer->gpt, scorer->stream, scorer->hooks,
        &(struct gpt_scoring){
            .shape = chosen->shape,
            .batch = {.tokens = scorer->tokens, .targets = scorer->targets, .starts = scorer->starts},
            .losses = scorer->losses,
            .rows = scorer->rows,
            .n_rows = n_rows,
            .predictions = scorer->predictions}));
    if (scores)
        read_scores(scorer, task, order, chosen, scores);
    return STATUS_OK;
}

// ---- the figures of a task

// Sums from which the mean over items and its standard error are computed. The standard error uses the sample
// standard deviation (divided by n - 1).
struct mean {
    double sum, squares;
    int n;
};

static void mean_add(struct mean *mean, double value) {
    mean->sum += value;
    mean->squares += value * value;
    mean->n++;
}

static double mean_of(const struct mean *mean) {
    return mean->sum / mean->n;
}

static double mean_error(const struct mean *mean) {
    const double m = mean_of(mean), variance = (mean->squares - mean->n * m * m) / (mean->n - 1);
    return mean->n > 1 ? sqrt(fmax(variance, 0) / mean->n) : (double)NAN;
}

static double log_probability(const struct task *task, const struct task_scores *scores, int request,
                              bool normalized) {
    const double value = scores->log_probabilities[request];
    if (!normalized)
        return value;
    return task->requests[request].length > 0 ? value / task->requests[request].length : -INFINITY;
}

// Returns the index of the choice with the largest log-probability; ties: the first.
//   normalized   divide each log-probability by the choice's length
static int choice(const struct task *task, const struct task_scores *scores, const struct task_item *item,
                  bool normalized) {
    int best = 0;
    for (int i = 1; i < item->n; i++)
        if (log_probability(task, scores, item->first + i, normalized) >
            log_probability(task, scores, item->first + best, normalized))
            best = i;
    return best;
}

static struct task_measure share(const char *name, const struct mean *mean) {
    return (struct task_measure){name, mean_of(mean), mean_error(mean), true};
}

static void judge_lambada(const struct task *task, const struct task_scores *scores,
                          struct task_result *result) {
    struct mean acc = {0}, log_probabilities = {0};
    for (int i = 0; i < task->n_items; i++) {
        mean_add(&acc, scores->greedy[task->items[i].first]);
        mean_add(&log_probabilities, scores->log_probabilities[task->items[i].first]);
    }
    const double perplexity = exp(-mean_of(&log_probabilities));
    result->measures[0] = share("acc", &acc);
    result->measures[1] =
        (struct task_measure){"perplexity", perplexity, perplexity * mean_error(&log_probabilities), false};
}

static void judge_choices(const struct task *task, const struct task_scores *scores,
                          struct task_result *result) {
    struct mean acc = {0}, acc_norm = {0};
    for (int i = 0; i < task->n_items; i++) {
        const struct task_item *item = &task->items[i];
        mean_add(&acc, choice(task, scores, item, false) == item->label);
        mean_add(&acc_norm, choice(task, scores, item, true) == item->label);
    }
    result->measures[0] = share("acc", &acc);
    result->measures[1] = share("acc_norm", &acc_norm);
}

struct task_result task_result_of(const struct task *task, const struct task_scores *scores) {
    struct task_result result = {.n_measures = 2, .n_items = task->n_items};
    (task->kind == TASK_LAMBADA ? judge_lambada : judge_choices)(task, scores, &result);
    return result;
}

void task_result_add_json(struct text *out, const struct task_result *result) {
    char number[2][32];
    text_add(out, "{");
    for (int i = 0; i < result->n_measures; i++) {
        const struct task_measure *measure = &result->measures[i];
        text_add(out, "\"%s\": %s, \"%s_stderr\": %s, ", measure->name,
                 text_double(number[0], measure->value), measure->name,
                 text_double(number[1], measure->error));
    }
    text_add(out, "\"items\": %d}", result->n_items);
}

void task_measure_add(struct text *out, const struct task_measure *measure) {
    const int digits = measure->is_share ? 4 : 2;
    text_add(out, "%.*f", digits, measure->value);
    if (isfinite(measure->error))
        text_add(out, " \u00b1 %.*f", digits, measure->error);
}

void task_result_add_line(struct text *out, const struct task_result *result) {
    for (int i = 0; i < result->n_measures; i++) {
        text_add(out, "%s%s ", i ? ", " : "", result->measures[i].name);
        task_measure_add(out, &result->measures[i]);
    }
    text_add(out, " (%d item%s)", result->n_items, result->n_items == 1 ? "" : "s");
}
