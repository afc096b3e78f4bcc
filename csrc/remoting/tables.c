/* What the broker publishes to the core: topics, and pairs of group and topic with subscription and
 * consumer offsets. Topics are made once and kept, since held pulls and statistics point to them;
 * withdrawing one only switches it off. Upstream: TopicConfigManager, ConsumerManager,
 * ConsumerOffsetManager. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "remoting/core.h"

#define FIRST_BUCKETS 64
#define PAIRS_MAX (1 << 20) /* of group and topic; each has some 200 bytes */
#define QUEUES_MAX (PS_QUEUE_ID_MAX + 1)

static uint32_t hash_more(uint32_t h, const uint8_t *text, int32_t len) {
    for (int32_t i = 0; i < len; i++) h = (h ^ text[i]) * 16777619u;
    return h;
}

static uint32_t hash_of(const uint8_t *text, int32_t len) {
    return hash_more(2166136261u, text, len);
}

/* The separator keeps ("ab", "c") and ("a", "bc") apart. */
static uint32_t pair_hash(const uint8_t *group, int32_t group_len, const uint8_t *topic,
                          int32_t topic_len) {
    static const uint8_t at = '@';
    return hash_more(hash_more(hash_of(group, group_len), &at, 1), topic, topic_len);
}

static int no_memory(ps_error *e) {
    return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL,
                   "no memory for the tables, or over a million (group, topic) pairs");
}

/* ---- topics ---- */

ps_topic_entry *ps_core_find_topic(ps_core *c, const uint8_t *name, int32_t len) {
    if (c->co_topic_buckets == 0 || len <= 0) return NULL;
    uint32_t hash = hash_of(name, len);
    ps_topic_entry *t = c->co_topics[hash & (c->co_topic_buckets - 1)];
    while (t != NULL &&
           (t->te_hash != hash || t->te_len != len || memcmp(t->te_name, name, (size_t)len)))
        t = t->te_next;
    return t;
}

static bool grow_topics(ps_core *c) {
    uint32_t count = c->co_topic_buckets ? c->co_topic_buckets * 2 : FIRST_BUCKETS;
    ps_topic_entry **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL) return false;
    for (uint32_t i = 0; i < c->co_topic_buckets; i++) {
        for (ps_topic_entry *t = c->co_topics[i], *next; t != NULL; t = next) {
            next = t->te_next;
            t->te_next = buckets[t->te_hash & (count - 1)];
            buckets[t->te_hash & (count - 1)] = t;
        }
    }
    free(c->co_topics);
    c->co_topics = buckets;
    c->co_topic_buckets = count;
    return true;
}

static ps_topic_entry *make_topic(ps_core *c, const char *name, int32_t len) {
    if (c->co_topic_count >= c->co_topic_buckets && !grow_topics(c)) return NULL;
    ps_topic_entry *t = calloc(1, sizeof *t + (size_t)len + 1);
    if (t == NULL) return NULL;
    t->te_len = len;
    memcpy(t->te_name, name, (size_t)len);
    t->te_hash = hash_of((const uint8_t *)name, len);
    t->te_next = c->co_topics[t->te_hash & (c->co_topic_buckets - 1)];
    c->co_topics[t->te_hash & (c->co_topic_buckets - 1)] = t;
    c->co_topic_count++;
    return t;
}

int ps_core_topic(ps_core *c, const char *name, int32_t len, int32_t read_queues,
                  int32_t write_queues, int32_t perm, int32_t flags, ps_error *e) {
    if (len <= 0 || len > PS_TOPIC_MAX)
        return ps_fail(e, PS_E_TOPIC_ILLEGAL, 0, -1, NULL, "the topic has %d bytes", len);
    if (read_queues < 0 || read_queues > QUEUES_MAX || write_queues < 0 ||
        write_queues > QUEUES_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "topic '%.*s' has %d and %d queues", len,
                       name, read_queues, write_queues);
    ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)name, len);
    if (t == NULL && (t = make_topic(c, name, len)) == NULL) return no_memory(e);
    if (t->te_topic == NULL && (t->te_topic = ps_topic_open(c->co_store, name, len, 1, e)) == NULL)
        return e != NULL && e->code < 0 ? e->code : PS_E_TOPIC_ILLEGAL;
    t->te_read_queues = read_queues;
    t->te_write_queues = write_queues;
    t->te_perm = perm;
    t->te_flags = flags;
    t->te_live = true;
    return 0;
}

void ps_core_forget_topic(ps_core *c, const char *name, int32_t len) {
    ps_topic_entry *t = ps_core_find_topic(c, (const uint8_t *)name, len);
    if (t != NULL) t->te_live = false;
}

/* ---- filters ---- */

ps_filter *ps_filter_ref(ps_filter *f) {
    if (f != NULL) f->fl_refs++;
    return f;
}

void ps_filter_unref(ps_filter *f) {
    if (f == NULL || --f->fl_refs > 0) return;
    ps_sql92_free(f->fl_sql);
    free(f);
}

static int by_number(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* In order, since ps_read looks for one among many by halves. */
static void sort_hashes(ps_filter *f) {
    qsort(f->fl_hashes, (size_t)f->fl_tag_count, sizeof f->fl_hashes[0], by_number);
}

static ps_filter *new_filter(int32_t count, int32_t text_len) {
    ps_filter *f = malloc(sizeof *f + (size_t)count * sizeof f->fl_hashes[0] + (size_t)text_len);
    if (f != NULL) *f = (ps_filter){NULL, 1, count, text_len};
    return f;
}

ps_filter *ps_filter_of_tags(const char *tags, int32_t tags_len, int32_t count) {
    ps_filter *f = new_filter(count, 0);
    int32_t n = 0, at = 0;
    for (; f != NULL && n < count && at < tags_len; n++) {
        int32_t len = (int32_t)strnlen(tags + at, (size_t)(tags_len - at));
        f->fl_hashes[n] = ps_java_hash(0, (const uint8_t *)tags + at, len);
        at += len + 1;
    }
    if (f == NULL) return NULL;
    f->fl_tag_count = n;
    sort_hashes(f);
    return f;
}

static bool next_tag(const uint8_t *text, int32_t len, int32_t *at, ps_slice *out) {
    while (*at <= len) {
        int32_t from = *at, to = from;
        while (to < len && !(text[to] == '|' && to + 1 < len && text[to + 1] == '|')) to++;
        *at = to < len ? to + 2 : len + 1;
        while (from < to && text[from] <= ' ') from++;
        while (to > from && text[to - 1] <= ' ') to--;
        if (to > from) {
            *out = (ps_slice){text + from, to - from};
            return true;
        }
    }
    return false;
}

static ps_filter *filter_of_sql(const char *text, int32_t len, ps_error *e) {
    ps_sql92 *sql = ps_sql92_compile(text, len, e);
    ps_filter *f = sql != NULL ? new_filter(0, len) : NULL;
    if (f == NULL) {
        ps_sql92_free(sql);
        return NULL;
    }
    f->fl_sql = sql;
    memcpy(f->fl_hashes, text, (size_t)len);
    return f;
}

ps_filter *ps_filter_of_text(const uint8_t *text, int32_t len, bool sql) {
    ps_slice tag;
    int32_t count = 0, at = 0;
    if (sql) return filter_of_sql((const char *)text, len, NULL);
    while (next_tag(text, len, &at, &tag)) count++;
    if (count == 1 && (at = 0, next_tag(text, len, &at, &tag)) && ps_slice_is(tag, "*")) count = 0;
    ps_filter *f = new_filter(count, len);
    if (f == NULL) return NULL;
    at = 0;
    for (int32_t i = 0; i < count && next_tag(text, len, &at, &tag); i++)
        f->fl_hashes[i] = ps_java_hash(0, tag.data, tag.len);
    sort_hashes(f);
    if (len > 0) memcpy(f->fl_hashes + count, text, (size_t)len);
    return f;
}

/* ---- pairs ---- */

ps_pair *ps_core_find_pair(ps_core *c, const uint8_t *group, int32_t group_len,
                           const uint8_t *topic, int32_t topic_len) {
    if (c->co_pair_buckets == 0) return NULL;
    uint32_t hash = pair_hash(group, group_len, topic, topic_len);
    ps_pair *p = c->co_pairs[hash & (c->co_pair_buckets - 1)];
    while (p != NULL &&
           (p->pr_hash != hash || p->pr_group_len != group_len || p->pr_topic_len != topic_len ||
            memcmp(p->pr_names, group, (size_t)group_len) != 0 ||
            memcmp(p->pr_names + group_len, topic, (size_t)topic_len) != 0))
        p = p->pr_next;
    return p;
}

static bool grow_pairs(ps_core *c) {
    uint32_t count = c->co_pair_buckets ? c->co_pair_buckets * 2 : FIRST_BUCKETS;
    ps_pair **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL) return false;
    for (ps_pair *p = c->co_all_pairs; p != NULL; p = p->pr_all) {
        p->pr_next = buckets[p->pr_hash & (count - 1)];
        buckets[p->pr_hash & (count - 1)] = p;
    }
    free(c->co_pairs);
    c->co_pairs = buckets;
    c->co_pair_buckets = count;
    return true;
}

static ps_pair *pair_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                        int32_t topic_len) {
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    if (p != NULL) return p;
    if (c->co_pair_count >= PAIRS_MAX) return NULL;
    if (c->co_pair_count >= c->co_pair_buckets && !grow_pairs(c)) return NULL;
    p = calloc(1, sizeof *p + (size_t)group_len + (size_t)topic_len);
    if (p == NULL) return NULL;
    p->pr_group_len = group_len;
    p->pr_topic_len = topic_len;
    memcpy(p->pr_names, group, (size_t)group_len);
    memcpy(p->pr_names + group_len, topic, (size_t)topic_len);
    p->pr_hash = pair_hash((const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    p->pr_next = c->co_pairs[p->pr_hash & (c->co_pair_buckets - 1)];
    c->co_pairs[p->pr_hash & (c->co_pair_buckets - 1)] = p;
    p->pr_all = c->co_all_pairs;
    p->pr_all_link = &c->co_all_pairs;
    if (p->pr_all != NULL) p->pr_all->pr_all_link = &p->pr_all;
    c->co_all_pairs = p;
    c->co_pair_count++;
    return p;
}

/* Clients make up names at will: a pair that nothing is known of, nothing points to and nothing was
 * got for is taken out. */
static void drop_if_empty(ps_core *c, ps_pair *p) {
    if (p->pr_flags != 0 || p->pr_mark_count > 0 || p->pr_holds > 0 || p->pr_gets > 0) return;
    ps_pair **link = &c->co_pairs[p->pr_hash & (c->co_pair_buckets - 1)];
    while (*link != p) link = &(*link)->pr_next;
    *link = p->pr_next;
    *p->pr_all_link = p->pr_all;
    if (p->pr_all != NULL) p->pr_all->pr_all_link = p->pr_all_link;
    c->co_pair_count--;
    ps_filter_unref(p->pr_filter);
    ps_filter_unref(p->pr_own);
    free(p);
}

static void withdraw(ps_core *c, ps_pair *p) {
    p->pr_flags = 0;
    drop_if_empty(c, p);
}

static int check_names(int32_t group_len, int32_t topic_len, ps_error *e) {
    if (group_len > 0 && group_len <= PS_TOPIC_MAX && topic_len > 0 && topic_len <= PS_TOPIC_MAX)
        return 0;
    return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "a group of %d bytes and a topic of %d",
                   group_len, topic_len);
}

int ps_core_subscription(ps_core *c, const char *group, int32_t group_len, const char *topic,
                         int32_t topic_len, int32_t flags, const char *tags, int32_t tags_len,
                         int32_t tag_count, const char *sql, int32_t sql_len, int64_t sub_version,
                         ps_error *e) {
    ps_error mine = {0};
    int code = check_names(group_len, topic_len, e);
    if (code < 0) return code;
    ps_pair *p = pair_of(c, group, group_len, topic, topic_len);
    ps_filter *f = sql != NULL     ? filter_of_sql(sql, sql_len, &mine)
                   : tag_count > 0 ? ps_filter_of_tags(tags, tags_len, tag_count)
                                   : NULL;
    if (mine.code < 0 || p == NULL || ((tag_count > 0 || sql != NULL) && f == NULL)) {
        ps_filter_unref(f);
        if (p != NULL) drop_if_empty(c, p);
        if (mine.code == 0) return no_memory(e);
        if (e != NULL) *e = mine;
        return mine.code;
    }
    ps_filter_unref(p->pr_filter);
    p->pr_filter = f;
    p->pr_flags = flags;
    p->pr_sub_version = sub_version;
    return 0;
}

void ps_core_forget_subscription(ps_core *c, const char *group, int32_t group_len,
                                 const char *topic, int32_t topic_len) {
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    if (p != NULL) withdraw(c, p);
}

void ps_core_forget_group(ps_core *c, const char *group, int32_t group_len) {
    for (ps_pair *p = c->co_all_pairs, *next; p != NULL; p = next) {
        next = p->pr_all;
        if (p->pr_group_len == group_len && memcmp(p->pr_names, group, (size_t)group_len) == 0)
            withdraw(c, p);
    }
}

/* ---- consumer offsets ---- */

/* Where the queue's mark is or would be. Most groups have queues 0, 1, 2, ... and so each mark at
 * its own place; but a client may name any, and one of 65535 must not cost as many marks. */
static int32_t mark_place(const ps_pair *p, int32_t queue_id) {
    int32_t low = 0, high = p->pr_mark_count;
    if (queue_id < high && p->pr_marks[queue_id].mk_queue == queue_id) return queue_id;
    while (low < high) {
        int32_t mid = low + (high - low) / 2;
        if (p->pr_marks[mid].mk_queue < queue_id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

ps_mark *ps_pair_mark(ps_pair *p, int32_t queue_id, bool make) {
    if (queue_id < 0 || queue_id >= QUEUES_MAX) return NULL;
    int32_t at = mark_place(p, queue_id);
    if (at < p->pr_mark_count && p->pr_marks[at].mk_queue == queue_id) return &p->pr_marks[at];
    if (!make) return NULL;
    if (p->pr_mark_count == p->pr_mark_room) {
        int32_t room = p->pr_mark_room ? 2 * p->pr_mark_room : 4;
        ps_mark *marks = realloc(p->pr_marks, (size_t)room * sizeof *marks);
        if (marks == NULL) return NULL;
        p->pr_marks = marks;
        p->pr_mark_room = room;
    }
    ps_mark *m = &p->pr_marks[at];
    memmove(m + 1, m, (size_t)(p->pr_mark_count - at) * sizeof *m);
    *m = (ps_mark){queue_id, -1, -1, false};
    p->pr_mark_count++;
    return m;
}

void ps_pair_commit(ps_pair *p, int32_t queue_id, int64_t offset) {
    ps_mark *m = ps_pair_mark(p, queue_id, true);
    if (m == NULL || m->mk_reset >= 0 || m->mk_offset == offset) return;
    m->mk_offset = offset;
    m->mk_changed = p->pr_changed = true;
}

static int mark_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                   int32_t topic_len, int32_t queue_id, int64_t offset, ps_pair **pair,
                   ps_mark **out, ps_error *e) {
    int code = check_names(group_len, topic_len, e);
    if (code < 0) return code;
    if (queue_id < 0 || queue_id >= QUEUES_MAX || offset < 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, offset, NULL, "queue %d, offset %lld", queue_id,
                       (long long)offset);
    *pair = pair_of(c, group, group_len, topic, topic_len);
    *out = *pair != NULL ? ps_pair_mark(*pair, queue_id, true) : NULL;
    return *out != NULL ? 0 : no_memory(e);
}

int ps_core_commit(ps_core *c, const char *group, int32_t group_len, const char *topic,
                   int32_t topic_len, int32_t queue_id, int64_t offset, ps_error *e) {
    ps_pair *p = NULL;
    ps_mark *m = NULL;
    int code = mark_of(c, group, group_len, topic, topic_len, queue_id, offset, &p, &m, e);
    if (code < 0) return code;
    if (m->mk_reset >= 0) return 1;
    ps_pair_commit(p, queue_id, offset);
    return 0;
}

int ps_core_reset(ps_core *c, const char *group, int32_t group_len, const char *topic,
                  int32_t topic_len, int32_t queue_id, int64_t offset, ps_error *e) {
    ps_pair *p = NULL;
    ps_mark *m = NULL;
    int code = mark_of(c, group, group_len, topic, topic_len, queue_id, offset, &p, &m, e);
    if (code < 0) return code;
    m->mk_reset = -1;
    ps_pair_commit(p, queue_id, offset);
    m->mk_reset = offset;
    ps_core_wake_pair(c, p, queue_id);
    return 0;
}

int64_t ps_core_offset(ps_core *c, const char *group, int32_t group_len, const char *topic,
                       int32_t topic_len, int32_t queue_id) {
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    ps_mark *m = p != NULL ? ps_pair_mark(p, queue_id, false) : NULL;
    return m != NULL ? m->mk_offset : -1;
}

int64_t ps_core_offsets(ps_core *c, int32_t changed, ps_offset_row *out, int64_t room) {
    int64_t n = 0;
    for (ps_pair *p = c->co_all_pairs; p != NULL; p = p->pr_all) {
        if (changed && !p->pr_changed) continue;
        bool left = false;
        for (int32_t i = 0; i < p->pr_mark_count; i++) {
            ps_mark *m = &p->pr_marks[i];
            if (m->mk_offset < 0 || (changed && !m->mk_changed)) continue;
            if (n++ >= room) {
                left = true;
                continue;
            }
            out[n - 1] = (ps_offset_row){p->pr_names,     p->pr_names + p->pr_group_len,
                                         p->pr_group_len, p->pr_topic_len,
                                         m->mk_queue,     m->mk_offset};
            if (changed) m->mk_changed = false;
        }
        if (changed) p->pr_changed = left;
    }
    return n;
}

void ps_core_forget_offsets(ps_core *c, const char *group, int32_t group_len, const char *topic,
                            int32_t topic_len) {
    for (ps_pair *p = c->co_all_pairs, *next; p != NULL; p = next) {
        next = p->pr_all;
        if (group != NULL &&
            (p->pr_group_len != group_len || memcmp(p->pr_names, group, (size_t)group_len) != 0))
            continue;
        if (topic != NULL && (p->pr_topic_len != topic_len ||
                              memcmp(p->pr_names + p->pr_group_len, topic, (size_t)topic_len) != 0))
            continue;
        free(p->pr_marks);
        p->pr_marks = NULL;
        p->pr_mark_count = p->pr_mark_room = 0;
        p->pr_changed = false;
        drop_if_empty(c, p);
    }
}

/* ---- statistics ---- */

int64_t ps_core_statistics(ps_core *c, ps_stat_row *out, int64_t room) {
    int64_t n = 0;
    for (uint32_t i = 0; i < c->co_topic_buckets; i++) {
        for (ps_topic_entry *t = c->co_topics[i]; t != NULL; t = t->te_next) {
            int64_t puts = t->te_puts, bytes = t->te_bytes;
            if (t->te_topic !=
                NULL) { /* a delayed message counts when it comes, too: as upstream */
                puts += atomic_load_explicit(&t->te_topic->tp_delivered, memory_order_relaxed);
                bytes +=
                    atomic_load_explicit(&t->te_topic->tp_delivered_bytes, memory_order_relaxed);
            }
            if (puts == 0) continue;
            if (n < room) out[n] = (ps_stat_row){t->te_name, NULL, t->te_len, 0, puts, bytes};
            n++;
        }
    }
    for (ps_pair *p = c->co_all_pairs; p != NULL; p = p->pr_all) {
        if (p->pr_gets == 0) continue;
        if (n < room)
            out[n] = (ps_stat_row){p->pr_names + p->pr_group_len,
                                   p->pr_names,
                                   p->pr_topic_len,
                                   p->pr_group_len,
                                   p->pr_gets,
                                   p->pr_bytes};
        n++;
    }
    return n;
}

void ps_core_get_totals(ps_core *c, ps_core_totals *out) {
    *out = c->co_totals;
    out->held = c->co_heap_count;
}
