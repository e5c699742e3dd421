// Every operation of the CUDA backend against the reference: on the simulated GPU of tests/cudasim, or on a
// real one. Skipped where there is neither.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/ops/op_case.h"

#define CASE_CUDA(name) OP_CASE("cuda", 1, name)

static const struct CMUnitTest tests[] = {OPERATIONS(CASE_CUDA)};

int main(void) {
    return cmocka_run_group_tests_name("operations on a GPU", tests, NULL, NULL);
}
