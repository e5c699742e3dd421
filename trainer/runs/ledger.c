#include "trainer/runs/ledger.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"

static const char *const figure_names[N_LEDGER_FIGURES] = {
    [LEDGER_LR] = "learning rate",
    [LEDGER_LOSS] = "loss",
    [LEDGER_NORM] = "gradient norm",
    [LEDGER_LOSS_SCALE] = "loss scale",
};

// ---- lists in ascending order of steps, whose elements begin with the step

// Returns the number of elements of steps up to `step`.
static size_t count_until(const void *list, size_t n, size_t size, int64_t step) {
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (*(const int64_t *)(const void *)((const char *)list + middle * size) <= step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const void *find(const void *list, size_t n, size_t size, int64_t step) {
    const size_t until = count_until(list, n, size, step);
    const void *element = until > 0 ? (const char *)list + (until - 1) * size : NULL;
    return element && *(const int64_t *)element == step ? element : NULL;
}

// Appends an element to a list of n. The room is doubled at powers of two.
static void *append(void *list, size_t n, size_t size, const void *element) {
    if ((n & (n - 1)) == 0)
        list = reallocate(list, n ? 2 * n : 1, size);
    memcpy((char *)list + n * size, element, size);
    return list;
}

const struct ledger_step *ledger_step_at(const struct ledger *ledger, int64_t step) {
    return find(ledger->steps, ledger->n_steps, sizeof *ledger->steps, step);
}

const struct ledger_state *ledger_state_at(const struct ledger *ledger, int64_t step) {
    return find(ledger->states, ledger->n_states, sizeof *ledger->states, step);
}

const struct ledger_decision *ledger_decision_at(const struct ledger *ledger, int64_t step) {
    return find(ledger->decisions, ledger->n_decisions, sizeof *ledger->decisions, step);
}

const struct ledger_session *ledger_session_at(const struct ledger *ledger, int64_t step) {
    const size_t n = count_until(ledger->sessions, ledger->n_sessions, sizeof *ledger->sessions, step);
    return n > 0 ? &ledger->sessions[n - 1] : NULL;
}

// Whether the ledger has steps or states after `step`.
static bool knows_after(const struct ledger *ledger, int64_t step) {
    return (ledger->n_steps > 0 && ledger->steps[ledger->n_steps - 1].step > step) ||
           (ledger->n_states > 0 && ledger->states[ledger->n_states - 1].step > step);
}

static void keep_step(struct ledger *ledger, const struct ledger_step *step) {
    ledger->steps = append(ledger->steps, ledger->n_steps++, sizeof *step, step);
}

// Adds a state, or replaces that of the same step.
static void keep_state(struct ledger *ledger, const struct ledger_state *state) {
    const size_t n = ledger->n_states,
                 at = count_until(ledger->states, n, sizeof *ledger->states, state->step - 1);
    if (at == n || ledger->states[at].step != state->step) {
        ledger->states = append(ledger->states, ledger->n_states++, sizeof *state, state);
        memmove(&ledger->states[at + 1], &ledger->states[at], (n - at) * sizeof *state);
    }
    ledger->states[at] = *state;
}

static bool is_same_state(const struct ledger_state *a, const struct ledger_state *b) {
    return digest_is_same(&a->root, &b->root) && digest_is_same(&a->records, &b->records);
}

static void keep_decision(struct ledger *ledger, const struct ledger_decision *decision) {
    ledger->decisions = append(ledger->decisions, ledger->n_decisions++, sizeof *decision, decision);
}

// Takes over a session that continues from `step`. One with the same `bound` repeats the history, up to where
// a later session changed it. Returns whether it is the same.
//   bound   the ledger takes it over
static bool keep_session(struct ledger *ledger, int64_t step, char *bound) {
    struct ledger_session *list = ledger->sessions;
    size_t n = count_until(list, ledger->n_sessions, sizeof *list, step);
    const bool same = n > 0 && strcmp(list[n - 1].bound, bound) == 0;
    const int64_t last = !same ? step : n < ledger->n_sessions ? list[n].step : INT64_MAX;
    if (!same && n > 0 && list[n - 1].step == step)
        n--;
    while (ledger->n_sessions > n)
        free(list[--ledger->n_sessions].bound);
    ledger->n_steps = count_until(ledger->steps, ledger->n_steps, sizeof *ledger->steps, last);
    ledger->n_states = count_until(ledger->states, ledger->n_states, sizeof *ledger->states, last);
    ledger->n_decisions =
        count_until(ledger->decisions, ledger->n_decisions, sizeof *ledger->decisions, last);
    for (size_t i = 0; i < ledger->n_lines; i++)
        ledger->lines[i].is_dropped |= ledger->lines[i].step > last;
    if (same)
        free(bound);
    else
        ledger->sessions = append(list, ledger->n_sessions++, sizeof *list,
                                  &(struct ledger_session){.step = step, .bound = bound});
    return same;
}

// ---- lines

// Returns the hash of a line that follows the lines so far.
static struct digest chain(const struct ledger *ledger, const char *content, size_t length) {
    static const struct digest none;
    const struct digest *before = ledger->n_lines ? &ledger->lines[ledger->n_lines - 1].hash : &none;
    struct digest_stream stream;
    digest_begin(&stream, "ledger line");
    digest_add(&stream, before->bytes, DIGEST_BYTES);
    digest_add(&stream, content, length);
    return digest_end(&stream);
}

// Appends the end of a line, after its content.
static void print_tail(const struct ledger_line *line, struct text *out) {
    char hash[HEX_BYTES(DIGEST_BYTES)], signature[HEX_BYTES(SIGNATURE_BYTES)];
    text_add(out, ",\"hash\":\"%s\"", digest_print(line->hash.bytes, DIGEST_BYTES, hash));
    if (line->is_signed)
        text_add(out, ",\"signature\":\"%s\"", digest_print(line->signature, SIGNATURE_BYTES, signature));
    text_add(out, "}\n");
}

static void keep_line(struct ledger *ledger, const struct ledger_line *line) {
    ledger->lines = append(ledger->lines, ledger->n_lines++, sizeof *line, line);
}

// ---- reading

static const cJSON *member(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

// Reads a step, at least `least` and at most `most`.
static bool read_number(const cJSON *item, int64_t least, int64_t most, int64_t *out) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= (double)least && item->valuedouble <= (double)most))
        return false;
    *out = (int64_t)item->valuedouble;
    return true;
}

static bool read_digest(const cJSON *item, struct digest *out) {
    return cJSON_IsString(item) &&
           digest_read(item->valuestring, strlen(item->valuestring), out->bytes, DIGEST_BYTES);
}

// Reads the steps of an entry: exactly those from `next` to `last`.
static bool read_steps(struct ledger *ledger, const cJSON *list, int64_t next, int64_t last) {
    for (const cJSON *item = cJSON_IsArray(list) ? list->child : NULL; item; item = item->next) {
        struct ledger_step step;
        const cJSON *value = item->child;
        if (cJSON_GetArraySize(item) != 2 + N_LEDGER_FIGURES || next > last ||
            !read_number(value, next, next, &step.step) || !read_digest(value->next, &step.data))
            return false;
        value = value->next;
        for (int i = 0; i < N_LEDGER_FIGURES; i++) {
            value = value->next;
            step.figures[i] = cJSON_IsNumber(value) ? value->valuedouble : NAN;
        }
        keep_step(ledger, &step);
        next++;
    }
    return next == last + 1;
}

static bool read_decisions(struct ledger *ledger, const cJSON *list, int64_t most) {
    for (const cJSON *item = cJSON_IsArray(list) ? list->child : NULL; item; item = item->next) {
        struct ledger_decision decision;
        const cJSON *value = item->child;
        const int64_t least = ledger->n_decisions ? ledger->decisions[ledger->n_decisions - 1].step + 1 : 0;
        if (cJSON_GetArraySize(item) != 4 || !read_number(value, least, most, &decision.step) ||
            !read_number(value->next, 0, INT64_C(1) << 53, &decision.total))
            return false;
        decision.position = value->next->next->valuedouble;
        decision.spent_s = value->next->next->next->valuedouble;
        keep_decision(ledger, &decision);
    }
    return true;
}

static bool take_session(struct ledger *ledger, const cJSON *line, const struct ledger_state *state) {
    const cJSON *bound = member(line, "bound");
    if (!cJSON_IsObject(bound))
        return false;
    const bool same = keep_session(ledger, state->step, cJSON_PrintUnformatted(bound));
    const struct ledger_state *had = ledger_state_at(ledger, state->step);
    // Only initial weights may be others, if what is bound is.
    return !had || is_same_state(had, state) || (!same && state->step == 0);
}

static bool take_entry(struct ledger *ledger, const cJSON *line, const struct ledger_state *state) {
    const struct ledger_state *had = ledger_state_at(ledger, state->step);
    if (ledger->n_sessions == 0 || (had && !is_same_state(had, state)))
        return false;
    const int64_t last = ledger->states[ledger->n_states - 1].step,
                  next = last < state->step ? last + 1 : state->step + 1;
    return read_steps(ledger, member(line, "steps"), next, state->step) &&
           read_decisions(ledger, member(line, "decisions"), state->step);
}

// Returns false if it is no line of a ledger, or does not continue it.
static bool take_line(struct ledger *ledger, const cJSON *line, int64_t *step) {
    const char *kind = cJSON_GetStringValue(member(line, "line"));
    struct ledger_state state;
    if (!kind || !read_number(member(line, "step"), 0, INT64_C(1) << 53, &state.step) ||
        !read_digest(member(line, "root"), &state.root) ||
        !read_digest(member(line, "records"), &state.records))
        return false;
    *step = state.step;
    if (!(strcmp(kind, "session") == 0 ? take_session(ledger, line, &state)
                                       : strcmp(kind, "entry") == 0 && take_entry(ledger, line, &state)))
        return false;
    keep_state(ledger, &state);
    return true;
}

//   length   with the newline
static enum status read_line(struct ledger *ledger, const char *text, size_t length) {
    struct ledger_line line = {.step = -1};
    struct text tail = {0};
    cJSON *json = NULL;
    if (json_parse(text, length, ledger->path, &json) != STATUS_OK) // it refuses members that occur twice
        status_clear();
    const char *signature = cJSON_GetStringValue(member(json, "signature"));
    line.is_signed = signature && digest_read(signature, strlen(signature), line.signature, SIGNATURE_BYTES);
    print_tail(&line, &tail);
    const size_t content = length > tail.length ? length - tail.length : 0;
    line.hash = chain(ledger, text, content);
    tail.length = 0;
    print_tail(&line, &tail);
    const bool has_hash = content > 0 && memcmp(text + content, tail.data, tail.length) == 0,
               is_good = has_hash && take_line(ledger, json, &line.step);
    if (is_good)
        keep_line(ledger, &line);
    else
        (void)read_number(member(json, "step"), 0, INT64_C(1) << 53, &line.step);
    text_free(&tail);
    cJSON_Delete(json);
    return is_good ? STATUS_OK
                   : FAIL(STATUS_FAILED, "line %zu of %s, of step %" PRId64 ", was altered%s",
                          ledger->n_lines + 1, ledger->path, line.step,
                          has_hash ? ": it does not continue the lines before it"
                                   : ", or a line before it was removed or added: its hash is another one");
}

enum status ledger_parse(struct ledger *ledger, const char *path, const char *text, size_t length) {
    enum status status = STATUS_OK;
    *ledger = (struct ledger){.path = copy_string(path), .descriptor = -1};
    for (const char *line = text, *end;
         status == STATUS_OK && (end = memchr(line, '\n', length - ledger->bytes)); line = end + 1) {
        status = read_line(ledger, line, (size_t)(end + 1 - line));
        ledger->bytes = (size_t)(end + 1 - text);
    }
    return status;
}

void ledger_free(struct ledger *ledger) {
    for (size_t i = 0; i < ledger->n_sessions; i++)
        free(ledger->sessions[i].bound);
    if (ledger->descriptor >= 0)
        close(ledger->descriptor);
    free(ledger->sessions);
    free(ledger->steps);
    free(ledger->states);
    free(ledger->decisions);
    free(ledger->lines);
    free(ledger->path);
    text_free(&ledger->new_steps);
    text_free(&ledger->new_decisions);
    *ledger = (struct ledger){.descriptor = -1};
}

// ---- writing

enum status ledger_open(struct ledger *ledger, const struct signing_key *key) {
    ledger->key = key;
    TRY(file_open_regular(ledger->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, &ledger->descriptor));
    return ftruncate(ledger->descriptor, (off_t)ledger->bytes) == 0
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "cannot remove the incomplete last line of %s", ledger->path);
}

// Appends a line and frees its text. It is flushed to disk, because a checkpoint that is written next must
// not outlive its entry.
static enum status write_line(struct ledger *ledger, int64_t step, struct text *text) {
    struct ledger_line line = {
        .step = step, .hash = chain(ledger, text->data, text->length), .is_signed = ledger->key};
    enum status status = STATUS_OK;
    if (ledger->key)
        signing_key_sign(ledger->key, &line.hash, line.signature);
    print_tail(&line, text);
    if (ledger->descriptor >= 0)
        status = file_append(ledger->descriptor, ledger->path, text->data, text->length);
    if (status == STATUS_OK && ledger->descriptor >= 0 && fdatasync(ledger->descriptor) != 0)
        status = FAIL(STATUS_FAILED, "cannot write %s to disk", ledger->path);
    if (status == STATUS_OK)
        keep_line(ledger, &line);
    text_free(text);
    return status;
}

static void print_state(struct text *line, const char *kind, const struct ledger_state *state) {
    char root[HEX_BYTES(DIGEST_BYTES)], records[HEX_BYTES(DIGEST_BYTES)];
    text_add(line, "{\"line\":\"%s\",\"step\":%" PRId64 ",\"root\":\"%s\",\"records\":\"%s\"", kind,
             state->step, digest_print(state->root.bytes, DIGEST_BYTES, root),
             digest_print(state->records.bytes, DIGEST_BYTES, records));
}

enum status ledger_check_state(const struct ledger *ledger, const struct ledger_state *state,
                               const char *where) {
    const struct ledger_state *had = ledger_state_at(ledger, state->step);
    if (!had)
        return FAIL(STATUS_FAILED, "step %" PRId64 " differs: %s has no entry in %s", state->step, where,
                    ledger->path);
    const bool same_root = digest_is_same(&had->root, &state->root);
    if (is_same_state(had, state))
        return STATUS_OK;
    return FAIL(
        STATUS_FAILED,
        "step %" PRId64 " differs in its %s: those of %s are not those that %s has the digest of",
        state->step,
        same_root ? "records (options, schedule, order of the data, loss scale, spikes, noise scale, average)"
                  : "weights or optimizer states",
        where, ledger->path);
}

enum status ledger_begin_session(struct ledger *ledger, const struct ledger_state *state, const char *bound,
                                 const char *where) {
    const struct ledger_session *last = ledger_session_at(ledger, state->step);
    struct text line = {0};
    cJSON *json;
    TRY(json_parse(bound, strlen(bound), "what the ledger binds", &json));
    char *plain = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    enum status status = STATUS_OK;
    if (ledger_state_at(ledger, state->step) && (where || (last && strcmp(last->bound, plain) == 0)))
        status = ledger_check_state(ledger, state, where ? where : "the initial state");
    print_state(&line, "session", state);
    text_add(&line, ",\"bound\":%s", plain);
    if (status == STATUS_OK)
        status = write_line(ledger, state->step, &line);
    text_free(&line);
    if (status != STATUS_OK) {
        free(plain);
        return status;
    }
    keep_session(ledger, state->step, plain);
    keep_state(ledger, state);
    return STATUS_OK;
}

// Compares a step with what the ledger has of it.
static enum status check_step(const struct ledger *ledger, const struct ledger_step *had,
                              const struct ledger_step *now) {
    char was[32], is[32];
    if (!digest_is_same(&had->data, &now->data))
        return FAIL(STATUS_FAILED,
                    "step %" PRId64
                    " differs in its data: the token rows are not those that %s has the digest of",
                    now->step, ledger->path);
    for (int i = 0; i < N_LEDGER_FIGURES; i++) {
        text_double(was, had->figures[i]), text_double(is, now->figures[i]); // NaN and infinities: null
        if (strcmp(was, is) != 0)
            return FAIL(STATUS_FAILED, "step %" PRId64 " differs in its %s: it is %s, but %s in %s",
                        now->step, figure_names[i], is, was, ledger->path);
    }
    return STATUS_OK;
}

enum status ledger_add_step(struct ledger *ledger, const struct ledger_step *step) {
    const struct ledger_step *had = ledger_step_at(ledger, step->step);
    struct text *out = &ledger->new_steps;
    char data[HEX_BYTES(DIGEST_BYTES)], number[32];
    if (had || knows_after(ledger, step->step - 1)) // a step that is missing between others stays so
        return had ? check_step(ledger, had, step) : STATUS_OK;
    keep_step(ledger, step);
    text_add(out, "%s[%" PRId64 ",\"%s\"", out->length ? "," : "", step->step,
             digest_print(step->data.bytes, DIGEST_BYTES, data));
    for (int i = 0; i < N_LEDGER_FIGURES; i++)
        text_add(out, ",%s", text_double(number, step->figures[i]));
    text_add(out, "]");
    return STATUS_OK;
}

void ledger_add_decision(struct ledger *ledger, const struct ledger_decision *decision) {
    struct text *out = &ledger->new_decisions;
    char position[32], spent[32];
    if (ledger_decision_at(ledger, decision->step))
        return;
    keep_decision(ledger, decision);
    text_add(out, "%s[%" PRId64 ",%" PRId64 ",%s,%s]", out->length ? "," : "", decision->step,
             decision->total, text_double(position, decision->position),
             text_double(spent, decision->spent_s));
}

enum status ledger_add_state(struct ledger *ledger, const struct ledger_state *state) {
    struct text line = {0};
    if (ledger_state_at(ledger, state->step))
        return ledger_check_state(ledger, state, "this run");
    print_state(&line, "entry", state);
    text_add(&line, ",\"steps\":[%s],\"decisions\":[%s]",
             ledger->new_steps.length ? ledger->new_steps.data : "",
             ledger->new_decisions.length ? ledger->new_decisions.data : "");
    TRY(write_line(ledger, state->step, &line));
    text_free(&ledger->new_steps);
    text_free(&ledger->new_decisions);
    keep_state(ledger, state);
    return STATUS_OK;
}
