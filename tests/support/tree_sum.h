// The sum over ranks, written as zero/comm defines it: the left half has the largest power of two below n.
#ifndef ZERO_TESTS_SUPPORT_TREE_SUM_H
#define ZERO_TESTS_SUPPORT_TREE_SUM_H

enum { MOST_RANKS = 64 };

#define DEFINE_TREE_SUM(name, type)                                                                          \
    static inline type name(const type *values, int n) {                                                     \
        int left = 1;                                                                                        \
        if (n == 1)                                                                                          \
            return values[0];                                                                                \
        while (2 * left < n)                                                                                 \
            left *= 2;                                                                                       \
        return name(values, left) + name(values + left, n - left);                                           \
    }
DEFINE_TREE_SUM(expected_tree_sum, float)
DEFINE_TREE_SUM(expected_tree_sum_f64, double)

#endif
