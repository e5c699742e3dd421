// Which kernel computes attention on a GPU in the 16-bit types: what the option `attention` names, what the
// resumed run decided on, or by a rule.
#ifndef ZERO_TRAINER_PLAN_ATTENTION_H
#define ZERO_TRAINER_PLAN_ATTENTION_H

#include "kernels/ops.h"
#include "model/params.h"
#include "options/config.h"

struct attention_choice {
    enum config_attention kernel; // AUTO: nothing to choose, as for fp32 and on CPUs
    struct cudnn_support cudnn;   // with FLASH, `reason` says why not cuDNN; "" where flash was asked for
};

// Chooses for a device: one kernel for all blocks of a model, whatever their windows. CUDNN may be chosen
// where it is not usable, if the config or the checkpoint names it. A GPU of cuda_device_plan is taken to
// have cuDNN.
//   recorded   what the resumed run decided on, or AUTO
enum status attention_choose(struct device *device, const struct config *config,
                             const struct gpt_config *model, enum dtype type, enum config_attention recorded,
                             struct attention_choice *out) MUST_CHECK;

// Chooses for plans of a new run, and names the choice: "flash", "cudnn", or "auto" for a planned GPU
// where the run may take cuDNN; there the workspace has room for it.
enum status attention_plan(struct device *device, const struct config *config, const struct gpt_config *model,
                           enum dtype type, enum attention_kernel *out, const char **name) MUST_CHECK;

#endif
