// The CPU backend's device: chooses the instruction set and the number of threads at run time, and allocates
// memory. Large allocations are arenas (huge pages); small ones come from the heap, where the address
// sanitizer guards them.
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/processors.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/onednn.h"

#if defined(__x86_64__)
#    include <cpuid.h>
#    include <sys/syscall.h>
#    include <unistd.h>
#endif

#define ARENA_FROM_BYTES (1u << 20)

// ---- instruction sets

// Best first. The Makefile defines HAVE_ISA_* for the instruction sets that it compiled.
static const struct cpu_isa *const instruction_sets[] = {
#ifdef HAVE_ISA_amx
    &cpu_amx_isa,
#endif
#ifdef HAVE_ISA_avx512_bf16
    &cpu_avx512_bf16_isa,
#endif
#ifdef HAVE_ISA_avx512
    &cpu_avx512_isa,
#endif
#ifdef HAVE_ISA_avx2
    &cpu_avx2_isa,
#endif
    &cpu_portable_isa,
};
#define N_INSTRUCTION_SETS (sizeof instruction_sets / sizeof *instruction_sets)

#if defined(__x86_64__)
// True if the processor has F16C (fp16 conversions). Not every compiler's __builtin_cpu_supports knows F16C.
static bool processor_has_f16c(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

// True if the processor has AMX and Linux grants its tile registers, which a process must request.
static bool has_amx(void) {
    enum { LEAF_FEATURES = 7, EDX_AMX_BF16 = 1 << 22, EDX_AMX_TILE = 1 << 24 };
    enum { REQUEST_STATE = 0x1023, STATE_TILE_DATA = 18 }; // asm/prctl.h
    const unsigned wanted = EDX_AMX_BF16 | EDX_AMX_TILE;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(LEAF_FEATURES, 0, &eax, &ebx, &ecx, &edx) && (edx & wanted) == wanted &&
           syscall(SYS_arch_prctl, REQUEST_STATE, STATE_TILE_DATA) == 0;
}
#endif

static bool processor_has(const char *name) {
#if defined(__x86_64__)
    if (strcmp(name, "amx") == 0)
        return processor_has("avx512_bf16") && has_amx();
    if (strcmp(name, "avx512_bf16") == 0)
        return processor_has("avx512") && __builtin_cpu_supports("avx512bf16");
    if (strcmp(name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    if (strcmp(name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor_has_f16c();
#endif
    return strcmp(name, "portable") == 0;
}

static bool multiplies_bf16(const char *name) {
    return strcmp(name, "avx512_bf16") == 0;
}

// True if vector instructions multiply bf16 at least as fast as fp32. That holds on AMD (twice as fast) and
// on the first Intel processors with AVX512-BF16. On later Intel processors, recognizable by AVX512-FP16,
// the vector instruction is slow: measured at a quarter of fp32's multiply-adds per second. AMX replaces it
// there. Decided by the processor model, not by timing: ranks and runs that decided differently would
// compute different bits.
static bool processor_has_fast_bf16(void) {
#if defined(__x86_64__)
    enum { LEAF_FEATURES = 7, EDX_AVX512_FP16 = 1 << 23 };
    unsigned eax, ebx, ecx, edx;
    return processor_has("avx512_bf16") && __get_cpuid_count(LEAF_FEATURES, 0, &eax, &ebx, &ecx, &edx) &&
           !(__builtin_cpu_is("intel") && (edx & EDX_AVX512_FP16));
#else
    return false;
#endif
}

// Returns the instruction set called `name`, or NULL if it is not available. If name is NULL, returns the
// best one, with bf16 products only if they are fast. That is never NULL, as "portable" runs everywhere.
static const struct cpu_isa *choose_instruction_set(const char *name, bool fast_bf16_products) {
    for (size_t i = 0; i < N_INSTRUCTION_SETS; i++) {
        const struct cpu_isa *isa = instruction_sets[i];
        if (processor_has(isa->name) &&
            (name ? strcmp(isa->name, name) == 0 : fast_bf16_products || !multiplies_bf16(isa->name)))
            return isa;
    }
    return NULL;
}

// ---- memory, copies, waiting

// Precedes the memory of each allocation that is an arena; memory_delete reads it. It is padded so that the
// memory after it is aligned to REGION_ALIGNMENT.
union allocation_header {
    struct arena arena;
    char padding[REGION_ALIGNMENT];
};

static enum status memory_new(struct device *device, size_t bytes, const char *purpose, void **out) {
    (void)device;
    *out = NULL;
    if (bytes == 0)
        return STATUS_OK;
    if (bytes > SIZE_MAX - 2 * sizeof(union allocation_header))
        return FAIL(STATUS_FAILED, "%s: %zu bytes of memory are more than can be addressed", purpose, bytes);
    if (bytes >= ARENA_FROM_BYTES) {
        struct arena arena;
        TRY(arena_init(&arena, bytes + sizeof(union allocation_header), purpose));
        union allocation_header *header = arena.data;
        header->arena = arena;
        *out = header + 1;
        return STATUS_OK;
    }
    if (posix_memalign(out, REGION_ALIGNMENT, bytes) != 0) {
        *out = NULL;
        return FAIL(STATUS_FAILED, "%s: the system refused %zu bytes of memory", purpose, bytes);
    }
    memset(*out, 0, bytes);
    return STATUS_OK;
}

static void memory_delete(struct device *device, void *memory, size_t bytes) {
    (void)device;
    if (!memory)
        return;
    if (bytes < ARENA_FROM_BYTES) {
        free(memory);
        return;
    }
    struct arena arena = ((union allocation_header *)memory - 1)->arena;
    arena_free(&arena);
}

static enum status copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    if (bytes > 0)
        memmove(to, from, bytes);
    return STATUS_OK;
}

static enum status synchronize(struct stream *stream) {
    (void)stream; // operations are synchronous
    return STATUS_OK;
}

// ---- NUMA nodes

struct binding {
    struct numa *numa;
    int first, n_slots;
};

static void bind_part(const void *context, int part, int n_parts) {
    (void)n_parts;
    const struct binding *binding = context;
    numa_bind_thread(binding->numa, numa_node_of(binding->numa, binding->first + part, binding->n_slots));
}

enum status cpu_device_bind_threads(struct device *device, int index) {
    if (!numa_has_nodes())
        return STATUS_OK;
    struct numa *numa;
    TRY(numa_open(NULL, &numa));
    parallel_run_on_each(device->n_threads, bind_part,
                         &(struct binding){numa, index * device->n_threads, numa_n_processors(numa)});
    numa_close(numa);
    return STATUS_OK;
}

// ---- opening and closing

static void close_device(struct device *device) {
    struct cpu_device *cpu = (struct cpu_device *)device;
    for (int i = 0; cpu->products && i < device->n_threads; i++)
        product_cache_delete(cpu->products[i]);
    free(cpu->products);
    free(cpu);
}

static enum status open_products(struct cpu_device *cpu) {
    cpu->products = allocate((size_t)cpu->device.n_threads, sizeof(struct product_cache *));
    for (int i = 0; i < cpu->device.n_threads; i++)
        TRY(product_cache_new(&cpu->products[i]));
    return STATUS_OK;
}

// oneDNN allocates buffers of up to 3 MiB for each product. Makes malloc keep them in the heap. If they
// were mapped separately, or returned to the system after the product, each product would cause page
// faults: 4 % of the time of a step with 124M parameters and 256 tokens.
//
// malloc_trim is called here because its first call initializes glibc's allocator, without a lock. Where
// another allocator takes the place of malloc and mallopt (tcmalloc, sanitizers), that first call would
// otherwise be made by several threads at once (onednn.c), which crashed.
static void keep_buffers_in_heap(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 4 << 20);
    malloc_trim(0);
#endif
}

enum status cpu_device_open(const char *instruction_set, int n_threads, struct device **out) {
    bool fast_bf16_products = instruction_set ? multiplies_bf16(instruction_set) : processor_has_fast_bf16();
    const struct cpu_isa *isa = choose_instruction_set(instruction_set, fast_bf16_products);
    if (!isa)
        return FAIL(STATUS_UNSUPPORTED,
                    "the instruction set \"%s\" is missing in this build or processor; use \"%s\"",
                    instruction_set, choose_instruction_set(NULL, false)->name);
    keep_buffers_in_heap();
    struct cpu_device *cpu = allocate(1, sizeof *cpu);
    cpu->isa = isa;
    const bool on_amx = isa->amx_product_run != NULL;
    cpu->device = (struct device){
        .name = "cpu",
        .ops = &isa->ops,
        .place = REGION_HOST,
        .n_threads = n_threads > 0 ? n_threads : parallel_threads(),
        .heap_per_thread = PRODUCT_HEAP_BYTES,
        .has_amx = on_amx,
        .fast_bf16 = fast_bf16_products || onednn_has_amx(),
        // On AMX, computing symmetric products in strips saves FLOPs but no time (benchmarks/cpu.md).
        .symmetric_strips = {[DTYPE_F32] = 1, [DTYPE_BF16] = on_amx ? 0 : 1, [DTYPE_F16] = 1},
        .memory_new = memory_new,
        .memory_delete = memory_delete,
        .copy = copy,
        .synchronize = synchronize,
        .close = close_device,
    };
    enum status status = open_products(cpu);
    if (status != STATUS_OK) {
        close_device(&cpu->device);
        return status;
    }
    char library[64], model[64];
    struct device *device = &cpu->device;
    snprintf(device->arithmetic, sizeof device->arithmetic, "%s, %s, %s", isa->name,
             product_library(library, sizeof library), processors_model(model, sizeof model));
    snprintf(device->description, sizeof device->description, "CPU, %s, %d thread%s", device->arithmetic,
             device->n_threads, device->n_threads == 1 ? "" : "s");
    *out = &cpu->device;
    return STATUS_OK;
}
