/* gRPC over HTTP/2 without I/O: the bytes of one connection in, calls and their messages out;
 * replies in, bytes to write out. RFC 9113 and gRPC's "gRPC over HTTP2"; frames, HPACK and the
 * state of streams are nghttp2's. docs/internals/grpc.md#transport
 *
 * Everything here belongs to one thread. A call is named by its stream; a function that gets the
 * stream of a call that is over does nothing. */
#ifndef PS_HTTP2_H
#define PS_HTTP2_H

#include "messaging/names.h"

typedef struct ps_h2 ps_h2; /* one connection, the server's side */

typedef struct ps_h2_method {
    const char *path;
    int32_t streams_in; /* its requests are handed out one by one, before the client has ended */
} ps_h2_method;

/* How long calls of a method took, from their whole request to their last reply; not those whose
 * requests stream, and not those that are over before. Threads with connections of one conf count
 * at the same time. */
#define PS_H2_BUCKETS 14
typedef struct ps_h2_times {
    int64_t sum_ns;
    int64_t buckets[PS_H2_BUCKETS]; /* up to 1, 2, 5, 10, and so on to 10,000 ms, and more */
} ps_h2_times;

typedef struct ps_h2_conf {
    const ps_h2_method *methods; /* outlive the connections, as the conf does */
    ps_h2_times *times; /* one of each method; NULL: nobody counts */
    int32_t method_count;
    int32_t streams_max;  /* calls of a connection at once */
    int32_t headers_max;  /* bytes of a call's headers */
    const ps_h2_names *headers; /* those that are handed out, in lower case; NULL: all */
    int64_t message_max;  /* bytes of a request */
    int64_t ask_from; /* a request that says it is longer has to be admitted: PS_H2_ASK */
    int64_t held_max; /* bytes of a connection's headers, requests and replies, of open calls */
} ps_h2_conf;

/* Statuses of gRPC that end calls here. */
#define PS_GRPC_OK 0
#define PS_GRPC_RESOURCE_EXHAUSTED 8
#define PS_GRPC_UNIMPLEMENTED 12
#define PS_GRPC_INTERNAL 13
#define PS_GRPC_UNAVAILABLE 14

#define PS_H2_CALL 1    /* with its one request, unless the method streams them */
#define PS_H2_MESSAGE 2 /* a request of a stream */
#define PS_H2_END 3     /* the client sends no more on a stream */
#define PS_H2_RESET 4   /* a call is over before it was finished */
#define PS_H2_DRAINED 5 /* little waits to be sent on a stream of which ps_h2_send said otherwise */
#define PS_H2_ASK 6 /* a long request has begun: until ps_h2_admit no more comes than the window
                     * of its stream holds. Its headers and method are those of PS_H2_CALL */

typedef struct ps_h2_header {
    const char *name, *value;
    int32_t name_len, value_len;
} ps_h2_header;

typedef struct ps_h2_event { /* what it points to is good until the next call of anything here */
    int32_t kind, stream;
    int32_t method;     /* of PS_H2_CALL: its place in the conf */
    int64_t timeout_ns; /* of PS_H2_CALL: grpc-timeout; -1: none */
    const uint8_t *data; /* of a request */
    int64_t len;
    const ps_h2_header *headers; /* of PS_H2_CALL: metadata, names in lower case */
    int32_t header_count;
    const uint8_t *header_block; /* the same bytes for the same headers */
    int64_t header_block_len;
} ps_h2_event;

/* NULL: no memory. */
ps_h2 *ps_h2_new(const ps_h2_conf *conf);
void ps_h2_free(ps_h2 *h);

/* Takes bytes that were read. False: the peer does not speak HTTP/2, or too much of it; the
 * connection is to be closed once what ps_h2_pull gives is written. */
bool ps_h2_feed(ps_h2 *h, const uint8_t *data, int64_t len);
/* What has happened since. False: nothing more. */
bool ps_h2_next(ps_h2 *h, ps_h2_event *out);
/* A long request may come. Who may not send it gets an answer instead. */
void ps_h2_admit(ps_h2 *h, int32_t stream);
/* One request of a stream has been served: the client may send as much again. */
void ps_h2_taken(ps_h2 *h, int32_t stream, int64_t len);

/* A reply; it is copied. last: the call is finished, and well. Bytes of the call that wait to be
 * sent; -1: the call is over; PS_H2_MUCH and above ask for a pause until PS_H2_DRAINED. */
#define PS_H2_MUCH (256 << 10)
int64_t ps_h2_send(ps_h2 *h, int32_t stream, const uint8_t *data, int64_t len, bool last);
/* True: little of the call waits to be sent, or it is over. Otherwise PS_H2_DRAINED comes. */
bool ps_h2_drained(ps_h2 *h, int32_t stream);
/* Finishes a call with a status of gRPC. text: UTF-8, NULL: none. */
void ps_h2_finish(ps_h2 *h, int32_t stream, int32_t status, const char *text);

/* Bytes to write, up to some 256 KiB; 0: none for now. Good until the next call of anything. */
int64_t ps_h2_pull(ps_h2 *h, const uint8_t **data);
/* Tells the client to begin no more calls here. */
void ps_h2_go_away(ps_h2 *h);

bool ps_h2_greeted(const ps_h2 *h); /* the client's first SETTINGS have come */
bool ps_h2_done(const ps_h2 *h);    /* nothing is left to be read or written: close it */
int32_t ps_h2_calls(const ps_h2 *h); /* in progress */
int64_t ps_h2_held(const ps_h2 *h);  /* bytes: see held_max */

/* The functions above for network threads (net/calls.c), which belong to a library that is not
 * linked with nghttp2. */
typedef struct ps_h2_functions {
    ps_h2 *(*make)(const ps_h2_conf *conf);
    void (*release)(ps_h2 *h);
    bool (*feed)(ps_h2 *h, const uint8_t *data, int64_t len);
    bool (*next)(ps_h2 *h, ps_h2_event *out);
    void (*admit)(ps_h2 *h, int32_t stream);
    void (*taken)(ps_h2 *h, int32_t stream, int64_t len);
    int64_t (*send)(ps_h2 *h, int32_t stream, const uint8_t *data, int64_t len, bool last);
    bool (*drained)(ps_h2 *h, int32_t stream);
    void (*finish)(ps_h2 *h, int32_t stream, int32_t status, const char *text);
    int64_t (*pull)(ps_h2 *h, const uint8_t **data);
    void (*go_away)(ps_h2 *h);
    bool (*greeted)(const ps_h2 *h);
    bool (*done)(const ps_h2 *h);
    int32_t (*calls)(const ps_h2 *h);
    int64_t (*held)(const ps_h2 *h);
} ps_h2_functions;
extern const ps_h2_functions ps_h2_all;

#endif
