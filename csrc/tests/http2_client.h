/* The other end of csrc/http2: nghttp2's client, and a server that replies what it was asked. */
#ifndef PS_HTTP2_CLIENT_H
#define PS_HTTP2_CLIENT_H

#include <nghttp2/nghttp2.h>

#include "base/bytes.h"
#include "check.h"
#include "http2/http2.h"

#define UNARY "/s/Unary"
#define STREAM "/s/Stream"

static const ps_h2_method client_methods[] = {{UNARY, 0}, {STREAM, 1}};
static const ps_h2_conf client_conf = {.methods = client_methods,
                                       .method_count = 2,
                                       .streams_max = 100,
                                       .headers_max = 4096,
                                       .message_max = 100000,
                                       .ask_from = 20000,
                                       .held_max = 200000};

typedef struct upload { /* what a call of the client sends */
    const uint8_t *data;
    size_t len;
} upload;

typedef struct client { /* and what it has read */
    nghttp2_session *session;
    uint8_t sent[1 << 20]; /* all that it wrote */
    int64_t sent_len;
    uint8_t got[1 << 20]; /* of all calls */
    int64_t got_len;
    char status[8], text[256]; /* of the call that ended last */
    int ended, resets;
    bool gone; /* there was a GOAWAY */
} client;

static ssize_t upload_read(nghttp2_session *session, int32_t stream, uint8_t *to, size_t room,
                           uint32_t *flags, nghttp2_data_source *source, void *user) {
    upload *u = source->ptr;
    size_t part = u->len < room ? u->len : room;
    (void)session, (void)stream, (void)user;
    memcpy(to, u->data, part);
    u->data += part;
    u->len -= part;
    if (u->len == 0) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)part;
}

static int client_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                         size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                         void *user) {
    client *c = user;
    (void)session, (void)frame, (void)flags;
    if (name_len == 11 && memcmp(name, "grpc-status", 11) == 0)
        snprintf(c->status, sizeof c->status, "%.*s", (int)value_len, (const char *)value);
    if (name_len == 12 && memcmp(name, "grpc-message", 12) == 0)
        snprintf(c->text, sizeof c->text, "%.*s", (int)value_len, (const char *)value);
    return 0;
}

static int client_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
                       size_t len, void *user) {
    client *c = user;
    (void)session, (void)flags, (void)stream;
    memcpy(c->got + c->got_len, data, len);
    c->got_len += (int64_t)len;
    return 0;
}

static int client_close(nghttp2_session *session, int32_t stream, uint32_t error, void *user) {
    client *c = user;
    (void)session, (void)stream;
    c->ended++;
    c->resets += error != 0;
    return 0;
}

static int client_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    (void)session;
    if (frame->hd.type == NGHTTP2_GOAWAY) ((client *)user)->gone = true;
    return 0;
}

static client *client_new(void) {
    client *c = calloc(1, sizeof *c);
    nghttp2_session_callbacks *callbacks;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, client_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, client_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, client_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, client_frame);
    CHECK(nghttp2_session_client_new(&c->session, callbacks, c) == 0);
    nghttp2_session_callbacks_del(callbacks);
    CHECK(nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, NULL, 0) == 0);
    return c;
}

static void client_free(client *c) {
    nghttp2_session_del(c->session);
    free(c);
}

#define NV(name, value)                                                      \
    {(uint8_t *)(name), (uint8_t *)(value), strlen(name), strlen(value), 0}

/* Begins a call; u must stay until it is sent, and ends it. NULL: it has no body. extra: one more
 * header. Its stream. */
static int32_t client_call(client *c, const char *path, upload *u, const char *extra,
                           const char *value) {
    nghttp2_nv headers[] = {NV(":method", "POST"), NV(":scheme", "http"), NV(":path", path),
                            NV(":authority", "h"), NV("content-type", "application/grpc"),
                            NV("x-mq-client-id", "me"), NV(extra, value)};
    nghttp2_data_provider body = {{.ptr = u}, upload_read};
    return nghttp2_submit_request(c->session, NULL, headers, sizeof headers / sizeof *headers,
                                  u != NULL ? &body : NULL, NULL);
}

/* What it has to write, which stays in c->sent too: how many bytes, *at where. */
static int64_t client_write(client *c, const uint8_t **at) {
    const uint8_t *part;
    ssize_t len;
    int64_t from = c->sent_len;
    while ((len = nghttp2_session_mem_send(c->session, &part)) > 0) {
        CHECK(c->sent_len + len <= (int64_t)sizeof c->sent);
        memcpy(c->sent + c->sent_len, part, (size_t)len);
        c->sent_len += len;
    }
    *at = c->sent + from;
    return c->sent_len - from;
}

/* Messages with their prefixes into `to`: how many bytes. */
static size_t message_put(uint8_t *to, const char *text) {
    to[0] = 0;
    be32_put(to + 1, (uint32_t)strlen(text));
    memcpy(to + 5, text, strlen(text));
    return 5 + strlen(text);
}

/* Serves what has come by sending each request back; a unary call is finished by that, a stream at
 * its end. Events that there were. */
static CHECK_UNUSED int serve(ps_h2 *h) {
    ps_h2_event event;
    int count = 0;
    while (ps_h2_next(h, &event)) {
        count++;
        if (event.kind == PS_H2_ASK) ps_h2_admit(h, event.stream);
        if (event.kind == PS_H2_CALL && event.method == 0)
            ps_h2_send(h, event.stream, event.data, event.len, true);
        if (event.kind == PS_H2_MESSAGE) {
            int64_t len = event.len;
            ps_h2_send(h, event.stream, event.data, len, false);
            ps_h2_taken(h, event.stream, len);
        }
        if (event.kind == PS_H2_END) ps_h2_finish(h, event.stream, 0, NULL);
    }
    return count;
}

/* Both ends, until neither has anything to say. False: the server wants no more of it. */
static CHECK_UNUSED bool converse(client *c, ps_h2 *h) {
    for (;;) {
        const uint8_t *at;
        int64_t there = client_write(c, &at);
        if (there > 0 && !ps_h2_feed(h, at, there)) return false;
        serve(h);
        int64_t back = ps_h2_pull(h, &at);
        if (back > 0) nghttp2_session_mem_recv(c->session, at, (size_t)back);
        if (there == 0 && back == 0) return true;
    }
}

#endif
