/* The wire format of protobuf, as much of it as plain requests and replies have. What is unusual in
 * it makes a request one that is not plain: such go to broker/grpc, which has protobuf itself. */
#ifndef PS_HTTP2_PROTO_H
#define PS_HTTP2_PROTO_H

#include <stdbool.h>
#include <stdint.h>

#define PS_H2_TEXT_MAX 32767
#define PS_PROTO_VARINT_MAX 10 /* bytes */
#define PS_GRPC_CODE_OK 20000  /* of the schema's Code */

typedef struct ps_h2_text { /* NULL: absent or empty; else UTF-8 without control characters */
    const char *data;
    int32_t len;
} ps_h2_text;

typedef struct ps_proto_field {
    uint32_t number;
    bool is_number;
    uint64_t value;
    const uint8_t *data;
    int64_t len;
} ps_proto_field;

typedef struct ps_proto_reader { /* of one message */
    const uint8_t *at, *end;
    uint32_t seen; /* a bit for each number: what comes twice is not plain */
} ps_proto_reader;

static inline ps_proto_reader ps_proto_reader_of(const uint8_t *data, int64_t len) {
    return (ps_proto_reader){data, data + len, 0};
}

static inline bool ps_proto_first(ps_proto_reader *r, const ps_proto_field *f) {
    uint32_t bit = 1u << f->number;
    bool first = !(r->seen & bit);
    r->seen |= bit;
    return first;
}

/* The next field; r->at < r->end. False: it is not plain. */
bool ps_proto_next(ps_proto_reader *r, ps_proto_field *out);

/* A text without control characters, as Java sees them. An empty one is none. */
bool ps_proto_text(const ps_proto_field *f, ps_h2_text *out);
/* Whether it is empty, or of blanks alone, as Python and Java strip them. */
bool ps_proto_blank(ps_h2_text text);

/* Resource: its name; its namespace counts for nothing. */
bool ps_proto_resource(const ps_proto_field *in, ps_h2_text *name);

/* How many fields and elements a message has with all that are in it, up to `most` and one more: to
 * parse one takes as long. It ends where the message is malformed. shapes: for each kind of message
 * where its pairs begin, and after the last where they end; then the pairs: a field's number, and
 * the kind of message in it, or PS_PROTO_PACKED. kind: of this message. */
#define PS_PROTO_PACKED (-1) /* numbers, which may stand in one field */
int64_t ps_proto_count(const uint8_t *data, int64_t len, const int32_t *shapes, int32_t kind,
                       int64_t most);

uint8_t *ps_proto_put_varint(uint8_t *to, uint64_t value);
uint8_t *ps_proto_put_bytes(uint8_t *to, uint8_t number, const void *data, int64_t len);
/* Status: OK. */
#define PS_PROTO_OK_MAX 16
uint8_t *ps_proto_put_ok(uint8_t *to, uint8_t number);

#endif
