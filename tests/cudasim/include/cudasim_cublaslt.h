// The simulated cuBLASLt's interface for tests.
#ifndef CUDASIM_CUDASIM_CUBLASLT_H
#define CUDASIM_CUDASIM_CUBLASLT_H

#ifdef __cplusplus
extern "C" {
#endif

// The library's algorithms, in the order of its heuristic. IN_ORDER and IN_BLOCKS give the same bits; each of
// the others gives different bits. SPLIT needs workspace, and a preference that allows partial sums in the
// compute type.
enum cudasim_algorithm {
    CUDASIM_IN_ORDER,
    CUDASIM_INTERLEAVED,
    CUDASIM_IN_BLOCKS,
    CUDASIM_SPLIT,
    CUDASIM_ALGORITHMS,
};

// Returns the number of products issued so far with this epilogue (cublasLtEpilogue_t; 0: any) and algorithm
// (-1: any).
int cudasim_cublaslt_runs(int epilogue, int algorithm);
// Limits an algorithm to this many matrices at once; 0: no limit.
void cudasim_cublaslt_limit(int algorithm, int most_matrices);
// Makes every product by this algorithm take this much longer.
void cudasim_cublaslt_delay(int algorithm, unsigned microseconds);

// How an algorithm fails although the heuristic offers it.
//   REFUSES   cublasLtMatmul returns CUBLAS_STATUS_EXECUTION_FAILED and does nothing
//   FAULTS    the product fails on the device, which then stays unusable (cudaErrorIllegalAddress)
enum cudasim_failure { CUDASIM_WORKS, CUDASIM_REFUSES, CUDASIM_FAULTS };
// Makes later products by this algorithm fail in this way. `after`: the number of products that still work.
void cudasim_cublaslt_fail(int algorithm, enum cudasim_failure how, int after);

#ifdef __cplusplus
}
#endif
#endif
