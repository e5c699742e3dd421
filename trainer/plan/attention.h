// Chooses the kernel that computes attention on a GPU in the 16-bit types: by the option `attention`, by the
// choice of the resumed run, or by a rule.
#ifndef ZERO_TRAINER_PLAN_ATTENTION_H
#define ZERO_TRAINER_PLAN_ATTENTION_H

#include "kernels/ops.h"
#include "model/params.h"
#include "options/config.h"

struct attention_choice {
    enum config_attention kernel; // AUTO: there is no choice, as for fp32 and on CPUs
    struct cudnn_support cudnn;   // with FLASH, `reason` says why not cuDNN; "" if the user asked for flash
};

// Chooses for a device: one kernel for all blocks of a model, whatever their windows. CUDNN may be chosen
// where it is not usable, if the config or the checkpoint names it. A GPU of cuda_device_plan counts as
// having cuDNN.
//   recorded   the choice of the resumed run, or AUTO
enum status attention_choose(struct device *device, const struct config *config,
                             const struct gpt_config *model, enum dtype type, enum config_attention recorded,
                             struct attention_choice *out) MUST_CHECK;

// Chooses for plans of a new run, and names the choice: "flash", "cudnn", or "auto" for a planned GPU on
// which the run may use cuDNN. The workspace then has room for cuDNN.
enum status attention_plan(struct device *device, const struct config *config, const struct gpt_config *model,
                           enum dtype type, enum attention_kernel *out, const char **name) MUST_CHECK;

#endif
