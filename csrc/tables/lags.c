/* See lags.h. */
#include "tables/lags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/lock.h"
#include "format/multi.h"
#include "store/lights.h"
#include "tables/tables.h"

typedef struct ps_lag { /* of a group that is bound */
    ps_chain lb_chain;  /* hash of the group */
    int64_t lb_messages;
    ps_behind **lb_heap; /* those with messages: each has no fewer than the two it stands above */
    int32_t lb_queues, lb_read, lb_room; /* in the heap; all; how many have room there */
    int32_t lb_group_len, lb_parent_len;
    char lb_names[]; /* group, then parent */
} ps_lag;

static ps_slice queue_of(const ps_pair *p) {
    return (ps_slice){(const uint8_t *)p->pr_names + p->pr_group_len, p->pr_topic_len};
}

static ps_lag *find_lag(const ps_core *c, const char *group, int32_t len) {
    ps_lag *g = ps_chains_first(&c->co_tables.tc_lags, ps_hash_of(group, len));
    while (g != NULL && (g->lb_group_len != len || memcmp(g->lb_names, group, (size_t)len) != 0))
        g = ps_chains_next(g);
    return g;
}

static bool is_parent(const ps_lag *g, const char *parent, int32_t len) {
    return g->lb_parent_len == len &&
           memcmp(g->lb_names + g->lb_group_len, parent, (size_t)len) == 0;
}

/* Whether a light queue is a lite topic's of the topic that the group is bound to. */
static bool is_below(const ps_lag *g, ps_slice queue) {
    const int32_t head = PS_LMQ_PREFIX_LEN + 1; /* and the '$' after it */
    return queue.len > head + g->lb_parent_len + 1 && queue.data[head - 1] == '$' &&
           is_parent(g, (const char *)queue.data + head, g->lb_parent_len) &&
           queue.data[head + g->lb_parent_len] == '$';
}

/* ---- the heap ---- */

/* Puts it where it belongs among `count`, from a place on that is free. `owned`: each of them notes
 * where it stands. */
static void sift_behind(ps_behind **heap, int32_t count, int32_t at, ps_behind *b, bool owned) {
    for (int32_t up; at > 0 && heap[up = (at - 1) / 2]->bh_messages < b->bh_messages; at = up) {
        heap[at] = heap[up];
        if (owned) heap[at]->bh_at = at;
    }
    for (int32_t down; (down = 2 * at + 1) < count; at = down) {
        if (down + 1 < count && heap[down + 1]->bh_messages > heap[down]->bh_messages) down++;
        if (heap[down]->bh_messages <= b->bh_messages) break;
        heap[at] = heap[down];
        if (owned) heap[at]->bh_at = at;
    }
    heap[at] = b;
    if (owned) b->bh_at = at;
}

/* Room for one more, so that what moves later always has some. */
static bool reserve_heap(ps_lag *g) {
    if (g->lb_read < g->lb_room) return true;
    int32_t room = g->lb_room == 0 ? 16 : g->lb_room <= INT32_MAX / 2 ? 2 * g->lb_room : 0;
    ps_behind **grown = room > 0 ? realloc(g->lb_heap, (size_t)room * sizeof(ps_behind *)) : NULL;
    if (grown == NULL) return false;
    g->lb_heap = grown;
    g->lb_room = room;
    return true;
}

/* ---- counting ---- */

void ps_lag_moved(ps_behind *b) {
    const ps_pair *p = b->bh_pair;
    ps_lag *g = b->bh_lag;
    bool has_mark = p->pr_mark_count > 0 && p->pr_marks[0].mk_queue == 0;
    int64_t at = has_mark ? p->pr_marks[0].mk_offset : -1;
    int64_t messages = at >= 0 && at < b->bh_end ? b->bh_end - at : 0, before = b->bh_messages;
    if (messages == before) return;
    g->lb_messages += messages - before;
    b->bh_messages = messages;
    if (before == 0) b->bh_at = g->lb_queues++;
    if (messages == 0) {
        ps_behind *last = g->lb_heap[--g->lb_queues];
        if (last == b) return;
        last->bh_at = b->bh_at;
        b = last;
    }
    sift_behind(g->lb_heap, g->lb_queues, b->bh_at, b, true);
}

static void ask_end(ps_core *c, ps_behind *b) {
    const ps_slice queue = queue_of(b->bh_pair);
    b->bh_end = ps_lights_end(c->co_store, (const char *)queue.data, queue.len);
    ps_lag_moved(b);
}

void ps_lag_join(ps_core *c, ps_pair *p) {
    const ps_slice queue = queue_of(p);
    ps_lag *g = find_lag(c, p->pr_names, p->pr_group_len);
    if (g == NULL || p->pr_behind != NULL || !is_below(g, queue)) return;
    bool room = reserve_heap(g) && ps_chains_reserve(&c->co_tables.tc_behind);
    ps_behind *b = room ? malloc(sizeof *b) : NULL;
    if (b == NULL) return;
    *b = (ps_behind){.bh_pair = p, .bh_lag = g};
    ps_chains_add(&c->co_tables.tc_behind, b, ps_hash_of(queue.data, queue.len));
    p->pr_behind = b;
    g->lb_read++;
    ask_end(c, b);
}

void ps_lag_leave(ps_core *c, ps_pair *p) {
    ps_behind *b = p->pr_behind;
    if (b == NULL) return;
    b->bh_end = 0;
    ps_lag_moved(b);
    ps_chains_remove(&c->co_tables.tc_behind, b);
    b->bh_lag->lb_read--;
    p->pr_behind = NULL;
    free(b);
}

static void end_all(ps_core *c, ps_slice queue, int64_t end) {
    ps_behind *b = ps_chains_first(&c->co_tables.tc_behind, ps_hash_of(queue.data, queue.len));
    for (; b != NULL; b = ps_chains_next(b)) {
        const ps_slice name = queue_of(b->bh_pair);
        if (name.len != queue.len || memcmp(name.data, queue.data, (size_t)name.len) != 0) continue;
        b->bh_end = end;
        ps_lag_moved(b);
    }
}

void ps_lag_grew(ps_core *c, ps_slice queue) {
    if (c->co_tables.tc_behind.count > 0)
        end_all(c, queue, ps_lights_end(c->co_store, (const char *)queue.data, queue.len));
}

void ps_lag_end(ps_core *c, ps_slice queue) {
    end_all(c, queue, 0);
}

void ps_lag_look(ps_core *c) {
    for (ps_behind *b = NULL; (b = ps_chains_each(&c->co_tables.tc_behind, b)) != NULL;)
        ask_end(c, b);
}

/* ---- groups ---- */

static void unbind_group(ps_core *c, ps_lag *g) {
    for (ps_behind *b = ps_chains_each(&c->co_tables.tc_behind, NULL), *next; b != NULL; b = next) {
        next = ps_chains_each(&c->co_tables.tc_behind, b);
        if (b->bh_lag == g) ps_lag_leave(c, b->bh_pair);
    }
    ps_chains_remove(&c->co_tables.tc_lags, g);
    free(g->lb_heap);
    free(g);
}

/* What it has committed before. */
static void join_pairs(ps_core *c, const ps_lag *g) {
    for (ps_pair *p = c->co_tables.tc_light_pairs; p != NULL; p = p->pr_all)
        if (p->pr_group_len == g->lb_group_len &&
            memcmp(p->pr_names, g->lb_names, (size_t)g->lb_group_len) == 0)
            ps_lag_join(c, p);
}

int ps_lag_bind(ps_core *c, const char *group, int32_t group_len, const char *parent,
                int32_t parent_len, ps_error *e) {
    PS_CORE_HELD(c);
    ps_lag *g = find_lag(c, group, group_len);
    if (g != NULL ? is_parent(g, parent, parent_len) : parent_len == 0) return 0;
    if (g != NULL) unbind_group(c, g);
    if (parent_len == 0) return 0;
    g = ps_chains_reserve(&c->co_tables.tc_lags)
            ? calloc(1, sizeof *g + (size_t)group_len + (size_t)parent_len)
            : NULL;
    if (g == NULL)
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for a group of lite topics");
    g->lb_group_len = group_len;
    g->lb_parent_len = parent_len;
    memcpy(g->lb_names, group, (size_t)group_len);
    memcpy(g->lb_names + group_len, parent, (size_t)parent_len);
    ps_chains_add(&c->co_tables.tc_lags, g, ps_hash_of(group, group_len));
    join_pairs(c, g);
    return 0;
}

/* ---- asking ---- */

static ps_lag_row row_of(const ps_lag *g) {
    return (ps_lag_row){g->lb_names,     g->lb_names + g->lb_group_len,
                        g->lb_group_len, g->lb_parent_len,
                        g->lb_messages,  g->lb_queues,
                        g->lb_read};
}

int32_t ps_lag_list(ps_core *c, ps_lag_row *rows, int32_t room) {
    PS_CORE_HELD(c);
    int32_t n = 0;
    for (ps_lag *g = NULL; (g = ps_chains_each(&c->co_tables.tc_lags, g)) != NULL; n++)
        if (n < room) rows[n] = row_of(g);
    return n;
}

int32_t ps_lag_get(ps_core *c, const char *group, int32_t group_len, ps_lag_row *row) {
    PS_CORE_HELD(c);
    const ps_lag *g = find_lag(c, group, group_len);
    if (g == NULL) return 0;
    *row = row_of(g);
    return 1;
}

/* Below what was taken stands what comes next: `next` is a heap of that. */
static void take_top(const ps_lag *g, ps_behind **next, ps_lag_queue *rows, int32_t count) {
    int32_t waiting = 0;
    next[waiting++] = g->lb_heap[0];
    for (int32_t i = 0; i < count; i++) {
        const ps_behind *b = next[0];
        const ps_slice queue = queue_of(b->bh_pair);
        rows[i].messages = b->bh_messages;
        rows[i].len = queue.len;
        memcpy(rows[i].name, queue.data, (size_t)queue.len);
        if (--waiting > 0) sift_behind(next, waiting, 0, next[waiting], false);
        for (int32_t at = 2 * b->bh_at + 1; at <= 2 * b->bh_at + 2 && at < g->lb_queues; at++) {
            sift_behind(next, waiting + 1, waiting, g->lb_heap[at], false);
            waiting++;
        }
    }
}

int32_t ps_lag_top(ps_core *c, const char *group, int32_t group_len, ps_lag_queue *rows,
                   int32_t room, ps_error *e) {
    PS_CORE_HELD(c);
    const ps_lag *g = find_lag(c, group, group_len);
    int32_t count = g == NULL || room <= 0 ? 0 : room < g->lb_queues ? room : g->lb_queues;
    if (count == 0) return 0;
    ps_behind **next = malloc(((size_t)count + 1) * sizeof(ps_behind *));
    if (next == NULL)
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for a list of lite topics");
    take_top(g, next, rows, count);
    free(next);
    return count;
}

void ps_lag_free(ps_core *c) {
    for (ps_lag *g = NULL; (g = ps_chains_each(&c->co_tables.tc_lags, g)) != NULL;)
        free(g->lb_heap);
    ps_chains_free(&c->co_tables.tc_behind, true);
    ps_chains_free(&c->co_tables.tc_lags, true);
}
