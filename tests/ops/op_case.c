// See op_case.h.
#include "tests/ops/op_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cost.h"
#include "tests/ref/ref.h"

struct device *op_device_or_skip(const char *name, int n_threads) {
    struct device *device = NULL;
    enum status status = strcmp(name, "ref") == 0    ? ref_device_open(&device)
                         : strcmp(name, "cuda") == 0 ? cuda_device_open(0, &device)
                                                     : cpu_device_open(name, n_threads, &device);
    if (status == STATUS_UNSUPPORTED) {
        print_message("skipped: %s\n", status_message());
        status_clear();
        skip();
    }
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
    return device;
}

void op_case_run(void **state) {
    static const int thread_counts[OP_OTHERS + 1] = {1, 2, 3, 7};
    const struct op_case *test = *state;
    struct op_bench bench = {.device = op_device_or_skip(test->device, test->n_threads),
                             .reference = op_device_or_skip("ref", 1),
                             .multiplies_bf16 = strcmp(test->device, "avx512_bf16") == 0 ||
                                                strcmp(test->device, "amx") == 0};
    const bool on_cpu = strcmp(test->device, "ref") != 0 && strcmp(test->device, "cuda") != 0;
    bench.others[0] = bench.device;
    for (int i = 0, threads = 0; on_cpu && i < OP_OTHERS; threads++)
        if (thread_counts[threads] != test->n_threads)
            bench.others[i++] = op_device_or_skip(test->device, thread_counts[threads]);
    test->check(&bench);
    for (int i = 0; on_cpu && i < OP_OTHERS; i++)
        device_close(bench.others[i]);
    device_close(bench.device);
    device_close(bench.reference);
    if (bench.n_wrong > 0)
        fail_msg("%d findings on %s", bench.n_wrong, test->device);
    // A check of the wrong operation, or of none, would leave this 0.
    if (bench.n_calls[test->operation] == 0)
        fail_msg("%s was never called", operation_name(test->operation));
    // update_decide has one thread.
    if (on_cpu && bench.most_elements < OP_THREADED && test->operation != OP_update_decide)
        fail_msg("%s was never called on so many elements that threads divide them",
                 operation_name(test->operation));
    print_message("%d calls, errors up to", bench.n_calls[test->operation]);
    FOR_EACH_TYPE(type)
    print_message(" %.2f (%s)", bench.worst_ratio[type], dtype_name(type));
    print_message(" of the tolerance\n");
}
