// Every optimizer is the same run in every stage and partition (test_trainer_stages.c has the stages
// themselves). Run with 1, 2, 3 and 4 ranks.
#include "tests/mpi/training_runs.h"

#define STEPS 6

// Trains in every stage with these overrides; returns whether the loss has fallen, and the runs have an
// average if they should (true on ranks other than 0).
static bool learns_in_every_stage(enum partition_kind partition, const char *overrides) {
    struct run_outcome first = {0};
    for (int stage = 0; stage <= 3; stage++)
        expect_same(&first,
                    train(comm,
                          "train.gradient_accumulation_steps=1 %s train.max_steps=%d "
                          "train.train_batch_size=12 zero_optimization.stage=%d "
                          "zero_optimization.partition=%s zero_optimization.overlap_comm=%s",
                          overrides, STEPS, stage, partition_name(partition), stage % 2 ? "true" : "false"),
                    overrides);
    const bool learns = comm->rank > 0 || (first.losses[STEPS - 1] < first.losses[0] &&
                                           first.has_average == (strstr(overrides, "train.ema") != NULL));
    outcome_free(&first);
    return learns;
}

static void learn_in_every_partition(const char *const variants[N_PARTITIONS]) {
    for (int partition = 0; partition < N_PARTITIONS; partition++)
        together_true(comm, learns_in_every_stage((enum partition_kind)partition, variants[partition]));
}

// Every optimizer and state dtype. Quantization blocks of int8 states never cross spans, in any partition.
static void test_optimizers(void **state) {
    (void)state;
    static const char *const variants[] = {
        "optimizer.type=lion", "optimizer.type=adam optimizer.state_dtype=bf16",
        "optimizer.type=sgd optimizer.state_dtype=int8", "optimizer.type=adamw optimizer.state_dtype=int8"};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        char overrides[128];
        snprintf(overrides, sizeof overrides, "%s precision.compute=bf16", variants[i]);
        together_true(comm, learns_in_every_stage(i % 2 ? PARTITION_TENSOR : PARTITION_EVEN, overrides));
    }
}

// Muon: each matrix is orthogonalized by one rank, from the same bits in every stage, whatever the partition
// sends. The momentum in every dtype.
static void test_muon(void **state) {
    (void)state;
    static const char *const variants[N_PARTITIONS] = {
        "optimizer.type=muon precision.compute=bf16",
        "optimizer.type=muon precision.compute=fp32 optimizer.state_dtype=int8",
        ("optimizer.type=muon precision.compute=fp16 optimizer.state_dtype=bf16 optimizer.muon_scale=jordan "
         "optimizer.adamw_lr=0.002"),
    };
    learn_in_every_partition(variants);
}

// Groups of tensors with rates and decays of their own, or frozen: with partition layer a rank may own frozen
// tensors only.
static void test_groups(void **state) {
    (void)state;
    static const char *const variants[N_PARTITIONS] = {
        "precision.compute=bf16 optimizer.groups=[{\"match\":\"h.0.attn.*\",\"freeze\":true},"
        "{\"match\":[\"*.bias\",\"*ln_*\"],\"lr\":0.004,\"weight_decay\":0.2}]",
        "optimizer.type=lion optimizer.groups=[{\"match\":\"w*\",\"freeze\":true},"
        "{\"match\":[\"h.0.*\",\"ln_f.*\"],\"freeze\":true},{\"match\":\"*.bias\",\"lr\":0.004}]",
        "optimizer.type=muon precision.compute=fp16 fp16.initial_scale_power=26 optimizer.state_dtype=int8 "
        "optimizer.groups=[{\"match\":\"h.?.mlp.c_fc.*\",\"freeze\":true},"
        "{\"match\":\"h.0.attn.*\",\"type\":\"adamw\",\"lr\":0.002}]",
    };
    learn_in_every_partition(variants);
}

// Backward ends above the first layers, at the final norm, or at an untied lm_head alone; units in the middle
// are frozen whole or in part. With micro-batches, small buckets, and everything that is recomputed. Bytes
// sent and memory are as planned (expect_same).
static void test_frozen(void **state) {
    (void)state;
#define FREEZE(list) "optimizer.groups=[{\"match\":[" list "],\"freeze\":true}] "
#define SEVERAL      "train.gradient_accumulation_steps=%d zero_optimization.reduce_every_micro_batch=true "
#define FIRST_LAYER  FREEZE("\"wte\",\"wpe\",\"h.0.*\"")
#define SMALL_BUCKETS                                                                                        \
    "zero_optimization.reduce_bucket_size=5001 zero_optimization.allgather_bucket_size=3001 "
#define NONE_PERSISTENT "zero_optimization.stage3_param_persistence_threshold=0 "
    static const char *const lists[][N_PARTITIONS] = {
        {FIRST_LAYER "precision.compute=bf16", FIRST_LAYER "recompute=block optimizer.type=muon",
         FIRST_LAYER SMALL_BUCKETS "precision.compute=fp16 train.ema.type=exponential"},
        {FREEZE("\"h.0\"") "recompute=attention",
         FREEZE("\"h.0\",\"*.bias\"") NONE_PERSISTENT "precision.compute=bf16",
         FREEZE("\"*attn*\",\"*.bias\"") SMALL_BUCKETS NONE_PERSISTENT},
        {FREEZE("\"w*\",\"h\"") "optimizer.type=schedulefree_adamw",
         FREEZE("\"w*\",\"h\"") "precision.compute=bf16",
         FREEZE(
             "\"embed_tokens\",\"layers\",\"norm\"") "model.family=llama model.tied=false optimizer.lr=0.02"},
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int partition = 0; partition < N_PARTITIONS; partition++) {
            const int n_accumulated = 12 % (2 * comm->world) == 0 && (i + (size_t)partition) % 2 == 0 ? 2 : 1;
            char overrides[512], several[128];
            snprintf(several, sizeof several, SEVERAL, n_accumulated);
            snprintf(overrides, sizeof overrides, "%s%s", several, lists[i][partition]);
            together_true(comm, learns_in_every_stage((enum partition_kind)partition, overrides));
        }
}

// Schedule-free AdamW: weights in the place of the first moment. With warm-up, frozen tensors, and steps that
// are skipped (fp16).
static void test_schedule_free(void **state) {
    (void)state;
    static const char *const variants[N_PARTITIONS] = {
        "optimizer.type=schedulefree_adamw precision.compute=fp32 scheduler.warmup_steps=3",
        "optimizer.type=schedulefree_adamw precision.compute=bf16 "
        "optimizer.groups=[{\"match\":\"h.0.attn.*\",\"freeze\":true},{\"match\":\"wpe*\",\"lr\":0.004}]",
        "optimizer.type=schedulefree_adamw precision.compute=fp16 fp16.initial_scale_power=24 "
        "fp16.hysteresis=1",
    };
    learn_in_every_partition(variants);
}

// train.ema, over moments of every dtype: the average has the bits of one run in all of them.
static void test_averages(void **state) {
    (void)state;
    static const char *const of_dtypes[N_PARTITIONS] = {
        "train.ema.type=exponential train.ema.decay=0.5 precision.compute=fp32",
        ("train.ema.type=exponential train.ema.decay=0.5 precision.compute=fp16 fp16.initial_scale_power=24 "
         "fp16.hysteresis=1"),
        "train.ema.type=exponential train.ema.decay=0.5 precision.compute=bf16 optimizer.state_dtype=int8",
    };
    static const char *const of_rules[N_PARTITIONS] = {
        "train.ema.type=exponential precision.compute=bf16 optimizer.type=lion",
        ("train.ema.type=exponential precision.compute=fp32 optimizer.state_dtype=bf16 "
         "optimizer.groups=[{\"match\":\"h.0.attn.*\",\"freeze\":true}]"),
        "train.ema.type=exponential precision.compute=fp32 optimizer.type=muon",
    };
    learn_in_every_partition(of_dtypes);
    learn_in_every_partition(of_rules);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers),    cmocka_unit_test(test_muon),
        cmocka_unit_test(test_groups),        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_schedule_free), cmocka_unit_test(test_averages),
    };
    return runs_main(tests);
}
