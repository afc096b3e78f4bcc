/* A stored message as the reply of ReceiveMessage that hands it out: protobuf made of its record.
 * docs/internals/grpc.md#properties */
#ifndef PS_HTTP2_DELIVERY_H
#define PS_HTTP2_DELIVERY_H

#include "messaging/names.h"

#define PS_H2_IDENTITY 1 /* of the schema's Encoding */

typedef struct ps_h2_delivery { /* what the record does not say; UTF-8, borrowed */
    const char *topic; /* that it is shown with */
    int64_t topic_len;
    const char *receipt;
    int64_t receipt_len;
    const uint8_t *body; /* instead of the record's, which was inflated; NULL: that one */
    int64_t body_len;
    int32_t attempt, encoding; /* encoding: of the body, as the schema has it */
} ps_h2_delivery;

/* Bytes that ps_h2_delivery_write needs. */
int64_t ps_h2_delivery_room(int64_t record_len, const ps_h2_delivery *d);
/* Writes the reply to the end of [to, to + room). hidden: properties that are not shown among the
 * user's. Returns its bytes; 0: these bytes are no record. */
int64_t ps_h2_delivery_write(const uint8_t *record, int64_t len, const ps_h2_names *hidden,
                             const ps_h2_delivery *d, uint8_t *to, int64_t room);

#endif
