// Compute, communication, optimizer and copies to and from the host: bytes or FLOPs over a nominal rate.
#include "trainer/plan/cost_model.h"

#include <math.h>

#include "zero/partition/optimizer_groups.h"

// ---- the nominal machine

// GPU: an H100 at about 40 % of its peak of 989 TFLOP/s in 16 bits, which llm.c reaches with GPT-2 and
// Megatron-LM reports; fp32 without tensor cores; three quarters of 3.35 TB/s of memory bandwidth.
// CPU core: GEMM of oneDNN on AVX-512 with bf16 (Zen 4, Sapphire Rapids).
#define GPU_FLOPS       4e14
#define GPU_FLOPS_FP32  4e13
#define GPU_MEMORY_RATE 2.5e12
#define GPU_PRODUCT_S   15e-6 // with the operations around it: three kernels at 5 us per launch
#define CORE_FLOPS      2e11
#define CORE_FLOPS_FP32 1e11
#define CORE_PRODUCT_S  5e-6 // likewise: their calls of parallel_run

// Host memory: CPU-Adam of ZeRO-Offload updates 1e9 parameters in 0.22 s (arXiv 2101.06840), 28 bytes each.
// PCIe 4.0 x16 per GPU: 31.5 GB/s minus packet overhead. Communication: MPI through host memory, measured
// over shared memory with messages of 128 MB.
#define HOST_MEMORY_RATE 1.27e11
#define PCIE_RATE        2.5e10
#define COPIES_HIDDEN    0.9
#define COMM_RATE        3e9
#define COMM_EXPOSED     0.5 // with overlap_comm: about half of a step can hide communication

// Bytes per parameter of an AdamW update in fp32: read gradient, weight and two moments, write the last
// three.
#define UPDATE_BYTES 28.0

// ---- a step

struct step_cost {
    const struct config *config;
    const struct gpt_config *model;
    const struct step_work *work;
    bool on_gpu;
    double type_bytes, elements;  // bytes per parameter in the compute type; parameters of the model
    double owned;                 // parameters that the rank updates
    double micro_batches, tokens; // per step; per micro-batch
    double memory_rate;
};

// Seconds per micro-batch. However small it is, its weights are read twice, their gradients read and written,
// and its kernels launched.
static double micro_batch_s(const struct step_cost *work, double flops_per_s) {
    double compute_s = work->work->flops / flops_per_s;
    double weights_s = (2 * work->type_bytes + 8) * work->elements / work->memory_rate;
    double launch_s = work->work->products * (work->on_gpu ? GPU_PRODUCT_S : CORE_PRODUCT_S);
    return work->on_gpu ? fmax(compute_s + weights_s, launch_s) : compute_s + weights_s + launch_s;
}

// How many of the parameters that the rank owns are updated on the host.
static double on_host(const struct step_cost *work) {
    const struct config *config = work->config;
    bool offloads = work->on_gpu && config->zero_optimization.offload_optimizer.device == CONFIG_OFFLOAD_CPU;
    return offloads ? config->zero_optimization.offload_optimizer.ratio * work->owned : 0;
}

// Seconds of copies between host and device per micro-batch that compute does not hide; it hides nine tenths
// at best. Stages 2 and 3 keep no gradients of the offloaded span on the device: each micro-batch copies its
// own to the host, and each but the first copies the sum so far back.
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

// Seconds of the optimizer's update. Updates on the host overlap with their copies. The ranks of a machine
// share its memory bandwidth.
static double update_s(const struct step_cost *work, int local_world) {
    double host = on_host(work), host_s = UPDATE_BYTES * host * local_world / HOST_MEMORY_RATE;
    double copied = host * ((work->config->zero_optimization.stage < 2 ? 4 : 0) + work->type_bytes);
    return UPDATE_BYTES * (work->owned - host) / work->memory_rate + fmax(host_s, copied / PCIE_RATE);
}

static bool is_product(enum operation operation) {
    switch (operation) {
    case OP_linear_forward:
    case OP_linear_backward:
    case OP_qkv_forward:
    case OP_attention_forward:
    case OP_attention_backward:
        return true;
    default:
        return false;
    }
}

void step_work_count(const struct gpt_work *model, struct step_work *out) {
    out->flops = out->products = 0;
    for (int i = 0; i < model->n_rows; i++)
        if (is_product(model->rows[i].operation)) {
            out->flops += model->rows[i].cost.flops;
            out->products += (double)model->rows[i].calls;
        }
}

enum status update_flops_estimate(const struct engine_options *options, double *out) {
    const int strip = options->device->symmetric_strips[newton_schulz_type(options->type)];
    struct optimizer_groups groups;
    enum status status = optimizer_groups_init(&groups, options->config, options->params);
    *out = 0;
    for (int i = 0; i < options->params->n_params && status == STATUS_OK; i++) {
        struct matrix_shape shapes[PARAM_PARTS_MOST];
        int64_t first_row[PARAM_PARTS_MOST];
        if (optimizer_group_of(&groups, i)->traits.method != METHOD_MATRIX)
            continue;
        for (int part = muon_matrices(&options->params->params[i], shapes, first_row) - 1; part >= 0; part--)
            *out += newton_schulz_flops(shapes[part], strip) / options->world;
    }
    optimizer_groups_free(&groups);
    return status;
}

double step_time_estimate(const struct engine_options *options, const struct step_work *step,
                          uint64_t comm_bytes) {
    const struct config *config = options->config;
    bool on_gpu = options->device->place == REGION_DEVICE, is_16_bit = options->type != DTYPE_F32;
    int cores = options->device->n_threads;
    double owners = config->zero_optimization.stage == 0 ? 1 : options->world;
    const struct step_cost work = {
        .config = config,
        .model = &options->params->config,
        .work = step,
        .on_gpu = on_gpu,
        .type_bytes = (double)dtype_size(options->type),
        .elements = (double)options->params->n_elements,
        .owned = (double)options->params->n_elements / owners,
        .micro_batches = (double)config->train.gradient_accumulation_steps,
        .tokens = (double)(config->train.micro_batch_size * config->train.seq_len),
        .memory_rate = on_gpu ? GPU_MEMORY_RATE : HOST_MEMORY_RATE / options->local_world,
    };
    double flops_per_s = on_gpu ? (is_16_bit ? GPU_FLOPS : GPU_FLOPS_FP32)
                                : cores * (is_16_bit ? CORE_FLOPS : CORE_FLOPS_FP32);
    double compute_s = micro_batch_s(&work, flops_per_s);
    double comm_s =
        (double)comm_bytes / COMM_RATE * (config->zero_optimization.overlap_comm ? COMM_EXPOSED : 1);
    return work.micro_batches * (compute_s + exposed_copies_s(&work, compute_s)) + comm_s +
           update_s(&work, options->local_world) + step->update_flops / flops_per_s;
}
