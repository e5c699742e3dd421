// Bulk collectives among 1 to 4 ranks with a GPU each, by NCCL and through the host, compared with plain
// loops: the bits of the tree of sums, whatever the types, sizes and owners; work handles and streams instead
// of host waits. On the simulator, in its reordering mode.
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/mpi/together.h"
#include "tests/support/tree_sum.h"

static struct comm *comm;
static struct device *device; // NULL: there is no GPU
static struct stream stream;
static bool by_nccl;

#define MOST_SPANS 48

static void test_without_a_gpu(void **state) {
    (void)state;
    skip();
}

// A cheap number that depends on all three; magnitudes differ, so that bits depend on the order of sums.
static float number(int rank, size_t i, uint32_t call) {
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + call * 69069u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ((float)(x >> 8) - 0x1p23f) * (float)(1 << (x & 15)) * 0x1p-30f;
}

static float as_sent(float x, enum dtype type) {
    return type == DTYPE_BF16  ? bf16_to_float(bf16_from_float(x))
           : type == DTYPE_F16 ? f16_to_float(f16_from_float(x))
                               : x;
}

static float sum_of(size_t i, uint32_t call, enum dtype type) {
    float of_ranks[MOST_RANKS];
    for (int rank = 0; rank < comm->world; rank++)
        of_ranks[rank] = comm->world > 1 ? as_sent(number(rank, i, call), type) : number(rank, i, call);
    return expected_tree_sum(of_ranks, comm->world);
}

static void *on_device(const void *from, size_t bytes) {
    void *memory = NULL;
    together_ok(comm, device->memory_new(device, bytes, "tests", &memory));
    if (from)
        together_ok(comm, device->copy(&stream, memory, from, bytes));
    return memory;
}

static void from_device(void *to, const void *from, size_t bytes) {
    together_ok(comm, device->copy(&stream, to, from, bytes));
    together_ok(comm, device->synchronize(&stream));
}

// How n elements are divided: `even`: one shard per rank, twice, of which the second does not divide;
// otherwise spans of many sizes, none of them of the last rank. `out` offsets equal `in` offsets.
struct test_transfer {
    struct comm_span spans[MOST_SPANS];
    struct comm_transfer transfer;
    size_t own;
};

static void transfer_make(struct test_transfer *test, size_t n, bool even) {
    const int n_spans = even ? 2 * comm->world : MOST_SPANS, world = comm->world;
    const size_t shard = n / 2 / (size_t)world;
    size_t at = 0;
    *test = (struct test_transfer){.transfer = {test->spans, n_spans, n}};
    for (int i = 0; i < n_spans; i++) {
        size_t left = n - at, size = even ? shard : left / (size_t)(2 + i * 3 % 5);
        const int owner = even ? i % world : (i * 7 + i / 3) % (world > 1 ? world - 1 : 1);
        size = i == n_spans - 1 ? left : size;
        test->spans[i] = (struct comm_span){.owner = owner, .in = at, .out = at, .elements = size};
        test->own += owner == comm->rank ? size : 0;
        at += size;
    }
    comm_spans_link(test->spans, n_spans);
}

static bool is_mine(const struct test_transfer *test, size_t i) {
    for (int s = 0; s < test->transfer.n_spans; s++)
        if (i - test->spans[s].in < test->spans[s].elements)
            return test->spans[s].owner == comm->rank;
    return false;
}

static void reduce_once(size_t n, enum dtype type, bool even, bool accumulate, bool in_place, uint32_t call) {
    struct test_transfer test;
    comm_work work;
    transfer_make(&test, n, even);
    float *host = malloc(n * sizeof *host);
    assert_non_null(host);
    for (size_t i = 0; i < n; i++)
        host[i] = number(comm->rank, i, call);
    float *in = on_device(host, n * sizeof *host), *out = in_place ? in : on_device(NULL, n * sizeof *host);
    const struct fill_args fill = {.out = out, .n = n, .value = 3, .type = DTYPE_F32};
    if (!in_place)
        together_ok(comm, device->ops->fill(&stream, &fill));
    const uint64_t bytes = comm->traffic.bytes[COMM_REDUCE_SCATTER];
    together_ok(comm, comm_reduce_scatter(comm, &stream, &test.transfer, in, out, type, accumulate, &work));
    together_ok(comm, comm_wait(comm, &stream, work));
    from_device(host, out, n * sizeof *host);
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const float sum = sum_of(i, call, type), expected = accumulate ? 3 + sum : sum;
        wrong += is_mine(&test, i) && memcmp(&host[i], &expected, sizeof sum) != 0;
    }
    if (wrong)
        print_error("rank %d: %zu wrong: n %zu %s%s%s%s\n", comm->rank, wrong, n, dtype_name(type),
                    even ? " even" : "", accumulate ? " accumulate" : "", in_place ? " in place" : "");
    together_true(comm, wrong == 0);
    together_true(comm, comm->traffic.bytes[COMM_REDUCE_SCATTER] - bytes ==
                            (comm->world > 1 ? (n - test.own) * dtype_size(type) : 0));
    device->memory_delete(device, in, n * sizeof *host);
    if (!in_place)
        device->memory_delete(device, out, n * sizeof *host);
    free(host);
}

static void test_path(void **state) {
    (void)state;
    together_true(comm, comm_on_device(comm) == (comm->world == 1 || by_nccl));
    together_true(comm, (comm->device_data != NULL) == (comm->world > 1 && by_nccl));
}

static void test_reduce_scatter(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 41, 1000, 65537};
    uint32_t call = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 8 * N_COMPUTE_DTYPES; variant++)
            if ((variant & 6) != 6) // gradients accumulate or are reduced in place
                reduce_once(sizes[s], (enum dtype)(variant / 8), variant & 1, variant & 2, variant & 4,
                            ++call);
    // More than a round: a chunk has at most 4 MiB.
    reduce_once(((size_t)5 << 19) * (size_t)comm->world + 7, DTYPE_F32, true, true, false, ++call);
    reduce_once(((size_t)5 << 19) * (size_t)comm->world + 7, DTYPE_BF16, false, false, false, ++call);
}

static void gather_once(size_t n, enum dtype type, bool even, bool in_place) {
    struct test_transfer test;
    comm_work work;
    const size_t size = dtype_size(type), bytes = n * size;
    char *expected = malloc(bytes), *mine = calloc(1, bytes);
    assert_true(expected && mine);
    transfer_make(&test, n, even);
    for (size_t i = 0; i < bytes; i++)
        expected[i] = (char)(i * 131 + i / 251);
    for (int s = 0; s < test.transfer.n_spans; s++)
        if (test.spans[s].owner == comm->rank)
            memcpy(mine + test.spans[s].in * size, expected + test.spans[s].in * size,
                   test.spans[s].elements * size);
    char *in = on_device(mine, bytes), *out = in_place ? in : on_device(NULL, bytes);
    const uint64_t before = comm->traffic.bytes[COMM_ALL_GATHER];
    together_ok(comm, comm_all_gather(comm, &stream, &test.transfer, in, out, type, &work));
    together_ok(comm, comm_wait(comm, &stream, work));
    from_device(mine, out, bytes);
    together_true(comm, memcmp(mine, expected, bytes) == 0);
    together_true(comm, comm->traffic.bytes[COMM_ALL_GATHER] - before ==
                            test.own * size * ((uint64_t)comm->world - 1));
    device->memory_delete(device, in, bytes);
    if (!in_place)
        device->memory_delete(device, out, bytes);
    free(expected);
    free(mine);
}

static void test_all_gather(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 41, 1000, 65537};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 8; variant++)
            gather_once(sizes[s], variant & 4 ? DTYPE_BF16 : DTYPE_F32, variant & 1, variant & 2);
}

// Elements that each rank sends to each other, and to itself; some send nothing.
static size_t route_elements(int from, int to, size_t n) {
    return (from + 2 * to) % 4 == 1 ? 0 : n * (size_t)(1 + (from + to) % 3);
}

struct test_routes {
    struct comm_span *spans;
    struct comm_transfer transfer;
    size_t sent[MOST_RANKS], received[MOST_RANKS]; // elements of each rank
    size_t to_others;                              // of this rank
};

// Each route in as many spans as `pieces`, of which the receiver has the last first.
static void routes_make(struct test_routes *routes, size_t n, int pieces) {
    const int world = comm->world;
    *routes = (struct test_routes){.spans = calloc((size_t)(world * world * pieces), sizeof *routes->spans)};
    assert_non_null(routes->spans);
    routes->transfer.spans = routes->spans;
    for (int from = 0; from < world; from++)
        for (int to = 0; to < world; to++) {
            const size_t all = route_elements(from, to, n);
            for (int i = 0; i < pieces; i++) {
                const size_t begin = all * (size_t)i / (size_t)pieces,
                             end = all * (size_t)(i + 1) / (size_t)pieces;
                routes->spans[routes->transfer.n_spans++] =
                    (struct comm_span){.owner = from,
                                       .to = to,
                                       .in = routes->sent[from] + begin,
                                       .out = routes->received[to] + all - end,
                                       .elements = end - begin};
            }
            routes->sent[from] += all;
            routes->received[to] += all;
            routes->transfer.elements += all;
            routes->to_others += from == comm->rank && to != from ? all : 0;
        }
    comm_spans_link(routes->spans, routes->transfer.n_spans);
}

static char exchanged(size_t i, int owner) {
    return (char)(i * 31 + i / 127 + (size_t)owner * 7);
}

static bool is_exchanged(const struct test_routes *routes, const char *out, size_t size) {
    for (int k = 0; k < routes->transfer.n_spans; k++) {
        const struct comm_span *span = &routes->spans[k];
        for (size_t i = 0; i < span->elements * size && span->to == comm->rank; i++)
            if (out[span->out * size + i] != exchanged(span->in * size + i, span->owner))
                return false;
    }
    return true;
}

static void exchange_once(size_t n, enum dtype type, int pieces) {
    const size_t size = dtype_size(type);
    struct test_routes routes;
    routes_make(&routes, n, pieces);
    const size_t in_bytes = (routes.sent[comm->rank] + 1) * size,
                 out_bytes = (routes.received[comm->rank] + 1) * size;
    char *host = malloc(in_bytes > out_bytes ? in_bytes : out_bytes);
    assert_non_null(host);
    for (size_t i = 0; i < in_bytes; i++)
        host[i] = exchanged(i, comm->rank);
    char *in = on_device(host, in_bytes);
    memset(host, 0x55, out_bytes);
    char *out = on_device(host, out_bytes);
    const struct comm_traffic before = comm->traffic;
    comm_work work;
    together_ok(comm, comm_exchange(comm, &stream, &routes.transfer, in, out, type, &work));
    together_ok(comm, comm_wait(comm, &stream, work));
    from_device(host, out, out_bytes);
    together_true(comm, is_exchanged(&routes, host, size));
    together_true(comm, host[out_bytes - 1] == 0x55); // and nothing beyond it
    together_true(comm, comm->traffic.bytes[COMM_EXCHANGE] - before.bytes[COMM_EXCHANGE] ==
                            routes.to_others * size);
    together_true(comm,
                  comm->traffic.calls[COMM_EXCHANGE] - before.calls[COMM_EXCHANGE] == (comm->world > 1));
    device->memory_delete(device, in, in_bytes);
    device->memory_delete(device, out, out_bytes);
    free(host);
    free(routes.spans);
}

// On two ranks 70 pieces per route make 280 spans, more than one group of NCCL's calls has (MOST_SPANS in
// zero/comm/nccl/nccl.c).
static void test_exchange(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 41, 1000, 65537};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int narrow = 0; narrow < 2; narrow++) {
            exchange_once(sizes[s], narrow ? DTYPE_BF16 : DTYPE_F32, 2);
            exchange_once(sizes[s], narrow ? DTYPE_BF16 : DTYPE_F32, 70);
        }
}

// Exchanges with work on the same stream only, no host wait between: each sends what the one before received.
static void test_exchanges_in_flight(void **state) {
    (void)state;
    enum { CALLS = 40, N = 333 };
    const int world = comm->world;
    struct comm_span spans[MOST_RANKS];
    struct comm_transfer ring = {spans, world, (size_t)N * (size_t)world};
    float host[N];
    comm_work work;
    for (int rank = 0; rank < world; rank++)
        spans[rank] = (struct comm_span){.owner = rank, .to = (rank + 1) % world, .elements = N};
    comm_spans_link(spans, world);
    for (size_t i = 0; i < N; i++)
        host[i] = number(comm->rank, i, 77);
    float *x = on_device(host, sizeof host), *y = on_device(NULL, sizeof host);
    for (int c = 0; c < CALLS; c++) {
        assert_int_equal(comm_exchange(comm, &stream, &ring, c % 2 ? y : x, c % 2 ? x : y, DTYPE_F32, &work),
                         STATUS_OK);
        assert_int_equal(comm_wait(comm, &stream, work), STATUS_OK);
    }
    together_ok(comm, comm_wait(comm, &stream, COMM_WORK_ALL));
    from_device(host, x, sizeof host);
    bool right = true;
    const int origin = ((comm->rank - CALLS) % world + world) % world;
    for (size_t i = 0; i < N; i++)
        right = right && host[i] == number(origin, i, 77);
    together_true(comm, right);
    device->memory_delete(device, x, sizeof host);
    device->memory_delete(device, y, sizeof host);
}

// More collectives than there are events, without a wait between: each reduces what the one before gathered,
// so an event that is missing changes bits. Agreements run past them.
static void test_collectives_in_flight(void **state) {
    (void)state;
    enum { CALLS = 150, N = 333 };
    struct test_transfer test;
    float host[N], expected[N];
    comm_work work;
    transfer_make(&test, N, false);
    for (size_t i = 0; i < N; i++)
        host[i] = expected[i] = (float)(i % 7) + (float)comm->rank;
    float *data = on_device(host, sizeof host);
    for (int c = 0; c < CALLS; c++) {
        assert_int_equal(
            comm_reduce_scatter(comm, &stream, &test.transfer, data, data, DTYPE_F32, false, &work),
            STATUS_OK);
        assert_int_equal(comm_all_gather(comm, &stream, &test.transfer, data, data, DTYPE_F32, &work),
                         STATUS_OK);
        assert_int_equal(comm_wait(comm, &stream, work), STATUS_OK);
        const struct fill_args fill = {.out = data, .n = 100, .value = (float)c, .type = DTYPE_F32};
        assert_int_equal(device->ops->fill(&stream, &fill), STATUS_OK);
        if (c % 40 == 0)
            assert_int_equal(comm_agree(comm, STATUS_OK), STATUS_OK);
    }
    together_ok(comm, comm_wait(comm, &stream, COMM_WORK_ALL));
    from_device(host, data, sizeof host);
    bool right = true;
    for (size_t i = 0; i < N; i++) {
        // The first sum has all ranks' numbers; each later one multiplies by the number of ranks.
        float sum = 0;
        for (int rank = 0; rank < comm->world; rank++)
            sum += (float)(i % 7) + (float)rank;
        for (int c = 1; c < CALLS; c++)
            sum *= (float)comm->world;
        right = right && host[i] == (i < 100 ? (float)(CALLS - 1) : sum);
    }
    together_true(comm, right);
    device->memory_delete(device, data, sizeof host);
}

static void test_gather_of_device_memory(void **state) {
    (void)state;
    double mine[3] = {comm->rank + 0.5, -1, comm->rank * 1e9}, all[3 * MOST_RANKS] = {0};
    double *from = on_device(mine, sizeof mine), *to = on_device(NULL, sizeof all);
    together_ok(comm, comm_gather_device(comm, &stream, from, sizeof mine, to));
    from_device(all, to, sizeof all);
    bool right = true;
    for (int rank = 0; rank < comm->world; rank++)
        right = right && all[3 * rank] == rank + 0.5 && all[3 * rank + 1] == -1 &&
                all[3 * rank + 2] == rank * 1e9;
    together_true(comm, right);
    device->memory_delete(device, from, sizeof mine);
    device->memory_delete(device, to, sizeof all);
}

// With the argument "host" the same GPUs exchange through the host.
int main(int argc, char **argv) {
    by_nccl = argc < 2 || strcmp(argv[1], "host") != 0;
    const struct comm_options options = {
        .shared_memory = true, .for_gpu = true, .path = by_nccl ? COMM_PATH_NCCL : COMM_PATH_HOST};

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_exchanges_in_flight),
        cmocka_unit_test(test_collectives_in_flight),
        cmocka_unit_test(test_gather_of_device_memory),
    };
    const struct CMUnitTest none[] = {cmocka_unit_test(test_without_a_gpu)};
    setenv("CUDASIM_DEVICES", "4", 0);
    log_set_level(LOG_ERROR);
    if (comm_open(&options, &comm) != STATUS_OK)
        return 1;
    enum status status = device_open("cuda", 1, comm->local_rank, &device);
    if (status == STATUS_UNSUPPORTED)
        status_clear(), status = STATUS_OK, device = NULL;
    if (status == STATUS_OK && device)
        status = stream_init(&stream, device);
    if (status == STATUS_OK && device)
        status = comm_attach(comm, device, true);
    // The last test is for NCCL only.
    const size_t n_tests = sizeof tests / sizeof *tests - !by_nccl;
    int failed = 1;
    if (status == STATUS_OK)
        failed = device ? together_run_group(comm, tests, n_tests) : together_run_group(comm, none, 1);
    if (status != STATUS_OK)
        print_error("rank %d: %s\n", comm->rank, status_message());
    status = comm_close(comm, status);
    if (device)
        stream_free(&stream);
    device_close(device);
    return failed || status != STATUS_OK;
}
