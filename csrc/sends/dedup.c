/* The messages that are remembered: a ring of places in the log, the oldest makes room, and chains
 * of those with one hash. A message counts as present as long as its queue has it; a half, as long
 * as it is open or was committed: after a rollback the same key is another attempt.
 *
 * The hash has a random seed, so that no producer can choose keys that collide. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "transactions/halves.h"
#include "sends/dedup.h"
#include "core/lock.h"
#include "tables/tables.h"

#define KEY_NAME_MAX 32

typedef struct entry {
    uint64_t en_hash; /* 0: nothing is remembered here */
    int64_t en_physical;
    uint32_t en_next; /* of its bucket, 0: the last */
} entry;

struct ps_dedup {
    entry *on_ring; /* place n is on_ring[n - 1] */
    uint32_t *on_buckets;
    uint32_t on_bucket_count, on_window;
    uint32_t on_next; /* the place to be taken next */
    uint64_t on_seed;
    char on_key[KEY_NAME_MAX + 1];
    int32_t on_key_len;
    ps_dedup_state on_state;
};

/* What a record says of the send that it came from. */
typedef struct origin {
    ps_slice topic, key;
    int32_t queue_id;
    bool moved; /* REAL_TOPIC names its topic: it lies elsewhere, or came from there */
} origin;

static bool text_is(const uint8_t *text, int32_t len, const char *wanted, int32_t wanted_len) {
    return len == wanted_len && memcmp(text, wanted, (size_t)len) == 0;
}
#define IS(r, text) text_is((r)->topic, (r)->topic_len, text, (int32_t)sizeof(text) - 1)

static bool find_property(const uint8_t *props, int32_t len, const char *name, int32_t name_len,
                          ps_slice *out) {
    ps_property p;
    bool found = ps_property_find(props, len, name, name_len, &p);
    *out = found ? (ps_slice){p.value, p.value_len} : (ps_slice){NULL, 0};
    return found && p.value_len > 0;
}

/* ---- life ---- */

void ps_dedup_free(ps_core *c) {
    if (c->co_dedup == NULL) return;
    free(c->co_dedup->on_ring);
    free(c->co_dedup->on_buckets);
    free(c->co_dedup);
    c->co_dedup = NULL;
}

int ps_core_dedup_set(ps_core *c, int64_t window, const char *key, ps_error *e) {
    PS_CORE_HELD(c);
    size_t key_len = strlen(key);
    if (window < 0 || window > PS_DEDUP_MAX || key_len == 0 || key_len > KEY_NAME_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "from 0 to %d messages can be remembered by a property, not %lld by '%.40s'",
                       PS_DEDUP_MAX, (long long)window, key);
    ps_dedup_free(c);
    if (window == 0) return 0;
    ps_dedup *o = c->co_dedup = calloc(1, sizeof *o);
    uint32_t buckets = 16;
    while (buckets < window) buckets *= 2;
    if (o != NULL) {
        o->on_ring = calloc((size_t)window, sizeof *o->on_ring);
        o->on_buckets = calloc(buckets, sizeof *o->on_buckets);
    }
    if (o == NULL || o->on_ring == NULL || o->on_buckets == NULL) {
        ps_dedup_free(c);
        return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL,
                       "no memory for a deduplication window of %lld messages",
                       (long long)window);
    }
    o->on_bucket_count = buckets;
    o->on_window = (uint32_t)window;
    o->on_next = 1;
    o->on_seed = ps_mine(c)->ca_random | 1;
    memcpy(o->on_key, key, key_len);
    o->on_key_len = (int32_t)key_len;
    o->on_state.window = window;
    o->on_state.bytes = (int64_t)(sizeof *o + (size_t)window * sizeof *o->on_ring +
                                  buckets * sizeof *o->on_buckets);
    return 0;
}

void ps_core_dedup_get_state(ps_core *c, ps_dedup_state *out) {
    PS_CORE_HELD(c);
    *out = c->co_dedup != NULL ? c->co_dedup->on_state : (ps_dedup_state){0};
}

/* ---- the table ---- */

static uint64_t mix_hash(uint64_t h, ps_slice s) {
    int32_t at = 0;
    for (; at + 8 <= s.len; at += 8) {
        h = (h ^ be64_get(s.data + at)) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    uint64_t rest = 0;
    for (; at < s.len; at++) rest = rest << 8 | s.data[at];
    h = (h ^ rest ^ (uint64_t)s.len << 56) * 0xBF58476D1CE4E5B9u;
    return h ^ h >> 32;
}

static uint64_t hash_of(const ps_dedup *o, ps_slice topic, ps_slice key) {
    uint64_t hash = mix_hash(mix_hash(o->on_seed, topic), key);
    return hash != 0 ? hash : 1; /* 0: a place that nobody has taken */
}

static uint32_t *bucket_of(ps_dedup *o, uint64_t hash) {
    return &o->on_buckets[hash & (o->on_bucket_count - 1)];
}

/* Takes the entry that *link names out of its chain; its place stays empty until its turn. */
static void drop_entry(ps_dedup *o, uint32_t *link) {
    entry *en = &o->on_ring[*link - 1];
    *link = en->en_next;
    *en = (entry){0};
    o->on_state.remembered--;
}

static void add_entry(ps_dedup *o, uint64_t hash, int64_t physical) {
    uint32_t place = o->on_next, *bucket = bucket_of(o, hash);
    entry *en = &o->on_ring[place - 1];
    if (en->en_hash != 0) {
        uint32_t *link = bucket_of(o, en->en_hash);
        while (*link != place) link = &o->on_ring[*link - 1].en_next;
        drop_entry(o, link);
    }
    *en = (entry){hash, physical, *bucket};
    *bucket = place;
    o->on_next = place < o->on_window ? place + 1 : 1;
    o->on_state.remembered++;
}

/* ---- records ---- */

static bool origin_of(const ps_dedup *o, const ps_record *r, origin *out) {
    bool elsewhere = IS(r, PS_HALF_TOPIC) || IS(r, PS_SCHEDULE_TOPIC);
    out->topic = (ps_slice){r->topic, r->topic_len};
    out->queue_id = r->queue_id;
    ps_slice real;
    out->moved = find_property(r->properties, r->properties_len, "REAL_TOPIC", 10, &real);
    if (elsewhere) {
        ps_text topic;
        if (!ps_real_place(r->properties, r->properties_len, &topic, &out->queue_id)) return false;
        out->topic = real;
    }
    return find_property(r->properties, r->properties_len, o->on_key, o->on_key_len, &out->key);
}

/* Whether consumers, or a commit, can still get at the record. */
static bool is_there(ps_core *c, const ps_record *r) {
    ps_store *s = c->co_store;
    if (IS(r, PS_HALF_TOPIC))
        return ps_halves_find(c->co_tx, r->queue_offset) != 0 ||
               ps_core_tx_decided(c, r->queue_offset) == PS_TX_COMMIT;
    if (!ps_record_has_unit(r)) return false; /* whether or not the dispatcher has seen it */
    /* Looked at first: what lies before it has its unit by now. */
    if (r->physical_offset >= atomic_load(&s->st_dispatcher.ds_end)) return true;
    ps_topic *t = ps_topic_find(&s->st_topics, (const char *)r->topic, r->topic_len);
    ps_queue *q = t != NULL ? ps_topic_queue(t, r->queue_id) : NULL;
    ps_unit unit;
    return q != NULL && ps_queue_unit(q, r->queue_offset, &unit) &&
           unit.physical == r->physical_offset;
}

typedef enum verdict { OTHER, GONE, THERE } verdict;

/* Reads the record that an entry points to. */
static verdict judge_record(ps_core *c, int64_t physical, ps_slice topic, ps_slice key,
                            ps_first *out) {
    ps_mapfile *mf;
    ps_record r;
    origin from;
    verdict v = GONE;
    if (ps_log_has(&c->co_store->st_log, physical, &r, &mf) && origin_of(c->co_dedup, &r, &from)) {
        if (!ps_slice_same(from.topic, topic) || !ps_slice_same(from.key, key))
            v = OTHER;
        else if (is_there(c, &r))
            v = THERE;
        *out = (ps_first){physical, r.queue_offset, r.size, from.queue_id};
    }
    ps_mapfile_unref(mf);
    return v;
}

/* Entries whose message is gone are dropped on the way, so that a key that is sent again and again
 * makes no long chain. */
static bool find_first(ps_core *c, uint64_t hash, ps_slice topic, ps_slice key, ps_first *out) {
    ps_dedup *o = c->co_dedup;
    uint32_t *link = bucket_of(o, hash);
    verdict v = GONE;
    if (*link == 0 || ps_enter(c->co_store) < 0) return false;
    while (*link != 0 && v != THERE) {
        entry *en = &o->on_ring[*link - 1];
        v = en->en_hash == hash ? judge_record(c, en->en_physical, topic, key, out) : OTHER;
        if (v == GONE)
            drop_entry(o, link);
        else
            link = &en->en_next;
    }
    ps_leave(c->co_store);
    return v == THERE;
}

static bool find_one(ps_core *c, ps_slice topic, ps_slice key, ps_first *out) {
    return c->co_dedup != NULL && key.len > 0 &&
           find_first(c, hash_of(c->co_dedup, topic, key), topic, key, out);
}

int ps_core_dedup_find(ps_core *c, const char *topic, int32_t topic_len, const char *key,
                      int32_t key_len, ps_first *out) {
    bool found = find_one(c, ps_slice_from(topic, topic_len), ps_slice_from(key, key_len), out);
    if (found) c->co_dedup->on_state.repeats++;
    return found;
}

void ps_core_dedup_add(ps_core *c, const char *topic, int32_t topic_len, const char *key,
                      int32_t key_len, int64_t physical_offset) {
    ps_dedup *o = c->co_dedup;
    if (o != NULL && key_len > 0)
        add_entry(o, hash_of(o, ps_slice_from(topic, topic_len), ps_slice_from(key, key_len)),
                  physical_offset);
}

ps_slice ps_dedup_key(const ps_core *c, const char *add, int32_t add_len, ps_slice properties) {
    ps_slice key = {NULL, 0};
    const ps_dedup *o = c->co_dedup;
    if (o == NULL) return key;
    const uint8_t *added = (const uint8_t *)add;
    if (add_len == 0 || !find_property(added, add_len, o->on_key, o->on_key_len, &key))
        find_property(properties.data, properties.len, o->on_key, o->on_key_len, &key);
    return key;
}

/* ---- batches ---- */

int32_t ps_core_dedup_find_batch(ps_core *c, const char *topic, int32_t topic_len,
                                const uint8_t *body, int64_t body_len, ps_first *out,
                                int32_t room) {
    ps_batch_item item = {0};
    int64_t at = 0;
    int32_t n = 0;
    int more;
    while (n < room && (more = ps_batch_item_next(body, body_len, &at, &item)) > 0) {
        ps_slice key = ps_dedup_key(c, NULL, 0, (ps_slice){item.properties, item.properties_len});
        if (!find_one(c, ps_slice_from(topic, topic_len), key, &out[n++])) return 0;
    }
    if (n == 0 || at < body_len) return 0;
    c->co_dedup->on_state.repeats += n;
    return n;
}

void ps_core_dedup_add_batch(ps_core *c, const char *topic, int32_t topic_len, const uint8_t *body,
                            int64_t body_len, const int64_t *physical_offsets, int64_t count) {
    ps_batch_item item = {0};
    int64_t at = 0;
    for (int64_t i = 0; i < count && ps_batch_item_next(body, body_len, &at, &item) > 0; i++) {
        ps_slice key = ps_dedup_key(c, NULL, 0, (ps_slice){item.properties, item.properties_len});
        ps_core_dedup_add(c, topic, topic_len, (const char *)key.data, key.len,
                          physical_offsets[i]);
    }
}

/* ---- from the log ---- */

/* Whether the record came from a send that is to be remembered. */
static bool counts_for_repeats(ps_core *c, const ps_record *r, origin *out) {
    if (!origin_of(c->co_dedup, r, out)) return false;
    ps_topic_entry *t = ps_core_find_topic(c, out->topic.data, out->topic.len);
    return t != NULL && (t->te_flags & PS_SEND_ONCE);
}

/* Of one segment: how many messages count; adding: remembers those that are the first of theirs.
 * What cannot be read ends the segment, since only the log's own check may say more about it. */
static int64_t scan_segment(ps_core *c, int64_t base, bool adding) {
    ps_dedup *o = c->co_dedup;
    ps_mapfile *mf;
    ps_record r;
    origin from;
    ps_first first;
    int64_t n = 0, avail, end = atomic_load(&c->co_store->st_log.lg_end);
    const uint8_t *p = ps_log_at(&c->co_store->st_log, base, end, &avail, &mf);
    while (p != NULL && avail > 0 && ps_record_decode(p, avail, &r) == PS_REC_OK) {
        if (counts_for_repeats(c, &r, &from)) {
            bool moved = from.moved && !IS(&r, PS_HALF_TOPIC) && !IS(&r, PS_SCHEDULE_TOPIC);
            n += !moved; /* delivered or committed: its first life counts */
            uint64_t hash = hash_of(o, from.topic, from.key);
            if (adding && !find_first(c, hash, from.topic, from.key, &first))
                add_entry(o, hash, r.physical_offset);
        }
        p += r.size;
        avail -= r.size;
    }
    ps_mapfile_unref(mf);
    return n;
}

int ps_core_dedup_build(ps_core *c, ps_error *e) {
    PS_CORE_HELD(c);
    ps_store *s = c->co_store;
    ps_dedup *o = c->co_dedup;
    if (o == NULL) return 0;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    int64_t size = s->st_log.lg_files.ss_file_size, min = atomic_load(&s->st_log.lg_min);
    int64_t end = atomic_load(&s->st_log.lg_end), base = end - end % size, found = 0;
    for (; base >= min - min % size; base -= size)
        if ((found += scan_segment(c, base, false)) >= o->on_window) break;
    if (base < min - min % size) base += size;
    for (; base < end; base += size) scan_segment(c, base, true);
    ps_leave(s);
    return 0;
}
