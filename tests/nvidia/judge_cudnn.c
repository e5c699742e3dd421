// Lets NVIDIA's cuDNN judge the graphs of attention, without a GPU: a device-property descriptor stands for
// an H100 and an A100, and tests/nvidia/driver.c for the driver. Every plan must be built, with no more
// workspace than ./train plan assumes, and head dimensions beyond cuDNN's must be refused with a reason.
// Building a plan takes cuDNN half a second; ZERO_TESTS_FULL=1 judges more shapes and fp16.
//
// usage: judge_cudnn LIBRARY      exit code 0: all is as expected
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cudnn/attention.h"

#define PROPERTIES(version, sms, shared, shared_optin, clock, memory_clock, bus, l2, memory, name)           \
    "{\"deviceVer\":" #version ",\"cudaDeviceId\":0,\"multiProcessorCount\":" #sms                           \
    ",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"      \
    "\"smClockRateKHz\":" #clock ",\"memClockRateKHz\":" #memory_clock ",\"memoryBusWidth\":" #bus           \
    ",\"l2CacheSize\":" #l2 ",\"warpSize\":32,\"maxSharedMemoryPerBlock\":" #shared                          \
    ",\"maxSharedMemoryPerBlockOptin\":" #shared_optin ",\"reservedSharedMemoryPerBlock\":1024,"             \
    "\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"         \
    "\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"driverVer\":13000,"                \
    "\"totalGlobalMem\":" #memory ",\"smCountOrigin\":0,\"deviceName\":\"" name "\","                        \
    "\"oversizedSharedMemoryPerBlock\":0}"

static const char *const gpus[][2] = {
    {"H100", PROPERTIES(900, 132, 49152, 232448, 1980000, 2619000, 5120, 52428800, 85899345920,
                        "NVIDIA H100 80GB HBM3")},
    {"A100", PROPERTIES(800, 108, 49152, 166912, 1410000, 1593000, 5120, 41943040, 85899345920,
                        "NVIDIA A100-SXM4-80GB")},
};
static const char *const kinds[] = {"forward", "forward with lse", "backward"};
// GPT-2 124M; Llama's grouped heads with a window; lengths that no tile divides; wide heads
static const struct attention_shape shapes[] = {
    {.B = 4, .T = 1024, .H = 12, .K = 12, .D = 64},
    {.B = 2, .T = 512, .H = 8, .K = 2, .D = 128, .window = 100},
    {.B = 2, .T = 130, .H = 6, .K = 2, .D = 32},
    {.B = 1, .T = 512, .H = 2, .K = 2, .D = 128},
    {.B = 4, .T = 1024, .H = 32, .K = 8, .D = 64},
    {.B = 1, .T = 1024, .H = 12, .K = 2, .D = 128},
    {.B = 1, .T = 300, .H = 6, .K = 6, .D = 64, .window = 64},
};
#define N_SHAPES_ALWAYS 2
#define BEYOND_CUDNN    1024 // a head dimension of the backward pass

static bool plan(const struct cudnn *api, const char *const gpu[2], const struct attention_shape *shape,
                 enum dtype type, int kind, bool expected) {
    const int64_t stride = (int64_t)(shape->H + 2 * shape->K) * shape->D;
    const struct cudnn_strides strides = {stride, shape->T * stride};
    const struct cudnn_problem problem = {.q = strides,
                                          .k = strides,
                                          .v = strides,
                                          .B = shape->B,
                                          .T = shape->T,
                                          .H = shape->H,
                                          .K = shape->K,
                                          .D = shape->D,
                                          .window = shape->window,
                                          .type = type,
                                          .kind = kind};
    struct cudnn_attention attention;
    cudnn_attention_init(&attention, api, (struct cudnn_target){.device_properties = gpu[1]}, &problem);
    const bool good = attention.supported == expected &&
                      (expected ? attention.workspace_bytes <= cudnn_assumed_workspace(&problem)
                                : attention.graph.reason[0] != 0);
    printf("%s%s, %s %s (%d, %d, %d / %d, %d) window %d: ", good ? "" : "WRONG: ", gpu[0], dtype_name(type),
           kinds[kind], shape->B, shape->T, shape->H, shape->K, shape->D, shape->window);
    if (attention.supported)
        printf("%d engines, workspace %zu of %zu bytes\n", attention.graph.n_engines,
               attention.workspace_bytes, cudnn_assumed_workspace(&problem));
    else
        printf("refused: %s\n", attention.graph.reason);
    cudnn_attention_free(&attention);
    return good;
}

int main(int argc, char **argv) {
    struct cudnn api;
    char reason[CUDNN_REASON_BYTES], version[32];
    bool good = true;
    if (argc != 2 || !cudnn_load(argv[1], &api, reason, sizeof reason)) {
        fprintf(stderr, "judge_cudnn: %s\n", argc == 2 ? reason : "expected the path of libcudnn.so.9");
        return 1;
    }
    printf("cuDNN %s\n", cudnn_version_name(api.GetVersion(), version, sizeof version));
    const char *full = getenv("ZERO_TESTS_FULL");
    const bool all = full && full[0] == '1';
    const size_t n_shapes = all ? sizeof shapes / sizeof *shapes : N_SHAPES_ALWAYS;
    const enum dtype last = all ? DTYPE_F16 : DTYPE_BF16;
    const struct attention_shape wide = {.B = 1, .T = 64, .H = 1, .K = 1, .D = BEYOND_CUDNN};
    for (size_t gpu = 0; gpu < sizeof gpus / sizeof *gpus; gpu++) {
        for (int kind = CUDNN_FORWARD; kind <= CUDNN_BACKWARD; kind++)
            for (size_t s = 0; s < n_shapes; s++)
                for (enum dtype type = DTYPE_BF16; type <= last; type = (enum dtype)(type + 1))
                    good &= plan(&api, gpus[gpu], &shapes[s], type, kind, true);
        good &= plan(&api, gpus[gpu], &wide, DTYPE_BF16, CUDNN_BACKWARD, false);
    }
    return good ? 0 : 1;
}
