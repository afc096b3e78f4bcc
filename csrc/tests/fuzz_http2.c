/* Damaged conversations before csrc/http2: what a client wrote, with bytes changed, inserted, taken
 * away or repeated, in pieces. Nothing but the sanitizers judges, and that each ends.
 *
 * PS_FUZZ_RUNS inputs, for PS_FUZZ_SECONDS at most; PS_SEED repeats a run. */
#define _GNU_SOURCE
#include <time.h>

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

int main(void) {
    check_begin();
    record();
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
    }
    return check_end("http2");
}
