/* Signatures of requests: HMAC-SHA1 over the values of all fields but Signature, in the order of
 * their names, then the body, in base64. docs/internals/access.md#signatures */
#ifndef PS_SIGNATURE_H
#define PS_SIGNATURE_H

#include <stdbool.h>

#include "remoting/command.h"

#define PS_SIGNATURE_LEN 28

/* cdef begin */
/* Functions of the cryptographic library that the interpreter has loaded (OpenSSL's EVP). */
typedef struct ps_digest_functions {
    void *(*make)(void);
    void (*drop)(void *context);
    int (*copy)(void *to, const void *from);
    int (*init)(void *context, const void *type, void *engine);
    int (*update)(void *context, const void *data, size_t len);
    int (*final)(void *context, uint8_t *out, unsigned *len);
    int (*differ)(const void *one, const void *other, size_t len); /* in constant time */
    const void *sha1;
} ps_digest_functions;

/* A secret, as two states of the digest. One thread at a time uses it. */
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

#endif
