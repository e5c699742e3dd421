// DeepSpeed's names and the advice for each.
#include "configs/deepspeed.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name, *advice;
} words[] = {
    {"cpu_offload", "here it is zero_optimization.offload_optimizer.device=cpu"},
    {"cpu_offload_params", "here it is zero_optimization.offload_param.device=cpu"},
    {"cpu_offload_use_pin_memory",
     "host memory that a GPU copies to and from is always pinned; leave it out"},
    {"pin_memory", "host memory that a GPU copies to and from is always pinned; leave it out"},
    {"nvme_path", "offloading goes to host memory (device=cpu); NVMe is not supported"},
    {"buffer_count", "buffers are sized by the plan (see ./train plan); leave it out"},
    {"buffer_size", "buffers are sized by the plan (see ./train plan); leave it out"},
    {"max_in_cpu",
     "with offload_param.device=cpu all of a rank's parameters are in host memory; leave it out"},
    {"fast_init", "it is for offloading to NVMe, which is not supported; leave it out"},
    {"super_offload", "here it is zero_optimization.offload_optimizer.speculative=true"},
    {"zero_force_ds_cpu_optimizer",
     "offload_optimizer.device=cpu works with every optimizer.type; leave it out"},
    {"activation_checkpointing",
     "here it is recompute=block or recompute=attention, and offload_activations=cpu"},
    {"cpu_checkpointing", "here it is offload_activations=cpu, with recompute=block"},
    {"partition_activations", "every rank keeps only its own activations; recompute=block reduces them"},
    {"contiguous_gradients", "gradients are always contiguous within a unit; leave it out"},
    {"reduce_scatter", "gradients are always reduced by a reduce-scatter; leave it out"},
    {"allgather_partitions", "parameters are always gathered by an all-gather; leave it out"},
    {"stage3_max_reuse_distance", "at most two units are gathered at a time; leave it out"},
    {"stage3_gather_16bit_weights_on_model_save",
     "any number of ranks can load any checkpoint; leave it out"},
    {"train_micro_batch_size_per_gpu", "here it is train.micro_batch_size"},
    {"steps_per_print", "here it is run.log_every"},
    {"enabled", "here precision.compute is \"bf16\", \"fp16\", \"fp32\" or \"auto\""},
    {"bf16", "here it is precision.compute=bf16"},
};

const char *deepspeed_advice(const char *name) {
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i].name, name) == 0)
            return words[i].advice;
    return NULL;
}
