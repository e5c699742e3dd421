// Which hosts ./train serve answers for, by the address that it listens on and what the command line names.
#include "tests/support/expect.h"

#include <stdlib.h>

#include "cli/serve/access.h"

// The code of the refusal of a GET with this host, or 0.
static int refusal(const struct access *access, const char *address, const char *host) {
    char name[512];
    snprintf(name, sizeof name, "%s", host);
    struct exchange exchange = {.method = "GET", .path = "/health", .host = name, .address = address};
    access_admit(access, &exchange);
    return exchange.error.code;
}

static void expect_codes(const struct access *access, const char *address, int code,
                         const char *const *hosts) {
    for (; *hosts; hosts++)
        if (refusal(access, address, *hosts) != code)
            fail_msg("%s at %s: %d, not %d", *hosts, address, refusal(access, address, *hosts), code);
}
#define EXPECT_CODES(access, address, code, ...)                                                             \
    expect_codes(access, address, code, (const char *const[]){__VA_ARGS__, NULL})

static void test_named_hosts(void **state) {
    (void)state;
    struct access access = {.host = "192.168.7.1",
                            .hosts = {.strings = {"GPU.lan:80", ".Example.com", "[FD00::1]"}, .n = 3}};
    EXPECT_OK(access_init(&access));
    EXPECT_CODES(&access, "192.168.7.1", 0, "192.168.7.1", "192.168.7.1:80", "localhost", "LOCALHOST.",
                 "a.localhost:1", "127.8.7.6", "[::1]", "gpu.lan", "Gpu.Lan.:8000", "a.example.com",
                 "a.b.EXAMPLE.com", "[fd00::1]:1");
    EXPECT_CODES(&access, "192.168.7.1", 403, "192.168.7.2", "0.0.0.0", "[::]", "lan", "a.gpu.lan",
                 "example.com", "badexample.com", "127.0.0.1.a", "127.1", "localhost.a", "[fd00::2]", "1");
    EXPECT_CODES(&access, "192.168.7.1", 400, "", ".", "a b", "a:b", "a:1:2", "::1", "[::1", "[localhost]",
                 "[]", "a/b", "a@b", "a,b", "\xc3\xa4");
}

// An address in a request cannot be a name that was pointed here, so any is good where the server listens on
// all.
static void test_all_addresses(void **state) {
    (void)state;
    struct access access = {.host = "::"};
    EXPECT_OK(access_init(&access));
    for (int i = 0; i < 2; i++) {
        EXPECT_CODES(&access, i ? "::" : "0.0.0.0", 0, "10.0.0.1", "[fe80::1]:5", "0.0.0.0", "localhost");
        EXPECT_CODES(&access, i ? "::" : "0.0.0.0", 403, "a", "10.0.0.1.a", "10.0.0.256", "a.local");
    }
    EXPECT_CODES(&access, "127.0.0.1", 403, "10.0.0.1", "[fe80::1]:5", "0.0.0.0");
}

static void test_lengths(void **state) {
    (void)state;
    struct access access = {.host = "127.0.0.1"};
    char host[400];
    EXPECT_OK(access_init(&access));
    for (int n = 250; n < 260; n++) {
        memset(host, 'a', sizeof host);
        host[n] = '\0';
        assert_int_equal(refusal(&access, "127.0.0.1", host), n < 256 ? 403 : 400);
    }
}

static void test_local_addresses(void **state) {
    (void)state;
    assert_true(access_is_local("127.0.0.1") && access_is_local("127.255.0.9") && access_is_local("::1"));
    assert_false(access_is_local("0.0.0.0") || access_is_local("::") || access_is_local("10.0.0.1") ||
                 access_is_local("127.a") || access_is_local("::2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_hosts),
        cmocka_unit_test(test_all_addresses),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_local_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
