// --data of `train eval`: token shards, and texts that are tokenized with the model's tokenizer.
#ifndef ZERO_CLI_EVAL_DATA_H
#define ZERO_CLI_EVAL_DATA_H

#include "data/shard.h"
#include "infer/session.h"

struct eval_file {
    const char *path; // the file list's
    bool is_shard;
    struct shard shard;
    struct token_list text; // of a text: end-of-text before each document, then its tokens
    size_t n_tokens;
};
struct eval_data {
    struct eval_file *files;
    int n;
};

// Opens the files. A model without a tokenizer gets that of the shards, which bits per byte need.
//   end_of_text   "<|endoftext|>" in a text separates documents
// STATUS_INVALID: a file is neither, a shard's tokenizer is not the model's, a text without a tokenizer, or
// no token to predict in all files. Free the data also after a failure.
enum status eval_data_open(struct eval_data *data, struct session *session, const struct file_list *files,
                           bool end_of_text) MUST_CHECK;
void eval_data_free(struct eval_data *data);
// Sequences of T tokens in the longest file.
size_t eval_data_longest(const struct eval_data *data, int T);

// Sums over the predicted tokens: all but the first of each file.
struct eval_totals {
    double loss;           // nats
    int64_t tokens, bytes; // bytes of the text that they encode; 0 without a tokenizer
};

// Evaluates all files in consecutive windows of T tokens, B per batch, with a gpt of that size.
struct gpt;
enum status eval_data_run(struct eval_data *data, struct session *session, struct gpt *gpt, int B, int T,
                          struct eval_totals *totals) MUST_CHECK;
// Bytes of host memory that eval_data_run takes.
size_t eval_data_bytes(int B, int T);

#endif
