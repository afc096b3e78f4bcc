/* A network thread over real sockets: what it serves, what it hands on, its limits, and how
 * connections end. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <pthread.h>

#include <sys/resource.h>

#include "net_kit.h"

static void open_all(const ps_net_conf *conf) {
    ps_conf store = kit_conf();
    kit_open(&store, 1000);
    kit_topic("T", 4, HOT);
    kit_subscribe("G", "T", "", 0, 0);
    net_start(conf);
}

static void close_all(void) {
    net_stop();
    kit_close();
}

/* A request that only Python serves. */
static void ask_python(net_client *c, int32_t opaque) {
    kit_frame f;
    kit_begin(&f, 0, 999, opaque);
    net_say(c, &f, NULL, 0);
}

static int32_t expect(net_client *c, int code) {
    int32_t opaque = -1;
    CHECK_EQ(code, net_read(c, &opaque, NULL));
    return opaque;
}

static void expect_end(net_client *c) {
    while (net_more(c)) c->from = c->len;
    net_leave(c);
}

static int64_t held_pulls(void) {
    ps_core_totals totals;
    ps_core_get_totals(kit_core, &totals);
    return totals.held;
}

/* Every link has ended, and was forgotten. */
static void expect_none_left(int opened) {
    CHECK_UNTIL(net_opened == opened && net_closed == opened);
    CHECK_UNTIL(ps_net_budget_held(net_budget) == 0);
}

/* ---- serving ---- */

static void test_sends_and_pulls_are_served_without_python(void) {
    ps_net_conf conf = net_conf();
    open_all(&conf);
    net_client c = net_connect();
    for (int i = 0; i < 1000; i++) net_send(&c, i, "body", 4);
    for (int i = 0; i < 1000; i++) CHECK_EQ(i, expect(&c, 0));
    for (int i = 0; i < 10; i++) net_pull(&c, i, i * 32, 0);
    for (int i = 0; i < 10; i++) CHECK_EQ(i, expect(&c, 0));
    CHECK_EQ(0, net_frames);
    net_leave(&c);
    expect_none_left(1);
    close_all();
}

static void test_what_nobody_knows_is_handed_on_in_order(void) {
    ps_net_conf conf = net_conf();
    open_all(&conf);
    net_client c = net_connect();
    for (int i = 0; i < 500; i++) ask_python(&c, i);
    for (int i = 0; i < 500; i++) CHECK_EQ(i, expect(&c, 999));
    CHECK_EQ(500, net_frames);
    net_leave(&c);
    close_all();
}

/* The second part comes when the first has been read. */
static void test_frames_may_be_cut_at_every_byte(void) {
    ps_net_conf conf = net_conf();
    uint8_t frame[4096];
    kit_frame f;
    open_all(&conf);
    kit_send(&f, 0, 7, "T", 0, UNIQ);
    int64_t len = kit_encode(&f, "body", 4, frame, sizeof frame);
    for (int64_t cut = 1; cut < len; cut++) {
        net_client c = net_connect();
        net_write(&c, frame, cut);
        CHECK_UNTIL(ps_net_budget_held(net_budget) > 0);
        net_write(&c, frame + cut, len - cut);
        CHECK_EQ(7, expect(&c, 0));
        net_leave(&c);
        CHECK_UNTIL(ps_net_budget_held(net_budget) == 0);
    }
    expect_none_left((int)len - 1);
    close_all();
}

static void test_what_begins_otherwise_is_refused(void) {
    ps_net_conf conf = net_conf();
    static const struct {
        const char *said, *why;
    } all[] = {{"\x16\x03\x01", "\nTLS refused\nno certificate"},
               {"PROXY x y\r\n", "\nmalformed frame\nPROXY header: not the words of version 1"},
               {"POST / HTTP/1.1", "\nmalformed frame\nPROXY header: neither version"},
               {NET_HEADER "\x16\x03\x01", "203.0.113.7 4711\nTLS refused"}};
    open_all(&conf);
    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) {
        net_client c = net_connect();
        net_write(&c, all[i].said, (int64_t)strlen(all[i].said));
        expect_end(&c);
        CHECK_UNTIL(net_refused == i + 1);
        CHECKF(strstr(net_refusal, all[i].why) != NULL, "%s", net_refusal);
    }
    CHECK_EQ(0, net_opened);
    CHECK_UNTIL(ps_net_links(net) == 0);
    close_all();
}

/* ---- a proxy's header ---- */

/* It may be cut anywhere, and the first frame may come with it. */
static void test_one_with_a_header_speaks_for_its_source(void) {
    ps_net_conf conf = net_conf();
    uint8_t sent[4096];
    ps_command answer;
    ps_record r;
    kit_frame f;
    open_all(&conf);
    kit_send(&f, 0, 7, "T", 0, UNIQ);
    int64_t head = (int64_t)strlen(NET_HEADER);
    int64_t len = head + kit_encode(&f, "body", 4, sent + head, 4000);
    int opened = 0;
    memcpy(sent, NET_HEADER, (size_t)head);
    for (int64_t cut = 1; cut <= len; cut += cut < head + 2 ? 1 : 9) {
        net_client c = net_connect();
        net_write(&c, sent, cut);
        net_write(&c, sent + cut, len - cut);
        CHECK_EQ(7, expect(&c, 0));
        net_send(&c, 8, "body", 4);
        CHECK_EQ(8, expect(&c, 0));
        opened++;
        CHECK_UNTIL(net_opened == opened);
        CHECK(strncmp(net_who, "203.0.113.7 4711 127.0.0.1 ", 27) == 0);
        net_leave(&c);
    }
    CHECK_EQ(0, net_frames);
    net_client c = net_connect();
    for (int64_t at = 0; at < 2; at++) {
        net_pull(&c, 1, at, 0);
        if (!CHECK(net_take_answer(&c, &answer)) || !CHECK_EQ(0, answer.code)) break;
        CHECK_EQ(PS_REC_OK, ps_record_decode(answer.body.data, answer.body.len, &r));
        CHECK(r.born_host_len == 8 && memcmp(r.born_host, net_source, 8) == 0);
    }
    net_leave(&c);
    CHECK_UNTIL(net_opened == net_closed);
    close_all();
}

/* ---- held pulls ---- */

static void test_a_held_pull_is_woken_by_a_send_and_ended_by_its_time(void) {
    ps_net_conf conf = net_conf();
    open_all(&conf);
    net_client reader = net_connect(), writer = net_connect();
    ps_core_totals totals;
    net_pull(&reader, 1, 0, 60000);
    do ps_core_get_totals(kit_core, &totals);
    while (totals.held == 0);
    net_send(&writer, 2, "body", 4);
    CHECK_EQ(1, expect(&reader, 0));
    CHECK_EQ(2, expect(&writer, 0));
    net_pull(&reader, 3, 1, 30);
    CHECK_EQ(3, expect(&reader, PS_CODE_PULL_NOT_FOUND));
    net_pull(&reader, 4, 1, 60000);
    do ps_core_get_totals(kit_core, &totals);
    while (totals.held == 0);
    ps_net_look(net, 1);
    CHECK_EQ(4, expect(&reader, PS_CODE_PULL_NOT_FOUND));
    CHECK_EQ(0, net_frames);
    net_leave(&reader);
    net_leave(&writer);
    close_all();
}

/* ---- limits ---- */

/* Large answers of one read, which the peer takes only later, and then there is nothing more to
 * read from it: what was held back goes on all the same. */
static void test_a_slow_reader_gets_every_answer(void) {
    ps_net_conf conf = net_conf();
    static uint8_t body[60000];
    int64_t len;
    open_all(&conf);
    net_client c = net_connect();
    for (int i = 0; i < 8; i++) {
        net_send(&c, i, body, sizeof body);
        expect(&c, 0);
    }
    enum { PULLS = 200 };
    for (int i = 0; i < PULLS; i++) net_pull(&c, i, 0, 0);
    CHECK_UNTIL(net_unread > 0);
    for (int i = 0; i < PULLS; i++) {
        int32_t opaque = -1;
        if (!CHECK_EQ(0, net_read(&c, &opaque, &len))) break;
        CHECK(opaque == i && len > (int64_t)sizeof body);
    }
    net_leave(&c);
    expect_none_left(1);
    close_all();
}

/* Bodies of the messages of a pull from `offset` on, compared with what was sent: each is filled
 * with its queue offset. Returns how many there were. */
static int compare_bodies(net_client *c, int64_t offset, int64_t size) {
    ps_command answer;
    ps_record r;
    int count = 0;
    net_pull(c, 1, offset, 0);
    if (!CHECK(net_take_answer(c, &answer)) || !CHECK_EQ(0, answer.code)) return 0;
    for (int64_t at = 0; at < answer.body.len; at += r.size, count++) {
        if (!CHECK_EQ(PS_REC_OK, ps_record_decode(answer.body.data + at, answer.body.len - at, &r)))
            return 0;
        CHECK_EQ(offset + count, r.queue_offset);
        CHECK_EQ(size, r.body_len);
        for (int64_t i = 0; i < size; i++)
            if (r.body[i] != (uint8_t)(offset + count)) CHECK_EQ(-1, i);
    }
    return count;
}

static void test_large_records_are_written_from_where_they_lie(void) {
    ps_net_conf conf = net_conf();
    static uint8_t body[60000];
    enum { MESSAGES = 40 };
    open_all(&conf);
    net_client c = net_connect();
    for (int i = 0; i < MESSAGES; i++) {
        memset(body, i, sizeof body);
        net_send(&c, i, body, sizeof body);
        expect(&c, 0);
    }
    for (int64_t at = 0, took; at < MESSAGES; at += took)
        if (!CHECK((took = compare_bodies(&c, at, sizeof body)) > 0)) break;
    net_leave(&c);
    CHECK_UNTIL(net_closed == 1);
    int64_t lent = 0;
    for (int i = 1; i <= net_threads; i++)
        lent += kit_core->co_lock.lo_calls[i]->ca_answer.an_pieces.room;
    CHECK(lent > 0);
    close_all();
}

static void test_one_that_never_reads_is_closed(void) {
    ps_net_conf conf = net_conf();
    conf.write_high = 8 << 20;
    conf.unsent_max = 2 << 20;
    static uint8_t body[60000];
    open_all(&conf);
    net_client c = net_connect();
    for (int i = 0; i < 8; i++) {
        net_send(&c, i, body, sizeof body);
        expect(&c, 0);
    }
    for (int i = 0; i < 2000 && net_closed == 0; i++) net_pull(&c, i, 0, 0);
    CHECK_UNTIL(net_closed == 1);
    CHECK(strcmp(net_why, "responses not read by the client") == 0);
    expect_end(&c);
    close_all();
}

/* Python does nothing: the thread reads no more than it may queue, and one read. */
static void test_frames_that_wait_for_python_are_bounded(void) {
    enum { MAX = 100, ASKED = 20000 };
    ps_net_conf conf = net_conf();
    conf.queued_max = MAX;
    open_all(&conf);
    atomic_store(&net_asleep, true);
    net_client c = net_connect();
    pid_t child = fork();
    if (child == 0) { /* it blocks */
        for (int i = 0; i < ASKED; i++) ask_python(&c, i);
        _exit(0);
    }
    usleep(20000);
    atomic_store(&net_asleep, false);
    for (int i = 0; i < ASKED; i++) CHECK_EQ(i, expect(&c, 999));
    CHECK_EQ(ASKED, net_frames);
    net_leave(&c);
    close_all();
}

static int64_t reads_of_all(void) {
    int64_t sum = 0;
    for (int i = 0; i < net_threads; i++) sum += ps_net_turns(net_all[i]);
    return sum;
}

/* Counts, in order, what each has told. The first that comes must be the frame of who is there. */
static void count_events(ps_net *from, bool has_frame, int counts[]) {
    enum { ROWS = 512 };
    static ps_net_event rows[ROWS];
    for (int64_t n; (n = ps_net_events(from, rows, ROWS)) > 0; has_frame = false) {
        if (has_frame) CHECK_EQ(PS_NET_FRAME, rows[0].kind);
        for (int64_t i = 0; i < n; i++) {
            counts[rows[i].kind]++;
            CHECK(counts[PS_NET_CLOSED] <= counts[PS_NET_OPENED]);
            if (rows[i].kind == PS_NET_CLOSED) ps_link_forget(rows[i].link);
        }
    }
}

/* Who is there does not wait for those that come and go; what each of them brings is in order. */
static void test_who_is_there_goes_before_a_storm(void) {
    enum { STORM = 200 };
    ps_net_conf conf = net_conf();
    int counts[PS_NET_TLS_WANTED + 1] = {0};
    open_all(&conf);
    net_client here = net_connect();
    ask_python(&here, 1);
    expect(&here, 999);
    atomic_store(&net_over, true); /* from now on Python's part is ours */
    pthread_join(net_python, NULL);
    int64_t before = reads_of_all();
    for (int i = 0; i < STORM; i++) {
        net_client c = net_connect();
        ask_python(&c, i);
        net_leave(&c);
    }
    CHECK_UNTIL(reads_of_all() >= before + STORM && ps_net_links(net) == 1);
    before = ps_net_turns(net);
    ask_python(&here, 2);
    CHECK_UNTIL(ps_net_turns(net) > before);
    for (int i = 0; i < net_threads; i++) ps_net_stop(net_all[i]);
    for (int i = 0; i < net_threads; i++) count_events(net_all[i], i == 0, counts);
    CHECK_EQ(STORM, counts[PS_NET_OPENED]);
    CHECK_EQ(STORM + 1, counts[PS_NET_FRAME]);
    CHECK_EQ(STORM, counts[PS_NET_CLOSED]);
    for (int i = net_threads; i-- > 0;) ps_net_free(net_all[i]);
    net_leave(&here);
    kit_close();
}

static void test_the_largest_unfinished_frame_gives_way(void) {
    ps_net_conf conf = net_conf();
    ps_net_budget_limit(net_budget, 3 << 20);
    static uint8_t part[4 << 20]; /* more than that, however it is read */
    open_all(&conf);
    be32_put(part, 8 << 20);
    net_client small = net_connect(), large = net_connect();
    net_write(&small, part, 100 << 10);
    CHECK_UNTIL(ps_net_budget_held(net_budget) >= 100 << 10);
    net_write(&large, part, sizeof part);
    CHECK_UNTIL(net_closed == 1);
    CHECK(strstr(net_why, "maxUnfinishedBytes") != NULL);
    expect_end(&large);
    CHECK(ps_net_budget_held(net_budget) >= 100 << 10);
    net_leave(&small);
    expect_none_left(2);
    close_all();
}

static void test_strangers_end_before_those_who_were_let_in(void) {
    ps_net_conf conf = net_conf();
    ps_net_budget_limit(net_budget, 3 << 20);
    open_all(&conf);
    net_client known = net_connect(), stranger = net_connect();
    net_held = 2 << 20;
    net_knows = 1;
    ask_python(&known, 1);
    expect(&known, 999);
    net_held = 3 << 19;
    net_weighs = 1;
    ask_python(&stranger, 2);
    CHECK_UNTIL(net_closed == 1);
    expect_end(&stranger);
    ask_python(&known, 3);
    CHECK_EQ(3, expect(&known, 999));
    CHECK(ps_net_budget_held(net_budget) >= 2 << 20);
    net_leave(&known);
    expect_none_left(2);
    close_all();
}

/* Be it that the socket takes all of it at once. */
static void test_what_python_writes_is_awaited(void) {
    ps_net_conf conf = net_conf();
    conf.write_high = 100;
    conf.write_low = 50;
    open_all(&conf);
    net_client c = net_connect();
    net_unread = 0;
    for (int i = 1; i <= 20; i++) {
        net_more_bytes = 200;
        ask_python(&c, i);
        CHECK_EQ(i, expect(&c, 999));
        CHECK_UNTIL(net_read_again == i);
    }
    net_leave(&c);
    expect_none_left(1);
    close_all();
}

/* Even what the core could serve; half a header counts, too. */
static void test_what_python_holds_for_a_link_counts(void) {
    ps_net_conf conf = net_conf();
    ps_net_budget_limit(net_budget, 3 << 20);
    open_all(&conf);
    net_client small = net_connect(), large = net_connect();
    ask_python(&small, 1);
    expect(&small, 999);
    net_held = 4 << 20; /* by the next frame */
    ask_python(&large, 2);
    CHECK_UNTIL(net_closed == 1);
    CHECK(strstr(net_why, "maxUnfinishedBytes") != NULL);
    CHECK_UNTIL(ps_net_budget_held(net_budget) == 0);
    ask_python(&small, 3);
    CHECK_EQ(3, expect(&small, 999));
    expect_end(&large);
    net_leave(&small);
    expect_none_left(2);
    close_all();
}

static void test_all_that_one_too_many_asks_is_pythons(void) {
    ps_net_conf conf = net_conf();
    net_client over[PS_OVER_MAX];
    conf.links_max = 2;
    open_all(&conf);
    net_client a = net_connect(), b = net_connect();
    ask_python(&a, 1);
    expect(&a, 999);
    net_write(&b, NET_HEADER, 9);
    for (int i = 0; i < PS_OVER_MAX; i++) {
        over[i] = net_connect();
        net_send(&over[i], 7, "body", 4);
        CHECK_EQ(7, expect(&over[i], 310));
    }
    CHECK_EQ(PS_OVER_MAX, net_over_opened);
    CHECK_EQ(2, ps_net_links(net));
    net_client beyond = net_connect();
    expect_end(&beyond);
    CHECK_UNTIL(net_refused == 1);
    CHECK(strstr(net_refusal, "\ntoo many connections") != NULL);
    net_leave(&b);
    CHECK_UNTIL(ps_net_links(net) == 1);
    net_client d = net_connect();
    net_send(&d, 4, "body", 4);
    CHECK_EQ(4, expect(&d, 0));
    CHECK_EQ(PS_OVER_MAX, net_over_opened);
    for (int i = 0; i < PS_OVER_MAX; i++) net_leave(&over[i]);
    net_leave(&a);
    net_leave(&d);
    expect_none_left(PS_OVER_MAX + 2);
    close_all();
}

static void test_without_a_descriptor_connections_wait_until_there_is_one(void) {
    ps_net_conf conf = net_conf();
    struct rlimit before, none;
    open_all(&conf);
    CHECK_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    int last = dup(0); /* the client's own is the last one */
    close(last);
    none = (struct rlimit){(rlim_t)last + 1, before.rlim_max};
    CHECK_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    net_client c = net_connect();
    CHECK_EQ(last, c.fd);
    net_send(&c, 1, "body", 4);
    CHECK_UNTIL(net_resting > 0);
    CHECK_EQ(0, net_opened);
    CHECK_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
    CHECK_EQ(1, expect(&c, 0));
    net_leave(&c);
    close_all();
}

/* False: it asked so late that it was idle before its answer. */
static bool ends_after_its_answer(void) {
    net_client c = net_connect();
    ask_python(&c, 1);
    bool answered = net_read(&c, NULL, NULL) == 999;
    expect_end(&c);
    return answered;
}

static void expect_idle_ends(void) {
    net_client silent = net_connect();
    CHECK_UNTIL(ends_after_its_answer());
    expect_end(&silent);
    CHECK_UNTIL(net_opened > 0 && net_closed == net_opened);
    CHECK(strcmp(net_why, "idle") == 0);
}

static void test_an_idle_one_is_closed(void) {
    ps_net_conf conf = net_conf();
    conf.idle_ms = 50;
    open_all(&conf);
    expect_idle_ends();
    close_all();
}

/* Frames in pieces of any length, and one that needs room of its own. */
static void test_without_a_core_every_frame_is_handed_on(void) {
    ps_net_conf conf = net_conf();
    uint8_t frame[512], *body = calloc(1, 1 << 20);
    kit_frame f;
    conf.frame_max = 2 << 20;
    net_threads = 1;
    net_start(&conf);
    net_client c = net_connect(), other = net_connect();
    kit_begin(&f, 0, 999, 0);
    int64_t len = kit_encode(&f, NULL, 0, frame, sizeof frame);
    for (int64_t cut = 1; cut < len; cut++) {
        net_write(&c, frame, cut);
        usleep(100);
        net_write(&c, frame + cut, len - cut);
        net_write(&c, frame, len);
    }
    for (int64_t i = 0; i < 2 * (len - 1); i++) CHECK_EQ(0, expect(&c, 999));
    kit_begin(&f, 0, 999, 7);
    len = kit_encode(&f, NULL, 0, frame, sizeof frame);
    be32_put(frame, (uint32_t)(len - 4 + (1 << 20)));
    net_write(&c, frame, len);
    net_write(&c, body, 1 << 20);
    CHECK_EQ(7, expect(&c, 999));
    ask_python(&c, 8);
    CHECK_EQ(8, expect(&c, 999));
    be32_put(frame, 2 << 20);
    net_write(&other, frame, len);
    expect_end(&other);
    net_leave(&c);
    expect_none_left(2);
    CHECK(strncmp(net_why, "malformed frame: frame too large", 32) == 0);
    free(body);
    net_stop();
}

static void test_without_a_core_an_idle_one_is_closed(void) {
    ps_net_conf conf = net_conf();
    conf.frame_max = 1 << 20;
    conf.idle_ms = 50;
    net_threads = 1;
    net_start(&conf);
    expect_idle_ends();
    net_stop();
}

static void test_a_frame_of_false_length_ends_the_connection(void) {
    ps_net_conf conf = net_conf();
    static const uint8_t too_long[] = {0, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0};
    static const uint8_t no_header[] = {0, 0, 0, 4, 0, 0xFF, 0xFF, 0xFF};
    open_all(&conf);
    net_client a = net_connect(), b = net_connect();
    net_write(&b, no_header, sizeof no_header);
    expect_end(&b);
    net_write(&a, too_long, sizeof too_long);
    expect_end(&a);
    expect_none_left(2);
    close_all();
}

/* ---- how connections end ---- */

static void leave_at(int step, bool reset) {
    net_client c = net_connect();
    uint8_t frame[4096];
    kit_frame f;
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    int64_t len = kit_encode(&f, "body", 4, frame, sizeof frame);
    if (step == 1) net_write(&c, frame, 1);
    if (step == 2) net_write(&c, frame, len / 2);
    if (step == 3) net_write(&c, frame, len);
    if (step == 4) ask_python(&c, 1);
    if (step == 5) net_pull(&c, 1, 1 << 30, 60000);
    if (step == 6) net_pull(&c, 1, 0, 60000);
    if (step == 7) {
        ask_python(&c, 1);
        expect(&c, 999);
        net_write(&c, frame, len / 3);
    }
    if (step == 8) net_write(&c, NET_HEADER, 1 + check_below(44));
    if (step == 9) {
        net_write(&c, NET_HEADER, (int64_t)strlen(NET_HEADER));
        net_write(&c, frame, len / (1 + check_below(3)));
    }
    if (step == 10) net_write(&c, "GET /", 5);
    if (reset)
        net_reset(&c);
    else
        net_leave(&c);
}

static void test_peers_may_leave_at_every_step(void) {
    ps_net_conf conf = net_conf();
    open_all(&conf);
    for (int i = 0; i < 600; i++) leave_at((int)check_below(11), check_below(2) == 0);
    net_client c = net_connect();
    ask_python(&c, 1);
    CHECK_EQ(1, expect(&c, 999));
    net_leave(&c);
    CHECK_UNTIL(net_opened == net_closed && net_opened > 0);
    CHECK_UNTIL(ps_net_budget_held(net_budget) == 0);
    close_all();
}

static int count_entries(const char *folder) {
    int count = 0;
    DIR *d = opendir(folder);
    for (struct dirent *each; (each = readdir(d)) != NULL;) count++;
    closedir(d);
    return count;
}

/* With all that may be under way. */
static void start_and_stop(bool asleep) {
    ps_net_conf conf = net_conf();
    net_start(&conf);
    net_client c = net_connect(), half = net_connect();
    atomic_store(&net_asleep, asleep);
    net_send(&c, 1, "body", 4);
    expect(&c, 0);
    net_write(&half, "\0\0", 2);
    ask_python(&c, 2);
    net_pull(&c, 3, 1 << 30, 60000);
    net_client header = net_connect();
    net_write(&header, NET_HEADER, 9);
    net_stop();
    net_leave(&header);
    net_leave(&c);
    net_leave(&half);
}

/* The sanitizer counts the bytes. */
static void test_stops_leave_no_thread_and_no_descriptor(void) {
    ps_conf store = kit_conf();
    kit_open(&store, 1000);
    kit_topic("T", 4, HOT);
    kit_subscribe("G", "T", "", 0, 0);
    start_and_stop(false); /* the store opens its files */
    int fds = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    for (int i = 0; i < 200; i++) start_and_stop(i % 2 == 0);
    /* One left by each would be 200; the store may open its next segment meanwhile. */
    CHECK_UNTIL(count_entries("/proc/self/fd") < fds + 20);
    /* The first count may still have had one that was joined and not yet gone. */
    CHECK_UNTIL(count_entries("/proc/self/task") <= threads);
    kit_close();
}

/* How many there are by their names; each takes no signals. */
static int count_network_threads(void) {
    int found = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *each; (each = readdir(d)) != NULL;) {
        char path[400], line[256], name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", each->d_name);
        FILE *f = fopen(path, "r");
        if (f == NULL) continue;
        while (fgets(line, sizeof line, f) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        fclose(f);
        if (strncmp(name, "rmq-net-", 8) != 0) continue;
        found++;
        CHECK(blocked >> (SIGINT - 1) & 1 && blocked >> (SIGTERM - 1) & 1);
    }
    closedir(d);
    return found;
}

/* Names are for `top -H`; signals are for the threads of the program. */
static void test_the_threads_are_named_and_take_no_signals(void) {
    ps_net_conf conf = net_conf();
    open_all(&conf);
    /* One of the test before may have been joined and not yet gone. */
    CHECK_UNTIL(count_network_threads() == net_threads);
    close_all();
}

/* ---- fairness ---- */

enum { FLOODS = 64, FLOOD = 400 };

static void *flood(void *arg) {
    net_client *c = arg;
    for (int32_t i = 0; i < FLOOD; i++) net_send(c, i, "body", 4);
    return NULL;
}

/* Of the first thread, which has the first connection. */
static int64_t turns_so_far(void) {
    return atomic_load(&net->nt_turns);
}

/* A quiet connection is answered before any of those that flood has had more than a few turns,
 * however much they have sent. */
static void test_a_quiet_one_waits_a_few_turns_of_those_that_flood(void) {
    ps_net_conf conf = net_conf();
    net_client all[FLOODS];
    pthread_t threads[FLOODS];
    int64_t most = 0;
    open_all(&conf);
    net_client quiet = net_connect();
    net_send(&quiet, 0, "body", 4);
    expect(&quiet, 0);
    for (int i = 0; i < FLOODS; i++) {
        all[i] = net_connect();
        pthread_create(&threads[i], NULL, flood, &all[i]);
    }
    CHECK_UNTIL(turns_so_far() > FLOODS / net_threads);
    for (int i = 0; i < 20; i++) {
        int64_t before = turns_so_far();
        net_send(&quiet, i, "body", 4);
        expect(&quiet, 0);
        int64_t took = turns_so_far() - before;
        if (took > most) most = took;
    }
    CHECKF(most <= 3 * FLOODS, "it waited %lld turns", (long long)most);
    for (int i = 0; i < FLOODS; i++) {
        pthread_join(threads[i], NULL);
        for (int k = 0; k < FLOOD; k++)
            if (!CHECK_EQ(k, expect(&all[i], 0))) break;
        net_leave(&all[i]);
    }
    net_leave(&quiet);
    close_all();
}

/* ---- several threads ---- */

/* Where a send is served and where its pull waits need not be the same thread. */
static void test_connections_are_dealt_out_and_pulls_woken_across(void) {
    enum { EACH = 8 };
    ps_net_conf conf = net_conf();
    open_all(&conf);
    net_client readers[EACH];
    for (int i = 0; i < EACH; i++) {
        readers[i] = net_connect();
        net_pull(&readers[i], i, 0, 3600000);
    }
    CHECK_UNTIL(net_opened == EACH);
    for (int i = 0; i < net_threads; i++)
        CHECK(atomic_load(&net_all[i]->nt_count) >= EACH / net_threads);
    CHECK_UNTIL(held_pulls() == EACH);
    net_client writer = net_connect();
    net_send(&writer, 1, "body", 4);
    expect(&writer, 0);
    for (int i = 0; i < EACH; i++) {
        CHECK_EQ(i, expect(&readers[i], 0));
        net_leave(&readers[i]);
    }
    net_leave(&writer);
    expect_none_left(EACH + 1);
    close_all();
}

/* PS_ONLY: a part of the name of those that are run. */
#define RUN(test)                                                                                  \
    do {                                                                                           \
        if (getenv("PS_ONLY") != NULL && strstr(#test, getenv("PS_ONLY")) == NULL) break;          \
        if (getenv("PS_SAY") != NULL) puts(#test);                                                 \
        test();                                                                                    \
    } while (0)

static void run_all(void) {
    RUN(test_sends_and_pulls_are_served_without_python);
    RUN(test_what_nobody_knows_is_handed_on_in_order);
    RUN(test_frames_may_be_cut_at_every_byte);
    RUN(test_what_begins_otherwise_is_refused);
    RUN(test_one_with_a_header_speaks_for_its_source);
    RUN(test_a_held_pull_is_woken_by_a_send_and_ended_by_its_time);
    RUN(test_a_slow_reader_gets_every_answer);
    RUN(test_large_records_are_written_from_where_they_lie);
    RUN(test_one_that_never_reads_is_closed);
    RUN(test_frames_that_wait_for_python_are_bounded);
    RUN(test_who_is_there_goes_before_a_storm);
    RUN(test_the_largest_unfinished_frame_gives_way);
    RUN(test_what_python_holds_for_a_link_counts);
    RUN(test_strangers_end_before_those_who_were_let_in);
    RUN(test_what_python_writes_is_awaited);
    RUN(test_all_that_one_too_many_asks_is_pythons);
    RUN(test_without_a_descriptor_connections_wait_until_there_is_one);
    RUN(test_an_idle_one_is_closed);
    RUN(test_without_a_core_every_frame_is_handed_on);
    RUN(test_without_a_core_an_idle_one_is_closed);
    RUN(test_a_frame_of_false_length_ends_the_connection);
    RUN(test_peers_may_leave_at_every_step);
    RUN(test_stops_leave_no_thread_and_no_descriptor);
    RUN(test_the_threads_are_named_and_take_no_signals);
    RUN(test_a_quiet_one_waits_a_few_turns_of_those_that_flood);
    RUN(test_connections_are_dealt_out_and_pulls_woken_across);
}

int main(void) {
    check_begin();
    char *base = check_folder();
    snprintf(kit_root, sizeof kit_root, "%s/store", base);
    run_all();
    net_threads = 3;
    run_all();
    check_remove(base);
    free(base);
    free(kit_handed);
    return check_end("test_net");
}
