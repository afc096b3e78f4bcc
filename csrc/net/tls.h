/* TLS of links: a server's context, and what one connection has of it. The library is the OpenSSL 3
 * that is there when the program runs, most often the one that Python itself uses, so that its
 * mends come from where all others come from, and a build needs nothing of it. */
#ifndef PS_TLS_H
#define PS_TLS_H

#include <stdbool.h>
#include <stdint.h>

#include "net/net.h"

typedef struct ps_tls_link ps_tls_link;

/* For an accepted socket that does not block. NULL: no memory. */
ps_tls_link *ps_tls_begin(ps_tls *tls, int fd);
void ps_tls_end(ps_tls_link *t);
/* Goes on with the handshake. 1: it is done; 0: it waits for its peer; -1: it failed, *why says why
 * (of the thread, until its next call of these). */
int ps_tls_shake(ps_tls_link *t, const char **why);
/* Up to `room` bytes of what came. 0: there are none now; -1: the connection has ended, *why as
 * above, NULL: its peer ended it. */
int64_t ps_tls_read(ps_tls_link *t, uint8_t *to, int64_t room, const char **why);
/* How much of it the socket took; the rest is to begin the next write. -1: it has ended. */
int64_t ps_tls_write(ps_tls_link *t, const uint8_t *data, int64_t len);
/* Whether more may have come than was read, which no event of the socket tells. */
bool ps_tls_more(const ps_tls_link *t);
bool ps_tls_wants_out(const ps_tls_link *t); /* the handshake waits until the socket takes more */
void ps_tls_finish(ps_tls_link *t); /* its peer is told that the end is meant */

#endif
