// A trained model ready for use: found, loaded onto a device, with its tokenizer. For the commands that train
// nothing.
#ifndef ZERO_INFER_SESSION_H
#define ZERO_INFER_SESSION_H

#include "data/tokenizer.h"
#include "infer/weights.h"
#include "kernels/memory.h"
#include "model/gpt.h"
#include "model/unsharded.h"

struct session {
    struct weights weights; // open until session_load
    struct params params;
    struct device *device;
    struct stream stream;
    enum dtype type;
    struct memory memory;
    struct tokenizer *tokenizer; // NULL when none was found or given
    struct unsharded unsharded;
    struct unit_hooks hooks; // of `unsharded`
    char *span;              // all units, in `type`
    int span_region;
};

struct session_options {
    const char *path;      // run, checkpoint or Hugging Face folder
    const char *device;    // as the option `device`
    int64_t threads;       // as run.threads
    const char *tokenizer; // "" or NULL: the checkpoint's own
};

// Opens everything but the weights' memory. The caller then adds its own regions (gpt_new, generator_new) to
// session->memory.table, and calls session_load, which allocates, and binds afterwards.
enum status session_open(struct session *session, const struct session_options *options) MUST_CHECK;
enum status session_load(struct session *session) MUST_CHECK;
void session_close(struct session *session);

#endif
