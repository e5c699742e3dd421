// Allocation that does not fail, and what happens when the system refuses.
#include "tests/support/expect.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"

static void test_memory(void **state) {
    (void)state;
    int *values = allocate(1000, sizeof *values);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(values[i], 0);
    values = reallocate(values, 2, sizeof *values);
    assert_int_equal(values[1], 0);
    free(values);
    void *nothing = allocate(0, 8);
    assert_non_null(nothing);
    nothing = reallocate(nothing, 0, 8);
    assert_non_null(nothing);
    free(nothing);
}

static void test_copies(void **state) {
    (void)state;
    assert_null(copy_string(NULL));
    char *string = copy_string("tensor"), *bytes = copy_bytes("tensor", 3), *empty = copy_bytes(NULL, 0);
    assert_string_equal(string, "tensor");
    assert_string_equal(bytes, "ten");
    assert_string_equal(empty, "");
    free(string);
    free(bytes);
    free(empty);
}

static void test_growth(void **state) {
    (void)state;
    int *list = NULL, capacity = 0;
    for (int i = 0; i < 100; i++) {
        RESERVE(list, i + 1, capacity);
        assert_true(capacity > i && capacity <= (i < 8 ? 8 : 2 * i));
        list[i] = i;
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(list[i], i);
    free(list);
}

// Sanitizers refuse such sizes with a report of their own, unless they are asked to do as malloc does.
const char *__asan_default_options(void), *__tsan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}

// The process ends with exit code 1 and a line that names the bytes.
static void expect_end(void (*allocates)(void)) {
    int ends[2], status;
    char text[8192] = "";
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        allocates();
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_non_null(strstr(text, "out of memory: cannot allocate"));
}

static void too_many_elements(void) {
    free(reallocate(NULL, SIZE_MAX / 4, 8)); // the product does not fit a size_t
}

static void too_many_bytes(void) {
    free(allocate(SIZE_MAX / 64, 16)); // more than a process can address
}

static void test_refusal(void **state) {
    (void)state;
    expect_end(too_many_elements);
    expect_end(too_many_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_refusal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
