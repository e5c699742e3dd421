// A word shared by processes that have no other memory in common.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "zero/comm/shared_word.h"

#define PROCESSES 8

// Opens the word of the parent and claims it. The exit code: 1: first; 0: another was; 2: cannot open it.
static int claim(int parent, int descriptor, int number) {
    struct shared_word word;
    int nobody = 0;
    if (!shared_word_open(&word, parent, descriptor) || word.descriptor >= 0)
        return 2;
    int first = atomic_compare_exchange_strong(word.value, &nobody, number);
    shared_word_free(&word);
    return first;
}

static void test_one_process_claims_it(void **unused) {
    (void)unused;
    struct shared_word word;
    int parent = (int)getpid(), children[PROCESSES], n_first = 0;
    assert_true(shared_word_new(&word));
    assert_int_equal(atomic_load(word.value), 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = (int)fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0)
            _exit(claim(parent, word.descriptor, i + 1));
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status));
        assert_in_range(WEXITSTATUS(status), 0, 1);
        n_first += WEXITSTATUS(status);
        if (WEXITSTATUS(status) == 1)
            assert_int_equal(atomic_load(word.value), i + 1); // after that process has ended
    }
    assert_int_equal(n_first, 1);
    shared_word_free(&word);
    assert_null(word.value);
    shared_word_free(&word);
}

static void test_what_cannot_be_opened(void **unused) {
    (void)unused;
    struct shared_word word;
    int ends[2], larger = memfd_create("larger", MFD_CLOEXEC), process = (int)fork();
    if (process == 0)
        _exit(0);
    assert_true(process > 0);
    assert_int_equal(waitpid(process, NULL, 0), process);
    assert_false(shared_word_open(&word, process, 0)); // the process has ended
    assert_null(word.value);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ftruncate(larger, 4096), 0);
    const int others[] = {ends[0], larger, 1000000, -1};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_false(shared_word_open(&word, (int)getpid(), others[i]));
        assert_null(word.value);
        shared_word_free(&word);
    }
    close(ends[0]), close(ends[1]), close(larger);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_process_claims_it),
        cmocka_unit_test(test_what_cannot_be_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
