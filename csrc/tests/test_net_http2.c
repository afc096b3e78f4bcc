/* A network thread whose links speak HTTP/2, over real sockets: calls to Python and back, sends
 * that it stores itself, how connections begin and end. */
#define _GNU_SOURCE
#include <sys/ioctl.h>

#include "messaging/message.h"

#include "http2_client.h"
#include "net_kit.h"

static const ps_h2_limits limits = {.body_max = 1 << 20,
                                    .texts_max = 16384,
                                    .user_max = 128,
                                    .group_max = 64,
                                    .recovery_max_s = 3600,
                                    .delay_max_ms = 1000};
static atomic_int calls_up;
static bool bare; /* the port has no core, and no thread */

/* Python's part: every request goes back. */
static void take_call(const ps_net_event *event) {
    const ps_net_call *call = &event->call;
    const uint8_t *data = event->data + call->headers_len;
    int64_t len = event->len - call->headers_len;
    switch (call->kind) {
    case PS_H2_CALL:
        if (call->method != 0) break;
        atomic_fetch_add(&calls_up, 1);
        if (!bare) ps_core_takes(kit_core, "T", 1, 1 << PS_TYPE_NORMAL | 1 << PS_TYPE_FIFO);
        ps_link_client(event->link, "me", 0, 0, 0);
        ps_link_reply(event->link, call->stream, data, len, 1, 0);
        break;
    case PS_H2_MESSAGE:
        ps_link_reply(event->link, call->stream, data, len, 0, 0);
        ps_link_taken(event->link, call->stream, len);
        break;
    case PS_H2_END:
        ps_link_finish_call(event->link, call->stream, PS_GRPC_OK, NULL);
        break;
    case PS_H2_ASK:
        ps_link_admit(event->link, call->stream);
        break;
    default:
        break;
    }
}

static void *take_calls(void *arg) {
    ps_net_event rows[16];
    while (!atomic_load(&net_over)) {
        struct pollfd p = {ps_net_event_fd(net), POLLIN, 0};
        if (atomic_load(&net_asleep) || poll(&p, 1, 20) <= 0) {
            sched_yield();
            continue;
        }
        int64_t count;
        do {
            count = ps_net_events(net, rows, 16);
            for (int64_t i = 0; i < count; i++) {
                if (rows[i].kind == PS_NET_CALL)
                    take_call(&rows[i]);
                else
                    net_take(&rows[i]);
            }
        } while (count == 16);
    }
    return arg;
}

static ps_net_conf h2_conf(void) {
    ps_net_conf conf = net_conf();
    conf.h2 = &ps_h2_all;
    conf.h2_conf = &client_conf;
    conf.sends = bare ? NULL : &limits;
    conf.send_method = 0;
    conf.ack_method = conf.receive_method = conf.end_method = -1;
    conf.write_high = 256 << 10;
    conf.write_low = 64 << 10;
    conf.unsent_max = INT64_MAX;
    return conf;
}

static void open_all(const ps_net_conf *conf) {
    ps_conf store = kit_conf();
    if (!bare) {
        kit_open(&store, 1000);
        kit_topic("T", 4, HOT);
    }
    calls_up = 0;
    net_start_as(conf, take_calls);
}

static void close_all(void) {
    net_stop();
    if (!bare) kit_close();
}

/* ---- clients ---- */

static void write_all(net_client *c, client *h2) {
    const uint8_t *at;
    int64_t len = client_write(h2, &at);
    net_write(c, at, len);
}

/* Reads and writes until so many calls have ended; false: the connection has. */
static bool await_ends(net_client *c, client *h2, int ended) {
    while (h2->ended < ended) {
        write_all(c, h2);
        c->from = c->len;
        if (!net_more(c)) return false;
        if (!CHECK(nghttp2_session_mem_recv(h2->session, c->data, (size_t)c->len) == c->len))
            return false;
    }
    return true;
}

static void leave(net_client *c, client *h2) {
    client_free(h2);
    net_leave(c);
}

/* SendMessage of one message to T: how many bytes. */
static size_t put_send(uint8_t *to, const char *id) {
    static const char host[] = "vm";
    uint8_t topic[8], system[128], message[256];
    uint8_t *end = ps_proto_put_bytes(topic, 2, "T", 1), *at = system;
    at = ps_proto_put_bytes(at, 3, id, (int64_t)strlen(id));
    *at++ = 5 << 3, *at++ = 1; /* body_encoding: IDENTITY */
    *at++ = 6 << 3, *at++ = PS_TYPE_NORMAL;
    const uint8_t born[] = {1 << 3, 100};
    at = ps_proto_put_bytes(at, 7, born, sizeof born);
    at = ps_proto_put_bytes(at, 8, host, sizeof host - 1);
    uint8_t *m = ps_proto_put_bytes(message, 1, topic, end - topic);
    m = ps_proto_put_bytes(m, 3, system, at - system);
    m = ps_proto_put_bytes(m, 4, "body", 4);
    end = ps_proto_put_bytes(to + 5, 1, message, m - message);
    to[0] = 0;
    be32_put(to + 1, (uint32_t)(end - to - 5));
    return (size_t)(end - to);
}

static int64_t puts_so_far(void) {
    ps_sample all;
    ps_core_sample(kit_core, NULL, 0, &all);
    return all.puts;
}

static void expect_none_left(void) {
    CHECK_UNTIL(net_closed == net_opened);
    CHECK_UNTIL(ps_net_budget_held(net_budget) == 0);
    CHECK_UNTIL(ps_net_links(net) == 0);
}

/* ---- what is tested ---- */

/* All that a client writes for a unary call, and its reply. */
static int64_t hello(client *h2, upload *u, uint8_t request[64], const uint8_t **at) {
    *u = (upload){request, message_put(request, "hello")};
    client_call(h2, UNARY, u, "x-more", "y");
    return client_write(h2, at);
}

static void test_calls_may_be_cut_at_every_byte(void) {
    ps_net_conf conf = h2_conf();
    uint8_t request[64];
    upload u;
    const uint8_t *at;
    open_all(&conf);
    for (int64_t cut = 1, len = 2; cut < len; cut++) {
        client *h2 = client_new();
        net_client c = net_connect();
        len = hello(h2, &u, request, &at);
        net_write(&c, at, cut);
        sched_yield();
        net_write(&c, at + cut, len - cut);
        CHECK(await_ends(&c, h2, 1));
        CHECK(h2->got_len == 10 && memcmp(h2->got + 5, "hello", 5) == 0);
        CHECK(strcmp(h2->status, "0") == 0);
        leave(&c, h2);
    }
    expect_none_left();
    close_all();
}

static void test_peers_may_leave_at_every_step(void) {
    ps_net_conf conf = h2_conf();
    uint8_t request[64];
    upload u;
    const uint8_t *at;
    open_all(&conf);
    for (int64_t cut = 1, len = 2; cut <= len; cut++) {
        client *h2 = client_new();
        net_client c = net_connect();
        len = hello(h2, &u, request, &at);
        net_write(&c, at, cut);
        if (cut % 2) shutdown(c.fd, SHUT_WR); /* the one half alone */
        if (cut % 3)
            net_reset(&c);
        else
            net_leave(&c);
        client_free(h2);
    }
    CHECK_UNTIL(net_opened > 0);
    expect_none_left();
    close_all();
}

/* Its calls are answered, and a GOAWAY says that it is to begin no further one. */
static void test_calls_of_one_too_many_are_refused(void) {
    ps_net_conf conf = h2_conf();
    uint8_t requests[3][64];
    upload u[3];
    conf.links_max = 1;
    open_all(&conf);
    net_client one = net_connect();
    CHECK_UNTIL(ps_net_links(net) == 1);
    net_client two = net_connect();
    client *h2 = client_new();
    for (int i = 0; i < 2; i++) {
        u[i] = (upload){requests[i], message_put(requests[i], "hello")};
        client_call(h2, i == 0 ? UNARY : STREAM, &u[i], "x-more", "y");
    }
    CHECK(await_ends(&two, h2, 2));
    CHECK(strcmp(h2->status, "14") == 0 && h2->got_len == 0);
    CHECK(strcmp(h2->text, "the server has too many connections") == 0);
    CHECK(!await_ends(&two, h2, 3));
    CHECK(h2->gone);
    leave(&two, h2);
    CHECK_EQ(0, calls_up);
    CHECK_UNTIL(net_over_opened == 1); /* no call of it has waited for Python */
    CHECK_UNTIL(ps_net_links(net) == 1);
    net_leave(&one);
    CHECK_UNTIL(ps_net_links(net) == 0);
    net_client three = net_connect();
    h2 = client_new();
    u[2] = (upload){requests[2], message_put(requests[2], "hello")};
    client_call(h2, UNARY, &u[2], "x-more", "y");
    CHECK(await_ends(&three, h2, 1));
    CHECK(strcmp(h2->status, "0") == 0);
    leave(&three, h2);
    expect_none_left();
    close_all();
}

static void test_sends_are_stored_without_python(void) {
    enum { SENDS = 50 };
    static uint8_t requests[SENDS + 1][512];
    upload u[SENDS + 1];
    ps_net_conf conf = h2_conf();
    char id[16];
    open_all(&conf);
    client *h2 = client_new();
    net_client c = net_connect();
    u[0] = (upload){requests[0], put_send(requests[0], "first")};
    client_call(h2, UNARY, &u[0], "x-more", "y");
    CHECK(await_ends(&c, h2, 1)); /* Python lets the client in */
    CHECK_EQ(1, calls_up);
    CHECK_UNTIL(h2->ended == 1);
    int64_t before = puts_so_far();
    atomic_store(&net_asleep, true);
    for (int i = 1; i <= SENDS; i++) {
        snprintf(id, sizeof id, "id%d", i);
        u[i] = (upload){requests[i], put_send(requests[i], id)};
        client_call(h2, UNARY, &u[i], "x-more", "y");
    }
    CHECK(await_ends(&c, h2, 1 + SENDS));
    CHECK_EQ(before + SENDS, puts_so_far());
    CHECK(strcmp(h2->status, "0") == 0);
    atomic_store(&net_asleep, false);
    leave(&c, h2);
    expect_none_left();
    CHECK_EQ(1, calls_up);
    close_all();
}

static void test_a_slow_reader_gets_every_reply(void) {
    enum { CALLS = 150, AT_ONCE = 15, SIZE = 5000 };
    static uint8_t request[SIZE + 8];
    upload u[CALLS];
    ps_net_conf conf = h2_conf();
    conf.write_high = 8192;
    conf.write_low = 2048;
    open_all(&conf);
    memset(request, 'x', sizeof request);
    request[0] = 0;
    be32_put(request + 1, SIZE);
    client *h2 = client_new();
    net_client c = net_connect();
    nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0, 1 << 24);
    int little = 32 << 10;
    setsockopt(c.fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    for (int i = 0; i < CALLS; i++) {
        u[i] = (upload){request, SIZE + 5};
        client_call(h2, UNARY, &u[i], "x-more", "y");
        if (i % AT_ONCE < AT_ONCE - 1) continue;
        write_all(&c, h2);
        int more = 0; /* it reads when the thread does not get rid of its replies any more */
        for (int same = 0, before = -1; same < 3; same = more == before ? same + 1 : 0) {
            before = more;
            usleep(300);
            CHECK_EQ(0, ioctl(c.fd, FIONREAD, &more));
        }
        CHECK(await_ends(&c, h2, i + 1));
    }
    CHECK_EQ((int64_t)CALLS * (SIZE + 5), h2->got_len);
    leave(&c, h2);
    expect_none_left();
    close_all();
}

static void test_stops_with_calls_under_way(void) {
    ps_net_conf conf = h2_conf();
    uint8_t request[64];
    upload u;
    const uint8_t *at;
    for (int i = 0; i < 10; i++) {
        open_all(&conf);
        client *h2 = client_new();
        net_client c = net_connect();
        atomic_store(&net_asleep, i % 2);
        int64_t len = hello(h2, &u, request, &at);
        net_write(&c, at, len - i);
        close_all();
        leave(&c, h2);
    }
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    test_sends_are_stored_without_python();
    for (int i = 0; i < 2; i++, bare = true) {
        test_calls_may_be_cut_at_every_byte();
        test_peers_may_leave_at_every_step();
        test_calls_of_one_too_many_are_refused();
        test_a_slow_reader_gets_every_reply();
        test_stops_with_calls_under_way();
    }
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_net_http2");
}
