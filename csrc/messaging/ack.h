/* AckMessage whose entries all have handles of the usual form, read from its protobuf; and the
 * reply when all of them count. Others are for broker/grpc/acking.py, which has the rules; this one
 * never refuses. docs/internals/grpc.md#receipt-handles */
#ifndef PS_HTTP2_ACK_H
#define PS_HTTP2_ACK_H

#include "format/handle.h"
#include "messaging/proto.h"

#define PS_H2_ACKS_MAX 64

typedef struct ps_h2_ack { /* texts are borrowed */
    ps_h2_text id, handle;
    ps_handle read; /* the handle's fields */
} ps_h2_ack;

typedef struct ps_h2_acks {
    ps_h2_text group, topic;
    int32_t count;
    ps_h2_ack each[PS_H2_ACKS_MAX];
} ps_h2_acks;

/* False: it is not plain. */
bool ps_h2_acks_read(const uint8_t *data, int64_t len, ps_h2_acks *out);

/* Bytes that the reply has at most. */
int64_t ps_h2_acks_room(const ps_h2_acks *a);
/* The reply that all of them count: its bytes. */
int64_t ps_h2_acks_reply(const ps_h2_acks *a, uint8_t *to);

#endif
