/* Replication between two stores of one process, over a socket pair: logs that are equal byte for
 * byte, queues alike, whatever pieces the bytes come in; waits for copies; peers that lie. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "check.h"
#include "ha/ha.h"
#include "store/store.h"

enum { SEGMENT = 1 << 14, QUEUES = 3 };
static char *base;

static ps_store *open_one(const char *name, ps_error *e) {
    char root[4096];
    ps_conf conf;
    ps_conf_init(&conf);
    snprintf(root, sizeof root, "%s/%s", base, name);
    conf.root = root;
    conf.commitlog_file_size = SEGMENT;
    ps_store *s = ps_store_open(&conf, NULL, NULL, NULL, e);
    CHECK(s != NULL);
    return s;
}

static void put_some(ps_store *s, int count) {
    static uint8_t body[3000];
    ps_error e = {0};
    ps_topic *t = ps_topic_open(s, "T", 1, 1, &e);
    for (int i = 0; i < count; i++) {
        ps_put_result out = {0};
        CHECK_EQ(0, ps_put(t, (int32_t)check_below(QUEUES), 0, body, check_below(sizeof body), NULL,
                           0, 0, &out));
    }
}

static int64_t end_of(ps_store *s) {
    return atomic_load(&s->st_log.lg_end);
}

static int64_t copied_of(ps_store *s) {
    return atomic_load(&s->st_safe.sf_copied).bd_at;
}

static void until_equal(ps_store *master, ps_store *slave) {
    CHECK_UNTIL(end_of(slave) >= end_of(master));
    CHECK_EQ(end_of(master), end_of(slave));
    for (int64_t at = atomic_load(&slave->st_log.lg_min); at < end_of(master);) {
        int64_t a, b;
        ps_mapfile *f, *g;
        const uint8_t *p = ps_log_at(&master->st_log, at, end_of(master), &a, &f);
        const uint8_t *q = ps_log_at(&slave->st_log, at, end_of(slave), &b, &g);
        CHECK(p != NULL && q != NULL && a == b && memcmp(p, q, (size_t)a) == 0);
        at += a;
        ps_mapfile_unref(f);
        ps_mapfile_unref(g);
    }
    for (int32_t queue = 0; queue < QUEUES; queue++) {
        int64_t low[2], high[2];
        ps_store *both[2] = {master, slave};
        for (int i = 0; i < 2; i++) {
            ps_error e = {0};
            ps_topic *t = ps_topic_open(both[i], "T", 1, 1, &e);
            ps_queue_range(both[i], t, queue, &low[i], &high[i]);
        }
        CHECK_EQ(high[0], high[1]);
    }
    CHECK_EQ(ps_last_record(master), ps_last_record(slave));
}

static const ps_ha_conf conf = {
    .heartbeat_ms = 20, .idle_ms = 60000, .batch_bytes = 1000, .copies = 1};

static ps_ha_peer peer_of(ps_ha_master *m) {
    ps_ha_peer p[8] = {{.id = -1}};
    ps_ha_master_peers(m, p, 8);
    return p[0];
}

/* Its log is this one, as was found. */
static void compare_peer(ps_ha_master *m, int64_t id) {
    CHECK_UNTIL(peer_of(m).id == id && peer_of(m).acked >= 0);
    ps_ha_master_compared(m, id, 1);
}

/* Both ends, and the slave again after it was cut off. */
static void test_both_ends(ps_store *master, const char *name) {
    ps_error e = {0};
    int told = eventfd(0, EFD_NONBLOCK);
    ps_ha_master *m = ps_ha_master_start(master, &conf, &e);
    ps_store *slave = open_one(name, &e);
    CHECK_EQ(0, ps_follow_begin(slave));
    ps_topic *t = ps_topic_open(slave, "T", 1, 1, &e);
    ps_put_result out = {0};
    CHECK_EQ(PS_E_NOT_WRITEABLE, ps_put(t, 0, 0, "x", 1, NULL, 0, 0, &out));
    for (int round = 0; round < 6; round++) {
        int fd[2];
        CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
        CHECK_EQ(0, ps_ha_master_take(m, fd[0], round, 1, 0, &e));
        ps_ha_slave *h = ps_ha_slave_start(slave, &conf, fd[1], told, &e);
        compare_peer(m, round);
        put_some(master, 40);
        if (round % 2 == 0) usleep((useconds_t)check_below(3000));
        else until_equal(master, slave);
        ps_ha_slave_stop(h);
    }
    int fd[2];
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 99, 1, 0, &e));
    ps_ha_slave *h = ps_ha_slave_start(slave, &conf, fd[1], told, &e);
    compare_peer(m, 99);
    until_equal(master, slave);
    /* Answers wait for the slave, and no longer than they may. */
    ps_want_copies(master, 1, CHECK_BOUND_MS);
    t = ps_topic_open(master, "T", 1, 1, &e);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    CHECK_EQ(PS_PUT_OK, out.status);
    until_equal(master, slave);
    ps_ha_state shown;
    ps_ha_slave_show(h, &shown);
    CHECK_EQ(end_of(master), shown.end);
    ps_ha_slave_stop(h);
    CHECK_UNTIL(peer_of(m).id < 0);
    ps_want_copies(master, 1, 20);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    CHECK_EQ(PS_FLUSH_SLAVE_TIMEOUT, out.status);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 0, &out));
    ps_want_copies(master, 0, 20);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    CHECK_EQ(PS_PUT_OK, out.status);
    ps_ha_master_stop(m);
    /* It takes messages again, at the next offset of each queue. */
    CHECK_EQ(1, ps_follow_end(slave, &e));
    int64_t low, high;
    t = ps_topic_open(slave, "T", 1, 1, &e);
    ps_queue_range(slave, t, 1, &low, &high);
    CHECK_EQ(0, ps_put(t, 1, 0, "x", 1, NULL, 0, 0, &out));
    CHECK_EQ(high, out.queue_offset);
    ps_store_free(slave);
    close(told);
}

/* A master that is one of ours by its bytes, and not by its offsets or records. */
static void check_refused(int64_t at, const void *data, int64_t len) {
    uint8_t header[PS_HA_HEADER];
    ps_error e = {0};
    int fd[2], told = eventfd(0, EFD_NONBLOCK);
    ps_store *slave = open_one("liar", &e);
    int64_t end = ps_follow_begin(slave);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    ps_ha_slave *h = ps_ha_slave_start(slave, &conf, fd[1], told, &e);
    be64_put(header, (uint64_t)at);
    be32_put(header + 8, (uint32_t)len);
    CHECK_EQ((ssize_t)sizeof header, write(fd[0], header, sizeof header));
    if (data != NULL) CHECK_EQ((ssize_t)len, write(fd[0], data, (size_t)len));
    ps_ha_state shown = {0};
    CHECK_UNTIL((ps_ha_slave_show(h, &shown), shown.over != PS_HA_GOES_ON));
    CHECK_EQ(PS_HA_REFUSED, shown.over);
    CHECK(shown.error.code < 0);
    ps_ha_slave_stop(h);
    CHECK_EQ(end, end_of(slave));
    ps_store_free(slave);
    close(fd[0]);
    close(told);
}

static void test_masters_that_lie(void) {
    static uint8_t noise[200];
    ps_error e = {0};
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)check_below(256);
    check_refused(-5, NULL, 0);
    check_refused(0, NULL, -1);
    check_refused(0, NULL, INT32_MAX);
    check_refused(SEGMENT + 3, noise, sizeof noise);
    check_refused(0, noise, sizeof noise);
    ps_store *s = open_one("liar", &e);
    put_some(s, 3);
    ps_store_free(s);
    check_refused(0, NULL, 0);
    check_refused(5000, noise, sizeof noise);
}

/* So many hosts, not so many connections; and no report of what was not sent counts. */
static void test_copies_are_counted_by_hosts(ps_store *master) {
    static const int64_t hosts[] = {1, 1, 2};
    ps_ha_conf two = conf;
    ps_error e = {0};
    int fd[3][2];
    int64_t end = end_of(master);
    uint8_t data[PS_HA_REPORT];
    two.copies = 2;
    ps_ha_master *m = ps_ha_master_start(master, &two, &e);
    ps_want_copies(master, 1, 100);
    be64_put(data, (uint64_t)end);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd[i]));
        CHECK_EQ(0, ps_ha_master_take(m, fd[i][0], i, hosts[i], 0, &e));
        CHECK_EQ(PS_HA_REPORT, write(fd[i][1], data, sizeof data));
        CHECK_UNTIL(peer_of(m).acked == end);
        CHECK(copied_of(master) < end); /* whose log it has is not known */
        ps_ha_master_compared(m, i, 1);
        CHECK(copied_of(master) >= end || i < 2);
        if (i == 1) CHECK(copied_of(master) < end);
    }
    ps_want_copies(master, 0, 100);
    ps_ha_master_stop(m);
    for (int i = 0; i < 3; i++) close(fd[i][1]);
}

static ps_ha_peer until_over(ps_ha_master *m) {
    ps_ha_peer p = {0};
    CHECK_UNTIL((p = peer_of(m)).over != PS_HA_GOES_ON);
    return p;
}

static void report(int fd, int64_t end) {
    uint8_t data[PS_HA_REPORT];
    be64_put(data, (uint64_t)end);
    CHECK_EQ(PS_HA_REPORT, write(fd, data, sizeof data));
}

/* A log that is not compared is sent nothing but heartbeats, and is not a copy of anything. */
static void test_a_log_that_is_not_compared_is_sent_nothing(ps_store *master) {
    ps_error e = {0};
    int fd[2];
    uint8_t head[PS_HA_HEADER];
    ps_ha_master *m = ps_ha_master_start(master, &conf, &e);
    int64_t copied = copied_of(master);
    ps_want_copies(master, 1, 100);
    put_some(master, 1);
    int64_t came = end_of(master);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 1, 1, 0, &e));
    report(fd[1], came);
    put_some(master, 3);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(PS_HA_HEADER, recv(fd[1], head, sizeof head, MSG_WAITALL));
        CHECK_EQ(came, (int64_t)be64_get(head));
        CHECK_EQ(0, (int32_t)be32_get(head + 8));
    }
    CHECK_EQ(copied, copied_of(master));
    ps_ha_master_compared(m, 1, 1);
    CHECK_UNTIL(peer_of(m).sent == end_of(master));
    report(fd[1], end_of(master));
    CHECK_UNTIL(copied_of(master) >= end_of(master));
    CHECK_EQ(end_of(master), copied_of(master));
    report(fd[1], came);
    CHECK_EQ(PS_HA_BACK, until_over(m).over);
    close(fd[1]);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 2, 1, 0, &e));
    report(fd[1], came);
    CHECK_UNTIL(peer_of(m).acked == came);
    ps_ha_master_compared(m, 2, 0);
    CHECK_EQ(PS_HA_OTHER, until_over(m).over);
    close(fd[1]);
    ps_want_copies(master, 0, 100);
    ps_ha_master_stop(m);
}

/* As Java's slaves report, at the ends of chunks: readers see what is whole there. */
static void test_a_report_within_a_record_is_rounded_down(void) {
    ps_error e = {0};
    ps_put_result out = {0};
    ps_store *s = open_one("rounded", &e);
    int64_t borders[64] = {0}, whole;
    int fd[2], count = 0;
    ps_topic *t = ps_topic_open(s, "T", 1, 1, &e);
    ps_hide_unconfirmed(s);
    ps_want_copies(s, 1, 10);
    ps_ha_master *m = ps_ha_master_start(s, &conf, &e);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 1, 1, 0, &e));
    report(fd[1], 0);
    while (end_of(s) < 2 * SEGMENT) {
        borders[++count] = end_of(s); /* a blank may follow */
        put_some(s, 1);
    }
    CHECK_UNTIL(peer_of(m).sent == end_of(s));
    int fell = 0;
    for (int64_t at = 1; at < end_of(s); at += 300) {
        report(fd[1], at);
        CHECK_UNTIL(peer_of(m).acked == at);
        for (whole = count; borders[whole] > at;) whole--;
        int64_t base = at - at % SEGMENT, due = borders[whole] > base ? borders[whole] : base;
        CHECK_EQ(due, ps_confirmed(s));
        CHECK_EQ(0, ps_dispatch_catch_up(s, &e));
        fell += due < at;
    }
    CHECK(fell > 50);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 0, &out));
    close(fd[1]);
    ps_ha_master_stop(m);
    ps_store_free(s);
}

/* No faster than it may be: 2,000 bytes in each 100 ms. */
static void test_what_a_slave_is_sent_is_bounded(ps_store *master) {
    ps_error e = {0};
    int fd[2];
    ps_ha_conf slow = conf;
    slow.copies = 0;
    slow.bytes_s = 20000;
    put_some(master, 30);
    ps_ha_master *m = ps_ha_master_start(master, &slow, &e);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 1, 1, 0, &e));
    report(fd[1], end_of(master) - 10000);
    CHECK_UNTIL(peer_of(m).acked >= 0);
    int64_t began = ps_monotonic_ms();
    ps_ha_master_compared(m, 1, 1);
    CHECK_UNTIL(peer_of(m).sent == end_of(master));
    CHECK_EQ(end_of(master), peer_of(m).sent);
    CHECK(ps_monotonic_ms() - began >= 300);
    close(fd[1]);
    ps_ha_master_stop(m);
}

static void test_slaves_that_lie(ps_store *master) {
    static const int32_t why[] = {PS_HA_BEYOND, PS_HA_BEYOND, PS_HA_CLOSED};
    ps_error e = {0};
    ps_ha_master *m = ps_ha_master_start(master, &conf, &e);
    const int64_t reports[] = {-1, end_of(master) + 1, 0};
    for (int i = 0; i < 3; i++) {
        uint8_t data[PS_HA_REPORT];
        int fd[2];
        be64_put(data, (uint64_t)reports[i]);
        CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
        CHECK_EQ(0, ps_ha_master_take(m, fd[0], i, i, 0, &e));
        for (int k = 0; k < PS_HA_REPORT; k++) CHECK_EQ(1, write(fd[1], data + k, 1));
        if (why[i] == PS_HA_CLOSED) close(fd[1]);
        ps_ha_peer p = until_over(m);
        CHECK(p.over == why[i] || (why[i] == PS_HA_CLOSED && p.over == PS_HA_FAILED));
        if (why[i] != PS_HA_CLOSED) close(fd[1]);
    }
    ps_ha_master_stop(m);
}

static ps_ha_slave *follow_by(ps_ha_master *m, ps_store *slave, const ps_ha_conf *c, int64_t host,
                              int told) {
    ps_error e = {0};
    int fd[2];
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], host * 10, host, 1, &e));
    return ps_ha_slave_start(slave, c, fd[1], told, &e);
}

static void until_copied(ps_store *s, int64_t end) {
    CHECK_UNTIL(ps_confirmed(s) >= end);
    CHECK_EQ(end, ps_confirmed(s));
}

/* What the master has not confirmed is so once the slave takes messages in its place, and the next
 * one follows it in its queue. */
static void check_it_leads_on(ps_ha_master *m, ps_ha_slave *h, ps_store *master, ps_store *slave) {
    ps_error e = {0};
    ps_put_result out = {0};
    int64_t low, high, has;
    put_some(master, 5);
    CHECK_UNTIL(end_of(slave) >= end_of(master));
    ps_ha_slave_stop(h);
    ps_ha_master_stop(m);
    CHECK(ps_confirmed(slave) < end_of(slave));
    CHECK_EQ(1, ps_follow_end(slave, &e));
    CHECK_EQ(0, ps_follow_end(slave, &e));
    CHECK_EQ(end_of(slave), ps_confirmed(slave));
    ps_want_copies(slave, 0, 100);
    ps_topic *t = ps_topic_open(slave, "T", 1, 1, &e);
    ps_queue_range(master, ps_topic_open(master, "T", 1, 0, &e), 0, &low, &has);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 0, &out));
    CHECK(out.queue_offset >= has);
    ps_queue_range(slave, t, 0, &low, &high);
    CHECK_EQ(out.queue_offset + 1, high);
}

/* Under a controller: a slave takes nothing of an epoch that it was not told of; an answer waits
 * for each broker that is required, and readers of both ends see what all of those have. */
static void test_epochs(ps_store *master) {
    ps_error e = {0};
    int told = eventfd(0, EFD_NONBLOCK);
    int64_t fork = end_of(master);
    const ps_ha_epoch epochs[] = {{.epoch = 1, .start = 0}, {.epoch = 4, .start = fork}};
    ps_ha_conf of_all = conf, of_first = conf;
    of_all.epochs = of_first.epochs = epochs;
    of_all.epochs_len = 2;
    of_first.epochs_len = 1;
    put_some(master, 60);
    ps_ha_master *m = ps_ha_master_start(master, &of_all, &e);
    ps_hide_unconfirmed(master);
    CHECK_EQ(end_of(master), ps_confirmed(master));
    ps_store *slave = open_one("epochs", &e);
    ps_follow_begin(slave);
    ps_want_copies(slave, 1, 100);
    ps_hide_unconfirmed(slave);

    ps_ha_slave *h = follow_by(m, slave, &of_first, 7, told);
    ps_ha_state shown = {0};
    CHECK_UNTIL((ps_ha_slave_show(h, &shown), shown.over != PS_HA_GOES_ON));
    CHECK_EQ(PS_HA_EPOCH, shown.over);
    CHECK_EQ(fork, end_of(slave));
    ps_ha_slave_stop(h);

    h = follow_by(m, slave, &of_all, 7, told);
    until_copied(slave, end_of(master));
    until_equal(master, slave);
    const int64_t both[] = {7, 9};
    CHECK_EQ(end_of(master), ps_ha_master_require(m, both, 2, 0));
    int64_t before = end_of(master);
    ps_want_copies(master, 1, 100);
    put_some(master, 5);
    usleep(50000);
    CHECK_EQ(before, ps_confirmed(master)); /* broker 9 is not there */
    CHECK_EQ(before, ps_confirmed(slave));
    ps_ha_master_require(m, both, 1, 0);
    until_copied(master, end_of(master));
    until_copied(slave, end_of(master));
    ps_ha_master_require(m, both, 1, 1);
    ps_put_result out = {0};
    ps_topic *t = ps_topic_open(master, "T", 1, 1, &e);
    CHECK_EQ(PS_E_IN_SYNC_REPLICAS_NOT_ENOUGH, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    ps_ha_master_require(m, both, 0, 0);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    until_copied(master, end_of(master));
    until_copied(slave, end_of(master));

    ps_ha_master_require(m, both, 2, 0);
    check_it_leads_on(m, h, master, slave);
    ps_store_free(slave);
    close(told);
}

static void send_of(int fd, ps_ha_epoch of, int64_t at, const void *body, int32_t len,
                    int64_t confirmed) {
    uint8_t head[PS_HA_EPOCH_HEADER] = {0};
    be32_put(head, PS_HA_TRANSFER);
    be32_put(head + 4, (uint32_t)len);
    be64_put(head + 8, (uint64_t)at);
    be32_put(head + 16, (uint32_t)of.epoch);
    be64_put(head + 20, (uint64_t)of.start);
    be64_put(head + 28, (uint64_t)confirmed);
    CHECK_EQ((ssize_t)sizeof head, write(fd, head, sizeof head));
    if (len > 0) CHECK_EQ(len, write(fd, body, (size_t)len));
}

/* To Java's slave a heartbeat names no epoch of which that has nothing: it would note it. */
static void test_a_heartbeat_names_an_epoch_that_the_slave_has(void) {
    ps_error e = {0};
    int fd[2];
    uint8_t head[PS_HA_EPOCH_HEADER], said[PS_HA_EPOCH_REPORT];
    ps_store *s = open_one("named", &e);
    put_some(s, 3);
    const ps_ha_epoch epochs[] = {{.epoch = 1}, {.epoch = 2, .start = end_of(s)}};
    ps_ha_conf c = conf;
    c.epochs = epochs;
    c.epochs_len = 2;
    ps_ha_master *m = ps_ha_master_start(s, &c, &e);
    for (int is_java = 0; is_java < 2; is_java++) {
        CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
        CHECK_EQ(0, ps_ha_master_take(m, fd[0], is_java, 1, !is_java, &e));
        be32_put(said, PS_HA_TRANSFER);
        be64_put(said + 4, (uint64_t)end_of(s));
        CHECK_EQ(PS_HA_EPOCH_REPORT, write(fd[1], said, sizeof said));
        if (is_java) { /* before it is compared it hears of no epoch */
            usleep(700000); /* longer than a turn of its thread */
            CHECK(recv(fd[1], head, sizeof head, MSG_DONTWAIT) < 0);
            ps_ha_master_compared(m, is_java, 1);
        }
        CHECK_EQ(PS_HA_EPOCH_HEADER, recv(fd[1], head, sizeof head, MSG_WAITALL));
        CHECK_EQ(0, (int32_t)be32_get(head + 4));
        CHECK_EQ(is_java ? 1 : 2, (int32_t)be32_get(head + 16));
        close(fd[1]);
        until_over(m);
    }
    ps_ha_master_stop(m);
    ps_store_free(s);
}

/* Java's master names the next epoch with the last bytes of one. Of bytes that go on after those
 * nobody knows which epoch they are of. */
static void test_the_last_bytes_of_an_epoch_may_name_the_next_one(void) {
    ps_error e = {0};
    int64_t avail;
    int fd[2], told = eventfd(0, EFD_NONBLOCK);
    ps_mapfile *mf;
    ps_store *of = open_one("borders", &e), *s = open_one("crosses", &e);
    put_some(of, 3);
    int64_t border = end_of(of);
    put_some(of, 3);
    int64_t whole = end_of(of), half = border / 2;
    const uint8_t *log = ps_log_at(&of->st_log, 0, whole, &avail, &mf);
    const ps_ha_epoch epochs[] = {{.epoch = 1}, {.epoch = 2, .start = border}};
    ps_ha_conf c = conf;
    c.epochs = epochs;
    c.epochs_len = 2;
    ps_follow_begin(s);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    ps_ha_slave *h = ps_ha_slave_start(s, &c, fd[1], told, &e);
    send_of(fd[0], epochs[0], 0, log, (int32_t)half, 0);
    send_of(fd[0], epochs[1], half, log + half, (int32_t)(border - half), 0);
    send_of(fd[0], epochs[1], border, log + border, (int32_t)(whole - border), 0);
    CHECK_UNTIL(end_of(s) >= whole);
    CHECK_EQ(whole, end_of(s));
    ps_ha_slave_stop(h);
    close(fd[0]);
    ps_store_free(s);

    s = open_one("goes_on", &e);
    ps_follow_begin(s);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    h = ps_ha_slave_start(s, &c, fd[1], told, &e);
    send_of(fd[0], epochs[1], 0, log, (int32_t)whole, 0);
    ps_ha_state shown = {0};
    CHECK_UNTIL((ps_ha_slave_show(h, &shown), shown.over != PS_HA_GOES_ON));
    CHECK_EQ(PS_HA_EPOCH, shown.over);
    CHECK_EQ(0, end_of(s));
    ps_ha_slave_stop(h);
    close(fd[0]);
    ps_mapfile_unref(mf);
    ps_store_free(s);
    ps_store_free(of);
    close(told);
}

/* Java's master with its default settings confirms its own end: what the slave puts once it is the
 * master itself waits for others all the same. Within a record nothing is confirmed either. */
static void test_what_a_master_confirms_beyond_the_end_is_no_copy(void) {
    static const ps_ha_epoch first = {.epoch = 1};
    ps_error e = {0};
    ps_put_result out = {0};
    int64_t avail;
    int fd[2], told = eventfd(0, EFD_NONBLOCK);
    ps_mapfile *mf;
    ps_store *of = open_one("of", &e), *s = open_one("confirms", &e);
    ps_ha_conf c = conf;
    c.epochs = &first;
    c.epochs_len = 1;
    put_some(of, 3);
    int64_t whole = end_of(of);
    const uint8_t *log = ps_log_at(&of->st_log, 0, whole, &avail, &mf);
    ps_follow_begin(s);
    ps_want_copies(s, 1, 20);
    ps_hide_unconfirmed(s);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    ps_ha_slave *h = ps_ha_slave_start(s, &c, fd[1], told, &e);
    send_of(fd[0], first, 0, log, (int32_t)whole, whole - 1);
    CHECK_UNTIL(end_of(s) >= whole);
    CHECK_UNTIL(ps_confirmed(s) != 0);
    CHECK(ps_confirmed(s) < whole - 1);
    CHECK_EQ(0, ps_dispatch_catch_up(s, &e));
    send_of(fd[0], first, whole, NULL, 0, whole + 100000);
    CHECK_UNTIL(ps_confirmed(s) >= whole);
    CHECK_EQ(whole, ps_confirmed(s));
    CHECK_EQ(whole, copied_of(s));
    ps_ha_slave_stop(h);
    CHECK_EQ(1, ps_follow_end(s, &e));
    ps_topic *t = ps_topic_open(s, "T", 1, 1, &e);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    CHECK_EQ(PS_FLUSH_SLAVE_TIMEOUT, out.status);
    ps_mapfile_unref(mf);
    ps_store_free(s);
    ps_store_free(of);
    close(fd[0]);
    close(told);
}

/* Messages that readers get of each queue, up to the first that they do not. */
static int64_t seen(ps_store *s) {
    int64_t count = 0;
    ps_topic *t = ps_topic_open(s, "T", 1, 0, NULL);
    for (int32_t queue = 0; t != NULL && queue < QUEUES; queue++) {
        ps_batch_info b = {.next_offset = 0};
        for (int64_t before = -1; b.next_offset > before;) {
            before = b.next_offset;
            ps_batch *batch = ps_read(s, t, queue, before, NULL, NULL);
            ps_batch_get(batch, &b);
            count += b.count;
            ps_batch_free(batch);
        }
        CHECK(b.status == PS_GET_OFFSET_OVERFLOW_ONE || b.status == PS_GET_NO_MATCHED_LOGIC_QUEUE);
    }
    return count;
}

/* A broker that starts again does not know what of its log was confirmed: recovery puts all of it
 * into the queues, and readers see it as a master confirms it. */
static void test_what_a_start_has_found_is_hidden_until_it_is_confirmed(void) {
    ps_error e = {0};
    ps_store *s = open_one("again", &e);
    put_some(s, 20);
    int64_t half = end_of(s);
    put_some(s, 20);
    ps_store_free(s);
    s = open_one("again", &e);
    ps_follow_begin(s);
    CHECK_EQ(40, seen(s));
    ps_want_copies(s, 1, 100);
    ps_hide_unconfirmed(s);
    CHECK_EQ(0, seen(s));
    ps_safe_copied(&s->st_safe, half);
    CHECK_EQ(20, seen(s));
    ps_safe_copied(&s->st_safe, end_of(s));
    CHECK_EQ(40, seen(s));
    ps_store_free(s);
}

/* Whoever forgets to stop an end, as a test that fails, does not end the process: both threads go
 * on beside calls from outside, over a store whose files are closed and whose handle is gone. */
static void test_ends_outlive_their_stores(void) {
    ps_error e = {0};
    const ps_ha_epoch first = {.epoch = 1};
    int told = eventfd(0, EFD_NONBLOCK);
    for (int round = 0; round < 8; round++) {
        ps_ha_conf c = conf;
        c.heartbeat_ms = 1;
        c.epochs = &first;
        c.epochs_len = round % 2;
        ps_store *master = open_one("left", &e), *slave = open_one("left-slave", &e);
        put_some(master, 100);
        ps_follow_begin(slave);
        ps_ha_master *m = ps_ha_master_start(master, &c, &e);
        ps_ha_slave *h = follow_by(m, slave, &c, 1, told);
        CHECK_UNTIL(peer_of(m).acked >= 0);
        if (round % 4 < 2) ps_store_free(slave);
        ps_store_free(master);
        if (round % 4 >= 2) ps_store_free(slave);
        const int64_t host = 1;
        for (int i = 0; i < 10; i++) {
            usleep(1000);
            ps_ha_master_compared(m, 10, 1);
            ps_ha_master_require(m, &host, 1, 0);
            ps_ha_master_wait_for(m, &c, 1);
            peer_of(m);
        }
        ps_ha_slave_stop(h);
        ps_ha_master_stop(m);
    }
    close(told);
}

/* The log of `from`, up to `end`, as a master sends it. */
static void follow_to(ps_store *slave, ps_store *from, int64_t end) {
    for (int64_t at = slave->st_follow.fo_end; at < end;) {
        int64_t n;
        ps_mapfile *mf;
        ps_error e = {0};
        const uint8_t *p = ps_log_at(&from->st_log, at, end, &n, &mf);
        CHECK_EQ(0, ps_follow_append(slave, at, p, n, &e));
        ps_mapfile_unref(mf);
        at += n;
    }
}

static void test_a_topic_that_the_master_made_again_begins_anew(void) {
    ps_error e = {0};
    ps_store *master = open_one("again", &e), *slave = open_one("follows", &e);
    put_some(master, 60);
    int64_t below = end_of(master);
    CHECK_EQ(0, ps_topic_delete(master, ps_topic_open(master, "T", 1, 1, &e), &e));
    CHECK_EQ(PS_E_ARGUMENT,
             ps_topic_follow_deletion(slave, ps_topic_open(slave, "T", 1, 1, &e), 0, &e));
    ps_follow_begin(slave);
    put_some(master, 30);
    follow_to(slave, master, below / 2); /* amid a record or not */
    CHECK_EQ(0, ps_topic_follow_deletion(slave, ps_topic_open(slave, "T", 1, 1, &e), below, &e));
    follow_to(slave, master, end_of(master));
    CHECK_EQ(0, ps_store_flush(slave, &e));
    int64_t stamp = slave->st_keeper.kp_checkpoint.logics_msg_timestamp;
    ps_topic *t = ps_topic_open(slave, "T", 1, 1, &e);
    CHECK_EQ(PS_E_ARGUMENT, ps_topic_follow_deletion(slave, t, below - 9, &e));
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(1, ps_topic_follow_deletion(slave, t, below, &e));
        until_equal(master, slave);
    }
    CHECK(slave->st_keeper.kp_checkpoint.logics_msg_timestamp < stamp ||
          stamp == slave->st_log.lg_last_stamp);
    put_some(master, 30);
    follow_to(slave, master, end_of(master));
    ps_dispatch_catch_up(slave, &e);
    until_equal(master, slave);
    ps_store_abandon(slave); /* as a kill */
    ps_store_unref(slave);
    slave = open_one("follows", &e);
    until_equal(master, slave);
    ps_store_free(slave);
    ps_store_free(master);
}

static void test_damage_after_a_deletion_is_not_passed_over(void) {
    ps_error e = {0};
    ps_store *master = open_one("sound", &e), *slave = open_one("damaged", &e);
    int64_t n;
    ps_mapfile *mf;
    put_some(master, 20);
    int64_t below = end_of(master);
    put_some(master, 20);
    ps_follow_begin(slave);
    follow_to(slave, master, end_of(master));
    ps_dispatch_catch_up(slave, &e);
    CHECK_EQ(end_of(master), atomic_load(&slave->st_dispatcher.ds_end));
    CHECK(ps_log_at(&slave->st_log, below, end_of(slave), &n, &mf) != NULL);
    int fd = open(mf->mf_path, O_WRONLY);
    CHECK_EQ(4, pwrite(fd, "junk", 4, below - mf->mf_base + PS_AT_MAGIC));
    close(fd);
    ps_mapfile_unref(mf);
    CHECK_EQ(PS_E_DAMAGED,
             ps_topic_follow_deletion(slave, ps_topic_open(slave, "T", 1, 1, &e), below, &e));
    ps_store_free(slave);
    ps_store_free(master);
}

/* Byte by byte and in pieces: beside the slave a reader sees whole records, or none. */
static void test_a_reader_beside_a_slave_sees_whole_records(void) {
    ps_error e = {0};
    ps_store *master = open_one("whole", &e), *slave = open_one("pieces", &e);
    put_some(master, 25);
    ps_follow_begin(slave);
    for (int64_t end = end_of(master), at = 0; at < end;) {
        int64_t n, most = check_below(4) == 0 ? 9000 : 1 + check_below(200);
        ps_mapfile *mf;
        const uint8_t *p = ps_log_at(&master->st_log, at, end, &n, &mf);
        if (n > most) n = most;
        CHECK_EQ(0, ps_follow_append(slave, at, p, n, &e));
        ps_mapfile_unref(mf);
        at += n;
        int64_t whole = end_of(slave);
        const uint8_t *q = whole < at ? ps_log_at(&slave->st_log, whole, INT64_MAX, &n, &mf) : NULL;
        if (q == NULL) continue;
        ps_record r;
        ps_rec_outcome o = ps_record_decode(q, n, &r);
        CHECK(o == PS_REC_END || o == PS_REC_SHORT || o == PS_REC_BLANK);
        if (o == PS_REC_SHORT) CHECK(n < PS_HEAD_LEN);
        ps_mapfile_unref(mf);
    }
    until_equal(master, slave);
    ps_store_free(slave);
    ps_store_free(master);
}

int main(void) {
    ps_error e = {0};
    check_begin();
    base = check_folder();
    ps_store *master = open_one("master", &e);
    test_both_ends(master, "one");
    test_both_ends(master, "another");
    put_some(master, 3);
    test_copies_are_counted_by_hosts(master);
    test_what_a_start_has_found_is_hidden_until_it_is_confirmed();
    test_a_log_that_is_not_compared_is_sent_nothing(master);
    test_a_report_within_a_record_is_rounded_down();
    test_what_a_master_confirms_beyond_the_end_is_no_copy();
    test_a_heartbeat_names_an_epoch_that_the_slave_has();
    test_the_last_bytes_of_an_epoch_may_name_the_next_one();
    test_what_a_slave_is_sent_is_bounded(master);
    test_slaves_that_lie(master);
    test_masters_that_lie();
    test_epochs(master);
    ps_store_free(master);
    test_ends_outlive_their_stores();
    test_a_topic_that_the_master_made_again_begins_anew();
    test_damage_after_a_deletion_is_not_passed_over();
    test_a_reader_beside_a_slave_sees_whole_records();
    check_remove(base);
    free(base);
    return check_end("test_ha");
}
