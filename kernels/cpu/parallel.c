#include "kernels/cpu/cpu.h"

struct spans {
    cpu_span_function *function;
    const void *context;
    size_t n, grain;
};

static void run_span(const void *context, int part, int n_parts) {
    const struct spans *spans = context;
    spans->function(spans->context, parallel_span_of(spans->n, spans->grain, part, n_parts));
}

void cpu_parallel(const struct device *device, size_t work_elements, size_t n, size_t grain,
                  cpu_span_function *function, const void *context) {
    int n_threads = cpu_threads(device, work_elements);
    if (n_threads == 1)
        function(context, (struct parallel_span){0, n});
    else
        parallel_run(n_threads, run_span, &(struct spans){function, context, n, grain});
}
