/* ReceiveMessage read out of its protobuf, and the replies around the messages. Requests that are
 * not plain are for broker/grpc/receiving.py, which has the rules; this one never refuses.
 * docs/internals/grpc.md#receiving */
#ifndef PS_HTTP2_RECEIVE_H
#define PS_HTTP2_RECEIVE_H

#include "messaging/proto.h"

typedef struct ps_h2_receive { /* texts are borrowed */
    ps_h2_text group, topic;
    ps_h2_text filter;  /* tags or SQL92; NULL: every message */
    ps_h2_text attempt; /* which ordered groups alone look at */
    int32_t batch;     /* messages, at least 1 */
    bool sql, renews;
    int64_t invisible_ms; /* 0: it does not say */
    int64_t poll_ms;      /* -1: it does not say */
} ps_h2_receive;

/* False: it is not plain. */
bool ps_h2_receive_read(const uint8_t *data, int64_t len, ps_h2_receive *out);

#define PS_H2_RECEIVED_MAX 32
/* The time that ends the messages of a reply: its bytes. */
int64_t ps_h2_receive_end(int64_t now_ms, uint8_t to[PS_H2_RECEIVED_MAX]);

#endif
