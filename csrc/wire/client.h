/* A client's share of the protocol in bulk: requests that send, the answers to them, the records of
 * a pull. Bytes in, bytes out, no I/O, no allocation. docs/internals/wire.md#sending. */
#ifndef PS_CLIENT_H
#define PS_CLIENT_H

#include "base/bytes.h"
#include "format/fields.h"
#include "wire/command.h"
#include "wire/signature.h"

/* cdef begin */
/* A request that sends one message: `base`, a whole frame with binary header and without body, that
 * holds the fields which do not change (of 310: a to e, j, k, m, n), and the fields that do: f, g,
 * h, i. signer: signs it; base then has AccessKey, and no empty value. NULL: nobody does. Returns
 * the bytes of the frame; more than `room`: nothing was written and so many are enough; PS_E_FRAME:
 * base is not such a frame, the header gets too large, or it cannot be signed. */
int64_t ps_client_send(const uint8_t *base, int64_t base_len, int32_t opaque, int32_t sys_flag,
                       int32_t flag, int64_t born_ms, const uint8_t *properties,
                       int32_t properties_len, const uint8_t *body, int64_t body_len,
                       ps_signer *signer, uint8_t *out, int64_t room, ps_error *error);

/* The body of a batch: `count` messages, their bodies in one run and their properties in another.
 * The caller has added up the lengths; `room` is at least bodies + properties + PS_ITEM_FIXED for
 * each. Returns the bytes written; PS_E_ARGUMENT: a length is negative, properties are too long, or
 * the room is too small. docs/internals/format.md#batch */
int64_t ps_client_batch(const uint8_t *bodies, const int32_t *body_lens, const int32_t *flags,
                        const uint8_t *properties, const int32_t *properties_lens, int32_t count,
                        uint8_t *out, int64_t room, ps_error *error);

/* A frame that a server sent. */
typedef struct ps_answered {
    int32_t sent;   /* 1: it has the fields of a send's answer, and what follows is set */
    int32_t opaque; /* of any answer; 0: a request of the server's own */
    int32_t code, queue_id;
    int64_t queue_offset;
    int64_t at, size;       /* the frame */
    int64_t ids_at, ids_len; /* the offset message ids */
    int64_t tx_at, tx_len;  /* transactionId; tx_len 0: there is none */
} ps_answered;

/* Cuts [in, in + len) into frames, `room` at most. Returns their number; *used: the bytes of them;
 * *wanted: bytes of the frame that has begun after them, 0 when they are not yet known. PS_E_FRAME:
 * the connection cannot go on. scratch: PS_HEADER_MAX bytes. */
int32_t ps_client_answers(const uint8_t *in, int64_t len, int64_t frame_max, uint8_t *scratch,
                          ps_answered *out, int32_t room, int64_t *used, int64_t *wanted,
                          ps_error *error);

/* How many of these rows hold several messages in their body, as records of upstream's topics with
 * queue.type=BatchCQ do. */
int32_t ps_client_batches(const ps_fields *rows, int32_t count);
/* The rows with a row a message instead of each such one; at most `room` are written. Returns how
 * many there are. -1: a batch is malformed or compressed. Upstream: MessageDecoder.decodeMessage */
int32_t ps_client_unpack(const uint8_t *in, const ps_fields *rows, int32_t count, ps_fields *out,
                         int32_t room);
/* The first of these rows whose record names another topic; their number: none does. */
int32_t ps_client_other_topic(const uint8_t *in, const ps_fields *rows, int32_t count,
                              const char *topic, int32_t topic_len);
/* cdef end */

/* The items of a batch, beside ps_client_batch for callers that have no arrays of them. */
static inline int64_t ps_batch_item_size(int64_t body_len, int64_t properties_len) {
    return PS_ITEM_FIXED + body_len + properties_len;
}

/* Writes an item but for its properties, and returns their place. */
static inline uint8_t *ps_batch_item_put(uint8_t *to, int32_t flag, const void *body,
                                         int64_t body_len, int64_t properties_len) {
    be32_put(to + PS_AT_SIZE, (uint32_t)ps_batch_item_size(body_len, properties_len));
    memset(to + PS_AT_MAGIC, 0, PS_ITEM_FLAG - PS_AT_MAGIC);
    be32_put(to + PS_ITEM_FLAG, (uint32_t)flag);
    be32_put(to + PS_ITEM_BODY_LEN, (uint32_t)body_len);
    memcpy(to + PS_ITEM_BODY, body, (size_t)body_len);
    be16_put(to + PS_ITEM_BODY + body_len, (uint16_t)properties_len);
    return to + PS_ITEM_FIXED + body_len;
}

#endif
