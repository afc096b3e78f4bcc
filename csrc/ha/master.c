/* The master's end: one thread sends the log to all slaves, from the mapping to their sockets, and
 * hears how far each has it. See ha.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/threads.h"
#include "ha/ha.h"
#include "store/store.h"

#define TICK_MS 500    /* heartbeats and silence are looked at so often */
#define FRAMES_MAX 64  /* of one slave, before the others have their turn */
#define EVENTS 64
#define READ_ROOM 4096
#define STRANGER_MS 10000 /* Java's slave has reported by then, however it came to connect */
#define WINDOW_MS 100 /* what a slave is sent is bounded in each of these */

typedef struct peer {
    struct peer *pe_next;
    ps_ha_master *pe_master;
    ps_ha_peer pe_shown;
    int pe_fd;
    bool pe_blocked; /* its socket takes nothing more for now */
    bool pe_told;    /* that it is over: the thread frees it */
    /* Java's, under a controller: it notes the epoch that a header names as one of its log, and
     * forgets it for good if it connects again before it has something of that. */
    bool pe_notes_epochs;
    int64_t pe_heard_ms, pe_wrote_ms;
    int64_t pe_window_ms, pe_window_left; /* with bytes_s: when it began, and what may be sent */
    uint8_t pe_report[PS_HA_EPOCH_REPORT]; /* the beginning of one */
    int32_t pe_report_len;
    uint8_t pe_header[PS_HA_EPOCH_HEADER]; /* of the frame under way */
    int32_t pe_header_len, pe_header_left;
    int64_t pe_confirmed; /* what it was told last that readers see */
    const uint8_t *pe_body;
    int64_t pe_body_left;
    ps_mapfile *pe_file; /* that the body lies in; referenced */
} peer;

struct ps_ha_master {
    ps_store *hm_store;
    ps_ha_conf hm_conf;
    pthread_t hm_thread;
    int hm_epoll;
    _Atomic bool hm_stopping;
    pthread_mutex_t hm_lock; /* of all that follows */
    peer *hm_peers;
    int64_t hm_sendable; /* end_to_send */
    int32_t hm_copies; /* that answers wait for */
    ps_ha_epoch *hm_epochs; /* NULL: there is no controller */
    int64_t hm_required[PS_HA_MEMBERS_MAX]; /* hosts that answers wait for, each of them */
    int32_t hm_required_len;
    bool hm_counts; /* there is more to count: see ps_safe_copied */
};

static int64_t end_of_log(const ps_ha_master *m) {
    return atomic_load(&m->hm_store->st_log.lg_end);
}

/* A log that ends with a segment ends with a blank, where a restart puts the next record if it
 * fits: slaves get the blank with what follows it. */
static int64_t end_to_send(ps_ha_master *m) {
    int64_t end = end_of_log(m);
    if (end % m->hm_store->st_log.lg_files.ss_file_size != 0) m->hm_sendable = end;
    return m->hm_sendable;
}

static void end_peer(peer *p, int32_t why, int64_t detail) {
    if (p->pe_shown.over != PS_HA_GOES_ON) return;
    p->pe_shown.over = why;
    p->pe_shown.detail = detail;
    close(p->pe_fd);
    if (p->pe_file != NULL) ps_mapfile_unref(p->pe_file);
    p->pe_file = NULL;
}

static void watch_peer(peer *p, int op) {
    struct epoll_event ev = {.events = EPOLLIN | (p->pe_blocked ? EPOLLOUT : 0), .data.ptr = p};
    if (epoll_ctl(p->pe_master->hm_epoll, op, p->pe_fd, &ev) < 0) end_peer(p, PS_HA_FAILED, errno);
}

/* ---- sending ---- */

/* Bytes of the log that may be sent now. */
static int64_t bytes_allowed(peer *p, int64_t now) {
    int64_t most = p->pe_master->hm_conf.bytes_s;
    if (most == 0) return INT64_MAX;
    if (now - p->pe_window_ms >= WINDOW_MS) {
        p->pe_window_ms = now;
        p->pe_window_left = most * WINDOW_MS / 1000 + 1;
    }
    return p->pe_window_left;
}

/* Bytes of the log before the next epoch begins. */
static int64_t left_of_epoch(const ps_ha_master *m, int64_t at) {
    if (m->hm_epochs == NULL) return INT64_MAX;
    int32_t i = ps_ha_epoch_at(m->hm_epochs, m->hm_conf.epochs_len, at);
    bool last = i + 1 == m->hm_conf.epochs_len;
    return last ? INT64_MAX : m->hm_epochs[i + 1].start - at;
}

static void write_header(peer *p, int64_t at) {
    ps_ha_master *m = p->pe_master;
    p->pe_header_len = PS_HA_HEADER;
    bool has_none_of_it = p->pe_notes_epochs && p->pe_body_left == 0;
    if (m->hm_epochs == NULL) {
        be64_put(p->pe_header, (uint64_t)at);
        be32_put(p->pe_header + 8, (uint32_t)p->pe_body_left);
    } else {
        int64_t last = has_none_of_it ? at - 1 : at;
        const ps_ha_epoch *of =
            &m->hm_epochs[ps_ha_epoch_at(m->hm_epochs, m->hm_conf.epochs_len, last)];
        p->pe_header_len = PS_HA_EPOCH_HEADER;
        be32_put(p->pe_header, PS_HA_TRANSFER);
        be32_put(p->pe_header + 4, (uint32_t)p->pe_body_left);
        be64_put(p->pe_header + 8, (uint64_t)at);
        be32_put(p->pe_header + 16, (uint32_t)of->epoch);
        be64_put(p->pe_header + 20, (uint64_t)of->start);
        p->pe_confirmed = ps_safe_visible(&m->hm_store->st_safe);
        be64_put(p->pe_header + 28, (uint64_t)p->pe_confirmed);
    }
    p->pe_header_left = p->pe_header_len;
}

/* Its readers could see more than it was told. */
static bool has_news(const peer *p) {
    const ps_ha_master *m = p->pe_master;
    return m->hm_epochs != NULL && ps_safe_visible(&m->hm_store->st_safe) > p->pe_confirmed;
}

/* Begins the next frame: log, or a heartbeat when one is due. False: there is nothing to send. */
static bool begin_frame(peer *p, int64_t now) {
    ps_ha_master *m = p->pe_master;
    int64_t at = p->pe_shown.sent, avail = 0;
    if (p->pe_shown.acked < 0) return false;
    if (at < atomic_load(&m->hm_store->st_log.lg_min)) {
        end_peer(p, PS_HA_BELOW, at);
        return false;
    }
    /* Of a log that is not known to be this one, what follows is not the next byte. */
    int64_t end = p->pe_shown.compared ? end_to_send(m) : at;
    p->pe_body = ps_log_at(&m->hm_store->st_log, at, end, &avail, &p->pe_file);
    if (p->pe_body == NULL && at < end) { /* its segment cannot be mapped */
        end_peer(p, PS_HA_FAILED, EIO);
        return false;
    }
    if (p->pe_body == NULL && now - p->pe_wrote_ms < m->hm_conf.heartbeat_ms && !has_news(p))
        return false;
    if (p->pe_body == NULL && p->pe_notes_epochs && (at == 0 || !p->pe_shown.compared))
        return false;
    int64_t most = bytes_allowed(p, now);
    if (p->pe_body != NULL && most == 0) {
        ps_mapfile_unref(p->pe_file);
        p->pe_file = NULL;
        return false;
    }
    if (most > m->hm_conf.batch_bytes) most = m->hm_conf.batch_bytes;
    if (most > left_of_epoch(m, at)) most = left_of_epoch(m, at);
    p->pe_body_left = p->pe_body == NULL ? 0 : avail < most ? avail : most;
    p->pe_window_left -= p->pe_body_left;
    write_header(p, at);
    p->pe_shown.sent += p->pe_body_left;
    return true;
}

/* Moves the frame under way on. False: the socket takes no more, or the peer has ended. */
static bool send_frame(peer *p, int64_t now) {
    struct iovec parts[2] = {
        {p->pe_header + p->pe_header_len - p->pe_header_left, (size_t)p->pe_header_left},
        {(void *)(uintptr_t)p->pe_body, (size_t)p->pe_body_left}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = p->pe_body_left > 0 ? 2 : 1};
    ssize_t n = sendmsg(p->pe_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        p->pe_blocked = true;
        watch_peer(p, EPOLL_CTL_MOD);
        return false;
    }
    if (n < 0) {
        end_peer(p, PS_HA_FAILED, errno);
        return false;
    }
    p->pe_wrote_ms = now;
    p->pe_shown.bytes += n;
    int32_t of_header = n < p->pe_header_left ? (int32_t)n : p->pe_header_left;
    p->pe_header_left -= of_header;
    p->pe_body += n - of_header;
    p->pe_body_left -= n - of_header;
    if (p->pe_header_left == 0 && p->pe_body_left == 0 && p->pe_file != NULL) {
        ps_mapfile_unref(p->pe_file);
        p->pe_file = NULL;
    }
    return true;
}

/* True: there is more that could be sent at once. */
static bool send_some(peer *p) {
    int64_t now = ps_monotonic_ms();
    for (int i = 0; i < FRAMES_MAX; i++) {
        if (p->pe_shown.over != PS_HA_GOES_ON || p->pe_blocked) return false;
        if (p->pe_header_left == 0 && p->pe_body_left == 0 && !begin_frame(p, now)) return false;
        if (!send_frame(p, now)) return false;
    }
    return true;
}

/* ---- hearing ---- */

/* Whether it is a copy of this log up to `end`. */
static bool has_up_to(const peer *p, int64_t end) {
    return p->pe_shown.over == PS_HA_GOES_ON && p->pe_shown.compared && p->pe_shown.acked >= end;
}

/* How many hosts have the log up to `end`: a slave that comes again may be there twice. */
static int32_t hosts_with(const ps_ha_master *m, int64_t end) {
    int32_t count = 0;
    for (peer *p = m->hm_peers; p != NULL; p = p->pe_next) {
        const peer *before = m->hm_peers;
        if (!has_up_to(p, end)) continue;
        while (before != p &&
               !(before->pe_shown.host == p->pe_shown.host && has_up_to(before, end)))
            before = before->pe_next;
        count += before == p;
    }
    return count;
}

/* Up to where all have the log that must; -1: one of them is not there. */
static int64_t end_of_required(const ps_ha_master *m) {
    int64_t end = INT64_MAX;
    for (int32_t i = 0; i < m->hm_required_len; i++) {
        const peer *p = m->hm_peers;
        while (p != NULL && !(p->pe_shown.host == m->hm_required[i] && has_up_to(p, 0)))
            p = p->pe_next;
        if (p == NULL) return -1;
        if (p->pe_shown.acked < end) end = p->pe_shown.acked;
    }
    return m->hm_required_len > 0 ? end : -1;
}

/* The end up to which enough slaves have the log moves. */
static void count_copies(ps_ha_master *m) {
    int32_t wanted = m->hm_copies;
    int64_t best = -1;
    if (m->hm_epochs != NULL) {
        best = end_of_required(m);
    } else if (wanted > 0) {
        for (peer *p = m->hm_peers; p != NULL; p = p->pe_next)
            if (has_up_to(p, best + 1) && hosts_with(m, p->pe_shown.acked) >= wanted)
                best = p->pe_shown.acked;
    }
    m->hm_counts = best > 0 && ps_safe_copied(&m->hm_store->st_safe, best);
}

/* How many slaves an answer waits for, and whether there are enough: upstream's
 * CommitLog.calcNeedAckNums, with minInSyncReplicas as its controller mode has it. */
static void look_who_is_near(ps_ha_master *m) {
    const ps_ha_conf *conf = &m->hm_conf;
    ps_safe *safe = &m->hm_store->st_safe;
    if (m->hm_epochs != NULL || (conf->copies_min < 1 && !conf->adapts)) return;
    int32_t near = hosts_with(m, end_of_log(m) - conf->near_bytes + 1);
    int32_t wanted = !conf->adapts || near > conf->copies ? conf->copies : near;
    if (wanted < conf->copies_min) wanted = conf->copies_min;
    atomic_store(&safe->sf_short, near < conf->copies_min);
    if (wanted == m->hm_copies) return;
    m->hm_copies = wanted;
    count_copies(m);
    ps_safe_want_copies(safe, wanted > 0, safe->sf_copies_timeout_ms);
}

/* The end of what the socket has taken. */
static int64_t end_of_sent(const peer *p) {
    return p->pe_shown.sent - p->pe_body_left;
}

static void take_first_report(peer *p, int64_t end) {
    int64_t min = atomic_load(&p->pe_master->hm_store->st_log.lg_min);
    if (end < 0 || end > end_of_log(p->pe_master)) {
        end_peer(p, PS_HA_BEYOND, end);
    } else if (end > 0 && end < min) {
        end_peer(p, PS_HA_BELOW, end);
    } else {
        /* A slave that has nothing gets all; upstream's gets the last segment alone. */
        p->pe_shown.sent = end == 0 ? min : end;
        p->pe_shown.began = p->pe_shown.acked = end;
        if (end == 0) p->pe_shown.compared = true;
    }
}

static void take_report(peer *p, int64_t end) {
    if (p->pe_shown.acked < 0) {
        take_first_report(p, end);
    } else if (end < p->pe_shown.acked) {
        end_peer(p, PS_HA_BACK, end);
    } else if (end > end_of_sent(p)) {
        end_peer(p, PS_HA_BEYOND, end);
    } else {
        p->pe_shown.acked = end;
    }
}

/* The last report of those there are. False: it is none. */
static bool read_report(const peer *p, const uint8_t *at, int64_t *end) {
    bool epochs = p->pe_master->hm_epochs != NULL;
    *end = (int64_t)be64_get(epochs ? at + 4 : at);
    return !epochs || be32_get(at) == PS_HA_TRANSFER;
}

static void hear_peer(peer *p) {
    int64_t whole = p->pe_master->hm_epochs != NULL ? PS_HA_EPOCH_REPORT : PS_HA_REPORT, end;
    uint8_t data[PS_HA_EPOCH_REPORT + READ_ROOM];
    memcpy(data, p->pe_report, (size_t)p->pe_report_len);
    ssize_t n = recv(p->pe_fd, data + p->pe_report_len, READ_ROOM, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        end_peer(p, n == 0 ? PS_HA_CLOSED : PS_HA_FAILED, errno);
        return;
    }
    int64_t len = p->pe_report_len + n, rest = len % whole;
    if (len >= whole) { /* less is not a sign of life */
        p->pe_heard_ms = ps_monotonic_ms();
        if (read_report(p, data + len - rest - whole, &end))
            take_report(p, end);
        else
            end_peer(p, PS_HA_FAILED, EPROTO);
        count_copies(p->pe_master);
    }
    memcpy(p->pe_report, data + len - rest, (size_t)rest);
    p->pe_report_len = (int32_t)rest;
}

/* ---- the thread ---- */

static bool serve_peers(ps_ha_master *m) {
    bool more = false;
    int64_t now = ps_monotonic_ms();
    for (peer *p = m->hm_peers; p != NULL; p = p->pe_next) {
        if (p->pe_shown.over != PS_HA_GOES_ON) continue;
        int64_t most = m->hm_conf.idle_ms;
        if (p->pe_shown.acked < 0 && most > STRANGER_MS) most = STRANGER_MS;
        if (now - p->pe_heard_ms > most)
            end_peer(p, PS_HA_SILENT, 0);
        else if (send_some(p))
            more = true;
    }
    return more;
}

/* ms until a slave can be sent what was put just now; TICK_MS at most. */
static int until_behind(ps_ha_master *m) {
    int64_t end = end_to_send(m), now = ps_monotonic_ms(), first = TICK_MS;
    for (peer *p = m->hm_peers; p != NULL; p = p->pe_next) {
        if (p->pe_shown.over != PS_HA_GOES_ON || p->pe_blocked || p->pe_shown.acked < 0 ||
            !p->pe_shown.compared || p->pe_shown.sent >= end)
            continue;
        int64_t wait = bytes_allowed(p, now) > 0 ? 0 : p->pe_window_ms + WINDOW_MS - now;
        if (wait < first) first = wait;
    }
    return (int)first;
}

/* Who says nothing does not keep others out. The lock is held. */
static void end_oldest_stranger(ps_ha_master *m) {
    peer *oldest = NULL;
    int32_t count = 0;
    for (peer *p = m->hm_peers; p != NULL; p = p->pe_next)
        if (p->pe_shown.over == PS_HA_GOES_ON && p->pe_shown.acked < 0) {
            count++;
            oldest = p; /* the list begins with who came last */
        }
    if (count > PS_HA_STRANGERS_MAX) end_peer(oldest, PS_HA_SILENT, 0);
}

static void take_events(ps_ha_master *m, const struct epoll_event *events, int count) {
    uint64_t told;
    for (int i = 0; i < count; i++) {
        peer *p = events[i].data.ptr;
        if (p == NULL) {
            if (read(m->hm_store->st_sender_fd, &told, sizeof told) < 0) continue;
            continue;
        }
        if (p->pe_shown.over != PS_HA_GOES_ON) continue;
        if (events[i].events & EPOLLOUT) {
            p->pe_blocked = false;
            watch_peer(p, EPOLL_CTL_MOD);
        }
        if (p->pe_shown.over == PS_HA_GOES_ON && events[i].events & ~(uint32_t)EPOLLOUT)
            hear_peer(p);
    }
}

/* After its last event was looked at. */
static void free_told(ps_ha_master *m) {
    for (peer **at = &m->hm_peers; *at != NULL;) {
        peer *p = *at;
        if (!p->pe_told) {
            at = &p->pe_next;
            continue;
        }
        *at = p->pe_next;
        free(p);
    }
}

static void *run_master(void *arg) {
    ps_ha_master *m = arg;
    _Atomic bool *naps = &m->hm_store->st_dispatcher.ds_sender_naps;
    struct epoll_event events[EVENTS];
    int count = 0;
    pthread_mutex_lock(&m->hm_lock);
    /* A turn is a call of the store, whose close ends a thread that nobody has stopped. */
    while (!atomic_load(&m->hm_stopping) && ps_enter(m->hm_store) == 0) {
        take_events(m, events, count);
        free_told(m);
        bool more = serve_peers(m);
        look_who_is_near(m);
        if (m->hm_counts) count_copies(m);
        /* Either whoever puts sees the flag, or this thread sees the new end. */
        atomic_store(naps, true);
        int wait_ms = more || m->hm_counts ? 0 : until_behind(m);
        ps_leave(m->hm_store);
        pthread_mutex_unlock(&m->hm_lock);
        count = epoll_wait(m->hm_epoll, events, EVENTS, wait_ms);
        atomic_store(naps, false);
        /* Held until who is near was counted: whoever is shown a slave's report may rely on it that
         * answers wait for that slave. */
        pthread_mutex_lock(&m->hm_lock);
    }
    pthread_mutex_unlock(&m->hm_lock);
    return NULL;
}

/* ---- from outside ---- */

static int open_master(ps_ha_master *m, ps_error *e) {
    ps_store *s = m->hm_store;
    const ps_ha_conf *conf = &m->hm_conf;
    if (conf->epochs_len > 0) {
        m->hm_epochs = calloc((size_t)conf->epochs_len, sizeof *m->hm_epochs);
        if (m->hm_epochs == NULL) return ps_no_memory(e, NULL, "no memory for epochs");
        memcpy(m->hm_epochs, conf->epochs, (size_t)conf->epochs_len * sizeof *m->hm_epochs);
    }
    if (s->st_sender_fd < 0) s->st_sender_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    m->hm_epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    if (s->st_sender_fd < 0 || m->hm_epoll < 0 ||
        epoll_ctl(m->hm_epoll, EPOLL_CTL_ADD, s->st_sender_fd, &ev) < 0)
        return ps_fail(e, PS_E_IO, errno, -1, NULL, "cannot wait for slaves");
    int err = ps_thread_start(&m->hm_thread, "rmq-ha-master", run_master, m);
    if (err != 0) return ps_fail(e, PS_E_IO, err, -1, NULL, "cannot start a thread for slaves");
    return 0;
}

static void free_master(ps_ha_master *m) {
    pthread_mutex_destroy(&m->hm_lock);
    free(m->hm_epochs);
    ps_store_unref(m->hm_store);
    free(m);
}

ps_ha_master *ps_ha_master_start(ps_store *store, const ps_ha_conf *conf, ps_error *e) {
    ps_ha_master *m = calloc(1, sizeof *m);
    if (m == NULL) {
        ps_no_memory(e, NULL, "no memory for the sender to slaves");
        return NULL;
    }
    m->hm_store = ps_store_ref(store);
    m->hm_conf = *conf;
    m->hm_copies = conf->copies;
    m->hm_epoll = -1;
    pthread_mutex_init(&m->hm_lock, NULL);
    look_who_is_near(m);
    if (open_master(m, e) == 0) return m;
    if (m->hm_epoll >= 0) close(m->hm_epoll);
    free_master(m);
    return NULL;
}

int ps_ha_master_take(ps_ha_master *m, int fd, int64_t id, int64_t host, int32_t compared,
                      ps_error *e) {
    int on = 1;
    peer *p = calloc(1, sizeof *p);
    if (p == NULL) {
        close(fd);
        return ps_no_memory(e, NULL, "no memory for a slave");
    }
    *p = (peer){.pe_master = m, .pe_fd = fd};
    p->pe_notes_epochs = m->hm_epochs != NULL && !compared;
    p->pe_shown =
        (ps_ha_peer){.id = id, .host = host, .began = -1, .acked = -1, .compared = compared};
    p->pe_heard_ms = p->pe_wrote_ms = ps_monotonic_ms();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    pthread_mutex_lock(&m->hm_lock);
    p->pe_next = m->hm_peers;
    m->hm_peers = p;
    watch_peer(p, EPOLL_CTL_ADD);
    int err = p->pe_shown.over == PS_HA_FAILED ? (int)p->pe_shown.detail : 0;
    end_oldest_stranger(m);
    pthread_mutex_unlock(&m->hm_lock);
    ps_eventfd_tell(m->hm_store->st_sender_fd);
    return err == 0 ? 0 : ps_fail(e, PS_E_IO, err, -1, NULL, "cannot wait for a slave");
}

void ps_ha_master_compared(ps_ha_master *m, int64_t id, int32_t same) {
    if (ps_enter(m->hm_store) < 0) return;
    pthread_mutex_lock(&m->hm_lock);
    for (peer *p = m->hm_peers; p != NULL; p = p->pe_next) {
        if (p->pe_shown.id != id || p->pe_shown.acked < 0) continue;
        p->pe_shown.compared = same;
        if (!same) end_peer(p, PS_HA_OTHER, p->pe_shown.began);
    }
    count_copies(m);
    look_who_is_near(m);
    pthread_mutex_unlock(&m->hm_lock);
    ps_leave(m->hm_store);
    ps_eventfd_tell(m->hm_store->st_sender_fd);
}

int64_t ps_ha_master_require(ps_ha_master *m, const int64_t *hosts, int32_t count,
                             int32_t refuses) {
    ps_safe *safe = &m->hm_store->st_safe;
    if (ps_enter(m->hm_store) < 0) return end_of_log(m);
    pthread_mutex_lock(&m->hm_lock);
    bool alone = m->hm_required_len == 0;
    m->hm_required_len = count;
    memcpy(m->hm_required, hosts, (size_t)count * sizeof *hosts);
    atomic_store(&safe->sf_short, refuses != 0);
    if (count == 0) ps_safe_want_copies(safe, false, safe->sf_copies_timeout_ms);
    /* Whoever puts from here on waits; what was answered before ends below this. */
    if (count > 0 && alone) ps_safe_want_copies(safe, true, safe->sf_copies_timeout_ms);
    int64_t end = alone ? ps_safe_lead(safe) : end_of_log(m), sent = end_to_send(m);
    count_copies(m);
    pthread_mutex_unlock(&m->hm_lock);
    ps_leave(m->hm_store);
    /* The blank at a segment's end is held back, and holds nothing. */
    return end < sent ? end : sent;
}

void ps_ha_master_wait_for(ps_ha_master *m, const ps_ha_conf *conf, int32_t timeout_ms) {
    ps_safe *safe = &m->hm_store->st_safe;
    if (ps_enter(m->hm_store) < 0) return;
    pthread_mutex_lock(&m->hm_lock);
    if (m->hm_epochs == NULL) {
        bool alone = m->hm_copies == 0;
        m->hm_conf.copies = m->hm_copies = conf->copies;
        m->hm_conf.copies_min = conf->copies_min;
        m->hm_conf.adapts = conf->adapts;
        m->hm_conf.near_bytes = conf->near_bytes;
        ps_safe_want_copies(safe, conf->copies > 0, timeout_ms);
        /* What was answered, and seen, without slaves stays so. */
        if (alone && conf->copies > 0) ps_safe_copied(safe, end_of_log(m));
        if (conf->copies_min < 1) atomic_store(&safe->sf_short, false);
        look_who_is_near(m);
        count_copies(m);
    } else {
        ps_safe_want_copies(safe, m->hm_required_len > 0, timeout_ms);
    }
    pthread_mutex_unlock(&m->hm_lock);
    ps_leave(m->hm_store);
    ps_eventfd_tell(m->hm_store->st_sender_fd);
}

int32_t ps_ha_master_peers(ps_ha_master *m, ps_ha_peer *out, int32_t room) {
    int32_t count = 0;
    int64_t now = ps_monotonic_ms();
    pthread_mutex_lock(&m->hm_lock);
    for (peer *p = m->hm_peers; p != NULL && count < room; p = p->pe_next) {
        if (p->pe_told) continue;
        p->pe_shown.silent_ms = now - p->pe_heard_ms;
        out[count++] = p->pe_shown;
        p->pe_told = p->pe_shown.over != PS_HA_GOES_ON;
    }
    pthread_mutex_unlock(&m->hm_lock);
    return count;
}

void ps_ha_master_stop(ps_ha_master *m) {
    atomic_store(&m->hm_stopping, true);
    ps_eventfd_tell(m->hm_store->st_sender_fd);
    pthread_join(m->hm_thread, NULL);
    for (peer *p = m->hm_peers, *next; p != NULL; p = next) {
        next = p->pe_next;
        end_peer(p, PS_HA_CLOSED, 0);
        free(p);
    }
    close(m->hm_epoll);
    free_master(m);
}
