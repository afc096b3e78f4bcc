/* The walk of a pop: which queues are looked at, from where on, and what is taken. Whoever asks,
 * over whichever protocol, asks here. docs/internals/pop.md#the-pop; upstream
 * PopMessageProcessor.popMsgFromQueue. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "format/handle.h"
#include "pop/pop.h"
#include "core/lock.h"
#include "tables/tables.h"

#define PERCENT 100

typedef struct walk {
    ps_core *c;
    const ps_pop_rules *rules;
    const ps_pop_ask *ask;
    ps_pop_found *found;
    ps_filter *filter;
    int64_t filter_ends_ms; /* 0: nothing was filtered yet */
    bool stopped;           /* no check point can be kept: nothing more is taken */
    int32_t luck;           /* of this pop, from 0 to 99 */
    const ps_pop_rank *ranks; /* the order of the topic's queues; NULL: in turn */
    int32_t retry_place;    /* before which of them retries are looked at; -1: as luck says */
    ps_topic *topic;        /* that is popped */
    ps_error *e;
} walk;

typedef struct place { /* a topic that is looked at, and the group in it */
    const ps_topic_entry *topic;
    ps_pair *pair;
    int32_t kind;
} place;

/* ---- where a queue is read from ---- */

/* Whether the queue still has its first message, and that is near the end of the log. */
static bool is_young(const walk *w, const place *p, int32_t queue_id, int64_t low, int64_t high) {
    ps_store *s = w->c->co_store;
    int64_t physical;
    return w->rules->young_bytes >= 0 && low <= 0 && high > 0 &&
           ps_queue_units(s, p->topic->te_topic, queue_id, 0, 1, &physical, NULL, NULL, NULL) ==
               1 &&
           atomic_load(&s->st_log.lg_end) - physical <= w->rules->young_bytes;
}

/* Whether a group that was never in a queue begins with its first message. */
static bool from_first(const walk *w, const place *p) {
    return w->ask->from_min || p->kind != 0;
}

/* A reset that the group was not told of takes effect. A queue without messages is left alone, if
 * the group finds its beginning again: a topic has thousands of them. -1: no memory, or too many
 * offsets. */
static int64_t find_position(const walk *w, const place *p, int32_t queue_id) {
    int64_t low = -1, high = -1;
    ps_mark *m = ps_pair_mark(p->pair, queue_id, false);
    if (m == NULL || m->mk_offset < 0)
        ps_queue_span(w->c->co_store, p->topic->te_topic, queue_id, &low, &high);
    if (m == NULL && from_first(w, p) && low >= high) return high;
    if (m == NULL) m = ps_pair_mark_asked(p->pair, queue_id);
    if (m == NULL) return -1;
    int64_t first = m->mk_reset >= 0 ? m->mk_reset : m->mk_offset;
    m->mk_reset = -1;
    if (first < 0) {
        if (from_first(w, p))
            first = low;
        else
            first = is_young(w, p, queue_id, low, high) || high < 1 ? 0 : high - 1;
    }
    ps_pair_commit(p->pair, queue_id, first);
    return first;
}

/* ---- reading ---- */

static ps_read_options options_of(const walk *w, int32_t most, int64_t *work_left) {
    const ps_filter *f = w->filter;
    ps_read_options o = {.max_messages = most, .transfer_limits = 1};
    if (f == NULL) return o;
    o.tag_count = f->ft_tag_count;
    o.tag_hashes = f->ft_hashes;
    o.tag_texts = (const char *)(f->ft_hashes + f->ft_tag_count) + f->ft_text_len;
    o.tag_texts_len = f->ft_tags_len;
    o.sql = f->ft_sql;
    o.work_left = f->ft_sql != NULL ? work_left : NULL;
    return o;
}

/* The walk is to be done again once the tier has lent what a queue lacks. Who waits watches the
 * queues of the topic alone, so retries say whose they are. */
static void note_in_tier(walk *w, const place *p, int32_t queue_id, int64_t lends) {
    ps_queue *q = ps_topic_queue(p->topic->te_topic, queue_id);
    if (w->found->lends < 0) w->found->lends = lends;
    if (p->kind == 0 || q == NULL) return;
    q->cq_topic->tp_pops_of = w->topic;
    ps_arrivals_watch(q, INT64_MAX);
}

/* Messages, and the offset that they were asked for from: filters and retention may have moved the
 * group on. NULL: *e says why. */
static ps_batch *read_queue(walk *w, const place *p, int32_t queue_id, int32_t most, int64_t *at,
                            ps_batch_info *info) {
    for (;;) {
        int64_t work_left = w->rules->filter_work;
        int64_t lends = atomic_load(&w->c->co_store->st_tier.lends);
        const ps_read_options o = options_of(w, most, &work_left);
        ps_batch *b = ps_read(w->c->co_store, p->topic->te_topic, queue_id, *at, &o, w->e);
        if (b == NULL) return NULL;
        ps_batch_get(b, info);
        if (info->status == PS_GET_IN_TIER) note_in_tier(w, p, queue_id, lends);
        if (info->count > 0 || info->next_offset == *at) return b;
        *at = info->next_offset;
        ps_pair_commit(p->pair, queue_id, *at);
        if (*at >= info->max_offset ||
            (w->filter != NULL && ps_monotonic_ms() > w->filter_ends_ms))
            return b;
        ps_batch_free(b);
    }
}

/* ---- taking ---- */

/* Its check point is in the log before anything is handed out. */
static bool keep_check_point(walk *w, const place *p, const ps_pop_batch *b,
                             const ps_batch_info *info) {
    ps_pop_found *found = w->found;
    ps_check_point_row row = {.key = {.topic = p->topic->te_name,
                                      .group = w->ask->group,
                                      .topic_len = p->topic->te_len,
                                      .group_len = w->ask->group_len,
                                      .queue_id = b->queue_id,
                                      .start = b->start,
                                      .pop_ms = found->pop_ms},
                              .revive_queue = found->revive_queue,
                              .count = info->count,
                              .invisible_ms = found->invisible_ms,
                              .due_ms = found->pop_ms + found->invisible_ms};
    for (int32_t i = 0; i < info->count; i++) row.offsets[i] = info->views[i].queue_offset;
    int code = 1;
    if (ps_core_check_point_count(w->c) < w->rules->open_max)
        code = ps_core_check_point_open(w->c, &row, &found->end, w->e);
    found->full = found->full || code == 1;
    w->stopped = code != 0;
    return code == 0;
}

/* An ordered batch is noted as out before it is handed out. */
static bool note_order(walk *w, const place *p, const ps_pop_batch *b, const ps_batch_info *info) {
    if (ps_order_popped(w->c, p->pair, b->queue_id, w->ask, info, w->found->pop_ms,
                        w->found->times + w->found->messages))
        return true;
    ps_no_memory(w->e, NULL, "no memory for an ordered batch");
    w->stopped = true;
    return false;
}

static void hand_out(walk *w, const place *p, const ps_pop_batch *b, const ps_batch_info *info) {
    ps_pop_found *found = w->found;
    if (!(w->ask->ordered ? note_order : keep_check_point)(w, p, b, info)) {
        found->rest += info->max_offset - b->start;
        ps_batch_free(b->batch);
        return;
    }
    ps_pair_commit(p->pair, b->queue_id, w->ask->ordered ? b->start : info->next_offset);
    found->rest += info->max_offset - info->next_offset;
    found->messages += info->count;
    found->bytes += info->bytes;
    found->all[found->count++] = *b;
}

/* Filters have had their time; the rest is for the next walk. */
static bool has_filtered_enough(walk *w) {
    if (w->filter == NULL) return false;
    int64_t now = ps_monotonic_ms();
    if (w->filter_ends_ms == 0)
        w->filter_ends_ms = now + w->rules->filter_ms;
    else if (now > w->filter_ends_ms)
        w->found->more = 1;
    return w->found->more;
}

/* False: no memory, or a failed read. */
static bool take_from(walk *w, const place *p, int32_t queue_id, int64_t high) {
    ps_pop_found *found = w->found;
    const ps_pop_rules *rules = w->rules;
    int64_t at = find_position(w, p, queue_id);
    ps_batch_info info;
    if (at < 0) {
        ps_offsets_refused(w->c, w->e);
        return false;
    }
    if (high == at) return true;
    int32_t need = w->ask->most - found->messages;
    int64_t flying = ps_pair_mark(p->pair, queue_id, false)->mk_in_flight;
    bool over = !w->ask->ordered && rules->in_flight_max >= 0 && flying > rules->in_flight_max;
    if (w->stopped || over || need <= 0 || found->bytes >= rules->bytes_max ||
        has_filtered_enough(w)) {
        found->rest += high > at ? high - at : 0;
        return true;
    }
    int64_t before = at;
    ps_pop_batch b = {.kind = p->kind, .queue_id = queue_id};
    b.batch = read_queue(w, p, queue_id, need, &at, &info);
    if (b.batch == NULL) return false;
    b.start = at;
    if (info.count > 0) {
        hand_out(w, p, &b, &info);
        return true;
    }
    if (before < info.next_offset && info.next_offset < high) found->more = 1;
    if (info.max_offset > info.next_offset) found->rest += info.max_offset - info.next_offset;
    ps_batch_free(b.batch);
    return true;
}

/* Whether order passes over a queue, whose last batch is still out. */
static bool is_blocked(walk *w, const place *p, int32_t queue_id) {
    const ps_pop_ask *ask = w->ask;
    const ps_mark *m = ask->ordered ? ps_pair_mark(p->pair, queue_id, false) : NULL;
    if (m == NULL) return false;
    const ps_slice attempt = {(const uint8_t *)ask->attempt, ask->attempt_len};
    int64_t until = ps_order_blocked_ms(m->mk_order, attempt, w->found->pop_ms);
    if (until > 0 && (w->found->blocked_ms == 0 || until < w->found->blocked_ms))
        w->found->blocked_ms = until;
    return until > 0;
}

/* ---- topics ---- */

/* Room for the ends of the topic's queues. NULL: no memory. */
static int64_t *begin_seen(walk *w, int32_t from, int32_t count) {
    ps_buffer *b = &ps_mine(w->c)->ca_pop.cp_seen;
    b->len = 0;
    int64_t *seen = (int64_t *)ps_buffer_room(b, (int64_t)sizeof *seen * count);
    if (seen == NULL) {
        ps_fail(w->e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for the ends of %d queues",
                count);
        return NULL;
    }
    w->found->seen = seen;
    w->found->seen_first = from;
    w->found->seen_count = count;
    return seen;
}

static bool walk_retry(walk *w);

static bool walk_queues(walk *w, const place *p, int32_t first, int32_t from, int32_t count) {
    int64_t low, high, *seen = NULL;
    bool all = count > 1 && !from_first(w, p) && p->pair->pr_mark_count < count;
    if (all && (!ps_pair_may_have(p->pair, count - p->pair->pr_mark_count) ||
                !ps_pair_marks(p->pair, count))) {
        ps_offsets_refused(w->c, w->e);
        return false;
    }
    if (p->pair->pr_mark_count == 0) first = 0; /* marks that come in order move no others */
    if (p->kind == 0 && (seen = begin_seen(w, from, count)) == NULL) return false;
    for (int32_t i = 0; i < count; i++) {
        bool ranked = p->kind == 0 && w->ranks != NULL;
        int32_t at = ranked ? w->ranks[i].queue : (first + i) % count;
        if (ranked && i == w->retry_place && !walk_retry(w)) return false;
        ps_queue_span(w->c->co_store, p->topic->te_topic, from + at, &low, &high);
        if (seen != NULL) seen[at] = high;
        const ps_queue *q = ps_topic_queue(p->topic->te_topic, from + at);
        if (q != NULL && ps_tier_hides(&w->c->co_store->st_tier, q)) continue;
        if (is_blocked(w, p, from + at)) continue;
        if (!take_from(w, p, from + at, high)) return false;
    }
    return true;
}

static bool find_place(walk *w, const char *name, int32_t len, int32_t kind, place *out) {
    *out = (place){.topic = ps_core_find_topic(w->c, (const uint8_t *)name, len), .kind = kind};
    if (out->topic == NULL || out->topic->te_read_queues < 1) return false;
    out->pair = ps_core_pair_of(w->c, w->ask->group, w->ask->group_len, name, len);
    return out->pair != NULL;
}

int32_t ps_retry_topic(ps_slice group, ps_slice topic, bool second, char to[PS_RETRY_ROOM]) {
    int32_t len = (int32_t)sizeof PS_RETRY_PREFIX - 1;
    memcpy(to, PS_RETRY_PREFIX, (size_t)len);
    memcpy(to + len, group.data, (size_t)group.len);
    len += group.len;
    to[len++] = second ? '+' : '_';
    memcpy(to + len, topic.data, (size_t)topic.len);
    return len + topic.len;
}

/* Whether there is the retry topic of this kind. Those of the second are looked at whatever the
 * setting is: what came back through one before it was turned off, or under a name that somebody
 * else has, is not lost. */
static bool find_retry(walk *w, bool second, place *out) {
    const ps_pop_ask *ask = w->ask;
    char name[PS_RETRY_ROOM];
    if (ask->ordered || PS_BEGINS(ask->topic, ask->topic_len, PS_RETRY_PREFIX) ||
        (!second && !w->rules->retry_v1))
        return false;
    const ps_slice group = {(const uint8_t *)ask->group, ask->group_len};
    const ps_slice topic = {(const uint8_t *)ask->topic, ask->topic_len};
    int32_t len = ps_retry_topic(group, topic, second, name);
    return find_place(w, name, len, second ? 2 : 1, out);
}

/* Of one kind alone for one request, since its answer knows one: luck says which is asked first. */
static bool walk_retry(walk *w) {
    int32_t before = w->found->messages;
    for (int i = 0; i < 2 && w->found->messages == before; i++) {
        place p;
        if (!find_retry(w, (w->luck + i) % 2 == 1, &p)) continue;
        int32_t queues = p.topic->te_read_queues;
        if (!walk_queues(w, &p, w->luck % queues, 0, queues)) return false;
    }
    return true;
}

static bool choose_filter(walk *w, ps_pair *pair) {
    const ps_pop_ask *ask = w->ask;
    const uint8_t *text = (const uint8_t *)ask->filter;
    if (text == NULL) return true;
    if (!ps_filter_is(pair->pr_own, text, ask->filter_len, ask->sql)) {
        ps_no_memory(w->e, NULL, "no memory for a filter");
        ps_filter *made = ps_filter_of_text(text, ask->filter_len, ask->sql, w->e);
        if (made == NULL) return false;
        ps_filter_unref(pair->pr_own);
        pair->pr_own = made;
        *w->e = (ps_error){0};
    }
    w->filter = pair->pr_own;
    return true;
}

/* By priority, if the topic has some. False: no memory. */
static bool rank_queues(walk *w, const place *p) {
    place retry;
    w->retry_place = -1;
    if (w->ask->queue_id >= 0) return true;
    w->ranks = ps_pop_ranks(w->c, p->topic, p->pair, w->found->pop_ms);
    if (w->ranks == NULL) {
        ps_fail(w->e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for the order of %d queues",
                p->topic->te_read_queues);
        return false;
    }
    bool second = w->luck % 2 == 1;
    if (w->rules->retries_ranked &&
        (find_retry(w, second, &retry) || find_retry(w, !second, &retry)))
        w->retry_place = ps_pop_retry_place(w->c, p->topic, retry.topic, retry.pair, w->ranks,
                                            w->found->pop_ms);
    return true;
}

static bool walk_all(walk *w, const place *p) {
    const ps_pop_ask *ask = w->ask;
    int32_t queues = p->topic->te_read_queues;
    bool one = ask->queue_id >= 0;
    if (one && ask->queue_id >= queues) return true;
    w->luck = (int32_t)(ps_core_random(w->c) % PERCENT);
    w->retry_place = -1;
    bool ranked = ps_pop_is_ranked(w->c, p->topic, ask, w->luck);
    if (ranked && !rank_queues(w, p)) return false;
    bool by_luck = w->luck < (ranked ? w->rules->ranked_retry_percent : w->rules->retry_percent);
    bool retry_first = by_luck && w->retry_place < 0;
    if (retry_first && !walk_retry(w)) return false;
    int32_t first = one ? 0 : (int32_t)(ps_core_random(w->c) % (uint64_t)queues);
    if (!walk_queues(w, p, first, one ? ask->queue_id : 0, one ? 1 : queues)) return false;
    bool done = retry_first || (w->retry_place >= 0 && w->retry_place < queues);
    return done || w->found->messages >= ask->most || walk_retry(w);
}

static void count_ways(ps_pair *pair, const ps_pop_found *found) {
    for (int32_t i = 0; i < found->count; i++) {
        ps_batch_info b;
        ps_batch_get(found->all[i].batch, &b);
        ps_count *way = &pair->pr_out[found->all[i].kind != 0 ? PS_WAY_RETRIED : PS_WAY_POPPED];
        way->messages += b.count;
        way->bytes += b.bytes;
    }
    pair->pr_points += found->count;
}

static int walk_topic(ps_core *c, const ps_pop_ask *ask, ps_pop_found *out, ps_error *e) {
    ps_pop_state *x = c->co_pop;
    ps_error mine = {0};
    place p;
    memset(out, 0, offsetof(ps_pop_found, all));
    out->lends = -1;
    if (x == NULL || x->po_revive == NULL || x->po_rules.revive_queues < 1 || ask->group_len < 1 ||
        ask->group_len > PS_TOPIC_MAX || ask->topic_len < 1 || ask->topic_len > PS_TOPIC_MAX ||
        ask->most < 1 || ask->most > PS_CHECK_POINT_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "a pop of %d messages for names of %d and %d bytes is out of range",
                       ask->most, ask->group_len, ask->topic_len);
    out->invisible_ms = ask->invisible_ms;
    out->ordered = ask->ordered;
    out->pop_ms = ps_timer_now(c->co_store);
    out->revive_queue =
        ask->ordered ? PS_ORDER_QUEUE : (int32_t)(++x->po_pops % x->po_rules.revive_queues);
    walk w = {.c = c, .rules = &x->po_rules, .ask = ask, .found = out, .e = &mine};
    if (!find_place(&w, ask->topic, ask->topic_len, 0, &p)) return 0;
    w.topic = p.topic->te_topic;
    bool failed = !choose_filter(&w, p.pair) || !walk_all(&w, &p) || (w.stopped && !out->full);
    if (out->messages > 0) count_ways(p.pair, out);
    /* What was found before something failed is handed out. */
    if (!failed || out->count > 0) return 0;
    if (e != NULL) *e = mine;
    return mine.code;
}

int ps_pop_take(ps_core *c, const ps_pop_ask *ask, ps_pop_found *found, int64_t *due_ms,
                ps_error *e) {
    int64_t due = ps_core_check_point_due(c);
    int code = walk_topic(c, ask, found, e);
    int64_t ends =
        code == 0 && found->count > 0 && !ask->ordered ? found->pop_ms + found->invisible_ms : 0;
    *due_ms = ends > 0 && (due < 0 || ends < due) ? ends : 0;
    return code;
}

/* ---- looking ---- */

/* Whether some queue has messages that nobody was handed, and that order does not hold back. All
 * are looked at: *found says how far they go. */
static void look_at_queues(walk *w, const place *p, int32_t from, int32_t count, int64_t *seen) {
    for (int32_t i = 0; i < count; i++) {
        int64_t low, high;
        const ps_mark *m = p->pair != NULL ? ps_pair_mark(p->pair, from + i, false) : NULL;
        int64_t at = m == NULL ? -1 : m->mk_reset >= 0 ? m->mk_reset : m->mk_offset;
        ps_queue_span(w->c->co_store, p->topic->te_topic, from + i, &low, &high);
        if (seen != NULL) seen[i] = high;
        if ((at < 0 ? low : at) >= high || (p->pair != NULL && is_blocked(w, p, from + i)))
            continue;
        w->found->messages = 1;
    }
}

static void look_at_retry(walk *w, bool second) {
    const ps_pop_ask *ask = w->ask;
    char name[PS_RETRY_ROOM];
    const ps_slice group = {(const uint8_t *)ask->group, ask->group_len};
    const ps_slice topic = {(const uint8_t *)ask->topic, ask->topic_len};
    int32_t len = ps_retry_topic(group, topic, second, name);
    const place p = {.topic = ps_core_find_topic(w->c, (const uint8_t *)name, len),
                     .pair = ps_core_find_pair(w->c, group.data, group.len,
                                               (const uint8_t *)name, len)};
    if (p.topic != NULL) look_at_queues(w, &p, 0, p.topic->te_read_queues, NULL);
}

bool ps_pop_look(ps_core *c, const ps_pop_ask *ask, ps_pop_found *out) {
    ps_error none = {0};
    const ps_pop_rules *rules = &c->co_pop->po_rules;
    walk w = {.c = c, .rules = rules, .ask = ask, .found = out, .e = &none};
    const uint8_t *group = (const uint8_t *)ask->group, *topic = (const uint8_t *)ask->topic;
    const place p = {.topic = ps_core_find_topic(c, topic, ask->topic_len),
                     .pair = ps_core_find_pair(c, group, ask->group_len, topic, ask->topic_len)};
    memset(out, 0, offsetof(ps_pop_found, all));
    out->lends = -1;
    out->pop_ms = ps_timer_now(c->co_store);
    if (p.topic == NULL || ask->queue_id >= p.topic->te_read_queues) return true;
    int32_t from = ask->queue_id < 0 ? 0 : ask->queue_id;
    int32_t count = ask->queue_id < 0 ? p.topic->te_read_queues : 1;
    int64_t *seen = begin_seen(&w, from, count);
    if (seen == NULL) return false;
    look_at_queues(&w, &p, from, count, seen);
    if (ask->ordered || PS_BEGINS(ask->topic, ask->topic_len, PS_RETRY_PREFIX)) return true;
    if (rules->retry_v1) look_at_retry(&w, false);
    look_at_retry(&w, true);
    return true;
}

void ps_pop_found_take(ps_pop_found *from, ps_pop_found *to) {
    *to = *from;
    to->seen = NULL;
    to->seen_count = 0;
    free(from);
}

void ps_pop_found_free(ps_pop_found *found) {
    for (int32_t i = 0; i < found->count; i++) ps_batch_free(found->all[i].batch);
}
