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

static void until_equal(ps_store *master, ps_store *slave) {
    for (int i = 0; i < 20000 && end_of(slave) < end_of(master); i++) usleep(500);
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
        CHECK_EQ(0, ps_ha_master_take(m, fd[0], round, 1, &e));
        ps_ha_slave *h = ps_ha_slave_start(slave, &conf, fd[1], told, &e);
        put_some(master, 40);
        if (round % 2 == 0) usleep((useconds_t)check_below(3000));
        else until_equal(master, slave);
        ps_ha_slave_stop(h);
    }
    int fd[2];
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 99, 1, &e));
    ps_ha_slave *h = ps_ha_slave_start(slave, &conf, fd[1], told, &e);
    until_equal(master, slave);
    for (int i = 0; i < 20000 && (peer_of(m).id != 99 || peer_of(m).acked < 0); i++) usleep(500);
    ps_ha_master_compared(m, 99, 1);
    /* Answers wait for the slave, and no longer than they may. */
    ps_want_copies(master, 1, 10000);
    t = ps_topic_open(master, "T", 1, 1, &e);
    CHECK_EQ(0, ps_put(t, 0, 0, "x", 1, NULL, 0, 1, &out));
    CHECK_EQ(PS_PUT_OK, out.status);
    until_equal(master, slave);
    ps_ha_state shown;
    ps_ha_slave_show(h, &shown);
    CHECK_EQ(end_of(master), shown.end);
    ps_ha_slave_stop(h);
    for (int i = 0; i < 20000 && peer_of(m).id >= 0; i++) usleep(500);
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
    for (int i = 0; i < 20000 && shown.over == PS_HA_GOES_ON; i++) {
        usleep(500);
        ps_ha_slave_show(h, &shown);
    }
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
        CHECK_EQ(0, ps_ha_master_take(m, fd[i][0], i, hosts[i], &e));
        CHECK_EQ(PS_HA_REPORT, write(fd[i][1], data, sizeof data));
        for (int k = 0; k < 20000 && peer_of(m).acked != end; k++) usleep(500);
        CHECK(atomic_load(&master->st_safe.sf_copied) < end); /* whose log it has is not known */
        ps_ha_master_compared(m, i, 1);
        CHECK(atomic_load(&master->st_safe.sf_copied) >= end || i < 2);
        if (i == 1) CHECK(atomic_load(&master->st_safe.sf_copied) < end);
    }
    ps_want_copies(master, 0, 100);
    ps_ha_master_stop(m);
    for (int i = 0; i < 3; i++) close(fd[i][1]);
}

static ps_ha_peer until_over(ps_ha_master *m) {
    ps_ha_peer p = {0};
    for (int k = 0; k < 20000 && p.over == PS_HA_GOES_ON; k++) {
        usleep(500);
        p = peer_of(m);
    }
    return p;
}

static void report(int fd, int64_t end) {
    uint8_t data[PS_HA_REPORT];
    be64_put(data, (uint64_t)end);
    CHECK_EQ(PS_HA_REPORT, write(fd, data, sizeof data));
}

/* A log that is not compared is a copy of nothing that was put before it came, and of what it was
 * sent once nothing waits any more that was put before. */
static void test_what_was_not_sent_is_no_copy(ps_store *master) {
    ps_error e = {0};
    int fd[2];
    ps_ha_master *m = ps_ha_master_start(master, &conf, &e);
    int64_t before = end_of(master), copied = atomic_load(&master->st_safe.sf_copied);
    ps_want_copies(master, 1, 100);
    put_some(master, 1);
    int64_t came = end_of(master);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 1, 1, &e));
    report(fd[1], came);
    for (int k = 0; k < 20000 && peer_of(m).acked != came; k++) usleep(500);
    put_some(master, 1);
    for (int k = 0; k < 20000 && peer_of(m).sent != end_of(master); k++) usleep(500);
    report(fd[1], end_of(master));
    for (int k = 0; k < 20000 && peer_of(m).acked != end_of(master); k++) usleep(500);
    CHECK(peer_of(m).acked == end_of(master) && before < came);
    usleep(220000);
    CHECK_EQ(copied, atomic_load(&master->st_safe.sf_copied));
    report(fd[1], end_of(master));
    for (int k = 0; k < 20000 && atomic_load(&master->st_safe.sf_copied) <= copied; k++)
        usleep(500);
    CHECK_EQ(end_of(master), atomic_load(&master->st_safe.sf_copied));
    report(fd[1], came);
    CHECK_EQ(PS_HA_BACK, until_over(m).over);
    close(fd[1]);
    CHECK_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 2, 1, &e));
    report(fd[1], came);
    for (int k = 0; k < 20000 && peer_of(m).acked != came; k++) usleep(500);
    ps_ha_master_compared(m, 2, 0);
    CHECK_EQ(PS_HA_OTHER, until_over(m).over);
    close(fd[1]);
    ps_want_copies(master, 0, 100);
    ps_ha_master_stop(m);
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
    int64_t began = ps_monotonic_ms();
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], 1, 1, &e));
    report(fd[1], end_of(master) - 10000);
    for (int k = 0; k < 20000 && peer_of(m).sent != end_of(master); k++) usleep(500);
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
        CHECK_EQ(0, ps_ha_master_take(m, fd[0], i, i, &e));
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
    CHECK_EQ(0, ps_ha_master_take(m, fd[0], host * 10, host, &e));
    return ps_ha_slave_start(slave, c, fd[1], told, &e);
}

static void until_copied(ps_store *s, int64_t end) {
    for (int k = 0; k < 20000 && ps_confirmed(s) < end; k++) usleep(500);
    CHECK_EQ(end, ps_confirmed(s));
}

/* What the master has not confirmed is so once the slave takes messages in its place, and the next
 * one follows it in its queue. */
static void check_it_leads_on(ps_ha_master *m, ps_ha_slave *h, ps_store *master, ps_store *slave) {
    ps_error e = {0};
    ps_put_result out = {0};
    int64_t low, high, has;
    put_some(master, 5);
    for (int k = 0; k < 20000 && end_of(slave) < end_of(master); k++) usleep(500);
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
    for (int k = 0; k < 20000 && shown.over == PS_HA_GOES_ON; k++) {
        usleep(500);
        ps_ha_slave_show(h, &shown);
    }
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
    test_what_was_not_sent_is_no_copy(master);
    test_what_a_slave_is_sent_is_bounded(master);
    test_slaves_that_lie(master);
    test_masters_that_lie();
    test_epochs(master);
    ps_store_free(master);
    check_remove(base);
    free(base);
    return check_end("test_ha");
}
