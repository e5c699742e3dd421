#include "data/order.h"

#include <math.h>
#include <stdbool.h>

#include "base/rng.h"

__extension__ typedef unsigned __int128 uint128;

// A node of the tree. Its left subtree has sources [low, middle), its right subtree [middle, high).
struct node {
    int low, middle, high;
};

static struct node node_of(int low, int high) {
    return (struct node){low, low + (high - low) / 2, high};
}

static double sum(const double *weights, int low, int high) {
    double total = 0;
    for (int i = low; i < high; i++)
        total += weights[i];
    return total;
}

static void init_node(struct mixture *mixture, const double *weights, int low, int high, uint64_t seed) {
    const struct node node = node_of(low, high);
    if (high - low < 2)
        return;
    const double share = sum(weights, low, node.middle) / sum(weights, low, high);
    uint32_t word[4];
    rng_block(seed, RNG_STREAM_MIXTURE, (uint64_t)node.middle, word);
    mixture->left[node.middle] = share < 1 ? (uint64_t)ldexp(share, 64) : UINT64_MAX;
    mixture->phase[node.middle] = (uint64_t)word[0] << 32 | word[1];
    init_node(mixture, weights, low, node.middle, seed);
    init_node(mixture, weights, node.middle, high, seed);
}

void mixture_init(struct mixture *mixture, const double *weights, int n, uint64_t seed) {
    *mixture = (struct mixture){.n = n};
    init_node(mixture, weights, 0, n, seed);
}

// Returns how many of a node's first n_rows rows go left.
static uint64_t n_left(const struct mixture *mixture, struct node node, uint64_t n_rows) {
    return (uint64_t)(((uint128)n_rows * mixture->left[node.middle] + mixture->phase[node.middle]) >> 64);
}

int mixture_at(const struct mixture *mixture, uint64_t row, uint64_t *index) {
    struct node node = node_of(0, mixture->n);
    while (node.high - node.low > 1) {
        const uint64_t before = n_left(mixture, node, row);
        if (n_left(mixture, node, row + 1) > before) {
            row = before;
            node = node_of(node.low, node.middle);
        } else {
            row -= before;
            node = node_of(node.middle, node.high);
        }
    }
    *index = row;
    return node.low;
}

uint64_t mixture_count(const struct mixture *mixture, int source, uint64_t n_rows) {
    struct node node = node_of(0, mixture->n);
    while (node.high - node.low > 1) {
        const uint64_t left = n_left(mixture, node, n_rows);
        const bool is_left = source < node.middle;
        n_rows = is_left ? left : n_rows - left;
        node = is_left ? node_of(node.low, node.middle) : node_of(node.middle, node.high);
    }
    return n_rows;
}

// ---- the permutation: a Feistel network of six rounds, with Philox as the round function

#define ROUNDS 6

size_t permutation_at(uint64_t seed, uint64_t epoch, size_t n, size_t i) {
    int half_bits = 1;
    while (half_bits < 32 && (uint64_t)1 << (2 * half_bits) < n)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1, value = i;
    do {
        uint64_t left = value >> half_bits, right = value & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint32_t word[4];
            // The key of rng_block is made of seed and epoch; its counter, of the round and the right half.
            rng_block(seed ^ (epoch * 0x9E3779B97F4A7C15u), RNG_STREAM_SHUFFLE, round << 32 | right, word);
            uint64_t next = left ^ (word[0] & mask);
            left = right;
            right = next;
        }
        value = left << half_bits | right;
    } while (value >= n);
    return value;
}
