/* Putting messages: check and sum before the append lock, stamp and copy inside it, wait for the
 * disk after it. docs/internals/format.md#record, docs/internals/format.md#flushing-and-status;
 * upstream CommitLog.asyncPutMessage(s), MessageExtEncoder.
 *
 * Nothing here allocates, formats or makes a system call on the usual way of a message; the next
 * segment and the next reserved window are made by the allocator thread ahead of time. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "format/messagetype.h"
#include "format/multi.h"
#include "format/property.h"
#include "store/appended.h"
#include "store/placement.h"
#include "store/lights.h"

#define CHUNK 96 /* messages a hold of the append lock: some microseconds */

/* ---- one record; append lock held ---- */

typedef struct placed {
    int64_t queue_offset, physical_offset;
} placed;

static inline placed write_locked(ps_store *s, ps_queue *q, const ps_draft *d, int64_t stamp) {
    ps_mapfile *mf = s->st_log.lg_active;
    int64_t wrote = atomic_load_explicit(&mf->mf_wrote, memory_order_relaxed);
    int tx = d->sys_flag & PS_SYS_TX_MASK;
    bool counted = tx == PS_SYS_TX_NONE || tx == PS_SYS_TX_COMMIT;
    placed at = {counted ? q->cq_next : 0, mf->mf_base + wrote};
    ps_draft_write(d, mf->mf_map + wrote, at.queue_offset, at.physical_offset, stamp);
    if (counted) q->cq_next++;
    atomic_store_explicit(&mf->mf_wrote, wrote + d->size, memory_order_release);
    return at;
}

/* ---- refusals ---- */

static int refuse_slow(ps_store *s, int32_t wait, ps_error *e) {
    if (s->st_readonly)
        return ps_fail(e, PS_E_READ_ONLY, 0, -1, s->st_root, "the store is open for reading only");
    if (atomic_load(&s->st_follow.fo_on))
        return ps_fail(e, PS_E_NOT_WRITEABLE, 0, -1, s->st_root,
                       "the store follows a master, and takes messages from that alone");
    int err = ps_safe_errno(&s->st_safe);
    if (err != 0)
        return ps_fail(e, PS_E_FLUSH_FAILED, err, atomic_load(&s->st_log.lg_flushed), s->st_root,
                       "a sync of the log failed");
    if (atomic_load(&s->st_dispatcher.ds_broken))
        return ps_fail(e, PS_E_NOT_WRITEABLE, s->st_dispatcher.ds_why.sys_errno,
                       s->st_dispatcher.ds_why.offset, s->st_dispatcher.ds_why.where, "%s",
                       s->st_dispatcher.ds_why.text);
    if (wait && ps_safe_refuse(&s->st_safe, e) < 0) return e->code;
    err = atomic_load(&s->st_dispatcher.ds_stall_errno);
    /* The keeper looked some seconds ago, and somebody may have made room since. */
    bool full = atomic_load(&s->st_retention.rt_disk_full) && ps_retention_disk_full(s);
    if (err == 0 && !full) return 0;
    if (err != 0 && ps_errno_code(err) != PS_E_DISK_FULL)
        return ps_fail(e, PS_E_NOT_WRITEABLE, err, -1, s->st_root,
                       "cannot extend a queue or the index yet");
    const char *why = atomic_load(&s->st_retention.rt_waits)
                          ? "disk use exceeds diskSpaceWarningLevelRatio, and the oldest segment"
                            " is not in the cold tier yet"
                          : "disk use exceeds diskSpaceWarningLevelRatio";
    return ps_fail(e, PS_E_DISK_FULL, err, -1, s->st_root, "%s",
                   err != 0 ? "no disk space for queues or index" : why);
}

/* wait 0: whoever puts it does not care whether slaves have it. */
static inline int refuse_put(ps_store *s, int32_t wait, ps_error *e) {
    if (__builtin_expect(
            !s->st_readonly && !atomic_load_explicit(&s->st_follow.fo_on, memory_order_relaxed) &&
                !atomic_load_explicit(&s->st_log.lg_sync_errno, memory_order_relaxed) &&
                !atomic_load_explicit(&s->st_safe.sf_short, memory_order_relaxed) &&
                !atomic_load_explicit(&s->st_dispatcher.ds_broken, memory_order_relaxed) &&
                !atomic_load_explicit(&s->st_retention.rt_disk_full, memory_order_relaxed) &&
                !atomic_load_explicit(&s->st_dispatcher.ds_stall_errno, memory_order_relaxed),
            1))
        return 0;
    return refuse_slow(s, wait, e);
}

static int check_queue_id(int32_t id, ps_error *e) {
    if (__builtin_expect(id >= 0 && id <= PS_QUEUE_ID_MAX, 1)) return 0;
    return ps_fail(e, PS_E_QUEUE_ILLEGAL, 0, -1, NULL, "queue id %d is not between 0 and %d", id,
                   PS_QUEUE_ID_MAX);
}

/* Called when the message is known to be good, so that a refused one leaves no queue behind. */
static int queue_of(ps_topic *topic, int32_t id, ps_queue **q, ps_error *e) {
    *q = ps_topic_queue(topic, id);
    if (__builtin_expect(*q == NULL, 0) && (*q = ps_topic_queue_get(topic, id)) == NULL)
        return ps_no_memory(e, NULL, "no memory for the queue");
    return 0;
}

static void draft_init(ps_store *s, ps_topic *topic, ps_draft *d) {
    memset(d, 0, sizeof *d);
    d->topic = (const uint8_t *)topic->tp_name;
    d->topic_len = topic->tp_len;
    d->store_host = d->born_host = s->st_conf.store_host;
    d->store_host_len = d->born_host_len = s->st_conf.store_host_len;
    d->prop_crc = s->st_conf.append_prop_crc != 0;
    d->long_topic_v2 = s->st_conf.long_topic_v2 != 0;
}

static int measure_draft(ps_store *s, ps_draft *d, int64_t i, ps_error *e) {
    const char *why = "";
    int code = ps_draft_measure(d, s->st_conf.max_message_size, &why);
    if (__builtin_expect(code < 0, 0))
        return ps_fail(e, code, 0, i, NULL, "%s (body %lld bytes, maxMessageSize %lld)", why,
                       (long long)d->body_len, (long long)s->st_conf.max_message_size);
    if (__builtin_expect(d->size + PS_RECORD_SPARE > s->st_log.lg_files.ss_file_size, 0))
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, i, NULL,
                       "a record of %d bytes does not fit into a segment of %lld", d->size,
                       (long long)s->st_log.lg_files.ss_file_size);
    return 0;
}

/* Waits, if it must, until what was put last is safe; *out is the caller's answer. */
static int acknowledge_put(ps_store *s, int32_t wait, ps_put_result *out) {
    int64_t end = out->physical_offset + out->size, since_ms = wait ? ps_monotonic_ms() : 0;
    int code = wait && s->st_safe.sf_sync && end > ps_safe_flushed(&s->st_safe)
                   ? ps_flusher_wait(&s->st_flusher, end, s->st_safe.sf_timeout_ms, &out->error)
                   : 0;
    if (wait && code >= 0) {
        int copied = ps_safe_block_for_copies(&s->st_safe, end, since_ms, &out->error);
        if (copied != 0) code = copied;
    }
    out->status = code > 0 ? code : PS_PUT_OK;
    return code < 0 ? code : 0;
}

/* ---- one message ---- */

/* light: what it asks for beside its own queue; NULL: nothing. */
static int append_draft(ps_store *s, ps_topic *topic, ps_draft *d, ps_light_ask *light,
                        int32_t wait, ps_put_result *out) {
    ps_queue *q;
    int64_t now = ps_now_ms();
    if (d->born_timestamp == 0) d->born_timestamp = now;
    int code = check_queue_id(d->queue_id, &out->error);
    if (code == 0) code = measure_draft(s, d, -1, &out->error);
    if (code == 0) code = queue_of(topic, d->queue_id, &q, &out->error);
    if (code < 0) return code;
    ps_append_lock(&s->st_log);
    if (__builtin_expect(light != NULL, 0))
        code = ps_light_place_locked(s, d, light, &out->error);
    if (code == 0) {
        code = ps_append_room_locked(&s->st_log, &s->st_allocator, d->size, &out->error);
        if (code < 0 && light != NULL) ps_light_give_back_locked(s, light);
    }
    if (code < 0) {
        ps_append_unlock(&s->st_log);
        return code;
    }
    int64_t stamp = ps_append_stamp_locked(&s->st_log, now);
    placed at = write_locked(s, q, d, stamp);
    ps_append_publish_locked(&s->st_log, at.physical_offset + d->size, stamp, 1);
    ps_append_unlock(&s->st_log);
    ps_wake_those_who_read_on(s);
    out->size = d->size;
    out->queue_id = q->cq_id;
    out->store_host_len = s->st_conf.store_host_len;
    memcpy(out->store_host, s->st_conf.store_host, sizeof out->store_host);
    out->queue_offset = at.queue_offset;
    out->physical_offset = at.physical_offset;
    out->store_timestamp = stamp;
    return acknowledge_put(s, wait, out);
}

static int put_draft(ps_store *s, ps_topic *topic, ps_draft *d, int32_t wait, ps_put_result *out) {
    ps_light_ask light;
    if (__builtin_expect(!atomic_load_explicit(&s->st_light_on, memory_order_relaxed), 1))
        return append_draft(s, topic, d, NULL, wait, out);
    int asks = ps_light_asked(s, d, &light, &out->error);
    int code = asks < 0 ? asks : append_draft(s, topic, d, asks ? &light : NULL, wait, out);
    free(light.properties);
    return code;
}

/* Upstream's recovery reads the number of messages in a record from INNER_NUM and INNER_BASE, and
 * cuts the log off where it cannot (CommitLog.checkMessageAndReturnSize): no record that begins
 * here has one. */
static int refuse_inner(const ps_draft *d, int64_t i, ps_error *e) {
    static const char name[] = "INNER_NUM";
    const size_t len = sizeof name - 1;
    ps_property p;
    int32_t at = 0;
    if (d->properties_len < (int64_t)len || d->properties_len > PS_PROPERTIES_MAX ||
        memmem(d->properties, (size_t)d->properties_len, name, len) == NULL)
        return 0;
    while (ps_property_next(d->properties, (int32_t)d->properties_len, &at, &p))
        if (p.name_len == (int32_t)len && memcmp(p.name, name, len) == 0)
            return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, i, NULL,
                           "the store keeps no batch in one record: leave INNER_NUM out");
    return 0;
}

int ps_put(ps_topic *topic, int32_t queue_id, int32_t flag, const void *body, int64_t body_len,
           const void *properties, int64_t properties_len, int32_t wait, ps_put_result *out) {
    ps_store *s = topic->tp_store;
    ps_draft d;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, &out->error);
    int code = refuse_put(s, wait, &out->error);
    if (code == 0) {
        draft_init(s, topic, &d);
        d.body = body;
        d.body_len = body_len;
        d.properties = properties;
        d.properties_len = properties_len;
        d.queue_id = queue_id;
        d.flag = flag;
        code = refuse_inner(&d, -1, &out->error);
        if (code == 0) code = put_draft(s, topic, &d, wait, out);
    }
    ps_leave(s);
    return code;
}

static void draft_of_message(ps_store *s, ps_topic *topic, const ps_message *m, ps_draft *d) {
    draft_init(s, topic, d);
    d->body = m->body;
    d->body_len = m->body_len;
    d->properties = m->properties;
    d->properties_len = m->properties_len;
    d->queue_id = m->queue_id;
    d->flag = m->flag;
    d->sys_flag = m->sys_flag;
    d->reconsume_times = m->reconsume_times;
    d->born_timestamp = m->born_timestamp;
    d->prepared_transaction_offset = m->prepared_transaction_offset;
    if (m->born_host_len == 8 || m->born_host_len == 20) {
        d->born_host = m->born_host;
        d->born_host_len = m->born_host_len;
    }
}

static int put_placed(ps_store *s, ps_topic *topic, const ps_message *m, ps_put_result *out) {
    ps_draft d;
    draft_of_message(s, topic, m, &d);
    return put_draft(s, topic, &d, m->wait, out);
}

/* Where it waits until it is due: the queue of its level, or that of timers. */
static int put_waiting(ps_store *s, ps_topic *topic, const ps_message *m, ps_placement *p,
                       ps_put_result *out) {
    const char *name = p->timed ? PS_TIMER_TOPIC : PS_SCHEDULE_TOPIC;
    ps_message placed = *m;
    p->properties = (ps_text){m->properties, m->properties_len};
    p->topic = (ps_text){(const uint8_t *)topic->tp_name, topic->tp_len};
    p->queue_id = m->queue_id;
    ps_topic *to = ps_topic_get(&s->st_topics, name, (int32_t)strlen(name));
    int code = check_queue_id(m->queue_id, &out->error);
    if (code < 0) return code;
    if (m->properties_len > PS_PROPERTIES_MAX)
        return ps_fail(&out->error, PS_E_PROPERTIES_SIZE_EXCEEDED, 0, -1, NULL,
                       "the properties have %lld bytes, more than %d", (long long)m->properties_len,
                       PS_PROPERTIES_MAX);
    uint8_t *properties = malloc((size_t)ps_place_room(p));
    if (properties == NULL || to == NULL)
        code = ps_no_memory(&out->error, NULL, "no memory for the delay");
    if (code == 0) {
        placed.properties = properties;
        placed.properties_len = ps_place_properties(p, properties);
        placed.queue_id = p->timed ? 0 : p->level - 1;
        code = put_placed(s, to, &placed, out);
    }
    free(properties);
    return code;
}

static int put_message(ps_store *s, ps_topic *topic, const ps_message *m, ps_put_result *out) {
    ps_placement p = {0};
    if (m->delay_level < 0)
        return ps_fail(&out->error, PS_E_ARGUMENT, 0, -1, NULL, "delay_level %d is negative",
                       m->delay_level);
    if (m->delay_level > 0) {
        p.level = ps_delay_level(&s->st_levels, m->delay_level);
    } else if (m->timed) {
        int asks = ps_timer_asked(s, m->properties, m->properties_len, &p.out_ms, &out->error);
        if (asks < 0) return asks;
        p.timed = asks > 0;
    }
    return p.level > 0 || p.timed ? put_waiting(s, topic, m, &p, out)
                                  : put_placed(s, topic, m, out);
}

int ps_put_message(ps_store *s, ps_topic *topic, const ps_message *m, ps_put_result *out) {
    if (ps_enter(s) < 0) return ps_refuse_closed(s, &out->error);
    int code = refuse_put(s, m->wait, &out->error);
    if (code == 0) code = put_message(s, topic, m, out);
    ps_leave(s);
    return code;
}

/* ---- many messages ---- */

static inline int64_t column_get(const ps_column *c, int64_t i, const uint8_t **data) {
    int64_t from, to;
    if (c->offsets32 != NULL) {
        from = c->offsets32[i];
        to = c->offsets32[i + 1];
    } else {
        from = c->offsets64[i];
        to = c->offsets64[i + 1];
    }
    *data = (const uint8_t *)c->data + from;
    return to - from;
}

static inline bool column_there(const ps_column *c) {
    return c->data != NULL && (c->offsets32 != NULL || c->offsets64 != NULL);
}

static inline void draft_of_row(const ps_put_many *m, int64_t i, ps_draft *d) {
    d->body_len = column_get(&m->bodies, i, &d->body);
    if (column_there(&m->tags)) d->tags_len = column_get(&m->tags, i, &d->tags);
    if (column_there(&m->keys)) d->keys_len = column_get(&m->keys, i, &d->keys);
    if (column_there(&m->properties))
        d->properties_len = column_get(&m->properties, i, &d->properties);
    if (m->born_timestamps != NULL) d->born_timestamp = m->born_timestamps[i];
    if (m->flags != NULL) d->flag = m->flags[i];
    d->queue_id = m->queue_ids != NULL ? m->queue_ids[i]
                  : m->queue_count > 1 ? m->queue_first + (int32_t)(i % m->queue_count)
                                       : m->queue_first;
}

static void draft_of_many(ps_store *s, ps_topic *topic, const ps_put_many *m, int64_t now,
                          ps_draft *d) {
    draft_init(s, topic, d);
    d->extra = m->common;
    d->extra_len = m->common_len;
    d->flag = m->flag;
    d->sys_flag = m->sys_flag;
    d->reconsume_times = m->reconsume_times;
    d->born_timestamp = now;
    if (m->born_host_len == 8 || m->born_host_len == 20) {
        d->born_host = m->born_host;
        d->born_host_len = m->born_host_len;
    }
}

/* One lock and one queue for all of them: one that would wait elsewhere is refused, as a client's
 * batch is. A time that has passed makes an ordinary message, as in a single put. */
static int refuse_timer(ps_store *s, const ps_draft *d, int64_t i, ps_error *e) {
    int64_t out_ms;
    if (d->properties_len <= 0 || d->properties_len > PS_PROPERTIES_MAX ||
        !ps_timer_asks(d->properties, (int32_t)d->properties_len))
        return 0;
    int asks = ps_timer_asked(s, d->properties, d->properties_len, &out_ms, e);
    if (asks > 0)
        return ps_fail(e, PS_E_TIMER_ILLEGAL, 0, i, NULL,
                       "message %lld asks for a later time: put it alone", (long long)i);
    return asks;
}

static int refuse_light(ps_store *s, const ps_draft *d, int64_t i, ps_error *e) {
    ps_property p;
    if (!atomic_load(&s->st_light_on) || d->properties_len <= 0 ||
        d->properties_len > PS_PROPERTIES_MAX)
        return 0;
    int32_t len = (int32_t)d->properties_len;
    if (!ps_property_find(d->properties, len, PS_PROPERTY_MULTI_DISPATCH,
                          (int32_t)sizeof PS_PROPERTY_MULTI_DISPATCH - 1, &p) &&
        !ps_property_find(d->properties, len, PS_PROPERTY_LITE_TOPIC,
                          (int32_t)sizeof PS_PROPERTY_LITE_TOPIC - 1, &p))
        return 0;
    return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, i, NULL,
                   "message %lld is of a lite topic: put it alone", (long long)i);
}

/* What a message of many may not ask for. */
static int refuse_asked(ps_store *s, const ps_draft *d, int64_t i, ps_error *e) {
    int code = refuse_timer(s, d, i, e);
    if (code == 0) code = refuse_inner(d, i, e);
    return code == 0 ? refuse_light(s, d, i, e) : code;
}

/* Everything but the sums of the bodies, for every message, so that a bad one is found before the
 * first is stored. A row's properties are checked with an empty body in place of its own. */
static int check_rows(ps_store *s, ps_topic *topic, const ps_put_many *m, ps_error *e) {
    static const uint8_t nothing[1];
    ps_draft d;
    draft_of_many(s, topic, m, 1, &d);
    bool rich = column_there(&m->tags) || column_there(&m->keys) || column_there(&m->properties);
    for (int64_t i = 0; i < m->count; i++) {
        draft_of_row(m, i, &d);
        int64_t body_len = d.body_len;
        d.body = nothing;
        d.body_len = 0;
        int code = 0;
        if (body_len < 0 || body_len > s->st_conf.max_message_size)
            code =
                ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, i, NULL,
                        "the body of message %lld has %lld bytes, more than maxMessageSize %lld",
                        (long long)i, (long long)body_len, (long long)s->st_conf.max_message_size);
        if (code == 0 && (i == 0 || rich)) code = measure_draft(s, &d, i, e);
        if (code == 0 && d.size + body_len + PS_RECORD_SPARE > s->st_log.lg_files.ss_file_size)
            code = ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, i, NULL,
                           "message %lld does not fit into a segment", (long long)i);
        if (code == 0) code = check_queue_id(d.queue_id, e);
        if (code == 0 && column_there(&m->properties)) code = refuse_asked(s, &d, i, e);
        if (code < 0) return code;
    }
    d.properties = m->common;
    d.properties_len = m->common_len;
    return m->count > 0 ? refuse_asked(s, &d, 0, e) : 0;
}

/* Measures rows [from, from + n) into drafts; then one hold of the lock writes them. */
static int put_rows(ps_store *s, ps_topic *topic, const ps_put_many *m, int64_t from, int64_t n,
                    ps_draft *drafts, int64_t *stored, ps_put_result *out) {
    ps_queue *q;
    int code = 0;
    int64_t i = 0, total = 0, stamp, now = drafts[0].born_timestamp;
    for (; i < n && code == 0; i++) {
        if (i > 0) drafts[i] = drafts[0];
        if (m->born_timestamps == NULL) drafts[i].born_timestamp = now;
        draft_of_row(m, from + i, &drafts[i]);
        code = measure_draft(s, &drafts[i], from + i, &out->error);
        /* The caller's buffers may change under us, so what is used is checked here once more. */
        if (code == 0) code = check_queue_id(drafts[i].queue_id, &out->error);
        if (code == 0) code = queue_of(topic, drafts[i].queue_id, &q, &out->error);
        total += drafts[i].size;
    }
    if (code == 0 && m->together && total + PS_RECORD_SPARE > s->st_log.lg_files.ss_file_size)
        code = ps_fail(&out->error, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "a batch of %lld bytes does not fit into a segment", (long long)total);
    if (code < 0) return code;
    ps_append_lock(&s->st_log);
    stamp = ps_append_stamp_locked(&s->st_log, now);
    if (m->together) code = ps_append_room_locked(&s->st_log, &s->st_allocator, total, &out->error);
    for (i = 0; i < n && code == 0; i++) {
        ps_draft *d = &drafts[i];
        if (!m->together &&
            (code = ps_append_room_locked(&s->st_log, &s->st_allocator, d->size, &out->error)) < 0)
            break;
        placed at = write_locked(s, ps_topic_queue(topic, d->queue_id), d, stamp);
        out->size = d->size;
        out->queue_offset = at.queue_offset;
        out->physical_offset = at.physical_offset;
        if (m->physical_offsets != NULL) m->physical_offsets[from + i] = at.physical_offset;
        if (m->queue_offsets != NULL) m->queue_offsets[from + i] = at.queue_offset;
    }
    if (i > 0) ps_append_publish_locked(&s->st_log, out->physical_offset + out->size, stamp, i);
    ps_append_unlock(&s->st_log);
    out->store_timestamp = stamp;
    *stored += i;
    ps_wake_those_who_read_on(s);
    return code;
}

static int put_many(ps_store *s, ps_topic *topic, const ps_put_many *m, int64_t *stored,
                    ps_put_result *out) {
    int64_t chunk = m->together ? m->count : CHUNK, now;
    ps_draft few[CHUNK], *drafts = few;
    int code = check_rows(s, topic, m, &out->error);
    if (code < 0 || m->count == 0) return code;
    if (chunk > CHUNK && (drafts = malloc((size_t)chunk * sizeof *drafts)) == NULL)
        return ps_no_memory(&out->error, NULL, "no memory for the batch");
    for (int64_t i = 0; i < m->count && code == 0; i += chunk) {
        now = ps_now_ms();
        draft_of_many(s, topic, m, now, &drafts[0]);
        code = put_rows(s, topic, m, i, m->count - i < chunk ? m->count - i : chunk, drafts, stored,
                        out);
    }
    if (drafts != few) free(drafts);
    return code == 0 ? acknowledge_put(s, m->wait, out) : code;
}

static int many_arguments(const ps_put_many *m, ps_error *e) {
    if (m->count < 0 || (m->count > 0 && !column_there(&m->bodies)))
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "the bodies lack data or offsets");
    if (m->queue_ids == NULL && (m->queue_count < 0 || m->queue_count > PS_QUEUE_ID_MAX + 1))
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "%d queues are not from 0 to %d",
                       m->queue_count, PS_QUEUE_ID_MAX + 1);
    if (m->together && (m->queue_ids != NULL || m->queue_count > 1))
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "a batch goes to one queue, not to %d",
                       m->queue_count);
    return 0;
}

int ps_put_many_messages(ps_store *s, ps_topic *topic, const ps_put_many *m, int64_t *stored,
                         ps_put_result *out) {
    *stored = 0;
    if (ps_enter(s) < 0) return ps_refuse_closed(s, &out->error);
    int code = refuse_put(s, m->wait, &out->error);
    if (code == 0) code = many_arguments(m, &out->error);
    if (code == 0) code = put_many(s, topic, m, stored, out);
    ps_leave(s);
    return code;
}

/* ---- a client's batch ---- */

typedef struct split {
    int64_t count;
    int64_t *body_at, *props_at; /* count + 1 each; all five share one allocation */
    int32_t *flags;
    uint8_t *bodies, *props;
    ps_text common; /* of all messages */
} split;

/* Java's client puts an UNIQ_KEY of its own among the properties of the whole batch: stored after
 * the one of each message, it would hide that. */
static void drop_batch_id(split *parts, uint8_t *room) {
    static const uint8_t name[] = PS_PROPERTY_NAME("UNIQ_KEY");
    ps_property uniq;
    if (!ps_property_find(parts->common.data, (int32_t)parts->common.len, "UNIQ_KEY", 8, &uniq))
        return;
    ps_placement p = {.properties = parts->common, .drop = {name, sizeof name - 1}};
    parts->common = (ps_text){room, ps_place_properties(&p, room)};
}

/* Counts, then gathers bodies and properties of the items into columns. */
static int split_batch(const ps_message *m, split *out, ps_error *e) {
    ps_batch_item item = {0};
    ps_property uniq;
    bool each_has_id = true;
    int64_t at = 0, n = 0, body = 0, props = 0;
    int rc;
    while ((rc = ps_batch_item_next(m->body, m->body_len, &at, &item)) > 0) {
        n++;
        body += item.body_len;
        props += item.properties_len;
        each_has_id = each_has_id &&
                      ps_property_find(item.properties, item.properties_len, "UNIQ_KEY", 8, &uniq);
    }
    if (rc < 0 || n == 0)
        return ps_fail(e, PS_E_MESSAGE_ILLEGAL, 0, at, NULL, "the batch is malformed at byte %lld",
                       (long long)at);
    size_t heads = (size_t)(n + 1) * (2 * sizeof(int64_t) + sizeof(int32_t));
    uint8_t *block = malloc(heads + (size_t)(body + props + m->properties_len) + 1);
    if (block == NULL) return ps_no_memory(e, NULL, "no memory for the batch");
    *out = (split){n,
                   (int64_t *)block,
                   (int64_t *)block + n + 1,
                   (int32_t *)((int64_t *)block + 2 * (n + 1)),
                   block + heads,
                   block + heads + body,
                   {m->properties, m->properties_len}};
    if (each_has_id) drop_batch_id(out, block + heads + body + props);
    out->body_at[0] = out->props_at[0] = at = 0;
    for (int64_t i = 0; i < n; i++) {
        ps_batch_item_next(m->body, m->body_len, &at, &item);
        out->flags[i] = item.flag;
        memcpy(out->bodies + out->body_at[i], item.body, (size_t)item.body_len);
        memcpy(out->props + out->props_at[i], item.properties, (size_t)item.properties_len);
        out->body_at[i + 1] = out->body_at[i] + item.body_len;
        out->props_at[i + 1] = out->props_at[i] + item.properties_len;
    }
    return 0;
}

int ps_put_client_batch(ps_store *s, ps_topic *topic, const ps_message *m, int64_t *count,
                        int64_t *physical_offsets, ps_put_result *out) {
    split parts = {0};
    *count = 0;
    if (m->body_len > s->st_conf.max_message_size)
        return ps_fail(&out->error, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "the batch has %lld bytes, more than maxMessageSize",
                       (long long)m->body_len);
    if ((m->sys_flag & PS_SYS_TX_MASK) != 0 || topic->tp_len > PS_TOPIC_MAX_V1 ||
        PS_BEGINS(topic->tp_name, topic->tp_len, PS_RETRY_PREFIX))
        return ps_fail(&out->error, PS_E_MESSAGE_ILLEGAL, 0, -1, NULL,
                       "a batch cannot be transactional or go to a retry topic");
    int code = split_batch(m, &parts, &out->error);
    if (code < 0) return code;
    ps_put_many many = {.count = parts.count,
                        .bodies = {parts.bodies, NULL, parts.body_at},
                        .properties = {parts.props, NULL, parts.props_at},
                        .common = parts.common.data,
                        .common_len = parts.common.len,
                        .queue_first = m->queue_id,
                        .queue_count = 1,
                        .flags = parts.flags,
                        .sys_flag = m->sys_flag,
                        .reconsume_times = m->reconsume_times,
                        .born_host_len = m->born_host_len,
                        .wait = m->wait,
                        .together = 1,
                        .physical_offsets = physical_offsets};
    memcpy(many.born_host, m->born_host, sizeof many.born_host);
    code = ps_put_many_messages(s, topic, &many, count, out);
    free(parts.body_at);
    return code;
}
