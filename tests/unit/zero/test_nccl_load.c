// NCCL at run time: found and complete, or a message that says what to install.
#include "tests/support/expect.h"
#include "zero/comm/nccl/load.h"

static void test_versions_as_text(void **state) {
    static const struct {
        int version;
        const char *text;
    } cases[] = {{2804, "2.8.4"}, {20905, "2.9.5"}, {21403, "2.14.3"}, {22809, "2.28.9"}};
    char text[NCCL_VERSION_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(nccl_version_text(cases[i].version, text), cases[i].text);
}

static void test_loading(void **state) {
    struct nccl_api api = {0};
    int version = 0;
    char text[NCCL_VERSION_TEXT_BYTES];
    (void)state;
    status_clear();
    const enum status status = nccl_load(&api, &version);
    if (status == STATUS_OK) {
        assert_true(version >= NCCL_OLDEST);
#define EXPECT_FUNCTION(name, result, parameters) assert_true(api.name != NULL);
        NCCL_FUNCTIONS(EXPECT_FUNCTION, int, nccl_comm, nccl_id, int, nccl_stream)
#undef EXPECT_FUNCTION
        assert_string_not_equal(nccl_found_version(text), "not found");
        return;
    }
    assert_int_equal(status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(status_message(), "install"));
    status_clear();
    assert_string_equal(nccl_found_version(text), "not found");
    assert_string_equal(status_message(), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_as_text),
        cmocka_unit_test(test_loading),
    };
    return cmocka_run_group_tests_name("nccl_load", tests, NULL, NULL);
}
