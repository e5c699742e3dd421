#include "trainer/auditing.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "options/option.h"
#include "options/resume.h"
#include "zero/checkpoint/state_digest.h"

#define LARGEST_LEDGER ((size_t)4 << 30)

// The digest of a micro-batch, with its number in the step over all ranks.
struct audit_rows {
    int64_t number;
    struct digest digest;
};

struct audit {
    struct run *run;
    const struct audit_task *task; // NULL: the run writes its own ledger
    struct ledger *ledger, own;    // as of the beginning; rank 0's grows. `own` without a task
    struct signing_key key;
    bool differs;            // on rank 0: something was not as in the ledger
    int64_t compared;        // the last step whose state was compared or recorded
    int64_t repeats_until;   // the last step that the ledger had at the beginning
    struct audit_rows *rows; // (n_rows) of this rank's micro-batches of the next step
    int n_rows, most_rows;
};

struct audit *audit_new(struct run *run, const struct audit_task *task) {
    if (!task && run->config->run.audit_every == 0)
        return NULL;
    struct audit *audit = allocate(1, sizeof *audit);
    *audit = (struct audit){.run = run, .task = task, .own.descriptor = -1, .compared = -1};
    audit->ledger = task ? task->ledger : &audit->own;
    return audit;
}

void audit_delete(struct audit *audit) {
    if (!audit)
        return;
    ledger_free(&audit->own);
    sodium_memzero(&audit->key, sizeof audit->key);
    free(audit->rows);
    free(audit);
}

enum status audit_read(struct comm *comm, const char *path, struct ledger *ledger) {
    struct text mine = {0}, text = {0};
    enum status status = STATUS_OK;
    if (comm->rank == 0 && file_exists(path))
        status = file_read(path, LARGEST_LEDGER, &mine.data, &mine.length);
    status = comm_agree(comm, status);
    if (status == STATUS_OK)
        status = comm_broadcast_text(comm, &mine, &text);
    if (status == STATUS_OK)
        status = comm_agree(comm, ledger_parse(ledger, path, text.data, text.length));
    text_free(&mine);
    text_free(&text);
    return status;
}

bool audit_repeats(const struct audit *audit) {
    return audit && audit->task;
}

bool audit_saves(const struct audit *audit) {
    return audit_repeats(audit) && audit->task->saves;
}

void audit_limit(struct run *run) {
    if (audit_repeats(run->audit) && run->audit->task->until < run->last_step)
        run->last_step = run->audit->task->until;
}

// ---- what is bound

// Options that a resumed run may change freely, but that change its weights.
static const char free_options[] = "train.max_minutes train.on_spike train.spike_window "
                                   "train.spike_threshold train.noise_scale_every checkpoint.accept_new_data";

bool audit_binds(const struct option *option) {
    const char *name = option_full_name(option);
    return option->resume != FREE || strcmp(name, "train.micro_batch_size") == 0 ||
           text_has_word(free_options, name, strlen(name));
}

// Appends all options that the run's bits depend on, as members of a JSON object, with what was decided for
// "auto".
static void add_options(const struct config *config, const struct config_decided *decided, struct text *out) {
    text_add(out,
             "\"precision.compute\":\"%s\",\"attention\":\"%s\",\"train.logical_ranks\":%" PRId64
             ",\"train.micro_batch_size\":%" PRId64,
             dtype_name(decided->compute), config_attention_name(decided->attention), decided->logical_ranks,
             config->train.micro_batch_size);
    for (const struct option *option = options; option < options + n_options; option++) {
        const char *name = option_full_name(option);
        if (!audit_binds(option) ||
            text_has_word("precision.compute attention train.logical_ranks train.micro_batch_size", name,
                          strlen(name)))
            continue;
        text_add(out, ",\"%s\":", name);
        option_print(option, config, out);
    }
}

// Appends everything that the run's bits depend on, but for the state, as a JSON object.
static void print_bound(const struct run *run, struct text *out) {
    const struct config_decided decided = run_decided(run);
    text_add(out, "{\"program\":");
    json_add_string(out, checkpoint_version());
    text_add(out, ",\"fingerprint\":\"%s\",\"data\":\"%016" PRIx64 "\",\"sums\":\"%s\",",
             run->machine.fingerprint, run->state.data.train.digest,
             stage_adds_micro_batches(run->config, run->config->logical_ranks, run->comm->world)
                 ? "micro_batch"
                 : "step");
    add_options(run->config, &decided, out);
    text_add(out, "}");
}

// Compares a member of what the ledger binds with the same of a repetition.
//   was, is   NULL: there is none
static enum status check_member(const struct audit *audit, const char *name, const char *was, const char *is,
                                bool other_program) {
    if (was && is && strcmp(was, is) == 0)
        return STATUS_OK;
    if (strcmp(name, "program") == 0)
        log_warning("the run was computed by %s, and is repeated by %s", was, is);
    if (strcmp(name, "program") == 0 || strcmp(name, "data") == 0) // the rows of each step tell
        return STATUS_OK;
    if (strcmp(name, "sums") == 0 && was)
        return FAIL(STATUS_INVALID,
                    "train audit: gradients are added in another order here than in the run (%s, not %s); "
                    "audit it in stage 0 or 1 (zero_optimization.stage)",
                    is, was);
    return FAIL(strcmp(name, "fingerprint") == 0 || other_program ? STATUS_UNDECIDED : STATUS_FAILED,
                "step %" PRId64 ": %s is %s here, but %s in %s, so results may differ", audit->run->step,
                name, is ? is : "unknown", was ? was : "missing", audit->ledger->path);
}

// Compares what a repetition is bound to with what the ledger binds at that step.
static enum status check_bound(const struct audit *audit, const char *bound) {
    const struct ledger_session *session = ledger_session_at(audit->ledger, audit->run->step);
    cJSON *now = cJSON_Parse(bound), *was = cJSON_Parse(session->bound);
    const char *program = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(was, "program"));
    const bool other_program = program && strcmp(program, checkpoint_version()) != 0;
    enum status status = STATUS_OK;
    for (int pass = 0; pass < 2; pass++) // the members that the ledger has, then those that it lacks
        for (const cJSON *item = (pass ? now : was)->child; item && status == STATUS_OK; item = item->next) {
            char *before = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(was, item->string)),
                 *here = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(now, item->string));
            if (pass == 0 || !before)
                status = check_member(audit, item->string, before, here, other_program);
            cJSON_free(before);
            cJSON_free(here);
        }
    cJSON_Delete(now);
    cJSON_Delete(was);
    return status;
}

// ---- states

// Digests what later steps depend on besides weights, optimizer states and data.
static struct digest digest_records(int64_t step, int64_t tokens, const struct run_state *state,
                                    const struct data_record *data, const struct config *config,
                                    const struct config_decided *decided) {
    const struct run_state records = {.loss_scale = state->loss_scale,
                                      .warmup_steps = state->warmup_steps,
                                      .spikes = state->spikes,
                                      .noise = state->noise,
                                      .average = state->average};
    struct text text = {0};
    struct digest_stream stream;
    add_options(config, decided, &text);
    run_state_print(&records, &text);
    digest_begin(&stream, "records");
    digest_add_number(&stream, (uint64_t)step);
    digest_add_number(&stream, (uint64_t)tokens);
    digest_add_number(&stream, (uint64_t)state->pacing.decision.step);
    digest_add_number(&stream, (uint64_t)state->pacing.decision.total);
    for (int i = 0; i < data->n_orders && data->orders[i].step < step; i++)
        digest_add_number(&stream, (uint64_t)data->orders[i].step);
    digest_add(&stream, text.data, text.length);
    text_free(&text);
    return digest_end(&stream);
}

enum status audit_checkpoint(struct comm *comm, const struct checkpoint *checkpoint,
                             const struct data_record *data, struct ledger_state *state) {
    const struct config_decided decided = run_decided_before(checkpoint);
    struct partition partition;
    partition_init(&partition, &checkpoint->params, PARTITION_EVEN, comm->world);
    struct state_digest of = {.comm = comm,
                              .params = &checkpoint->params,
                              .partition = &partition,
                              .kinds = checkpoint->kinds,
                              .source = checkpoint_source_of(checkpoint),
                              .scratch = allocate(CHECKPOINT_CHUNK, sizeof *of.scratch)};
    const enum status status = state_digest_compute(&of, &state->root);
    state->step = checkpoint->step;
    state->records = digest_records(checkpoint->step, checkpoint->tokens, &checkpoint->run, data,
                                    &checkpoint->config, &decided);
    free(of.scratch);
    partition_free(&partition);
    return status;
}

static enum status digest_state(struct run *run, struct ledger_state *state) {
    const struct config_decided decided = run_decided(run);
    struct model_states *states = &run->engine.state;
    struct state_reader reader = {states, &run->machine.stream};
    const struct state_digest of = {.comm = run->comm,
                                    .params = &run->params,
                                    .partition = states->stage.partition,
                                    .kinds = run_checkpoint_kinds(run),
                                    .source = model_states_source(&reader),
                                    .scratch = states->values};
    TRY(run_show_average(run, false));
    TRY(state_digest_compute(&of, &state->root));
    state->step = run->step;
    state->records =
        digest_records(run->step, run->tokens, &run->state, &run->state.data, run->config, &decided);
    return STATUS_OK;
}

// Notes a difference. In a run that repeats steps after a kill, adds to the message.
static enum status note(struct audit *audit, enum status status) {
    struct text message = {0};
    if (status == STATUS_OK)
        return status;
    audit->differs = true;
    if (audit->task)
        return status;
    text_add(&message, "%s", status_message());
    status_clear();
    status = FAIL(status,
                  "%s. The run has computed this before and must repeat it to the bit, so one of the two is "
                  "wrong: ./train audit %s computes it once more and tells which. To go on with what was "
                  "computed last, move " LEDGER_NAME " away: a new one begins",
                  message.data, audit->run->folder.path);
    text_free(&message);
    return status;
}

// ---- beginning

// Warns if the lines so far were signed otherwise than the next ones: no single key then proves all of them.
static void warn_of_key(const struct audit *audit, bool signs) {
    const struct ledger *ledger = &audit->own;
    const struct ledger_line *last = ledger->n_lines ? &ledger->lines[ledger->n_lines - 1] : NULL;
    if (run_leads(audit->run) && last &&
        (last->is_signed != signs ||
         (signs && !signature_is_good(audit->key.public, &last->hash, last->signature))))
        log_warning("audit: the lines so far of %s are signed by %s, so no key proves all of it",
                    ledger->path, last->is_signed ? "another key" : "no key");
}

// Reads the run's own ledger and, on rank 0, opens it for appending.
static enum status open_ledger(struct audit *audit) {
    struct run *run = audit->run;
    const char *key = run->config->run.audit_key;
    char public[HEX_BYTES(PUBLIC_KEY_BYTES)];
    bool is_new = false;
    char *path = file_path("%s/" LEDGER_NAME, run->folder.path);
    enum status status = audit_read(run->comm, path, &audit->own);
    free(path);
    TRY(status);
    if (run_leads(run) && key[0])
        status = signing_key_open(key, &audit->key, &is_new);
    if (run_leads(run) && key[0] && status == STATUS_OK)
        log_info("audit: %s signs " LEDGER_NAME "; its public key is %s", is_new ? "the new key" : "the key",
                 digest_print(audit->key.public, PUBLIC_KEY_BYTES, public));
    if (status == STATUS_OK)
        warn_of_key(audit, key[0] != 0);
    if (run_leads(run) && status == STATUS_OK)
        status = ledger_open(&audit->own, key[0] ? &audit->key : NULL);
    return run_agree(run, status);
}

enum status audit_begin(struct audit *audit, const struct checkpoint *resumed) {
    struct ledger_state state;
    struct text bound = {0};
    if (!audit)
        return STATUS_OK;
    struct run *run = audit->run;
    struct ledger *ledger = audit->ledger;
    if (!audit->task)
        TRY(open_ledger(audit));
    TRY(resumed ? audit_checkpoint(run->comm, resumed, &run->state.data, &state) : digest_state(run, &state));
    char *where = resumed ? file_path("the checkpoint %s", resumed->path) : NULL;
    print_bound(run, &bound);
    enum status status = audit->task ? check_bound(audit, bound.data) : STATUS_OK;
    if (status == STATUS_OK)
        status = audit->task ? ledger_check_state(ledger, &state, where ? where : "the initial state")
                             : ledger_begin_session(ledger, &state, bound.data, where);
    status = note(audit, status);
    text_free(&bound);
    free(where);
    audit->compared = run->step;
    audit->repeats_until = ledger->n_steps ? ledger->steps[ledger->n_steps - 1].step : -1;
    return run_agree(run, status);
}

// ---- steps

void audit_batch(struct audit *audit, int64_t first_row, const struct token_batch *batch) {
    if (!audit)
        return;
    const struct config *config = audit->run->config;
    const int64_t number = first_row / config->train.micro_batch_size;
    const size_t n = (size_t)(config->train.micro_batch_size * config->train.seq_len);
    struct digest_stream stream;
    RESERVE(audit->rows, audit->n_rows + 1, audit->most_rows);
    digest_begin(&stream, "token rows");
    digest_add(&stream, batch->tokens, n * sizeof *batch->tokens);
    digest_add(&stream, batch->targets, n * sizeof *batch->targets);
    if (batch->weights)
        digest_add(&stream, batch->weights, n * sizeof *batch->weights);
    audit->rows[audit->n_rows++] = (struct audit_rows){number, digest_end(&stream)};
}

static int by_number(const void *a, const void *b) {
    const int64_t one = ((const struct audit_rows *)a)->number,
                  other = ((const struct audit_rows *)b)->number;
    return (one > other) - (one < other);
}

enum status audit_data(struct audit *audit, struct digest *data) {
    if (!audit)
        return STATUS_OK;
    struct comm *comm = audit->run->comm;
    const size_t n = (size_t)(audit->n_rows * comm->world);
    struct audit_rows *all = allocate(n + 1, sizeof *all);
    struct digest_stream stream;
    const enum status status = comm_gather(comm, audit->rows, (size_t)audit->n_rows * sizeof *all, all);
    qsort(all, n, sizeof *all, by_number);
    digest_begin(&stream, "step rows");
    for (size_t i = 0; i < n; i++)
        digest_add(&stream, all[i].digest.bytes, DIGEST_BYTES);
    *data = digest_end(&stream);
    audit->n_rows = 0;
    free(all);
    return status;
}

enum status audit_step(struct audit *audit, const struct ledger_step *step) {
    return audit ? note(audit, ledger_add_step(audit->ledger, step)) : STATUS_OK;
}

bool audit_is_due(const struct audit *audit, int64_t step) {
    if (!audit)
        return false;
    return audit->task ? ledger_state_at(audit->ledger, step) != NULL
                       : step % audit->run->config->run.audit_every == 0;
}

enum status audit_state(struct audit *audit) {
    struct ledger_state state;
    if (!audit || audit->compared == audit->run->step ||
        (audit->task && !audit_is_due(audit, audit->run->step)))
        return STATUS_OK;
    struct run *run = audit->run;
    audit->compared = run->step;
    TRY(digest_state(run, &state));
    enum status status = run->pending;
    if (run_leads(run) && status == STATUS_OK) {
        // A step that differs ends the run, which then tries to save its progress.
        status =
            audit->differs ? FAIL(STATUS_FAILED, "it differs from the run's ledger") : run_check_folder(run);
        if (status == STATUS_OK)
            status = note(audit, ledger_add_state(audit->ledger, &state));
        if (status == STATUS_OK && audit->task)
            audit->task->report(run->step);
    }
    return run_agree(run, status);
}

void audit_log_head(const struct audit *audit) {
    char head[HEX_BYTES(DIGEST_BYTES)];
    if (audit && !audit->task && run_leads(audit->run))
        log_info(
            "audit: the head of %s is %s", audit->ledger->path,
            digest_print(audit->ledger->lines[audit->ledger->n_lines - 1].hash.bytes, DIGEST_BYTES, head));
}

// ---- the length of the run

bool audit_repeats_decision(const struct audit *audit, int64_t step, struct pacing_decision *decision) {
    if (!audit || (!audit->task && step > audit->repeats_until))
        return false;
    const struct ledger_decision *had = ledger_decision_at(audit->ledger, step);
    if (had)
        *decision = (struct pacing_decision){had->step, had->total, had->position, had->spent_s};
    return true;
}

void audit_decision(struct audit *audit, const struct pacing_decision *now) {
    if (audit)
        ledger_add_decision(audit->ledger,
                            &(struct ledger_decision){now->step, now->total, now->position, now->spent_s});
}
