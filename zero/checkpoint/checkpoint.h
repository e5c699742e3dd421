// Checkpoints: a run's whole state in a folder, RUN/checkpoints/step-00000123/, that is either whole or not
// there.
//   manifest.json    format, step, tokens, config, model sizes, tensors, partition, a checksum of every file
//   rank-00000.bin   one file per rank: fp32 values, little-endian, of the spans that the rank owns. For each
//                    span: master weights, then moments, then Adafactor's factors (zero/checkpoint/layout.h)
//   tokenizer.tiktoken   a copy, so that the folder can generate on its own (absent for "bytes" and for none)
// Written to .tmp-step-N, flushed, agreed on by all ranks, checked by rank 0, then renamed. Readers trust
// nothing: every size, offset and checksum is checked. Any number of ranks, in any stage and partition, reads
// what any other wrote.
//
// Where ranks open a checkpoint together, rank 0 lists the folder, chooses and reads the manifest; the others
// check that they see the same manifest. A checkpoint is damaged (STATUS_INVALID) when a file is absent or
// its contents are wrong. A file that cannot be read (permissions, too many open files, I/O errors) is
// STATUS_FAILED: the checkpoint may be good.
#ifndef ZERO_ZERO_CHECKPOINT_CHECKPOINT_H
#define ZERO_ZERO_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
#include "configs/config.h"
#include "data/tokenizer.h"
#include "model/params.h"
#include "zero/checkpoint/data_record.h"
#include "zero/checkpoint/files.h"
#include "zero/checkpoint/layout.h"
#include "zero/comm/comm.h"
#include "zero/partition/loss_scale.h"

// ---- writing

// Where the numbers come from: gives fp32 values [begin, end) of a kind of a unit, part of one of this
// rank's spans or of the factors, to host memory (a device copy and its synchronisation, or a memcpy). Asked
// in file order, at most CHECKPOINT_CHUNK elements at a time.
#define CHECKPOINT_CHUNK (1 << 20)
struct checkpoint_source {
    void *context;
    enum status (*read)(void *context, enum checkpoint_kind kind, int unit, size_t begin, size_t end,
                        float *out);
};

struct checkpoint_contents {
    struct comm *comm;                 // all its ranks write together
    const struct partition *partition; // who writes what
    int64_t step;                      // optimizer steps done
    int64_t tokens;                    // tokens trained on
    const struct config *config;       // resolved
    const struct params *params;
    const struct tokenizer *tokenizer; // is copied in; or NULL
    enum dtype compute;                // what precision.compute came to
    int n_kinds;                       // 1: master only; 2: and m; 3: and v
    bool has_factors;                  // and factors
    struct loss_scale loss_scale;
    const struct data_record *data; // NULL: nothing is recorded
    struct checkpoint_source source;
};

// Writes checkpoints_folder/step-N (made if absent), replacing one of the same step. Every rank calls it and
// gets the same answer. STATUS_FAILED when one of them cannot (disk full and the like), when a value is not
// finite, or when rank 0 does not see every rank's file as that rank wrote it: then the temporary folder is
// gone and the checkpoints before are untouched.
enum status checkpoint_write(const char *checkpoints_folder,
                             const struct checkpoint_contents *contents) MUST_CHECK;
// The program's version for manifests; a static string. "unknown" until set.
void checkpoint_set_version(const char *version);

// Keeps the `keep` newest of the checkpoints up to `step` and removes the older ones; keep 0 removes none.
enum status checkpoint_prune(const char *checkpoints_folder, int64_t keep, int64_t step) MUST_CHECK;
// Removes what a killed writer left (.tmp-*). For the start of a run, under its lock. An absent folder is
// fine.
enum status checkpoint_remove_stale(const char *checkpoints_folder) MUST_CHECK;
// For a run that goes on from `step` although later checkpoints exist (damaged, or an earlier one was asked
// for): renames those to set-aside-step-N and says so, so that they are not taken for this run's newest.
enum status checkpoint_set_aside_later(const char *checkpoints_folder, int64_t step) MUST_CHECK;

// ---- reading

// An opened checkpoint: everything in it was checked. Members are read-only for users.
struct checkpoint {
    char *path; // of the folder
    int64_t step, tokens;
    struct config config; // as resolved when it was written
    struct params params; // the table that its model sizes give
    enum dtype compute;
    char *version;    // of the program that wrote it
    char *optimizer;  // "adamw", "sgd", ...
    int n_kinds;      // as in checkpoint_contents
    bool has_factors; //
    int world;        // ranks that wrote it
    enum partition_kind partition;
    struct loss_scale loss_scale;
    struct data_record data;       // without orders in checkpoints of earlier versions
    char *tokenizer;               // "bytes", the path of the copy in the folder, or NULL
    struct checkpoint_file *files; // those of the ranks first
    int n_files;
    struct checkpoint_layout layout;
    struct checkpoint_files *open; // the few that are open
};

// Opens one checkpoint folder. STATUS_INVALID names the file and what is wrong with it: absent, not JSON, of
// the wrong type or out of bounds, another size than the manifest says, another checksum. STATUS_FAILED: it
// could not be read; or, with `comm`, a rank sees another manifest than rank 0 or none. Each data file is
// read through once; with `comm` all ranks open together, each verifies its share of the files, and all get
// the same answer. A failure is not reported as the end of the job: a caller that gives up calls comm_agree.
// comm NULL: this process alone.
enum status checkpoint_open(struct comm *comm, const char *folder, struct checkpoint **out) MUST_CHECK;
// The newest good checkpoint of RUN/checkpoints: a damaged one is warned about and the one before it is
// taken. *out is NULL when there are none (or no such folder). STATUS_INVALID when all are damaged;
// STATUS_FAILED when one cannot be read, or a rank finds checkpoints where rank 0 finds none.
enum status checkpoint_open_newest(struct comm *comm, const char *checkpoints_folder,
                                   struct checkpoint **out) MUST_CHECK;
// path: a checkpoint folder, or a run folder (its newest good one). STATUS_INVALID when it is neither.
enum status checkpoint_open_path(struct comm *comm, const char *path, struct checkpoint **out) MUST_CHECK;
// STATUS_INVALID when the folder holds a checkpoint, for checkpoint.resume "never".
enum status checkpoint_require_none(struct comm *comm, const char *checkpoints_folder) MUST_CHECK;
void checkpoint_close(struct checkpoint *checkpoint); // NULL is fine

// STATUS_INVALID "checkpoint of another model" with both sizes, when the table differs.
enum status checkpoint_check_model(const struct checkpoint *checkpoint,
                                   const struct params *params) MUST_CHECK;
// Fp32 values of elements [begin, end) of a unit, whichever ranks wrote them.
enum status checkpoint_read_span(const struct checkpoint *checkpoint, enum checkpoint_kind kind, int unit,
                                 size_t begin, size_t end, float *out) MUST_CHECK;

// ---- folders

// The steps of the step-N folders, ascending: names that checkpoint_path gives, no others. An absent folder
// has none. STATUS_FAILED when it cannot be listed. Free with free().
enum status checkpoint_list(const char *checkpoints_folder, int64_t **steps, int *n_steps) MUST_CHECK;
// "FOLDER/step-00000123" in a fresh string, or NULL (recorded).
char *checkpoint_path(const char *checkpoints_folder, int64_t step);
// Whether the folder holds a manifest.json; whether it holds step-N folders. True also when the folder cannot
// be examined: opening it then reports why.
bool checkpoint_is_folder(const char *path);
bool checkpoint_holds_steps(const char *path);

#endif
