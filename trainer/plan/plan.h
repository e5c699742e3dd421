// What a run will use and send, said before it takes anything: the same code that lays a run out, for any
// rank of any number of ranks, without memory and without others.
//
// Sources: model states 16 P bytes and traffic 2 P or 3 P elements (N - 1) / N as in ZeRO (arXiv 1910.02054,
// sections 5 and 7), with the sizes of this program's types and the exact shares of a partition.
#ifndef ZERO_TRAINER_PLAN_PLAN_H
#define ZERO_TRAINER_PLAN_PLAN_H

#include "model/generate.h"
#include "zero/stages/optimizer.h"

// The parts of a run that have memory.
struct engine {
    struct model_states state;
    struct optimizer optimizer;
    struct gpt *gpt;
    struct generator *generator; // NULL without samples on this rank
    int profile_region;          // with run.profile
};

struct engine_options {
    const struct config *config; // resolved for `world`
    const struct params *params;
    enum dtype type; // compute type
    struct device *device;
    int rank, world, local_world;      // local_world: ranks on this machine
    const struct partition *partition; // of these params and ranks; NULL: to be made
};
// Host memory of the links between ranks (zero/comm), per rank.
size_t engine_links_bytes(const struct engine_options *request);
// Makes the parts and adds all their regions to the table. Free with engine_free, also after a failure.
enum status engine_plan(struct engine *parts, const struct engine_options *request,
                        struct region_table *table) MUST_CHECK;
// host: as model_states_bind has it.
enum status engine_bind(struct engine *parts, const struct region_table *table, struct stream *stream,
                        struct comm *comm, struct device *host) MUST_CHECK;
void engine_free(struct engine *parts);

// What one rank sends in one step, evaluations and samples left out.
struct comm_volume {
    uint64_t bytes[N_COMM_OPERATIONS], calls[N_COMM_OPERATIONS];
};
void comm_volume_make(const struct model_states *state, int64_t n_micro_batches, struct comm_volume *out);
uint64_t comm_volume_bytes(const struct comm_volume *volume); // all but broadcasts and control
uint64_t comm_volume_calls(const struct comm_volume *volume);

struct plan {
    size_t bytes[N_REGION_KINDS], total; // where the device has its memory
    size_t host;                         // beside that, on the host
    size_t taken[N_REGION_PLACES];       // of each place's memory, padding included
    struct comm_volume volume;
};
enum status plan_make(const struct engine_options *request, struct plan *out) MUST_CHECK;
// Its two halves, for who plans many settings; each adds to the plan. The states depend on stage, offload and
// which elements the rank owns; the model on micro-batch and recomputation, and on the rank and the stage
// only by whether the rank writes samples (engine_has_generator).
enum status plan_add_states(const struct engine_options *request, struct plan *plan) MUST_CHECK;
enum status plan_add_model(const struct engine_options *request, struct plan *plan) MUST_CHECK;
bool engine_has_generator(const struct engine_options *request);

// The ranks that are worth planning: rank 0, which may have samples to write, and of the others some of which
// one needs most, whatever the stage, and one least. Free *ranks with free().
enum status plan_ranks(const struct engine_options *request, int **ranks, int *n_ranks) MUST_CHECK;

// A stage's plan for the rank that needs most memory, and how little another needs.
struct plan_stage {
    struct plan most;
    int rank;     // whose plan that is
    size_t least; // the smallest total of any rank; equal to most.total where all need the same
};
// Plans every stage, whatever stage and rank the request names. Takes as long as a few ranks' plans.
enum status plan_stages(const struct engine_options *request, struct plan_stage stages[N_STAGES]) MUST_CHECK;

// Says to the person what the run takes and sends.
void plan_print(const struct region_table *table, const struct comm_volume *volume, int world);

#endif
