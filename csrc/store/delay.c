/* Delivers messages whose delay is over: from SCHEDULE_TOPIC_XXXX to where they were meant to go.
 * A level is a queue (level - 1) whose units carry the deliver time in place of the tags code; all
 * messages of a level wait equally long, so its first unit is the first to be due.
 * docs/internals/services.md#delays; upstream ScheduleMessageService.
 *
 * Policy: the deliver time of a unit is believed unless it lies further ahead than the level's
 * delay (the clock jumped, or the table of levels was shortened): then it is due now. A unit whose
 * record cannot be read, or that names no topic or the half topic, or one that was deleted while
 * the message waited, is passed over and counted, unless another process has cut its file off: that
 * is an error, and the message waits. A put that fails ends the round at that message, which is
 * tried again: none is lost, and none is delivered twice within one life of the process. */
#define _GNU_SOURCE
#include <string.h>

#include "store/deliver.h"

/* A time farther away than the level's delay comes from a clock that was set back: due now. */
static int64_t due_of(int64_t tags_code, int64_t now, int64_t delay) {
    return tags_code > now + delay ? now : tags_code;
}

/* The unit at out->next_offset: 1 done with, 0 not due yet, or an error code. */
static int deliver_unit(ps_store *s, ps_queue *q, const ps_unit *u, int64_t now, int64_t delay,
                        ps_due *out, ps_error *e) {
    ps_mapfile *mf = NULL;
    ps_topic *topic;
    ps_record record;
    ps_text name;
    int32_t queue_id;
    int code = 1;
    int64_t due = due_of(u->tags_code, now, delay);
    if (due > now) {
        out->next_ms = due;
        return 0;
    }
    const ps_record *r = ps_deliver_record(s, q, out->next_offset, u, &mf, &record);
    if (r != NULL && ps_tags_code_is_address(u->tags_code))
        due = due_of(ps_record_tags_code(r, &s->st_levels), now, delay);
    if (r != NULL && due > now) {
        out->next_ms = due;
        code = 0;
    } else if (r != NULL && ps_real_place(r->properties, r->properties_len, &name, &queue_id) &&
               (topic = ps_deliver_topic(s, name)) != NULL &&
               !ps_topic_is_past(topic, r->physical_offset)) {
        /* Its properties stay as they were stored, as upstream leaves them. */
        ps_text properties = {r->properties, r->properties_len};
        code = ps_deliver(s, r, properties, topic, queue_id, true, &out->end, e);
        out->delivered += code == 0;
        code = code < 0 ? code : 1;
    } else {
        code = ps_deliver_skip(s, q, out->next_offset, &out->skipped, e);
        code = code < 0 ? code : 1;
    }
    ps_mapfile_unref(mf);
    return code;
}

static int deliver_level(ps_store *s, ps_queue *q, int64_t now, int64_t delay, int32_t most,
                         ps_due *out, ps_error *e) {
    int64_t max = atomic_load_explicit(&q->cq_max, memory_order_acquire);
    int code = 1;
    out->next_ms = now;
    for (int32_t n = 0; code > 0 && n < most && out->next_offset < max; n++) {
        ps_unit u;
        if (!ps_queue_unit(q, out->next_offset, &u)) u = (ps_unit){-1, PS_UNIT_NONE, 0};
        code = deliver_unit(s, q, &u, now, delay, out, e);
        if (code > 0) out->next_offset++;
    }
    if (code >= 0 && out->next_offset >= max) out->next_ms = -1;
    return code < 0 ? code : 0;
}

int ps_deliver_due(ps_store *s, int32_t level, int64_t from, int64_t now, int32_t most, ps_due *out,
                   ps_error *e) {
    *out = (ps_due){.next_offset = from, .next_ms = -1};
    if (level < 1 || level > PS_QUEUE_ID_MAX || most < 1)
        return ps_fail(
            e, PS_E_ARGUMENT, 0, -1, NULL,
            "delay level %d is not from 1 to %d, or %d messages at most are fewer than 1", level,
            PS_QUEUE_ID_MAX, most);
    if (ps_enter(s) < 0) return ps_refuse_closed(s, e);
    if (now == 0) now = ps_now_ms();
    int64_t delay = level <= s->st_levels.count ? s->st_levels.delay_ms[level - 1] : 1000;
    ps_dispatch_catch_up(s, NULL);
    ps_topic *t =
        ps_topic_find(&s->st_topics, PS_SCHEDULE_TOPIC, (int32_t)strlen(PS_SCHEDULE_TOPIC));
    ps_queue *q = t != NULL ? ps_topic_queue(t, level - 1) : NULL;
    int code = 0;
    if (q == NULL) {
        out->next_offset = 0; /* where its first message will be */
    } else {
        int64_t min = atomic_load(&q->cq_min), max = atomic_load(&q->cq_max);
        out->next_offset = from < min ? min : from > max ? max : from;
        code = deliver_level(s, q, now, delay, most, out, e);
    }
    ps_leave(s);
    return code;
}
