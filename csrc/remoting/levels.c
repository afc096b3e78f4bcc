/* Queues that the broker watches: which of SCHEDULE_TOPIC_XXXX, whether that of
 * rmq_sys_wheel_timer, and which others that were asked for, got messages since the broker looked.
 */
#include <stdlib.h>

#include "remoting/core.h"
#include "remoting/guard.h"

void ps_levels_arrived(ps_core *c, ps_queue *q) {
    if (q->cq_topic == c->co_schedule && q->cq_id < 64) c->co_levels |= 1ull << q->cq_id;
    if (q->cq_topic == c->co_timer && q->cq_id == 0) c->co_timers = true;
    if (!q->cq_asked) return;
    q->cq_asked = false;
    c->co_news[c->co_news_count++] = q; /* ps_core_watch_queue has made room for it */
}

int ps_core_watch_level(ps_core *c, int32_t level, int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_queue *q = level > 0 && level <= 64 ? ps_topic_queue_get(c->co_schedule, level - 1) : NULL;
    if (q == NULL)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "delay level %d is not from 1 to 64", level);
    return ps_arrivals_watch(q, offset);
}

uint64_t ps_core_levels(ps_core *c) {
    PS_CORE_HELD(c);
    uint64_t levels = c->co_levels;
    c->co_levels = 0;
    return levels;
}

bool ps_core_has_news(ps_core *c) {
    PS_CORE_HELD(c);
    return c->co_levels != 0 || c->co_timers || c->co_news_count > 0;
}

int ps_core_watch_timers(ps_core *c, int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_queue *q = ps_topic_queue_get(c->co_timer, 0);
    if (q == NULL) return ps_fail(e, PS_E_NO_MEMORY, 0, -1, NULL, "no memory for the queue");
    return ps_arrivals_watch(q, offset);
}

int ps_core_timers(ps_core *c) {
    PS_CORE_HELD(c);
    int some = c->co_timers;
    c->co_timers = false;
    return some;
}

/* Room in co_news for one more queue that is watched. */
static bool news_room(ps_core *c) {
    if (c->co_asked < c->co_news_room) return true;
    int32_t room = c->co_news_room ? 2 * c->co_news_room : 64;
    ps_queue **news = realloc(c->co_news, (size_t)room * sizeof(ps_queue *));
    if (news == NULL) return false;
    c->co_news = news;
    c->co_news_room = room;
    return true;
}

int ps_core_watch_queue(ps_core *c, const char *topic, int32_t topic_len, int32_t queue_id,
                        int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_topic *t = ps_topic_open(c->co_store, topic, topic_len, 1, e);
    if (t == NULL) return e->code;
    if (queue_id < 0 || queue_id > PS_QUEUE_ID_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "queue %d is not from 0 to %d", queue_id,
                       PS_QUEUE_ID_MAX);
    ps_queue *q = ps_topic_queue_get(t, queue_id);
    if (q == NULL || (!q->cq_asked && !news_room(c)))
        return ps_fail(e, PS_E_NO_MEMORY, 0, -1, NULL, "no memory for the watch on a queue");
    if (!q->cq_asked) c->co_asked++;
    q->cq_asked = true;
    return ps_arrivals_watch(q, offset);
}

int32_t ps_core_news(ps_core *c, ps_news *out, int32_t room) {
    PS_CORE_HELD(c);
    int32_t n = c->co_news_count < room ? c->co_news_count : room;
    for (int32_t i = 0; i < n; i++) {
        ps_queue *q = c->co_news[--c->co_news_count];
        out[i] = (ps_news){q->cq_name, q->cq_name_len, q->cq_id};
        c->co_asked--;
    }
    return n;
}
