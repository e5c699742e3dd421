// Token shards.
#include "data/shard.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("shard.bin", data, size);
    struct shard shard;
    if (fuzz_accepted(shard_open(&shard, path))) {
        FUZZ_REQUIRE(SHARD_HEADER_BYTES + shard.n_tokens * shard.token_bytes == size);
        int32_t *tokens = malloc(shard.n_tokens * sizeof *tokens + 1);
        FUZZ_REQUIRE(tokens && shard_read(&shard, 0, shard.n_tokens, tokens) == STATUS_OK);
        free(tokens);
        shard_close(&shard);
    }
    unlink(path);
    return 0;
}
