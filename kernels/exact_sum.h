// Sums of squares in double whose bits depend on no order, so that threads, devices and ranks may each add
// what they have. Rounding every number to a multiple of a unit before it is added makes all partial sums
// multiples of that unit too, and below 2^53 of them they are exact: reproducible summation by pre-rounding
// (Demmel and Nguyen, "Fast Reproducible Floating-Point Summation", 2013). A coarse unit alone would lose
// small numbers beside a large bound, so what it leaves is summed as well, in a fine unit. Valid in C and
// C++.
#ifndef ZERO_KERNELS_EXACT_SUM_H
#define ZERO_KERNELS_EXACT_SUM_H

#include <math.h>

// (x + coarse) - coarse is x rounded to the coarse unit, ties to even; of what is left, (rest + fine) - fine
// is the same with the fine one.
struct exact_units {
    double coarse, fine;
};

// For at most n numbers (0 < n <= 2^32), none below 0, whose sum is at most `bound`. The coarse unit is at
// most 2^-50 of the bound, and the fine one n 2^-52 of that. A bound that is not finite makes NaN of every
// sum.
static inline struct exact_units exact_units_of(double bound, double n) {
    int bound_exponent, n_exponent;
    struct exact_units units = {NAN, NAN};
    if (!isfinite(bound))
        return units;
    frexp(bound, &bound_exponent); // bound <= 2^bound_exponent
    frexp(n, &n_exponent);
    bound_exponent = bound > 0x1p-900 ? bound_exponent : -900;
    n_exponent = n_exponent > 2 ? n_exponent : 2;
    // Numbers below half of `coarse` leave its binade as it is, where a step is 2^-52 of it. The rest is at
    // most half a coarse unit, of either sign: n of them are less than 2^52 fine units.
    int unit_exponent = bound_exponent + 1 - 52;
    units.coarse = ldexp(1.0, bound_exponent + 1);
    units.fine = ldexp(1.5, unit_exponent + n_exponent - 53 + 52);
    return units;
}

#endif
