/* The slave's end: one thread takes what the master sends into the log, and reports how far it is.
 * See ha.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/threads.h"
#include "ha/ha.h"
#include "store/store.h"

#define READ_ROOM (256 << 10)
#define FRAME_MAX (64 << 20) /* upstream's slave takes 4 MiB */
#define SEND_S 5             /* a report that cannot be sent for so long ends the connection */

struct ps_ha_slave {
    ps_store *hs_store;
    ps_ha_conf hs_conf;
    pthread_t hs_thread;
    int hs_fd, hs_told_fd, hs_wake_fd;
    pthread_mutex_t hs_lock; /* of what is shown */
    ps_ha_state hs_shown;
    _Atomic int64_t hs_heard_ms;
    int64_t hs_reported_ms, hs_reported; /* the thread's own */
    uint8_t hs_header[PS_HA_EPOCH_HEADER];
    int32_t hs_header_len;
    ps_ha_epoch *hs_epochs; /* NULL: there is no controller */
    int64_t hs_confirmed; /* by the master, as it says: of its log, and anywhere in it */
    bool hs_confirms;     /* there is more of it to pass */
    int64_t hs_at, hs_left; /* of the frame under way: where its next byte belongs, and how many */
    uint8_t hs_data[READ_ROOM];
};

static int64_t end_of_store(const ps_ha_slave *h) {
    return atomic_load(&h->hs_store->st_log.lg_end);
}

/* ---- the log that comes ---- */

/* An epoch must be known on this disk before anything of it is taken. */
#define NEW_EPOCH 1

/* Whether a row of the list is what the frame names as the epoch of its bytes. */
static bool is_named(const ps_ha_slave *h, int32_t i) {
    return i < h->hs_conf.epochs_len &&
           h->hs_epochs[i].epoch == (int32_t)be32_get(h->hs_header + 16) &&
           h->hs_epochs[i].start == (int64_t)be64_get(h->hs_header + 20);
}

/* Java's master names the next epoch with the last bytes of one: it goes on to that before it
 * writes the header (upstream AutoSwitchHAConnection.transferToSlave). */
static bool is_last_before(const ps_ha_slave *h, int32_t next) {
    return is_named(h, next) && h->hs_at + h->hs_left == h->hs_epochs[next].start;
}

/* 0, NEW_EPOCH, or an error. */
static int read_epoch(ps_ha_slave *h, ps_error *e) {
    const uint8_t *at = h->hs_header;
    int32_t state = (int32_t)be32_get(at);
    if (state != PS_HA_TRANSFER)
        return ps_fail(e, PS_E_ARGUMENT, 0, state, NULL,
                       "the master sent a frame of state %d instead of log", (int)state);
    h->hs_left = (int32_t)be32_get(at + 4);
    h->hs_at = (int64_t)be64_get(at + 8);
    int32_t of = ps_ha_epoch_at(h->hs_epochs, h->hs_conf.epochs_len, h->hs_at);
    if (h->hs_left > 0 && !is_named(h, of) && !is_last_before(h, of + 1)) return NEW_EPOCH;
    h->hs_confirmed = (int64_t)be64_get(at + 28);
    return 0;
}

static int read_header(ps_ha_slave *h, ps_error *e) {
    h->hs_header_len = 0;
    if (h->hs_epochs != NULL) {
        int code = read_epoch(h, e);
        if (code != 0) return code;
    } else {
        h->hs_at = (int64_t)be64_get(h->hs_header);
        h->hs_left = (int32_t)be32_get(h->hs_header + 8);
    }
    if (h->hs_at < 0 || h->hs_left < 0 || h->hs_left > FRAME_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, h->hs_at, NULL,
                       "the master sent a frame of %lld bytes for place %lld of the log",
                       (long long)h->hs_left, (long long)h->hs_at);
    /* A heartbeat says where the master stands, too. */
    return h->hs_left > 0 || end_of_store(h) == 0
               ? 0
               : ps_follow_append(h->hs_store, h->hs_at, NULL, 0, e);
}

static int take_bytes(ps_ha_slave *h, const uint8_t *data, int64_t len, ps_error *e) {
    int code = 0;
    while (len > 0 && code == 0) {
        int64_t n;
        if (h->hs_left == 0) {
            int32_t whole = h->hs_epochs != NULL ? PS_HA_EPOCH_HEADER : PS_HA_HEADER;
            n = whole - h->hs_header_len;
            if (n > len) n = len;
            memcpy(h->hs_header + h->hs_header_len, data, (size_t)n);
            h->hs_header_len += (int32_t)n;
            if (h->hs_header_len == whole) code = read_header(h, e);
        } else {
            n = h->hs_left < len ? h->hs_left : len;
            code = ps_follow_append(h->hs_store, h->hs_at, data, n, e);
            h->hs_at += n;
            h->hs_left -= n;
        }
        data += n;
        len -= n;
    }
    return code;
}

/* What the master confirms, as far as it is here. */
static void confirm_what_is_here(ps_ha_slave *h) {
    h->hs_confirms = false;
    if (h->hs_epochs == NULL || ps_enter(h->hs_store) < 0) return;
    h->hs_confirms = ps_safe_copied(&h->hs_store->st_safe, h->hs_confirmed);
    ps_leave(h->hs_store);
}

/* ---- reports ---- */

/* With SYNC_FLUSH a slave has what its disk has. */
static int report_end(ps_ha_slave *h, ps_error *e) {
    uint8_t data[PS_HA_EPOCH_REPORT];
    size_t len = h->hs_epochs != NULL ? PS_HA_EPOCH_REPORT : PS_HA_REPORT;
    int64_t end = end_of_store(h);
    if (h->hs_store->st_safe.sf_sync && end > 0) {
        int code = ps_wait_flushed(h->hs_store, end, h->hs_store->st_safe.sf_timeout_ms, e);
        if (code < 0) return code;
        end = code == 0 ? end : ps_safe_flushed(&h->hs_store->st_safe);
    }
    be32_put(data, PS_HA_TRANSFER);
    be64_put(data + len - PS_HA_REPORT, (uint64_t)end);
    if (send(h->hs_fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
        return ps_fail(e, PS_E_IO, errno, end, NULL, "cannot report to the master");
    h->hs_reported = end;
    h->hs_reported_ms = ps_monotonic_ms();
    return 0;
}

/* ---- the thread ---- */

/* PS_HA_GOES_ON, or why not. */
static int hear_master(ps_ha_slave *h, ps_error *e) {
    ssize_t n = recv(h->hs_fd, h->hs_data, READ_ROOM, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return PS_HA_GOES_ON;
    if (n == 0) return PS_HA_CLOSED;
    if (n < 0) {
        ps_fail(e, PS_E_IO, errno, -1, NULL, "cannot read from the master");
        return PS_HA_FAILED;
    }
    h->hs_heard_ms = ps_monotonic_ms();
    int code = take_bytes(h, h->hs_data, n, e);
    confirm_what_is_here(h);
    pthread_mutex_lock(&h->hs_lock);
    h->hs_shown.bytes += n;
    h->hs_shown.end = end_of_store(h);
    pthread_mutex_unlock(&h->hs_lock);
    if (code == NEW_EPOCH) return PS_HA_EPOCH;
    if (code < 0) return PS_HA_REFUSED;
    if (end_of_store(h) <= h->hs_reported) return PS_HA_GOES_ON;
    return report_end(h, e) < 0 ? PS_HA_FAILED : PS_HA_GOES_ON;
}

static int follow_master(ps_ha_slave *h, ps_error *e) {
    struct pollfd fds[2] = {{.fd = h->hs_fd, .events = POLLIN},
                            {.fd = h->hs_wake_fd, .events = POLLIN}};
    int over = report_end(h, e) < 0 ? PS_HA_FAILED : PS_HA_GOES_ON;
    while (over == PS_HA_GOES_ON) {
        int64_t now = ps_monotonic_ms(), left = h->hs_conf.heartbeat_ms - (now - h->hs_reported_ms);
        if (now - h->hs_heard_ms > h->hs_conf.idle_ms) return PS_HA_SILENT;
        if (left <= 0) {
            if (report_end(h, e) < 0) return PS_HA_FAILED;
            continue;
        }
        int64_t until_idle = h->hs_conf.idle_ms + 1 - (now - h->hs_heard_ms);
        int64_t wait = h->hs_confirms ? 0 : left < until_idle ? left : until_idle;
        if (poll(fds, 2, (int)wait) < 0) continue;
        if (h->hs_confirms) confirm_what_is_here(h);
        if (fds[1].revents != 0) return PS_HA_CLOSED;
        if (fds[0].revents != 0) over = hear_master(h, e);
    }
    return over;
}

static void *run_slave(void *arg) {
    ps_ha_slave *h = arg;
    ps_error e = {0};
    int over = follow_master(h, &e);
    ps_follow_pause(h->hs_store);
    pthread_mutex_lock(&h->hs_lock);
    h->hs_shown.over = over;
    h->hs_shown.error = e;
    h->hs_shown.end = end_of_store(h);
    pthread_mutex_unlock(&h->hs_lock);
    ps_eventfd_tell(h->hs_told_fd);
    return NULL;
}

/* ---- from outside ---- */

static int start_slave(ps_ha_slave *h, ps_error *e) {
    const ps_ha_conf *conf = &h->hs_conf;
    if (conf->epochs_len > 0) {
        h->hs_epochs = calloc((size_t)conf->epochs_len, sizeof *h->hs_epochs);
        if (h->hs_epochs == NULL) return ps_no_memory(e, NULL, "no memory for epochs");
        memcpy(h->hs_epochs, conf->epochs, (size_t)conf->epochs_len * sizeof *h->hs_epochs);
    }
    struct timeval limit = {.tv_sec = SEND_S};
    int on = 1;
    setsockopt(h->hs_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(h->hs_fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    h->hs_wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (h->hs_wake_fd < 0) return ps_fail(e, PS_E_IO, errno, -1, NULL, "cannot follow a master");
    int err = ps_thread_start(&h->hs_thread, "rmq-ha-slave", run_slave, h);
    if (err != 0) return ps_fail(e, PS_E_IO, err, -1, NULL, "cannot start a thread for a master");
    return 0;
}

static void free_slave(ps_ha_slave *h) {
    if (h->hs_wake_fd >= 0) close(h->hs_wake_fd);
    close(h->hs_fd);
    free(h->hs_epochs);
    pthread_mutex_destroy(&h->hs_lock);
    ps_store_unref(h->hs_store);
    free(h);
}

ps_ha_slave *ps_ha_slave_start(ps_store *store, const ps_ha_conf *conf, int fd, int told_fd,
                               ps_error *e) {
    ps_ha_slave *h = calloc(1, sizeof *h);
    if (h == NULL) {
        close(fd);
        ps_no_memory(e, NULL, "no memory to follow a master");
        return NULL;
    }
    h->hs_store = ps_store_ref(store);
    h->hs_conf = *conf;
    h->hs_fd = fd;
    h->hs_told_fd = told_fd;
    h->hs_wake_fd = -1;
    h->hs_heard_ms = ps_monotonic_ms();
    h->hs_shown.end = end_of_store(h);
    pthread_mutex_init(&h->hs_lock, NULL);
    if (start_slave(h, e) == 0) return h;
    free_slave(h);
    return NULL;
}

void ps_ha_slave_show(ps_ha_slave *h, ps_ha_state *out) {
    pthread_mutex_lock(&h->hs_lock);
    *out = h->hs_shown;
    pthread_mutex_unlock(&h->hs_lock);
    out->silent_ms = ps_monotonic_ms() - h->hs_heard_ms;
}

void ps_ha_slave_stop(ps_ha_slave *h) {
    ps_eventfd_tell(h->hs_wake_fd);
    pthread_join(h->hs_thread, NULL);
    free_slave(h);
}
