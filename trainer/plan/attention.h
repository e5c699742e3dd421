// Chooses the kernel that computes attention on a GPU in the 16-bit types: by the option `attention`, by the
// choice of the resumed run, or by a rule.
#ifndef ZERO_TRAINER_PLAN_ATTENTION_H
#define ZERO_TRAINER_PLAN_ATTENTION_H

#include "kernels/ops.h"
#include "model/params.h"
#include "options/config.h"

struct attention_choice {
    enum config_attention kernel; // AUTO: no choice, because `type` is fp32 or the device is the CPU
    // With FLASH, cudnn.reason says why cuDNN is not used; "" if cuDNN was not considered.
    struct cudnn_support cudnn;
};

// Chooses a kernel for a device: one for all blocks of a model, whatever their windows. If the config or the
// checkpoint names CUDNN, it is chosen even where it is not usable (cudnn.usable). data.mask_documents always
// gives FLASH. A GPU of cuda_device_plan counts as having cuDNN.
//   recorded   the choice of the resumed run, or AUTO
enum status attention_choose(struct device *device, const struct config *config,
                             const struct gpt_config *model, enum dtype type, enum config_attention recorded,
                             struct attention_choice *out) MUST_CHECK;

// Chooses the kernel for plans of a new run.
//   name   [out] "flash", "cudnn" or "auto". "auto": the GPU is not in this machine, and a run on it may use
//          cuDNN, so the workspace has room for cuDNN
enum status attention_plan(struct device *device, const struct config *config, const struct gpt_config *model,
                           enum dtype type, enum attention_kernel *out, const char **name) MUST_CHECK;

#endif
