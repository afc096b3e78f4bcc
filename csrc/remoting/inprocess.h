/* Sends of a producer that lives in the broker's own process: composed, served and answered in one
 * call, by the functions that serve what a connection reads. */
#ifndef PS_INPROCESS_H
#define PS_INPROCESS_H

#include "wire/client.h"
#include "core/remoting.h"

/* cdef begin */
/* What ps_client_send would write to this connection, served as if ps_conn_received had read it.
 * 1: that is done, and *out has what it brought about; answer->sent is 1 when the message is stored
 * and answered now, by texts in out->out, and 0 when the answer comes in another way that *out
 * names. 0 or an error: nothing has happened, and the frame must go through the connection: it is
 * too large for the shared room, part of another one is still to come, nobody knows yet who sends
 * it, or it is malformed. */
int ps_conn_send(ps_conn *conn, const uint8_t *base, int64_t base_len, int32_t opaque,
                 int32_t sys_flag, int32_t flag, int64_t born_ms, const uint8_t *properties,
                 int32_t properties_len, const uint8_t *body, int64_t body_len, ps_signer *signer,
                 ps_answered *answer, ps_step *out, ps_error *error);
/* cdef end */

#endif
