// What a run will use and send, said before it takes anything: the same code that lays a run out, for any
// rank of any number of ranks, without memory and without others.
//
// Sources: model states 16 P bytes and traffic 2 P or 3 P elements (N - 1) / N as in ZeRO (arXiv 1910.02054,
// sections 5 and 7), with the sizes of this program's types and the exact shares of a partition.
#ifndef ZERO_ZERO_PLAN_H
#define ZERO_ZERO_PLAN_H

#include "model/generate.h"
#include "zero/optimizer.h"

// The parts of a run that have memory.
struct parts {
    struct state state;
    struct optimizer optimizer;
    struct gpt *gpt;
    struct generator *generator; // NULL without samples on this rank
};

struct plan_request {
    const struct config *config; // resolved for `world`
    const struct params *params;
    enum dtype type; // compute type
    struct device *device;
    int rank, world, local_world;
};
// Makes the parts and adds all their regions to the table. Free with parts_free, also after a failure.
enum status parts_plan(struct parts *parts, const struct plan_request *request,
                       struct region_table *table) MUST_CHECK;
// host: as state_bind has it.
enum status parts_bind(struct parts *parts, const struct region_table *table, struct stream *stream,
                       struct comm *comm, struct device *host) MUST_CHECK;
void parts_free(struct parts *parts);

// What one rank sends in one step, evaluations and samples left out.
struct wire_plan {
    uint64_t bytes[N_COMM_OPERATIONS], calls[N_COMM_OPERATIONS];
};
void wire_plan_make(const struct state *state, int64_t n_micro_batches, struct wire_plan *out);
uint64_t wire_plan_bytes(const struct wire_plan *wire); // bulk calls, all together
uint64_t wire_plan_calls(const struct wire_plan *wire);

struct plan {
    size_t bytes[N_REGION_KINDS], total; // where the device has its memory
    size_t host;                         // beside that, on the host
    struct wire_plan wire;
};
enum status plan_make(const struct plan_request *request, struct plan *out) MUST_CHECK;

// A stage's plan for the rank that needs most memory, and how little another needs.
struct plan_stage {
    struct plan most;
    int rank;     // whose plan that is
    size_t least; // the smallest total of any rank; equal to most.total where all need the same
};
// Plans every stage, whatever stage and rank the request names. Takes as long as a few ranks' plans.
enum status plan_stages(const struct plan_request *request, struct plan_stage stages[N_STAGES]) MUST_CHECK;

// Says to the person what the run takes and sends.
void plan_print(const struct region_table *table, const struct wire_plan *wire, int world);
// Adds, for a person whose run does not fit into `available` bytes a rank, the settings that would: a higher
// stage, recomputation, more ranks; the batch stays.
enum status plan_advise(const struct plan_request *request, uint64_t available, struct text *out) MUST_CHECK;

#endif
