/* Requests that access control has let in before: Python decides, and grants what it decided to
 * everybody who signs with the same secret and asks for the same from the same address; the core
 * checks the signature and looks the grant up. What is not granted goes to Python, so nothing is
 * refused here. docs/internals/access.md#in-the-core */
#ifndef PS_ACCESS_H
#define PS_ACCESS_H

#include "core/remoting.h"
#include "wire/signature.h"

/* cdef begin */
/* From now on a frame is served only if it is granted; others are delegated. */
int ps_core_check_access(ps_core *core, const ps_digest_functions *functions, ps_error *error);
/* Lets in what is signed with this secret, asks by `code` for topic and group, and comes from this
 * address (4 or 16 bytes). binding: of requests that are signed for this broker alone, without
 * their nonce. No memory for it: it goes to Python again, as everything else. */
void ps_core_grant(ps_core *core, const char *key, int32_t key_len, const char *secret,
                   int32_t secret_len, const uint8_t *host, int32_t host_len, int32_t code,
                   const char *topic, int32_t topic_len, const char *group, int32_t group_len,
                   const char *binding, int32_t binding_len);
/* What the headers of a gRPC call say: whose key, the date that is signed with its secret, and the
 * signature in hexadecimal. key_len 0: they name nobody. */
typedef struct ps_proof {
    const char *key, *date, *signature;
    int32_t key_len, date_len, signature_len;
} ps_proof;
/* Frames of a connection have `bytes` at most until ps_conn_know; larger ones are malformed. 0: as
 * any others. */
void ps_core_limit_first(ps_core *core, int64_t bytes);
void ps_conn_know(ps_conn *conn);
/* Whoever writes to this connection asks access control first: nothing of it is refused here. */
void ps_conn_let_in(ps_conn *conn);
/* Whether a request of it was let in. */
bool ps_conn_known(const ps_conn *conn);
/* Frames that were larger. */
int64_t ps_core_first_refused(const ps_core *core);
/* Forgets all grants and secrets. */
void ps_core_revoke(ps_core *core);
/* Requests that were let in here. */
int64_t ps_core_let_in(const ps_core *core);
/* cdef end */

typedef struct ps_access ps_access;

/* Whether a frame of this connection is granted. */
bool ps_access_granted(ps_conn *conn, const ps_command *request);
/* Whether a gRPC call of this connection may be served: access control is off, or the call proves
 * its key, which both codes are granted to. proof NULL: it names nobody. */
bool ps_access_lets_call(ps_conn *conn, const ps_proof *proof, int32_t code, int32_t also,
                         ps_slice topic, ps_slice group);
void ps_access_free(ps_access *access);

#endif
