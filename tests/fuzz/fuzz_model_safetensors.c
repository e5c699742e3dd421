// safetensors files: what opens has tensors whose data lie in the file.
#include "tests/fuzz/fuzz.h"
#include "tests/support/safetensors_find.h"

static void read_tensor(const struct safetensors *file, const struct safetensor *tensor, size_t size) {
    FUZZ_REQUIRE(tensor->bytes <= size && tensor->offset <= size - tensor->bytes);
    FUZZ_REQUIRE(tensor->bytes == tensor->elements * tensor->element_bytes);
    FUZZ_REQUIRE(safetensors_find(file, tensor->name) == tensor);
    char *data = malloc(tensor->bytes + 1);
    FUZZ_REQUIRE(data && safetensors_read(file, tensor, 0, tensor->elements, data) == STATUS_OK);
    free(data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("model.safetensors", data, size);
    struct safetensors file;
    if (fuzz_accepted(safetensors_open(&file, path))) {
        for (int i = 0; i < file.n_tensors; i++)
            read_tensor(&file, &file.tensors[i], size);
        safetensors_close(&file);
    }
    unlink(path);
    return 0;
}
