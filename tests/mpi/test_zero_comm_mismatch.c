// Ranks in different collectives: all fail with a message that names both, whichever rank notices first. The
// number of ranks selects the kind of mismatch, because each one ends the communicator.
#include <stdlib.h>
#include <string.h>

#include "tests/mpi/together.h"

static struct comm *comm;
static struct device *device;
static struct stream stream;

#define N 1000

// A reduce-scatter to rank 0, which waits for all others.
static enum status reduce(size_t n) {
    static float in[N], out[N];
    struct comm_span span = {.owner = 0, .elements = n};
    comm_work work;
    comm_spans_link(&span, 1);
    const struct comm_transfer transfer = {&span, 1, n};
    TRY(comm_reduce_scatter(comm, &stream, &transfer, in, out, DTYPE_F32, false, &work));
    return comm_wait(comm, &stream, work);
}

static enum status sum(void) {
    double value = 1;
    return comm_sum(comm, &value, 1);
}

static enum status broadcast(void) {
    char data[100] = "";
    return comm_broadcast(comm, data, sizeof data, 0);
}

// The last rank issues another collective than the others.
static enum status differ(bool last, const char *names[2]) {
    switch (comm->world) {
    case 2: // two control collectives: their headers differ
        names[0] = "sum", names[1] = "broadcast";
        return last ? broadcast() : sum();
    case 3: // a bulk and a control collective, on separate links: no message arrives, so the watchdog
            // compares the ranks
        names[0] = "reduce_scatter", names[1] = "sum";
        return last ? sum() : reduce(N);
    default: // the same collective with another size
        names[0] = "4000 bytes", names[1] = "3996 bytes";
        return last ? reduce(N - 1) : reduce(N);
    }
}

static void test_a_mismatch_ends_all_ranks(void **state) {
    (void)state;
    const char *names[2];
    if (comm->world == 1)
        return;
    assert_int_equal(sum(), STATUS_OK); // earlier collectives agree
    enum status status = differ(comm->rank == comm->world - 1, names);
    if (status == STATUS_OK) // not every rank has noticed the mismatch in this collective
        status = comm_barrier(comm);
    assert_int_equal(status, STATUS_FAILED);
    assert_non_null(strstr(status_message(), "the ranks are in different collectives"));
    for (int i = 0; i < 2; i++)
        assert_non_null(strstr(status_message(), names[i]));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_mismatch_ends_all_ranks)};
    return together_collectives_main(argc, argv, &comm, &device, &stream, tests);
}
