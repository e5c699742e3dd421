// Cryptographic digests and signatures, by libsodium: BLAKE2b (RFC 7693) and Ed25519 (RFC 8032). For what
// someone may have altered on purpose. Damage by accident is found by checksums (XXH3), which are faster.
#ifndef ZERO_BASE_DIGEST_H
#define ZERO_BASE_DIGEST_H

#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define DIGEST_BYTES 32
struct digest {
    unsigned char bytes[DIGEST_BYTES];
};
static inline bool digest_is_same(const struct digest *a, const struct digest *b) {
    return sodium_memcmp(a->bytes, b->bytes, DIGEST_BYTES) == 0;
}

// ---- BLAKE2b-256 of a message that is added in parts

struct digest_stream {
    crypto_generichash_blake2b_state state;
};
// Begins a digest.
//   domain   at most 16 characters. Equal messages have different digests in different domains, so that a
//            digest of one kind of thing cannot be passed off as one of another kind
void digest_begin(struct digest_stream *stream, const char *domain);
void digest_add(struct digest_stream *stream, const void *data, size_t bytes);
// Adds 8 bytes, little-endian.
void digest_add_number(struct digest_stream *stream, uint64_t number);
// Adds the length of a string, then the string.
void digest_add_string(struct digest_stream *stream, const char *string);
struct digest digest_end(struct digest_stream *stream);

// ---- hexadecimal digits, lower case

#define HEX_BYTES(bytes) (2 * (bytes) + 1) // of the text, with its NUL
// Writes the digits to `hex` (HEX_BYTES(bytes)), and returns `hex`.
const char *digest_print(const void *data, size_t bytes, char *hex);
// Reads exactly `bytes` bytes. Returns false if `hex` (`length` characters) has anything else.
bool digest_read(const char *hex, size_t length, void *data, size_t bytes);

// ---- Ed25519

#define PUBLIC_KEY_BYTES crypto_sign_PUBLICKEYBYTES
#define SIGNATURE_BYTES  crypto_sign_BYTES
struct signing_key {
    unsigned char secret[crypto_sign_SECRETKEYBYTES], public[PUBLIC_KEY_BYTES];
};
// Reads the secret key from a file of 64 hexadecimal digits (Ed25519's seed). If the file is absent, makes a
// random key and writes it there, readable by its owner only.
//   is_new   [out] whether the key was made
// STATUS_INVALID: the file has something else. STATUS_FAILED: it cannot be written.
enum status signing_key_open(const char *path, struct signing_key *key, bool *is_new) MUST_CHECK;
void signing_key_sign(const struct signing_key *key, const struct digest *digest,
                      unsigned char signature[SIGNATURE_BYTES]);
bool signature_is_good(const unsigned char public[PUBLIC_KEY_BYTES], const struct digest *digest,
                       const unsigned char signature[SIGNATURE_BYTES]);

#endif
