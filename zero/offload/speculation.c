// The queue is an array of units with two counters, under a lock. It is empty after each wait.
#include "zero/offload/speculation.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct speculation {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum status (*work)(void *context, int unit);
    void *context;
    int *units; // (n_units) given since the last wait
    int given, done;
    enum status status;
    bool stopping;
};

static void *run(void *argument) {
    struct speculation *speculation = argument;
    pthread_mutex_lock(&speculation->lock);
    while (!speculation->stopping || speculation->done < speculation->given) {
        if (speculation->done == speculation->given) {
            pthread_cond_wait(&speculation->changed, &speculation->lock);
            continue;
        }
        int unit = speculation->units[speculation->done];
        enum status status = speculation->status;
        pthread_mutex_unlock(&speculation->lock);
        if (status == STATUS_OK)
            status = speculation->work(speculation->context, unit);
        pthread_mutex_lock(&speculation->lock);
        speculation->status = status;
        speculation->done++;
        pthread_cond_broadcast(&speculation->changed);
    }
    pthread_mutex_unlock(&speculation->lock);
    return NULL;
}

static void release(struct speculation *speculation) {
    pthread_mutex_destroy(&speculation->lock);
    pthread_cond_destroy(&speculation->changed);
    free(speculation->units);
    free(speculation);
}

enum status speculation_new(enum status (*work)(void *context, int unit), void *context, int n_units,
                            struct speculation **out) {
    struct speculation *speculation = calloc(1, sizeof *speculation);
    int *units = calloc((size_t)n_units, sizeof *units);
    if (!speculation || !units) {
        free(speculation);
        free(units);
        return FAIL(STATUS_FAILED, "out of memory for the thread of speculative optimizer steps");
    }
    *speculation = (struct speculation){.work = work, .context = context, .units = units};
    pthread_mutex_init(&speculation->lock, NULL);
    pthread_cond_init(&speculation->changed, NULL);
    if (pthread_create(&speculation->thread, NULL, run, speculation) != 0) {
        release(speculation);
        return FAIL(STATUS_FAILED, "cannot start the thread of speculative optimizer steps");
    }
    *out = speculation;
    return STATUS_OK;
}

void speculation_delete(struct speculation *speculation) {
    if (!speculation)
        return;
    pthread_mutex_lock(&speculation->lock);
    speculation->stopping = true;
    pthread_cond_broadcast(&speculation->changed);
    pthread_mutex_unlock(&speculation->lock);
    pthread_join(speculation->thread, NULL);
    release(speculation);
}

void speculation_give(struct speculation *speculation, int unit) {
    pthread_mutex_lock(&speculation->lock);
    speculation->units[speculation->given++] = unit;
    pthread_cond_broadcast(&speculation->changed);
    pthread_mutex_unlock(&speculation->lock);
}

enum status speculation_wait(struct speculation *speculation, int *n_done) {
    pthread_mutex_lock(&speculation->lock);
    while (speculation->done < speculation->given)
        pthread_cond_wait(&speculation->changed, &speculation->lock);
    *n_done = speculation->done;
    speculation->given = speculation->done = 0;
    enum status status = speculation->status;
    pthread_mutex_unlock(&speculation->lock);
    return status;
}
