/* SendMessage with one message that asks for nothing but to be stored, read from its protobuf and
 * written as the properties that are stored: what nearly every send is. Others, and those with
 * anything wrong, are for broker/grpc/sending.py, which has the rules; this one never refuses.
 * docs/internals/grpc.md#properties */
#ifndef PS_HTTP2_MESSAGE_H
#define PS_HTTP2_MESSAGE_H

#include "http2/proto.h"

#define PS_H2_PROPERTIES_MAX 4096

typedef struct ps_h2_message { /* texts are borrowed */
    ps_h2_text topic, id;
    const uint8_t *body;
    int64_t body_len, born_ms;
    int32_t properties_len;
    char properties[PS_H2_PROPERTIES_MAX];
} ps_h2_message;

/* host: of the client, for a message that names none. False: it is not plain. */
bool ps_h2_message_read(const uint8_t *data, int64_t len, int64_t body_max, int64_t texts_max,
                        ps_h2_text host, ps_h2_message *out);

#define PS_H2_REPLY_MAX (96 + 2 * 1024)
/* The reply for a message that was stored there: its bytes, or 0 for an id beyond 1024 bytes. */
int64_t ps_h2_message_reply(ps_h2_text id, int64_t offset, uint8_t to[PS_H2_REPLY_MAX]);

#endif
