// The one place where config options become what the stages work with.
#include "zero/partition/stage.h"

enum gpt_recompute stage_recompute(const struct config *config) {
    static const enum gpt_recompute levels[] = {[CONFIG_RECOMPUTE_NONE] = RECOMPUTE_NONE,
                                                [CONFIG_RECOMPUTE_ELEMENTWISE] = RECOMPUTE_ELEMENTWISE,
                                                [CONFIG_RECOMPUTE_ATTENTION] = RECOMPUTE_ATTENTION,
                                                [CONFIG_RECOMPUTE_BLOCK] = RECOMPUTE_BLOCK};
    return levels[config->top.recompute];
}

enum partition_kind stage_partition(const struct config *config) {
    static const enum partition_kind kinds[] = {[CONFIG_PARTITION_EVEN] = PARTITION_EVEN,
                                                [CONFIG_PARTITION_LAYER] = PARTITION_LAYER,
                                                [CONFIG_PARTITION_TENSOR] = PARTITION_TENSOR};
    return kinds[config->zero_optimization.partition];
}

void stage_options_read(const struct config *config, enum region_place place, struct stage_options *out) {
    static const enum dtype comm_dtypes[] = {[CONFIG_COMMUNICATION_DTYPE_FP32] = DTYPE_F32,
                                             [CONFIG_COMMUNICATION_DTYPE_BF16] = DTYPE_BF16,
                                             [CONFIG_COMMUNICATION_DTYPE_FP16] = DTYPE_F16};
    bool apart = place == REGION_DEVICE; // otherwise the host has everything already
    bool on_host = apart && config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU;
    *out = (struct stage_options){
        .stage = (int)config->zero_optimization.stage,
        .partition = stage_partition(config),
        .gradient_comm_dtype = comm_dtypes[config->top.communication_data_type],
        .reduce_bucket = (size_t)config->zero_optimization.reduce_bucket_size,
        .allgather_bucket = (size_t)config->zero_optimization.allgather_bucket_size,
        .prefetch_bucket = (size_t)config->zero_optimization.stage3_prefetch_bucket_size,
        .persistence_threshold = (size_t)config->zero_optimization.stage3_param_persistence_threshold,
        .overlap = config->zero_optimization.overlap_comm,
        .reduce_every_micro_batch = config->zero_optimization.reduce_every_micro_batch,
        .offload_optimizer = on_host,
        .offload_ratio = config->zero_optimization.offload_optimizer.ratio,
        // Other stages keep parameters on the device. Plans show their memory without the option.
        .offload_param = apart && config->zero_optimization.stage == 3 &&
                         config->zero_optimization.offload_param.device == CONFIG_OFFLOAD_CPU};
}
