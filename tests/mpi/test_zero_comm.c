// Collectives among 1 to 4 ranks, compared with plain loops: bitwise equal sums, along the tree; odd sizes;
// ranks that own nothing; many collectives in flight; failures that reach every rank.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/mpi/together.h"
#include "tests/support/tree_sum.h"

static struct comm *comm;
static struct device *device;
static struct stream stream;

#define N_ELEMENTS 200003 // several chunks per owner, the last one not full
#define N_SPANS    40

// The value of element i on rank r, which any rank can compute. Magnitudes differ, so that bits depend on the
// order of sums.
static float contribution_of(int rank, size_t i, uint32_t call) {
    double scale = (double)(1 << (i * 7 + (size_t)rank * 5) % 13);
    return (float)(scale * rng_normal(17, call * 64 + (uint32_t)rank + 1, i));
}

static float as_sent(float x, enum dtype type) {
    return type == DTYPE_BF16  ? bf16_to_float(bf16_from_float(x))
           : type == DTYPE_F16 ? f16_to_float(f16_from_float(x))
                               : x;
}

static float sum_of(size_t i, uint32_t call, enum dtype type) {
    enum dtype comm_dtype = comm->world > 1 ? type : DTYPE_F32;
    float of_ranks[MOST_RANKS];
    for (int rank = 0; rank < comm->world; rank++)
        of_ranks[rank] = as_sent(contribution_of(rank, i, call), comm_dtype);
    return expected_tree_sum(of_ranks, comm->world);
}

// Spans of uneven sizes. idle: the last rank owns none. in_place: `out` offsets equal `in` offsets; otherwise
// they count per owner.
struct test_transfer {
    struct comm_span spans[N_SPANS];
    struct comm_transfer transfer;
    size_t owned[64];
};

static void transfer_make(struct test_transfer *test, size_t n, bool idle, bool in_place) {
    int owners = idle && comm->world > 1 ? comm->world - 1 : comm->world;
    size_t at = 0;
    *test = (struct test_transfer){0};
    for (int i = 0; i < N_SPANS; i++) {
        size_t left = n - at, size = i == N_SPANS - 1 ? left : left / (size_t)(2 + i * 3 % 5);
        int owner = (i * 7 + i / 3) % owners;
        test->spans[i] = (struct comm_span){
            .owner = owner, .in = at, .out = in_place ? at : test->owned[owner], .elements = size};
        test->owned[owner] += size;
        at += size;
    }
    comm_spans_link(test->spans, N_SPANS);
    test->transfer = (struct comm_transfer){test->spans, N_SPANS, n};
}

// The bytes that this rank must send.
static uint64_t expected_bytes(const struct test_transfer *test, size_t size, bool gather) {
    size_t own = test->owned[comm->rank];
    return gather            ? own * size * ((uint64_t)comm->world - 1)
           : comm->world > 1 ? (test->transfer.elements - own) * size
                             : 0;
}

static bool right_sums(const struct test_transfer *test, const float *out, const float *before, uint32_t call,
                       enum dtype type) {
    for (int p = 0; p < N_SPANS; p++) {
        const struct comm_span *span = &test->spans[p];
        for (size_t i = 0; i < span->elements && span->owner == comm->rank; i++) {
            float sum = sum_of(span->in + i, call, type);
            float expected = before ? before[span->out + i] + sum : sum;
            if (memcmp(&out[span->out + i], &expected, sizeof expected) != 0) {
                print_error("rank %d: element %zu is %.9g, expected %.9g\n", comm->rank, span->in + i,
                            (double)out[span->out + i], (double)expected);
                return false;
            }
        }
    }
    return true;
}

static void reduce_once(size_t n, enum dtype type, bool idle, bool in_place, bool accumulate, uint32_t call) {
    struct test_transfer test;
    comm_work work;
    transfer_make(&test, n, idle, in_place);
    float *in = malloc((n + 1) * sizeof *in), *out = in_place ? in : calloc(n + 1, sizeof *out),
          *before = NULL;
    assert_true(in && out);
    for (size_t i = 0; i < n; i++)
        in[i] = contribution_of(comm->rank, i, call);
    if (accumulate) {
        before = malloc((n + 1) * sizeof *before);
        for (size_t i = 0; i < n; i++)
            before[i] = out[i] = (float)rng_normal(5, (uint32_t)comm->rank + 1, i);
    }
    uint64_t bytes = comm->traffic.bytes[COMM_REDUCE_SCATTER],
             calls = comm->traffic.calls[COMM_REDUCE_SCATTER];
    together_ok(comm, comm_reduce_scatter(comm, &stream, &test.transfer, in, out, type, accumulate, &work));
    together_ok(comm, comm_wait(comm, &stream, work));
    together_true(comm, right_sums(&test, out, before, call, type));
    together_true(comm, comm->traffic.bytes[COMM_REDUCE_SCATTER] - bytes ==
                            expected_bytes(&test, dtype_size(type), false));
    together_true(comm, comm->traffic.calls[COMM_REDUCE_SCATTER] - calls == (comm->world > 1));
    free(before);
    if (!in_place)
        free(out);
    free(in);
}

// From no doubles at all to several gathers.
static void test_sum_of_many(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 5, 1000, 65536, N_ELEMENTS};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s];
        uint32_t call = 1000 + (uint32_t)s;
        double *values = calloc(n + 1, sizeof *values);
        assert_non_null(values);
        for (size_t i = 0; i < n; i++)
            values[i] = (double)contribution_of(comm->rank, i, call) / 3;
        together_ok(comm, comm_sum(comm, values, n));
        bool right = true;
        for (size_t i = 0; i < n; i++) {
            double of_ranks[MOST_RANKS];
            for (int rank = 0; rank < comm->world; rank++)
                of_ranks[rank] = (double)contribution_of(rank, i, call) / 3;
            right = right && values[i] == expected_tree_sum_f64(of_ranks, comm->world);
        }
        together_true(comm, right && values[n] == 0);
        free(values);
    }
}

static void test_reduce_scatter(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 41, 1000, 65536, N_ELEMENTS};
    uint32_t call = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 8 * N_COMPUTE_DTYPES; variant++) {
            bool in_place = variant & 2, accumulate = variant & 4;
            if (in_place && accumulate) // gradients use one or the other
                continue;
            reduce_once(sizes[s], (enum dtype)(variant / 8), variant & 1, in_place, accumulate, ++call);
        }
}

static void gather_once(size_t n, enum dtype type, bool idle, bool in_place) {
    struct test_transfer test;
    comm_work work;
    transfer_make(&test, n, idle, true);
    size_t size = dtype_size(type), bytes = (n + 1) * size;
    // In place, the elements of other owners are not there yet. Otherwise each owner's elements have offsets
    // of their own.
    char *out = calloc(1, bytes), *in = in_place ? out : calloc(1, bytes), *expected = malloc(bytes);
    assert_true(in && out && expected);
    for (size_t i = 0; i < n * size; i++)
        expected[i] = (char)(i * 131 + i / 251);
    for (int p = 0; p < N_SPANS; p++)
        if (test.spans[p].owner == comm->rank)
            memcpy(in + test.spans[p].in * size, expected + test.spans[p].in * size,
                   test.spans[p].elements * size);
    uint64_t before = comm->traffic.bytes[COMM_ALL_GATHER];
    together_ok(comm, comm_all_gather(comm, &stream, &test.transfer, in, out, type, &work));
    together_ok(comm, comm_wait(comm, &stream, work));
    together_true(comm, memcmp(out, expected, n * size) == 0);
    together_true(comm, comm->traffic.bytes[COMM_ALL_GATHER] - before == expected_bytes(&test, size, true));
    free(expected);
    if (!in_place)
        free(in);
    free(out);
}

static void test_all_gather(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 41, 1000, 65536, N_ELEMENTS};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 8; variant++)
            gather_once(sizes[s], variant & 4 ? DTYPE_BF16 : DTYPE_F32, variant & 1, variant & 2);
}

// Each rank sends to each other, and to itself, in pieces of several sizes; some send nothing.
static size_t route_elements(int from, int to, size_t n) {
    return (from + 2 * to) % 4 == 1 ? 0 : n * (size_t)(1 + (from + to) % 3);
}

static void exchange_once(size_t n, enum dtype type) {
    enum { MOST_SPANS = 2 * MOST_RANKS * MOST_RANKS };
    struct comm_span spans[MOST_SPANS];
    struct comm_transfer transfer = {.spans = spans};
    size_t sent[MOST_RANKS] = {0}, received[MOST_RANKS] = {0}, wanted_bytes = 0;
    const size_t size = dtype_size(type);
    // In two spans each, of which the receiver has the second first.
    for (int from = 0; from < comm->world; from++)
        for (int to = 0; to < comm->world; to++) {
            const size_t all = route_elements(from, to, n), first = all / 3, rest = all - first;
            spans[transfer.n_spans++] = (struct comm_span){
                .owner = from, .to = to, .in = sent[from], .out = received[to] + rest, .elements = first};
            spans[transfer.n_spans++] = (struct comm_span){
                .owner = from, .to = to, .in = sent[from] + first, .out = received[to], .elements = rest};
            sent[from] += all;
            received[to] += all;
            transfer.elements += all;
            if (from == comm->rank && to != from)
                wanted_bytes += all * size;
        }
    comm_spans_link(spans, transfer.n_spans);
    char *in = malloc((sent[comm->rank] + 1) * size), *out = calloc(received[comm->rank] + 1, size);
    assert_true(in && out);
    for (size_t i = 0; i < sent[comm->rank] * size; i++)
        in[i] = (char)(i * 31 + i / 127 + (size_t)comm->rank * 7);
    const uint64_t before = comm->traffic.bytes[COMM_EXCHANGE];
    comm_work work;
    together_ok(comm, comm_exchange(comm, &stream, &transfer, in, out, type, &work));
    together_ok(comm, comm_wait(comm, &stream, work));
    bool right = comm->traffic.bytes[COMM_EXCHANGE] - before == wanted_bytes;
    for (int k = 0; k < transfer.n_spans; k++)
        for (size_t i = 0; i < spans[k].elements * size && spans[k].to == comm->rank; i++) {
            const size_t there = spans[k].in * size + i;
            right = right && out[spans[k].out * size + i] ==
                                 (char)(there * 31 + there / 127 + (size_t)spans[k].owner * 7);
        }
    together_true(comm, right);
    free(in);
    free(out);
}

static void test_exchange(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 41, 65536, N_ELEMENTS};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int narrow = 0; narrow < 2; narrow++)
            exchange_once(sizes[s], narrow ? DTYPE_BF16 : DTYPE_F32);
}

// More bulk collectives in flight than the queue holds, of both kinds, with collectives on host memory
// between.
static void test_many_collectives_in_flight(void **state) {
    (void)state;
    enum { CALLS = 300, N = 997 };
    struct test_transfer test;
    transfer_make(&test, N, false, true);
    float *in = malloc(CALLS * N * sizeof *in), *out = calloc(CALLS * N, sizeof *out);
    assert_true(in && out);
    for (int c = 0; c < CALLS; c++)
        for (size_t i = 0; i < N; i++)
            in[c * N + i] = contribution_of(comm->rank, i, (uint32_t)c);
    for (int c = 0; c < CALLS; c++) {
        comm_work work;
        together_ok(comm, comm_reduce_scatter(comm, &stream, &test.transfer, in + c * N, out + c * N,
                                              DTYPE_F32, false, &work));
        if (c % 50 == 0) // does not wait for the collectives before it
            assert_int_equal(comm_agree(comm, STATUS_OK), STATUS_OK);
        if (c % 2)
            continue;
        assert_int_equal(
            comm_all_gather(comm, &stream, &test.transfer, out + c * N, out + c * N, DTYPE_F32, &work),
            STATUS_OK);
    }
    together_ok(comm, comm_wait(comm, &stream, COMM_WORK_ALL));
    bool right = true;
    for (int c = 0; c < CALLS; c++)
        right = right && right_sums(&test, out + c * N, NULL, (uint32_t)c, DTYPE_F32);
    for (size_t i = 0; i < N; i++) // after the all-gather every rank has every sum
        right = right && out[i] == sum_of(i, 0, DTYPE_F32);
    together_true(comm, right);
    free(in);
    free(out);
}

static void test_host_memory_collectives(void **state) {
    (void)state;
    double values[3] = {1e16 * (comm->rank == 0), 1.0 + comm->rank, -0.5}, expected[3] = {0};
    for (int rank = 0; rank < comm->world; rank++) {
        expected[0] += 1e16 * (rank == 0);
        expected[1] += 1.0 + rank;
        expected[2] += -0.5;
    }
    together_ok(comm, comm_sum(comm, values, 3));
    together_true(comm, memcmp(values, expected, sizeof values) == 0);

    int mine = 100 + comm->rank, all[64] = {0};
    together_ok(comm, comm_gather(comm, &mine, sizeof mine, all));
    bool right = true;
    for (int rank = 0; rank < comm->world; rank++)
        right = right && all[rank] == 100 + rank;
    together_true(comm, right);

    static const size_t sizes[] = {1, 4096, 1000003}; // the last takes several chunks
    for (int root = 0; root < comm->world; root++)
        for (size_t s = 0; s < 3; s++) {
            unsigned char *data = malloc(sizes[s]);
            for (size_t i = 0; i < sizes[s]; i++)
                data[i] = (unsigned char)(comm->rank == root ? i * 7 + (size_t)root : 0);
            together_ok(comm, comm_broadcast(comm, data, sizes[s], root));
            for (size_t i = 0; i < sizes[s]; i++)
                right = right && data[i] == (unsigned char)(i * 7 + (size_t)root);
            free(data);
        }
    together_true(comm, right);
    together_ok(comm, comm_barrier(comm));
}

// Whichever rank fails, all return the worst status and its message.
static void test_agreement(void **state) {
    (void)state;
    for (int who = 0; who < comm->world; who++)
        for (int status = STATUS_OK; status <= STATUS_FAILED; status++) {
            enum status mine = STATUS_OK;
            if (comm->rank == who && status > STATUS_STOPPED)
                mine = FAIL((enum status)status, "trouble number %d", status);
            else if (comm->rank == who)
                mine = (enum status)status;
            enum status agreed = comm_agree(comm, mine);
            char message[64];
            if (comm->world > 1)
                snprintf(message, sizeof message, "rank %d: trouble number %d", who, status);
            else
                snprintf(message, sizeof message, "trouble number %d", status);
            bool right = agreed == (enum status)status;
            if (status > STATUS_STOPPED)
                right = right && strcmp(status_message(), message) == 0;
            status_clear();
            together_true(comm, right);
        }
    // Of ranks on several machines the machine is named too.
    if (comm->world > 1) {
        strcpy(comm->place, comm->rank == 1 ? "on b: " : "on a: ");
        (void)!comm_agree(comm, comm->rank == 1 ? FAIL(STATUS_INVALID, "trouble") : STATUS_OK);
        bool named = strcmp(status_message(), "rank 1: on b: trouble") == 0;
        status_clear();
        comm->place[0] = '\0';
        together_true(comm, named);
    }
    // If all ranks fail with the same message, it names no rank.
    enum status agreed = comm_agree(comm, FAIL(STATUS_INVALID, "the same everywhere"));
    bool right = agreed == STATUS_INVALID && strcmp(status_message(), "the same everywhere") == 0;
    status_clear();
    together_true(comm, right);
}

// All ranks of this test share a machine, with shared memory or without.
static void test_machine(void **state) {
    (void)state;
    together_true(comm, comm->local_world == comm->world && comm->local_rank == comm->rank);
}

// The last rank fails. With 3 ranks it fails in a collective, because its device does, and does not wait for
// that collective: it learns of the failure from the others. Otherwise it fails before the collective.
static enum status fail_copy(struct stream *of, void *to, const void *from, size_t bytes) {
    (void)of, (void)to, (void)from, (void)bytes;
    return FAIL(STATUS_INVALID, "its data are gone");
}

static enum status give_up(const struct comm_transfer *transfer, const float *in, float *out) {
    comm_work work;
    if (comm->world != 3) {
        enum status status = FAIL(STATUS_INVALID, "its data are gone");
        comm_abort(comm, status);
        return status;
    }
    device->copy = fail_copy;
    TRY(comm_reduce_scatter(comm, &stream, transfer, in, out, DTYPE_F32, false, &work));
    return comm_agree(comm, STATUS_OK);
}

enum { N_WAITED = 4 };
static enum status wait_for_others(int collective) {
    double value = 1, all[MOST_RANKS];
    switch (collective) {
    case 0:
        return comm_gather(comm, &value, sizeof value, all);
    case 1:
        return comm_sum(comm, &value, 1);
    case 2:
        return comm_broadcast(comm, &value, sizeof value, comm->world - 1);
    default:
        return comm_agree(comm, STATUS_OK);
    }
}

// Control messages take time too: it is counted, and not as a bulk collective's.
static void test_time_of_control_messages(void **state) {
    (void)state;
    const struct timespec pause = {.tv_nsec = 50000000};
    for (int i = 0; i < N_WAITED; i++) {
        together_ok(comm, comm_barrier(comm));
        const struct comm_traffic before = comm->traffic;
        if (comm->rank == comm->world - 1)
            nanosleep(&pause, NULL);
        together_ok(comm, wait_for_others(i));
        const double seconds = comm->traffic.host_s - before.host_s;
        together_true(comm, comm->world == 1 ? seconds == 0 : comm->rank > 0 || seconds > 0.01);
        together_true(comm, comm->traffic.busy_s == before.busy_s);
    }
}

// The last test, because it ends the communicator: a rank that fails ends the collective on all others with
// its message, even after an earlier failure that all ranks agreed on and cleared.
static void test_abort(void **state) {
    (void)state;
    assert_int_equal(comm_agree(comm, FAIL(STATUS_INVALID, "a damaged checkpoint")), STATUS_INVALID);
    status_clear();
    struct test_transfer test;
    comm_work work;
    enum status status = STATUS_OK;
    static float in[1000], out[1000];
    transfer_make(&test, 1000, false, true);
    if (comm->rank == comm->world - 1) {
        status = give_up(&test.transfer, in, out);
    } else {
        status = comm_reduce_scatter(comm, &stream, &test.transfer, in, out, DTYPE_F32, false, &work);
        if (status == STATUS_OK)
            status = comm_wait(comm, &stream, work);
    }
    assert_int_equal(status, STATUS_INVALID);
    assert_non_null(strstr(status_message(), "its data are gone"));
    if (comm->world == 1)
        return;
    double value = 1; // must not change
    assert_int_equal(comm_sum(comm, &value, 1), STATUS_INVALID);
    assert_non_null(strstr(status_message(), "its data are gone"));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_scatter),
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_sum_of_many),
        cmocka_unit_test(test_many_collectives_in_flight),
        cmocka_unit_test(test_host_memory_collectives),
        cmocka_unit_test(test_agreement),
        cmocka_unit_test(test_time_of_control_messages),
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_abort),
    };
    return together_collectives_main(argc, argv, &comm, &device, &stream, tests);
}
