// The order of sums over ranks: a fixed binary tree over rank numbers, ((0 + 1) + (2 + 3)) + ..., for any
// number of ranks. The size of the left subtree of n ranks is the largest power of two below n. If all
// machines have the same number of ranks and it is a power of two, each machine's ranks form a subtree.
// Summing within machines first then gives the same bits. Rounding errors grow with the logarithm of the
// number of ranks (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
#ifndef ZERO_ZERO_COMM_SUM_TREE_H
#define ZERO_ZERO_COMM_SUM_TREE_H

// Returns the number of ranks in the left subtree, for n >= 2.
static inline int sum_tree_left(int n) {
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return left;
}

// Returns the maximum number of partial sums kept while the values of n ranks are added: floor(log2 n).
static inline int sum_tree_depth(int n) {
    int depth = 0;
    while (n > 1) {
        n /= 2;
        depth++;
    }
    return depth;
}

// Returns the sum of n values, one from each rank. Overwrites the values.
static inline double sum_tree(double *values, int n) {
    for (int step = 1; step < n; step *= 2)
        for (int i = 0; i + step < n; i += 2 * step)
            values[i] += values[i + step];
    return values[0];
}

#endif
