// Model states as the ZeRO paper counts them, for comparison: per parameter 2 bytes of fp16 weight, 2 bytes
// of fp16 gradient, and 12 bytes of fp32 master weight and Adam moments.
//
// Source: ZeRO (arXiv 1910.02054), section 5 and figure 1; table 1 has the results of these formulas.
#ifndef ZERO_TRAINER_PLAN_PAPER_H
#define ZERO_TRAINER_PLAN_PAPER_H

// Returns the bytes of model states per rank. With P parameters and N ranks:
//   stage 0   16 P (plain data parallelism)
//   stage 1   4 P + 12 P / N
//   stage 2   2 P + 14 P / N
//   stage 3   16 P / N
static inline double paper_bytes(int stage, double n_params, double n_ranks) {
    // Bytes per parameter on every rank; the rest of the 16 bytes is sharded.
    static const double whole[] = {16, 4, 2, 0};
    return n_params * (whole[stage] + (16 - whole[stage]) / n_ranks);
}

#endif
