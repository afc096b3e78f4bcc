/* What the files of this room share. Private to csrc/http2/. */
#ifndef PS_HTTP2_CALL_H
#define PS_HTTP2_CALL_H

#include <nghttp2/nghttp2.h>

#include "http2/http2.h"

#define PS_H2_PREFIX 5 /* before each message: compressed or not, length */

typedef struct ps_h2_bytes {
    uint8_t *data;
    int64_t len, room;
} ps_h2_bytes;

typedef struct ps_h2_call {
    struct ps_h2_call *next, **link; /* list of the open ones */
    int32_t id, refs; /* the stream's, and one for each event */
    int32_t method;   /* -1: its path has not come, or is unknown */
    int64_t timeout_ns;
    int64_t asked_ns; /* monotonic, when its request was whole; 0: it was not, or was timed */
    bool is_post, is_grpc, is_compressed, is_too_large;
    bool told;     /* its PS_H2_CALL is queued or was handed out */
    bool refused;  /* ended here: what still comes is dropped */
    bool answered; /* HEADERS of the reply are queued */
    bool last;     /* so is the status */
    bool stopped;  /* nothing to send: nghttp2 asks again when resumed */
    bool is_much;  /* ps_h2_send said so */
    bool closed;
    ps_h2_bytes headers; /* name 0x00 value 0x00, and so on */
    int32_t header_count;
    int64_t header_bytes; /* as RFC 9113, 6.5.2 counts them */

    uint8_t prefix[PS_H2_PREFIX];
    int32_t prefix_len;
    int64_t wanted; /* bytes of the message; -1: its prefix is not whole */
    ps_h2_bytes message;
    bool has_message; /* unary: it is whole */
    bool waits;       /* until it is admitted, its window stays as it is */
    int64_t held;     /* of ps_h2.held */
    int64_t queued, kept; /* requests of a stream that are not taken; bytes of its window that are
                           * not given back */

    ps_h2_bytes out;
    int64_t out_from;
    int32_t status;
    char *text; /* of the status, percent-encoded; NULL: none */
} ps_h2_call;

typedef struct ps_h2_queued { /* an event */
    int32_t kind;
    ps_h2_call *call;
    ps_h2_bytes data;
} ps_h2_queued;

struct ps_h2 {
    const ps_h2_conf *conf;
    nghttp2_session *session;
    ps_h2_queued *events;
    int32_t event_from, event_count, event_room;
    ps_h2_bytes given;         /* data of the event that was handed out last */
    ps_h2_call *given_call;    /* whose headers were */
    ps_h2_header *header_list;
    int32_t header_room;
    ps_h2_bytes out;
    int64_t held;
    int32_t calls;
    ps_h2_call *open;
    double resets_left;  /* calls that may still be cancelled */
    int64_t resets_ms;   /* when that was counted */
    double excess_left;  /* bytes of headers that may still be too many */
    int64_t excess_ms;
    bool greeted, failed;
};

/* events.c */
bool ps_h2_append(ps_h2_bytes *b, const void *data, int64_t len); /* false: no memory */
void ps_h2_release(ps_h2_bytes *b);
void ps_h2_unref(ps_h2_call *c);
/* Queues an event; takes over `data`, when there is any. */
bool ps_h2_push(ps_h2 *h, int32_t kind, ps_h2_call *c, ps_h2_bytes *data);

/* call.c */
/* Bytes of headers beyond what was agreed upon, of all calls of a connection: so many at once, and
 * so many a ms. A byte of a frame may name kilobytes of the table, each of which is looked at. */
#define PS_H2_EXCESS_MAX (512 << 10)
#define PS_H2_EXCESS_A_MS (1 << 10)
/* Counts a header, or a trailer. False: far too many bytes of them. */
bool ps_h2_call_weigh(ps_h2 *h, ps_h2_call *c, size_t name_len, size_t value_len);
/* A header of a request. False: no memory, or far too many bytes of headers. */
bool ps_h2_call_header(ps_h2 *h, ps_h2_call *c, const uint8_t *name, size_t name_len,
                       const uint8_t *value, size_t value_len);
/* Its headers are whole. */
bool ps_h2_call_begin(ps_h2 *h, ps_h2_call *c);
/* Bytes of messages. */
bool ps_h2_call_data(ps_h2 *h, ps_h2_call *c, const uint8_t *data, int64_t len);
/* The client sends no more. */
bool ps_h2_call_end(ps_h2 *h, ps_h2_call *c);

/* times.c */
void ps_h2_call_asked(ps_h2 *h, ps_h2_call *c);    /* its request is whole */
void ps_h2_call_answered(ps_h2 *h, ps_h2_call *c); /* its last reply is known */

/* reply.c */
void ps_h2_reply_fail(ps_h2 *h, ps_h2_call *c, int32_t status, const char *text);

#endif
