// ./train audit RUN: trains steps of a run again and compares them with the run's ledger. Rank 0 decides what
// is trained, and tells the other ranks. The run's folder is only read: what is trained writes to a temporary
// folder.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/output.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/train.h"
#include "options/option.h"
#include "trainer/auditing.h"
#include "trainer/runs/metrics_reader.h"
#include "trainer/trainer.h"

#define MOST_ARGUMENTS 64

static const char *steps_text = NULL, *key_text = NULL, *head_text = NULL;
static double sample = 100;

static const struct arg flags[] = {
    {"--steps", ARG_STRING, &steps_text, 0, 0,
     "A..B: the steps after step A up to step B, or up to the next entry (default: all in the ledger)"},
    {"--sample", ARG_NUMBER, &sample, 0, 100,
     "train a random P percent of the parts between checkpoints, at least one (default: all)"},
    {"--key", ARG_STRING, &key_text, 0, 0,
     "public key (64 hexadecimal digits) that must have signed each line"},
    {"--head", ARG_STRING, &head_text, 0, 0, "hash that a line of the ledger must have, as printed before"},
    LAUNCH_FLAG,
};
enum { N_FLAGS = sizeof flags / sizeof *flags };

// Steps that are trained at once. A part begins where the run has a checkpoint, or where it went on with
// other options.
struct part {
    int64_t from, to; // the steps after `from` up to `to`
    int64_t source;   // where training begins: the step of a checkpoint of the run, or one of those below
    int64_t saves;    // 1: the next part begins with its last state
};
enum { FROM_INITIAL = -1, FROM_PART_BEFORE = -2 };

struct auditor {
    const char *run;
    char *config_path; // of the run
    char **overrides;  // (n_overrides) given by the user
    int n_overrides;
    struct comm *comm;
    struct ledger ledger;
    int64_t start, last;  // steps between which the run is compared
    int64_t *checkpoints; // (n_checkpoints) steps of the run's checkpoints from `start` to `last`
    int64_t n_checkpoints;
    struct part *parts; // (n_parts)
    int64_t n_parts;
    char temporary[256];
    struct text undecided; // which steps, and why
    int64_t n_steps;       // trained and found equal
};

static bool leads(const struct auditor *auditor) {
    return auditor->comm->rank == 0;
}

// Puts words before the message of a failure.
static enum status explain(enum status status, const char *words) {
    char *message = copy_string(status_message());
    if (status != STATUS_OK) {
        status_clear();
        status = FAIL(status, "%s: %s", words, message);
    }
    free(message);
    return status;
}

// ---- the ledger and the metrics

static enum status check_key(const struct ledger *ledger) {
    unsigned char public[PUBLIC_KEY_BYTES];
    if (!key_text)
        return STATUS_OK;
    if (!digest_read(key_text, strlen(key_text), public, PUBLIC_KEY_BYTES))
        return FAIL(STATUS_INVALID, "train audit: --key %s is no public key: expected %d hexadecimal digits",
                    key_text, 2 * (int)PUBLIC_KEY_BYTES);
    for (size_t i = 0; i < ledger->n_lines; i++) {
        const struct ledger_line *line = &ledger->lines[i];
        if (!line->is_signed)
            return FAIL(STATUS_UNDECIDED, "line %zu of %s has no signature, so --key cannot be checked",
                        i + 1, ledger->path);
        if (!signature_is_good(public, &line->hash, line->signature))
            return FAIL(STATUS_FAILED, "line %zu of %s is not signed by the key %s", i + 1, ledger->path,
                        key_text);
    }
    return STATUS_OK;
}

static enum status check_head(const struct ledger *ledger) {
    struct digest head;
    if (!head_text)
        return STATUS_OK;
    if (!digest_read(head_text, strlen(head_text), head.bytes, DIGEST_BYTES))
        return FAIL(STATUS_INVALID, "train audit: --head %s is no hash: expected %d hexadecimal digits",
                    head_text, 2 * DIGEST_BYTES);
    for (size_t i = 0; i < ledger->n_lines; i++)
        if (digest_is_same(&ledger->lines[i].hash, &head))
            return !ledger->lines[i].is_dropped
                       ? STATUS_OK
                       : FAIL(STATUS_FAILED,
                              "line %zu of %s has the hash %s, but a later session replaced its steps", i + 1,
                              ledger->path, head_text);
    return FAIL(STATUS_FAILED, "no line of %s has the hash %s: it was cut or written anew", ledger->path,
                head_text);
}

// Compares the metrics, which people read, with the ledger.
//   n        [out] number of steps that they have
//   step_s   [out] mean seconds per step; 0: unknown
static enum status check_metrics(struct auditor *auditor, int64_t *n, double *step_s) {
    static const enum metric metrics[N_LEDGER_FIGURES] = {[LEDGER_LR] = METRIC_LR,
                                                          [LEDGER_LOSS] = METRIC_LOSS,
                                                          [LEDGER_NORM] = METRIC_GRAD_NORM,
                                                          [LEDGER_LOSS_SCALE] = METRIC_LOSS_SCALE};
    struct metrics_reader reader;
    struct metrics_line line;
    enum metrics_event event = METRICS_LINE;
    enum status status = STATUS_OK;
    metrics_reader_open(&reader, auditor->run);
    while (status == STATUS_OK && (status = metrics_reader_next(&reader, &line, &event)) == STATUS_OK &&
           event != METRICS_END) {
        const struct ledger_step *had = ledger_step_at(&auditor->ledger, line.step);
        if (event != METRICS_LINE || !line.is_step || !had || line.step <= auditor->start ||
            line.step > auditor->last)
            continue;
        *step_s += (line.values[METRIC_STEP_MS] / 1e3 - *step_s) / (double)++*n;
        struct ledger_step now = *had;
        for (int i = 0; i < N_LEDGER_FIGURES; i++)
            now.figures[i] = line.values[metrics[i]];
        status = explain(ledger_add_step(&auditor->ledger, &now), "metrics.jsonl");
    }
    metrics_reader_close(&reader);
    return status;
}

// ---- what is trained

static bool has_checkpoint(const struct auditor *auditor, int64_t step) {
    for (int64_t i = 0; i < auditor->n_checkpoints; i++)
        if (auditor->checkpoints[i] == step)
            return true;
    return false;
}

// Finds the steps that were asked for, and the checkpoints among them.
static enum status choose_steps(struct auditor *auditor) {
    const struct ledger *ledger = &auditor->ledger;
    const int64_t begin = ledger->sessions[0].step, end = ledger->states[ledger->n_states - 1].step;
    long long from = begin, to = end;
    int length = 0, n_steps;
    int64_t *steps;
    if (begin == end)
        return FAIL(STATUS_UNDECIDED, "%s has no entry after step %" PRId64 " yet", ledger->path, begin);
    if (steps_text && (sscanf(steps_text, "%lld..%lld%n", &from, &to, &length) != 2 || steps_text[length] ||
                       from < begin || to > end || from >= to))
        return FAIL(STATUS_INVALID,
                    "train audit: --steps %s: expected A..B with A below B; the ledger has the steps %" PRId64
                    "..%" PRId64,
                    steps_text, begin, end);
    for (size_t i = ledger->n_states; i > 0 && ledger->states[i - 1].step >= to; i--)
        auditor->last = ledger->states[i - 1].step;
    char *folder = file_path("%s/checkpoints", auditor->run);
    const enum status status = checkpoint_list(folder, &steps, &n_steps);
    free(folder);
    TRY(status);
    // A checkpoint after the ledger's end has no entry, and is reported.
    const int64_t last_checkpoint = to == end ? INT64_MAX : auditor->last;
    auditor->start = begin;
    for (int i = 0; i < n_steps; i++)
        if (steps[i] >= begin && steps[i] <= from)
            auditor->start = steps[i];
    auditor->checkpoints = allocate((size_t)n_steps + 1, sizeof *steps);
    for (int i = 0; i < n_steps; i++)
        if (steps[i] >= auditor->start && steps[i] <= last_checkpoint)
            auditor->checkpoints[auditor->n_checkpoints++] = steps[i];
    free(steps);
    return STATUS_OK;
}

// Whether the ledger lacks the step after `step`: a session without run.audit_every trained it.
static bool is_gap(const struct ledger *ledger, int64_t step) {
    return !ledger_step_at(ledger, step + 1);
}

//   has_state   whether training can begin before this step
static bool begins_part(const struct auditor *auditor, int64_t step, bool has_state) {
    const struct ledger *ledger = &auditor->ledger;
    return ledger_session_at(ledger, step)->step == step || is_gap(ledger, step) ||
           is_gap(ledger, step - 1) || ((sample < 100 || !has_state) && has_checkpoint(auditor, step));
}

static void plan_parts(struct auditor *auditor) {
    const struct ledger *ledger = &auditor->ledger;
    struct part part = {.from = auditor->start};
    bool has_state = part.from == 0;
    auditor->parts = allocate(ledger->n_states, sizeof part);
    for (size_t i = 0; i < ledger->n_states; i++) {
        part.to = ledger->states[i].step;
        part.source = has_checkpoint(auditor, part.from) ? part.from
                      : part.from == 0                   ? FROM_INITIAL
                                                         : FROM_PART_BEFORE;
        has_state = !is_gap(ledger, part.from) && (has_state || part.source == part.from);
        if (part.to <= auditor->start || part.to > auditor->last ||
            (part.to < auditor->last && !begins_part(auditor, part.to, has_state)))
            continue;
        auditor->parts[auditor->n_parts++] = part;
        part = (struct part){.from = part.to};
    }
}

// Keeps a random `sample` percent of the parts, at least one, in order, and those from whose last state they
// begin.
static void draw_parts(struct auditor *auditor) {
    struct part *parts = auditor->parts;
    int64_t n = auditor->n_parts, kept = 0;
    int64_t wanted = (int64_t)fmax(1, ceil((double)n * sample / 100));
    bool *is_drawn = allocate((size_t)n + 1, sizeof *is_drawn);
    for (int64_t i = 0; i < n; i++) {
        is_drawn[i] = (int64_t)randombytes_uniform((uint32_t)(n - i)) < wanted;
        wanted -= is_drawn[i];
    }
    for (int64_t i = n - 1; i > 0; i--)
        is_drawn[i - 1] = is_drawn[i - 1] || (is_drawn[i] && parts[i].source == FROM_PART_BEFORE);
    for (int64_t i = 0; i < n; i++) {
        parts[i].saves = i + 1 < n && is_drawn[i + 1] && parts[i + 1].source == FROM_PART_BEFORE;
        if (is_drawn[i])
            parts[kept++] = parts[i];
    }
    auditor->n_parts = kept;
    free(is_drawn);
}

// Decides on rank 0 what is trained, and says what that costs.
static enum status prepare(struct auditor *auditor) {
    const struct ledger *ledger = &auditor->ledger;
    char digits[HEX_BYTES(DIGEST_BYTES)], duration[32];
    double step_s = 0;
    int64_t n = 0, n_metrics = 0;
    TRY(check_key(ledger));
    TRY(check_head(ledger));
    TRY(choose_steps(auditor));
    TRY(check_metrics(auditor, &n_metrics, &step_s));
    plan_parts(auditor);
    draw_parts(auditor);
    for (int64_t i = 0; i < auditor->n_parts; i++)
        n += is_gap(ledger, auditor->parts[i].from) ? 0 : auditor->parts[i].to - auditor->parts[i].from;
    output_print("%s: %zu lines, head %s\nsteps %" PRId64 "..%" PRId64 ": %" PRId64
                 " steps are trained again",
                 ledger->path, ledger->n_lines,
                 digest_print(ledger->lines[ledger->n_lines - 1].hash.bytes, DIGEST_BYTES, digits),
                 auditor->start, auditor->last, n);
    if (n_metrics > 0)
        output_print("; the run took %.3g s per step, %s in all", step_s,
                     text_duration(duration, sizeof duration, step_s * (double)n));
    output_print("\n");
    if (n_metrics < n)
        output_print("metrics.jsonl has only %" PRId64 " of these steps\n", n_metrics);
    return output_flush();
}

static enum status make_temporary(struct auditor *auditor) {
    const char *folder = getenv("TMPDIR");
    snprintf(auditor->temporary, sizeof auditor->temporary, "%s/zero-audit-XXXXXX",
             folder && folder[0] ? folder : "/tmp");
    return mkdtemp(auditor->temporary)
               ? STATUS_OK
               : FAIL(STATUS_FAILED, "cannot create a folder %s: %s; set TMPDIR to another folder",
                      auditor->temporary, strerror(errno));
}

// Gives rank 0's list to all ranks.
static enum status share(const struct auditor *auditor, void **list, int64_t *n, size_t size) {
    TRY(comm_broadcast(auditor->comm, n, sizeof *n, 0));
    if (!leads(auditor))
        *list = allocate((size_t)*n + 1, size);
    return comm_broadcast(auditor->comm, *list, (size_t)*n * size, 0);
}

// ---- the run's checkpoints

static void note_undecided(struct auditor *auditor, int64_t from, int64_t to, const char *why) {
    text_add(&auditor->undecided, "%sstep%s %" PRId64, auditor->undecided.length ? "; " : "",
             from < to ? "s" : "", from);
    if (from < to)
        text_add(&auditor->undecided, "..%" PRId64, to);
    text_add(&auditor->undecided, ": %s", why);
}

static enum status check_checkpoint(struct auditor *auditor, int64_t step) {
    char *folder = file_path("%s/checkpoints", auditor->run), *path = checkpoint_path(folder, step),
         *where = file_path("the checkpoint %s", path);
    struct checkpoint *checkpoint = NULL;
    struct ledger_state state;
    char words[64];
    if (!ledger_state_at(&auditor->ledger, step) && !ledger_step_at(&auditor->ledger, step)) {
        note_undecided(auditor, step, step,
                       "the ledger does not have this step, of which there is a checkpoint");
        free(path), free(folder), free(where);
        return STATUS_OK;
    }
    snprintf(words, sizeof words, "step %" PRId64 " differs: its checkpoint is damaged", step);
    enum status status = checkpoint_open(auditor->comm, path, &checkpoint);
    if (status != STATUS_OK && checkpoint_is_gone(path)) // the run has pruned it
        status = explain(STATUS_UNDECIDED, path);
    else if (status == STATUS_INVALID)
        status = explain(STATUS_FAILED, words);
    if (status == STATUS_OK)
        status = audit_checkpoint(auditor->comm, checkpoint, &checkpoint->run.data, &state);
    if (status == STATUS_OK && checkpoint->step != step)
        status = FAIL(STATUS_FAILED, "step %" PRId64 " differs: %s is a checkpoint of step %" PRId64, step,
                      path, checkpoint->step);
    if (status == STATUS_OK)
        status = ledger_check_state(&auditor->ledger, &state, where);
    checkpoint_close(checkpoint);
    free(path), free(folder), free(where);
    TRY(comm_agree(auditor->comm, status));
    if (leads(auditor))
        output_print("step %" PRId64 ": the checkpoint has the state of its entry\n", step);
    return STATUS_OK;
}

// ---- training

static void report_equal(int64_t step) {
    output_print("step %" PRId64 ": weights and optimizer states are equal\n", step);
    if (output_flush() != STATUS_OK) // reported when the output is closed
        status_clear();
}

// Appends the overrides of the run's config.json for a part, a line each.
static void print_overrides(const struct auditor *auditor, int64_t i, const struct config *config,
                            const cJSON *bound, struct text *out) {
    const struct part *part = &auditor->parts[i];
    const char *sums = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(bound, "sums"));
    if (sums && strcmp(sums, "micro_batch") == 0) // stages 0 and 1 then sum as 2 and 3 do
        text_add(out, "zero_optimization.reduce_every_micro_batch=true\n");
    else if (config->zero_optimization.stage > 1)
        text_add(out, "zero_optimization.stage=1\n");
    for (int k = 0; k < auditor->n_overrides; k++)
        text_add(out, "%s\n", auditor->overrides[k]);
    for (const cJSON *item = bound->child; item; item = item->next) {
        char *value = cJSON_PrintUnformatted(item);
        if (option_find(item->string) && audit_binds(option_find(item->string)))
            text_add(out, "%s=%s\n", item->string, value);
        cJSON_free(value);
    }
    text_add(out,
             "train.gradient_accumulation_steps=0\ntrain.eval_every=0\ntrain.sample_every=0\neval.tasks=[]\n"
             "checkpoint.every=0\ncheckpoint.keep_best=false\ncheckpoint.resume_with=\"\"\n"
             "run.audit_every=0\nrun.audit_key=\"\"\nrun.profile=false\nrun.dir=%s/%" PRId64 "\n",
             auditor->temporary, i);
    if (part->source == FROM_INITIAL)
        text_add(out, "checkpoint.resume=never\n");
    else if (part->source == FROM_PART_BEFORE)
        text_add(out, "checkpoint.resume=%s/%" PRId64 "\n", auditor->temporary, i - 1);
    else {
        char *folder = file_path("%s/checkpoints", auditor->run),
             *path = checkpoint_path(folder, part->source);
        text_add(out, "checkpoint.resume=%s\n", path);
        free(path), free(folder);
    }
}

static enum status train_part(struct auditor *auditor, int64_t i, const struct config *config) {
    const struct part *part = &auditor->parts[i];
    const struct audit_task task = {
        .ledger = &auditor->ledger, .until = part->to, .saves = part->saves, .report = report_equal};
    struct config repeated;
    struct text text = {0};
    char *rest;
    int n = 0;
    cJSON *bound = cJSON_Parse(ledger_session_at(&auditor->ledger, part->from)->bound);
    print_overrides(auditor, i, config, bound, &text);
    char **overrides = allocate(text.length, sizeof *overrides); // each takes some bytes of the text
    for (char *line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        overrides[n++] = line;
    enum status status =
        comm_agree(auditor->comm, explain(config_read(&repeated, auditor->config_path, n, overrides),
                                          "with the options that the ledger binds"));
    if (status == STATUS_OK)
        status = trainer_repeat(&repeated, "./train audit", auditor->comm, &task);
    config_free(&repeated);
    free(overrides);
    cJSON_Delete(bound);
    text_free(&text);
    return status;
}

// Trains all parts. A part that cannot be decided is noted, and the others are trained.
static enum status train_parts(struct auditor *auditor, const struct config *config) {
    bool has_state = false; // of the end of the part before
    for (int64_t i = 0; i < auditor->n_parts; i++) {
        const struct part *part = &auditor->parts[i];
        enum status status;
        if (is_gap(&auditor->ledger, part->from))
            status = FAIL(STATUS_UNDECIDED, "the ledger has no figures of these steps");
        else if (part->source == FROM_PART_BEFORE && !has_state)
            status = FAIL(STATUS_UNDECIDED, "there is no checkpoint from which to begin");
        else
            status = train_part(auditor, i, config);
        if (status != STATUS_OK && status != STATUS_UNDECIDED)
            return status;
        has_state = status == STATUS_OK && part->saves;
        if (status == STATUS_OK) {
            auditor->n_steps += part->to - part->from;
            continue;
        }
        note_undecided(auditor, part->from, part->to, status_message());
        status_clear();
    }
    return STATUS_OK;
}

static void print_proved(const struct auditor *auditor) {
    if (auditor->n_steps == 0)
        return;
    output_print("proved: %" PRId64 " steps%s between step %" PRId64 " and step %" PRId64
                 " follow from the state before them: data, learning rate, loss, gradient norm and loss "
                 "scale of each step, weights and optimizer states at each entry\n",
                 auditor->n_steps, sample < 100 ? ", drawn at random," : "", auditor->start, auditor->last);
    if (has_checkpoint(auditor, auditor->start))
        output_print("not proved: that the checkpoint of step %" PRId64
                     " is honest; audit the steps before it\n",
                     auditor->start);
    if (!head_text)
        output_print("not proved: that %s; give %s\n",
                     key_text ? "no lines were cut from the ledger's end"
                              : "this ledger is the one that the run wrote",
                     key_text ? "--head" : "--key or --head");
}

// ---- the command

// Refuses overrides of options that the ledger binds.
static enum status check_overrides(const struct auditor *auditor) {
    cJSON *bound = cJSON_Parse(auditor->ledger.sessions[0].bound);
    enum status status = STATUS_OK;
    for (int i = 0; i < auditor->n_overrides && status == STATUS_OK; i++) {
        char *name = copy_string(auditor->overrides[i]);
        name[strcspn(name, "=")] = '\0';
        if (cJSON_HasObjectItem(bound, name))
            status = FAIL(STATUS_INVALID,
                          "train audit: %s decides the run's results, and the ledger has its value", name);
        free(name);
    }
    cJSON_Delete(bound);
    return status;
}

static enum status audit_together(struct auditor *auditor, const struct config *config) {
    char *path = file_path("%s/" LEDGER_NAME, auditor->run);
    enum status status = audit_read(auditor->comm, path, &auditor->ledger);
    free(path);
    if (status == STATUS_OK && auditor->ledger.n_sessions == 0)
        status = FAIL(STATUS_INVALID,
                      "train audit: %s has no " LEDGER_NAME "; a run writes one with run.audit_every",
                      auditor->run);
    TRY(status);
    TRY(check_overrides(auditor));
    TRY(comm_agree(auditor->comm, leads(auditor) ? prepare(auditor) : STATUS_OK));
    TRY(share(auditor, (void **)&auditor->checkpoints, &auditor->n_checkpoints, sizeof(int64_t)));
    TRY(share(auditor, (void **)&auditor->parts, &auditor->n_parts, sizeof *auditor->parts));
    for (int64_t i = 0; i < auditor->n_checkpoints; i++)
        TRY(check_checkpoint(auditor, auditor->checkpoints[i]));
    TRY(comm_agree(auditor->comm, leads(auditor) ? make_temporary(auditor) : STATUS_OK));
    TRY(comm_broadcast(auditor->comm, auditor->temporary, sizeof auditor->temporary, 0));
    TRY(train_parts(auditor, config));
    if (leads(auditor))
        print_proved(auditor);
    return auditor->undecided.length ? FAIL(STATUS_UNDECIDED, "not decided: %s", auditor->undecided.data)
                                     : STATUS_OK;
}

static enum status audit_rank(int n_args, char **args) {
    const char *positional[MOST_ARGUMENTS];
    int n;
    TRY(args_parse("audit", flags, N_FLAGS, n_args, args, positional, MOST_ARGUMENTS, &n));
    if (n < 1)
        return FAIL(STATUS_INVALID, "train audit: no run named; usage: train audit %s",
                    command_audit.synopsis);
    struct auditor auditor = {.run = positional[0],
                              .config_path = file_path("%s/config.json", positional[0]),
                              .overrides = (char **)(uintptr_t)(positional + 1),
                              .n_overrides = n - 1,
                              .ledger.descriptor = -1};
    struct config config = {0};
    enum status status =
        file_exists(auditor.config_path)
            ? config_read(&config, auditor.config_path, auditor.n_overrides, auditor.overrides)
            : FAIL(STATUS_INVALID, "train audit: %s is no folder of a run: it has no config.json",
                   auditor.run);
    const struct comm_options of_comm = train_comm_options(status == STATUS_OK ? &config : NULL);
    const enum status opened = comm_open(&of_comm, &auditor.comm);
    status = status == STATUS_OK ? opened : status;
    if (auditor.comm) {
        log_set_level(leads(&auditor) ? LOG_WARNING : LOG_QUIET);
        status = comm_agree(auditor.comm, status);
    }
    if (status == STATUS_OK)
        status = audit_together(&auditor, &config);
    if (auditor.comm && leads(&auditor) && auditor.temporary[0])
        file_discard_tree(auditor.temporary);
    config_free(&config);
    ledger_free(&auditor.ledger);
    free(auditor.checkpoints);
    free(auditor.parts);
    free(auditor.config_path);
    text_free(&auditor.undecided);
    return comm_close(auditor.comm, status);
}

static enum status run_audit(int n_args, char **args) {
    return launch_command("audit", n_args, args, audit_rank);
}

const struct command command_audit = {
    .name = "audit",
    .synopsis = "RUN [--steps A..B] [--sample P] [--key PUBLIC] [--head HASH] [--ranks N] "
                "[section.key=value ...]",
    .summary =
        "train steps of a run again and prove that its ledger, checkpoints and metrics follow from them",
    .details =
        "RUN was trained with run.audit_every. Nothing in it is changed. Options that do not change results\n"
        "may be overridden: zero_optimization.stage=3.\n"
        "Exit code: 0 proved, 1 something differs (the message names the step and what), 3 not decided:\n"
        "another kind of machine, or no state from which to begin.",
    .examples = "Prove the whole run.\n"
                "./train audit runs/gpt2-small\n"
                "Prove some steps of a run on four ranks.\n"
                "./train audit runs/gpt2-small --steps 4000..5000 --ranks 4\n",
    .flags = flags,
    .n_flags = N_FLAGS,
    .run = run_audit,
};
