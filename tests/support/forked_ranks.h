// Several ranks without MPI, for unit tests of what ranks do together. Each rank is a process, so that each
// has its own record of failures; they communicate through shared memory. Only control collectives: gather,
// broadcast and agree. If a rank waits in vain for the others, an alarm ends it and the test fails.
#ifndef ZERO_TESTS_SUPPORT_FORKED_RANKS_H
#define ZERO_TESTS_SUPPORT_FORKED_RANKS_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/expect.h"
#include "zero/comm/backend.h"
#include "zero/comm/comm.h"

#define FORKED_RANKS   32   // at most
#define FORKED_SECONDS 60   // until the alarm
#define FORKED_BYTES   4096 // most that a rank can contribute to a gather

struct forked_result {
    enum status status;
    int64_t value; // result of the rank's function
    char message[2048];
};

struct forked_shared {
    pthread_barrier_t barrier;
    struct forked_result results[FORKED_RANKS];
    char exchange[FORKED_RANKS][FORKED_BYTES];
};

static inline enum status forked_gather(struct comm *comm, const struct comm_id *id, const void *mine,
                                        size_t bytes, void *all) {
    struct forked_shared *shared = comm->data;
    (void)id;
    if (bytes > FORKED_BYTES)
        return FAIL(STATUS_FAILED, "%zu bytes to gather, expected at most %d", bytes, FORKED_BYTES);
    memcpy(shared->exchange[comm->rank], mine, bytes);
    pthread_barrier_wait(&shared->barrier);
    for (int rank = 0; rank < comm->world; rank++)
        memcpy((char *)all + (size_t)rank * bytes, shared->exchange[rank], bytes);
    pthread_barrier_wait(&shared->barrier);
    return STATUS_OK;
}

static inline enum status forked_broadcast(struct comm *comm, const struct comm_id *id, void *data,
                                           size_t bytes, int root) {
    struct forked_shared *shared = comm->data;
    (void)id;
    for (size_t at = 0; at < bytes; at += sizeof shared->exchange) {
        size_t n = bytes - at < sizeof shared->exchange ? bytes - at : sizeof shared->exchange;
        if (comm->rank == root)
            memcpy(shared->exchange, (char *)data + at, n);
        pthread_barrier_wait(&shared->barrier);
        if (comm->rank != root)
            memcpy((char *)data + at, shared->exchange, n);
        pthread_barrier_wait(&shared->barrier);
    }
    return STATUS_OK;
}

static inline enum status forked_agree(struct comm *comm, const struct comm_id *id,
                                       struct comm_verdict *verdict) {
    struct comm_verdict all[FORKED_RANKS];
    TRY(forked_gather(comm, id, verdict, sizeof *verdict, all));
    *verdict = all[0];
    for (int rank = 1; rank < comm->world; rank++)
        if (all[rank].status > verdict->status)
            *verdict = all[rank];
        else if (all[rank].status == verdict->status)
            verdict->count++;
    return STATUS_OK;
}

// The function that each rank runs. *value: [out] a result for the test.
typedef enum status forked_function(struct comm *comm, void *context, int64_t *value);

static inline void forked_run_rank(struct forked_shared *shared, int rank, int world,
                                   forked_function *function, void *context) {
    static const struct comm_backend backend = {
        .name = "forked", .gather = forked_gather, .broadcast = forked_broadcast, .agree = forked_agree};
    struct rank_state state = {0};
    struct comm comm = {.backend = &backend,
                        .state = &state,
                        .rank = rank,
                        .world = world,
                        .local_rank = rank,
                        .local_world = world,
                        .data = shared,
                        .eager = true};
    struct forked_result *result = &shared->results[rank];
    alarm(FORKED_SECONDS);
    result->status = function(&comm, context, &result->value);
    strncpy(result->message, status_message(), sizeof result->message - 1);
}

// Runs `function` on each rank and returns the results, in rank order. Fails the test if a rank does not
// finish.
static inline void forked_ranks(int world, forked_function *function, void *context,
                                struct forked_result *results) {
    struct forked_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    pid_t processes[FORKED_RANKS];
    assert_true(shared != MAP_FAILED && world <= FORKED_RANKS);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    assert_int_equal(pthread_barrier_init(&shared->barrier, &attributes, (unsigned)world), 0);
    for (int rank = 0; rank < world; rank++) {
        processes[rank] = fork();
        assert_true(processes[rank] >= 0);
        if (processes[rank] == 0) {
            forked_run_rank(shared, rank, world, function, context);
            _exit(0);
        }
    }
    bool ended = true;
    for (int rank = 0; rank < world; rank++) {
        int how;
        assert_int_equal(waitpid(processes[rank], &how, 0), processes[rank]);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            print_error("rank %d did not finish: wait status %d\n", rank, how);
        ended = ended && WIFEXITED(how) && WEXITSTATUS(how) == 0;
    }
    memcpy(results, shared->results, (size_t)world * sizeof *results);
    munmap(shared, sizeof *shared);
    assert_true(ended);
}

#endif
