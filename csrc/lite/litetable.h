/* The tables of lite.h. Private to csrc/lite/. */
#ifndef PS_LITETABLE_H
#define PS_LITETABLE_H

#include "base/pool.h"
#include "lite/lite.h"
#include "waits/parked.h"

typedef struct lite_client lite_client;

typedef struct lite_group {
    ps_chain lg_chain; /* hash of the name */
    int32_t lg_clients; /* how many, with those that have left and are not freed */
    int32_t lg_room;    /* events of a client */
    /* Who of it gets an event, within one call. */
    struct lite_group *lg_next; /* of those that are asked */
    bool lg_asked, lg_full; /* full: some have no room, or were not asked */
    uint8_t lg_rank; /* of lg_pick, which is one of lg_picked like it */
    int32_t lg_picked;
    lite_client *lg_pick;
    ps_ref lg_pick_sub; /* 0: it reads all lite topics, and has no event of this one */
    ps_ref lg_held;     /* the event that an idle client has; 0: none does */
    /* Idle clients with events: they neither wait nor are being answered, and may be gone. */
    lite_client *lg_idle, **lg_idle_end;
    int32_t lg_idle_count, lg_polls; /* polls: listed ones of all its clients */
    bool lg_shared; /* several clients have subscribed to one queue, or some to all */
    /* Of those that read all lite topics, who waits is before who does not. */
    lite_client *lg_wild;
    struct lite_group *lg_wild_next, **lg_wild_link; /* of groups that have such */
    bool lg_looks;    /* light queues from lg_at on are to be looked at */
    bool lg_again;    /* and all of them after that: an event found no room */
    uint32_t lg_at;
    int64_t lg_checked;          /* by the rules of then it may read the lite topics of lg_parent */
    uint8_t lg_parent_len;
    int32_t lg_len;
    char lg_parent[255];
    char lg_name[];
} lite_group;

#define LITE_ROUND_BITS 5
#define LITE_ROUNDS ((1 << LITE_ROUND_BITS) - 1)

/* A pair of client and queue; or only an event, of a client that reads all lite topics. */
typedef struct lite_sub {
    ps_entry ls_entry;  /* by the queue's whole name */
    uint32_t ls_client; /* its number */
    ps_ref ls_next, ls_before;             /* of its client, when it is listed: no event alone */
    ps_ref ls_event_next, ls_event_before; /* of its events, when it is one */
    bool ls_listed : 1, ls_is_event : 1;
    bool ls_below : 1; /* ls_name is what follows "%LMQ%$TOPIC$", of its client's topic */
    uint8_t ls_round : LITE_ROUND_BITS; /* lc_round of when its client last said that it has it */
    uint8_t ls_len;
    char ls_name[];
} lite_sub;

typedef struct lite_poll { /* a pop that waits */
    ps_parked lp_parked;   /* first, so that a ps_parked * of it is one */
    lite_client *lp_client;
    struct lite_poll *lp_next, **lp_link; /* of its client; link NULL: it is ready */
    int32_t lp_most, lp_attempt_len;
    int64_t lp_invisible_ms;
    char lp_attempt[];
} lite_poll;

struct lite_client {
    ps_chain lc_chain; /* hash of group and id */
    lite_group *lc_group;
    int32_t lc_at; /* in rg_clients */
    uint32_t lc_number;
    int32_t lc_sub_count, lc_event_count, lc_poll_count; /* polls: listed ones */
    int32_t lc_woken; /* polls that are in no list any more, and not freed */
    int32_t lc_left;  /* queues to look at */
    bool lc_blocked_too; /* those, too, whose batch is out: the same attempt may have it again */
    bool lc_gone;        /* it has left: it is freed when nothing of it is left */
    uint8_t lc_round : LITE_ROUND_BITS;
    int32_t lc_in_round; /* listed pairs of this round */
    ps_ref lc_subs, lc_subs_last;
    ps_ref lc_named;    /* the next one of which ps_lite_names() gives the name; 0: not here yet */
    int32_t lc_to_name; /* so many more that gives at most; 0: nobody asks */
    ps_ref lc_events, lc_events_last;
    lite_poll *lc_polls, **lc_polls_end;
    lite_client *lc_wild_next, **lc_wild_link; /* next: of those that are gone, when it is */
    lite_client *lc_idle_next, **lc_idle_link; /* link NULL: it is not idle, or has no events */
    bool lc_wild, lc_overflowed;
    int64_t lc_version, lc_updated_ms, lc_accessed_ms;
    int32_t lc_id_len, lc_parent_len;
    char lc_names[]; /* id, then parent */
};

typedef struct ps_lite {
    bool rg_on;
    ps_chains rg_groups, rg_by_name; /* of groups, clients */
    ps_pool rg_subs;                 /* of pairs, by their queues */
    lite_client **rg_clients;
    int32_t rg_client_count, rg_client_room;
    /* By number, with those that have left and are not freed; where one is free, the next number
     * that is, plus 1. */
    lite_client **rg_numbered;
    uint32_t rg_number_count, rg_number_room;
    uint32_t rg_free; /* the first number that is free, plus 1; 0: none */
    lite_group *rg_wild;   /* groups with clients that read all lite topics */
    lite_client *rg_gone;
    ps_lite_totals rg_sums; /* but for the clients */
    int32_t rg_events_alone; /* events that are no pairs */
    int32_t rg_news_at;      /* where in rg_news is what is not taken yet */
    ps_buffer rg_news;
    ps_buffer rg_records, rg_counts; /* of one call */
} ps_lite;

/* litetable.c */
uint32_t ps_lite_hash(ps_slice group, ps_slice id); /* of a client */
lite_client *ps_lite_find(const ps_lite *l, ps_slice group, ps_slice id);
lite_client *ps_lite_find_who(const ps_core *c, const ps_lite_who *who);
lite_group *ps_lite_group(const ps_lite *l, ps_slice name);
uint32_t ps_lite_hash_of_sub(const void *lite, const void *sub); /* see ps_pool_hash */
lite_sub *ps_lite_sub_at(const ps_lite *l, ps_ref sub); /* NULL for 0 */
lite_client *ps_lite_client_of(const ps_lite *l, const lite_sub *s);
ps_ref ps_lite_sub(const ps_lite *l, const lite_client *c, ps_slice queue); /* 0: none */
/* The first pair of a queue, and the one after it; 0: no more. */
ps_ref ps_lite_first_of(const ps_lite *l, ps_slice queue);
ps_ref ps_lite_next_of(const ps_lite *l, ps_ref sub, ps_slice queue);
/* Its queue, by its whole name, in `room`. */
ps_slice ps_lite_sub_queue(const ps_lite *l, const lite_sub *s, char room[UINT8_MAX]);
/* Whether a queue is of a lite topic of this client's topic. */
bool ps_lite_reads(const lite_client *c, ps_slice queue);
/* A number for it. False: no memory. */
bool ps_lite_number(ps_lite *l, lite_client *c);
/* Frees one of which nothing is left. */
void ps_lite_free_client(ps_lite *l, lite_client *c);
/* Only an event, until it is listed among those of its client. 0: no memory. */
ps_ref ps_lite_make_sub(ps_lite *l, lite_client *c, ps_slice queue);
void ps_lite_drop_sub(ps_lite *l, ps_ref sub);
void ps_lite_list_sub(ps_lite *l, ps_ref sub); /* as the last of its client, from now on */
void ps_lite_event_add(ps_lite *l, ps_ref sub);
void ps_lite_event_drop(ps_lite *l, ps_ref sub);
void ps_lite_list_wild(ps_lite *l, lite_client *c); /* as the first one of its group */
void ps_lite_unlist_wild(lite_client *c);
void ps_lite_list_idle(lite_client *c); /* as the last one of its group, if it is one by now */
/* The pop of the client that has waited longest tries. */
void ps_lite_wake(ps_core *c, lite_client *client);

/* liteevent.c: false: nobody who reads it had room. */
bool ps_lite_offer(ps_core *c, lite_group *group, ps_slice queue);
/* The same for a pair that is new: its client is there, and one that is idle may not be. */
void ps_lite_offer_new(ps_core *c, ps_ref sub, ps_slice queue);
/* Looks for some of those events of a client that has none left which found no room before. */
void ps_lite_refill(ps_core *c, lite_client *client);
/* Whether there may be some. */
bool ps_lite_may_refill(const lite_client *client);
/* Gives one who asks and has no event at most so many of its queues that idle clients of its group
 * have; returns how many. At most *left of theirs are looked at; the next call goes on. */
int32_t ps_lite_take_over(ps_core *c, lite_client *client, int32_t most, int32_t *left);
/* Those of a client that has been answered, and may be gone, go to others that wait. */
void ps_lite_share(ps_core *c, lite_client *client);
/* Sees to an event when what is out comes back. */
void ps_lite_due(ps_core *c, const ps_pair *pair, int64_t at_ms);
/* The pair's batch of a light queue; NULL: none is out. */
struct ps_order *ps_lite_order(ps_pair *pair);

/* Nobody serves it now: it does not wait, and no answer is on its way. */
static inline bool ps_lite_is_idle(const lite_client *c) {
    return c->lc_polls == NULL && c->lc_woken == 0;
}

/* Whether an event of the client found no room. */
static inline void ps_lite_overflow(ps_lite *l, lite_client *c, bool on) {
    l->rg_sums.overflowed += on - c->lc_overflowed;
    c->lc_overflowed = on;
}

static inline bool ps_lite_is(const char *text, int32_t len, ps_slice other) {
    return len == other.len && memcmp(text, other.data, (size_t)len) == 0;
}

static inline ps_slice ps_lite_queue_of(const ps_pair *p) {
    return ps_slice_from(p->pr_names + p->pr_group_len, p->pr_topic_len);
}

#endif
