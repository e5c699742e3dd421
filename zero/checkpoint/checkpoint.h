// Checkpoints: the whole state of a run in a folder, RUN/checkpoints/step-00000123/.
//   manifest.json    format, step, tokens, config, tensors, partition, a checksum of every file
//   rank-00000.bin   one file per rank: little-endian fp32 values of the spans that the rank owns. For each
//                    span: master weights, moments, average of the weights (zero/checkpoint/layout.h)
//   tokenizer.tiktoken   a copy of the tokenizer, so that the folder alone suffices to generate text. Named
//                        tokenizer.json if the tokenizer does not work like GPT-2's. Absent for the
//                        tokenizer "bytes", and in a run without a tokenizer. If needed, the tokens that
//                        end generation are in generation_config.json, and the chat template is in
//                        tokenizer_config.json
//
// Atomicity. A checkpoint is complete or absent. It is written to .tmp-step-N and flushed, all ranks agree,
// rank 0 checks it, and only then is the folder renamed to step-N.
//
// Reading. Every size, offset and checksum is checked. Any number of ranks, with any stage and partition, can
// read a checkpoint that any other number wrote. When ranks open a checkpoint together, rank 0 lists the
// folder, chooses, and reads the manifest; the others check that they see the same manifest.
//
// Errors. STATUS_INVALID: the checkpoint is damaged: a file is absent or has wrong contents. STATUS_FAILED: a
// file cannot be read (permissions, too many open files, I/O errors); the checkpoint may be good.
#ifndef ZERO_ZERO_CHECKPOINT_CHECKPOINT_H
#define ZERO_ZERO_CHECKPOINT_CHECKPOINT_H

#include "zero/checkpoint/format.h"

// ---- writing (write.c)

// Writes checkpoints_folder/step-N and replaces an existing checkpoint of that step. Creates
// checkpoints_folder if needed, but not its parent folder. Every rank calls it and gets the same status.
// STATUS_FAILED: a rank cannot write (for example, the disk is full), a value is not finite, or rank 0 does
// not find every rank's file as that rank wrote it. The temporary folder is then removed; earlier checkpoints
// are untouched.
enum status checkpoint_write(const char *checkpoints_folder,
                             const struct checkpoint_contents *contents) MUST_CHECK;
// Sets the program's version that manifests record. `version` must be a static string. "unknown" until set.
void checkpoint_set_version(const char *version);
const char *checkpoint_version(void);

// ---- reading (checkpoint.c)

// Opens one checkpoint folder, and reads each data file once to verify it.
//   comm   its ranks open the checkpoint together: each verifies some of the files, and all get the same
//          status. NULL: this process alone
// STATUS_INVALID: the message names the file and what is wrong with it: absent, not JSON, of the wrong type,
// out of bounds, or of another size or checksum than in the manifest. STATUS_FAILED: a file cannot be read,
// or a rank finds no manifest or another one than rank 0. After either failure the ranks can continue
// together, for example with another checkpoint. A caller that ends the run instead calls comm_agree with
// the status.
enum status checkpoint_open(struct comm *comm, const char *folder, struct checkpoint **out) MUST_CHECK;
void checkpoint_close(struct checkpoint *checkpoint);           // NULL: no-op
uint64_t checkpoint_bytes(const struct checkpoint *checkpoint); // size of all its files except the manifest

// Compares the model of a checkpoint with the run's. STATUS_INVALID if their sizes or options differ:
// "checkpoint of another model", with the difference.
enum status checkpoint_check_model(const struct checkpoint *checkpoint,
                                   const struct params *params) MUST_CHECK;
// Reads the values of one kind of elements [begin, end) of a ZeRO unit as fp32, whichever ranks wrote them.
// Moments that a tensor does not have (struct checkpoint_kinds) read as zero.
enum status checkpoint_read_span(const struct checkpoint *checkpoint, enum checkpoint_kind kind, int unit,
                                 size_t begin, size_t end, float *out) MUST_CHECK;
// The values of a checkpoint, which must stay open, by checkpoint_read_span. written_by is NULL.
struct checkpoint_source checkpoint_source_of(const struct checkpoint *checkpoint);

// ---- folders (folder.c)

// Opens the newest good checkpoint of RUN/checkpoints. Skips damaged ones with a warning, and ones that a
// run prunes meanwhile without a warning. *out is NULL if there is no checkpoint or no such folder.
// STATUS_INVALID: all are damaged. STATUS_FAILED: one cannot be read, or a rank finds checkpoints where
// rank 0 finds none.
enum status checkpoint_open_newest(struct comm *comm, const char *checkpoints_folder,
                                   struct checkpoint **out) MUST_CHECK;
// Opens `path`: a checkpoint folder, or a run folder (its newest good checkpoint). STATUS_INVALID if it is
// neither.
enum status checkpoint_open_path(struct comm *comm, const char *path, struct checkpoint **out) MUST_CHECK;
// Fails with STATUS_INVALID if the folder holds a checkpoint. Used with checkpoint.resume "never".
enum status checkpoint_require_none(struct comm *comm, const char *checkpoints_folder) MUST_CHECK;

// Reads the sizes of the model in `path`: a checkpoint folder, a run folder or a folder of checkpoints (the
// newest with a good manifest). Reads manifests only and verifies no data. Each rank may do so alone.
//   found   [out] false if there is no good manifest
enum status checkpoint_peek(const char *path, struct gpt_config *model, bool *found) MUST_CHECK;

// Lists the steps of the folders that are named as checkpoint_path names them (step-00000007, not step-7), in
// ascending order. The list is empty for an absent folder. STATUS_FAILED if the folder cannot be listed. Free
// *steps with free().
enum status checkpoint_list(const char *checkpoints_folder, int64_t **steps, int *n_steps) MUST_CHECK;
// Returns "FOLDER/step-00000123" in a new string.
char *checkpoint_path(const char *checkpoints_folder, int64_t step);
// True if the folder holds a manifest.json (checkpoint_is_folder) or step-N folders
// (checkpoint_holds_steps). Also true if the folder cannot be examined: opening it then reports why.
bool checkpoint_is_folder(const char *path);
bool checkpoint_holds_steps(const char *path);

// Among the checkpoints up to `step`, keeps the `keep` newest, those whose step is a multiple of keep_every
// (0: none), and the one of step `best` (-1: none), and removes the rest. keep 0 removes none. A checkpoint
// is renamed before it is removed, so that readers find it complete or absent, even if this process is
// killed. If one cannot be removed, logs a warning; the next call tries again.
void checkpoint_prune(const char *checkpoints_folder, int64_t keep, int64_t keep_every, int64_t step,
                      int64_t best);
// After a failure to read a checkpoint: returns whether its folder is gone because its run has pruned it.
bool checkpoint_is_gone(const char *path);
// Maximum number of listings by a reader, which lists the folder again if a checkpoint is pruned meanwhile.
#define CHECKPOINT_LISTS 20
// Fails with the message for a reader that gives up: each checkpoint was removed before it could be read.
enum status checkpoint_fail_gone(const char *path) MUST_CHECK;
// Makes FOLDER/best a link to the checkpoint of this step. Removes the link if step is -1 or that checkpoint
// is absent. On a file system without links it only warns.
void checkpoint_name_best(const char *checkpoints_folder, int64_t step);
// Returns the step that FOLDER/best links to; -1 without the link.
int64_t checkpoint_find_best(const char *checkpoints_folder);
// Removes what killed writers left behind (.tmp-*), and restores a checkpoint that a writer was replacing
// when it was killed. Call it under the run's lock, when no checkpoint is being written. An absent folder
// is fine. Logs a warning if something cannot be removed.
enum status checkpoint_remove_stale(const char *checkpoints_folder) MUST_CHECK;
// For a run that resumes from `step` although later checkpoints exist: they are damaged, or the user asked
// for an earlier one. Renames the later ones to set-aside-step-N and logs it, so that they are not taken for
// the newest checkpoints of this run.
enum status checkpoint_set_aside_later(const char *checkpoints_folder, int64_t step) MUST_CHECK;

#endif
