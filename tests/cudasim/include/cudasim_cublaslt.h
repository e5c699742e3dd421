// What tests ask the simulated cuBLASLt.
#ifndef CUDASIM_CUDASIM_CUBLASLT_H
#define CUDASIM_CUDASIM_CUBLASLT_H

#ifdef __cplusplus
extern "C" {
#endif

// The algorithms that it has, in the order in which its heuristic names them. IN_ORDER and IN_BLOCKS give the
// same bits, the others their own. SPLIT needs workspace, and to be allowed partial sums in the compute type.
enum cudasim_algorithm {
    CUDASIM_IN_ORDER,
    CUDASIM_INTERLEAVED,
    CUDASIM_IN_BLOCKS,
    CUDASIM_SPLIT,
    CUDASIM_ALGORITHMS,
};

// How many products were asked for so far with this epilogue (cublasLtEpilogue_t; 0: with any) and this
// algorithm (-1: any).
int cudasim_cublaslt_runs(int epilogue, int algorithm);
// Makes every product by this algorithm take so much longer.
void cudasim_cublaslt_delay(int algorithm, unsigned microseconds);

#ifdef __cplusplus
}
#endif
#endif
