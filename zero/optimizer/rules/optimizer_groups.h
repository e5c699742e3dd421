// The table of optimizers, and which tensors each of them updates. A group is a set of tensors with the same
// rule, learning rate and weight decay (like a parameter group of torch.optim). Sizing, the update and plans
// use these tables. Three other places ask which optimizer a run has: options/rules.c, for options that
// exclude each other; trainer/checkpoints.c, for rules that correct the bias of moments;
// zero/stages/model_states.c, for moments that are a point like the weights. CONTRIBUTING.md has the steps to
// add an optimizer.
#ifndef ZERO_ZERO_OPTIMIZER_RULES_OPTIMIZER_GROUPS_H
#define ZERO_ZERO_OPTIMIZER_RULES_OPTIMIZER_GROUPS_H

#include "kernels/ops.h"
#include "model/params.h"
#include "options/config.h"

// Elements of one group are updated with the same constants: update_plan.constants[group].
struct optimizer_group {
    bool is_frozen;           // the tensors do not change, and are left out of the gradient norm
    enum optimizer_rule rule; // OPTIMIZER_MUON: zero/optimizer/muon.h
    int n_moments;            // per element: 0, 1 (m), 2 (m and v); SGD without momentum has 0
    double lr_scale;          // factor on the schedule's learning rate
    double weight_decay;
};
// True if each element is updated separately: optimizer_step, optimizer_spans.
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
    bool has_muon;               // some tensor is updated by Muon
    int n_moments;               // the most moments that a group of this optimizer can have
    unsigned char *of_param;     // (n_params) group of each tensor
    unsigned char *n_moments_of; // (n_params) number of moments of each tensor
    signed char *entry_of;       // (n_params) entry of optimizer.groups of each tensor, or -1
};

// Call optimizer_groups_free also after a failure. STATUS_INVALID: a pattern of optimizer.groups matches no
// tensor, an entry applies to no tensor, all tensors are frozen, or there are more than OPTIMIZER_GROUPS
// groups.
enum status optimizer_groups_init(struct optimizer_groups *groups, const struct config *config,
                                  const struct params *params) MUST_CHECK;
void optimizer_groups_free(struct optimizer_groups *groups);
// Marks the tensors of a run that optimizer.groups freezes (struct param). Call once, before anything is
// planned or made for the run. Fails as optimizer_groups_init does.
enum status optimizer_groups_freeze(const struct config *config, struct params *params) MUST_CHECK;

const struct optimizer_group *optimizer_group_of(const struct optimizer_groups *groups, int param);
bool optimizer_groups_orthogonalize(const struct optimizer_groups *groups, int param); // Muon updates it
// Whether a tensor's m (moment 1) or v (2), written under `was`, has the same meaning under `is`: the tensor
// had it, and its rule has not changed. Muon's m is a sum of gradients, Adam's a mean.
bool optimizer_groups_keep(const struct optimizer_groups *was, const struct optimizer_groups *is, int param,
                           int moment);

// Appends a line for each entry of optimizer.groups, and one for all other tensors: how many tensors and
// parameters, and how they are updated.
void optimizer_groups_print(const struct optimizer_groups *groups, const struct config *config,
                            const struct params *params, struct text *out);

// The optimizer's arguments for a step of a group, except those that differ by span.
struct optimizer_step_args optimizer_group_step(const struct config *config,
                                                const struct optimizer_group *group, int64_t step, double lr);

#endif
