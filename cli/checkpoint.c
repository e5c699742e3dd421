// ./train checkpoint verify|consolidate: verifies all checkpoints of a run, or rewrites a checkpoint of many
// ranks as one of a single rank. Both rely on checkpoint_open, which reads every byte.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/commands.h"
#include "zero/checkpoint/checkpoint.h"

static const char *output = NULL;
static const struct arg flags[] = {
    {"--output", ARG_STRING, &output, 0, 0,
     "consolidate: the folder in which to write step-N (RUN/consolidated)"},
};

static uint64_t total_bytes(const struct checkpoint *checkpoint) {
    uint64_t total = 0;
    for (int i = 0; i < checkpoint->n_files; i++)
        total += checkpoint->files[i].bytes;
    return total;
}

// ---- verify

struct findings {
    int n, n_bad;
    enum status worst;
    char *newest_good; // its path; checkpoints are verified oldest first
};

static void print_good(const struct checkpoint *checkpoint, bool is_best) {
    char bytes[32];
    printf("%s: step %lld, %d rank%s, partition %s, %s in %d file%s: ok%s\n", checkpoint->path,
           (long long)checkpoint->step, checkpoint->world, checkpoint->world == 1 ? "" : "s",
           partition_name(checkpoint->partition),
           text_bytes(bytes, sizeof bytes, (double)total_bytes(checkpoint)), checkpoint->n_files,
           checkpoint->n_files == 1 ? "" : "s", is_best ? ", the best by validation loss" : "");
}

static void print_bad(const char *path, enum status status) {
    const char *reason = status_message();
    size_t length = strlen(path);
    if (strncmp(reason, path, length) == 0 && reason[length] == '/')
        reason += length + 1; // the line already names the folder
    printf("%s: %s: %s\n", path, status == STATUS_INVALID ? "damaged" : "cannot be verified", reason);
}

// A bad checkpoint is a finding, not a failure: the others are still verified.
static enum status verify_one(struct findings *findings, const char *path, bool is_best) {
    struct checkpoint *checkpoint;
    enum status status = checkpoint_open(NULL, path, &checkpoint);
    findings->n++;
    if (status != STATUS_OK) {
        print_bad(path, status);
        status_clear();
        findings->n_bad++;
        findings->worst = status > findings->worst ? status : findings->worst;
    } else {
        print_good(checkpoint, is_best);
        checkpoint_close(checkpoint);
        free(findings->newest_good);
        findings->newest_good = file_path("%s", path);
        TRY(findings->newest_good ? STATUS_OK : STATUS_FAILED);
    }
    // The next one may take minutes.
    return output_flush();
}

static enum status verify_all(struct findings *findings, const char *folder) {
    int64_t *steps;
    int n_steps;
    TRY(checkpoint_list(folder, &steps, &n_steps));
    const int64_t best = checkpoint_find_best(folder);
    enum status status = STATUS_OK;
    for (int i = 0; i < n_steps && status == STATUS_OK; i++) {
        char *path = checkpoint_path(folder, steps[i]);
        status = path ? verify_one(findings, path, steps[i] == best) : STATUS_FAILED;
        free(path);
    }
    free(steps);
    return status;
}

// Interprets the path as checkpoint_open_path does, but verifies all of its checkpoints.
static enum status verify_path(struct findings *findings, const char *path) {
    if (!file_exists(path))
        return FAIL(STATUS_INVALID, "%s: does not exist; expected a run folder or a checkpoint folder", path);
    if (checkpoint_is_folder(path))
        return verify_one(findings, path, false);
    char *inside = file_path("%s/checkpoints", path);
    if (!inside)
        return STATUS_FAILED;
    enum checkpoint_path_kind kind;
    enum status status = checkpoint_path_look(inside, &kind);
    if (status == STATUS_OK)
        status = verify_all(findings, kind == CHECKPOINT_PATH_FOLDER ? inside : path);
    free(inside);
    if (status == STATUS_OK && findings->n == 0)
        return FAIL(STATUS_INVALID,
                    "%s: contains no checkpoint: expected a run folder (with checkpoints/step-N), its "
                    "checkpoints folder, or a checkpoint folder (with manifest.json)",
                    path);
    return status;
}

static enum status verify(const char *path) {
    struct findings findings = {0};
    enum status status = verify_path(&findings, path);
    if (status == STATUS_OK && findings.n_bad > 0)
        status = FAIL(findings.worst, "%s: %d of %d checkpoint%s failed verification; %s%s", path,
                      findings.n_bad, findings.n, findings.n == 1 ? "" : "s",
                      findings.newest_good               ? "the newest good one is "
                      : findings.worst == STATUS_INVALID ? "there is no good one"
                                                         : "whether there is a good one is not known",
                      findings.newest_good ? findings.newest_good : "");
    free(findings.newest_good);
    return status;
}

// ---- consolidate

static enum status read_source(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                               float *out) {
    return checkpoint_read_span(context, kind, unit, begin, end, out);
}

// RUN/consolidated for RUN/checkpoints/anything. A separate folder, so that the run's own checkpoints and
// their number (checkpoint.keep) are not affected.
static enum status default_folder(const struct checkpoint *checkpoint, char **folder) {
    static const char parent[] = "/checkpoints";
    char *path = realpath(checkpoint->path, NULL);
    if (!path)
        return FAIL(STATUS_FAILED, "%s: cannot be resolved: %s", checkpoint->path, strerror(errno));
    *strrchr(path, '/') = '\0';
    size_t length = strlen(path), tail = sizeof parent - 1;
    bool in_run = length >= tail && strcmp(path + length - tail, parent) == 0;
    if (in_run)
        *folder = file_path("%.*s/consolidated", (int)(length - tail), path);
    free(path);
    if (!in_run)
        return FAIL(STATUS_INVALID,
                    "%s is not in the checkpoints folder of a run: choose the folder to write to with "
                    "--output",
                    checkpoint->path);
    return *folder ? STATUS_OK : STATUS_FAILED;
}

static bool is_same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Never overwrites anything. Also refuses folders in which no command would look for the checkpoint.
static enum status check_target(const struct checkpoint *checkpoint, const char *folder, const char *target) {
    if (checkpoint_is_folder(folder))
        return FAIL(STATUS_INVALID,
                    "%s is a checkpoint; --output names the folder in which to write step-N, such as "
                    "RUN/consolidated",
                    folder);
    if (is_same_folder(target, checkpoint->path))
        return FAIL(STATUS_INVALID,
                    "%s is the checkpoint to be consolidated and would be overwritten; choose another folder "
                    "with --output",
                    target);
    if (file_exists(target))
        return FAIL(STATUS_INVALID, "%s already exists; remove it, or choose another folder with --output",
                    target);
    char *inside = file_path("%s/checkpoints", folder);
    if (!inside)
        return STATUS_FAILED;
    bool is_run = file_is_folder(inside);
    free(inside);
    return is_run
               ? FAIL(STATUS_INVALID,
                      "%s is a run folder, whose checkpoints are in %s/checkpoints; choose that or another "
                      "folder with --output",
                      folder, folder)
               : STATUS_OK;
}

// The same state, written as a single rank would have written it.
static enum status write_as_one(struct checkpoint *checkpoint, struct comm *comm,
                                const struct tokenizer *tokenizer, const char *folder) {
    const struct checkpoint_layout *layout = &checkpoint->layout;
    struct partition partition;
    struct checkpoint_matrix *matrices = calloc((size_t)layout->n_matrices + 1, sizeof *matrices);
    if (!matrices)
        return FAIL(STATUS_FAILED, "out of memory while reading %s", checkpoint->path);
    for (int i = 0; i < layout->n_matrices; i++)
        matrices[i] = (struct checkpoint_matrix){.param = layout->matrices[i].param,
                                                 .values = layout->matrices[i].values};
    enum status made = partition_init(&partition, &checkpoint->params, PARTITION_EVEN, 1);
    if (made != STATUS_OK) {
        free(matrices);
        return made;
    }
    enum status status = checkpoint_write(
        folder, &(struct checkpoint_contents){.comm = comm,
                                              .partition = &partition,
                                              .step = checkpoint->step,
                                              .tokens = checkpoint->tokens,
                                              .config = &checkpoint->config,
                                              .params = &checkpoint->params,
                                              .tokenizer = tokenizer,
                                              .compute = checkpoint->compute,
                                              .device = checkpoint->device,
                                              .attention = checkpoint->attention,
                                              .kinds = checkpoint->kinds,
                                              .matrices = matrices,
                                              .n_matrices = layout->n_matrices,
                                              .loss_scale = checkpoint->loss_scale,
                                              .data = &checkpoint->data,
                                              .history = &checkpoint->history,
                                              .spikes = &checkpoint->spikes,
                                              .noise = &checkpoint->noise,
                                              .average = &checkpoint->average,
                                              .source = {.context = checkpoint, .read = read_source}});
    partition_free(&partition);
    free(matrices);
    return status;
}

static enum status consolidate_to(struct checkpoint *checkpoint, const char *folder) {
    struct tokenizer *tokenizer = NULL;
    struct comm *comm;
    char bytes[32], *target = checkpoint_path(folder, checkpoint->step);
    enum status status = target ? check_target(checkpoint, folder, target) : STATUS_FAILED;
    if (status == STATUS_OK && checkpoint->tokenizer)
        status = tokenizer_load(checkpoint->tokenizer, &tokenizer);
    if (status == STATUS_OK)
        status = comm_open_self(&comm);
    if (status == STATUS_OK)
        status = comm_close(comm, write_as_one(checkpoint, comm, tokenizer, folder));
    if (status == STATUS_OK)
        printf("%s: step %lld of %d rank%s (%s), %s, consolidated in %s\n", checkpoint->path,
               (long long)checkpoint->step, checkpoint->world, checkpoint->world == 1 ? "" : "s",
               partition_name(checkpoint->partition),
               text_bytes(bytes, sizeof bytes, (double)total_bytes(checkpoint)), target);
    tokenizer_delete(tokenizer);
    free(target);
    return status;
}

static enum status consolidate(const char *path) {
    struct checkpoint *checkpoint;
    char *folder = NULL;
    TRY(checkpoint_open_path(NULL, path, &checkpoint));
    enum status status = STATUS_OK;
    if (!output)
        status = default_folder(checkpoint, &folder);
    if (status == STATUS_OK)
        status = consolidate_to(checkpoint, output ? output : folder);
    free(folder);
    checkpoint_close(checkpoint);
    return status;
}

// ---- the command

static enum status unknown_action(const char *action) {
    static const char *const names[] = {"verify", "consolidate"};
    const char *nearest = text_nearest(action, names, sizeof names / sizeof *names);
    if (nearest)
        return FAIL(STATUS_INVALID,
                    "train checkpoint: \"%s\" is neither verify nor consolidate; did you mean %s? See: train "
                    "help checkpoint",
                    action, nearest);
    return FAIL(STATUS_INVALID,
                "train checkpoint: \"%s\" is neither verify nor consolidate; see: train help checkpoint",
                action);
}

static enum status run_checkpoint(int n_args, char **args) {
    const char *words[2];
    int n_words;
    TRY(args_parse("checkpoint", flags, sizeof flags / sizeof *flags, n_args, args, words, 2, &n_words));
    if (n_words == 0)
        return FAIL(STATUS_INVALID,
                    "train checkpoint: expected verify or consolidate; see: train help checkpoint");
    bool verifying = strcmp(words[0], "verify") == 0;
    if (!verifying && strcmp(words[0], "consolidate") != 0)
        return unknown_action(words[0]);
    if (n_words == 1)
        return FAIL(STATUS_INVALID,
                    "train checkpoint %s: name a run or a checkpoint; see: train help checkpoint", words[0]);
    if (verifying && output)
        return FAIL(STATUS_INVALID,
                    "train checkpoint verify: writes nothing and takes no --output; see: train help "
                    "checkpoint");
    if (output && !*output)
        return FAIL(STATUS_INVALID, "train checkpoint consolidate: --output is empty, expected a folder");
    return verifying ? verify(words[1]) : consolidate(words[1]);
}

const struct command command_checkpoint = {
    .name = "checkpoint",
    .synopsis = "verify RUN_OR_CHECKPOINT | consolidate RUN_OR_CHECKPOINT [--output DIR]",
    .summary = "verify the checkpoints of a run, or merge a checkpoint of many ranks into one file",
    .details =
        "verify reads every byte of every checkpoint and prints one line for each: its contents, or what is\n"
        "wrong with it.\n"
        "consolidate rewrites a checkpoint (of a run: the newest good one) as a single rank would have\n"
        "written it, to DIR/step-N. DIR is RUN/consolidated by default. It can be used like any run:\n"
        "train generate RUN/consolidated, checkpoint.resume=RUN/consolidated.",
    .examples = "Check every byte of a run's checkpoints.\n"
                "./train checkpoint verify runs/quickstart\n"
                "Make one file of a checkpoint of many ranks.\n"
                "./train checkpoint consolidate runs/quickstart --output one\n",
    .flags = flags,
    .n_flags = sizeof flags / sizeof *flags,
    .run = run_checkpoint,
};
