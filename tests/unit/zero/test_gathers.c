// The plan of stage 3's gathers (zero/stages/gathers.h): slots by formula for the passes of GPT-2, and for
// any passes that each fetch finds a slot that is free, large enough, and the same each time.
#include "zero/stages/gathers.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <setjmp.h>
// cmocka needs the headers above.
#include <cmocka.h>

#include "base/rng.h"

#define MOST_EVENTS  400
#define MOST_FETCHES 40

struct plan {
    struct gather_event events[MOST_EVENTS];
    struct gather_step steps[MOST_EVENTS];
    struct gather_pass pass;
    size_t elements[MOST_FETCHES];
    struct gather_slots slots;
};

static void begin(struct plan *plan, size_t elements) {
    memset(plan, 0, sizeof *plan);
    plan->pass = (struct gather_pass){plan->events, plan->steps, 0};
    for (int f = 0; f < MOST_FETCHES; f++)
        plan->elements[f] = elements;
}

static void add(struct plan *plan, int fetch, bool acquires) {
    assert_true(plan->pass.n_events < MOST_EVENTS);
    plan->events[plan->pass.n_events++] = (struct gather_event){fetch, acquires};
}

static void use(struct plan *plan, int fetch) {
    add(plan, fetch, true);
    add(plan, fetch, false);
}

// Follows the plan as a stage does, and checks each step.
static void check(const struct plan *plan, bool prefetch) {
    int holds[GATHER_SLOTS_MOST], n_ahead = 0;
    for (int i = 0; i < GATHER_SLOTS_MOST; i++)
        holds[i] = NO_FETCH;
    for (int i = 0; i < plan->pass.n_events; i++) {
        const struct gather_event event = plan->events[i];
        const struct gather_step step = plan->steps[i];
        if (event.fetch == NO_FETCH) {
            assert_int_equal(step.ahead, NO_FETCH);
            continue;
        }
        assert_in_range(step.slot, 0, plan->slots.n - 1);
        assert_true(plan->elements[event.fetch] <= plan->slots.elements[step.slot]);
        assert_true(holds[step.slot] == event.fetch || (event.acquires && holds[step.slot] == NO_FETCH));
        n_ahead -= event.acquires && holds[step.slot] == event.fetch;
        holds[step.slot] = event.acquires ? event.fetch : NO_FETCH;
        if (step.ahead != NO_FETCH) {
            assert_int_equal(holds[step.ahead_slot], NO_FETCH);
            assert_true(plan->elements[step.ahead] <= plan->slots.elements[step.ahead_slot]);
            holds[step.ahead_slot] = step.ahead;
            n_ahead++;
        }
        assert_in_range(n_ahead, 0, prefetch ? 1 : 0);
    }
    for (int i = 0; i < GATHER_SLOTS_MOST; i++) // what was gathered ahead was used
        assert_int_equal(holds[i], NO_FETCH);
}

static void make(struct plan *plan, bool prefetch) {
    const struct gather_options options = {plan->elements, prefetch};
    gathers_plan(&plan->pass, 1, &options, &plan->slots);
    check(plan, prefetch);
}

static void expect_slots(const struct plan *plan, int n, size_t first, size_t second, size_t third) {
    const size_t sizes[] = {first, second, third};
    assert_int_equal(plan->slots.n, n);
    for (int i = 0; i < n; i++)
        assert_int_equal(plan->slots.elements[i], sizes[i]);
}

// Fetch 0 embeddings, 1 to L blocks, L + 1 final norm, which is held while the embeddings are lm_head.
static void train(struct plan *plan, int L, size_t embeddings, size_t block, size_t norm) {
    begin(plan, block);
    plan->elements[0] = embeddings;
    plan->elements[L + 1] = norm;
    for (int unit = 0; unit <= L; unit++)
        use(plan, unit);
    add(plan, L + 1, true);
    use(plan, 0);
    add(plan, L + 1, false);
    for (int unit = L; unit > 0; unit--)
        use(plan, unit);
}

// The two largest side by side, and a small slot for the final norm. Without prefetch one is enough.
static void test_slots_of_gpt2(void **state) {
    (void)state;
    struct plan plan;
    for (int L = 1; L < 8; L++)
        for (int i = 0; i < 2; i++) {
            const size_t embeddings = i ? 900 : 300, block = 500, larger = i ? embeddings : block;
            train(&plan, L, embeddings, block, 10);
            make(&plan, true);
            expect_slots(&plan, 3, larger, L == 1 && !i ? embeddings : block, 10);
            make(&plan, false);
            expect_slots(&plan, 2, larger, 10, 0);
        }
}

// All but the first fetch of a pass are gathered ahead.
static int gathered_ahead(const struct plan *plan) {
    int n = 0;
    for (int i = 0; i < plan->pass.n_events; i++)
        n += plan->steps[i].ahead != NO_FETCH;
    return n;
}

static void test_everything_is_prefetched(void **state) {
    (void)state;
    struct plan plan;
    for (int L = 1; L < 8; L++)
        for (size_t embeddings = 300; embeddings < 1000; embeddings += 600) {
            train(&plan, L, embeddings, 500, 10);
            make(&plan, true);
            assert_int_equal(gathered_ahead(&plan), 2 * L + 2);
            make(&plan, false);
            assert_int_equal(gathered_ahead(&plan), 0);
        }
}

// An untied lm_head makes the last unit the largest; no rule of its own is needed.
static void test_large_last_unit(void **state) {
    (void)state;
    struct plan plan;
    begin(&plan, 500);
    plan.elements[0] = 2000;
    plan.elements[7] = 2010;
    for (int unit = 0; unit <= 7; unit++)
        use(&plan, unit);
    for (int unit = 6; unit > 0; unit--)
        use(&plan, unit);
    make(&plan, true);
    expect_slots(&plan, 2, 2010, 500, 0);
}

// Of blocks of two sizes, slots follow which ones are neighbours.
static void test_blocks_of_different_sizes(void **state) {
    (void)state;
    struct plan plan;
    for (int apart = 0; apart < 2; apart++) {
        begin(&plan, 500);
        for (int unit = 0; unit < 8; unit++)
            plan.elements[unit] = (apart ? unit % 2 == 0 : unit < 2) ? 700 : 500;
        for (int unit = 0; unit < 8; unit++)
            use(&plan, unit);
        make(&plan, true);
        expect_slots(&plan, 2, 700, apart ? 500 : 700, 0);
    }
}

// Random passes, two in use at most, planned together.
static void test_any_passes(void **state) {
    (void)state;
    static struct plan plans[3];
    for (uint32_t trial = 0; trial < 2000; trial++) {
        uint64_t draw = 0;
        struct gather_pass passes[3];
        const bool prefetch = trial % 4 > 0;
        for (int k = 0; k < 3; k++) {
            struct plan *plan = &plans[k];
            begin(plan, 0);
            for (int f = 0; f < MOST_FETCHES; f++) // the same model in all passes
                plan->elements[f] = rng_below(trial, 1, (uint64_t)f, 6) * 100 + 1;
            int held[2] = {NO_FETCH, NO_FETCH};
            for (int i = 0; i < 60; i++) {
                const int at = (int)rng_below(trial, 3, draw++, 2),
                          fetch = (int)rng_below(trial, 4, draw++, MOST_FETCHES);
                if (held[at] != NO_FETCH || fetch == held[1 - at]) {
                    if (held[at] != NO_FETCH)
                        add(plan, held[at], false);
                    held[at] = NO_FETCH;
                } else
                    add(plan, held[at] = fetch, true);
                if (rng_below(trial, 5, draw++, 4) == 0)
                    add(plan, NO_FETCH, true);
            }
            for (int at = 0; at < 2; at++)
                if (held[at] != NO_FETCH)
                    add(plan, held[at], false);
            passes[k] = plan->pass;
        }
        const struct gather_options options = {plans[0].elements, prefetch};
        gathers_plan(passes, 3, &options, &plans[0].slots);
        for (int k = 0; k < 3; k++) {
            plans[k].slots = plans[0].slots;
            check(&plans[k], prefetch);
        }
        assert_in_range(plans[0].slots.n, 1, prefetch ? 3 : 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_of_gpt2),   cmocka_unit_test(test_everything_is_prefetched),
        cmocka_unit_test(test_large_last_unit), cmocka_unit_test(test_blocks_of_different_sizes),
        cmocka_unit_test(test_any_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
