/* Where pops wait for messages, or for the news of some: a topic, a group and a queue or any, and
 * who of them tries when some come. Private to csrc/pop/. */
#ifndef PS_POPPLACE_H
#define PS_POPPLACE_H

#include "waits/parked.h"
#include "pop/pop.h"

typedef struct ps_pop_waiter {
    ps_parked pw_parked; /* first, so that a ps_parked * of it is one */
    ps_pop_place *pw_place;
    struct ps_pop_waiter *pw_sooner, *pw_later; /* of its place, by deadline */
    bool pw_listed;                             /* among those */
    int64_t pw_ends; /* ms, monotonic; pk_deadline is before it when its place's timer is here */
    int64_t pw_tried; /* the round of its place in which its like found nothing */
    int64_t pw_number;
    ps_pop_ask pw_ask; /* its texts follow */
    char pw_texts[];
} ps_pop_waiter;

struct ps_pop_place {
    ps_pop_place *pc_next, **pc_link; /* of the topic */
    ps_pop_place *pc_of_pair;         /* the next one of the pair */
    ps_pair *pc_pair;
    ps_topic *pc_topic;
    int32_t pc_queue; /* -1: any */
    int32_t pc_looks; /* 1: of those who ask for the news of messages, 0: for messages */
    int32_t pc_count; /* of those who wait, listed or ready */
    ps_pop_waiter *pc_first, *pc_last;
    ps_pop_waiter *pc_trying; /* ready, since the place was woken; NULL: nobody is */
    ps_pop_waiter *pc_timer;  /* whose deadline wakes the place: order blocks a queue until then;
                                 NULL: nobody's */
    int64_t pc_round;         /* how often it was woken */
    bool pc_news;             /* it is to be woken again after this round */
    bool pc_all;              /* as long as those who try find something */
};

/* NULL: there is none; no memory. */
ps_pop_place *ps_pop_place_find(const ps_pair *pair, const ps_pop_ask *ask);
ps_pop_place *ps_pop_place_add(ps_core *c, ps_pair *pair, ps_topic *t, const ps_pop_ask *ask);
void ps_pop_place_drop(ps_core *c, ps_pop_place *l); /* nobody waits there */

/* Bytes of one who waits. */
static inline int64_t ps_pop_room(const ps_pop_ask *ask) {
    return (int64_t)sizeof(ps_pop_waiter) + ask->topic_len + ask->group_len + ask->filter_len +
           ask->attempt_len;
}
void ps_pop_list(ps_pop_waiter *w);
void ps_pop_unlist(ps_pop_waiter *w);
/* It leaves its place, where another one may try, and is gone. */
void ps_pop_free(ps_pop_waiter *w);

/* Lets the first one try that has not yet, in this round or, if there is news, in one more. */
void ps_pop_try_next(ps_core *c, ps_pop_place *l);
/* Those who wait there may find something. */
void ps_pop_place_wake(ps_core *c, ps_pop_place *l);
/* Its place is to be woken at that time, in the clock of timers; 0: there is no need to. */
void ps_pop_blocked(ps_core *c, ps_pop_waiter *w, int64_t until_ms);
/* A deadline is over: false when it was its own, else that of its place, which is woken. */
bool ps_pop_unblocked(ps_core *c, ps_pop_waiter *w, int64_t now_ms);
/* The same of a queue of a topic that has got messages; and of a pair's queue, and any. */
void ps_pop_arrived(ps_core *c, ps_queue *q);
void ps_pop_wake(ps_core *c, ps_pair *pair, int32_t queue_id);

#endif
