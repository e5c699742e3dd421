// A table: the word, and the advice that ends the message about it.
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
    {"nvme_path", "what is offloaded waits in the host's memory, device=cpu; there is no NVMe tier"},
    {"buffer_count", "buffers are planned, as ./train plan shows; leave it out"},
    {"buffer_size", "buffers are planned, as ./train plan shows; leave it out"},
    {"max_in_cpu",
     "with offload_param.device=cpu all of a rank's parameters are in host memory; leave it out"},
    {"fast_init", "leave it out"},
    {"super_offload", "here it is zero_optimization.offload_optimizer.speculative=true"},
    {"zero_force_ds_cpu_optimizer",
     "offload_optimizer.device=cpu brings its own optimizer for every type; leave it out"},
    {"activation_checkpointing",
     "here it is recompute=block or recompute=attention, and offload_activations=cpu"},
    {"cpu_checkpointing", "here it is offload_activations=cpu, with recompute=block"},
    {"partition_activations", "activations are each rank's own; recompute=block makes them few"},
    {"contiguous_gradients", "gradients always are contiguous, unit by unit; leave it out"},
    {"reduce_scatter", "gradients are always reduced by a reduce-scatter; leave it out"},
    {"allgather_partitions", "parameters are always gathered by all-gathers; leave it out"},
    {"stage3_max_reuse_distance", "at most two units are whole at a time; leave it out"},
    {"stage3_gather_16bit_weights_on_model_save", "any number of ranks reads any checkpoint; leave it out"},
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
