// zero/partition/logical.h against its definition, with symbols instead of numbers: on every number of ranks,
// the sum is the same expression of additions as on L ranks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "options/config.h"
#include "zero/partition/logical.h"

// A node of an expression, identified by a hash: of its two operands in their order, or of a micro-batch's
// row.
typedef uint64_t symbol;
#define EMPTY 0

static symbol mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static symbol add(symbol left, symbol right) {
    assert_true(left != EMPTY && right != EMPTY);
    return mix(3 * left + 5 * mix(right + 1) + 7);
}

static symbol tree(const symbol *values, int n) {
    int left = 1;
    while (2 * left < n)
        left *= 2;
    return n == 1 ? values[0] : add(tree(values, left), tree(values + left, n - left));
}

enum { MOST = 64, MOST_K = 3 };

// The sum over a step of R ranks, by the loop that the trainer runs; what all ranks do is done here at once.
static symbol run(const struct logical *logical, int64_t K) {
    symbol shard = EMPTY, partials[LOGICAL_MOST_PARTIALS] = {EMPTY}, grads[MOST] = {EMPTY};
    int most = 0;
    const int64_t n = logical_per_rank(logical) * K;
    for (int64_t i = 0; i < n; i++) {
        const struct logical_micro_batch at = logical_micro_batch_of(logical, i, K);
        for (int rank = 0; rank < logical->world; rank++) {
            const symbol computed = mix(1000 + (uint64_t)logical_first_row(logical, &at, rank, 1));
            grads[rank] = logical->every || at.k == 0 ? computed : add(grads[rank], computed);
        }
        if (!at.is_reduced)
            continue;
        symbol *slots[LOGICAL_MOST_PARTIALS];
        for (int s = 0; s < LOGICAL_MOST_PARTIALS; s++)
            slots[s] = s == 0 && logical_is_in_shard(logical, &at) ? &shard : &partials[s];
        const symbol leaves = tree(grads, logical->world);
        *slots[at.partial] = at.adds ? add(*slots[at.partial], leaves) : leaves;
        most = at.partial > most ? at.partial : most;
        for (int fold = 0, s = at.partial; fold < at.n_folds; fold++, s--)
            *slots[s - 1] = add(*slots[s - 1], *slots[s]);
        if (at.adds_shard)
            shard = add(shard, partials[0]);
    }
    assert_int_equal(logical_per_rank(logical) > 1 ? most + 1 : 0, logical_partials(logical));
    return shard;
}

// By the definition: each logical rank adds its micro-batches, and the tree is over all of them; or the tree
// is over the micro-batches with the same k, and these sums are added in order.
static symbol defined(int L, bool every, int64_t K) {
    symbol sums[MOST], result = EMPTY;
    for (int64_t k = 0; k < K; k++) {
        for (int l = 0; l < L; l++) {
            const symbol computed = mix(1000 + (uint64_t)(k * L + l));
            sums[l] = every || k == 0 ? computed : add(sums[l], computed);
        }
        if (every)
            result = k == 0 ? tree(sums, L) : add(result, tree(sums, L));
    }
    return every ? result : tree(sums, L);
}

static void test_every_number_of_ranks(void **state) {
    (void)state;
    int n_checked = 0;
    for (int L = 1; L <= MOST; L++)
        for (int R = 1; R <= L; R++)
            for (int64_t K = 1; K <= MOST_K && config_ranks_fit(L, R); K++)
                for (int every = 0; every < 2; every++) {
                    const struct logical logical = {.n = L, .world = R, .every = every};
                    assert_true(run(&logical, K) == defined(L, every, K));
                    int log2 = 0;
                    while (1 << log2 < L / R)
                        log2++;
                    assert_true(logical_partials(&logical) <= (log2 > 1 ? log2 : 1));
                    n_checked++;
                }
    assert_true(n_checked > 1000);
}

// Each row of the global batch is computed once.
static void test_rows(void **state) {
    (void)state;
    for (int R = 1; R <= 8; R *= 2)
        for (int every = 0; every < 2; every++) {
            const struct logical logical = {.n = 8, .world = R, .every = every};
            bool seen[8 * 3] = {false};
            for (int rank = 0; rank < R; rank++)
                for (int64_t i = 0; i < 8 / R * 3; i++) {
                    const struct logical_micro_batch at = logical_micro_batch_of(&logical, i, 3);
                    const int64_t row = logical_first_row(&logical, &at, rank, 1);
                    assert_true(row >= 0 && row < 24 && !seen[row]);
                    seen[row] = true;
                }
        }
}

static void test_what_is_allowed(void **state) {
    (void)state;
    assert_true(config_ranks_fit(3, 3) && config_ranks_fit(3, 1) && config_ranks_fit(6, 2) &&
                config_ranks_fit(12, 4));
    assert_false(config_ranks_fit(6, 3) || config_ranks_fit(4, 3) || config_ranks_fit(4, 8) ||
                 config_ranks_fit(12, 6));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_number_of_ranks),
                                       cmocka_unit_test(test_rows), cmocka_unit_test(test_what_is_allowed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
