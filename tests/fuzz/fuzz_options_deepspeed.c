// DeepSpeed's configurations.
#include "base/json.h"
#include "options/deepspeed.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct deepspeed_translation translation = {0};
    cJSON *root = NULL;
    if (fuzz_accepted(json_parse((const char *)data, size, "the input", &root)))
        (void)fuzz_accepted(deepspeed_translate(root, "the input", &translation));
    deepspeed_free(&translation);
    cJSON_Delete(root);
    return 0;
}
