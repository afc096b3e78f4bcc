/* A network thread: it waits for its sockets, for the core's news and for what Python asks, and
 * gives each link its turn. One that had much to do goes to the end of a line: newcomers and quiet
 * ones are served before it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"
#include "net/reactor.h"
#include "core/lock.h"
#include "waits/watched.h"

#define BATCH 128          /* events of one wait */
#define BATCH_OF_LOOP 32   /* the same where Python waits for the end of the turn */
#define TURN_NS 500000     /* for those in line, before newcomers are looked for */
#define LOOK_NS 2000000    /* the same for held pulls */
#define SWEEP_MS 500       /* between two looks for idle links */
#define ACCEPT_MAX 64      /* at once */

static bool watch_fd(ps_net *net, int fd, uint32_t events, void *as) {
    struct epoll_event event = {.events = events, .data.ptr = as};
    return fd < 0 || epoll_ctl(net->nt_epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* ---- accepting ---- */

static void join_link(ps_net *net, int fd, bool over) {
    ps_link *link = ps_link_make(net, fd, over);
    if (link == NULL) {
        ps_link_count(net, over, -1);
        close(fd);
        return;
    }
    link->lk_events = EPOLLIN;
    if (net->nt_conf.h2 != NULL) { /* it is looked at when so many have come */
        int least = PS_H2_FIRST;
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    if (epoll_ctl(net->nt_epoll, EPOLL_CTL_ADD, fd, &event) < 0) ps_link_end(link, NULL);
}

/* That which has the fewest links: for life. */
static ps_net *choose_thread(ps_net *first) {
    ps_net *to = first;
    for (int32_t i = 1; i < first->nt_all_count; i++)
        if (first->nt_all[i]->nt_count < to->nt_count) to = first->nt_all[i];
    return to;
}

/* Some of those that are too many are told so when they ask. */
static void accept_one(ps_net *first, int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool over = ps_net_links(first) >= first->nt_conf.links_max;
    if (over && first->nt_over >= PS_OVER_MAX) {
        ps_net_refuse(first, fd, "too many connections", "");
        return;
    }
    ps_net *to = choose_thread(first);
    ps_link_count(to, over, 1);
    if (to == first)
        join_link(first, fd, over);
    else if (!ps_net_ask_for(to, &(ps_net_ask){.kind = PS_ASK_JOIN, .on = fd, .tell = over})) {
        ps_link_count(to, over, -1);
        close(fd);
    }
}

/* Without a descriptor left, connections stay in the backlog until the next sweep. */
static void rest_accepting(ps_net *net, int why) {
    epoll_ctl(net->nt_epoll, EPOLL_CTL_DEL, net->nt_listen, NULL);
    net->nt_resting = true;
    ps_net_tell(net, &(ps_net_event){.kind = PS_NET_RESTING, .number = why});
}

static void accept_all(ps_net *net) {
    for (int i = 0; i < ACCEPT_MAX; i++) {
        int fd = accept4(net->nt_listen, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            accept_one(net, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            rest_accepting(net, errno);
        if (errno != ECONNABORTED && errno != EINTR) return;
    }
}

static void stop_listening(ps_net *net) {
    if (net->nt_listen < 0) return;
    epoll_ctl(net->nt_epoll, EPOLL_CTL_DEL, net->nt_listen, NULL);
    close(net->nt_listen);
    net->nt_listen = -1;
}

/* ---- held pulls ---- */

static ps_link *link_of(ps_net *net, int64_t id) {
    int32_t slot = (int32_t)(id & INT32_MAX);
    if (id >> 62 != 1 || slot >= net->nt_slots) return NULL;
    ps_link *link = net->nt_links[slot];
    return link != NULL && link->lk_id == id ? link : NULL;
}

int ps_net_give(ps_core *c, const ps_step *step) {
    PS_CORE_HELD(c); /* as long as it is held, no thread ends */
    int64_t number = step->conn_id >> 56 & 63;
    ps_net *owner =
        step->conn_id >> 62 == 1 && number < PS_CALLERS ? c->co_lock.lo_threads[number] : NULL;
    uint8_t *copy = owner != NULL ? malloc((size_t)step->out_len + 1) : NULL;
    if (copy == NULL) return 0;
    if (step->out_len > 0) memcpy(copy, step->out, (size_t)step->out_len);
    return ps_net_ask_for(owner, &(ps_net_ask){
                                     .kind = step->found != NULL  ? PS_ASK_POPPED
                                             : step->number != 0 ? PS_ASK_SAFE
                                                                 : PS_ASK_ANSWER,
                                     .on = step->outcome,
                                     .conn_id = step->conn_id,
                                     .stream = (int32_t)step->number,
                                     .found = step->found,
                                     .data = copy,
                                     .len = step->out_len});
}

void ps_net_tell_popped(ps_net *net, ps_pop_found *found, int64_t conn_id, int64_t number,
                        const uint8_t *names, int64_t len) {
    const ps_net_event event = {.kind = PS_NET_POPPED, .number = conn_id >> 62 == 1,
                                .value = number, .data = names, .len = len,
                                .call = {.found = found}};
    if (ps_net_tell(net, &event)) return;
    ps_pop_found_free(found);
    free(found);
}

/* A frame for a link, or what a pop has waited for. */
static void answer_step(ps_net *net, ps_link *link, const ps_step *step) {
    if (step->pop_due_ms > 0)
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_POP_DUE, .value = step->pop_due_ms});
    if (step->found == NULL && step->number != 0) {
        ps_net_give(net->nt_core, step);
    } else if (step->found == NULL && link != NULL) {
        ps_link_send(link, step->out, step->out_len);
    } else if ((step->found == NULL && step->out_len == 0) ||
               ps_net_give(net->nt_core, step)) {
        return;
    } else if (step->found != NULL) {
        ps_net_tell_popped(net, step->found, step->conn_id, step->number, step->out, step->out_len);
    } else {
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_ANSWERS, .value = step->conn_id,
                                         .data = step->out, .len = step->out_len});
    }
}

static void answer_one(ps_net *net, const ps_step *step) {
    ps_link *link = link_of(net, step->conn_id);
    ps_pulled pulled;
    answer_step(net, link, step);
    if (step->wait != 0 && step->by_loop)
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_WAITED, .value = step->wait,
                                         .number = step->outcome});
    ps_core_take_pulled(net->nt_core, &pulled);
    if (pulled.code >= 0 && ps_core_delegates(net->nt_core, PS_DELEGATE_PULLS))
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_PULLED, .link = link,
                                         .value = step->conn_id, .pulled = pulled});
    if (link != NULL && link->lk_fd >= 0) ps_link_watch(link);
}

static void answer_held(ps_net *net) {
    int64_t end = ps_monotonic_ns() + LOOK_NS, next_ms = -1;
    bool all = net->nt_look_all, more = false;
    ps_step step;
    net->nt_look = net->nt_look_all = false;
    while (ps_core_next(net->nt_core, all, &step, &next_ms)) {
        answer_one(net, &step);
        all = false;
        if (ps_monotonic_ns() > end) {
            more = true;
            break;
        }
    }
    net->nt_look = more;
    net->nt_look_ms = next_ms >= 0 ? ps_monotonic_ms() + next_ms : -1;
    if (ps_core_has_watched_news(net->nt_core))
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_NEWS});
}

/* ---- what Python asks ---- */

static void read_again(ps_link *link, int32_t why) {
    if (link->lk_fd < 0) return;
    ps_link_release(link, why);
    ps_link_watch(link);
}

/* Of a pull that another thread has resumed, or of a wait that it has ended. */
static void take_answer(ps_net *net, const ps_net_ask *ask) {
    ps_link *link = link_of(net, ask->conn_id);
    if (link != NULL) ps_link_send(link, ask->data, ask->len);
    if (link != NULL && link->lk_fd >= 0) ps_link_watch(link);
    free(ask->data);
}

/* What a call has waited for. */
static void take_popped(ps_net *net, const ps_net_ask *ask) {
    ps_link *link = link_of(net, ask->conn_id);
    if (link == NULL || link->lk_fd < 0 ||
        !net->nt_protocol->popped(link, ask->stream, ask->found))
        ps_net_tell_popped(net, ask->found, ask->conn_id, ask->stream, ask->data, ask->len);
    free(ask->data);
}

static void tell_safe(ps_net *net, const ps_net_ask *ask) {
    ps_link *link = link_of(net, ask->conn_id);
    if (link != NULL && link->lk_fd >= 0) net->nt_protocol->safe(link, ask->stream, ask->on);
    free(ask->data);
}

/* Those that have waited for it. */
static void go_on_with_tls(ps_net *net) {
    for (int32_t i = 0; i < net->nt_slots; i++)
        if (net->nt_links[i] != NULL && net->nt_links[i]->lk_held & PS_HELD_TLS)
            read_again(net->nt_links[i], PS_HELD_TLS);
}

static void set_reading(ps_link *link, bool on) {
    if (on) {
        read_again(link, PS_HELD_PYTHON);
    } else if (link->lk_fd >= 0) {
        link->lk_held |= PS_HELD_PYTHON;
        ps_link_watch(link);
    }
}

static void do_ask(ps_net *net, const ps_net_ask *ask) {
    ps_link *link = ask->link;
    switch (ask->kind) {
    case PS_ASK_WRITE:
        ps_link_send(link, ask->data, ask->len);
        ps_link_written(link, ask->len);
        free(ask->data);
        if (link->lk_fd >= 0) ps_link_watch(link);
        break;
    case PS_ASK_READING:
        set_reading(link, ask->on);
        break;
    case PS_ASK_TAKEN:
        read_again(link, PS_HELD_QUEUED);
        break;
    case PS_ASK_CLOSE:
        if (ask->on)
            ps_link_end(link, NULL);
        else
            ps_link_begin_close(link);
        break;
    case PS_ASK_FORGET:
        ps_link_end(link, NULL);
        ps_link_free(link);
        break;
    case PS_ASK_LOOK:
        net->nt_look = true;
        net->nt_look_all = net->nt_look_all || ask->on;
        break;
    case PS_ASK_DEAF:
        stop_listening(net);
        break;
    case PS_ASK_JOIN:
        join_link(net, ask->on, ask->tell);
        break;
    case PS_ASK_ANSWER:
        take_answer(net, ask);
        break;
    case PS_ASK_POPPED:
        take_popped(net, ask);
        break;
    case PS_ASK_SAFE:
        tell_safe(net, ask);
        break;
    case PS_ASK_WEIGH: /* each turn does */
        break;
    case PS_ASK_TLS:
        go_on_with_tls(net);
        break;
    case PS_ASK_RECEIVES:
        memcpy(&net->nt_conf.receives, ask->data, sizeof net->nt_conf.receives);
        free(ask->data);
        break;
    default:
        net->nt_protocol->ask(ask);
    }
}

static void do_asks(ps_net *net) {
    uint64_t count;
    if (read(net->nt_wake, &count, sizeof count) < 0) count = 0;
    ps_net_take_asks(net, &net->nt_doing);
    for (int64_t i = 0; i < net->nt_doing.count; i++)
        do_ask(net, (ps_net_ask *)net->nt_doing.items + i);
    if (net->nt_protocol != NULL) net->nt_protocol->asked(net);
}

/* Python comes back for events, and for those whose turn is still to come. */
static void have_turn(ps_net *net) {
    if (net->nt_ready != NULL) net->nt_quiet = false;
    ps_net_told(net);
}

/* What it replies to calls is written once for all of a turn. */
static void ask_at_once(ps_net *net, const ps_net_ask *ask) {
    bool written = net->nt_dirty == NULL;
    do_ask(net, ask);
    if (written && net->nt_dirty != NULL) net->nt_quiet = false;
    have_turn(net);
}

static void write_at_once(ps_link *link, const uint8_t *data, int64_t len) {
    ps_link_send(link, data, len);
    if (link->lk_fd >= 0) ps_link_watch(link);
    have_turn(link->lk_net);
}

/* ---- turns ---- */

/* Those in line, one after the other, until the time is over; each once. */
static void serve_line(ps_net *net) {
    int64_t end = ps_monotonic_ns() + TURN_NS;
    ps_link *last = NULL;
    for (ps_link *l = net->nt_ready; l != NULL; l = l->lk_next) last = l;
    while (net->nt_ready != NULL && ps_monotonic_ns() < end) {
        ps_link *link = net->nt_ready;
        net->nt_ready = link->lk_next;
        if (net->nt_ready == NULL) net->nt_ready_end = &net->nt_ready;
        link->lk_ready = false;
        ps_link_readable(link);
        if (link == last) break;
    }
}

/* Of a proxy's header and what follows it, and of TLS. */
static void await_opening(ps_link *link, int64_t now) {
    int64_t most = link->lk_net->nt_conf.opening_ms;
    if (most > 0 && now - link->lk_seen_ms > most)
        ps_link_refuse(link, "handshake timed out", "");
}

static void end_idle(ps_link *link, int64_t now) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    int64_t most = link->lk_over ? conf->opening_ms : conf->idle_ms;
    if (most > 0 && now - link->lk_seen_ms > most) ps_link_end(link, "idle");
}

static void sweep_links(ps_net *net, int64_t now) {
    const ps_net_conf *conf = &net->nt_conf;
    net->nt_swept_ms = now;
    if (net->nt_resting) net->nt_resting = !watch_fd(net, net->nt_listen, EPOLLIN, &net->nt_listen);
    for (int32_t i = 0; i < net->nt_slots; i++) {
        ps_link *link = net->nt_links[i];
        if (link == NULL || link->lk_fd < 0) continue;
        if (link->lk_closing_ms > 0 && now >= link->lk_closing_ms)
            ps_link_end(link, NULL);
        else if (!link->lk_open && (link->lk_tls != NULL || link->lk_header != NULL))
            await_opening(link, now);
        else if (conf->h2 != NULL)
            net->nt_protocol->sweep(link, now);
        else
            end_idle(link, now);
    }
}

static int wait_ms(const ps_net *net) {
    if (net->nt_ready != NULL || net->nt_look) return 0;
    int64_t now = ps_monotonic_ms(), left = 3600000;
    if (net->nt_count > 0 || net->nt_first->nt_over > 0 || net->nt_resting) left = SWEEP_MS;
    if (net->nt_look_ms >= 0 && net->nt_look_ms - now < left)
        left = net->nt_look_ms > now ? net->nt_look_ms - now : 0;
    return (int)left;
}

static void take_socket_event(ps_link *link, uint32_t events) {
    if (!link->lk_open && link->lk_tls != NULL) {
        ps_link_readable(link);
        return;
    }
    if (events & EPOLLOUT && link->lk_fd >= 0) {
        ps_link_flush(link);
        if (link->lk_fd >= 0 && link->lk_h2 != NULL) link->lk_net->nt_protocol->write(link);
        if (link->lk_fd >= 0) ps_link_watch(link);
    }
    if (link->lk_fd < 0 || !(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) return;
    if (link->lk_held != 0) { /* then only its end can have come */
        if (events & (EPOLLERR | EPOLLHUP)) ps_link_end(link, NULL);
    } else if (link->lk_heavy) {
        ps_link_enqueue(link);
    } else {
        ps_link_readable(link);
    }
}

/* Whether Python asks for something. */
static bool take_event(ps_net *net, const struct epoll_event *event) {
    uint64_t count;
    if (event->data.ptr == &net->nt_wake) return true;
    if (event->data.ptr == &net->nt_told || event->data.ptr == &net->nt_timer)
        (void)!read(*(int *)event->data.ptr, &count, sizeof count);
    else if (event->data.ptr == &net->nt_listen)
        accept_all(net);
    else if (event->data.ptr == &net->nt_look)
        net->nt_look = true;
    else
        take_socket_event(event->data.ptr, event->events);
    return false;
}

static void take_turn(ps_net *net, int most, int timeout_ms) {
    struct epoll_event events[BATCH];
    int count = epoll_wait(net->nt_epoll, events, most, timeout_ms);
    /* What Python asks may free links, which other events of this batch name: at the end. */
    bool asked = false;
    for (int i = 0; i < count; i++) asked |= take_event(net, &events[i]);
    serve_line(net);
    if (asked) do_asks(net);
    ps_link_keep_budget(net);
    int64_t now = ps_monotonic_ms();
    if (net->nt_look || (net->nt_look_ms >= 0 && net->nt_look_ms <= now)) answer_held(net);
    if (now - net->nt_swept_ms >= SWEEP_MS) sweep_links(net, now);
}

static void *run_thread(void *arg) {
    ps_net *net = arg;
    ps_core_call_as(net->nt_conf.number);
    while (!net->nt_stopping) {
        take_turn(net, BATCH, wait_ms(net));
        ps_net_told(net);
    }
    return NULL;
}

/* While there are links, or it rests, sweeps come from a timer. */
static void keep_time(ps_net *net) {
    bool ticks = net->nt_count > 0 || net->nt_over > 0 || net->nt_resting;
    if (ticks == net->nt_ticks) return;
    net->nt_ticks = ticks;
    struct timespec pause = {0, ticks ? SWEEP_MS * 1000000L : 0};
    timerfd_settime(net->nt_timer, 0, &(struct itimerspec){pause, pause}, NULL);
}

/* Python takes the events next, so it is woken only for those whose turn is still to come. */
static void turn_at_once(ps_net *net) {
    if (net->nt_protocol->asked != NULL) net->nt_protocol->asked(net);
    take_turn(net, BATCH_OF_LOOP, 0);
    keep_time(net);
    net->nt_quiet = net->nt_ready == NULL;
    ps_net_told(net);
}

static const ps_net_at_once at_once = {turn_at_once, ask_at_once, write_at_once};

/* ---- the beginning and the end ---- */

void ps_net_free(ps_net *net) {
    ps_net_ask *asks = net->nt_asks.items;
    for (int64_t i = 0; i < net->nt_asks.count; i++) {
        free(asks[i].data);
        if (asks[i].found != NULL) ps_pop_found_free(asks[i].found);
        free(asks[i].found);
        if (asks[i].kind == PS_ASK_JOIN) close(asks[i].on);
    }
    for (int32_t i = 0; i < net->nt_slots; i++) {
        ps_link *link = net->nt_links[i];
        if (link == NULL) continue;
        if (link->lk_fd >= 0) close(link->lk_fd);
        ps_link_free(link);
    }
    ps_net_free_events(&net->nt_taken, net->nt_given);
    for (int64_t i = 0; i < net->nt_given; i++)
        free((void *)((ps_net_event *)net->nt_taken.items)[i].data);
    ps_net_free_events(&net->nt_events, 0);
    ps_net_free_events(&net->nt_rare, net->nt_rare_from);
    free(net->nt_asks.items);
    free(net->nt_taken.items);
    free(net->nt_events.items);
    free(net->nt_rare.items);
    free(net->nt_links);
    free(net->nt_doing.items);
    free(net->nt_room);
    int fds[] = {net->nt_epoll, net->nt_listen, net->nt_wake, net->nt_told, net->nt_timer};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    ps_net_hold(net, -net->nt_unfinished);
    net->nt_conf.budget->sharers--;
    pthread_mutex_destroy(&net->nt_lock);
    pthread_mutex_destroy(&net->nt_tls_lock);
    free(net);
}

static int start_thread(ps_net *net) {
    char name[16];
    snprintf(name, sizeof name, net->nt_conf.h2 != NULL ? "rmq-grpc-%d" : "rmq-net-%d",
             net->nt_conf.number);
    return ps_thread_start(&net->nt_thread, name, run_thread, net);
}

/* From now on it is given what its links have waited for; NULL: no more. */
static void register_thread(ps_net *net, ps_net *as) {
    PS_CORE_HELD(net->nt_core);
    net->nt_core->co_lock.lo_threads[net->nt_conf.number] = as;
}

/* It has a place among the threads of its port; from now on it is given connections. */
static void join_port(ps_net *net) {
    ps_net *first = net->nt_first;
    first->nt_all[first->nt_all_count] = net;
    first->nt_all_count++;
}

static bool open_descriptors(ps_net *net, int listen_fd) {
    net->nt_epoll = epoll_create1(EPOLL_CLOEXEC);
    net->nt_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net->nt_told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net->nt_listen = listen_fd >= 0 ? dup(listen_fd) : -1;
    return net->nt_epoll >= 0 && net->nt_wake >= 0 && net->nt_told >= 0 &&
           (listen_fd < 0 || net->nt_listen >= 0) &&
           watch_fd(net, net->nt_wake, EPOLLIN, &net->nt_wake) &&
           watch_fd(net, net->nt_listen, EPOLLIN, &net->nt_listen);
}

/* Whichever thread it wakes does all that there is; those of gRPC hold no pulls. */
static bool watch_core(ps_net *net) {
    return net->nt_conf.h2 != NULL || watch_fd(net, ps_core_event_fd(net->nt_core),
                                               EPOLLIN | EPOLLEXCLUSIVE, &net->nt_look);
}

/* What Python watches is all that a thread would wait for. */
static bool watch_for_python(ps_net *net) {
    net->nt_timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    net->nt_room = malloc(PS_NET_ROOM);
    return net->nt_room != NULL && net->nt_timer >= 0 &&
           watch_fd(net, net->nt_timer, EPOLLIN, &net->nt_timer) &&
           watch_fd(net, net->nt_told, EPOLLIN, &net->nt_told);
}

/* 0, or an errno. */
static int begin_turns(ps_net *net) {
    if (net->nt_core == NULL) return watch_for_python(net) ? 0 : errno;
    if (!watch_core(net)) return errno;
    register_thread(net, net);
    int code = start_thread(net);
    if (code != 0) register_thread(net, NULL);
    return code;
}

ps_net *ps_net_start(ps_core *core, const ps_net_conf *conf, int listen_fd, ps_net *first,
                     ps_error *e) {
    int32_t most = core != NULL ? PS_THREADS_MAX : 1;
    if (first != NULL && first->nt_all_count >= most) {
        ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "a port has %d threads at most", most);
        return NULL;
    }
    if (core != NULL && ps_core_add_caller(core, conf->number, e) < 0) return NULL;
    ps_net *net = calloc(1, sizeof *net);
    if (net == NULL) {
        ps_no_memory(e, NULL, "no memory for a network thread");
        return NULL;
    }
    net->nt_core = core;
    net->nt_first = first != NULL ? first : net;
    net->nt_conf = *conf;
    net->nt_protocol = conf->h2 != NULL ? &ps_calls : core == NULL ? &ps_frames : NULL;
    net->nt_timer = -1;
    net->nt_at_once = core == NULL ? &at_once : NULL;
    conf->budget->sharers++;
    net->nt_ready_end = &net->nt_ready;
    net->nt_look_ms = -1;
    net->nt_quiet = true;
    pthread_mutex_init(&net->nt_lock, NULL);
    pthread_mutex_init(&net->nt_tls_lock, NULL);
    if (first == NULL) join_port(net);
    int code = open_descriptors(net, listen_fd) ? begin_turns(net) : errno;
    if (code == 0 && first != NULL) join_port(net);
    if (code == 0) return net;
    ps_fail(e, ps_errno_code(code), code, -1, NULL, "cannot start a network thread");
    ps_net_free(net);
    return NULL;
}

void ps_net_stop(ps_net *net) {
    if (net == NULL) return;
    if (net->nt_core != NULL) register_thread(net, NULL);
    net->nt_stopping = true;
    ps_net_ask_for(net, &(ps_net_ask){.kind = PS_ASK_DEAF});
    if (net->nt_core != NULL)
        pthread_join(net->nt_thread, NULL);
    else if (net->nt_protocol->asked != NULL)
        net->nt_protocol->asked(net); /* what was said last is written */
}

int ps_net_event_fd(ps_net *net) {
    return net->nt_core != NULL ? net->nt_told : net->nt_epoll;
}

int64_t ps_net_turns(ps_net *net) {
    return net->nt_turns;
}

int32_t ps_net_links(ps_net *net) {
    ps_net *first = net->nt_first;
    int32_t count = 0;
    for (int32_t i = 0; i < first->nt_all_count; i++) count += first->nt_all[i]->nt_count;
    return count;
}

void ps_net_speak_tls(ps_net *net, ps_tls *tls, const char *refusal) {
    pthread_mutex_lock(&net->nt_tls_lock);
    net->nt_tls = tls;
    snprintf(net->nt_tls_refusal, sizeof net->nt_tls_refusal, "%s", refusal);
    pthread_mutex_unlock(&net->nt_tls_lock);
    net->nt_tls_settled = true;
    for (int32_t i = 0; i < net->nt_all_count; i++)
        ps_net_ask_for(net->nt_all[i], &(ps_net_ask){.kind = PS_ASK_TLS});
}
