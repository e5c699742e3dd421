// The simulated cuBLASLt's interface for tests.
#ifndef CUDASIM_CUDASIM_CUBLASLT_H
#define CUDASIM_CUDASIM_CUBLASLT_H

#ifdef __cplusplus
extern "C" {
#endif

// Its algorithms, in the order in which its heuristic lists them. IN_ORDER and IN_BLOCKS give the same bits;
// each of the others gives different ones. SPLIT needs workspace, and a preference that allows partial sums
// in the compute type.
enum cudasim_algorithm {
    CUDASIM_IN_ORDER,
    CUDASIM_INTERLEAVED,
    CUDASIM_IN_BLOCKS,
    CUDASIM_SPLIT,
    CUDASIM_ALGORITHMS,
};

// The number of products issued so far with this epilogue (cublasLtEpilogue_t; 0: any) and algorithm (-1:
// any).
int cudasim_cublaslt_runs(int epilogue, int algorithm);
// Makes an algorithm take at most so many matrices at once; 0: any number.
void cudasim_cublaslt_limit(int algorithm, int most_matrices);
// Makes every product by this algorithm take this much longer.
void cudasim_cublaslt_delay(int algorithm, unsigned microseconds);

// How an algorithm fails that the heuristic offers nevertheless: REFUSES: cublasLtMatmul returns
// CUBLAS_STATUS_EXECUTION_FAILED and does nothing. FAULTS: the product fails on the device, which stays
// unusable (cudaErrorIllegalAddress).
enum cudasim_failure { CUDASIM_WORKS, CUDASIM_REFUSES, CUDASIM_FAULTS };
// Makes every later product by this algorithm fail like this. `after`: the products by it that still work.
void cudasim_cublaslt_fail(int algorithm, enum cudasim_failure how, int after);

#ifdef __cplusplus
}
#endif
#endif
