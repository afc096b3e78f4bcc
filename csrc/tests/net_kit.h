/* What the tests of network threads share: a core with a thread that serves it, blocking clients,
 * and the part of Python, played by a thread that takes events. */
#ifndef PS_NET_KIT_H
#define PS_NET_KIT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include "core_kit.h"
#include "net/reactor.h"

static ps_net *net; /* the first thread of the port */
static ps_net *net_all[PS_THREADS_MAX];
static int net_threads = 1; /* how many the next start begins */
static int net_port;
static ps_net_budget *net_budget;

/* Python's part. */
static pthread_t net_python;
static atomic_bool net_over, net_asleep;
static atomic_int net_opened, net_closed, net_over_opened, net_refused, net_frames, net_unread,
    net_resting;
static atomic_llong net_held; /* bytes that Python holds from the next frame on */
static atomic_int net_knows; /* its client is let in */
static atomic_int net_weighs; /* the other threads look at the budget before its own does */
static atomic_int net_more_bytes; /* of the next answer's body, 200 at most */
static atomic_int net_read_again; /* PS_NET_UNREAD that say so */
static char net_why[256]; /* of the last link that the thread ended itself */
static char net_who[160]; /* addresses and ports of the last link that was opened */
static char net_refusal[600]; /* of the last connection that was not */
#define NET_HEADER "PROXY TCP4 203.0.113.7 127.0.0.1 4711 10911\r\n"
static const uint8_t net_source[8] = {203, 0, 113, 7, 0, 0, 4711 >> 8, 4711 & 255};
static pthread_mutex_t net_lock = PTHREAD_MUTEX_INITIALIZER;

static CHECK_UNUSED ps_net_conf net_conf(void) {
    static const ps_net_run local = {4, {127, 0, 0, 0}, {127, 255, 255, 255}};
    if (net_budget == NULL) net_budget = ps_net_budget_new(0);
    ps_net_budget_limit(net_budget, 64 << 20);
    return (ps_net_conf){.number = 1,
                         .links_max = 1000,
                         .queued_max = 8192,
                         .queued_bytes = 16 << 20,
                         .write_high = 1 << 20,
                         .write_low = 256 << 10,
                         .unsent_max = 64 << 20,
                         .budget = net_budget,
                         .proxies = &local,
                         .proxies_len = 1,
                         .linger_ms = 5000};
}

/* A frame that nobody serves here is answered with its own code. */
static void net_answer(const ps_net_event *event) {
    uint8_t scratch[PS_HEADER_MAX], out[512];
    ps_command command;
    ps_error e = {0};
    int64_t wanted;
    int64_t took =
        ps_command_decode(event->data, event->len, 1 << 30, scratch, &command, &wanted, &e);
    if (!CHECK_EQ(event->len, took)) return;
    ps_command answer = {.serialize = command.serialize,
                         .code = command.code,
                         .flag = PS_FLAG_RESPONSE,
                         .version = 479,
                         .opaque = command.opaque};
    atomic_fetch_add(&net_frames, 1); /* before its peer learns of it */
    ps_link_hold(event->link, atomic_exchange(&net_held, 0));
    if (atomic_exchange(&net_knows, 0)) ps_link_know(event->link);
    if (atomic_exchange(&net_weighs, 0)) {
        for (int i = 0; i < net_threads; i++)
            if (net_all[i] != event->link->lk_net)
                ps_net_ask_for(net_all[i], &(ps_net_ask){.kind = PS_ASK_WEIGH});
        usleep(20000); /* its own thread is told by the answer */
    }
    int64_t body = atomic_exchange(&net_more_bytes, 0);
    int64_t len = ps_command_encode(&answer, body, out, sizeof out, &e);
    memset(out + len, 'x', (size_t)body);
    ps_link_write(event->link, out, len + body);
}

static void net_take(const ps_net_event *event) {
    switch (event->kind) {
    case PS_NET_OPENED:
        pthread_mutex_lock(&net_lock);
        snprintf(net_who, sizeof net_who, "%.*s", (int)event->len, (const char *)event->data);
        pthread_mutex_unlock(&net_lock);
        atomic_fetch_add(&net_over_opened, event->number);
        atomic_fetch_add(&net_opened, 1);
        break;
    case PS_NET_FRAME:
        net_answer(event);
        break;
    case PS_NET_CLOSED:
        pthread_mutex_lock(&net_lock);
        if (event->len > 0)
            snprintf(net_why, sizeof net_why, "%.*s", (int)event->len, (const char *)event->data);
        pthread_mutex_unlock(&net_lock);
        ps_link_forget(event->link);
        atomic_fetch_add(&net_closed, 1);
        break;
    case PS_NET_UNOPENED:
        pthread_mutex_lock(&net_lock);
        snprintf(net_refusal, sizeof net_refusal, "%.*s", (int)event->len,
                 (const char *)event->data);
        pthread_mutex_unlock(&net_lock);
        atomic_fetch_add(&net_refused, 1);
        break;
    case PS_NET_TLS_WANTED:
        ps_net_speak_tls(net, NULL, "TLS refused\nno certificate");
        break;
    case PS_NET_UNREAD:
        atomic_fetch_add(event->value ? &net_unread : &net_read_again, 1);
        break;
    case PS_NET_RESTING:
        atomic_fetch_add(&net_resting, 1);
        break;
    case PS_NET_NEWS:
        ps_core_take_level_news(kit_core);
        break;
    default:
        break;
    }
}

/* Takes what events there are, after so many milliseconds at most. */
static CHECK_UNUSED void net_take_some(int wait_ms) {
    struct pollfd all[PS_THREADS_MAX];
    ps_net_event rows[16];
    for (int i = 0; i < net_threads; i++)
        all[i] = (struct pollfd){ps_net_event_fd(net_all[i]), POLLIN, 0};
    if (poll(all, (nfds_t)net_threads, wait_ms) <= 0) return;
    for (int i = 0; i < net_threads; i++) {
        int64_t count = all[i].revents != 0 ? 16 : 0;
        while (count == 16) {
            count = ps_net_events(net_all[i], rows, 16);
            for (int64_t k = 0; k < count; k++) net_take(&rows[k]);
        }
    }
}

static CHECK_UNUSED void *net_take_all(void *arg) {
    while (!atomic_load(&net_over)) {
        if (atomic_load(&net_asleep))
            sched_yield();
        else
            net_take_some(20);
    }
    return arg;
}

static CHECK_UNUSED void net_start_as(const ps_net_conf *conf, void *(*python)(void *)) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    ps_error e = {0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK_EQ(0, bind(fd, (struct sockaddr *)&at, sizeof at));
    CHECK_EQ(0, listen(fd, 1024));
    CHECK_EQ(0, getsockname(fd, (struct sockaddr *)&at, &len));
    net_port = ntohs(at.sin_port);
    net_opened = net_closed = net_over_opened = net_refused = net_frames = net_unread = 0;
    net_resting = net_read_again = 0;
    net_over = net_asleep = false;
    net_why[0] = net_who[0] = net_refusal[0] = 0;
    for (int i = 0; i < net_threads; i++) {
        ps_net_conf own = *conf;
        own.number = i + 1;
        net_all[i] = ps_net_start(kit_core, &own, i == 0 ? fd : -1, i == 0 ? NULL : net, &e);
        CHECKF(net_all[i] != NULL, "%s", e.text);
        net = net_all[0];
    }
    close(fd);
    pthread_create(&net_python, NULL, python, NULL);
}

static CHECK_UNUSED void net_start(const ps_net_conf *conf) {
    net_start_as(conf, net_take_all);
}

static CHECK_UNUSED void net_stop(void) {
    atomic_store(&net_over, true);
    pthread_join(net_python, NULL);
    for (int i = 0; i < net_threads; i++) ps_net_stop(net_all[i]);
    for (int i = net_threads; i-- > 0;) ps_net_free(net_all[i]);
}

/* ---- clients ---- */

typedef struct net_client {
    int fd;
    uint8_t *data;
    int64_t len, room, from;
} net_client;

static CHECK_UNUSED net_client net_connect(void) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)net_port)};
    struct timeval bound = {.tv_sec = CHECK_BOUND_MS / 1000};
    int one = 1;
    net_client c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c.fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    CHECK_EQ(0, connect(c.fd, (struct sockaddr *)&to, sizeof to));
    return c;
}

static CHECK_UNUSED void net_write(net_client *c, const void *data, int64_t len) {
    for (int64_t at = 0; at < len;) {
        ssize_t got = send(c->fd, (const char *)data + at, (size_t)(len - at), MSG_NOSIGNAL);
        if (got <= 0) return;
        at += got;
    }
}

static CHECK_UNUSED void net_say(net_client *c, const kit_frame *f, const void *body,
                                 int64_t body_len) {
    static _Thread_local uint8_t frame[1 << 16];
    net_write(c, frame, kit_encode(f, body, body_len, frame, sizeof frame));
}

/* More of what was sent to it; false: the end. */
static bool net_more(net_client *c) {
    if (c->from > 0) {
        memmove(c->data, c->data + c->from, (size_t)(c->len - c->from));
        c->len -= c->from;
        c->from = 0;
    }
    if (c->room - c->len < 1 << 16) {
        c->room = c->room * 2 + (1 << 17);
        c->data = realloc(c->data, (size_t)c->room);
    }
    ssize_t got = recv(c->fd, c->data + c->len, (size_t)(c->room - c->len), 0);
    if (got > 0) c->len += got;
    return got > 0;
}

/* The next answer, good until the one after it; false: the connection has ended. */
static CHECK_UNUSED bool net_take_answer(net_client *c, ps_command *answer) {
    static _Thread_local uint8_t scratch[PS_HEADER_MAX];
    ps_error e = {0};
    int64_t wanted, took;
    for (;;) {
        took = c->len - c->from < 4
                   ? 0
                   : ps_command_decode(c->data + c->from, c->len - c->from, 1 << 30, scratch,
                                       answer, &wanted, &e);
        if (!CHECK(took >= 0)) return false;
        if (took > 0) break;
        if (!net_more(c)) return false;
    }
    c->from += took;
    return true;
}

/* The next answer's code, and what it is about; -1: the connection has ended. */
static CHECK_UNUSED int net_read(net_client *c, int32_t *opaque, int64_t *body_len) {
    ps_command answer;
    if (!net_take_answer(c, &answer)) return -1;
    if (opaque != NULL) *opaque = answer.opaque;
    if (body_len != NULL) *body_len = answer.body.len;
    return answer.code;
}

static CHECK_UNUSED void net_leave(net_client *c) {
    close(c->fd);
    free(c->data);
}

/* Without a word: its peer gets a reset. */
static CHECK_UNUSED void net_reset(net_client *c) {
    struct linger at_once = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    net_leave(c);
}

/* A pull of one message or more from `offset` on, held for so long when there is none. */
static CHECK_UNUSED void net_pull(net_client *c, int32_t opaque, int64_t offset, int64_t hold_ms) {
    kit_frame f;
    kit_pull(&f, opaque, "G", "T", 0, offset, hold_ms > 0 ? 2 : 0, hold_ms);
    net_say(c, &f, NULL, 0);
}

static CHECK_UNUSED void net_send(net_client *c, int32_t opaque, const void *body, int64_t len) {
    kit_frame f;
    kit_send(&f, opaque & 1, opaque, "T", 0, UNIQ);
    net_say(c, &f, body, len);
}

#endif
