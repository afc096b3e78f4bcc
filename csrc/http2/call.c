/* What gRPC puts into a call's frames: headers, then messages with a prefix each.
 *
 *   offset  width  meaning
 *        0      1  1: the message is compressed, which is refused
 *        1      4  length of the message, big-endian
 *        5      -  the message */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "http2/call.h"

#define FIRST_ROOM 4096 /* of a message; more is made as bytes come, whatever its prefix says */
#define TIMEOUT_DIGITS 8

static bool text_is(const uint8_t *text, size_t len, const char *what) {
    return len == strlen(what) && memcmp(text, what, len) == 0;
}

static bool text_begins(const uint8_t *text, size_t len, const char *what) {
    return len >= strlen(what) && memcmp(text, what, strlen(what)) == 0;
}

/* grpc-timeout: at most eight digits and a unit. -1: malformed, which is none. */
static int64_t timeout_of(const uint8_t *text, size_t len) {
    static const char units[] = "HMSmun";
    static const int64_t ns[] = {3600000000000, 60000000000, 1000000000, 1000000, 1000, 1};
    int64_t value = 0;
    if (len < 2 || len > TIMEOUT_DIGITS + 1) return -1;
    for (size_t i = 0; i < len - 1; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
    }
    const char *unit = memchr(units, text[len - 1], sizeof units - 1);
    if (unit == NULL) return -1;
    int64_t each = ns[unit - units];
    return value > INT64_MAX / each ? INT64_MAX : value * each;
}

static int32_t method_of(const ps_h2_conf *conf, const uint8_t *path, size_t len) {
    for (int32_t i = 0; i < conf->method_count; i++)
        if (text_is(path, len, conf->methods[i].path)) return i;
    return -1;
}

static int64_t header_size(size_t name_len, size_t value_len) {
    return (int64_t)(name_len + value_len) + 32; /* RFC 9113, 6.5.2 */
}

bool ps_h2_call_weigh(ps_h2 *h, ps_h2_call *c, size_t name_len, size_t value_len) {
    int64_t size = header_size(name_len, value_len);
    c->header_bytes += size;
    if (c->header_bytes <= h->conf->headers_max) return true;
    int64_t now = ps_monotonic_ms();
    h->excess_left += (double)(now - h->excess_ms) * PS_H2_EXCESS_A_MS;
    h->excess_ms = now;
    if (h->excess_left > PS_H2_EXCESS_MAX) h->excess_left = PS_H2_EXCESS_MAX;
    h->excess_left -= (double)size;
    return h->excess_left >= 0;
}

bool ps_h2_call_header(ps_h2 *h, ps_h2_call *c, const uint8_t *name, size_t name_len,
                       const uint8_t *value, size_t value_len) {
    if (!ps_h2_call_weigh(h, c, name_len, value_len)) return false;
    c->is_too_large = c->header_bytes > h->conf->headers_max;
    if (c->is_too_large) return true;
    int64_t size = header_size(name_len, value_len);
    c->held += size;
    h->held += size;
    if (text_is(name, name_len, ":path"))
        c->method = method_of(h->conf, value, value_len);
    else if (text_is(name, name_len, ":method"))
        c->is_post = text_is(value, value_len, "POST");
    else if (text_is(name, name_len, "content-type"))
        c->is_grpc = text_begins(value, value_len, "application/grpc");
    else if (text_is(name, name_len, "grpc-timeout"))
        c->timeout_ns = timeout_of(value, value_len);
    else if (text_is(name, name_len, "grpc-encoding"))
        c->is_compressed = !text_is(value, value_len, "identity");
    else if (name[0] != ':' && !text_begins(name, name_len, "grpc-") &&
             (h->conf->headers == NULL ||
              ps_h2_names_have(h->conf->headers, name, (int64_t)name_len))) {
        c->header_count++;
        return ps_h2_append(&c->headers, name, (int64_t)name_len) &&
               ps_h2_append(&c->headers, "", 1) &&
               ps_h2_append(&c->headers, value, (int64_t)value_len) &&
               ps_h2_append(&c->headers, "", 1);
    }
    return true;
}

bool ps_h2_call_begin(ps_h2 *h, ps_h2_call *c) {
    if (h->held > h->conf->held_max)
        ps_h2_reply_fail(h, c, PS_GRPC_RESOURCE_EXHAUSTED,
                         "too many bytes of this connection wait to be served or read");
    else if (c->is_too_large)
        ps_h2_reply_fail(h, c, PS_GRPC_RESOURCE_EXHAUSTED, "the headers of the call are too large");
    else if (!c->is_post || !c->is_grpc)
        ps_h2_reply_fail(h, c, PS_GRPC_INTERNAL,
                         "a call is a POST with content-type application/grpc");
    else if (c->method < 0)
        ps_h2_reply_fail(h, c, PS_GRPC_UNIMPLEMENTED, "there is no such method");
    else if (c->is_compressed)
        ps_h2_reply_fail(h, c, PS_GRPC_UNIMPLEMENTED,
                         "compressed calls are not supported: send grpc-encoding identity");
    else if (h->conf->methods[c->method].streams_in)
        return ps_h2_push(h, PS_H2_CALL, c, NULL);
    return true;
}

static bool has_prefix(ps_h2 *h, ps_h2_call *c) {
    c->wanted = be32_get(c->prefix + 1);
    if (c->prefix[0] != 0)
        ps_h2_reply_fail(h, c, PS_GRPC_UNIMPLEMENTED,
                         "compressed messages are not supported: send grpc-encoding identity");
    else if (c->has_message)
        ps_h2_reply_fail(h, c, PS_GRPC_INTERNAL, "the method takes one request");
    else if (c->wanted > h->conf->message_max)
        ps_h2_reply_fail(h, c, PS_GRPC_RESOURCE_EXHAUSTED,
                         "the request is larger than the largest that is received");
    if (c->refused || c->wanted <= h->conf->ask_from) return !c->refused;
    c->waits = true;
    if (!ps_h2_push(h, PS_H2_ASK, c, NULL)) h->failed = true;
    return !h->failed;
}

/* Room for all of a small message; a large one grows as its bytes come. */
static bool make_room(ps_h2_call *c) {
    ps_h2_bytes *m = &c->message;
    if (m->data != NULL || c->wanted == 0) return true;
    m->room = c->wanted < FIRST_ROOM ? c->wanted : FIRST_ROOM;
    m->data = malloc((size_t)m->room);
    return m->data != NULL;
}

/* A message is whole. */
static bool take_message(ps_h2 *h, ps_h2_call *c) {
    c->prefix_len = 0;
    c->wanted = -1;
    if (!h->conf->methods[c->method].streams_in) {
        c->has_message = true;
        return true;
    }
    c->queued++;
    return ps_h2_push(h, PS_H2_MESSAGE, c, &c->message);
}

static void hold_bytes(ps_h2 *h, ps_h2_call *c, int64_t len) {
    c->held += len;
    h->held += len;
    if (h->held > h->conf->held_max)
        ps_h2_reply_fail(h, c, PS_GRPC_RESOURCE_EXHAUSTED,
                         "too many bytes of this connection wait to be served or read");
}

bool ps_h2_call_data(ps_h2 *h, ps_h2_call *c, const uint8_t *data, int64_t len) {
    while (len > 0 && !c->refused && !c->last) {
        if (c->wanted < 0) {
            int64_t part = PS_H2_PREFIX - c->prefix_len < len ? PS_H2_PREFIX - c->prefix_len : len;
            memcpy(c->prefix + c->prefix_len, data, (size_t)part);
            c->prefix_len += (int32_t)part;
            data += part;
            len -= part;
            if (c->prefix_len < PS_H2_PREFIX) return true;
            hold_bytes(h, c, PS_H2_PREFIX);
            if (c->refused || !has_prefix(h, c)) return true;
            if (!make_room(c)) return false;
        }
        int64_t left = c->wanted - c->message.len;
        int64_t part = left < len ? left : len;
        hold_bytes(h, c, part);
        if (c->refused) return true;
        if (!ps_h2_append(&c->message, data, part)) return false;
        data += part;
        len -= part;
        if (c->message.len == c->wanted && !take_message(h, c)) return false;
    }
    return true;
}

bool ps_h2_call_end(ps_h2 *h, ps_h2_call *c) {
    if (c->refused) return true;
    if (c->wanted >= 0 || c->prefix_len > 0)
        ps_h2_reply_fail(h, c, PS_GRPC_INTERNAL, "the call ended within a request");
    else if (h->conf->methods[c->method].streams_in)
        return ps_h2_push(h, PS_H2_END, c, NULL);
    else if (!c->has_message)
        ps_h2_reply_fail(h, c, PS_GRPC_INTERNAL, "the method takes one request, and none came");
    else {
        ps_h2_call_asked(h, c);
        return ps_h2_push(h, PS_H2_CALL, c, &c->message);
    }
    return true;
}
