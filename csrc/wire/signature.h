/* Signatures of requests: HMAC-SHA1 over the values of all fields but Signature, in the order of
 * their names, then the body, in base64. docs/internals/access.md#signatures */
#ifndef PS_SIGNATURE_H
#define PS_SIGNATURE_H

#include <stdbool.h>

#include "wire/command.h"

#define PS_SIGNATURE_LEN 28
#define PS_SIGNATURE_HEX 40

/* cdef begin */
/* SHA-1 of the cryptographic library that the interpreter has loaded. A state is SHA_CTX, plain
 * bytes that may be copied: OpenSSL's EVP, which hides it, takes 0.1 us longer. */
typedef struct ps_digest_functions {
    int (*init)(void *state);
    int (*update)(void *state, const void *data, size_t len);
    int (*final)(uint8_t *sum, void *state);
    int (*differ)(const void *one, const void *other, size_t len); /* in constant time */
} ps_digest_functions;

/* A secret, as two states of the digest; and the order in which the last request had its fields,
 * which the next one mostly shares. One thread at a time uses it. */
typedef struct ps_signer ps_signer;

/* NULL: no memory, or the library refuses. */
ps_signer *ps_signer_make(const ps_digest_functions *functions, const char *secret,
                          int32_t secret_len);
void ps_signer_free(ps_signer *signer); /* NULL is harmless */
/* cdef end */

/* Writes PS_SIGNATURE_LEN characters. False: a name stands twice or holds more than ASCII, whose
 * order in Java is another one; or the library refuses. */
bool ps_signer_sign(ps_signer *signer, const ps_field *fields, int32_t count, ps_slice body,
                    char *text);
/* Whether the request that was signed last is bound to a recipient, since what is signed begins as
 * a binding does, whatever its fields are called; and the value of its first field. */
bool ps_signer_is_bound(const ps_signer *signer, ps_slice *first);
/* Signs one text, in lower hexadecimal: PS_SIGNATURE_HEX characters. False: the library
 * refuses. */
bool ps_signer_sign_text(ps_signer *signer, ps_slice text, char *hex);

#endif
