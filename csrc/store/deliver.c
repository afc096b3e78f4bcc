/* See deliver.h. docs/internals/timers.md; upstream ScheduleMessageService, TimerMessageStore. */
#define _GNU_SOURCE
#include "store/deliver.h"

#include <string.h>

/* Bytes that the disk may be behind: a sender does not wait longer for a delivery. */
#define BEHIND_MAX (64LL << 20)

ps_topic *ps_deliver_topic(ps_store *s, ps_text name) {
    const char *why;
    if (name.len > PS_TOPIC_MAX || ps_topic_check(name.data, name.len, &why) < 0 ||
        ps_text_is(name.data, name.len, PS_HALF_TOPIC))
        return NULL;
    return ps_topic_get(&s->st_topics, (const char *)name.data, (int32_t)name.len);
}

int ps_deliver(ps_store *s, const ps_record *r, ps_text properties, ps_topic *topic,
               int32_t queue_id, bool by_level, int64_t *end, ps_error *e) {
    ps_put_result put;
    ps_message m = {.body = r->body,
                    .body_len = r->body_len,
                    .properties = properties.data,
                    .properties_len = properties.len,
                    .queue_id = queue_id,
                    .flag = r->flag,
                    .sys_flag = r->sys_flag,
                    .reconsume_times = r->reconsume_times,
                    .born_timestamp = r->born_timestamp,
                    .prepared_transaction_offset = r->prepared_transaction_offset,
                    .born_host_len = r->born_host_len};
    memcpy(m.born_host, r->born_host, (size_t)r->born_host_len);
    put.error.code = 0;
    int code = ps_put_message(s, topic, &m, &put);
    if (code < 0) {
        if (e != NULL) *e = put.error;
        return code;
    }
    ps_inflow one = {0};
    ps_inflow_add(&one, 1, put.size);
    ps_inflow_count(&topic->tp_delivered[by_level ? PS_DELAY_LEVEL : PS_DELAY_TIMER], &one);
    *end = put.physical_offset + put.size;
    return 0;
}

bool ps_deliver_waits(ps_store *s) {
    return atomic_load_explicit(&s->st_log.lg_end, memory_order_relaxed) -
               atomic_load_explicit(&s->st_log.lg_flushed, memory_order_relaxed) >
           BEHIND_MAX;
}

const ps_record *ps_deliver_record(ps_store *s, ps_queue *q, int64_t offset, const ps_unit *u,
                                   ps_mapfile **mf, ps_record *out) {
    int64_t avail, end = atomic_load_explicit(&s->st_log.lg_end, memory_order_acquire);
    *mf = NULL;
    const uint8_t *p = u->size == PS_UNIT_NONE || u->physical < 0
                           ? NULL
                           : ps_log_at(&s->st_log, u->physical, end, &avail, mf);
    bool good =
        p != NULL && ps_unit_record(u, p, avail, out) && ps_unit_belongs(s, q, offset, out);
    return good ? out : NULL;
}

int ps_deliver_skip(ps_store *s, ps_queue *q, int64_t offset, int64_t *skipped, ps_error *e) {
    ps_unit u;
    int code = q != NULL ? ps_segments_whole(&q->cq_files, offset * PS_UNIT, e) : 0;
    if (code == 0 && q != NULL && ps_queue_unit(q, offset, &u) && u.size != PS_UNIT_NONE)
        code = ps_segments_whole(&s->st_log.lg_files, u.physical, e);
    *skipped += code == 0;
    return code;
}
