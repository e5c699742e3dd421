// Digests have the values that another implementation of BLAKE2b has, and signatures are of one key and
// digest.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/digest.h"
#include "base/file.h"
#include "tests/support/expect.h"
#include "tests/support/temporary.h"

static struct temporary temporary;

static struct digest digest_of(const char *domain, const char *first, const char *second) {
    struct digest_stream stream;
    digest_begin(&stream, domain);
    digest_add(&stream, first, strlen(first));
    digest_add(&stream, second, strlen(second));
    return digest_end(&stream);
}

// The values are Python's: hashlib.blake2b(b'abc', digest_size=32, person=b'token rows').
static void test_known_values(void **state) {
    char hex[HEX_BYTES(DIGEST_BYTES)];
    const struct digest digest = digest_of("token rows", "a", "bc"),
                        other = digest_of("state root", "abc", "");
    (void)state;
    assert_string_equal(digest_print(digest.bytes, DIGEST_BYTES, hex),
                        "975c5f4549e1e712cd6d103e1b4a2e78e87ed0be36a009ad941364c0ffde8756");
    assert_false(digest_is_same(&digest, &other));
    struct digest read;
    assert_true(digest_read(hex, strlen(hex), read.bytes, DIGEST_BYTES));
    assert_true(digest_is_same(&digest, &read));
    assert_false(digest_read(hex, strlen(hex) - 1, read.bytes, DIGEST_BYTES));
    hex[5] = 'x';
    assert_false(digest_read(hex, strlen(hex), read.bytes, DIGEST_BYTES));
}

static void test_keys(void **state) {
    const struct digest digest = digest_of("ledger line", "a", ""), other = digest_of("ledger line", "b", "");
    struct signing_key key, again, another;
    unsigned char signature[SIGNATURE_BYTES];
    struct stat info;
    char path[300];
    bool is_new;
    (void)state;
    EXPECT_OK(signing_key_open(temporary_path(&temporary, "key", path, sizeof path), &key, &is_new));
    assert_true(is_new);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    EXPECT_OK(signing_key_open(path, &again, &is_new));
    assert_false(is_new);
    assert_memory_equal(key.public, again.public, PUBLIC_KEY_BYTES);
    EXPECT_OK(signing_key_open(temporary_path(&temporary, "other", path, sizeof path), &another, &is_new));
    signing_key_sign(&again, &digest, signature);
    assert_true(signature_is_good(key.public, &digest, signature));
    assert_false(signature_is_good(key.public, &other, signature));
    assert_false(signature_is_good(another.public, &digest, signature));
    signature[7] ^= 1;
    assert_false(signature_is_good(key.public, &digest, signature));
    EXPECT_OK(file_write_all(path, "not a key", 9));
    EXPECT_FAILURE(STATUS_INVALID, signing_key_open(path, &key, &is_new), "is not a signing key");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_values), cmocka_unit_test(test_keys)};
    if (!temporary_init(&temporary))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return temporary_free(&temporary) ? failed : 1;
}
