/* One connection of a network thread: what is read goes through the core, what comes of it to the
 * socket or to Python. docs/internals/wire.md#connections. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/reactor.h"
#include "tables/access.h"

#define UNREAD_MIN 4096 /* bytes that a peer has not read, from which on they are counted */
#define FREE 16         /* once the budget is exceeded, so much of it becomes free */
/* A turn that took so long, or brought so much, is followed by those of others: who sends one
 * message at a time does not wait for all who send as fast as they can. */
#define HEAVY_NS 200000
#define HEAVY_BYTES (8 << 10)
#define GATHER 256 /* parts of one write */
#define TLS_HANDSHAKE 0x16
#define SLOTS_FIRST 64
#define KEEP_OUT (1 << 20) /* a larger buffer goes back to the system once it is empty */

/* ---- its place among the others ---- */

static bool find_slot(ps_net *net, int32_t *slot) {
    for (*slot = net->nt_free; *slot < net->nt_slots; ++*slot)
        if (net->nt_links[*slot] == NULL) return true;
    int32_t slots = net->nt_slots > 0 ? net->nt_slots * 2 : SLOTS_FIRST;
    ps_link **links = realloc(net->nt_links, (size_t)slots * sizeof *links);
    if (links == NULL) return false;
    memset(links + net->nt_slots, 0, (size_t)(slots - net->nt_slots) * sizeof *links);
    net->nt_links = links;
    net->nt_slots = slots;
    return true;
}

ps_link *ps_link_make(ps_net *net, int fd, ps_source *source) {
    int32_t slot;
    ps_link *link = calloc(1, sizeof *link);
    if (link == NULL || !find_slot(net, &slot)) {
        free(link);
        return NULL;
    }
    link->lk_net = net;
    link->lk_fd = fd;
    link->lk_source = source;
    link->lk_slot = slot;
    link->lk_seen_ms = ps_monotonic_ms();
    /* Python numbers its own connections from 1 on. */
    link->lk_id = (int64_t)1 << 62 | (int64_t)net->nt_conf.number << 56 |
                  ++net->nt_serial % (1 << 24) << 32 | slot;
    net->nt_links[slot] = link;
    net->nt_free = slot + 1;
    return link;
}

void ps_link_free(ps_link *link) {
    ps_net *net = link->lk_net;
    if (link->lk_h2 != NULL) net->nt_conf.h2->release(link->lk_h2);
    ps_conn_free(link->lk_conn);
    ps_tls_end(link->lk_tls);
    ps_buffer_free(&link->lk_out);
    ps_buffer_free(&link->lk_in);
    free(link->lk_client);
    free(link->lk_source);
    net->nt_links[link->lk_slot] = NULL;
    if (link->lk_slot < net->nt_free) net->nt_free = link->lk_slot;
    free(link);
}

/* Counts what it holds: part of a frame, what its peer has not read, what waits for Python. */
static void weigh_link(ps_link *link) {
    int64_t unsent = link->lk_out.len - link->lk_out_from;
    int64_t now = link->lk_fd < 0 ? 0 : link->lk_part + (unsent > UNREAD_MIN ? unsent : 0) +
                                            link->lk_queued_bytes;
    if (now == link->lk_weight) return; /* as after most reads */
    link->lk_net->nt_unfinished += now - link->lk_weight;
    ps_net_budget_hold(link->lk_net->nt_conf.budget, now - link->lk_weight);
    link->lk_weight = now;
}

void ps_link_weigh(ps_link *link) {
    weigh_link(link);
}

static void leave_ready(ps_link *link) {
    ps_net *net = link->lk_net;
    if (!link->lk_ready) return;
    ps_link **at = &net->nt_ready;
    while (*at != link) at = &(*at)->lk_next;
    *at = link->lk_next;
    if (net->nt_ready_end == &link->lk_next) net->nt_ready_end = at;
    link->lk_ready = false;
}

void ps_link_enqueue(ps_link *link) {
    ps_net *net = link->lk_net;
    if (link->lk_ready) return;
    link->lk_ready = true;
    link->lk_next = NULL;
    *net->nt_ready_end = link;
    net->nt_ready_end = &link->lk_next;
}

void ps_link_end(ps_link *link, const char *why) {
    if (link->lk_fd < 0) return;
    leave_ready(link);
    if (link->lk_conn != NULL) ps_conn_end_waits(link->lk_conn);
    if (link->lk_h2 != NULL) link->lk_net->nt_protocol->ended(link);
    /* Python may have a copy of the descriptor. */
    epoll_ctl(link->lk_net->nt_epoll, EPOLL_CTL_DEL, link->lk_fd, NULL);
    close(link->lk_fd);
    link->lk_fd = -1;
    weigh_link(link);
    link->lk_net->nt_count--;
    if (!link->lk_told) {
        ps_link_free(link);
        return;
    }
    ps_net_event event = {.kind = PS_NET_CLOSED, .link = link};
    if (why != NULL) event.data = (const uint8_t *)why, event.len = (int64_t)strlen(why);
    ps_net_tell(link->lk_net, &event);
}

void ps_link_watch(ps_link *link) {
    uint32_t events = link->lk_held == 0 ? EPOLLIN : 0;
    if (link->lk_out.len > link->lk_out_from || ps_tls_wants_out(link->lk_tls))
        events |= EPOLLOUT;
    if (events == link->lk_events) return;
    link->lk_events = events;
    struct epoll_event event = {.events = events, .data.ptr = link};
    epoll_ctl(link->lk_net->nt_epoll, EPOLL_CTL_MOD, link->lk_fd, &event);
}

/* Nothing else would wake it: what is left was read from the socket already. */
static void go_on_later(ps_link *link) {
    if (link->lk_held == 0 && (link->lk_more || ps_tls_more(link->lk_tls))) ps_link_enqueue(link);
}

void ps_link_release(ps_link *link, int32_t why) {
    link->lk_held &= ~why;
    go_on_later(link);
}

/* ---- writing ---- */

static void tell_unread(ps_link *link, bool unread) {
    if (unread)
        link->lk_held |= PS_HELD_UNREAD;
    else
        ps_link_release(link, PS_HELD_UNREAD);
    ps_net_tell(link->lk_net,
                &(ps_net_event){.kind = PS_NET_UNREAD, .link = link, .value = unread});
}

static void look_at_unsent(ps_link *link) {
    weigh_link(link);
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    int64_t unsent = link->lk_out.len - link->lk_out_from;
    bool unread = link->lk_held & PS_HELD_UNREAD;
    if (unsent > conf->unsent_max)
        ps_link_end(link, "responses not read by the client");
    else if (!unread && unsent > conf->write_high)
        tell_unread(link, true);
    else if (unread && unsent < conf->write_low)
        tell_unread(link, false);
}

static int64_t write_some(ps_link *link, const uint8_t *data, int64_t len) {
    ssize_t count;
    if (link->lk_tls != NULL) return ps_tls_write(link->lk_tls, data, len);
    do count = send(link->lk_fd, data, (size_t)len, MSG_NOSIGNAL);
    while (count < 0 && errno == EINTR);
    if (count >= 0) return count;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
}

/* The caller has counted it as unsent, if it comes from Python. */
void ps_link_send(ps_link *link, const uint8_t *data, int64_t len) {
    if (link->lk_fd < 0 || len == 0) return;
    int64_t done = 0;
    link->lk_seen_ms = ps_monotonic_ms();
    if (link->lk_out.len == link->lk_out_from) {
        done = write_some(link, data, len);
        if (done < 0) {
            ps_link_end(link, NULL);
            return;
        }
    }
    if (done < len) {
        uint8_t *to = ps_buffer_room(&link->lk_out, len - done);
        if (to == NULL) {
            ps_link_end(link, "no memory for its answers");
            return;
        }
        memcpy(to, data + done, (size_t)(len - done));
        link->lk_out.len += len - done;
        atomic_fetch_add(&link->lk_unsent, len - done);
    }
    look_at_unsent(link);
}

/* The next bytes of [from, to) of a step's answers as they are to be written: pieces where they
 * belong. Returns how many entries of `iov` it has filled. */
static int gather_pieces(const ps_step *step, int64_t *piece, int64_t *at, struct iovec *iov) {
    int count = 0;
    while (count + 2 <= GATHER && (*piece < step->piece_count || *at < step->out_len)) {
        const ps_piece *p = *piece < step->piece_count ? &step->pieces[*piece] : NULL;
        int64_t upto = p != NULL ? p->at : step->out_len;
        if (upto > *at)
            iov[count++] = (struct iovec){(void *)(step->out + *at), (size_t)(upto - *at)};
        *at = upto;
        if (p != NULL) iov[count++] = (struct iovec){(void *)p->data, (size_t)p->len};
        *piece += p != NULL;
    }
    return count;
}

static int64_t gathered_size(const struct iovec *iov, int count) {
    int64_t size = 0;
    for (int i = 0; i < count; i++) size += (int64_t)iov[i].iov_len;
    return size;
}

/* What is left of them behind the first `done` bytes, for later. */
static bool keep_unsent(ps_link *link, const struct iovec *iov, int count, int64_t done) {
    int64_t left = gathered_size(iov, count) - done;
    uint8_t *to = left > 0 ? ps_buffer_room(&link->lk_out, left) : NULL;
    if (left > 0 && to == NULL) return false;
    for (int i = 0; i < count; i++) {
        int64_t len = (int64_t)iov[i].iov_len, skip = done < len ? done : len;
        if (len > skip) memcpy(to, (uint8_t *)iov[i].iov_base + skip, (size_t)(len - skip));
        to += len - skip;
        done -= skip;
    }
    link->lk_out.len += left;
    atomic_fetch_add(&link->lk_unsent, left);
    return true;
}

/* Bytes that the socket took; -1: the connection has ended. */
static int64_t write_gathered(ps_link *link, struct iovec *iov, int count) {
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ssize_t done;
    do done = sendmsg(link->lk_fd, &message, MSG_NOSIGNAL);
    while (done < 0 && errno == EINTR);
    if (done >= 0) return done;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EFAULT ? 0 : -1;
}

/* Answers with pieces. Under one a file may have been cut off: the system refuses to read there,
 * and the copy that is made instead has its file marked (sigbus.h), so that the core knows. */
static void send_pieces(ps_link *link, const ps_step *step) {
    struct iovec iov[GATHER];
    int64_t piece = 0, at = 0;
    link->lk_seen_ms = ps_monotonic_ms();
    for (int count; link->lk_fd >= 0 && (count = gather_pieces(step, &piece, &at, iov)) > 0;) {
        /* TLS would read them as the copy does, and write each on its own. */
        bool first = link->lk_out.len == link->lk_out_from && link->lk_tls == NULL;
        int64_t done = first ? write_gathered(link, iov, count) : 0;
        if (done < 0)
            ps_link_end(link, NULL);
        else if (!keep_unsent(link, iov, count, done))
            ps_link_end(link, "no memory for its answers");
    }
    if (!ps_core_written(link->lk_net->nt_core) && link->lk_fd >= 0)
        ps_link_end(link, "a file of the log was cut off while it was sent");
    if (link->lk_fd < 0) return;
    if (link->lk_tls != NULL)
        ps_link_flush(link);
    else
        look_at_unsent(link);
}

void ps_link_flush(ps_link *link) {
    ps_buffer *out = &link->lk_out;
    int64_t left = out->len - link->lk_out_from;
    if (left > 0) {
        int64_t done = write_some(link, out->data + link->lk_out_from, left);
        if (done < 0) {
            ps_link_end(link, NULL);
            return;
        }
        link->lk_out_from += done;
        atomic_fetch_sub(&link->lk_unsent, done);
        if (done > 0) link->lk_seen_ms = ps_monotonic_ms();
        left -= done;
    }
    if (left == 0) {
        out->len = link->lk_out_from = 0;
        if (out->room > KEEP_OUT) ps_buffer_free(out);
        if (link->lk_closing_ms > 0) {
            ps_tls_finish(link->lk_tls);
            shutdown(link->lk_fd, SHUT_WR);
            ps_link_end(link, NULL);
            return;
        }
    } else if (link->lk_out_from > KEEP_OUT) {
        memmove(out->data, out->data + link->lk_out_from, (size_t)left);
        out->len = left;
        link->lk_out_from = 0;
    }
    look_at_unsent(link);
}

void ps_link_begin_close(ps_link *link) {
    if (link->lk_fd < 0) return;
    link->lk_held |= PS_HELD_CLOSING;
    link->lk_closing_ms = ps_monotonic_ms() + link->lk_net->nt_conf.linger_ms;
    if (link->lk_h2 != NULL) link->lk_net->nt_protocol->write(link);
    if (link->lk_fd >= 0) ps_link_flush(link);
    if (link->lk_fd >= 0) ps_link_watch(link);
}

/* ---- its first byte ---- */

static int32_t host_of(const struct sockaddr_storage *from, uint8_t *host) {
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)from;
        memcpy(host, &in->sin_addr, 4);
        be32_put(host + 4, ntohs(in->sin_port));
        return 8;
    }
    const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)from;
    if (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) {
        memcpy(host, in->sin6_addr.s6_addr + 12, 4);
        be32_put(host + 4, ntohs(in->sin6_port));
        return 8;
    }
    memcpy(host, &in->sin6_addr, 16);
    be32_put(host + 16, ntohs(in->sin6_port));
    return 20;
}

static int put_address(const struct sockaddr_storage *from, char *to, size_t room) {
    char text[INET6_ADDRSTRLEN] = "";
    bool four = from->ss_family == AF_INET;
    const struct sockaddr_in *in = (const struct sockaddr_in *)from;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
    inet_ntop(from->ss_family, four ? (const void *)&in->sin_addr : (const void *)&six->sin6_addr,
              text, sizeof text);
    return snprintf(to, room, "%s %d", text, ntohs(four ? in->sin_port : six->sin6_port));
}

/* For whom it speaks, as the core has hosts; *size: of the same as text, address and port with a
 * space between. -1: its peer has gone. */
static int32_t source_of(const ps_link *link, uint8_t *host, char *text, size_t room, int *size) {
    const ps_source *source = link->lk_source;
    struct sockaddr_storage peer = {0};
    socklen_t len = sizeof peer;
    if (source != NULL && source->host_len > 0) {
        memcpy(host, source->host, sizeof source->host);
        *size = snprintf(text, room, "%s", source->name);
        return source->host_len;
    }
    bool there = getpeername(link->lk_fd, (struct sockaddr *)&peer, &len) == 0;
    *size = put_address(&peer, text, room);
    return there ? host_of(&peer, host) : -1;
}

/* The connection becomes one of ours for life. */
static bool open_link(ps_link *link) {
    ps_net *net = link->lk_net;
    struct sockaddr_storage local = {0};
    socklen_t local_len = sizeof local;
    uint8_t host[20];
    char text[sizeof ((ps_source *)NULL)->name + INET6_ADDRSTRLEN + 16];
    int size;
    ps_error e = {0};
    int32_t host_len = source_of(link, host, text, sizeof text, &size);
    if (host_len < 0 || getsockname(link->lk_fd, (struct sockaddr *)&local, &local_len) < 0)
        return false;
    if (net->nt_core != NULL) {
        link->lk_conn = ps_conn_new(net->nt_core, link->lk_id, host, host_len, &e);
        if (link->lk_conn == NULL) return false;
        if (net->nt_conf.delegated != 0) ps_conn_delegate(link->lk_conn, net->nt_conf.delegated);
    }
    link->lk_open = true;
    snprintf(link->lk_host, sizeof link->lk_host, "%.*s", (int)strcspn(text, " "), text);
    text[size++] = ' ';
    size += put_address(&local, text + size, sizeof text - (size_t)size);
    link->lk_told = ps_net_tell(net, &(ps_net_event){.kind = PS_NET_OPENED, .link = link,
                                                     .data = (const uint8_t *)text, .len = size});
    return link->lk_told;
}

void ps_link_refuse(ps_link *link, const char *why, const char *detail) {
    uint8_t host[20];
    char text[sizeof ((ps_source *)NULL)->name + 300];
    int size;
    source_of(link, host, text, sizeof text, &size);
    size += snprintf(text + size, sizeof text - (size_t)size, "\n%s%s%.200s", why,
                     detail[0] != '\0' ? ": " : "", detail);
    ps_net_tell(link->lk_net, &(ps_net_event){.kind = PS_NET_UNOPENED,
                                              .data = (const uint8_t *)text, .len = size});
    ps_link_end(link, NULL);
}

/* Whether it is open, and is to be read now. */
static bool open_or_end(ps_link *link) {
    const ps_link_protocol *protocol = link->lk_net->nt_protocol;
    if (open_link(link) && (protocol == NULL || protocol->open == NULL || protocol->open(link)))
        return true;
    ps_link_end(link, "no memory for the connection");
    return false;
}

/* Its handshake goes on. Whether it is to be read now. */
static bool shake_hands(ps_link *link) {
    const char *why;
    int done = ps_tls_shake(link->lk_tls, &why);
    if (done > 0) return open_or_end(link);
    if (done == 0)
        ps_link_watch(link);
    else if (why == NULL)
        ps_link_end(link, NULL);
    else
        ps_link_refuse(link, "the TLS handshake failed", why);
    return false;
}

/* Until Python has said whether there is a certificate, which it may have to make. */
static void await_tls(ps_link *link) {
    ps_net *net = link->lk_net;
    link->lk_held |= PS_HELD_TLS;
    if (!atomic_exchange(&net->nt_first->nt_tls_asked, true))
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_TLS_WANTED});
    ps_link_watch(link);
}

/* False: the port has no TLS. *readable: the link is to be read now. */
static bool begin_tls(ps_link *link, bool *readable) {
    ps_net *port = link->lk_net->nt_first;
    int least = 1;
    pthread_mutex_lock(&port->nt_tls_lock);
    bool spoken = port->nt_tls != NULL;
    if (spoken) link->lk_tls = ps_tls_begin(port->nt_tls, link->lk_fd);
    pthread_mutex_unlock(&port->nt_tls_lock);
    if (!spoken) return false;
    setsockopt(link->lk_fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    link->lk_seen_ms = ps_monotonic_ms();
    *readable = link->lk_tls != NULL && shake_hands(link);
    if (link->lk_tls == NULL) ps_link_end(link, NULL);
    return true;
}

/* To Python, with what it has said; first: its first byte. One that was there before has said all
 * that Python could make something of. */
static void hand_over(ps_link *link, int first) {
    int fd = link->lk_source == NULL ? dup(link->lk_fd) : -1;
    if (fd >= 0) ps_net_hand_over(link->lk_net, fd, first);
    ps_link_end(link, NULL);
}

/* Whether the peer sends nothing more. */
static bool is_half_closed(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/* Whether it is to be read now. Frames begin with the higher byte of a length below 16 MiB, TLS,
 * HTTP/2 and a PROXY header with other bytes; HTTP/2 with a line of text, as a PROXY header may. */
static bool look_at_first(ps_link *link) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    bool readable = false;
    ssize_t wanted = conf->h2 != NULL ? PS_H2_FIRST : 1;
    uint8_t first[PS_H2_FIRST];
    if (link->lk_tls != NULL) return shake_hands(link);
    ssize_t count = recv(link->lk_fd, first, (size_t)wanted, MSG_PEEK);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    /* Short of memory the kernel wakes for fewer bytes than SO_RCVLOWAT asks for. */
    if (count > 0 && count < wanted && !is_half_closed(link->lk_fd)) return false;
    if (count == wanted && first[0] == TLS_HANDSHAKE) {
        if (!link->lk_net->nt_first->nt_tls_settled) {
            await_tls(link);
            return false;
        }
        if (begin_tls(link, &readable)) return readable;
    }
    if (count == wanted && !conf->tls_only &&
        (conf->h2 != NULL ? memcmp(first, "PRI", PS_H2_FIRST) == 0 : first[0] == 0))
        return open_or_end(link);
    if (count == wanted)
        hand_over(link, first[0]);
    else
        ps_link_end(link, NULL);
    return false;
}

/* ---- reading ---- */

static ps_link *largest_of(ps_net *net) {
    ps_link *largest = NULL;
    bool known = false;
    for (int32_t i = 0; i < net->nt_slots; i++) {
        ps_link *l = net->nt_links[i];
        if (l == NULL || l->lk_weight == 0) continue;
        bool is_known = l->lk_conn != NULL && ps_conn_known(l->lk_conn);
        if (largest == NULL || (known && !is_known) ||
            (known == is_known && l->lk_weight > largest->lk_weight)) {
            largest = l;
            known = is_known;
        }
    }
    return largest;
}

/* Others of the port hold more than this thread: they find out how much of it they still hold, and
 * end theirs. */
static void have_others_weigh(ps_net *net) {
    ps_net *first = net->nt_first;
    for (int32_t i = 0; i < first->nt_all_count; i++)
        if (first->nt_all[i] != net)
            ps_net_ask_for(first->nt_all[i], &(ps_net_ask){.kind = PS_ASK_WEIGH});
}

/* Over the limit those end first whom nobody knows, the largest of them first; a thread ends its
 * own, until it holds less than its share. Those of other ports find out in their next sweep. */
void ps_link_keep_budget(ps_net *net) {
    ps_net_budget *b = net->nt_conf.budget;
    int64_t limit = b->max, share = limit / b->sharers;
    if (b->held <= limit) return;
    /* Python may have taken frames meanwhile. */
    for (int32_t i = 0; i < net->nt_slots; i++)
        if (net->nt_links[i] != NULL) weigh_link(net->nt_links[i]);
    if (b->held <= limit) return;
    while (b->held > limit - limit / FREE) {
        ps_link *largest = net->nt_unfinished >= share - share / FREE ? largest_of(net) : NULL;
        if (largest == NULL) {
            if (b->held > limit) have_others_weigh(net);
            return;
        }
        ps_link_end(largest, "unfinished requests and unread answers of all connections exceed"
                             " maxUnfinishedBytes");
    }
}

void ps_link_queue(ps_link *link, int64_t len) {
    const ps_net_conf *conf = &link->lk_net->nt_conf;
    int64_t count = atomic_fetch_add(&link->lk_queued, 1) + 1;
    int64_t bytes = atomic_fetch_add(&link->lk_queued_bytes, len) + len;
    if (count >= conf->queued_max || bytes >= conf->queued_bytes)
        link->lk_held |= PS_HELD_QUEUED;
}

void ps_link_delegate(ps_link *link, const ps_h2_event *event, ps_pop_found *found) {
    int64_t head = event->header_block != NULL ? event->header_block_len : 0;
    ps_link_queue(link, head + event->len);
    if (ps_net_tell_call(link, event, found)) return;
    if (found != NULL) ps_pop_found_free(found);
    free(found);
    ps_link_end(link, "no memory for its requests");
}

bool ps_link_delegate_frame(ps_link *link, const uint8_t *frame, int64_t len) {
    ps_link_queue(link, len);
    if (ps_net_tell(link->lk_net, &(ps_net_event){.kind = PS_NET_FRAME, .link = link,
                                                  .data = frame, .len = len}))
        return true;
    ps_link_end(link, "no memory for its requests");
    return false;
}

/* What a step has brought about beside answers. */
static void take_rare(ps_link *link, const ps_step *step) {
    ps_net *net = link->lk_net;
    if (step->pop_due_ms > 0)
        ps_net_tell(net, &(ps_net_event){.kind = PS_NET_POP_DUE, .value = step->pop_due_ms});
    if (step->news) net->nt_look = true;
    if (step->look_in_ms >= 0) {
        int64_t at = ps_monotonic_ms() + step->look_in_ms;
        if (net->nt_look_ms < 0 || at < net->nt_look_ms) net->nt_look_ms = at;
    }
    link->lk_part = step->part ? ps_conn_unfinished(link->lk_conn) : 0;
    for (int32_t i = 0; i < step->frame_count; i++)
        if (!ps_link_delegate_frame(link, step->frames[i].data, step->frames[i].len)) return;
}

int64_t ps_link_receive(ps_link *link, uint8_t *to, int64_t room) {
    const char *why = NULL;
    if (link->lk_tls != NULL) {
        int64_t count = ps_tls_read(link->lk_tls, to, room, &why);
        if (count >= 0) return count;
    } else {
        ssize_t count = recv(link->lk_fd, to, (size_t)room, 0);
        if (count > 0) return count;
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    }
    if (why == NULL) {
        ps_link_end(link, NULL); /* one that only closed its half gets no answers: as upstream */
        return -1;
    }
    char text[160];
    snprintf(text, sizeof text, "TLS error: %s", why);
    ps_link_end(link, text);
    return -1;
}

/* Bytes into the room that the core gave, or none when it goes on with what it kept. */
static bool read_some(ps_link *link, int64_t *count, ps_error *e) {
    uint8_t *room;
    *count = 0;
    if (link->lk_more) return true;
    int64_t size = ps_conn_room(link->lk_conn, &room, e);
    if (size < 0) {
        ps_link_end(link, "no memory for its requests");
        return false;
    }
    *count = ps_link_receive(link, room, size);
    return *count > 0;
}

void ps_link_end_malformed(ps_link *link, const ps_error *e) {
    char why[sizeof e->text + 32];
    snprintf(why, sizeof why, "malformed frame: %s", e->text);
    ps_link_end(link, why);
}

void ps_link_readable(ps_link *link) {
    ps_step step;
    ps_error e = {0};
    int64_t count, began = ps_monotonic_ns();
    if (link->lk_fd < 0 || link->lk_held != 0) return;
    if (!link->lk_open && !look_at_first(link)) return;
    if (link->lk_net->nt_protocol != NULL) {
        link->lk_net->nt_protocol->read(link);
        link->lk_heavy = ps_monotonic_ns() - began > HEAVY_NS;
        if (link->lk_fd >= 0) go_on_later(link);
        ps_link_keep_budget(link->lk_net);
        return;
    }
    if (!read_some(link, &count, &e)) return;
    link->lk_seen_ms = began / 1000000;
    link->lk_net->nt_turns++;
    int code = ps_conn_received(link->lk_conn, count, &step, &e);
    link->lk_more = step.more;
    if (step.rare || link->lk_part > 0) take_rare(link, &step);
    if (step.piece_count > 0)
        send_pieces(link, &step);
    else if (step.out_len > 0)
        ps_link_send(link, step.out, step.out_len);
    if (code < 0) ps_link_end_malformed(link, &e);
    if (link->lk_fd < 0) return;
    weigh_link(link);
    link->lk_heavy =
        step.more || count >= HEAVY_BYTES || ps_monotonic_ns() - began > HEAVY_NS;
    go_on_later(link);
    ps_link_watch(link);
    ps_link_keep_budget(link->lk_net);
}
