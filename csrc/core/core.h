/* What the files of the protocol core share. Private to csrc/core/. */
#ifndef PS_CORE_H
#define PS_CORE_H

#include <pthread.h>

#include "base/chains.h"
#include "base/clock.h"
#include "filter/sql92.h"
#include "store/store.h"
#include "wire/buffer.h"
#include "core/decision.h"
#include "core/metrics.h"
#include "store/placement.h"

/* Codes of requests that the core knows (upstream RequestCode). */
#define PS_REQUEST_SEND_MESSAGE 10
#define PS_REQUEST_PULL_MESSAGE 11
#define PS_REQUEST_UPDATE_CONSUMER_OFFSET 15
#define PS_REQUEST_HEART_BEAT 34
#define PS_REQUEST_END_TRANSACTION 37
#define PS_REQUEST_CHECK_TRANSACTION_STATE 39
#define PS_REQUEST_SEND_MESSAGE_V2 310
#define PS_REQUEST_SEND_BATCH_MESSAGE 320
#define PS_REQUEST_SEND_REPLY_MESSAGE 324
#define PS_REQUEST_SEND_REPLY_MESSAGE_V2 325
#define PS_REQUEST_LITE_PULL_MESSAGE 361
#define PS_REQUEST_POP_MESSAGE 200050
#define PS_REQUEST_ACK_MESSAGE 200051
#define PS_REQUEST_NOTIFICATION 200054

/* Codes of its answers (upstream ResponseCode). */
#define PS_CODE_SUCCESS 0
#define PS_CODE_FLUSH_DISK_TIMEOUT 10
#define PS_CODE_FLUSH_SLAVE_TIMEOUT 12
#define PS_CODE_SERVICE_NOT_AVAILABLE 14
#define PS_CODE_PULL_NOT_FOUND 19
#define PS_CODE_PULL_RETRY_IMMEDIATELY 20
#define PS_CODE_PULL_OFFSET_MOVED 21
#define PS_CODE_POLLING_FULL 209
#define PS_CODE_POLLING_TIMEOUT 210

#define PS_PROTOCOL_VERSION 479 /* MQVersion.V5_3_3 */

#define PS_PERM_WRITE 2
#define PS_PERM_READ 4

/* Messages and bytes that are counted. Samples have them in `slot` from sample `since` on: before,
 * this slot was another's. Slot 0: none yet. */
typedef struct ps_count {
    int64_t messages, bytes, slot, since;
} ps_count;

/* A topic that the broker has published. */
typedef struct ps_topic_entry {
    ps_chain te_chain;
    int32_t te_len;
    int32_t te_read_queues, te_write_queues, te_perm, te_flags;
    int32_t te_kinds; /* of gRPC's messages that it takes: ps_core_takes */
    ps_topic *te_topic;
    ps_count te_put;
    ps_inflow *te_in[PS_KINDS]; /* of sends; NULL: none yet */
    struct ps_tx_tally *te_tx; /* NULL: no transaction of it was decided */
    char te_name[];            /* ends with 0x00 */
} ps_topic_entry;

/* Which messages a pull wants: hashes of tags, compared as upstream does (the client looks at the
 * text again), or an SQL92 expression. Held pulls share it with the subscription it came from. */
typedef struct ps_filter {
    ps_sql92 *fl_sql; /* NULL: tags */
    int32_t fl_refs;
    int32_t fl_tag_count;
    int32_t fl_text_len; /* of a request's own subscription, to know it again */
    int32_t fl_tags_len; /* of its tags, each ended by 0x00: pops compare them by text, too */
    int32_t fl_hashes[]; /* then the text, then the tags */
} ps_filter;

typedef struct ps_mark { /* a group's place in a queue */
    int32_t mk_queue;
    int64_t mk_offset; /* -1: none */
    int64_t mk_reset;  /* told at the next pull; -1: none */
    int64_t mk_pulled; /* where its last pull ended; -1: none, or not since it was reset */
    bool mk_changed;
    int64_t mk_in_flight; /* popped, neither acknowledged nor back */
    struct ps_order *mk_order; /* the ordered batch that is out; NULL: none is */
} ps_mark;

/* Those of all pairs, and the pairs of which some have changed, in the order in which they did. */
typedef struct ps_marks {
    int64_t ms_count, ms_max; /* 0: any number */
    int64_t ms_refused;
    int64_t ms_round;
    struct ps_pair *ms_changed, **ms_changed_end;
    struct ps_pair *ms_taken; /* of which some are taken; NULL: none */
    int32_t ms_taken_queue;   /* those of queues before it are */
} ps_marks;

typedef struct ps_pop_place ps_pop_place; /* popwait.c */

/* A group and a topic: subscription, consumer offsets, statistics. */
typedef struct ps_pair {
    ps_chain pr_chain;
    struct ps_pair *pr_all, **pr_all_link; /* list of all */
    int32_t pr_group_len, pr_topic_len;
    int32_t pr_flags; /* PS_SUB_, 0: pulls are handed on */
    int64_t pr_sub_version;
    ps_filter *pr_filter; /* of the group; NULL: every message */
    ps_filter *pr_own;    /* of the last request that brought its own */
    ps_mark *pr_marks;    /* by queue */
    int32_t pr_mark_count, pr_mark_room;
    int32_t pr_parked; /* pulls and pops that are parked for it */
    ps_pop_place *pr_places; /* at which pops wait: popwait.c */
    int64_t pr_popped; /* check points of it that are open, and ordered batches that are out */
    struct ps_order *pr_orders; /* the first of those batches: orders.h */
    ps_marks *pr_table; /* the core's */
    struct ps_pair *pr_changed_next, **pr_changed_link; /* link NULL: it is not in that list */
    int64_t pr_round; /* in which it came there */
    ps_count pr_got;
    ps_outflow pr_out[PS_WAYS];
    int64_t pr_points; /* check points that were opened, by it and by its retry topics */
    char pr_names[]; /* group, then topic */
} ps_pair;

typedef struct ps_deferred ps_deferred; /* sent.c */
typedef struct ps_parked ps_parked; /* a pull or a pop that waits for messages: parked.h */
typedef struct ps_tx ps_tx;     /* halves.h */
typedef struct ps_dedup ps_dedup; /* dedup.c */

typedef struct ps_beat_digest {
    uint64_t low, high;
} ps_beat_digest;

/* The last heartbeat of a connection. */
typedef struct ps_beat {
    ps_beat_digest digest;
    int64_t last_ms;
    uint32_t tables; /* co_beats when it was kept */
    int32_t opaque;
    bool asked;  /* it was handed on, and Python has not said anything of it */
    bool stands; /* its repeats are answered here */
    bool says_changed;
} ps_beat;

struct ps_conn {
    ps_core *cn_core;
    int64_t cn_id;
    uint8_t cn_host[20];
    int32_t cn_host_len;
    ps_buffer cn_in;   /* the beginning of a frame whose end is still to come */
    int64_t cn_from;   /* bytes of it that are done with */
    int64_t cn_wanted; /* size of that frame, 0: not known yet */
    int32_t cn_up;     /* PS_UP_: what is handed on, beside co_up */
    bool cn_known;     /* a request of it was let in by access control */
    bool cn_let_in;    /* all of them were, before they came here */
    ps_parked *cn_parked;
    ps_beat cn_beat;
};

/* Puts that a call has counted and not added yet: messages of one topic, or of none. */
typedef struct ps_tally {
    ps_topic_entry *entry; /* NULL: none that is published */
    int64_t messages, bytes;
    int32_t kind; /* PS_KIND_ of these; PS_KIND_NONE: in is empty */
    ps_inflow in;
} ps_tally;

#define PS_HOLD_NONE 0 /* what a network thread has of the core */
#define PS_HOLD_SHARED 1
#define PS_HOLD_ALONE 2

/* What one caller (lock.h) works with, and what its last call has left for it. */
typedef struct ps_call {
    ps_buffer co_in;     /* read buffer of connections that have nothing left over */
    ps_buffer co_out;
    ps_buffer co_props;  /* properties as stored; then the offset message ids of the answer */
    ps_buffer co_places; /* physical offsets of a batch */
    ps_buffer co_pieces, co_lent; /* ps_piece of co_out's answers, and whose they are: ps_batch * */
    int64_t co_lent_bytes;        /* of all pieces */
    bool co_lends;                /* this call's answers may show records where they lie */
    ps_buffer co_handle; /* of the timer that was put last */
    ps_buffer co_pop_text, co_pop_seen; /* what a pop has found, as answered */
    ps_buffer co_pop_ranks; /* in which order it looks at queues */
    ps_command *co_open; /* the send that ps_conn_read_send has read; NULL: none was yet */
    const uint8_t *co_open_frame; /* which, until the next call; NULL: none */
    ps_send co_open_send;
    uint8_t *co_scratch; /* PS_HEADER_MAX, for texts that had escapes */
    ps_frame *co_frames;
    int32_t co_frame_count, co_frame_room;
    ps_deferred *co_deferred; /* answers of it that wait */
    ps_pulled co_pulled; /* the last pull that was answered */
    bool co_put;         /* this call has put something */
    bool co_parked_one;  /* this call has held a pull */
    bool co_more; /* whole frames are left: the answers are many, or the time is over */
    int64_t co_pop_due; /* when what it has popped ends, if that is before all others; else 0 */
    int64_t co_began_ns;        /* when it began */
    int64_t co_puts, co_looked; /* messages that it has put, and pulls that it has answered */
    int64_t co_puts_waiting;    /* put by it, and not safe yet */
    ps_tally co_tally;
    int32_t co_request;  /* the one that is served */
    int32_t co_answered; /* the code it was answered with, or PS_RPC_NONE */
    ps_rpc_row co_rpcs[PS_RPC_ROWS]; /* of requests that it has answered */
    int32_t co_rpc_count, co_rpc_last;
    bool co_rpc_untimed; /* some row has requests of the call under way */
    uint64_t co_random;
    pthread_mutex_t co_share; /* held by its network thread, or by whoever is alone in the core */
    int32_t co_hold;          /* PS_HOLD_, of its network thread */
    int64_t co_shared_ns;     /* when the share was taken; 0: nobody asks how long it is held */
} ps_call;

#define PS_READ_ROOM (256 << 10)
#define PS_CALLERS 18 /* the event loop, and so many network threads less one */

struct ps_core {
    pthread_mutex_t co_lock; /* held by who is alone in the core; recursive */
    int32_t co_depth;        /* calls within calls */
    ps_core_lock_times co_lock_times;
    int64_t co_entered_ns; /* when it was taken last; 0: nobody asks how long it is held */
    bool co_times_lock;
    ps_call *co_calls[PS_CALLERS]; /* NULL: there is no such caller */
    int32_t co_callers;            /* one more than the last of them */
    void *co_threads[PS_CALLERS];  /* network threads by their number: net/ */
    struct ps_grave *co_graves;
    ps_store *co_store;
    char *co_extra; /* MSG_REGION, TRACE_ON and CLUSTER, encoded: a property list */
    int32_t co_extra_len;
    char *co_region;
    bool co_trace_on;
    int64_t co_frame_max;
    int64_t co_first_max;     /* of connections that are not known yet; 0: the same */
    int64_t co_first_refused; /* frames that were larger */
    bool co_long_polling;
    int32_t co_short_polling_ms, co_parked_max;
    bool co_slave_reads, co_slave;
    _Atomic int64_t co_leads_until; /* monotonic ms */
    int32_t co_up;       /* PS_UP_: what is handed on */
    int64_t co_sends_from_ms; /* sends are handed on until then; 0: they are served */
    bool co_no_lite;          /* LITE_PULL_MESSAGE is handed on */
    int co_event_fd;

    ps_chains co_topics, co_pairs; /* of ps_topic_entry, of ps_pair */
    uint32_t co_beats; /* counts what heartbeats rest on and is gone: topics, grants */
    ps_pair *co_all_pairs;
    ps_marks co_marks;

    ps_waits co_waits;    /* answers of earlier calls that wait */
    int64_t co_wait_last; /* the number that was given last */
    int64_t co_work_left; /* what filters of pulls may cost now, PS_SQL92_WORK_MAX at most */
    int64_t co_work_ms;   /* monotonic time that it was counted at */
    int64_t co_turn_ns; /* so long it goes on; 0: to the end */
    ps_topic *co_schedule, *co_timer;
    char *co_broker;     /* name of the broker, in handles */
    bool co_timers;      /* the watched queue of timers got messages */
    uint64_t co_levels; /* watched delay levels that got messages */
    ps_tx *co_tx;
    ps_dedup *co_dedup; /* NULL: nothing is remembered */
    struct ps_pops *co_pops; /* NULL: nothing was popped */
    struct ps_access *co_access; /* NULL: no access control */

    ps_parked **co_heap; /* what is parked, by deadline */
    int32_t co_heap_count, co_heap_room;
    int32_t co_parked_pulls; /* of them */
    ps_parked *co_ready, **co_ready_end;
    ps_core_totals co_totals;
    int64_t co_slots, co_samples; /* of counters, so far */
    ps_buffer co_free_slots;
    int64_t co_gone_puts, co_gone_gets; /* of what is counted no more */

    ps_core_times co_times;
};

/* Which of the callers the calling thread is: lock.h. */
extern _Thread_local int32_t ps_caller_now;
/* What it works with. */
static inline ps_call *ps_mine(const ps_core *c) {
    return c->co_calls[ps_caller_now];
}

/* Whether he is alone in the core: lock.h. */
static inline bool ps_is_alone(const ps_core *c) {
    return ps_mine(c)->co_hold != PS_HOLD_SHARED;
}

/* Whether no slave can be acting as master. */
static inline bool ps_core_leads(const ps_core *c) {
    int64_t until = atomic_load_explicit(&c->co_leads_until, memory_order_relaxed);
    return until == INT64_MAX || ps_monotonic_ms() < until;
}

/* Which queue a message goes to, where a walk begins. */
static inline uint64_t ps_core_random(ps_core *c) {
    uint64_t *random = &ps_mine(c)->co_random;
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* answer.c */
/* Appends a frame without its body to co_out, and leaves room for that. */
int ps_core_frame(ps_core *c, const ps_command *command, int64_t body_len);
/* The same for an answer, whose flag, language and version are set here. */
int ps_core_answer(ps_core *c, ps_command *answer, int64_t body_len);
/* zerocopy.c: whether an answer shows these records where they lie; then it does so, at the end of
 * co_out, and the batch is kept until the answer is written. */
bool ps_lends(const ps_core *c, const ps_batch_info *b);
int ps_lend(ps_core *c, const ps_batch_info *b);
void ps_lent_until_written(ps_core *c, ps_batch *batch);
/* The records of a batch after it. */
int ps_core_append_records(ps_core *c, const ps_batch_info *b);

/* times.c */
void ps_times_begin(ps_core *c);
void ps_times_end(ps_core *c);
/* This call has put messages into a topic that is published, or NULL. A caller who shares the core
 * adds them with ps_count_add, before he lets go of it: the entry may be gone then. */
void ps_count_put(ps_core *c, ps_topic_entry *entry, int32_t kind, int64_t messages, int64_t bytes);
void ps_count_add(ps_core *c);
void ps_times_put(ps_core *c, int64_t began_ns, int64_t count);

/* delegate.c: whether all of it is handed on; and whether a request of this code is the broker's,
 * whatever the tables know. */
bool ps_core_hands_on(ps_core *c, int32_t what);
bool ps_conn_goes_up(const ps_conn *n, int32_t code);

#endif
