/* Queues that the broker watches: which of SCHEDULE_TOPIC_XXXX, and whether that of
 * rmq_sys_wheel_timer, got messages since the broker looked. */
#include "core/core.h"
#include "core/lock.h"
#include "waits/watched.h"

void ps_watched_arrived(ps_core *c, ps_queue *q) {
    ps_core_watched *w = &c->co_watched;
    if (q->cq_topic == w->wq_schedule && q->cq_id < 64) w->wq_level_news |= 1ull << q->cq_id;
    if (q->cq_topic == w->wq_timer && q->cq_id == 0) w->wq_timer_news = true;
}

int ps_core_watch_level(ps_core *c, int32_t level, int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_topic *schedule = c->co_watched.wq_schedule;
    ps_queue *q = level > 0 && level <= 64 ? ps_topic_queue_get(schedule, level - 1) : NULL;
    if (q == NULL)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "delay level %d is not from 1 to 64", level);
    return ps_arrivals_watch(q, offset);
}

uint64_t ps_core_take_level_news(ps_core *c) {
    PS_CORE_HELD(c);
    uint64_t levels = c->co_watched.wq_level_news;
    c->co_watched.wq_level_news = 0;
    return levels;
}

bool ps_core_has_watched_news(ps_core *c) {
    PS_CORE_HELD(c);
    return c->co_watched.wq_level_news != 0 || c->co_watched.wq_timer_news;
}

int ps_core_watch_timers(ps_core *c, int64_t offset, ps_error *e) {
    PS_CORE_HELD(c);
    ps_queue *q = ps_topic_queue_get(c->co_watched.wq_timer, 0);
    if (q == NULL) return ps_no_memory(e, NULL, "no memory for the queue");
    return ps_arrivals_watch(q, offset);
}

int ps_core_take_timer_news(ps_core *c) {
    PS_CORE_HELD(c);
    int some = c->co_watched.wq_timer_news;
    c->co_watched.wq_timer_news = false;
    return some;
}
