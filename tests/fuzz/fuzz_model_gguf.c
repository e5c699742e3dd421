// GGUF models: of what opens, every value can be read, and so can its keys as a model's.
#include "model/formats/gguf.h"
#include "tests/fuzz/fuzz.h"

static void read_all(const char *path, const struct gpt_config *config) {
    struct params params;
    struct gguf_weights weights;
    // A table of a million tensors is valid, but would take all of the time.
    if (config->n_layer <= 64 && fuzz_accepted(params_init(&params, config))) {
        if (fuzz_accepted(gguf_weights_open(&weights, path, &params))) {
            float values[PARAM_ALIGNMENT]; // a unit's elements are a multiple of it
            for (int unit = 0; unit < params.n_units; unit++)
                for (size_t begin = 0; begin < params.units[unit].elements; begin += PARAM_ALIGNMENT)
                    FUZZ_REQUIRE(gguf_span(&weights, unit, begin, begin + PARAM_ALIGNMENT, values) ==
                                 STATUS_OK);
            gguf_weights_close(&weights);
        }
        params_free(&params);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("model.gguf", data, size);
    struct gpt_config config;
    if (fuzz_accepted(gguf_read_config(path, &config)))
        read_all(path, &config);
    unlink(path);
    return 0;
}
