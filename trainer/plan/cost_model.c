// Computing, sending, the optimizer, and what is copied to and from the host, each by bytes or FLOPs over a
// nominal rate.
#include "trainer/plan/cost_model.h"

#include <math.h>

// ---- the nominal machine

// A GPU: about 40 % of an H100's peak, as llm.c reaches with GPT-2 and Megatron-LM reports (989 TFLOP/s in 16
// bits); its fp32 without tensor cores; three quarters of its memory's 3.35 TB/s. A core: what oneDNN's
// products reach on AVX-512 with bf16 (Zen 4, Sapphire Rapids).
#define GPU_FLOPS           4e14
#define GPU_FLOPS_FP32      4e13
#define GPU_MEMORY_RATE     2.5e12
#define GPU_UNIT_LAUNCHES_S 150e-6 // a unit's forward and backward: some 30 kernels, 5 us to launch each
#define CORE_FLOPS          2e11
#define CORE_FLOPS_FP32     1e11
#define CORE_UNIT_S         50e-6 // a unit's parallel regions

// A host: ZeRO-Offload's CPU-Adam updates 1e9 parameters in 0.22 s (arXiv 2101.06840), 28 bytes each. PCIe
// 4.0 x16 of a GPU of its own: 31.5 GB/s, less what its packets carry besides. Ranks exchange by MPI through
// host memory, as measured over shared memory with 128 MB a message.
#define HOST_MEMORY_RATE 1.27e11
#define PCIE_RATE        2.5e10
#define COPIES_HIDDEN    0.9
#define WIRE_RATE        3e9
#define WIRE_EXPOSED     0.5 // of what is sent while computing: about the half of a step lets it hide

// AdamW in fp32: reads gradient, weight and moments, writes the last three.
#define UPDATE_BYTES 28.0

// ---- a step

struct step_cost {
    const struct config *config;
    const struct gpt_config *model;
    bool on_gpu;
    double type_bytes, elements;  // of a parameter in the compute type; of all
    double owned;                 // elements that the rank updates
    double micro_batches, tokens; // of a step; of one of them
    double memory_rate;
};

// A forward pass over the blocks, for a token: two FLOPs a weight, and attention over half of the positions.
static double block_flops(const struct step_cost *work, bool attention_half_only) {
    double C = work->model->n_embd, L = work->model->n_layer, T = (double)work->config->train.seq_len;
    double weights = (attention_half_only ? 4 : 12) * C * C;
    return L * (2 * weights + 2 * T * C);
}

// What backward computes again, for a token. Elements alone take no time worth a choice.
static double recomputed_flops(const struct step_cost *work) {
    enum config_recompute recompute = work->config->top.recompute;
    return recompute == CONFIG_RECOMPUTE_BLOCK       ? block_flops(work, false)
           : recompute == CONFIG_RECOMPUTE_ATTENTION ? block_flops(work, true)
                                                     : 0;
}

// Backward is two forward passes, and what it computes again a part of one. A micro-batch reads the weights
// twice, and reads and writes their gradients, however small it is; and somebody has to launch all of it.
static double micro_batch_s(const struct step_cost *work, double flops_per_s) {
    double head = 2.0 * work->model->n_embd * work->model->vocab_size, blocks = block_flops(work, false);
    double again = recomputed_flops(work);
    double compute_s = work->tokens * (3 * (blocks + head) + again) / flops_per_s;
    double weights_s = (2 * work->type_bytes + 8) * work->elements / work->memory_rate;
    double units = (work->model->n_layer + 2) * (1 + again / (3 * blocks));
    double launch_s = units * (work->on_gpu ? GPU_UNIT_LAUNCHES_S : CORE_UNIT_S);
    return work->on_gpu ? fmax(compute_s + weights_s, launch_s) : compute_s + weights_s + launch_s;
}

// The part of what the rank owns that the host updates.
static double on_host(const struct step_cost *work) {
    const struct config *config = work->config;
    bool offloads = work->on_gpu && config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU;
    return offloads ? config->zero_optimization.offload_optimizer.ratio * work->owned : 0;
}

// What is fetched and put away while computing, as far as that does not hide it: nine tenths at best. Stages
// 2 and 3 keep no gradients of the host's part on the device: each micro-batch sends its own, and all but the
// first fetch the sum so far.
static double exposed_copies_s(const struct step_cost *work, double compute_s) {
    const struct config *config = work->config;
    double bytes = 0;
    if (config->zero_optimization.offload_param.device == CONFIG_OFFLOAD_CPU)
        bytes += 2 * work->type_bytes * work->owned;
    if (config->top.offload_activations == CONFIG_OFFLOAD_CPU)
        bytes += 2 * work->type_bytes * work->model->n_layer * work->model->n_embd * work->tokens;
    if (config->zero_optimization.stage >= 2)
        bytes += 4 * on_host(work) * (2 - 1 / work->micro_batches);
    double copied_s = work->on_gpu ? bytes / PCIE_RATE : 0;
    return fmax((1 - COPIES_HIDDEN) * copied_s, copied_s - compute_s);
}

// The host's part goes on while its copies do; the ranks of a machine share its memory.
static double update_s(const struct step_cost *work, int local_world) {
    double host = on_host(work), host_s = UPDATE_BYTES * host * local_world / HOST_MEMORY_RATE;
    double copied = host * ((work->config->zero_optimization.stage < 2 ? 4 : 0) + work->type_bytes);
    return UPDATE_BYTES * (work->owned - host) / work->memory_rate + fmax(host_s, copied / PCIE_RATE);
}

double step_time_estimate(const struct engine_options *request, uint64_t comm_bytes) {
    const struct config *config = request->config;
    bool on_gpu = request->device->place == REGION_DEVICE, narrow = request->type != DTYPE_F32;
    int cores = request->device->n_threads;
    double owners = config->zero_optimization.stage == 0 ? 1 : request->world;
    const struct step_cost work = {
        .config = config,
        .model = &request->params->config,
        .on_gpu = on_gpu,
        .type_bytes = (double)dtype_size(request->type),
        .elements = (double)request->params->n_elements,
        .owned = (double)request->params->n_elements / owners,
        .micro_batches = (double)config->train.gradient_accumulation_steps,
        .tokens = (double)(config->train.micro_batch_size * config->train.seq_len),
        .memory_rate = on_gpu ? GPU_MEMORY_RATE : HOST_MEMORY_RATE / request->local_world,
    };
    double flops_per_s =
        on_gpu ? (narrow ? GPU_FLOPS : GPU_FLOPS_FP32) : cores * (narrow ? CORE_FLOPS : CORE_FLOPS_FP32);
    double compute_s = micro_batch_s(&work, flops_per_s);
    double comm_s =
        (double)comm_bytes / WIRE_RATE * (config->zero_optimization.overlap_comm ? WIRE_EXPOSED : 1);
    return work.micro_batches * (compute_s + exposed_copies_s(&work, compute_s)) + comm_s +
           update_s(&work, request->local_world);
}
