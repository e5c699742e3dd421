// The table of optimizers, and which tensors each of them updates. A group is a set of tensors with the same
// rule, learning rate and weight decay (like a parameter group of torch.optim). Sizing, the update and plans
// use these tables. Three other places ask which optimizer a run has: options/rules.c, for options that
// exclude each other; trainer/checkpoints.c, for rules that correct the bias of moments;
// zero/stages/model_states.c, for m of schedule-free AdamW, which starts at the weights. CONTRIBUTING.md has
// the steps to add an optimizer.
#ifndef ZERO_ZERO_OPTIMIZER_RULES_OPTIMIZER_GROUPS_H
#define ZERO_ZERO_OPTIMIZER_RULES_OPTIMIZER_GROUPS_H

#include "kernels/ops.h"
#include "model/params.h"
#include "options/config.h"

// Elements of one group are updated with the same constants: update_plan.constants[group].
struct optimizer_group {
    bool is_frozen;           // the tensors are not updated, and are left out of the gradient norm
    enum optimizer_rule rule; // OPTIMIZER_MUON: zero/optimizer/muon.h
    int n_moments;            // moments per element: 0 (SGD without momentum), 1 (m) or 2 (m and v)
    double lr_scale;          // factor on the schedule's learning rate
    double weight_decay;
};
// True if each element is updated separately, by optimizer_step or optimizer_spans.
static inline bool optimizer_group_is_elementwise(const struct optimizer_group *group) {
    return !group->is_frozen && group->rule != OPTIMIZER_MUON;
}
// True for schedule-free AdamW. Its average of the weights needs no array: it is computed from the weights
// and from z, which is stored in place of m (zero/optimizer/averaging.h).
static inline bool optimizer_averages(const struct config *config) {
    return config->optimizer.type == CONFIG_OPTIMIZER_SCHEDULEFREE_ADAMW;
}

struct optimizer_groups {
    struct optimizer_group groups[OPTIMIZER_GROUPS];
    int n;
    bool has_muon; // some tensor is updated by Muon
    int n_moments; // moments per element with optimizer.type; with Muon those of AdamW, which has more
    unsigned char *of_param;     // (n_params) index in `groups` of each tensor's group
    unsigned char *n_moments_of; // (n_params) number of moments of each tensor
    signed char *entry_of; // (n_params) index in optimizer.groups of each tensor's entry; -1: it has none
};

// Assigns each tensor to a group. STATUS_INVALID: in optimizer.groups a pattern matches no tensor or only
// some parts of a fused tensor, an entry applies to no tensor, the last entry sets nothing, all tensors are
// frozen, or there would be more than OPTIMIZER_GROUPS groups. Call optimizer_groups_free also after a
// failure.
enum status optimizer_groups_init(struct optimizer_groups *groups, const struct config *config,
                                  const struct params *params) MUST_CHECK;
void optimizer_groups_free(struct optimizer_groups *groups);
// Sets is_frozen of the tensors that optimizer.groups freezes (struct param). Call it once, before anything
// is planned or allocated for the run. Fails as optimizer_groups_init does.
enum status optimizer_groups_freeze(const struct config *config, struct params *params) MUST_CHECK;

const struct optimizer_group *optimizer_group_of(const struct optimizer_groups *groups, int param);
// True if Muon updates the tensor.
bool optimizer_groups_orthogonalize(const struct optimizer_groups *groups, int param);
// True if a tensor's m (moment 1) or v (2), written under `was`, has the same meaning under `is`: the
// tensor has it under both, and its rule has not changed. For SGD m is a sum of gradients, for
// Adam a mean.
bool optimizer_groups_keep(const struct optimizer_groups *was, const struct optimizer_groups *is, int param,
                           int moment);

// Appends a line for each entry of optimizer.groups, and one for all other tensors: how many tensors and
// parameters, and how they are updated.
void optimizer_groups_print(const struct optimizer_groups *groups, const struct config *config,
                            const struct params *params, struct text *out);

// Returns the arguments of an optimizer step for a group, except those that differ by span.
struct optimizer_step_args optimizer_group_step(const struct config *config,
                                                const struct optimizer_group *group, int64_t step, double lr);

#endif
