// The ledger of a run: whatever its lines hold, also with the right hashes, what is read is in order of
// steps.
#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/runs/ledger.h"

// Appends a line with the hash that follows `before`.
static void add_line(struct text *ledger, struct digest *before, const char *content, size_t length) {
    char hex[HEX_BYTES(DIGEST_BYTES)];
    struct digest_stream stream;
    digest_begin(&stream, "ledger line");
    digest_add(&stream, before->bytes, DIGEST_BYTES);
    digest_add(&stream, content, length);
    *before = digest_end(&stream);
    text_add_bytes(ledger, content, length);
    text_add(ledger, ",\"hash\":\"%s\"}\n", digest_print(before->bytes, DIGEST_BYTES, hex));
}

static void check(const struct ledger *ledger) {
    FUZZ_REQUIRE(ledger->n_lines == 0 || ledger->n_sessions > 0);
    for (size_t i = 0; i + 1 < ledger->n_steps; i++)
        FUZZ_REQUIRE(ledger->steps[i].step < ledger->steps[i + 1].step);
    for (size_t i = 0; i + 1 < ledger->n_states; i++)
        FUZZ_REQUIRE(ledger->states[i].step < ledger->states[i + 1].step);
    for (size_t i = 0; i + 1 < ledger->n_sessions; i++)
        FUZZ_REQUIRE(ledger->sessions[i].step < ledger->sessions[i + 1].step);
    for (size_t i = 0; i < ledger->n_sessions; i++)
        FUZZ_REQUIRE(ledger_state_at(ledger, ledger->sessions[i].step) &&
                     ledger_session_at(ledger, ledger->sessions[i].step) == &ledger->sessions[i]);
    for (size_t i = 0; i < ledger->n_steps; i++) // each belongs to a state after it
        FUZZ_REQUIRE(ledger->steps[i].step <= ledger->states[ledger->n_states - 1].step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct text text = {0};
    struct digest head = {0};
    struct ledger ledger;
    const char *line = (const char *)data, *last = line + size;
    for (const char *end; line < last && (end = memchr(line, '\n', (size_t)(last - line))); line = end + 1)
        add_line(&text, &head, line, (size_t)(end - line));
    text_add_bytes(&text, line, (size_t)(last - line)); // torn, or with hashes of its own
    const enum status status = ledger_parse(&ledger, "audit.jsonl", text.data, text.length);
    FUZZ_REQUIRE(status == STATUS_OK || (status == STATUS_FAILED && status_message()[0]));
    status_clear();
    if (status == STATUS_OK)
        check(&ledger);
    ledger_free(&ledger);
    text_free(&text);
    return 0;
}
