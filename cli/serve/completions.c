// All of this runs on the thread that decodes. A request is a list of texts ("choices"), which wait in the
// order of arrival.
#include "cli/serve/completions.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/serve/answer.h"

struct completions {
    struct completions_options options;
    struct completion *first, *last; // in the order of arrival
    int n_waiting;                   // texts
    uint64_t n_begun;
};

// ---- events of a text

static enum status take_token(void *context, const struct text_token *token) {
    struct choice *choice = context;
    struct completion *completion = choice->completion;
    struct metrics *metrics = completion->metrics;
    if (!token->of_prompt) {
        choice->n_drawn++;
        metrics->generated_tokens++;
        if (!completion->has_token)
            histogram_add(&metrics->first_token_s,
                          clock_monotonic_s() - exchange_began_s(completion->exchange));
        completion->has_token = true;
    }
    return completion->request.options.n_top >= 0 ? answer_keep_token(choice, token) : STATUS_OK;
}

static enum status take_text(void *context, const char *bytes, size_t n_bytes) {
    struct choice *choice = context;
    text_add_bytes(&choice->text, bytes, n_bytes);
    TRY(text_status(&choice->text));
    return choice->completion->request.stream ? answer_stream_piece(choice) : STATUS_OK;
}

static void remove_completion(struct completions *completions, struct completion *completion) {
    struct completion **at = &completions->first, *before = NULL;
    while (*at != completion) {
        before = *at;
        at = &(*at)->next;
    }
    *at = completion->next;
    if (completions->last == completion)
        completions->last = before;
    for (int i = 0; i < completion->n_choices; i++) {
        const struct choice *choice = &completion->choices[i];
        if (choice->state == CHOICE_RUNS)
            batch_remove(completions->options.batch, choice->slot);
        completions->n_waiting -= choice->state == CHOICE_WAITS;
    }
    completion_delete(completion);
}

static enum status end_text(void *context, enum text_end why) {
    struct choice *choice = context;
    struct completion *completion = choice->completion;
    choice->state = CHOICE_ENDED;
    choice->why = why;
    completion->n_ended++;
    return completion->request.stream ? answer_stream_end(choice) : STATUS_OK;
}

// ---- beginning

static uint64_t mix(uint64_t x) { // splitmix64, for seeds that differ in all bits
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static enum status enqueue(struct completions *completions, struct completion *completion) {
    const struct request *request = &completion->request;
    completion->n_choices = request->n_prompts * request->n;
    completion->choices = calloc((size_t)completion->n_choices, sizeof *completion->choices);
    if (!completion->choices)
        return FAIL(STATUS_FAILED, "out of memory for a request of %d texts", completion->n_choices);
    for (int i = 0; i < completion->n_choices; i++) {
        struct choice *choice = &completion->choices[i];
        choice->completion = completion;
        choice->index = i;
        choice->options = request->options;
        choice->options.first_counter = (uint64_t)i << 32;
    }
    for (int i = 0; i < request->n_prompts; i++)
        completion->n_prompt_tokens += (int64_t)request->prompts[i].tokens.n;
    completions->options.metrics->prompt_tokens += completion->n_prompt_tokens;
    completions->n_waiting += completion->n_choices;
    *(completions->last ? &completions->last->next : &completions->first) = completion;
    completions->last = completion;
    if (request->stream)
        answer_stream_begin(completion);
    return STATUS_OK;
}

enum status completions_begin(struct completions *completions, struct exchange *exchange) {
    const struct completions_options *options = &completions->options;
    struct completion *completion = calloc(1, sizeof *completion);
    struct api_error error;
    size_t n_bytes;
    const char *body = exchange_body(exchange, &n_bytes);
    if (!completion) {
        api_refuse(&error, 503, NULL, NULL, "out of memory");
        answer_error(exchange, options->metrics, &error);
        return STATUS_OK;
    }
    bool good = request_parse(&completion->request, body, n_bytes, &options->limits, &error);
    int n_texts = good ? completion->request.n_prompts * completion->request.n : 0;
    int n_free = options->slots - batch_n_texts(options->batch);
    if (good && completions->n_waiting + n_texts > options->max_queue + n_free)
        good = api_refuse(&error, 429, "rate_limit_exceeded", NULL,
                          "%d texts wait already and %d would join them, more than %d; try again later",
                          completions->n_waiting, n_texts, options->max_queue);
    if (!good) {
        completion_delete(completion);
        answer_error(exchange, options->metrics, &error);
        return STATUS_OK;
    }
    completions->n_begun++;
    completion->exchange = exchange;
    completion->tokenizer = options->limits.tokenizer;
    completion->metrics = options->metrics;
    completion->model = options->limits.model;
    completion->created_s = (int64_t)clock_wall_s();
    completion->id = mix(options->seed ^ mix(completions->n_begun));
    if (!completion->request.has_seed)
        completion->request.options.sampling.seed = completion->id >> 11;
    return enqueue(completions, completion);
}

// ---- steps

// Moves waiting texts into free slots, in the order of arrival.
static enum status join(struct completions *completions) {
    struct batch *batch = completions->options.batch;
    for (struct completion *completion = completions->first; completion; completion = completion->next)
        for (int i = 0; i < completion->n_choices; i++) {
            struct choice *choice = &completion->choices[i];
            if (completions->n_waiting == 0 || batch_n_texts(batch) == completions->options.slots)
                return STATUS_OK;
            if (choice->state != CHOICE_WAITS)
                continue;
            const struct token_list *prompt = &completion->request.prompts[i / completion->request.n].tokens;
            TRY(batch_add(batch, prompt->ids, prompt->n, &choice->options,
                          (struct text_events){take_token, take_text, end_text, choice}, &choice->slot));
            choice->state = CHOICE_RUNS;
            completions->n_waiting--;
        }
    return STATUS_OK;
}

static void cut(struct completions *completions, struct completion *completion,
                const struct api_error *error) {
    if (completion->request.stream)
        answer_stream_cut(completion, error);
    else
        answer_error(completion->exchange, completion->metrics, error);
    completion->exchange = NULL;
    remove_completion(completions, completion);
}

static void finish(struct completions *completions, struct completion *completion) {
    histogram_add(&completion->metrics->request_s,
                  clock_monotonic_s() - exchange_began_s(completion->exchange));
    if (completion->request.stream) {
        answer_stream_finish(completion);
    } else {
        struct text body = {0};
        answer_whole(completion, &body);
        answer_text(completion->exchange, completion->metrics, "application/json", &body);
    }
    completion->exchange = NULL;
    remove_completion(completions, completion);
}

// Answers requests that are complete, and drops those whose client left or whose time is over.
static void leave(struct completions *completions) {
    double now = clock_monotonic_s();
    for (struct completion *completion = completions->first, *next; completion; completion = next) {
        struct api_error error;
        next = completion->next;
        if (completion->n_ended == completion->n_choices) {
            finish(completions, completion);
        } else if (exchange_is_gone(completion->exchange)) {
            completions->options.metrics->disconnected++;
            remove_completion(completions, completion);
        } else if (now - exchange_began_s(completion->exchange) > completions->options.deadline_s) {
            api_refuse(&error, 504, "deadline_exceeded", NULL,
                       "the request took longer than %g seconds, the limit of this server",
                       completions->options.deadline_s);
            cut(completions, completion, &error);
        }
    }
}

enum status completions_step(struct completions *completions) {
    struct metrics *metrics = completions->options.metrics;
    leave(completions);
    TRY(join(completions));
    if (batch_n_texts(completions->options.batch) == 0)
        return STATUS_OK;
    int n_drawn;
    double began = clock_monotonic_s();
    TRY(batch_step(completions->options.batch, &n_drawn));
    histogram_add(&metrics->step_s, clock_monotonic_s() - began);
    metrics->steps++;
    leave(completions);
    return STATUS_OK;
}

int completions_n_waiting(const struct completions *completions) {
    return completions->n_waiting;
}

bool completions_are_idle(const struct completions *completions) {
    return !completions->first;
}

void completions_cut(struct completions *completions, bool only_waiting) {
    struct api_error error;
    api_refuse(&error, 503, "shutting_down", NULL, "the server is shutting down");
    for (struct completion *completion = completions->first, *next; completion; completion = next) {
        bool waits = true;
        next = completion->next;
        for (int i = 0; i < completion->n_choices; i++)
            waits &= completion->choices[i].state == CHOICE_WAITS;
        if (waits || !only_waiting)
            cut(completions, completion, &error);
    }
}

enum status completions_new(const struct completions_options *options, struct completions **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return FAIL(STATUS_FAILED, "out of memory for the requests");
    (*out)->options = *options;
    return STATUS_OK;
}

void completions_delete(struct completions *completions) {
    if (!completions)
        return;
    completions_cut(completions, false);
    free(completions);
}
