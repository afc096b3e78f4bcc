/* See lags.h. */
#include "tables/lags.h"

#include <stdlib.h>
#include <string.h>

#include "core/lock.h"
#include "format/multi.h"
#include "store/lights.h"
#include "tables/lightrows.h"

#define LOOKED_AT 128 /* rows whose messages one call looks at */

#define HEAD_LEN (PS_LMQ_PREFIX_LEN + 1) /* of a family before its topic: "%LMQ%$"; '$' ends it */

typedef struct bound_lag { /* the lags of a family */
    ps_chain bl_chain;     /* hash of that */
    struct ps_lag *bl_lag;
} bound_lag;

typedef struct ps_lag { /* of a group that is bound */
    ps_chain lb_chain;  /* hash of the group */
    bound_lag lb_bound;
    ps_light_reader *lb_reader;
    int64_t lb_messages;
    ps_ref *lb_heap; /* rows with messages: each has no fewer than the two it stands above */
    int64_t *lb_since; /* NULL: nobody asks; when the first of these messages was stored, 0: not
                        * looked at, INT64_MAX: not known */
    int32_t lb_queues, lb_room; /* in the heap; how many have room there */
} ps_lag;

static ps_lag *find_lag(const ps_core *c, const char *group, int32_t len) {
    ps_lag *g = ps_chains_first(&c->co_tables.tc_lags, ps_hash_of(group, len));
    while (g != NULL && (g->lb_reader->rd_group_len != len ||
                         memcmp(g->lb_reader->rd_names, group, (size_t)len) != 0))
        g = ps_chains_next(g);
    return g;
}

/* ---- the heap ---- */

static int64_t behind_of(const ps_core *c, ps_ref row) {
    return ps_light_offset_at(c, row)->ro_behind;
}

/* Puts it where it belongs among `count`, from a place on that is free. owner: each of them notes
 * where it stands in its heap; NULL: it is another heap. */
static void sift_behind(const ps_core *c, ps_lag *owner, ps_ref *heap, int32_t count, int32_t at,
                        ps_ref row, int64_t since) {
    int64_t messages = behind_of(c, row);
    int64_t *times = owner != NULL ? owner->lb_since : NULL;
    for (int32_t from;; at = from) {
        int32_t up = (at - 1) / 2, down = 2 * at + 1;
        if (down + 1 < count && behind_of(c, heap[down + 1]) > behind_of(c, heap[down])) down++;
        if (at > 0 && behind_of(c, heap[up]) < messages)
            from = up;
        else if (down < count && behind_of(c, heap[down]) > messages)
            from = down;
        else
            break;
        heap[at] = heap[from];
        if (times != NULL) times[at] = times[from];
        if (owner != NULL) ps_light_offset_at(c, heap[at])->ro_at = at;
    }
    heap[at] = row;
    if (times != NULL) times[at] = since;
    if (owner != NULL) ps_light_offset_at(c, row)->ro_at = at;
}

bool ps_lag_reserve(ps_lag *g, int32_t rows) {
    if (rows <= g->lb_room) return true;
    int32_t room = rows + rows / 4 + 16;
    ps_ref *grown = realloc(g->lb_heap, (size_t)room * sizeof *grown);
    if (grown == NULL) return false;
    g->lb_heap = grown;
    if (g->lb_since != NULL) {
        int64_t *times = realloc(g->lb_since, (size_t)room * sizeof *times);
        if (times == NULL) return false;
        g->lb_since = times;
    }
    g->lb_room = room;
    return true;
}

/* ---- counting ---- */

void ps_lag_count(ps_core *c, ps_lag *g, ps_ref ref, int64_t messages, bool moved) {
    ps_light_offset *row = ps_light_offset_at(c, ref);
    int64_t before = row->ro_behind, since = 0;
    if (messages > PS_BEHIND_MAX) messages = PS_BEHIND_MAX;
    if (messages == before) return;
    g->lb_messages += messages - before;
    row->ro_behind = (uint64_t)messages & PS_BEHIND_MAX;
    if (before == 0)
        row->ro_at = g->lb_queues++;
    else if (!moved && g->lb_since != NULL)
        since = g->lb_since[row->ro_at];
    int32_t at = row->ro_at;
    if (messages == 0) {
        ps_ref last = g->lb_heap[--g->lb_queues];
        if (last == ref) return;
        ref = last;
        since = g->lb_since != NULL ? g->lb_since[g->lb_queues] : 0;
    }
    sift_behind(c, g, g->lb_heap, g->lb_queues, at, ref, since);
}

static void count_to(ps_core *c, ps_lag *g, ps_ref ref, int64_t end) {
    int64_t at = ps_light_offset_at(c, ref)->ro_offset;
    ps_lag_count(c, g, ref, at >= 0 && at < end ? end - at : 0, false);
}

/* Of all readers of the queue that are bound. */
static void end_all(ps_core *c, ps_slice queue, int64_t end) {
    ps_slice family, rest;
    ps_light_split(queue, &family, &rest);
    const bound_lag *b =
        ps_chains_first(&c->co_tables.tc_bound, ps_hash_of(family.data, family.len));
    for (; b != NULL; b = ps_chains_next(b)) {
        const ps_slice of = ps_light_reader_family(b->bl_lag->lb_reader);
        if (of.len != family.len || memcmp(of.data, family.data, (size_t)of.len) != 0) continue;
        ps_ref row = ps_light_offset_of(c, b->bl_lag->lb_reader, rest);
        if (row != 0) count_to(c, b->bl_lag, row, end);
    }
}

void ps_lag_grew(ps_core *c, ps_slice queue) {
    if (c->co_tables.tc_lags.count > 0)
        end_all(c, queue, ps_lights_end(c->co_store, (const char *)queue.data, queue.len));
}

void ps_lag_end(ps_core *c, ps_slice queue) {
    end_all(c, queue, 0);
}

static void look_at_some(ps_core *c, const ps_ref *refs, int32_t count) {
    char rooms[PS_POOL_AHEAD][UINT8_MAX];
    ps_text names[PS_POOL_AHEAD] = {{0}};
    for (int32_t i = 0; i < count; i++) {
        const ps_light_offset *row = ps_light_offset_at(c, refs[i]);
        const ps_slice queue = ps_light_join(ps_light_reader_at(c, row), row, rooms[i]);
        names[i] = (ps_text){queue.data, queue.len};
    }
    ps_lights_fetch(c->co_store, names, count);
    for (int32_t i = 0; i < count; i++)
        count_to(c, ps_light_reader_at(c, ps_light_offset_at(c, refs[i]))->rd_lag, refs[i],
                 ps_lights_end(c->co_store, (const char *)names[i].data, (int32_t)names[i].len));
}

/* The rows of a reader, or (NULL) of all that are bound, by the ends of now. */
static void look_at(ps_core *c, const ps_light_reader *only) {
    const ps_pool *rows = &c->co_tables.tc_light.ot_rows;
    ps_ref some[PS_POOL_AHEAD];
    int32_t count = 0;
    for (ps_ref at = 0; (at = ps_pool_each(rows, at)) != 0;) {
        const ps_light_reader *r = ps_light_reader_at(c, ps_light_offset_at(c, at));
        if (r->rd_lag == NULL || (only != NULL && r != only)) continue;
        some[count++] = at;
        if (count < PS_POOL_AHEAD) continue;
        look_at_some(c, some, count);
        count = 0;
    }
    look_at_some(c, some, count);
}

void ps_lag_look(ps_core *c) {
    c->co_tables.tc_light.ot_uncounted = false;
    look_at(c, NULL);
}

/* Before somebody asks. */
static void count_loaded(ps_core *c) {
    if (c->co_tables.tc_light.ot_uncounted) ps_lag_look(c);
}

/* ---- groups ---- */

static void unbind_group(ps_core *c, ps_lag *g) {
    for (; g->lb_queues > 0; g->lb_queues--)
        ps_light_offset_at(c, g->lb_heap[g->lb_queues - 1])->ro_behind = 0;
    ps_chains_remove(&c->co_tables.tc_lags, g);
    ps_chains_remove(&c->co_tables.tc_bound, &g->lb_bound);
    g->lb_reader->rd_lag = NULL;
    ps_light_reader_drop(c, g->lb_reader);
    free(g->lb_heap);
    free(g->lb_since);
    free(g);
}

static ps_slice parent_of(const ps_lag *g) {
    const ps_slice family = ps_light_reader_family(g->lb_reader);
    return (ps_slice){family.data + HEAD_LEN, family.len - HEAD_LEN - 1};
}

/* False: no memory. */
static bool bind_reader(ps_core *c, ps_light_reader *r) {
    ps_lag *g = ps_chains_reserve(&c->co_tables.tc_lags) &&
                        ps_chains_reserve(&c->co_tables.tc_bound)
                    ? calloc(1, sizeof *g)
                    : NULL;
    if (g == NULL || !ps_lag_reserve(g, r->rd_rows)) {
        free(g);
        return false;
    }
    const ps_slice family = ps_light_reader_family(r);
    g->lb_reader = r;
    g->lb_bound.bl_lag = g;
    r->rd_lag = g;
    ps_chains_add(&c->co_tables.tc_lags, g, ps_hash_of(r->rd_names, r->rd_group_len));
    ps_chains_add(&c->co_tables.tc_bound, &g->lb_bound, ps_hash_of(family.data, family.len));
    if (r->rd_rows > 0) look_at(c, r); /* what it has committed before */
    return true;
}

int ps_lag_bind(ps_core *c, const char *group, int32_t group_len, const char *parent,
                int32_t parent_len, ps_error *e) {
    PS_CORE_HELD(c);
    uint8_t family[HEAD_LEN + PS_TOPIC_MAX + 1];
    ps_lag *g = find_lag(c, group, group_len);
    const ps_slice was = g != NULL ? parent_of(g) : (ps_slice){0};
    if (was.len == parent_len && (g == NULL || memcmp(was.data, parent, (size_t)was.len) == 0))
        return 0;
    if (g != NULL) unbind_group(c, g);
    if (parent_len == 0 || parent_len > PS_TOPIC_MAX) return 0;
    const uint8_t *end =
        ps_lite_queue_put(family, (const uint8_t *)parent, parent_len, family, 0);
    ps_light_reader *r =
        ps_light_reader_of(c, (ps_slice){(const uint8_t *)group, group_len},
                           (ps_slice){family, (int32_t)(end - family)}, true);
    if (r != NULL && bind_reader(c, r)) return 0;
    if (r != NULL) ps_light_reader_drop(c, r);
    return ps_no_memory(e, NULL, "no memory for a group of lite topics");
}

/* ---- asking ---- */

static ps_lag_row row_of(const ps_lag *g) {
    const ps_slice parent = parent_of(g);
    return (ps_lag_row){g->lb_reader->rd_names,
                        (const char *)parent.data,
                        g->lb_reader->rd_group_len,
                        parent.len,
                        g->lb_messages,
                        g->lb_queues,
                        g->lb_reader->rd_read};
}

int32_t ps_lag_list(ps_core *c, ps_lag_row *rows, int32_t room) {
    PS_CORE_HELD(c);
    count_loaded(c);
    int32_t n = 0;
    for (ps_lag *g = NULL; (g = ps_chains_each(&c->co_tables.tc_lags, g)) != NULL; n++)
        if (n < room) rows[n] = row_of(g);
    return n;
}

int32_t ps_lag_get(ps_core *c, const char *group, int32_t group_len, ps_lag_row *row) {
    PS_CORE_HELD(c);
    count_loaded(c);
    const ps_lag *g = find_lag(c, group, group_len);
    if (g == NULL) return 0;
    *row = row_of(g);
    return 1;
}

/* Below what was taken stands what comes next: `next` is a heap of that. */
static void take_top(const ps_core *c, const ps_lag *g, ps_ref *next, ps_lag_queue *rows,
                     int32_t count) {
    int32_t waiting = 0;
    next[waiting++] = g->lb_heap[0];
    for (int32_t i = 0; i < count; i++) {
        const ps_light_offset *row = ps_light_offset_at(c, next[0]);
        rows[i].messages = row->ro_behind;
        rows[i].len = ps_light_join(g->lb_reader, row, rows[i].name).len;
        if (--waiting > 0) sift_behind(c, NULL, next, waiting, 0, next[waiting], 0);
        for (int32_t at = 2 * row->ro_at + 1; at <= 2 * row->ro_at + 2 && at < g->lb_queues; at++) {
            sift_behind(c, NULL, next, waiting + 1, waiting, g->lb_heap[at], 0);
            waiting++;
        }
    }
}

int32_t ps_lag_top(ps_core *c, const char *group, int32_t group_len, ps_lag_queue *rows,
                   int32_t room, ps_error *e) {
    PS_CORE_HELD(c);
    count_loaded(c);
    const ps_lag *g = find_lag(c, group, group_len);
    int32_t count = g == NULL || room <= 0 ? 0 : room < g->lb_queues ? room : g->lb_queues;
    if (count == 0) return 0;
    ps_ref *next = malloc(((size_t)count + 1) * sizeof *next);
    if (next == NULL) return ps_no_memory(e, NULL, "no memory for a list of lite topics");
    take_top(c, g, next, rows, count);
    free(next);
    return count;
}

static int64_t since_of(const ps_core *c, const ps_lag *g, ps_ref ref) {
    char room[UINT8_MAX];
    const ps_light_offset *row = ps_light_offset_at(c, ref);
    const ps_slice queue = ps_light_join(g->lb_reader, row, room);
    int64_t ms = ps_lights_ms_from(c->co_store, (const char *)queue.data, queue.len,
                                   row->ro_offset);
    return ms > 0 ? ms : INT64_MAX;
}

int64_t ps_lag_oldest(ps_core *c, const char *group, int32_t group_len, int32_t *at, ps_error *e) {
    PS_CORE_HELD(c);
    count_loaded(c);
    ps_lag *g = find_lag(c, group, group_len);
    int64_t oldest = INT64_MAX;
    int32_t i = *at, left = LOOKED_AT;
    *at = -1;
    if (g == NULL || g->lb_queues == 0) return oldest;
    if (g->lb_since == NULL) g->lb_since = calloc((size_t)g->lb_room, sizeof *g->lb_since);
    if (g->lb_since == NULL) return ps_no_memory(e, NULL, "no memory for ages of lite topics");
    for (; i < g->lb_queues && left > 0; i++) {
        if (g->lb_since[i] != 0) continue;
        g->lb_since[i] = since_of(c, g, g->lb_heap[i]);
        left--;
    }
    if (i < g->lb_queues) *at = i;
    for (i = 0; *at < 0 && i < g->lb_queues; i++)
        if (g->lb_since[i] > 0 && g->lb_since[i] < oldest) oldest = g->lb_since[i];
    return oldest;
}

void ps_lag_free(ps_core *c) {
    for (ps_lag *g = NULL; (g = ps_chains_each(&c->co_tables.tc_lags, g)) != NULL;) {
        free(g->lb_heap);
        free(g->lb_since);
    }
    ps_chains_free(&c->co_tables.tc_bound, false);
    ps_chains_free(&c->co_tables.tc_lags, true);
}
