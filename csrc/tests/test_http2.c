/* csrc/http2: calls and replies between it and nghttp2's own client. */
#define _GNU_SOURCE
#include <time.h>

#include "http2_client.h"

static void a_unary_call_is_answered(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    uint8_t bytes[64];
    upload u = {bytes, message_put(bytes, "hello")};
    client_call(c, UNARY, &u, "x", "y");
    CHECK(converse(c, h));
    CHECK(c->ended == 1 && c->resets == 0 && strcmp(c->status, "0") == 0);
    CHECK(c->got_len == 10 && memcmp(c->got + 5, "hello", 5) == 0);
    CHECK(ps_h2_greeted(h) && ps_h2_calls(h) == 0 && !ps_h2_done(h));
    ps_h2_free(h);
    client_free(c);
}

static void a_stream_gets_each_request_and_its_end(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    uint8_t bytes[64];
    size_t len = message_put(bytes, "one");
    len += message_put(bytes + len, "");
    len += message_put(bytes + len, "three");
    upload u = {bytes, len};
    client_call(c, STREAM, &u, "x", "y");
    CHECK(converse(c, h));
    CHECK(c->ended == 1 && strcmp(c->status, "0") == 0);
    CHECK(c->got_len == (int64_t)len);
    ps_h2_free(h);
    client_free(c);
}

/* Whatever pieces its bytes come in, a conversation has the same events and answers. */
static void bytes_may_come_in_any_pieces(void) {
    client *c = client_new();
    uint8_t one[64], two[64];
    upload u = {one, message_put(one, "hello")}, v = {two, message_put(two, "again")};
    const uint8_t *at;
    client_call(c, UNARY, &u, "grpc-timeout", "5S");
    client_call(c, STREAM, &v, "x", "y");
    int64_t all = client_write(c, &at);
    for (int64_t cut = 0; cut <= all; cut++) {
        ps_h2 *h = ps_h2_new(&client_conf);
        CHECK(ps_h2_feed(h, at, cut));
        int count = serve(h);
        CHECK(ps_h2_feed(h, at + cut, all - cut));
        CHECK(count + serve(h) == 4); /* a call; a call, its message and its end */
        ps_h2_free(h);
    }
    client_free(c);
}

static void a_call_knows_its_headers_and_deadline(void) {
    static const struct {
        const char *text;
        int64_t ns;
    } timeouts[] = {{"5S", 5000000000},          {"250m", 250000000},
                    {"4999807u", 4999807000},    {"31535999M", 31535999 * 60000000000},
                    {"99999999H", INT64_MAX},    {"7n", 7},
                    {"", -1},                    {"S", -1},
                    {"123456789S", -1},          {"1x", -1},
                    {"-1S", -1}};
    for (size_t i = 0; i < sizeof timeouts / sizeof *timeouts; i++) {
        client *c = client_new();
        ps_h2 *h = ps_h2_new(&client_conf);
        ps_h2_event event;
        const uint8_t *at;
        uint8_t bytes[64];
        upload u = {bytes, message_put(bytes, "")};
        client_call(c, UNARY, &u, "grpc-timeout", timeouts[i].text);
        int64_t len = client_write(c, &at);
        CHECK(ps_h2_feed(h, at, len) && ps_h2_next(h, &event));
        CHECK(event.kind == PS_H2_CALL && event.method == 0 && event.len == 0);
        CHECK_EQ(event.timeout_ns, timeouts[i].ns);
        bool found = false;
        for (int32_t k = 0; k < event.header_count; k++)
            found |= strcmp(event.headers[k].name, "x-mq-client-id") == 0 &&
                     strcmp(event.headers[k].value, "me") == 0;
        CHECK(found);
        ps_h2_free(h);
        client_free(c);
    }
}

/* What open calls hold is known, headers included, and given back when they are over. */
static void headers_are_counted(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    char value[2001];
    const uint8_t *at;
    uint8_t bytes[64];
    upload half[10];
    memset(value, 'a', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    size_t len = message_put(bytes, "hello");
    for (int i = 0; i < 10; i++) {
        half[i] = (upload){bytes, len};
        client_call(c, UNARY, &half[i], "x", value);
    }
    int64_t there = client_write(c, &at);
    CHECK(ps_h2_feed(h, at, there));
    CHECK(ps_h2_calls(h) == 10 && ps_h2_held(h) > 10 * 2000 && ps_h2_held(h) < 10 * 4000);
    CHECK(converse(c, h) && c->ended == 10);
    CHECK_EQ(ps_h2_held(h), 0);
    ps_h2_free(h);
    client_free(c);
}

/* A long request says who asks before more of it comes than a window holds. */
static void a_long_request_waits_until_it_is_admitted(void) {
    static uint8_t large[90000];
    for (int refused = 0; refused < 2; refused++) {
        client *c = client_new();
        ps_h2 *h = ps_h2_new(&client_conf);
        ps_h2_event event;
        const uint8_t *at;
        be32_put(large + 1, sizeof large - 5);
        upload u = {large, sizeof large};
        client_call(c, UNARY, &u, "x", "y");
        int64_t there = client_write(c, &at);
        CHECK(ps_h2_feed(h, at, there) && ps_h2_next(h, &event));
        CHECK(event.kind == PS_H2_ASK && event.method == 0 && event.header_count > 0);
        if (refused) {
            ps_h2_send(h, event.stream, large + 5, 1, true);
            CHECK(converse(c, h) && c->got_len == 6);
        } else {
            ps_h2_admit(h, event.stream);
            CHECK(converse(c, h) && c->got_len == sizeof large);
        }
        CHECK(c->ended == 1 && ps_h2_held(h) == 0);
        ps_h2_free(h);
        client_free(c);
    }
}

/* What is wrong with a call ends it with a status, and the connection goes on. */
static void a_wrong_call_is_told_so(void) {
    static uint8_t large[100032];
    uint8_t plain[64], packed[64], two[64], cut[64];
    size_t plain_len = message_put(plain, "x"), two_len = message_put(two, "x");
    two_len += message_put(two + two_len, "y");
    size_t packed_len = message_put(packed, "x"), cut_len = message_put(cut, "hello") - 1;
    packed[0] = 1;
    be32_put(large + 1, 100001);
    char long_value[4096];
    memset(long_value, 'a', sizeof long_value - 1);
    long_value[sizeof long_value - 1] = '\0';
    const struct {
        const char *path, *name, *value, *status;
        upload body;
    } cases[] = {{"/s/Nothing", "x", "y", "12", {plain, plain_len}},
                 {UNARY, "grpc-encoding", "gzip", "12", {plain, plain_len}},
                 {UNARY, "x", "y", "12", {packed, packed_len}},
                 {UNARY, "x", "y", "13", {two, two_len}},
                 {UNARY, "x", "y", "13", {cut, cut_len}},
                 {UNARY, "x", "y", "13", {plain, 3}},
                 {STREAM, "x", "y", "13", {cut, cut_len}},
                 {UNARY, "x", "y", "8", {large, sizeof large}},
                 {UNARY, "x", long_value, "8", {plain, plain_len}},
                 {UNARY, "x", "y", "0", {plain, plain_len}}};
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        upload u = cases[i].body;
        client_call(c, cases[i].path, &u, cases[i].name, cases[i].value);
        CHECK(converse(c, h));
        CHECK_EQ(c->ended, (int)i + 1);
        CHECK(strcmp(c->status, cases[i].status) == 0);
        CHECK(ps_h2_calls(h) == 0);
    }
    client_call(c, UNARY, NULL, "x", "y");
    CHECK(converse(c, h) && strcmp(c->status, "13") == 0);
    ps_h2_free(h);
    client_free(c);
}

/* The stream of a call that the server was told of, and that waits for its reply. */
static int32_t begin_call(client *c, ps_h2 *h) {
    uint8_t bytes[64];
    upload u = {bytes, message_put(bytes, "x")};
    ps_h2_event event;
    const uint8_t *at;
    int32_t stream = client_call(c, UNARY, &u, "x", "y");
    int64_t len = client_write(c, &at);
    CHECK(ps_h2_feed(h, at, len) && ps_h2_next(h, &event) && event.kind == PS_H2_CALL);
    CHECK(event.stream == stream);
    return stream;
}

static void a_status_has_any_text(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    ps_h2_finish(h, begin_call(c, h), 5, "100 % \n\xC3\xA9");
    CHECK(converse(c, h));
    CHECK(strcmp(c->status, "5") == 0 && strcmp(c->text, "100 %25 %0A%C3%A9") == 0);
    ps_h2_free(h);
    client_free(c);
}

/* A call that its client gives up is told of, once it was begun; replies to it are nothing. */
static void a_reset_is_told(void) {
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    ps_h2_event event;
    const uint8_t *at;
    uint8_t bytes[64];
    int32_t stream = begin_call(c, h);
    nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
    int64_t len = client_write(c, &at);
    CHECK(ps_h2_feed(h, at, len) && ps_h2_next(h, &event) && event.kind == PS_H2_RESET);
    CHECK(event.stream == stream && !ps_h2_next(h, &event));
    CHECK(ps_h2_send(h, stream, (const uint8_t *)"x", 1, true) == -1);
    ps_h2_finish(h, stream, 0, NULL);
    upload u = {bytes, message_put(bytes, "x")}; /* begun and given up in one read: nothing */
    stream = client_call(c, UNARY, &u, "x", "y");
    client_write(c, &at);
    int64_t from = at - c->sent;
    nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, stream, NGHTTP2_CANCEL);
    client_write(c, &at);
    CHECK(ps_h2_feed(h, c->sent + from, c->sent_len - from) && !ps_h2_next(h, &event));
    CHECK(ps_h2_calls(h) == 0);
    ps_h2_free(h);
    client_free(c);
}

/* Each changes the window of every call in progress. */
static void test_settings_without_end_end_the_connection(void) {
    for (int calls = 0; calls <= 99; calls += 99) {
        client *c = client_new();
        ps_h2 *h = ps_h2_new(&client_conf);
        for (int i = 0; i < calls; i++) CHECK(client_call(c, STREAM, NULL, "x", "y") > 0);
        int count = 0;
        while (count < 100000 && !c->gone) {
            nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 70000};
            CHECK(nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, &window, 1) == 0);
            converse(c, h);
            c->sent_len = 0;
            count++;
        }
        CHECK(c->gone && count > 100 && count < 50000);
        ps_h2_free(h);
        client_free(c);
    }
}

/* A client that reads nothing makes a call pause, and it goes on when it reads. */
static void replies_that_wait_are_counted(void) {
    static uint8_t reply[100000];
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&client_conf);
    ps_h2_event event;
    const uint8_t *at;
    int32_t stream = begin_call(c, h);
    int64_t len, waiting = 0;
    for (int i = 0; i < 3; i++) waiting = ps_h2_send(h, stream, reply, sizeof reply, false);
    CHECK(waiting >= PS_H2_MUCH);
    bool drained = false;
    for (int i = 0; i < 1000 && !drained; i++) {
        len = ps_h2_pull(h, &at);
        if (len > 0) nghttp2_session_mem_recv(c->session, at, (size_t)len);
        len = client_write(c, &at);
        CHECK(ps_h2_feed(h, at, len));
        while (ps_h2_next(h, &event)) drained |= event.kind == PS_H2_DRAINED;
    }
    CHECK(drained);
    ps_h2_finish(h, stream, 0, NULL);
    CHECK(converse(c, h) && c->ended == 1 && c->got_len == 3 * (5 + (int64_t)sizeof reply));
    ps_h2_free(h);
    client_free(c);
}

/* Answered calls are counted by how long they took; streams and calls that are over before, not. */
static void answered_calls_are_timed(void) {
    static const int64_t slow_ns = 3000000;
    ps_h2_times times[2] = {0};
    ps_h2_conf conf = client_conf;
    conf.times = times;
    client *c = client_new();
    ps_h2 *h = ps_h2_new(&conf);
    uint8_t bytes[3][64];
    upload u[3];
    const uint8_t *at;
    for (int i = 0; i < 3; i++) u[i] = (upload){bytes[i], message_put(bytes[i], "hello")};
    client_call(c, UNARY, &u[0], "x", "y");
    client_call(c, STREAM, &u[1], "x", "y");
    int32_t over = client_call(c, UNARY, &u[2], "x", "y");
    int64_t there = client_write(c, &at);
    CHECK(ps_h2_feed(h, at, there));
    nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, over, NGHTTP2_CANCEL);
    nanosleep(&(struct timespec){.tv_nsec = slow_ns}, NULL);
    CHECK(converse(c, h) && c->ended == 3);
    int64_t all = 0;
    for (int i = 0; i < PS_H2_BUCKETS; i++) {
        all += times[0].buckets[i];
        CHECK_EQ(times[1].buckets[i], 0);
    }
    CHECK_EQ(all, 1);
    CHECK(times[0].buckets[0] == 0 && times[0].buckets[1] == 0 && times[0].sum_ns >= slow_ns);
    ps_h2_free(h);
    client_free(c);
}

int main(void) {
    check_begin();
    a_unary_call_is_answered();
    a_stream_gets_each_request_and_its_end();
    bytes_may_come_in_any_pieces();
    a_call_knows_its_headers_and_deadline();
    headers_are_counted();
    a_long_request_waits_until_it_is_admitted();
    a_wrong_call_is_told_so();
    a_status_has_any_text();
    a_reset_is_told();
    test_settings_without_end_end_the_connection();
    replies_that_wait_are_counted();
    answered_calls_are_timed();
    return check_end("http2");
}
