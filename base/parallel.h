// Threads that work together: parallel_run divides a piece of work into parts, one per thread, and returns
// when all parts are done, as an OpenMP parallel region does. It differs from OpenMP on machines shared with
// other processes:
// - A thread that waits spins briefly, then sleeps, so that its core is free for others. How long it spins
//   adapts to the length of its last waits.
// - If a thread has not started its part when the caller is done, because other processes keep its core busy,
//   the caller runs that part too.
//
// A part is one number: what it computes, and in which order, must follow from (part, n_parts) only, never
// from the thread that runs it. Parts must not wait for each other.
#ifndef ZERO_BASE_PARALLEL_H
#define ZERO_BASE_PARALLEL_H

#include <stddef.h>

typedef void parallel_function(const void *context, int part, int n_parts);

// Calls function(context, part, n_parts) once for each part in [0, n_parts), and returns when all have
// returned. What they wrote is visible to the caller. The calling thread runs part 0 and the parts that no
// other thread has started. Each calling thread has its own workers, created when first needed; if the system
// refuses to create one, the caller runs its parts. Within a part, parallel_run runs on the calling thread
// alone. Workers block all signals except those for errors (SIGSEGV, SIGBUS, SIGFPE, SIGILL).
void parallel_run(int n_parts, parallel_function *function, const void *context);

// Like parallel_run with n_threads parts, but each part always runs on the same thread: part 0 on the calling
// thread, each other part on a worker of its own. For per-thread settings such as CPU affinity. Parts whose
// thread could not be created are skipped.
void parallel_run_on_each(int n_threads, parallel_function *function, const void *context);

// The default number of threads: the last value given to parallel_set_threads, or else
// processors_threads(processors_usable()). Both functions warn if there are more threads than processors.
int parallel_threads(void);
void parallel_set_threads(int n);

// A range of elements, rows or the like: from `begin` up to, but without, `end`.
struct parallel_span {
    size_t begin, end;
};

// The span of [0, n) that a part works on. Spans begin and end at multiples of `grain`, except for the end n.
static inline struct parallel_span parallel_span_of(size_t n, size_t grain, int part, int n_parts) {
    size_t grains = (n + grain - 1) / grain;
    size_t begin = grains * (size_t)part / (size_t)n_parts * grain;
    size_t end = grains * ((size_t)part + 1) / (size_t)n_parts * grain;
    return (struct parallel_span){begin < n ? begin : n, end < n ? end : n};
}

#endif
