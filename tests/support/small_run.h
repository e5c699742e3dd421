// What tests of checkpoints save: a config, its tiny model, and its partition among ranks. Header only, like
// everything that tests share.
#ifndef ZERO_TESTS_SMALL_RUN_H
#define ZERO_TESTS_SMALL_RUN_H

#include "options/config.h"
#include "tests/support/temporary.h"
#include "zero/comm/comm.h"
#include "zero/partition/partition.h"

// partition: even, among `world` ranks. alone: [out] a communicator of this process. Returns false if
// anything fails.
static inline bool small_run_init(struct temporary *temporary, struct config *config, struct params *params,
                                  struct partition *partition, int world, struct comm **alone) {
    static const char json[] =
        "{\"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"vocab_size\": 31, "
        "\"n_positions\": 8}}";
    bool opened =
        temporary_init(temporary) && config_parse(config, json, sizeof json - 1, "c.json") == STATUS_OK &&
        config_resolve(config, 1) == STATUS_OK &&
        params_init(params,
                    &(struct gpt_config){
                        .n_layer = 2, .n_head = 2, .n_embd = 8, .vocab_size = 31, .n_positions = 8}) ==
            STATUS_OK;
    *alone = comm_open_self();
    if (opened)
        partition_init(partition, params, PARTITION_EVEN, world);
    return opened;
}

static inline bool small_run_free(struct temporary *temporary, struct config *config, struct params *params,
                                  struct partition *partition, struct comm *alone) {
    config_free(config);
    params_free(params);
    partition_free(partition);
    return comm_close(alone, STATUS_OK) == STATUS_OK && temporary_free(temporary);
}

#endif
