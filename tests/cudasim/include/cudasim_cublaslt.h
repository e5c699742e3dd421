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
// Makes every product by this algorithm take this much longer.
void cudasim_cublaslt_delay(int algorithm, unsigned microseconds);

#ifdef __cplusplus
}
#endif
#endif
