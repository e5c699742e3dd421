// Whether the processor multiplies bf16 fast: AVX-512's dot product of pairs against its fused multiply-add,
// both in registers. The same instruction issues as often as the multiply-add on some processors (twice the
// FLOP/s), half as often on others and a quarter as often on those that expect such products from their
// matrix unit, and no flag of the processor tells which. In assembly, so that every build measures the
// instructions alone.
#include <math.h>

#include "base/clock.h"
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)

#    define N_ROUNDS 512 // of twelve instructions, one for each of as many independent sums
#    define N_RUNS   16  // the shortest of them is the processor's, whatever else runs on it

// At half the multiply-add's issue rate the FLOP/s are equal and operands take half the memory; the ratios
// that there are (0.23, 0.5, 1) keep away from the bound.
#    define LEAST_ISSUE_RATIO 0.4

#    define ON_SUM(name, sum) name " %%zmm15, %%zmm15, %%zmm" sum "\n\t"
#    define ON_TWELVE_SUMS(name)                                                                             \
        ON_SUM(name, "0")                                                                                    \
        ON_SUM(name, "1")                                                                                    \
        ON_SUM(name, "2")                                                                                    \
        ON_SUM(name, "3")                                                                                    \
        ON_SUM(name, "4")                                                                                    \
        ON_SUM(name, "5")                                                                                    \
        ON_SUM(name, "6")                                                                                    \
        ON_SUM(name, "7")                                                                                    \
        ON_SUM(name, "8") ON_SUM(name, "9") ON_SUM(name, "10") ON_SUM(name, "11")

// Seconds that N_ROUNDS of the instruction take. All registers are zero, which costs what other numbers do.
#    define TIME_INSTRUCTION(name, seconds)                                                                  \
        do {                                                                                                 \
            double begin = clock_monotonic_s();                                                              \
            __asm__ volatile("vzeroall" ::                                                                   \
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",   \
                                   "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");            \
            for (int round = 0; round < N_ROUNDS; round++)                                                   \
                __asm__ volatile(ON_TWELVE_SUMS(name)::                                                      \
                                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",       \
                                       "xmm8", "xmm9", "xmm10", "xmm11");                                    \
            __asm__ volatile("vzeroupper");                                                                  \
            seconds = fmin(seconds, clock_monotonic_s() - begin);                                            \
        } while (0)

bool cpu_measure_fast_bf16_products(void) {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bf16"))
        return false;
    double multiply_adds = INFINITY, pair_products = INFINITY;
    for (int run = 0; run < N_RUNS; run++) {
        TIME_INSTRUCTION("vfmadd231ps", multiply_adds);
        TIME_INSTRUCTION("vdpbf16ps", pair_products);
    }
    return multiply_adds >= LEAST_ISSUE_RATIO * pair_products;
}

#else
bool cpu_measure_fast_bf16_products(void) {
    return false;
}
#endif
