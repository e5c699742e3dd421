// ./train checkpoint verify: verifies one checkpoint or all checkpoints of a run. checkpoint_open reads
// every byte of a checkpoint and compares its checksums.
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/commands.h"
#include "zero/checkpoint/checkpoint.h"

// ---- verifying checkpoints

struct findings {
    int n, n_bad;
    int n_gone; // checkpoints that were listed, but removed by the run before they were read
    enum status worst;
    char *newest_good; // path of the newest good checkpoint so far; NULL: none. The oldest come first
};

static void print_good(const struct checkpoint *checkpoint, bool is_best) {
    char bytes[32];
    output_print("%s: step %lld, %d rank%s, partition %s, %s in %d file%s: ok%s\n", checkpoint->path,
                 (long long)checkpoint->step, checkpoint->world, checkpoint->world == 1 ? "" : "s",
                 partition_name(checkpoint->partition),
                 text_bytes(bytes, sizeof bytes, (double)checkpoint_bytes(checkpoint)), checkpoint->n_files,
                 checkpoint->n_files == 1 ? "" : "s", is_best ? ", the best by validation loss" : "");
}

static void print_bad(const char *path, enum status status) {
    const char *reason = status_message();
    size_t length = strlen(path);
    if (strncmp(reason, path, length) == 0 && reason[length] == '/')
        reason += length + 1; // the line already names the folder
    output_print("%s: %s: %s\n", path, status == STATUS_INVALID ? "damaged" : "cannot be verified", reason);
}

// Verifies one checkpoint and prints the result. If it is damaged, records that in `findings` and returns
// STATUS_OK, so that the remaining ones are verified too. If the run removed it meanwhile, only counts it.
static enum status verify_one(struct findings *findings, const char *path, bool is_best) {
    struct checkpoint *checkpoint;
    enum status status = checkpoint_open(NULL, path, &checkpoint);
    if (status != STATUS_OK && checkpoint_is_gone(path)) {
        status_clear();
        findings->n_gone++;
        return STATUS_OK;
    }
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
        findings->newest_good = copy_string(path);
    }
    return output_flush(); // verifying the next checkpoint may take minutes
}

static enum status verify_listed(struct findings *findings, const char *folder) {
    int64_t *steps;
    int n_steps;
    TRY(checkpoint_list(folder, &steps, &n_steps));
    const int64_t best = checkpoint_find_best(folder);
    enum status status = STATUS_OK;
    for (int i = 0; i < n_steps && status == STATUS_OK; i++) {
        char *path = checkpoint_path(folder, steps[i]);
        status = verify_one(findings, path, steps[i] == best);
        free(path);
    }
    free(steps);
    return status;
}

static enum status verify_all(struct findings *findings, const char *folder) {
    for (int lists = 0; lists < CHECKPOINT_LISTS; lists++) {
        findings->n_gone = 0;
        TRY(verify_listed(findings, folder));
        if (findings->n > 0 || findings->n_gone == 0)
            return STATUS_OK;
    }
    return checkpoint_fail_gone(folder);
}

// Verifies all checkpoints at `path`: a run folder, its folder of checkpoints, or one checkpoint's folder.
static enum status verify_path(struct findings *findings, const char *path) {
    if (!file_exists(path))
        return FAIL(STATUS_INVALID, "%s: does not exist; expected a run folder or a checkpoint folder", path);
    if (checkpoint_is_folder(path)) {
        TRY(verify_one(findings, path, false));
        return findings->n_gone == 0 ? STATUS_OK : checkpoint_fail_gone(path);
    }
    char *inside = file_path("%s/checkpoints", path);
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
                      findings.newest_good               ? "the newest good checkpoint is "
                      : findings.worst == STATUS_INVALID ? "there is no good checkpoint"
                                                         : "it is unknown whether any checkpoint is good",
                      findings.newest_good ? findings.newest_good : "");
    free(findings.newest_good);
    return status;
}

// ---- the command

static enum status run_checkpoint(int n_args, char **args) {
    const char *words[2];
    int n_words;
    TRY(args_parse("checkpoint", NULL, 0, n_args, args, words, 2, &n_words));
    if (n_words == 0 || strcmp(words[0], "verify") != 0)
        return FAIL(STATUS_INVALID, "train checkpoint: expected verify%s%s%s; see: train help checkpoint",
                    n_words ? ", not \"" : "", n_words ? words[0] : "", n_words ? "\"" : "");
    if (n_words == 1)
        return FAIL(STATUS_INVALID,
                    "train checkpoint verify: name a run or a checkpoint; see: train help checkpoint");
    return verify(words[1]);
}

const struct command command_checkpoint = {
    .name = "checkpoint",
    .synopsis = "verify RUN_OR_CHECKPOINT",
    .summary = "verify the checkpoints of a run",
    .details =
        "Reads every byte of every checkpoint and prints one line for each: its contents, or what is wrong\n"
        "with it.",
    .examples = "Check every byte of a run's checkpoints.\n./train checkpoint verify runs/quickstart\n",
    .run = run_checkpoint,
};
