/* Pairs of group and topic: the subscription that the broker publishes, and the consumer offsets.
 * Upstream: ConsumerManager, ConsumerOffsetManager. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "core/core.h"
#include "core/lock.h"
#include "format/multi.h"
#include "format/utf8.h"
#include "tables/lightoffsets.h"
#include "tables/tables.h"

#define QUEUES_MAX (PS_QUEUE_ID_MAX + 1)

/* The separator keeps ("ab", "c") and ("a", "bc") apart. */
static uint32_t pair_hash(const uint8_t *group, int32_t group_len, const uint8_t *topic,
                          int32_t topic_len) {
    static const uint8_t at = '@';
    return ps_hash_more(ps_hash_more(ps_hash_of(group, group_len), &at, 1), topic, topic_len);
}

int ps_offsets_refused(const ps_core *c, ps_error *e) {
    return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL,
                   "no memory for another consumer offset, or more than %" PRId64
                   " of them (maxOffsetsPerBroker)",
                   c->co_tables.tc_marks.ms_max);
}

/* ---- pairs ---- */

static ps_slice group_of(const ps_pair *p) {
    return ps_slice_from(p->pr_names, p->pr_group_len);
}

static ps_slice topic_of(const ps_pair *p) {
    return ps_slice_from(p->pr_names + p->pr_group_len, p->pr_topic_len);
}

static ps_marks *marks_of(const ps_pair *p) {
    return &p->pr_core->co_tables.tc_marks;
}

/* Whether the offset of that queue is a row of its own. */
static bool is_row(const ps_pair *p, int32_t queue_id) {
    return p->pr_light && queue_id == 0;
}

static bool is_light(const char *topic, int32_t len) {
    return ps_name_is_lmq((const uint8_t *)topic, len);
}

ps_pair *ps_pairs_each(const ps_core *c, const ps_pair *p) {
    ps_pair *next = p == NULL ? c->co_tables.tc_all_pairs : p->pr_all;
    return next != NULL || (p != NULL && p->pr_light) ? next : c->co_tables.tc_light_pairs;
}

ps_pair *ps_core_find_pair(ps_core *c, const uint8_t *group, int32_t group_len,
                           const uint8_t *topic, int32_t topic_len) {
    ps_pair *p =
        ps_chains_first(&c->co_tables.tc_pairs, pair_hash(group, group_len, topic, topic_len));
    while (p != NULL && (p->pr_group_len != group_len || p->pr_topic_len != topic_len ||
                         memcmp(p->pr_names, group, (size_t)group_len) != 0 ||
                         memcmp(p->pr_names + group_len, topic, (size_t)topic_len) != 0))
        p = ps_chains_next(p);
    return p;
}

/* Made when there is none. NULL: no memory, or, as a client asks for it, too many. */
static ps_pair *pair_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                        int32_t topic_len, bool asked) {
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    if (p != NULL) return p;
    ps_chains *pairs = &c->co_tables.tc_pairs;
    int64_t most = c->co_tables.tc_marks.ms_max;
    if ((asked && most > 0 && pairs->count >= most) || !ps_chains_reserve(pairs)) return NULL;
    p = calloc(1, sizeof *p + (size_t)group_len + (size_t)topic_len);
    if (p == NULL) return NULL;
    p->pr_group_len = group_len;
    p->pr_topic_len = topic_len;
    p->pr_core = c;
    p->pr_light = is_light(topic, topic_len);
    memcpy(p->pr_names, group, (size_t)group_len);
    memcpy(p->pr_names + group_len, topic, (size_t)topic_len);
    ps_chains_add(&c->co_tables.tc_pairs, p,
                  pair_hash((const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len));
    ps_pair **all = p->pr_light ? &c->co_tables.tc_light_pairs : &c->co_tables.tc_all_pairs;
    c->co_tables.tc_light_count += p->pr_light;
    p->pr_all = *all;
    p->pr_all_link = all;
    if (p->pr_all != NULL) p->pr_all->pr_all_link = &p->pr_all;
    *all = p;
    return p;
}

ps_pair *ps_core_pair_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                         int32_t topic_len) {
    return pair_of(c, group, group_len, topic, topic_len, true);
}

/* ---- what has changed ---- */

static void list_changed(ps_pair *p) {
    ps_marks *t = marks_of(p);
    if (p->pr_changed_link != NULL) return;
    p->pr_round = t->ms_round;
    p->pr_changed_next = NULL;
    p->pr_changed_link = t->ms_changed_end;
    *t->ms_changed_end = p;
    t->ms_changed_end = &p->pr_changed_next;
}

static void unlist_changed(ps_pair *p) {
    if (p->pr_changed_link == NULL) return;
    *p->pr_changed_link = p->pr_changed_next;
    if (p->pr_changed_next != NULL)
        p->pr_changed_next->pr_changed_link = p->pr_changed_link;
    else
        marks_of(p)->ms_changed_end = p->pr_changed_link;
    p->pr_changed_link = NULL;
}

/* Nothing of it is to be taken any more. */
static void forget_changes(ps_pair *p) {
    unlist_changed(p);
    if (marks_of(p)->ms_taken == p) marks_of(p)->ms_taken = NULL;
}

static void free_marks(ps_pair *p) {
    forget_changes(p);
    for (int32_t i = 0; i < p->pr_mark_count; i++)
        marks_of(p)->ms_count -= !is_row(p, p->pr_marks[i].mk_queue);
    free(p->pr_marks);
    p->pr_marks = NULL;
    p->pr_mark_count = p->pr_mark_room = 0;
}

/* Nothing is committed, and no reset is to be told. */
static bool has_no_offsets(const ps_pair *p) {
    for (int32_t i = 0; i < p->pr_mark_count; i++)
        if (p->pr_marks[i].mk_offset >= 0 || p->pr_marks[i].mk_reset >= 0) return false;
    return true;
}

/* Clients can invent names: a pair without data, pointers or messages delivered is removed. */
static void drop_if_empty(ps_core *c, ps_pair *p) {
    if (p->pr_flags != 0 || p->pr_parked > 0 || p->pr_pop_open > 0 || ps_pair_got(p).messages > 0 ||
        !has_no_offsets(p))
        return;
    free_marks(p);
    c->co_tables.tc_light_count -= p->pr_light;
    ps_chains_remove(&c->co_tables.tc_pairs, p);
    *p->pr_all_link = p->pr_all;
    if (p->pr_all != NULL) p->pr_all->pr_all_link = p->pr_all_link;
    ps_filter_unref(p->pr_filter);
    ps_filter_unref(p->pr_own);
    ps_core_bury(c, p);
}

static void withdraw_pair(ps_core *c, ps_pair *p) {
    p->pr_flags = 0;
    drop_if_empty(c, p);
}

static int check_names(int32_t group_len, int32_t topic_len, ps_error *e) {
    if (group_len > 0 && group_len <= PS_TOPIC_MAX && topic_len > 0 && topic_len <= PS_TOPIC_MAX)
        return 0;
    return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                   "a group of %d bytes or a topic of %d: from 1 to %d are allowed", group_len,
                   topic_len, PS_TOPIC_MAX);
}

int ps_core_subscription(ps_core *c, const char *group, int32_t group_len, const char *topic,
                         int32_t topic_len, int32_t flags, const char *tags, int32_t tags_len,
                         int32_t tag_count, const char *sql, int32_t sql_len, int64_t sub_version,
                         ps_error *e) {
    PS_CORE_HELD(c);
    ps_error mine = {0};
    int code = check_names(group_len, topic_len, e);
    if (code < 0) return code;
    ps_pair *p = ps_core_pair_of(c, group, group_len, topic, topic_len);
    ps_filter *f = sql != NULL     ? ps_filter_of_sql(sql, sql_len, &mine)
                   : tag_count > 0 ? ps_filter_of_tags(tags, tags_len, tag_count)
                                   : NULL;
    if (mine.code < 0 || p == NULL || ((tag_count > 0 || sql != NULL) && f == NULL)) {
        ps_filter_unref(f);
        if (p != NULL) drop_if_empty(c, p);
        if (mine.code == 0) return ps_offsets_refused(c, e);
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
    PS_CORE_HELD(c);
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    if (p != NULL) withdraw_pair(c, p);
}

void ps_core_forget_group(ps_core *c, const char *group, int32_t group_len) {
    PS_CORE_HELD(c);
    for (ps_pair *p = ps_pairs_each(c, NULL), *next; p != NULL; p = next) {
        next = ps_pairs_each(c, p);
        if (p->pr_group_len == group_len && memcmp(p->pr_names, group, (size_t)group_len) == 0)
            withdraw_pair(c, p);
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
    if (!PS_GROW(p->pr_marks, p->pr_mark_room, p->pr_mark_count + 1, p->pr_light ? 1 : 4))
        return NULL;
    ps_mark *m = &p->pr_marks[at];
    memmove(m + 1, m, (size_t)(p->pr_mark_count - at) * sizeof *m);
    *m = (ps_mark){.mk_queue = queue_id, .mk_offset = -1, .mk_reset = -1, .mk_pulled = -1};
    p->pr_mark_count++;
    marks_of(p)->ms_count += !is_row(p, queue_id);
    return m;
}

static bool may_have(ps_marks *t, int32_t count) {
    if (t->ms_max == 0 || t->ms_count + count <= t->ms_max) return true;
    t->ms_refused++;
    return false;
}

bool ps_pair_may_have(ps_pair *p, int32_t count) {
    return may_have(marks_of(p), count);
}

ps_mark *ps_pair_mark_asked(ps_pair *p, int32_t queue_id) {
    ps_mark *m = ps_pair_mark(p, queue_id, false);
    if (m != NULL || !ps_pair_may_have(p, 1)) return m;
    return ps_pair_mark(p, queue_id, true);
}

bool ps_pair_marks(ps_pair *p, int32_t count) {
    int32_t from = p->pr_mark_count, beyond = from - mark_place(p, count), room = count + beyond;
    if (from - beyond == count) return true;
    if (!PS_GROW(p->pr_marks, p->pr_mark_room, room, room)) return false;
    ps_mark *all = p->pr_marks;
    memmove(all + count, all + from - beyond, (size_t)beyond * sizeof *all);
    from -= beyond;
    for (int32_t queue = count - 1; queue >= 0; queue--) { /* from the last, each moves once */
        if (from > 0 && all[from - 1].mk_queue == queue)
            all[queue] = all[--from];
        else
            all[queue] =
                (ps_mark){.mk_queue = queue, .mk_offset = -1, .mk_reset = -1, .mk_pulled = -1};
    }
    marks_of(p)->ms_count += room - p->pr_mark_count;
    p->pr_mark_count = room;
    return true;
}

int64_t ps_pair_offset(ps_pair *p, int32_t queue_id) {
    if (is_row(p, queue_id)) return ps_light_offset_get(p->pr_core, group_of(p), topic_of(p));
    const ps_mark *m = ps_pair_mark(p, queue_id, false);
    return m != NULL ? m->mk_offset : -1;
}

void ps_pair_commit(ps_pair *p, int32_t queue_id, int64_t offset) {
    ps_mark *m = ps_pair_mark(p, queue_id, true);
    if (m == NULL || m->mk_reset >= 0 || m->mk_offset == offset) return;
    if (is_row(p, queue_id)) {
        ps_light_offset_set(p->pr_core, group_of(p), topic_of(p), offset);
        return;
    }
    m->mk_offset = offset;
    m->mk_changed = true;
    list_changed(p);
}

void ps_pair_pulled(ps_pair *p, int32_t queue_id, int64_t next) {
    ps_mark *m = ps_pair_mark_asked(p, queue_id);
    if (m != NULL) m->mk_pulled = next;
}

static int check_place(int32_t group_len, int32_t topic_len, int32_t queue_id, int64_t offset,
                       ps_error *e) {
    int code = check_names(group_len, topic_len, e);
    if (code < 0) return code;
    if (queue_id >= 0 && queue_id < QUEUES_MAX && offset >= 0) return 0;
    return ps_fail(e, PS_E_ARGUMENT, 0, offset, NULL,
                   "queue %d is not from 0 to %d, or offset %lld is negative", queue_id,
                   QUEUES_MAX - 1, (long long)offset);
}

static int mark_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                   int32_t topic_len, int32_t queue_id, ps_pair **pair, ps_mark **out,
                   ps_error *e) {
    int code = check_place(group_len, topic_len, queue_id, 0, e);
    if (code < 0) return code;
    *pair = pair_of(c, group, group_len, topic, topic_len, false);
    *out = *pair != NULL ? ps_pair_mark(*pair, queue_id, true) : NULL;
    return *out != NULL ? 0 : ps_offsets_refused(c, e);
}

int ps_pair_hold(ps_core *c, const char *group, int32_t group_len, const char *topic,
                 int32_t topic_len, int32_t queue_id, ps_pair **out, ps_error *e) {
    ps_mark *m = NULL;
    int code = mark_of(c, group, group_len, topic, topic_len, queue_id, out, &m, e);
    if (code == 0) (*out)->pr_pop_open++;
    return code;
}

void ps_pair_let_go(ps_core *c, ps_pair *p) {
    if (--p->pr_pop_open > 0 || !has_no_offsets(p)) return;
    free_marks(p);
    drop_if_empty(c, p);
}

int ps_core_commit(ps_core *c, const char *group, int32_t group_len, const char *topic,
                   int32_t topic_len, int32_t queue_id, int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    ps_mark *m = NULL;
    int code = check_place(group_len, topic_len, queue_id, offset, e);
    if (code == 0 && p == NULL && queue_id == 0 && is_light(topic, topic_len))
        return ps_light_offset_set(c, ps_slice_from(group, group_len),
                                   ps_slice_from(topic, topic_len), offset)
                   ? 0
                   : ps_offsets_refused(c, e);
    if (code == 0) code = mark_of(c, group, group_len, topic, topic_len, queue_id, &p, &m, e);
    if (code < 0) return code;
    if (m->mk_reset >= 0) return 1;
    ps_pair_commit(p, queue_id, offset);
    return 0;
}

/* The rows of a block: how many of them were refused, or an error. */
static int64_t load_block(ps_core *c, const ps_offset_block *b, ps_error *e) {
    bool named = ps_utf8_valid((const uint8_t *)b->group, (int64_t)b->group_len + b->topic_len);
    int64_t refused = 0;
    for (const uint8_t *row = b->rows; row < b->end; row += PS_OFFSET_ROW_BYTES) {
        ps_error own;
        int64_t offset;
        int32_t queue_id = ps_offset_row_get(row, &offset);
        int code = named ? ps_core_commit(c, b->group, b->group_len, b->topic, b->topic_len,
                                          queue_id, offset, &own)
                         : ps_fail(&own, PS_E_ARGUMENT, 0, -1, NULL,
                                   "the name of a group or of a topic is not UTF-8");
        if (code < 0 && (code != PS_E_ARGUMENT || refused++ == 0)) *e = own;
        if (code < 0 && code != PS_E_ARGUMENT) return code;
    }
    return refused;
}

/* What a look for rows of the next blocks begins with is fetched while others are loaded. */
static void fetch_blocks(ps_core *c, const ps_offset_block *some, int32_t count) {
    for (int entry = 0; entry < 2; entry++)
        for (int32_t i = 0; i < count; i++)
            ps_light_offset_fetch(c, ps_slice_from(some[i].group, some[i].group_len),
                                  ps_slice_from(some[i].topic, some[i].topic_len), entry != 0);
}

void ps_core_expect_offsets(ps_core *c, uint32_t count) {
    PS_CORE_HELD(c);
    ps_light_offsets_expect(c, count);
}

static int64_t load_blocks(ps_core *c, const uint8_t *blocks, int64_t len, ps_error *e) {
    int64_t refused = 0;
    ps_offset_block some[PS_POOL_AHEAD];
    ps_error own;
    for (const uint8_t *at = blocks, *end = blocks + len; at < end;) {
        int32_t n = 0;
        const uint8_t *next = at;
        for (; n < PS_POOL_AHEAD && ps_offset_block_get(next, end, &some[n]); next = some[n++].end)
            ;
        if (n == 0)
            return ps_fail(e, PS_E_ARGUMENT, 0, at - blocks, NULL, "offsets end in the middle");
        fetch_blocks(c, some, n);
        for (int32_t i = 0; i < n; i++) {
            int64_t more = load_block(c, &some[i], &own);
            if (more < 0 || (more > 0 && refused == 0)) *e = own;
            if (more < 0) return more;
            refused += more;
        }
        at = next;
    }
    return refused;
}

int64_t ps_core_load_offsets(ps_core *c, const uint8_t *blocks, int64_t len, ps_error *e) {
    c->co_tables.tc_light.ot_loading = true;
    int64_t refused = load_blocks(c, blocks, len, e);
    c->co_tables.tc_light.ot_loading = false;
    return refused;
}

int64_t ps_core_offset(ps_core *c, const char *group, int32_t group_len, const char *topic,
                       int32_t topic_len, int32_t queue_id) {
    PS_CORE_HELD(c);
    if (queue_id == 0 && is_light(topic, topic_len))
        return ps_light_offset_get(c, ps_slice_from(group, group_len),
                                   ps_slice_from(topic, topic_len));
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    return p != NULL ? ps_pair_offset(p, queue_id) : -1;
}

int64_t ps_core_pulled(ps_core *c, const char *group, int32_t group_len, const char *topic,
                       int32_t topic_len, int32_t queue_id) {
    PS_CORE_HELD(c);
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    const ps_mark *m = p != NULL ? ps_pair_mark(p, queue_id, false) : NULL;
    int64_t offset = ps_core_offset(c, group, group_len, topic, topic_len, queue_id);
    return m != NULL && m->mk_pulled > offset ? m->mk_pulled : offset;
}

/* The next pair of the round; NULL: there is none. */
static ps_pair *next_changed(ps_marks *t) {
    if (t->ms_taken != NULL) return t->ms_taken;
    ps_pair *p = t->ms_changed;
    if (p == NULL || p->pr_round >= t->ms_round) return NULL;
    unlist_changed(p); /* what changes from here on lists it again */
    t->ms_taken = p;
    t->ms_taken_queue = 0;
    return p;
}

int64_t ps_core_take_offsets(ps_core *c, int32_t begin, ps_offset_row *out, int64_t room) {
    PS_CORE_HELD(c);
    ps_marks *t = &c->co_tables.tc_marks;
    int64_t n = 0;
    if (begin) {
        t->ms_round++;
        ps_light_offsets_begin(c);
    }
    for (ps_pair *p; n < room && (p = next_changed(t)) != NULL;) {
        int32_t i = mark_place(p, t->ms_taken_queue);
        for (; i < p->pr_mark_count && n < room; i++) {
            ps_mark *m = &p->pr_marks[i];
            t->ms_taken_queue = m->mk_queue + 1;
            if (m->mk_offset < 0 || !m->mk_changed) continue;
            out[n++] = (ps_offset_row){p->pr_names,     p->pr_names + p->pr_group_len,
                                       p->pr_group_len, p->pr_topic_len,
                                       m->mk_queue,     m->mk_offset};
            m->mk_changed = false;
        }
        if (i == p->pr_mark_count) t->ms_taken = NULL;
    }
    return n + ps_light_offsets_take(c, out + n, room - n);
}

int32_t ps_core_may_commit(ps_core *c, const char *group, int32_t group_len, const char *topic,
                           int32_t topic_len, int32_t queue_id) {
    PS_CORE_HELD(c);
    ps_pair *p =
        ps_core_find_pair(c, (const uint8_t *)group, group_len, (const uint8_t *)topic, topic_len);
    if (p != NULL && ps_pair_mark(p, queue_id, false) != NULL) return 1;
    if (ps_core_offset(c, group, group_len, topic, topic_len, queue_id) >= 0) return 1;
    return may_have(&c->co_tables.tc_marks, 1);
}

int64_t ps_core_pair_count(ps_core *c) {
    PS_CORE_HELD(c);
    const ps_core_tables *t = &c->co_tables;
    return (int64_t)t->tc_pairs.count - t->tc_light_count + t->tc_light.ot_rows.pl_count;
}

int64_t ps_core_offsets_refused(ps_core *c) {
    PS_CORE_HELD(c);
    int64_t n = c->co_tables.tc_marks.ms_refused;
    c->co_tables.tc_marks.ms_refused = 0;
    return n;
}

static bool is_of(const ps_pair *p, const char *group, int32_t group_len, const char *topic,
                  int32_t topic_len) {
    return (group == NULL || (p->pr_group_len == group_len &&
                              memcmp(p->pr_names, group, (size_t)group_len) == 0)) &&
           (topic == NULL ||
            (p->pr_topic_len == topic_len &&
             memcmp(p->pr_names + p->pr_group_len, topic, (size_t)topic_len) == 0));
}

/* The block of a pair, if there is room; returns how long it is, 0 without offsets. */
static int64_t put_block(const ps_pair *p, bool names_only, uint8_t *out, int64_t room) {
    int32_t rows = 0;
    for (int32_t i = 0; i < p->pr_mark_count; i++) rows += p->pr_marks[i].mk_offset >= 0;
    if (rows == 0) return 0;
    if (names_only) rows = 0;
    int32_t head[3] = {p->pr_group_len, p->pr_topic_len, rows};
    int64_t names = (int64_t)head[0] + head[1];
    int64_t size = (int64_t)sizeof head + names + (int64_t)rows * PS_OFFSET_ROW_BYTES;
    if (size > room) return size;
    memcpy(out, head, sizeof head);
    out += sizeof head;
    memcpy(out, p->pr_names, (size_t)names);
    out += names;
    for (int32_t i = 0; i < p->pr_mark_count && rows > 0; i++) {
        const ps_mark *m = &p->pr_marks[i];
        if (m->mk_offset < 0) continue;
        out = ps_offset_row_put(out, m->mk_queue, m->mk_offset);
    }
    return size;
}

int64_t ps_core_offsets_of(ps_core *c, const char *group, int32_t group_len, const char *topic,
                           int32_t topic_len, int32_t names_only, uint8_t *out, int64_t room) {
    PS_CORE_HELD(c);
    int64_t size = 0;
    ps_pair *p = names_only == 2 ? c->co_tables.tc_all_pairs : ps_pairs_each(c, NULL);
    for (; p != NULL; p = names_only == 2 ? p->pr_all : ps_pairs_each(c, p)) {
        if (!is_of(p, group, group_len, topic, topic_len)) continue;
        int64_t left = size < room ? room - size : 0;
        size += put_block(p, names_only != 0, left > 0 ? out + size : out, left);
    }
    if (names_only == 2 || (topic != NULL && !is_light(topic, topic_len))) return size;
    int64_t left = size < room ? room - size : 0;
    return size + ps_light_offsets_put(c, ps_slice_from(group, group_len),
                                       ps_slice_from(topic, topic_len), names_only != 0,
                                       left > 0 ? out + size : out, left);
}

/* What is in flight stays counted. */
static void clear_marks(ps_pair *p) {
    for (int32_t i = 0; i < p->pr_mark_count; i++) {
        ps_mark *m = &p->pr_marks[i];
        m->mk_offset = m->mk_reset = m->mk_pulled = -1;
        m->mk_changed = false;
    }
    forget_changes(p);
}

static void forget_offsets(ps_core *c, ps_pair *p) {
    if (p->pr_pop_open > 0)
        clear_marks(p);
    else
        free_marks(p);
    ps_pair_count_end(c, p);
    drop_if_empty(c, p);
}

void ps_core_forget_offsets(ps_core *c, const char *group, int32_t group_len, const char *topic,
                            int32_t topic_len) {
    PS_CORE_HELD(c);
    if (topic == NULL || is_light(topic, topic_len))
        ps_light_offsets_forget(c, ps_slice_from(group, group_len),
                                ps_slice_from(topic, topic_len));
    if (group != NULL && topic != NULL) {
        ps_pair *p = ps_core_find_pair(c, (const uint8_t *)group, group_len,
                                       (const uint8_t *)topic, topic_len);
        if (p != NULL) forget_offsets(c, p);
        return;
    }
    for (ps_pair *p = ps_pairs_each(c, NULL), *next; p != NULL; p = next) {
        next = ps_pairs_each(c, p);
        if (is_of(p, group, group_len, topic, topic_len)) forget_offsets(c, p);
    }
}
