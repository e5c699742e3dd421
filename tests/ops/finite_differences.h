// Checks of gradients by finite differences, in double, and the random tensors for them.
#ifndef ZERO_TESTS_OPS_FINITE_DIFFERENCES_H
#define ZERO_TESTS_OPS_FINITE_DIFFERENCES_H

#include <stddef.h>
#include <stdint.h>

// (n) normal values, the same ones for the same name; and (n) zeros. Free them with free().
double *tensor(uint32_t name, size_t n);
double *zeros(size_t n);

// The sum of out[i] * weights[i]: a loss whose gradient by out is `weights`.
double weighted_sum(const double *out, const double *weights, size_t n);

// Checks dx (n) against finite differences of loss(context) in each element of x. Fails the test if they
// differ.
void expect_gradient(const char *name, double *x, const double *dx, size_t n, double (*loss)(void *),
                     void *context);

#endif
