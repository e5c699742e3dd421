#include "base/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

static void start_library(void) {
    if (sodium_init() < 0) // the system gives no random numbers, so no key would be secret
        abort();
}

// Chooses libsodium's code for this processor, once. Any thread may be the first.
static void need_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_library);
}

// ---- BLAKE2b

void digest_begin(struct digest_stream *stream, const char *domain) {
    unsigned char personal[crypto_generichash_blake2b_PERSONALBYTES] = {0};
    need_library();
    memcpy(personal, domain, strnlen(domain, sizeof personal));
    // The call fails only for lengths out of bounds, and these are constants.
    crypto_generichash_blake2b_init_salt_personal(&stream->state, NULL, 0, DIGEST_BYTES, NULL, personal);
}

void digest_add(struct digest_stream *stream, const void *data, size_t bytes) {
    crypto_generichash_blake2b_update(&stream->state, data, bytes);
}

void digest_add_number(struct digest_stream *stream, uint64_t number) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    digest_add(stream, bytes, sizeof bytes);
}

void digest_add_string(struct digest_stream *stream, const char *string) {
    digest_add_number(stream, strlen(string));
    digest_add(stream, string, strlen(string));
}

struct digest digest_end(struct digest_stream *stream) {
    struct digest digest;
    crypto_generichash_blake2b_final(&stream->state, digest.bytes, sizeof digest.bytes);
    return digest;
}

// ---- hexadecimal digits

const char *digest_print(const void *data, size_t bytes, char *hex) {
    return sodium_bin2hex(hex, HEX_BYTES(bytes), data, bytes);
}

bool digest_read(const char *hex, size_t length, void *data, size_t bytes) {
    size_t read;
    return length == 2 * bytes && sodium_hex2bin(data, bytes, hex, length, NULL, &read, NULL) == 0 &&
           read == bytes;
}

// ---- Ed25519

static enum status make_key(const char *path, unsigned char seed[crypto_sign_SEEDBYTES]) {
    char hex[HEX_BYTES(crypto_sign_SEEDBYTES)];
    randombytes_buf(seed, crypto_sign_SEEDBYTES);
    digest_print(seed, crypto_sign_SEEDBYTES, hex);
    const int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool written = descriptor >= 0 && write(descriptor, hex, strlen(hex)) == (ssize_t)strlen(hex) &&
                         write(descriptor, "\n", 1) == 1 && fsync(descriptor) == 0;
    if (descriptor >= 0)
        close(descriptor);
    return written ? STATUS_OK
                   : FAIL(STATUS_FAILED, "cannot write the new signing key %s: %s", path, strerror(errno));
}

static enum status read_key(const char *path, unsigned char seed[crypto_sign_SEEDBYTES]) {
    char *text;
    size_t bytes;
    TRY(file_read(path, 1 << 10, &text, &bytes));
    while (bytes > 0 && strchr(" \r\n", text[bytes - 1]))
        bytes--;
    const bool is_key = digest_read(text, bytes, seed, crypto_sign_SEEDBYTES);
    sodium_memzero(text, bytes);
    free(text);
    return is_key ? STATUS_OK
                  : FAIL(STATUS_INVALID,
                         "%s is not a signing key: expected %d hexadecimal digits; name a file that does not "
                         "exist, and a new key is written to it",
                         path, 2 * (int)crypto_sign_SEEDBYTES);
}

enum status signing_key_open(const char *path, struct signing_key *key, bool *is_new) {
    unsigned char seed[crypto_sign_SEEDBYTES];
    need_library();
    *is_new = !file_exists(path);
    TRY(*is_new ? make_key(path, seed) : read_key(path, seed));
    crypto_sign_seed_keypair(key->public, key->secret, seed);
    sodium_memzero(seed, sizeof seed);
    return STATUS_OK;
}

void signing_key_sign(const struct signing_key *key, const struct digest *digest,
                      unsigned char signature[SIGNATURE_BYTES]) {
    crypto_sign_detached(signature, NULL, digest->bytes, DIGEST_BYTES, key->secret);
}

bool signature_is_good(const unsigned char public[PUBLIC_KEY_BYTES], const struct digest *digest,
                       const unsigned char signature[SIGNATURE_BYTES]) {
    need_library();
    return crypto_sign_verify_detached(signature, digest->bytes, DIGEST_BYTES, public) == 0;
}
