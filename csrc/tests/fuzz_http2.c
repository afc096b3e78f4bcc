/* Damaged conversations before csrc/http2: what a client wrote, with bytes changed, inserted, taken
 * away or repeated, in pieces; and damaged requests before message.c. Nothing but the sanitizers
 * judges, and that each ends.
 *
 * PS_FUZZ_RUNS inputs, for PS_FUZZ_SECONDS at most; PS_SEED repeats a run. */
#define _GNU_SOURCE
#include <time.h>

#include "http2/message.h"
#include "http2_client.h"

enum { INPUT_MAX = 1 << 16 };

static uint8_t whole[INPUT_MAX], now[2 * INPUT_MAX];
static int64_t whole_len, now_len;

static int64_t setting(const char *name, int64_t otherwise) {
    const char *given = getenv(name);
    return given != NULL ? strtoll(given, NULL, 10) : otherwise;
}

/* Calls of every kind, one of them given up. */
static void record(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    static uint8_t body[4][6000];
    upload u[4];
    for (int i = 0; i < 4; i++) {
        size_t len = 0;
        while (len < 1000u * (unsigned)i + 10) len += message_put(body[i] + len, "some request");
        u[i] = (upload){body[i], i < 2 ? message_put(body[i], "only") : len};
    }
    client_call(c, UNARY, &u[0], "grpc-timeout", "5S");
    client_call(c, STREAM, &u[2], "authorization", "MQv2 abc");
    int32_t given_up = client_call(c, STREAM, &u[3], "x", "y");
    converse(c, h);
    nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, given_up, NGHTTP2_CANCEL);
    nghttp2_submit_ping(c->session, NGHTTP2_FLAG_NONE, NULL);
    client_call(c, UNARY, &u[1], "grpc-encoding", "identity");
    converse(c, h);
    whole_len = c->sent_len;
    memcpy(whole, c->sent, (size_t)whole_len);
    ps_h2_free(h);
    client_free(c);
}

static void damage(void) {
    int64_t preface = check_below(64) == 0 ? 0 : 24; /* else nothing after it is looked at */
    int64_t at = preface + check_below(now_len - preface), left = now_len - at;
    int64_t some = 1 + check_below(left < 40 ? left : 40);
    switch (check_below(5)) {
    case 0:
        now[at] ^= (uint8_t)(1 << check_below(8));
        break;
    case 1:
        now[at] = (uint8_t)check_random();
        break;
    case 2:
        memmove(now + at, now + at + some, (size_t)(left - some));
        now_len -= some;
        break;
    case 3: /* the same again */
        if (now_len + some > (int64_t)sizeof now) break;
        memmove(now + at + some, now + at, (size_t)left);
        now_len += some;
        break;
    default: { /* a piece from elsewhere */
        int64_t from = check_below(whole_len - some);
        memcpy(now + at, whole + from, (size_t)some);
    }
    }
}

static void feed_in_pieces(void) {
    ps_h2 *h = ps_h2_new(&client_conf);
    const uint8_t *out;
    int64_t at = 0;
    bool fine = true;
    while (at < now_len && fine && !ps_h2_done(h)) {
        int64_t part = 1 + check_below(check_below(4) == 0 ? 20 : 4000);
        if (part > now_len - at) part = now_len - at;
        fine = ps_h2_feed(h, now + at, part);
        at += part;
        if (check_below(4) != 0) serve(h);
        if (check_below(4) != 0) ps_h2_pull(h, &out);
    }
    serve(h);
    if (check_below(8) == 0) ps_h2_go_away(h);
    while (ps_h2_pull(h, &out) > 0) serve(h);
    ps_h2_free(h);
}

/* A SendMessage: topic T; tag t, keys a and b, id, encoding, type, born time and host; body. */
static const uint8_t REQUEST[] =
    "\x0a\x36\x0a\x03\x12\x01T\x1a\x27\x0a\x01t\x12\x01" "a\x12\x01" "b\x1a\x0a" "0123456789"
    "\x28\x01\x30\x01\x3a\x08\x08\x80\x8f\xd4\xa6\x06\x10\x05\x42\x02vm\x22\x06" "a body";

/* In memory of its own size, so that a byte too many is seen. */
static bool read_exact(const uint8_t *data, int64_t len) {
    uint8_t *copy = malloc((size_t)len + 1), reply[PS_H2_REPLY_MAX];
    ps_h2_text host = {"192.0.2.1", 9};
    ps_h2_message m;
    memmove(copy + 1, data, (size_t)len);
    bool plain = ps_h2_message_read(copy + 1, len, 1000, 1000, host, &m);
    if (plain) ps_h2_message_reply(m.id, check_below(1 << 30), reply);
    free(copy);
    return plain;
}

static void damage_request(void) {
    int64_t len = (int64_t)sizeof REQUEST - 1;
    uint8_t data[sizeof REQUEST];
    memcpy(data, REQUEST, sizeof data);
    for (int64_t count = 1 + check_below(4); count > 0; count--)
        data[check_below(len)] = (uint8_t)check_random();
    read_exact(data, check_below(4) == 0 ? check_below(len + 1) : len);
}

int main(void) {
    check_begin();
    record();
    CHECK(read_exact(REQUEST, sizeof REQUEST - 1));
    int64_t runs = setting("PS_FUZZ_RUNS", 3000), seconds = setting("PS_FUZZ_SECONDS", 7200);
    time_t end = time(NULL) + seconds;
    for (int64_t cut = 0; cut <= whole_len; cut++) {
        memcpy(now, whole, (size_t)cut);
        now_len = cut;
        feed_in_pieces();
    }
    for (int64_t run = 0; run < runs && time(NULL) < end; run++) {
        memcpy(now, whole, (size_t)whole_len);
        now_len = whole_len;
        for (int64_t count = 1 + check_below(5); count > 0 && now_len > 64; count--) damage();
        feed_in_pieces();
        for (int i = 0; i < 20; i++) damage_request();
    }
    return check_end("http2");
}
