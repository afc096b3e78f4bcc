/* One connection of a network thread: what is read goes through the core, what comes of it to the
 * socket or to Python. docs/internals/wire.md#connections. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/grow.h"
#include "net/reactor.h"
#include "tables/access.h"

#define UNREAD_MIN 4096 /* bytes that a peer has not read, from which on they are counted */
#define OTHERS_MS 100   /* for other threads to look at what they hold */
#define FREE 16         /* once the budget is exceeded, so much of it becomes free */
#define GATHER 256 /* parts of one write */
#define SLOTS_FIRST 64
#define KEEP_OUT (1 << 20) /* a larger buffer goes back to the system once it is empty */

/* ---- its place among the others ---- */

void ps_link_count(ps_net *net, bool over, int32_t more) {
    if (over)
        net->nt_first->nt_over += more;
    else
        net->nt_count += more;
}

static bool find_slot(ps_net *net, int32_t *slot) {
    for (*slot = net->nt_free; *slot < net->nt_slots; ++*slot)
        if (net->nt_links[*slot] == NULL) return true;
    if (!PS_GROW(net->nt_links, net->nt_slots, *slot + 1, SLOTS_FIRST)) return false;
    memset(net->nt_links + *slot, 0, (size_t)(net->nt_slots - *slot) * sizeof *net->nt_links);
    return true;
}

ps_link *ps_link_make(ps_net *net, int fd, bool over) {
    int32_t slot;
    ps_link *link = calloc(1, sizeof *link);
    if (link == NULL || !find_slot(net, &slot)) {
        free(link);
        return NULL;
    }
    link->lk_net = net;
    link->lk_fd = fd;
    link->lk_over = over;
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
    free(link->lk_header);
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
    ps_net_hold(link->lk_net, now - link->lk_weight);
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
    /* A child that was forked may have a copy of the descriptor. */
    epoll_ctl(link->lk_net->nt_epoll, EPOLL_CTL_DEL, link->lk_fd, NULL);
    close(link->lk_fd);
    link->lk_fd = -1;
    weigh_link(link);
    ps_link_let_go(link);
    ps_link_count(link->lk_net, link->lk_over, -1);
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

void ps_link_go_on(ps_link *link) {
    if (link->lk_held == 0 && (link->lk_more || ps_tls_more(link->lk_tls))) ps_link_enqueue(link);
}

void ps_link_release(ps_link *link, int32_t why) {
    link->lk_held &= ~why;
    ps_link_go_on(link);
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

/* What is on its way from Python was above the limit, be it that the socket takes it all. */
static void look_at_awaited(ps_link *link) {
    if (link->lk_awaited && !(link->lk_held & PS_HELD_UNREAD) &&
        link->lk_unsent < link->lk_net->nt_conf.write_low &&
        atomic_exchange(&link->lk_awaited, false))
        ps_net_tell(link->lk_net, &(ps_net_event){.kind = PS_NET_UNREAD, .link = link});
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
    if (link->lk_fd >= 0) look_at_awaited(link);
}

void ps_link_written(ps_link *link, int64_t len) {
    atomic_fetch_sub(&link->lk_unsent, len);
    if (link->lk_fd >= 0) look_at_awaited(link);
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
        if (!ps_buffer_add(&link->lk_out, data + done, len - done)) {
            ps_link_end(link, "no memory for its answers");
            return;
        }
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
void ps_link_send_pieces(ps_link *link, const ps_step *step) {
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

/* ---- reading ---- */

/* known: set to whether it was let in. */
static ps_link *largest_of(ps_net *net, bool *known) {
    ps_link *largest = NULL;
    int64_t most = 0;
    *known = false;
    for (int32_t i = 0; i < net->nt_slots; i++) {
        ps_link *l = net->nt_links[i];
        int64_t weight = l == NULL || l->lk_fd < 0 ? 0 : l->lk_weight + l->lk_asked;
        if (weight == 0) continue;
        bool is_known = l->lk_known || (l->lk_conn != NULL && ps_conn_known(l->lk_conn));
        if (largest == NULL || (*known && !is_known) || (*known == is_known && weight > most)) {
            largest = l;
            most = weight;
            *known = is_known;
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

/* Strangers may be links of other threads, which have not looked yet: those who were let in end
 * when the budget has been exceeded for a while. */
static bool others_have_looked(ps_net *net) {
    if (net->nt_conf.budget->sharers == 1) return true;
    int64_t now = ps_monotonic_ms();
    if (net->nt_over_ms == 0) net->nt_over_ms = now;
    return now - net->nt_over_ms >= OTHERS_MS;
}

/* Over the limit those end first whom nobody knows, the largest of them first; a thread ends its
 * own, until it holds less than its share. Those of other ports find out in their next sweep. */
void ps_link_keep_budget(ps_net *net) {
    ps_net_budget *b = net->nt_conf.budget;
    int64_t limit = b->max, share = limit / b->sharers;
    /* Python may have taken frames meanwhile. */
    for (int32_t i = 0; b->held > limit && i < net->nt_slots; i++)
        if (net->nt_links[i] != NULL) weigh_link(net->nt_links[i]);
    if (b->held <= limit) {
        net->nt_over_ms = 0;
        return;
    }
    while (b->held > limit - limit / FREE) {
        bool known = false;
        ps_link *largest =
            net->nt_unfinished >= share - share / FREE ? largest_of(net, &known) : NULL;
        if (largest == NULL || (known && !others_have_looked(net))) {
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

void ps_link_end_malformed(ps_link *link, const ps_error *e) {
    char why[sizeof e->text + 32];
    snprintf(why, sizeof why, "malformed frame: %s", e->text);
    ps_link_end(link, why);
}
