/* Light queues: what is put comes back in order, from each path; the files are believed only as far
 * as the log agrees, and what they lack is made from it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <sys/eventfd.h>
#include <limits.h>

#include "check.h"
#include "format/multi.h"
#include "format/offsetblock.h"
#include "format/record.h"
#include "light/slot.h"
#include "store/lights.h"

#define QUEUES 40
#define SEGMENT (64 << 10)

static ps_conf conf_of(const char *root) {
    ps_conf c;
    ps_conf_init(&c);
    c.root = root;
    c.commitlog_file_size = SEGMENT;
    c.consumequeue_file_size = 2000;
    c.index_slots = 64;
    c.index_entries = 400;
    c.clean_interval_ms = 0;
    return c;
}

static ps_store *open_store(const char *root) {
    ps_conf c = conf_of(root);
    ps_error e = {0};
    ps_store *s = ps_store_open(&c, NULL, NULL, NULL, &e);
    CHECKF(s != NULL, "%s", e.text);
    return s;
}

static int put(ps_store *s, const char *topic, const char *names, const char *body) {
    char props[700];
    ps_error e = {0};
    ps_put_result out = {0};
    int n = snprintf(props, sizeof props, "UNIQ_KEY\1u\2INNER_MULTI_DISPATCH\1%s\2WAIT\1true\2",
                     names);
    ps_topic *t = ps_topic_open(s, topic, (int32_t)strlen(topic), 1, &e);
    return ps_put(t, 0, 0, body, (int64_t)strlen(body), props, n, 1, &out);
}

/* Body of the record at the offset, and its offset property; false: none. */
static bool body_at(ps_store *s, const char *name, int64_t offset, char *body, char *offsets) {
    static uint8_t room[4096];
    ps_light_record one;
    ps_error e = {0};
    ps_property p;
    ps_record r;
    int64_t need;
    if (ps_lights_read(s, name, (int32_t)strlen(name), offset, &one, 1, room, sizeof room, &need,
                       &e) != 1 ||
        one.size == 0 || ps_record_decode(room, one.size, &r) != PS_REC_OK)
        return false;
    snprintf(body, 100, "%.*s", (int)r.body_len, r.body);
    if (!ps_property_find(r.properties, r.properties_len, "INNER_MULTI_QUEUE_OFFSET", 24, &p))
        return false;
    snprintf(offsets, 100, "%.*s", (int)p.value_len, p.value);
    return one.offset == offset;
}

static void name_of(int i, char name[40]) {
    snprintf(name, 40, "%%LMQ%%$parent$s-%d", i);
}

static void check_queue(ps_store *s, int i, int64_t count) {
    char name[40], body[100], offsets[100], wanted[100];
    int64_t low, high;
    name_of(i, name);
    CHECK_EQ(1, ps_lights_range(s, name, (int32_t)strlen(name), &low, &high));
    CHECK_EQ(0, low);
    CHECK_EQ(count, high);
    for (int64_t at = 0; at < count; at++) {
        snprintf(wanted, sizeof wanted, "%d#%lld", i, (long long)at);
        if (!CHECK(body_at(s, name, at, body, offsets))) return;
        CHECKF(strcmp(wanted, body) == 0, "%s, not %s", body, wanted);
        CHECK_EQ(at, atoll(offsets));
    }
    CHECK(!body_at(s, name, count, body, offsets));
}

static int64_t counts[QUEUES];

static void put_some(ps_store *s, int rounds) {
    char name[40], body[40];
    for (int i = 0; i < rounds; i++) {
        int q = (int)check_below(QUEUES);
        name_of(q, name);
        snprintf(body, sizeof body, "%d#%lld", q, (long long)counts[q]++);
        CHECK_EQ(0, put(s, "parent", name, body));
        if (i % 7 == 0) CHECK_EQ(0, put(s, "parent", "%LMQ%many", body));
    }
}

static void check_all(ps_store *s) {
    for (int i = 0; i < QUEUES; i++)
        if (counts[i] > 0) check_queue(s, i, counts[i]);
}

static void damage(const char *root, const char *file, int64_t at) {
    char path[PATH_MAX];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/lightqueue/%s", root, file);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static void test_comes_back(void) {
    char *root = check_folder(), path[PATH_MAX];
    ps_error e = {0};
    memset(counts, 0, sizeof counts);
    ps_store *s = open_store(root);
    CHECK_EQ(0, put(s, "parent", "%LMQ%$parent$before", "not in any queue"));
    CHECK_EQ(0, ps_lights_begin(s, &e));
    put_some(s, 900);
    check_all(s);
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);

    s = open_store(root);
    check_all(s);
    put_some(s, 300);
    ps_store_abandon(s); /* as a kill: what waited in memory is gone */
    ps_store_free(s);

    s = open_store(root);
    check_all(s);
    put_some(s, 100);
    ps_store_free(s);

    damage(root, "00000000000000000000", 48 * 200 + 3);
    s = open_store(root);
    check_all(s);
    put_some(s, 100);
    ps_store_free(s);

    damage(root, "names", 100);
    s = open_store(root);
    check_all(s);
    ps_store_free(s);

    snprintf(path, sizeof path, "%s/lightqueue", root);
    check_remove(path);
    s = open_store(root);
    CHECK_EQ(-1, ps_lights_count(s));
    CHECK_EQ(0, ps_lights_begin(s, &e));
    check_all(s);
    put_some(s, 50);
    check_all(s);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

static int64_t size_of(const char *root, const char *file) {
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/lightqueue/%s", root, file);
    return stat(path, &st) == 0 ? st.st_size : 0;
}

/* Whatever byte is wrong, every queue is as the log has it. */
static void test_any_damage(void) {
    static const char *const names[] = {"00000000000000000000", "names"};
    char *root = check_folder();
    ps_error e = {0};
    memset(counts, 0, sizeof counts);
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    put_some(s, 300);
    ps_store_free(s);
    for (int i = 0; i < 40; i++) {
        const char *file = names[check_below(2)];
        int64_t size = size_of(root, file);
        if (!CHECK(size > 0)) break;
        damage(root, file, check_below(size));
        s = open_store(root);
        check_all(s);
        ps_store_free(s);
    }
    check_remove(root);
    free(root);
}

/* The files are another store's, or the log was cut: the log is right. */
static void test_another_log(void) {
    char *root = check_folder(), *other = check_folder(), from[PATH_MAX], to[PATH_MAX];
    ps_error e = {0};
    for (int i = 0; i < 2; i++) {
        memset(counts, 0, sizeof counts);
        ps_store *s = open_store(i == 0 ? other : root);
        CHECK_EQ(0, ps_lights_begin(s, &e));
        put_some(s, 200);
        ps_store_free(s);
    }
    snprintf(from, sizeof from, "%s/lightqueue", root);
    snprintf(to, sizeof to, "%s/lightqueue", other);
    check_remove(from);
    CHECK_EQ(0, rename(to, from));
    ps_store *s = open_store(root);
    check_all(s);
    ps_store_free(s);
    check_remove(root);
    check_remove(other);
    free(root);
    free(other);
}

static void test_refusals(void) {
    static const char *const bad[] = {
        "%LMQ%$parent$d$e", "%LMQ%$parent$d/e", "%LMQ%$parent$", "%LMQ%$$x", "%LMQ%", "plain",
        "%LMQ%$parent$ca,cb", "%LMQ%a,%LMQ%a", "%LMQ%$parent$a b",
        "%LMQ%1,%LMQ%2,%LMQ%3,%LMQ%4,%LMQ%5,%LMQ%6,%LMQ%7,%LMQ%8,%LMQ%9"};
    char *root = check_folder(), longest[300] = "%LMQ%$parent$", body[100], offsets[100];
    ps_error e = {0};
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECKF(put(s, "parent", bad[i], "b") == PS_E_MESSAGE_ILLEGAL, "%s", bad[i]);
    memset(longest + strlen(longest), 'x', 250);
    CHECK_EQ(PS_E_MESSAGE_ILLEGAL, put(s, "parent", longest, "b"));
    CHECK_EQ(0, ps_lights_count(s));
    CHECK_EQ(0, put(s, "%RETRY%g", "%LMQ%$parent$a", "b")); /* such topics are left alone */
    CHECK_EQ(0, ps_lights_count(s));
    CHECK_EQ(0, put(s, "parent", "%LMQ%$parent$a,%LMQ%b", "both"));
    CHECK_EQ(0, put(s, "parent", "%LMQ%b", "second"));
    CHECK(body_at(s, "%LMQ%b", 0, body, offsets) && strcmp(offsets, "0,0") == 0);
    CHECK(body_at(s, "%LMQ%b", 1, body, offsets) && strcmp(body, "second") == 0);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* A queue that is gone starts from 0 again, also after a restart; its old units are in the log. */
static void test_new_life(void) {
    char *root = check_folder(), body[100], offsets[100];
    static const char name[] = "%LMQ%$parent$s";
    int64_t low, high;
    ps_error e = {0};
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    for (int i = 0; i < 5; i++) CHECK_EQ(0, put(s, "parent", name, "old"));
    CHECK_EQ(1, ps_lights_range(s, name, sizeof name - 1, &low, &high));
    CHECK(ps_lights_last_ms(s, name, sizeof name - 1) > 0);
    CHECK_EQ(1, ps_lights_delete(s, name, sizeof name - 1, 0, &e));
    CHECK_EQ(0, ps_lights_range(s, name, sizeof name - 1, &low, &high));
    ps_store_free(s);
    s = open_store(root);
    CHECK_EQ(0, ps_lights_range(s, name, sizeof name - 1, &low, &high));
    CHECK_EQ(0, put(s, "parent", name, "new"));
    CHECK(body_at(s, name, 0, body, offsets) && strcmp(body, "new") == 0);
    CHECK_EQ(1, ps_lights_range(s, name, sizeof name - 1, &low, &high));
    CHECK_EQ(1, high);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* Rows of a log of Java's that are skipped, as Java skips them; the rest goes on. */
static void test_foreign(void) {
    static const struct {
        const char *names, *offsets;
    } rows[] = {{"%LMQ%$p$ca,cb", "0,"}, {"%LMQ%$p$d/e", "0"}, {"%LMQ%$p$x", "1,2"},
                {"%LMQ%$p$d$e", "0"},    {"%LMQ%$p$y", "0"},
                {"%LMQ%$p$#", "0"} /* zeros of a page that a power failure took */};
    char *root = check_folder(), props[200], body[100], offsets[100];
    ps_error e = {0};
    ps_put_result out;
    ps_store *s = open_store(root);
    ps_topic *t = ps_topic_open(s, "p", 1, 1, &e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int n = snprintf(props, sizeof props,
                         "INNER_MULTI_DISPATCH\1%s\2INNER_MULTI_QUEUE_OFFSET\1%s\2", rows[i].names,
                         rows[i].offsets);
        for (int k = 0; k < n; k++)
            if (props[k] == '#') props[k] = 0;
        CHECK_EQ(0, ps_put(t, 0, 0, "b", 1, props, n, 1, &out));
    }
    CHECK_EQ(0, ps_lights_begin(s, &e));
    CHECK_EQ(4, ps_lights_skipped(s));
    CHECK_EQ(2, ps_lights_count(s));
    CHECK(body_at(s, "%LMQ%$p$y", 0, body, offsets));
    ps_store_free(s);
    check_remove(root);
    free(root);
}

static void test_news(void) {
    char *root = check_folder();
    uint8_t names[100];
    ps_error e = {0};
    ps_store *s = open_store(root);
    int64_t low, high;
    int fd = eventfd(0, EFD_NONBLOCK);
    ps_lights_listen(s, fd);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    CHECK_EQ(0, put(s, "p", "%LMQ%a", "1"));
    CHECK_EQ(0, put(s, "p", "%LMQ%a", "2"));
    ps_lights_range(s, "%LMQ%a", 6, &low, &high);
    CHECK_EQ(2, high);
    CHECK_EQ(7, ps_lights_news(s, names, sizeof names));
    CHECK(names[0] == 6 && memcmp(names + 1, "%LMQ%a", 6) == 0);
    CHECK_EQ(0, ps_lights_news(s, names, sizeof names));
    uint64_t told = 0;
    CHECK(read(fd, &told, sizeof told) == sizeof told && told > 0);
    close(fd);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* ---- queues that expire ---- */

#define HEAD "%LMQ%$parent$"

static int64_t last_ms(ps_store *s, const char *name) {
    return ps_lights_last_ms(s, name, (int32_t)strlen(name));
}

/* Those that have expired, by what follows HEAD, each before a blank. */
static const char *expired(ps_store *s, int64_t now_ms, int64_t age_ms) {
    static char text[1000];
    uint8_t names[900];
    int32_t len = ps_lights_expired(s, HEAD, sizeof HEAD - 1, now_ms, age_ms, names, sizeof names);
    int32_t used = 0;
    text[0] = 0;
    for (int32_t at = 0; at < len; at += 1 + names[at]) {
        int32_t rest = names[at] - ((int32_t)sizeof HEAD - 1);
        used += snprintf(text + used, sizeof text - (size_t)used, "%.*s ", rest,
                         (char *)names + at + sizeof HEAD);
    }
    return text;
}

static void check_expired(ps_store *s, const char *wanted, int64_t now_ms, int64_t age_ms) {
    const char *found = expired(s, now_ms, age_ms);
    CHECKF(strcmp(wanted, found) == 0, "%s, not %s", found, wanted);
}

/* Put times, at least some ms apart. */
static int64_t put_later(ps_store *s, const char *name) {
    usleep(3000);
    CHECK_EQ(0, put(s, "parent", name, "x"));
    return last_ms(s, name);
}

static void test_the_oldest_expire_first(void) {
    static const char b[] = HEAD "b";
    char *root = check_folder();
    ps_error e = {0};
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    CHECK_EQ(0, put(s, "parent", "%LMQ%alone,%LMQ%$another$a", "x"));
    put_later(s, HEAD "a");
    int64_t of_b = put_later(s, b), of_c = put_later(s, HEAD "c");
    int64_t of_a = put_later(s, HEAD "a");
    for (int again = 0; again < 2; again++) { /* what is not in memory is in the log */
        check_expired(s, "b c a ", of_a + 1001, 1000);
        check_expired(s, "b c ", of_c + 1001, 1000);
        check_expired(s, "", of_b + 1000, 1000);
        if (again) break;
        ps_store_free(s);
        s = open_store(root);
    }
    CHECK_EQ(0, ps_lights_delete(s, b, sizeof b - 1, of_b, &e)); /* not before it */
    CHECK_EQ(1, ps_lights_delete(s, b, sizeof b - 1, of_b + 1, &e));
    check_expired(s, "c a ", of_a + 1001, 1000);
    check_expired(s, "c a ", INT64_C(1) << 60, 43200LL * 60000);
    check_expired(s, "", of_c - 1000, 100); /* the clock was set back: they are new */
    check_expired(s, "c ", of_c - 1000 + 101, 100);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

static void fill_log(ps_store *s) {
    char body[1000];
    memset(body, 'x', sizeof body - 1);
    body[sizeof body - 1] = 0;
    for (int i = 0; i < 200; i++) CHECK_EQ(0, put(s, "parent", HEAD "busy", body));
}

/* The first segments of the log go. */
static void forget_old(ps_store *s) {
    ps_retention_report report;
    ps_error e = {0};
    CHECK_EQ(0, ps_store_clean(s, ps_now_ms() + 1000LL * 3600000, 1, 0, 0, &report, &e));
    CHECK(report.log_files > 0);
}

/* As an older store wrote it: an entry of a next offset has no time. */
static void drop_times(const char *root) {
    char path[PATH_MAX];
    static uint8_t all[1 << 16], kept[1 << 16];
    int64_t used = 0;
    snprintf(path, sizeof path, "%s/lightqueue/names", root);
    int fd = open(path, O_RDWR);
    int64_t len = fd >= 0 ? read(fd, all, sizeof all) : -1, n;
    CHECK(len > 0 && len < (int64_t)sizeof all);
    for (int64_t at = 0; (n = lg_name_len(all + at, len - at)) > 0; at += n) {
        uint8_t *to = kept + used;
        memcpy(to, all + at, (size_t)n);
        used += n;
        if (to[4] != LG_NAME_NEXT) continue;
        CHECK_EQ(LG_NEXT_LEN, to[5]);
        to[5] = LG_NEXT_LEN_OLD;
        used -= LG_NEXT_LEN - LG_NEXT_LEN_OLD;
        be32_put(to, ps_crc32(0, to + 4, LG_NAME_HEAD - 4 + LG_NEXT_LEN_OLD));
    }
    CHECK(used < len && ftruncate(fd, 0) == 0 && pwrite(fd, kept, (size_t)used, 0) == used);
    close(fd);
}

/* Their times are in `names`, in whatever order the queues were made. */
static void test_queues_expire_whose_records_have_left_the_log(void) {
    static const char one[] = HEAD "one", two[] = HEAD "two";
    char *root = check_folder();
    ps_error e = {0};
    int64_t low, high;
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    put_later(s, one);
    int64_t of_two = put_later(s, two), of_one = put_later(s, one);
    usleep(3000);
    fill_log(s);
    forget_old(s);
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(of_one, last_ms(s, one));
        check_expired(s, "two one ", of_one + 1001, 1000);
        check_expired(s, "two ", of_two + 1001, 1000);
        check_expired(s, "", of_two + 1000, 1000);
        CHECK_EQ(1, ps_lights_range(s, one, sizeof one - 1, &low, &high));
        CHECK_EQ(2, low);
        CHECK_EQ(2, high);
        CHECK_EQ(0, ps_store_close(s, &e));
        ps_store_free(s);
        if (again) drop_times(root);
        s = open_store(root);
    }
    CHECK_EQ(0, last_ms(s, one));
    int64_t least = of_two + 1; /* those are as old as the oldest record that is there, or older */
    check_expired(s, "", least + 1000, 1000);
    check_expired(s, "two one busy ", ps_now_ms() + 1001, 1000);
    CHECK_EQ(0, put(s, "parent", one, "new"));
    CHECK_EQ(1, ps_lights_range(s, one, sizeof one - 1, &low, &high));
    CHECK_EQ(3, high);
    CHECK(last_ms(s, one) > of_one);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* ---- a power failure ---- */

/* `names` as the disk has it: what was there at its last sync. */
typedef struct volatile_io {
    ps_io io; /* first */
    uint8_t names[4096];
    int64_t len;
    int32_t deleted; /* files of units */
} volatile_io;

static char names_path[PATH_MAX];

static int volatile_fdatasync(ps_io *io, int fd) {
    volatile_io *v = (volatile_io *)io;
    struct stat synced, names;
    if (fstat(fd, &synced) == 0 && stat(names_path, &names) == 0 && synced.st_ino == names.st_ino)
        v->len = pread(fd, v->names, sizeof v->names, 0);
    return ps_io_system()->fdatasync(io, fd);
}

static int volatile_unlink(ps_io *io, const char *path) {
    ((volatile_io *)io)->deleted++;
    return ps_io_system()->unlink(io, path);
}

/* Units of a file go only when the disk has where their queues go on. */
static void test_power_fails_after_a_file_of_units_is_deleted(void) {
    static const char name[] = "%LMQ%$parent$a";
    char *root = check_folder();
    volatile_io v = {.io = *ps_io_system()};
    ps_light l;
    ps_error e = {0};
    v.io.fdatasync = volatile_fdatasync;
    v.io.unlink = volatile_unlink;
    snprintf(names_path, sizeof names_path, "%s/" PS_LIGHT_FOLDER "/names", root);
    CHECK_EQ(0, ps_light_load(&l, &v.io, root, false, 0, 0, &e));
    for (int64_t i = 0; i <= PS_LIGHT_FILE_SLOTS; i++) {
        ps_light_unit u = {.offset = i, .physical = i * 100, .size = 100};
        CHECK_EQ(1, ps_light_append(&l, name, sizeof name - 1, &u, 1000, &e));
    }
    CHECK_EQ(0, ps_light_flush(&l, true, &e));
    int64_t end = (PS_LIGHT_FILE_SLOTS + 1) * 100LL;
    CHECK_EQ(0, ps_light_trim(&l, end, 2000, &e));
    CHECK_EQ(1, v.deleted);
    ps_light_free(&l);

    int fd = open(names_path, O_RDWR | O_TRUNC);
    CHECK(fd >= 0 && pwrite(fd, v.names, (size_t)v.len, 0) == v.len);
    close(fd);
    CHECK_EQ(0, ps_light_load(&l, &v.io, root, false, end, end, &e));
    const ps_light_queue *q = ps_light_find_locked(&l, name, sizeof name - 1);
    CHECK(q != NULL && q->lq_max == PS_LIGHT_FILE_SLOTS + 1 && q->lq_stamp == 1000);
    ps_light_free(&l);
    check_remove(root);
    free(root);
}

/* ---- names ---- */

enum { KEPT = 1500, PASSING = 3 * KEPT };

static void *come_and_go(void *store) {
    char name[251];
    ps_error e = {0};
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "%slate%d", HEAD, i);
        CHECK_EQ(0, put(store, "parent", name, "x"));
        snprintf(name, sizeof name, "%s%0235d", HEAD, 4 * i + 1);
        CHECK_EQ(1, ps_lights_delete(store, name, (int32_t)strlen(name), 0, &e));
    }
    return NULL;
}

/* `names` is written again while others go on. */
static void test_names_are_written_again_beside_puts(void) {
    char *root = check_folder(), name[251];
    pthread_t other;
    ps_error e = {0};
    int64_t low, high;
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    for (int i = 0; i < KEPT + PASSING; i++) {
        snprintf(name, sizeof name, "%s%0235d", HEAD, i);
        CHECK_EQ(0, put(s, "parent", name, "x"));
        if (i % 4 > 1) CHECK_EQ(1, ps_lights_delete(s, name, (int32_t)strlen(name), 0, &e));
    }
    int64_t before = size_of(root, "names");
    CHECK(!pthread_create(&other, NULL, come_and_go, s));
    for (int i = 0; i < 20; i++) CHECK_EQ(0, ps_keeper_flush(s, true, &e));
    pthread_join(other, NULL);
    CHECK_EQ(0, ps_keeper_flush(s, true, &e));
    CHECKF(size_of(root, "names") < before, "%lld", (long long)size_of(root, "names"));
    ps_store_abandon(s);
    ps_store_free(s);
    s = open_store(root);
    CHECK_EQ(2 * (KEPT + PASSING) / 4, ps_lights_count(s));
    for (int i = 0; i < KEPT + PASSING; i++) {
        snprintf(name, sizeof name, "%s%0235d", HEAD, i);
        bool is = i % 4 == 0 || (i % 4 == 1 && i > 4 * 999 + 1);
        CHECK_EQ(is, ps_lights_range(s, name, (int32_t)strlen(name), &low, &high));
    }
    CHECK_EQ(1, ps_lights_range(s, HEAD "late999", sizeof HEAD "late999" - 1, &low, &high));
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* However many queues come and go, `names` has those that are there; no number is given twice. */
static void test_names_of_what_is_gone_go(void) {
    char *root = check_folder(), name[251], body[100], offsets[100];
    ps_error e = {0};
    int64_t low, high;
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    CHECK_EQ(0, put(s, "parent", "%LMQ%$parent$stays", "0"));
    for (int i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "%%LMQ%%$parent$%0235d", i);
        CHECK_EQ(0, put(s, "parent", name, "x"));
        CHECK_EQ(1, ps_lights_delete(s, name, (int32_t)strlen(name), 0, &e));
    }
    CHECK_EQ(0, ps_store_close(s, &e));
    ps_store_free(s);
    CHECKF(size_of(root, "names") < 100, "%lld", (long long)size_of(root, "names"));

    for (int again = 0; again < 2; again++) {
        s = open_store(root);
        CHECK_EQ(1 + again, ps_lights_count(s));
        CHECK(body_at(s, "%LMQ%$parent$stays", 0, body, offsets));
        CHECK_EQ(1, ps_lights_range(s, "%LMQ%$parent$stays", 18, &low, &high));
        CHECK_EQ(1 + again, high);
        CHECK_EQ(0, put(s, "parent", "%LMQ%$parent$stays", "1"));
        CHECK_EQ(0, put(s, "parent", "%LMQ%$parent$new", "n"));
        CHECK(body_at(s, "%LMQ%$parent$new", again, body, offsets));
        CHECK_EQ(5002, ps_lights_next(s, 1, name, &(int32_t){0}));
        ps_store_free(s);
    }
    check_remove(root);
    free(root);
}

static uint8_t *put_block(uint8_t *to, const char *topic, int32_t rows, int32_t queue,
                          int64_t offset) {
    int32_t head[3] = {1, (int32_t)strlen(topic), rows};
    to = mempcpy(mempcpy(mempcpy(to, head, sizeof head), "g", 1), topic, strlen(topic));
    for (int32_t i = 0; i < rows; i++) to = ps_offset_row_put(to, queue + i, offset);
    return to;
}

/* What is left: offsets past the end, of a queue that is not there, and of other
 * topics. Whatever is cut off in the middle stays. */
static void test_offsets_beyond(void) {
    char *root = check_folder();
    ps_error e = {0};
    uint8_t all[1000], left[1000], given[1000], *at = all, *kept = left;
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    CHECK_EQ(0, put(s, "parent", "%LMQ%$parent$one", "1"));
    at = put_block(at, "%LMQ%$parent$one", 1, 0, 0);
    for (int keep = 0; keep < 2; keep++) {
        uint8_t **to = keep ? &kept : &at;
        *to = put_block(*to, "%LMQ%$parent$one", 1, 0, 2);
        *to = put_block(*to, "%LMQ%$parent$one", 1, 1, 0);
        *to = put_block(*to, "%LMQ%$parent$one", 2, 0, 0);
        if (!keep) at = put_block(at, "%LMQ%$parent$one", 1, 0, 1);
        *to = put_block(*to, "%LMQ%$parent$two", 1, 0, 0);
        *to = put_block(*to, "parent", 3, 0, 1);
    }
    memcpy(given, all, sizeof all);
    CHECK_EQ(kept - left, ps_lights_beyond(s, given, at - all));
    CHECK_EQ(0, memcmp(left, given, (size_t)(kept - left)));
    CHECK_EQ(kept - left - 1, ps_lights_beyond(s, given, kept - left - 1));
    CHECK_EQ(0, memcmp(left, given, (size_t)(kept - left)));
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* The last offset that readers of a record understand is given; then the queue takes no more, and a
 * message that also names another one takes no offset of that. */
static void test_the_last_offset_is_the_last_message(void) {
    char *root = check_folder(), body[100], offsets[100];
    const char *full = "%LMQ%$parent$full", *other = "%LMQ%$parent$other";
    ps_error e = {0};
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    pthread_mutex_lock(&s->st_light.lt_lock);
    ps_light_get_locked(&s->st_light, full, 17)->lq_next = PS_MULTI_OFFSET_MAX;
    pthread_mutex_unlock(&s->st_light.lt_lock);
    CHECK_EQ(0, put(s, "parent", full, "last"));
    for (int again = 0; again < 2; again++) {
        CHECK(body_at(s, full, PS_MULTI_OFFSET_MAX, body, offsets) && strcmp(body, "last") == 0);
        CHECK_EQ(PS_E_MESSAGE_ILLEGAL, put(s, "parent", full, "no"));
        CHECK_EQ(PS_E_MESSAGE_ILLEGAL,
                 put(s, "parent", "%LMQ%$parent$other,%LMQ%$parent$full", "no"));
        ps_store_free(s);
        s = open_store(root);
    }
    CHECK_EQ(0, put(s, "parent", other, "first"));
    CHECK(body_at(s, other, 0, body, offsets) && strcmp(body, "first") == 0);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

/* A message that finds no room for its properties leaves the offset to the next one. */
static void test_an_offset_that_was_not_used_is_given_again(void) {
    static char props[PS_PROPERTIES_MAX];
    char *root = check_folder(), body[100], offsets[100];
    const char *name = "%LMQ%$parent$one", *head = "INNER_MULTI_DISPATCH\1%LMQ%$parent$one\2K\1";
    ps_error e = {0};
    ps_put_result out = {0};
    ps_store *s = open_store(root);
    CHECK_EQ(0, ps_lights_begin(s, &e));
    ps_topic *t = ps_topic_open(s, "parent", 6, 1, &e);
    CHECK_EQ(0, put(s, "parent", name, "0"));
    memset(props, 'x', sizeof props);
    memcpy(props, head, strlen(head));
    int32_t refused = 0;
    for (int32_t len = PS_PROPERTIES_MAX - 40; len <= PS_PROPERTIES_MAX; len++)
        refused += ps_put(t, 0, 0, "b", 1, props, len, 1, &out) == PS_E_PROPERTIES_SIZE_EXCEEDED;
    CHECK(refused > 0 && refused < 41);
    CHECK_EQ(0, put(s, "parent", name, "after"));
    CHECK(body_at(s, name, 42 - refused, body, offsets) && strcmp(body, "after") == 0);
    ps_store_free(s);
    check_remove(root);
    free(root);
}

int main(void) {
    check_begin();
    test_the_last_offset_is_the_last_message();
    test_an_offset_that_was_not_used_is_given_again();
    test_offsets_beyond();
    test_names_of_what_is_gone_go();
    test_names_are_written_again_beside_puts();
    test_the_oldest_expire_first();
    test_queues_expire_whose_records_have_left_the_log();
    test_power_fails_after_a_file_of_units_is_deleted();
    test_comes_back();
    test_any_damage();
    test_another_log();
    test_refusals();
    test_new_life();
    test_foreign();
    test_news();
    return check_end("light");
}
