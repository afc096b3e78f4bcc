/* SendMessage with one message of any kind, read from its protobuf and written as the properties
 * that are stored. It never refuses: what is wrong is for broker/grpc/checks.py, whose rules name
 * it. Fields that come twice are wrong here; protobuf itself writes none.
 * docs/internals/grpc.md#properties */
#ifndef PS_HTTP2_MESSAGE_H
#define PS_HTTP2_MESSAGE_H

#include "format/layout.h"
#include "format/messagetype.h"
#include "messaging/names.h"
#include "messaging/proto.h"

typedef struct ps_h2_limits {
    int64_t body_min, body_max; /* bytes */
    int64_t texts_max; /* bytes of tag, keys and the user's properties */
    int32_t user_max;  /* properties of the user's */
    int32_t group_max; /* a message group has fewer bytes */
    int32_t lite_max;  /* most bytes of a lite topic */
    int64_t recovery_max_s; /* of an orphaned transaction */
    int64_t delay_max_ms;   /* from now on */
    ps_h2_names reserved;   /* properties that users may not set */
} ps_h2_limits;

typedef struct ps_h2_message { /* texts are borrowed */
    ps_h2_text topic, id;
    ps_h2_text key; /* whose queue it goes to: a message group or a lite topic; empty: any */
    int32_t kind; /* PS_TYPE_ */
    bool zipped; /* the body, with gzip */
    const uint8_t *body;
    int64_t body_len, born_ms;
    int32_t properties_len;
    char properties[PS_PROPERTIES_MAX];
} ps_h2_message;

/* host: of the client, for a message that names none. False: something about it is wrong. */
bool ps_h2_message_read(const uint8_t *data, int64_t len, const ps_h2_limits *limits,
                        ps_h2_text host, ps_h2_message *out);

#define PS_H2_ID_MAX 1024
#define PS_H2_BROKER_MAX 255 /* bytes of a broker's name */
#define PS_H2_REPLY_MAX (128 + 6 * PS_H2_ID_MAX)
/* The reply for a message that was stored there: its bytes. id: PS_H2_ID_MAX bytes at most.
 * transaction: its id, which is that of the message when it is in none. recall: the handle by which
 * a timer is recalled; NULL: it is none. */
int64_t ps_h2_message_reply(ps_h2_text id, ps_h2_text transaction, ps_h2_text recall,
                            int64_t offset, uint8_t to[PS_H2_REPLY_MAX]);

#endif
