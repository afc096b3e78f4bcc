/* Timers: the queue of rmq_sys_wheel_timer is read into the set of those that wait
 * (timers/pending.h), and what is due goes to its real topic by the one delivery (deliver.h).
 * docs/internals/timers.md; upstream TimerMessageStore.
 *
 * The log is the truth. A record of the queue is a timer, or, with TIMER_DEL_UNIQKEY, takes one
 * away: of the same slot, known by its UNIQ_KEY, with or without `topic+` before it. One with
 * TIMER_ROLL_TIMES takes the place of the one that it repeats. A record elsewhere with
 * TIMER_DEQUEUE_MS is a delivery: those after the saved state are taken out of the set at open, so
 * that a crash between a put and the next save delivers nothing twice. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "files/replace.h"
#include "format/property.h"
#include "store/deliver.h"
#include "store/timertally.h"
#include "timers/pending.h"

#define FOLDER "timers"
#define READ_ROUND 4096 /* records of the queue that are read before what is due is delivered */
#define RECOVER_ROUND 200000 /* the same at the start, between two reports of progress */
#define SAME_SLOT 1024  /* candidates of one slot and hash */

/* A message that was taken away: Java puts those that it rolls into the queue again, after their
 * marks, too. */
typedef struct taken {
    int64_t out_ms;
    uint64_t hash; /* of topic and key */
} taken;

struct ps_timers {
    ps_store *tm_store;
    ps_topic *tm_topic;
    ps_queue *tm_queue; /* NULL: a reader's store has none */
    pthread_mutex_t tm_lock;
    ps_pending tm_pending;
    char tm_folder[PATH_MAX];
    uint8_t *tm_properties; /* as they are delivered */
    int64_t tm_room;
    taken *tm_taken;
    int64_t tm_taken_count, tm_taken_room;
    ps_pending_entry tm_found[SAME_SLOT];
    ps_tallies tm_tallies;
    ps_topic *tm_last;    /* where the last one went; NULL: nowhere */
    bool tm_opened;        /* what is read from now on is new since the start */
    bool tm_counting;      /* false: the saved tallies know what is read now */
    int64_t tm_start;      /* offset from which the queue is read at the start */
    int64_t tm_settled_at; /* physical: up to here the log was searched for deliveries */
    int64_t tm_settle_end; /* up to here it is: all timers before this are in the queue */
};

struct ps_timers_state {
    ps_pending_state state;
};

/* ---- what a record says ---- */

/* A record, and what its properties say of timers. mf: to unref it. */
typedef struct timer_record {
    ps_record r;
    ps_timer_words words;
    ps_mapfile *mf;
} timer_record;

static ps_text value_of(const ps_property *p) {
    return (ps_text){p->value, p->value_len};
}

static bool is_same_text(ps_text a, ps_text b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, (size_t)a.len) == 0);
}

/* FNV-1a. */
static uint64_t hash_on(uint64_t h, ps_text text) {
    for (int64_t i = 0; i < text.len; i++) h = (h ^ text.data[i]) * 1099511628211u;
    return h;
}
#define HASH_FROM 14695981039346656037u

/* What a timer is found by. Of those without a key only the same message has the same one. */
static uint32_t hash_of(ps_text topic, ps_text key, const ps_record *r) {
    uint64_t h = hash_on(hash_on(HASH_FROM, topic), key);
    bool marked = PS_BEGINS(topic.data, topic.len, PS_REVIVE_PREFIX); /* POP asks for those */
    if (key.len == 0 && r != NULL) {
        h = (h ^ (uint64_t)r->born_timestamp) * 1099511628211u;
        h = (h ^ (uint32_t)r->body_crc) * 1099511628211u;
    }
    return ((uint32_t)(h ^ h >> 32) & (PS_PENDING_MARKED - 1)) | (marked ? PS_PENDING_MARKED : 0);
}

/* The record at an offset of the timer queue; false: there is none. Unref its mf either way. */
static bool read_at(ps_timers *t, int64_t offset, timer_record *out) {
    ps_unit u;
    out->mf = NULL;
    if (t->tm_queue == NULL || !ps_queue_unit(t->tm_queue, offset, &u) ||
        ps_deliver_record(t->tm_store, t->tm_queue, offset, &u, &out->mf, &out->r) == NULL)
        return false;
    ps_timer_read_words(out->r.properties, out->r.properties_len, &out->words);
    return true;
}

static bool is_due(const ps_timers *t, const timer_record *x, int64_t *out_ms, int64_t *due) {
    return ps_timer_due(&x->words, x->r.store_timestamp, t->tm_store->st_timer_rules.precision_ms,
                        out_ms, due);
}

/* ---- finding one of the set ---- */

/* What is looked for. like: a record with the same key, or, without one, the same content. */
typedef struct wanted {
    int64_t out_ms;
    ps_text key, topic;
    const ps_record *like;
} wanted;

static bool is_wanted(ps_timers *t, const wanted *w, int64_t offset) {
    timer_record x;
    int64_t out_ms, due;
    bool good = read_at(t, offset, &x) && is_due(t, &x, &out_ms, &due) && out_ms == w->out_ms &&
                is_same_text(value_of(&x.words.uniq_key), w->key) &&
                is_same_text(value_of(&x.words.real_topic), w->topic);
    if (good && w->key.len == 0)
        good = w->like != NULL && x.r.born_timestamp == w->like->born_timestamp &&
               is_same_text((ps_text){x.r.body, x.r.body_len},
                     (ps_text){w->like->body, w->like->body_len});
    ps_mapfile_unref(x.mf);
    return good;
}

static int64_t entries_of(const ps_timers *t) {
    int64_t most = t->tm_pending.pd_count;
    for (int32_t i = 0; i < t->tm_pending.pd_run_count; i++)
        most += t->tm_pending.pd_runs[i].rn_count;
    return most;
}

/* 1, 0 or an error. */
static int find_timer(ps_timers *t, const wanted *w, ps_pending_entry *out, ps_error *e) {
    ps_pending *p = &t->tm_pending;
    ps_pending_entry *found = t->tm_found, *many = NULL;
    int64_t p_ms = t->tm_store->st_timer_rules.precision_ms;
    int64_t hash = hash_of(w->topic, w->key, w->like);
    int64_t to = w->out_ms > INT64_MAX - p_ms ? INT64_MAX : w->out_ms + p_ms;
    if (to < p->pd_delivered) to = p->pd_delivered;
    int64_t n = ps_pending_find(p, w->out_ms, to, hash, found, SAME_SLOT);
    if (n < 0) { /* as many messages of one topic, slot and key: a client may do that */
        int64_t most = entries_of(t);
        found = many = malloc((size_t)most * sizeof *many);
        if (many == NULL) return ps_no_memory(e, NULL, "no memory to find a timer");
        n = ps_pending_find(p, w->out_ms, to, hash, many, most);
    }
    int code = 0;
    for (int64_t i = 0; i < n && code == 0; i++) {
        if (!is_wanted(t, w, ps_pending_offset(found[i].id))) continue;
        *out = found[i];
        code = 1;
    }
    free(many);
    return code;
}

/* ---- how many wait for each topic ---- */

/* Where a timer goes; NULL: nowhere. */
static ps_topic *place_of(ps_timers *t, const ps_timer_words *w, int32_t *queue_id) {
    ps_text name;
    if (!ps_real_place_said(&w->real_topic, &w->real_queue, &name, queue_id)) return NULL;
    if (t->tm_last == NULL || !ps_text_is(name.data, name.len, t->tm_last->tp_name))
        t->tm_last = ps_deliver_topic(t->tm_store, name);
    return t->tm_last;
}

/* NULL: a reader counts nothing, and what goes nowhere is not counted. */
static ps_timer_tally *tally_of(ps_timers *t, const ps_timer_words *w) {
    int32_t queue_id;
    ps_topic *topic = t->tm_store->st_readonly ? NULL : place_of(t, w, &queue_id);
    return topic != NULL ? ps_tally_of(&t->tm_tallies, topic) : NULL;
}

static void count_read(ps_timers *t, const timer_record *x, int64_t due, bool again) {
    ps_timer_tally *row = t->tm_counting ? tally_of(t, &x->words) : NULL;
    if (row == NULL) return;
    row->waiting++;
    if (t->tm_opened && !again) ps_tally_asked(row, due - x->r.store_timestamp);
}

/* One that no longer waits. */
static void count_gone(ps_timers *t, const ps_timer_words *w, bool delivered) {
    ps_timer_tally *row = t->tm_counting ? tally_of(t, w) : NULL;
    if (row == NULL) return;
    row->delivered += delivered;
    row->waiting--;
}

static int cancel_timer(ps_timers *t, const wanted *w, int64_t *count, ps_error *e) {
    ps_pending_entry found;
    timer_record x;
    int code = find_timer(t, w, &found, e);
    if (code <= 0) return code;
    code = ps_pending_cancel(&t->tm_pending, found, e);
    if (code < 0) return code;
    ++*count;
    if (read_at(t, ps_pending_offset(found.id), &x)) count_gone(t, &x.words, false);
    ps_mapfile_unref(x.mf);
    return 0;
}

/* ---- reading the queue ---- */

/* Those whose time has passed are of no interest any more. */
static void drop_past_taken(ps_timers *t) {
    int64_t kept = 0;
    for (int64_t i = 0; i < t->tm_taken_count; i++)
        if (t->tm_taken[i].out_ms + t->tm_store->st_timer_rules.precision_ms >=
            t->tm_pending.pd_delivered)
            t->tm_taken[kept++] = t->tm_taken[i];
    t->tm_taken_count = kept;
}

static int remember_taken(ps_timers *t, const wanted *w, ps_error *e) {
    if (t->tm_taken_count == t->tm_taken_room) drop_past_taken(t);
    if (!PS_GROW(t->tm_taken, t->tm_taken_room, 2 * t->tm_taken_count + 1, 64))
        return ps_no_memory(e, NULL, "no memory for the timers");
    t->tm_taken[t->tm_taken_count++] =
        (taken){w->out_ms, hash_on(hash_on(HASH_FROM, w->topic), w->key)};
    return 0;
}

static bool was_taken(const ps_timers *t, const wanted *w) {
    uint64_t hash = hash_on(hash_on(HASH_FROM, w->topic), w->key);
    for (int64_t i = 0; i < t->tm_taken_count; i++)
        if (t->tm_taken[i].out_ms == w->out_ms && t->tm_taken[i].hash == hash) return true;
    return false;
}

/* A delete mark: `topic+key` as 5.3 writes it, or the key alone as 5.5 does. It takes away messages
 * of its own topic alone, whose sender was allowed to send it. */
static int apply_mark(ps_timers *t, const ps_timer_words *words, int64_t out_ms,
                      int64_t *recalled, ps_error *e) {
    ps_text value = value_of(&words->delete_key);
    wanted w = {out_ms, value, value_of(&words->real_topic), NULL};
    int64_t topic = w.topic.len;
    if (value.len > topic && value.data[topic] == '+' &&
        is_same_text((ps_text){value.data, topic}, w.topic))
        w.key = (ps_text){value.data + topic + 1, value.len - topic - 1};
    int code = remember_taken(t, &w, e);
    return code < 0 ? code : cancel_timer(t, &w, recalled, e);
}

static int read_record(ps_timers *t, int64_t offset, const timer_record *x, int64_t *recalled,
                       ps_error *e) {
    int64_t out_ms, due, repeated = 0, live;
    if (!is_due(t, x, &out_ms, &due)) return 0;
    ps_text key = value_of(&x->words.uniq_key);
    bool again = x->words.roll_times.value != NULL;
    int code = 0;
    if (x->words.delete_key.value != NULL)
        return apply_mark(t, &x->words, out_ms, recalled, e);
    if (again) {
        wanted w = {out_ms, key, value_of(&x->words.real_topic), &x->r};
        code = cancel_timer(t, &w, &repeated, e);
        if (code == 0 && repeated == 0 && was_taken(t, &w)) return 0;
    }
    if (code < 0) return code;
    live = t->tm_pending.pd_live;
    uint32_t hash = hash_of(value_of(&x->words.real_topic), key, &x->r);
    code = ps_pending_add(&t->tm_pending, due, ps_pending_id(offset, hash), e);
    if (t->tm_pending.pd_live > live) count_read(t, x, due, again);
    return code;
}

/* Up to `most` records: 1 when there are more, 0, or an error. */
static int read_queue(ps_timers *t, int64_t most, int64_t *recalled, ps_error *e) {
    ps_pending *p = &t->tm_pending;
    ps_queue *q = t->tm_queue;
    int64_t unreadable = 0; /* counted for nobody: what cannot be read was never pending */
    if (q == NULL) return 0;
    int64_t max = atomic_load_explicit(&q->cq_max, memory_order_acquire);
    int64_t min = atomic_load_explicit(&q->cq_min, memory_order_acquire);
    if (p->pd_next < min) p->pd_next = min;
    for (int64_t n = 0; p->pd_next < max; n++) {
        timer_record x;
        int64_t offset = p->pd_next;
        if (n == most) return 1;
        t->tm_counting = offset >= p->pd_seen;
        int code = read_at(t, offset, &x) ? read_record(t, offset, &x, recalled, e)
                                          : ps_deliver_skip(t->tm_store, q, offset, &unreadable, e);
        ps_mapfile_unref(x.mf);
        if (code < 0) return code;
        p->pd_next = offset + 1;
    }
    return 0;
}

/* ---- what was delivered since the state was saved ---- */

static int settle_record(ps_timers *t, const ps_record *r, int64_t *settled, ps_error *e) {
    static const char mark[] = PS_PROPERTY_NAME("TIMER_DEQUEUE_MS");
    int64_t due;
    wanted w = {0, {NULL, 0}, {r->topic, r->topic_len}, r};
    timer_record x = {.r = *r};
    if (r->properties_len == 0 || ps_text_is(r->topic, r->topic_len, PS_TIMER_TOPIC) ||
        memmem(r->properties, (size_t)r->properties_len, mark, sizeof mark - 1) == NULL)
        return 0;
    ps_timer_read_words(r->properties, r->properties_len, &x.words);
    if (!is_due(t, &x, &w.out_ms, &due)) return 0;
    w.key = value_of(&x.words.uniq_key);
    int64_t before = *settled;
    int code = cancel_timer(t, &w, settled, e);
    if (*settled > before) t->tm_pending.pd_settled = true;
    return code;
}

static int settle_file(ps_timers *t, ps_mapfile *mf, int64_t *at, int64_t end, int64_t *settled,
                       ps_error *e) {
    int64_t file_end = mf->mf_base + mf->mf_size;
    int64_t stop = end < file_end ? end : file_end;
    while (*at < stop) {
        ps_record r;
        ps_rec_outcome o = ps_record_decode(mf->mf_map + (*at - mf->mf_base), stop - *at, &r);
        if (o != PS_REC_OK) break;
        int code = settle_record(t, &r, settled, e);
        if (code < 0) return code;
        *at += r.size;
    }
    /* After a blank record, or damage, which recovery has reported. */
    if (*at < stop || stop == file_end) *at = file_end;
    return 0;
}

/* One segment: 1 when there are more, 0, or an error. */
static int settle_log(ps_timers *t, ps_error *e) {
    ps_store *s = t->tm_store;
    int64_t end = t->tm_settle_end, min = atomic_load(&s->st_log.lg_min);
    int64_t settled = 0, *at = &t->tm_settled_at;
    if (*at < min) *at = min;
    if (t->tm_pending.pd_live == 0 && *at < end) *at = end;
    if (*at >= end) return 0;
    ps_mapfile *mf = ps_segments_find(&s->st_log.lg_files, *at, e);
    if (mf == NULL) return 0;
    t->tm_counting = true;
    int code = settle_file(t, mf, at, end, &settled, e);
    ps_mapfile_unref(mf);
    return code < 0 ? code : 1;
}

/* ---- opening ---- */

static int load_timers(ps_timers *t, ps_error *e) {
    ps_store *s = t->tm_store;
    ps_pending *p = &t->tm_pending;
    int64_t end = atomic_load(&s->st_log.lg_end);
    int code = ps_pending_open(p, s->st_io, t->tm_folder, s->st_readonly, e);
    if (code < 0) return code;
    int64_t max = t->tm_queue != NULL ? atomic_load(&t->tm_queue->cq_max) : 0;
    /* A log or queue that is shorter than what was seen of it has lost its end. */
    if (code > 0 && (p->pd_log_end > end || p->pd_seen > max)) code = 0;
    if (code > 0 && !ps_tallies_load(&t->tm_tallies, s, p->pd_notes, p->pd_notes_len)) code = 0;
    if (code == 0) {
        ps_tallies_free(&t->tm_tallies);
        ps_pending_restart(p, 0);
    }
    t->tm_settled_at = p->pd_log_end;
    t->tm_settle_end = end;
    t->tm_start = p->pd_next;
    return 0;
}

int ps_timers_recover(ps_timers *t, ps_timers_progress *out, ps_error *e) {
    int64_t recalled = 0;
    *out = (ps_timers_progress){0};
    if (ps_enter(t->tm_store) < 0) return ps_refuse_closed(t->tm_store, e);
    pthread_mutex_lock(&t->tm_lock);
    int code = t->tm_opened ? 0 : read_queue(t, RECOVER_ROUND, &recalled, e);
    if (code == 0 && !t->tm_opened) code = settle_log(t, e);
    if (code == 0) t->tm_opened = t->tm_counting = true;
    out->read = t->tm_pending.pd_next - t->tm_start;
    out->records = t->tm_queue != NULL ? atomic_load(&t->tm_queue->cq_max) - t->tm_start : 0;
    out->searched = t->tm_settled_at;
    out->log_end = atomic_load(&t->tm_store->st_log.lg_end);
    pthread_mutex_unlock(&t->tm_lock);
    ps_leave(t->tm_store);
    return code;
}

void ps_timers_read_on(ps_timers *t) {
    if (ps_enter(t->tm_store) < 0) return;
    int64_t end = atomic_load_explicit(&t->tm_store->st_log.lg_end, memory_order_acquire);
    ps_dispatch_catch_up(t->tm_store, NULL);
    pthread_mutex_lock(&t->tm_lock);
    t->tm_settle_end = end;
    t->tm_start = t->tm_pending.pd_next;
    t->tm_opened = false;
    pthread_mutex_unlock(&t->tm_lock);
    ps_leave(t->tm_store);
}

ps_timers *ps_timers_open(ps_store *s, ps_error *e) {
    static const char name[] = PS_TIMER_TOPIC;
    ps_timers *t = calloc(1, sizeof *t);
    if (t == NULL) {
        ps_no_memory(e, NULL, "no memory for the timers");
        return NULL;
    }
    t->tm_store = ps_store_ref(s);
    pthread_mutex_init(&t->tm_lock, NULL);
    int code = ps_path_in(t->tm_folder, s->st_root, FOLDER, e);
    if (code == 0 && (code = ps_enter(s)) < 0) {
        ps_refuse_closed(s, e);
    } else if (code == 0) {
        if (!s->st_readonly) ps_dispatch_catch_up(s, NULL);
        t->tm_topic = s->st_readonly
                          ? ps_topic_find(&s->st_topics, name, (int32_t)sizeof name - 1)
                          : ps_topic_get(&s->st_topics, name, (int32_t)sizeof name - 1);
        if (t->tm_topic != NULL)
            t->tm_queue = s->st_readonly ? ps_topic_queue(t->tm_topic, 0)
                                         : ps_topic_queue_get(t->tm_topic, 0);
        code = load_timers(t, e);
        ps_leave(s);
    }
    if (code == 0) return t;
    ps_timers_close(t);
    return NULL;
}

void ps_timers_close(ps_timers *t) {
    if (t == NULL) return;
    if (t->tm_pending.pd_io != NULL) ps_pending_close(&t->tm_pending);
    pthread_mutex_destroy(&t->tm_lock);
    free(t->tm_properties);
    free(t->tm_taken);
    ps_tallies_free(&t->tm_tallies);
    ps_store_unref(t->tm_store);
    free(t);
}

/* ---- delivering ---- */

/* All its properties, and these. */
static bool compose_properties(ps_timers *t, const ps_record *r, ps_text add, ps_text *out) {
    ps_placement p = {.properties = {r->properties, r->properties_len}, .add = add};
    int64_t room = ps_place_room(&p);
    if (!PS_GROW(t->tm_properties, t->tm_room, room, room)) return false;
    *out = (ps_text){t->tm_properties, ps_place_properties(&p, t->tm_properties)};
    if (out->len > PS_PROPERTIES_MAX) *out = p.properties; /* too full for it: as they are */
    return true;
}

/* What upstream adds: when it began to wait, and when it ended. */
static ps_text put_waited(const ps_timers *t, const ps_record *r, int64_t now, uint8_t *room) {
    int64_t p_ms = t->tm_store->st_timer_rules.precision_ms;
    int64_t began = r->store_timestamp - r->store_timestamp % p_ms;
    uint8_t *to = ps_property_put_number(room, "TIMER_ENQUEUE_MS", began);
    to = ps_property_put_number(to, "TIMER_DEQUEUE_MS", now);
    return (ps_text){room, to - room};
}

static int deliver_one(ps_timers *t, const ps_pending_entry *x, int64_t now, ps_timer_round *out,
                       ps_error *e) {
    timer_record record;
    const ps_record *r = &record.r;
    ps_topic *topic;
    ps_text properties;
    uint8_t added[96];
    int32_t queue_id;
    int64_t out_ms, due = 0;
    int code = 0;
    if (!read_at(t, ps_pending_offset(x->id), &record) ||
        (topic = place_of(t, &record.words, &queue_id)) == NULL ||
        !is_due(t, &record, &out_ms, &due)) {
        code = ps_deliver_skip(t->tm_store, t->tm_queue, ps_pending_offset(x->id), &out->skipped,
                               e);
    } else if (ps_topic_is_past(topic, r->physical_offset)) {
        out->skipped++;
        count_gone(t, &record.words, false);
    } else if (!compose_properties(t, r, put_waited(t, r, now, added), &properties)) {
        code = ps_no_memory(e, NULL, "no memory for a timer");
    } else {
        code = ps_deliver(t->tm_store, r, properties, topic, queue_id, false, &out->end, e);
        out->delivered += code == 0;
        if (code == 0) count_gone(t, &record.words, true);
        if (code == 0 && now - due > out->late_ms) out->late_ms = now - due;
    }
    ps_mapfile_unref(record.mf);
    if (code == 0) ps_pending_pop(&t->tm_pending);
    return code;
}

static int run_timers(ps_timers *t, int64_t now, int32_t most, ps_timer_round *out, ps_error *e) {
    ps_pending_entry first;
    int code = read_queue(t, READ_ROUND, &out->recalled, e);
    if (code < 0) return code;
    out->more = code;
    code = 0;
    for (int32_t n = 0; code == 0; n++) {
        bool some = ps_pending_first(&t->tm_pending, &first);
        out->next_ms = some ? first.due_ms : -1;
        out->next_is_pop = some && (ps_pending_hash(first.id) & PS_PENDING_MARKED) != 0;
        if (!some || first.due_ms > now) break;
        out->waits = n == 0 && ps_deliver_waits(t->tm_store);
        if (n == most || out->waits) {
            out->more = 1;
            break;
        }
        code = deliver_one(t, &first, now, out, e);
    }
    return code;
}

int ps_timers_run(ps_timers *t, int64_t now, int32_t most, ps_timer_round *out, ps_error *e) {
    *out = (ps_timer_round){.next_ms = -1};
    if (t->tm_store->st_readonly)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, NULL,
                       "a store that is open for reading only delivers no timers");
    if (ps_enter(t->tm_store) < 0) return ps_refuse_closed(t->tm_store, e);
    pthread_mutex_lock(&t->tm_lock);
    ps_dispatch_catch_up(t->tm_store, NULL);
    int code = run_timers(t, now != 0 ? now : ps_timer_now(t->tm_store), most, out, e);
    out->pending = t->tm_pending.pd_live;
    out->next_offset = t->tm_pending.pd_next;
    pthread_mutex_unlock(&t->tm_lock);
    ps_leave(t->tm_store);
    return code;
}

/* ---- outliving retention ---- */

/* The first queue offset whose record was not stored before this time. */
static int64_t first_since(ps_timers *t, int64_t before_ms) {
    int64_t low = atomic_load(&t->tm_queue->cq_min), high = t->tm_pending.pd_next;
    while (low < high) {
        timer_record x;
        int64_t mid = low + (high - low) / 2;
        bool old = !read_at(t, mid, &x) || x.r.store_timestamp < before_ms;
        ps_mapfile_unref(x.mf);
        if (old) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* As upstream rolls: the same message once more, which takes the place of this one when it is
 * read. */
static int roll_one(ps_timers *t, const timer_record *x, ps_error *e) {
    uint8_t added[48];
    int64_t times = 0, end;
    const ps_record *r = &x->r;
    const ps_property *said = &x->words.roll_times;
    ps_text properties;
    if (!ps_timer_number(said->value, said->value_len, &times) || times < 0 || times == INT64_MAX)
        times = 0;
    uint8_t *to = ps_property_put_number(added, "TIMER_ROLL_TIMES", times + 1);
    if (!compose_properties(t, r, (ps_text){added, to - added}, &properties))
        return ps_no_memory(e, NULL, "no memory for a timer");
    return ps_deliver(t->tm_store, r, properties, t->tm_topic, 0, false, &end, e);
}

static bool still_waits(ps_timers *t, const ps_pending_entry *x) {
    int64_t n = ps_pending_find(&t->tm_pending, x->due_ms - 1, x->due_ms, ps_pending_hash(x->id),
                                t->tm_found, SAME_SLOT);
    for (int64_t i = 0; i < n; i++)
        if (t->tm_found[i].id == x->id) return true;
    return false;
}

/* One whose topic was deleted meanwhile would come back with its next life: it waits no longer. */
static int roll_or_drop(ps_timers *t, const ps_pending_entry *x, const timer_record *record,
                        ps_error *e) {
    int32_t queue_id;
    ps_topic *topic = place_of(t, &record->words, &queue_id);
    if (topic == NULL || !ps_topic_is_past(topic, record->r.physical_offset))
        return roll_one(t, record, e);
    int code = ps_pending_cancel(&t->tm_pending, *x, e);
    if (code == 0) count_gone(t, &record->words, false);
    return code;
}

static int64_t roll_timers(ps_timers *t, int64_t before_ms, int32_t most, ps_error *e) {
    ps_pending_entry *old = malloc((size_t)most * sizeof *old);
    int64_t rolled = 0, recalled = 0;
    if (old == NULL) return ps_no_memory(e, NULL, "no memory for timers");
    int code = read_queue(t, INT64_MAX, &recalled, e);
    int64_t n = code < 0 ? 0 : ps_pending_before(&t->tm_pending, first_since(t, before_ms), old,
                                                 most);
    for (int64_t i = 0; code == 0 && i < n; i++) {
        timer_record x;
        if (read_at(t, ps_pending_offset(old[i].id), &x) && still_waits(t, &old[i])) {
            code = roll_or_drop(t, &old[i], &x, e);
            rolled += code == 0;
        }
        ps_mapfile_unref(x.mf);
    }
    free(old);
    return code < 0 ? code : rolled;
}

int64_t ps_timers_roll(ps_timers *t, int64_t before_ms, int32_t most, ps_error *e) {
    if (t->tm_store->st_readonly)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, NULL,
                       "a store that is open for reading only rolls no timers");
    if (most < 1)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "%d timers to roll at once: at least 1 is needed", most);
    if (ps_enter(t->tm_store) < 0) return ps_refuse_closed(t->tm_store, e);
    pthread_mutex_lock(&t->tm_lock);
    ps_dispatch_catch_up(t->tm_store, NULL);
    int64_t rolled = roll_timers(t, before_ms, most, e);
    pthread_mutex_unlock(&t->tm_lock);
    ps_leave(t->tm_store);
    return rolled;
}

/* ---- asking ---- */

static void describe_timer(ps_timers *t, const ps_pending_entry *x, ps_timer_row *out) {
    timer_record record;
    int64_t due, offset = ps_pending_offset(x->id);
    *out = (ps_timer_row){x->due_ms, -1, offset, -1, 0, 0};
    if (read_at(t, offset, &record)) {
        const ps_property *topic = &record.words.real_topic;
        is_due(t, &record, &out->out_ms, &due);
        out->physical = record.r.physical_offset;
        out->size = record.r.size;
        out->topic_hash = ps_java_hash(0, topic->value, topic->value_len);
    }
    ps_mapfile_unref(record.mf);
}

int64_t ps_timers_list(ps_timers *t, int64_t from_ms, int64_t to_ms, int32_t pop,
                       ps_timer_row *out, int64_t room, ps_error *e) {
    if (ps_enter(t->tm_store) < 0) return ps_refuse_closed(t->tm_store, e);
    pthread_mutex_lock(&t->tm_lock);
    bool counts = room <= 0 && !pop;
    int64_t most = counts ? 0 : entries_of(t), count;
    ps_pending_entry *all = malloc((size_t)(most + 1) * sizeof *all);
    if (counts) {
        count = ps_pending_count(&t->tm_pending, from_ms, to_ms);
    } else if (all == NULL) {
        count = ps_no_memory(e, NULL, "no memory for a list of timers");
    } else {
        int64_t which = pop ? PS_PENDING_ALL_MARKED : PS_PENDING_ANY;
        count = ps_pending_find(&t->tm_pending, from_ms, to_ms, which, all, most);
        for (int64_t i = 0; i < count && i < room; i++) describe_timer(t, &all[i], &out[i]);
    }
    free(all);
    pthread_mutex_unlock(&t->tm_lock);
    ps_leave(t->tm_store);
    return count;
}

int ps_timers_find(ps_timers *t, const char *topic, int32_t topic_len, const char *key,
                   int32_t key_len, int64_t out_ms, ps_timer_row *out, ps_error *e) {
    wanted w = {out_ms,
                {(const uint8_t *)key, key_len},
                {(const uint8_t *)topic, topic_len},
                NULL};
    ps_pending_entry found;
    int64_t recalled = 0;
    if (ps_enter(t->tm_store) < 0) return ps_refuse_closed(t->tm_store, e);
    pthread_mutex_lock(&t->tm_lock);
    if (!t->tm_store->st_readonly) ps_dispatch_catch_up(t->tm_store, NULL);
    int code = read_queue(t, INT64_MAX, &recalled, e);
    if (code == 0 && key_len > 0) code = find_timer(t, &w, &found, e);
    if (code > 0) describe_timer(t, &found, out);
    pthread_mutex_unlock(&t->tm_lock);
    ps_leave(t->tm_store);
    return code;
}

int64_t ps_timers_tallies(ps_timers *t, ps_timer_tally *out, int64_t room) {
    pthread_mutex_lock(&t->tm_lock);
    int64_t count = t->tm_tallies.ta_count, n = count < room ? count : room;
    if (n > 0) memcpy(out, t->tm_tallies.ta_rows, (size_t)n * sizeof *out);
    pthread_mutex_unlock(&t->tm_lock);
    return count;
}

/* ---- what survives ---- */

ps_timers_state *ps_timers_capture(ps_timers *t, int64_t *log_end, ps_error *e) {
    ps_timers_state *made = calloc(1, sizeof *made);
    int code = made == NULL ? ps_no_memory(e, NULL, "no memory for the state of the timers") : 0;
    if (code < 0) return NULL;
    pthread_mutex_lock(&t->tm_lock);
    int64_t notes_len;
    uint8_t *notes = ps_tallies_save(&t->tm_tallies, t->tm_pending.pd_live, &notes_len);
    /* What delivers by itself knows of all deliveries. */
    *log_end = atomic_load(&t->tm_store->st_follow.fo_on)
                   ? t->tm_settled_at
                   : atomic_load_explicit(&t->tm_store->st_log.lg_end, memory_order_acquire);
    code = notes != NULL
               ? ps_pending_capture(&t->tm_pending, *log_end, notes, notes_len, &made->state, e)
               : ps_no_memory(e, NULL, "no memory for the notes on timers");
    pthread_mutex_unlock(&t->tm_lock);
    free(notes);
    if (code == 0) return made;
    free(made);
    return NULL;
}

int ps_timers_save(ps_store *s, ps_timers_state *state, ps_error *e) {
    char folder[PATH_MAX];
    int code = ps_path_in(folder, s->st_root, FOLDER, e);
    if (code == 0) code = ps_pending_save(s->st_io, folder, &state->state, e);
    free(state->state.bytes);
    free(state);
    return code;
}
