/* See tier.h. What is lent hangs at its queue, the newest first, and in one list over all queues in
 * the order in which it was used. Who lends is any thread; readers copy nothing. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/threads.h"
#include "store/store.h"

#define ROOM (64LL << 20)
#define PLACE_MAX (1LL << 46) /* of a queue's log; above are other bits of a place */

void ps_tier_init(ps_tier *t) {
    pthread_mutex_init(&t->lock, NULL);
    t->room = ROOM;
    t->fd = -1;
    atomic_init(&t->level, PS_TIER_NOT_IN_DISK);
}

/* ---- the lists ---- */

static int64_t size_of(const ps_lent *l) {
    return (int64_t)sizeof *l + (l->units != NULL ? l->units->mf_size : 0) +
           (l->records != NULL ? l->records->mf_size : 0);
}

static void unlist_lent(ps_tier *t, ps_lent *l) {
    *(l->newer != NULL ? &l->newer->older : &t->newest) = l->older;
    *(l->older != NULL ? &l->older->newer : &t->oldest) = l->newer;
}

static void list_lent(ps_tier *t, ps_lent *l) {
    l->newer = NULL;
    l->older = t->newest;
    *(t->newest != NULL ? &t->newest->newer : &t->oldest) = l;
    t->newest = l;
}

static void free_lent(ps_lent *l) {
    ps_mapfile_unref(l->units);
    ps_mapfile_unref(l->records);
    free(l);
}

static void let_go(ps_tier *t, ps_lent *l) {
    ps_lent **at = &l->of->lent;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    unlist_lent(t, l);
    t->bytes -= size_of(l);
    free_lent(l);
}

void ps_tier_free(ps_tier *t) {
    while (t->newest != NULL) let_go(t, t->newest);
    for (ps_tiered *d = t->all, *next; d != NULL; d = next) {
        next = d->next;
        free(d);
    }
    pthread_mutex_destroy(&t->lock);
}

static void drop_queue_locked(ps_tier *t, ps_tiered *d) {
    while (d->lent != NULL) let_go(t, d->lent);
}

void ps_tier_forget(ps_tier *t, ps_queue *q) {
    ps_tiered *d = ps_tiered_of(q);
    if (d == NULL) return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&d->end, 0);
    atomic_store(&d->first, 0);
    drop_queue_locked(t, d);
    pthread_mutex_unlock(&t->lock);
}

/* ---- what readers ask ---- */

int64_t ps_tier_min(ps_queue *q) {
    int64_t min = atomic_load(&q->cq_min);
    const ps_tiered *d = ps_tiered_of(q);
    if (d == NULL) return min;
    int64_t first = atomic_load(&d->first), end = atomic_load(&d->end);
    return first < end && first < min ? first : min;
}

ps_lent *ps_tier_units_locked(ps_tier *t, ps_tiered *d, int64_t offset) {
    ps_lent *l = d->lent;
    while (l != NULL && (offset < l->first || offset >= l->end)) l = l->next;
    if (l != NULL && l != t->newest) {
        unlist_lent(t, l);
        list_lent(t, l);
    }
    return l;
}

static ps_mapfile *records_with(ps_tiered *d, int64_t place) {
    for (ps_lent *l = d->lent; l != NULL; l = l->next)
        if (l->records != NULL && place >= l->records->mf_base &&
            place - l->records->mf_base < l->records->mf_size)
            return l->records;
    return NULL;
}

ps_mapfile *ps_tier_record_locked(ps_tiered *d, const ps_unit *u) {
    ps_mapfile *mf = records_with(d, u->physical);
    return mf != NULL && u->size <= mf->mf_size - (u->physical - mf->mf_base) ? mf : NULL;
}

ps_mapfile *ps_tier_at(ps_tier *t, int64_t place) {
    ps_mapfile *found = NULL;
    pthread_mutex_lock(&t->lock);
    for (ps_tiered *d = t->all; d != NULL && found == NULL; d = d->next)
        found = records_with(d, place);
    if (found != NULL) ps_mapfile_ref(found);
    pthread_mutex_unlock(&t->lock);
    return found;
}

/* ---- wants ---- */

bool ps_tier_ask_locked(ps_tier *t, ps_tiered *d, ps_tier_want *want) {
    want->topic = d->queue->cq_name;
    want->topic_len = d->queue->cq_name_len;
    want->queue_id = d->queue->cq_id;
    for (const ps_lent *l = d->lent; l != NULL && !want->reads_on; l = l->next)
        want->reads_on = want->offset > l->first && want->offset <= l->end &&
                         (want->high == 0 || l->records != NULL);
    for (int32_t i = 0; i < t->wanted; i++) {
        const ps_tier_want *w = &t->wants[i];
        if (w->topic == want->topic && w->queue_id == want->queue_id &&
            w->offset == want->offset && w->high >= want->high)
            return true;
    }
    if (t->wanted == PS_TIER_WANTS) return false;
    t->wants[t->wanted++] = *want;
    if (t->fd >= 0) ps_eventfd_tell(t->fd);
    return true;
}

int ps_tier_wants(ps_store *s, ps_tier_want *out) {
    ps_tier *t = &s->st_tier;
    pthread_mutex_lock(&t->lock);
    int found = t->wanted > 0;
    if (found) {
        *out = t->wants[0];
        memmove(t->wants, t->wants + 1, (size_t)--t->wanted * sizeof *t->wants);
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

void ps_tier_failed(ps_store *s, const char *why, int64_t for_ms) {
    ps_tier *t = &s->st_tier;
    pthread_mutex_lock(&t->lock);
    strncpy(t->why, why, sizeof t->why - 1);
    pthread_mutex_unlock(&t->lock);
    atomic_store(&t->local_until, ps_monotonic_ms() + for_ms);
}

void ps_tier_why(ps_tier *t, char to[PS_TIER_WHY]) {
    pthread_mutex_lock(&t->lock);
    memcpy(to, t->why, sizeof t->why);
    pthread_mutex_unlock(&t->lock);
}

/* ---- what there is ---- */

void ps_tier_set(ps_store *s, int32_t level, int64_t room, int fd) {
    ps_tier *t = &s->st_tier;
    pthread_mutex_lock(&t->lock);
    t->room = room;
    t->fd = fd;
    atomic_store(&t->level, level);
    pthread_mutex_unlock(&t->lock);
}

void ps_tier_known(ps_store *s, int32_t known) {
    atomic_store(&s->st_tier.unknown, !known);
}

int ps_tier_begins(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t first, int64_t end,
                   ps_error *e) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    ps_tier *t = &s->st_tier;
    ps_queue *q = ps_topic_queue_get(topic, queue_id);
    ps_tiered *fresh = calloc(1, sizeof *fresh), *d = NULL;
    pthread_mutex_lock(&t->lock);
    if (q != NULL && (d = ps_tiered_of(q)) == NULL && fresh != NULL) {
        d = fresh;
        fresh = NULL;
        d->queue = q;
        d->next = t->all;
        t->all = d;
    }
    if (d != NULL) {
        /* Narrower for a moment, never wider. */
        if (first > atomic_load(&d->first)) atomic_store(&d->first, first);
        atomic_store(&d->end, end);
        atomic_store(&d->first, first);
        atomic_store_explicit(&q->cq_tiered, d, memory_order_release);
        if (first == end) drop_queue_locked(t, d);
    }
    pthread_mutex_unlock(&t->lock);
    free(fresh);
    ps_leave(s);
    return d != NULL ? 0 : ps_no_memory(e, NULL, "no memory for the tier");
}

int ps_queue_span(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t *min_offset,
                  int64_t *max_offset) {
    int code = ps_queue_range(s, topic, queue_id, min_offset, max_offset);
    if (code == 0) *min_offset = ps_tier_min(ps_topic_queue(topic, queue_id));
    return code;
}

/* ---- lending ---- */

/* Whoever waits for the queue looks again. The list of arrivals, and whom it tells, are the
 * dispatcher's to write. */
static void announce_lent(ps_store *s, ps_queue *q) {
    atomic_fetch_add(&s->st_tier.lends, 1);
    if (!ps_arrivals_watched(q)) return;
    pthread_mutex_lock(&s->st_dispatcher.ds_lock);
    ps_arrivals_add(&s->st_arrivals, q);
    ps_arrivals_tell(&s->st_arrivals);
    pthread_mutex_unlock(&s->st_dispatcher.ds_lock);
}

void ps_tier_again(ps_store *s, ps_topic *topic, int32_t queue_id) {
    ps_queue *q = ps_topic_queue(topic, queue_id);
    if (q == NULL || ps_enter(s) < 0) return;
    announce_lent(s, q);
    ps_leave(s);
}

/* Takes it over; NULL: there was no memory for it. */
static int lend_piece(ps_store *s, ps_topic *topic, int32_t queue_id, ps_lent *l, ps_error *e) {
    ps_tier *t = &s->st_tier;
    ps_queue *q = l != NULL ? ps_topic_queue(topic, queue_id) : NULL;
    ps_tiered *d = q != NULL ? ps_tiered_of(q) : NULL;
    if (l == NULL) return ps_no_memory(e, NULL, "no memory to lend");
    if (d == NULL || ps_enter(s) < 0) {
        free_lent(l);
        return d == NULL ? 0 : ps_refuse_closed(s, e);
    }
    pthread_mutex_lock(&t->lock);
    if (atomic_load(&d->first) == atomic_load(&d->end)) { /* its topic was deleted meanwhile */
        pthread_mutex_unlock(&t->lock);
        free_lent(l);
        ps_leave(s);
        return 0;
    }
    t->why[0] = 0;
    l->of = d;
    l->next = d->lent;
    d->lent = l;
    list_lent(t, l);
    t->bytes += size_of(l);
    while (t->bytes > t->room && t->oldest != l) let_go(t, t->oldest);
    pthread_mutex_unlock(&t->lock);
    announce_lent(s, q);
    ps_leave(s);
    return 0;
}

bool ps_excerpt_record(ps_excerpt *p, int64_t offset, const ps_unit *u, ps_record *r) {
    /* Both may be a stranger's numbers: nothing is counted with before it is known to be small. */
    if (p->base < 0 || u->physical < p->base || u->physical - p->base > p->len) return false;
    int64_t at = u->physical - p->base;
    if (u->size <= 0 || u->size > p->len - at) return false;
    if (p->sums != NULL &&
        !ps_crc32_right(p->records, p->len, p->sums, p->block, at + u->size, &p->right))
        return false;
    return ps_record_check(p->records + at, u->size, u->physical, p->checks, r) == PS_REC_OK &&
           r->size == u->size && r->queue_offset == offset && r->queue_id == p->queue_id &&
           r->topic_len == p->topic_len && memcmp(r->topic, p->topic, (size_t)p->topic_len) == 0;
}

/* Whether the unit leads to a record that is there and whole; it is moved to its place then. */
static bool settle_record(ps_excerpt *x, int64_t offset, const ps_unit *u, int64_t place,
                          uint8_t *records) {
    ps_record r;
    return ps_excerpt_record(x, offset, u, &r) &&
           ps_record_move(records + (u->physical - x->base), u->size, u->physical + place) == 0;
}

/* Units say where records are lent, and records where they lie. A unit whose record is damaged
 * leads to none. Returns how many there are. */
static int32_t settle_units(const ps_excerpt *x, int64_t place, ps_lent *l) {
    int32_t damaged = 0;
    ps_excerpt lent = *x; /* of the records that are moved */
    lent.sums = NULL;
    if (l->records != NULL) lent.records = l->records->mf_map;
    for (int32_t i = 0; i < x->count; i++) {
        uint8_t *at = l->units->mf_map + (int64_t)i * PS_UNIT;
        ps_unit u;
        ps_unit_get(at, &u);
        bool whole = u.physical >= 0 && u.physical < PLACE_MAX && u.size > 0 &&
                     u.size != PS_UNIT_NONE;
        if (whole && l->records != NULL)
            whole = settle_record(&lent, x->first + i, &u, place, l->records->mf_map);
        damaged += !whole;
        if (!whole) u.size = PS_UNIT_NONE;
        if (u.physical >= 0 && u.physical < PLACE_MAX) u.physical += place;
        ps_unit_put(at, &u);
    }
    return damaged;
}

int ps_tier_lend(ps_store *s, ps_topic *topic, const ps_excerpt *x, int64_t place, int32_t anyway,
                 ps_error *e) {
    ps_lent *l = calloc(1, sizeof *l);
    int32_t damaged = 0;
    if (l != NULL) {
        l->first = x->first;
        l->end = x->first + x->count;
        l->units = ps_mapfile_of_bytes(x->units, (int64_t)x->count * PS_UNIT, 0);
        if (x->len > 0) l->records = ps_mapfile_of_bytes(x->records, x->len, place + x->base);
        if (l->units == NULL || (x->len > 0 && l->records == NULL)) {
            free_lent(l);
            l = NULL;
        } else {
            damaged = settle_units(x, place, l);
        }
    }
    if (damaged > 0 && !anyway) {
        free_lent(l);
        return damaged;
    }
    int code = lend_piece(s, topic, x->queue_id, l, e);
    return code < 0 ? code : damaged;
}

int ps_tier_hole(ps_store *s, ps_topic *topic, int32_t queue_id, int64_t first, int64_t end,
                 ps_error *e) {
    ps_lent *l = calloc(1, sizeof *l);
    if (l != NULL) {
        l->first = first;
        l->end = end;
    }
    return lend_piece(s, topic, queue_id, l, e);
}
