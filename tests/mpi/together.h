// For tests that several ranks run together: a check that fails on one rank must fail on all, or the others
// would wait for it in the next collective.
#ifndef ZERO_TESTS_MPI_TOGETHER_H
#define ZERO_TESTS_MPI_TOGETHER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "tests/support/temporary.h"
#include "zero/comm/comm.h"

// Fails the test on every rank if `good` is false on any. Each rank where it is false prints a message.
#define together_true(comm, good) together_check((comm), (good), #good, __FILE__, __LINE__)
static inline void together_check(struct comm *comm, bool good, const char *what, const char *file,
                                  int line) {
    double bad = !good;
    if (!good)
        print_error("rank %d: %s:%d: false: %s\n", comm->rank, file, line, what);
    if (comm_sum(comm, &bad, 1) != STATUS_OK)
        print_error("rank %d: %s\n", comm->rank, status_message());
    if (bad != 0)
        _fail(file, line);
}

#define together_ok(comm, call)                                                                              \
    do {                                                                                                     \
        enum status together_status_ = (call);                                                               \
        if (together_status_ != STATUS_OK)                                                                   \
            print_error("rank %d: %s\n", (comm)->rank, status_message());                                    \
        together_check((comm), together_status_ == STATUS_OK, #call, __FILE__, __LINE__);                    \
    } while (0)

// Only rank 0 reports tests. The other ranks' standard output is discarded, their standard error is kept.
static inline void together_quiet(const struct comm *comm) {
    if (comm->rank > 0 && !freopen("/dev/null", "w", stdout))
        print_error("rank %d: cannot redirect standard output\n", comm->rank);
}

// Runs the tests as the group "N ranks". Returns the number that failed.
static inline int together_run_group(const struct comm *comm, const struct CMUnitTest *tests, size_t n) {
    char name[64];
    together_quiet(comm);
    snprintf(name, sizeof name, "%d ranks", comm->world);
    return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

// The main function of such tests: opens the communicator, creates a temporary folder, calls `prepare` on
// rank 0 (NULL: nothing to prepare), runs the tests and removes the folder. Returns the exit code.
#define together_main(comm, temporary, prepare, tests)                                                       \
    together_whole_main((comm), (temporary), (prepare), (tests), sizeof(tests) / sizeof *(tests))
static inline enum status together_set_up(struct comm **comm, struct temporary *temporary,
                                          enum status (*prepare)(void)) {
    TRY(comm_open(&(struct comm_options){.shared_memory = true}, comm));
    if ((*comm)->rank == 0 && !temporary_init(temporary))
        return FAIL(STATUS_FAILED, "cannot make a temporary folder");
    TRY(comm_broadcast(*comm, temporary, sizeof *temporary, 0));
    if (prepare && (*comm)->rank == 0)
        TRY(prepare());
    log_set_level(LOG_ERROR);
    return comm_barrier(*comm);
}
static inline int together_whole_main(struct comm **comm, struct temporary *temporary,
                                      enum status (*prepare)(void), const struct CMUnitTest *tests,
                                      size_t n) {
    if (together_set_up(comm, temporary, prepare) != STATUS_OK) {
        print_error("%s\n", status_message());
        return 1;
    }
    int failed = together_run_group(*comm, tests, n);
    bool removed = (*comm)->rank > 0 || temporary_free(temporary);
    (void)comm_close(*comm, STATUS_OK);
    return failed + !removed;
}

// The main function of tests of collectives, on a device with one thread. The first argument is "messages"
// (ranks of one machine use MPI instead of shared memory) or "shared". With a second argument, whatever it
// is, collectives run inline, without overlap. Returns the exit code.
#define together_collectives_main(argc, argv, comm, device, stream, tests)                                   \
    together_whole_collectives_main((argc), (argv), (comm), (device), (stream), (tests),                     \
                                    sizeof(tests) / sizeof *(tests))
static inline int together_whole_collectives_main(int argc, char **argv, struct comm **comm,
                                                  struct device **device, struct stream *stream,
                                                  const struct CMUnitTest *tests, size_t n) {
    bool messages = argc > 1 && strcmp(argv[1], "messages") == 0, overlap = argc < 3;
    if (comm_open(&(struct comm_options){.shared_memory = !messages}, comm) != STATUS_OK ||
        device_open("cpu", 1, 0, device) != STATUS_OK || comm_attach(*comm, *device, overlap) != STATUS_OK)
        return 1;
    stream->device = *device;
    int failed = together_run_group(*comm, tests, n);
    status_clear();
    (void)comm_close(*comm, STATUS_OK);
    device_close(*device);
    return failed;
}

#endif
