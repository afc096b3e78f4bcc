/* HAProxy's PROXY protocol: what a proxy says of a connection before its first bytes.
 *
 * Version 1: "PROXY TCP4|TCP6 source destination source-port destination-port CR LF", 107 bytes at
 * most, or "PROXY UNKNOWN ... CR LF".
 *
 * Version 2:
 *
 * | offset | width | meaning |
 * |---|---|---|
 * | 0 | 12 | signature CR LF CR LF 0 CR LF Q U I T LF |
 * | 12 | 1 | version 2 in the high half; command in the low half: 0 LOCAL, 1 PROXY |
 * | 13 | 1 | address family in the high half: 1 IPv4, 2 IPv6; protocol in the low half |
 * | 14 | 2 | bytes that follow: addresses, ports, then what we pass over; 4096 at most |
 * | 16 | 4 or 16 | source address; destination address, source port, destination port follow |
 *
 * Neither can be the begin of a frame, whose first byte is the top one of a length below 16 MiB. */
#ifndef PS_PROXYHEADER_H
#define PS_PROXYHEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define PS_PROXY_HEAD 107 /* bytes of version 1, and more than what we keep of version 2 */

typedef struct ps_proxyheader {
    uint8_t px_head[PS_PROXY_HEAD]; /* what came of it, but for what is passed over */
    int32_t px_len;
    int32_t px_rest;    /* bytes that are still to be passed over */
    bool px_whole;
    int32_t px_host_len; /* 0: it names no source */
    uint8_t px_host[20]; /* the source as the core has hosts: address, port in four bytes */
} ps_proxyheader;

/* Whether a header may begin with it. */
bool ps_proxyheader_begins(uint8_t first);
/* Takes what comes, and returns how many of these bytes are the header's: all of them, until it is
 * whole. All zeros: nothing has come yet. Errors: PS_E_FRAME. */
int64_t ps_proxyheader_take(ps_proxyheader *p, const uint8_t *data, int64_t len, ps_error *e);

#endif
