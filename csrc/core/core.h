/* What the files of the protocol core share. Private to csrc/core/. */
#ifndef PS_CORE_H
#define PS_CORE_H

#include <pthread.h>

#include "base/chains.h"
#include "base/clock.h"
#include "base/pool.h"
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
#define PS_REQUEST_POP_LITE_MESSAGE 200070

/* Codes of its answers (upstream ResponseCode). */
#define PS_CODE_SUCCESS 0
#define PS_CODE_SYSTEM_ERROR 1
#define PS_CODE_SYSTEM_BUSY 2
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

/* A topic that the broker has published. */
typedef struct ps_topic_entry {
    ps_chain te_chain;
    int32_t te_len;
    int32_t te_read_queues, te_write_queues, te_perm, te_flags;
    int32_t te_kinds; /* of gRPC's messages that it takes: ps_core_takes */
    ps_topic *te_topic;
    ps_slot te_slot;
    ps_inflow *te_in[PS_KINDS]; /* what was put; NULL: none yet */
    struct ps_tx_tally *te_tx; /* NULL: no transaction of it was decided */
    int64_t te_plain;          /* messages that came without a lite topic, where it has some */
    char te_name[];            /* ends with 0x00 */
} ps_topic_entry;

/* Which messages a pull wants: hashes of tags, compared as upstream does (the client looks at the
 * text again), or an SQL92 expression. Held pulls share it with the subscription it came from. */
typedef struct ps_filter {
    ps_sql92 *ft_sql; /* NULL: tags */
    int32_t ft_refs;
    int32_t ft_tag_count;
    int32_t ft_text_len; /* of a request's own subscription, to know it again */
    int32_t ft_tags_len; /* of its tags, each ended by 0x00: pops compare them by text, too */
    int32_t ft_hashes[]; /* then the text, then the tags */
} ps_filter;

typedef struct ps_mark { /* a group's place in a queue */
    int32_t mk_queue;
    bool mk_changed;
    int64_t mk_offset; /* -1: none */
    int64_t mk_reset;  /* told at the next pull; -1: none */
    int64_t mk_pulled; /* where its last pull ended; -1: none, or not since it was reset */
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

/* Where groups read on in light queues: tables/lightrows.h. */
typedef struct ps_light_offsets {
    ps_pool ot_rows;
    ps_chains ot_by_name;                    /* of readers */
    struct ps_light_reader **ot_readers;     /* by number; NULL: it is free */
    uint32_t ot_numbers, ot_reader_room;
    uint32_t ot_free; /* no number below is free */
    ps_ref *ot_changed; /* a ring, with room for all rows */
    uint32_t ot_changed_at, ot_changed_count, ot_changed_room;
    uint32_t ot_round_left; /* that are to be taken in this round */
    bool ot_loading, ot_uncounted; /* many come at once: what they are behind is counted later */
    ps_buffer ot_names;     /* of what was taken last */
} ps_light_offsets;

typedef struct ps_pop_place ps_pop_place; /* popwait.c */

/* A group and a topic: subscription, consumer offsets, statistics. Of a light queue there is one
 * while a batch is out or a reset waits, and the offset of queue 0 is in ps_light_offsets. */
typedef struct ps_pair {
    ps_chain pr_chain;
    struct ps_pair *pr_all, **pr_all_link; /* list of all, or of all of light queues */
    int32_t pr_group_len, pr_topic_len;
    int32_t pr_flags; /* PS_SUB_, 0: pulls are delegated */
    int64_t pr_sub_version;
    ps_filter *pr_filter; /* of the group; NULL: every message */
    ps_filter *pr_own;    /* of the last request that brought its own */
    ps_mark *pr_marks;    /* by queue */
    int32_t pr_mark_count, pr_mark_room;
    int32_t pr_parked; /* pulls and pops that are parked for it */
    ps_pop_place *pr_places; /* at which pops wait: popwait.c */
    int64_t pr_pop_open; /* check points of it that are open, and ordered batches that are out */
    struct ps_order *pr_orders; /* the first of those batches: orders.h */
    ps_core *pr_core;
    bool pr_light; /* the topic is a light queue */
    struct ps_pair *pr_changed_next, **pr_changed_link; /* link NULL: it is not in that list */
    int64_t pr_round; /* in which it came there */
    ps_slot pr_slot;
    ps_count pr_out[PS_WAYS]; /* what the group was given */
    int64_t pr_points; /* check points that were opened, by it and by its retry topics */
    char pr_names[]; /* group, then topic */
} ps_pair;

typedef struct ps_deferred ps_deferred; /* sent.c */
typedef struct ps_parked ps_parked; /* a pull or a pop that waits for messages: parked.h */
typedef struct ps_cold_pulls ps_cold_pulls; /* coldpull.c */
typedef struct ps_tx ps_tx;     /* halves.h */
typedef struct ps_dedup ps_dedup; /* dedup.c */

typedef struct ps_heartbeat_digest {
    uint64_t low, high;
} ps_heartbeat_digest;

/* The last heartbeat of a connection. */
typedef struct ps_heartbeat {
    ps_heartbeat_digest digest;
    int64_t last_ms;
    uint32_t tables; /* tc_withdrawn when it was kept */
    int32_t opaque;
    bool asked;  /* it was delegated, and Python has not said anything of it */
    bool stands; /* its repeats are answered here */
    bool says_changed;
} ps_heartbeat;

struct ps_conn {
    ps_core *cn_core;
    int64_t cn_id;
    uint8_t cn_host[20];
    int32_t cn_host_len;
    ps_buffer cn_in;   /* the beginning of a frame whose end is still to come */
    int64_t cn_from;   /* bytes of it that are done with */
    int64_t cn_wanted; /* size of that frame, 0: not known yet */
    int32_t cn_delegated; /* PS_DELEGATE_: what is delegated, beside dg_what */
    bool cn_known;     /* a request of it was let in by access control */
    bool cn_let_in;    /* all of them were, before they came here */
    ps_parked *cn_parked;
    ps_heartbeat cn_heartbeat;
};

/* Puts that a call has counted and not added yet: messages of one kind and topic. */
typedef struct ps_tally {
    ps_topic_entry *entry;
    int32_t kind; /* PS_KIND_ */
    ps_inflow in;
} ps_tally;

#define PS_HOLD_NONE 0 /* what a network thread has of the core */
#define PS_HOLD_SHARED 1
#define PS_HOLD_ALONE 2

/* Answers of a call. Owner: answer.c; zerocopy.c has the pieces. */
typedef struct ps_call_answer {
    ps_buffer an_out;
    ps_buffer an_pieces;        /* of an_out's answers */
    ps_buffer an_piece_batches; /* ps_batch *, whose they are */
    int64_t an_piece_bytes;     /* of all pieces */
    bool an_zerocopy;           /* this call's answers may show records where they lie */
} ps_call_answer;

/* The send that is read and put. Owner: sends/. */
typedef struct ps_call_send {
    ps_buffer sd_props;  /* properties as stored; then the offset message ids of the answer */
    ps_buffer sd_places; /* physical offsets of a batch */
    ps_buffer sd_handle; /* of the timer that was put last */
    ps_command *sd_command; /* the send that ps_conn_read_send has read; NULL: none was yet */
    const uint8_t *sd_frame; /* which, until the next call; NULL: none */
    ps_send sd_send;
} ps_call_send;

/* What a pop has found. Owner: pop/. */
typedef struct ps_call_pop {
    ps_buffer cp_text, cp_seen; /* as answered */
    ps_buffer cp_ranks; /* in which order it looks at queues */
    int64_t cp_due_ms; /* when what it has popped ends, if that is before all others; else 0 */
} ps_call_pop;

/* Frames that are delegated. Owner: conn.c. */
typedef struct ps_call_frames {
    ps_frame *fs_first;
    int32_t fs_count, fs_room;
} ps_call_frames;

/* What the call has done so far. Owner: conn.c; puts are counted where they are made. */
typedef struct ps_call_work {
    int64_t wk_began_ns;
    bool wk_put;        /* it has put something */
    bool wk_parked_one; /* it has held a pull */
    bool wk_more; /* whole frames are left: the answers are many, or the time is over */
    int64_t wk_puts, wk_looked; /* messages that it has put, and pulls that it has answered */
    int64_t wk_puts_waiting;    /* put by it, and not safe yet */
    ps_tally wk_tally;
    ps_pulled wk_pulled; /* the last pull that was answered */
} ps_call_work;

/* Requests that it has answered. Owner: metrics.c. */
typedef struct ps_call_rpcs {
    int32_t rp_request;  /* the one that is served */
    int32_t rp_answered; /* the code it was answered with, or PS_RPC_NONE */
    ps_rpc_row rp_rows[PS_RPC_ROWS];
    int32_t rp_count, rp_last;
    bool rp_untimed; /* some row has requests of the call under way */
} ps_call_rpcs;

/* What its network thread has of the core. Owner: lock.c. */
typedef struct ps_call_share {
    pthread_mutex_t sh_lock; /* held by the thread, or by whoever is alone in the core */
    int32_t sh_hold;         /* PS_HOLD_ */
    int64_t sh_since_ns;     /* when it was taken; 0: nobody asks how long it is held */
} ps_call_share;

/* What one caller (lock.h) works with, and what its last call has left for it. But for its share of
 * the core nobody else looks at it, so no lock is needed. */
typedef struct ps_call {
    ps_buffer ca_in;     /* read buffer of connections that have nothing left over */
    uint8_t *ca_scratch; /* PS_HEADER_MAX, for texts that had escapes */
    uint64_t ca_random;
    ps_deferred *ca_deferred; /* answers of it that wait */
    ps_call_answer ca_answer;
    ps_call_send ca_send;
    ps_call_pop ca_pop;
    ps_call_frames ca_frames;
    ps_call_work ca_work;
    ps_call_rpcs ca_rpcs;
    ps_call_share ca_share;
} ps_call;

#define PS_READ_ROOM (256 << 10)
#define PS_CALLERS 18 /* the event loop, and so many network threads less one */

/* Who is in the core, and what each caller works with. Owner: lock.c. */
typedef struct ps_core_lock {
    pthread_mutex_t lo_alone; /* held by who is alone in the core; recursive */
    int32_t lo_depth;         /* calls within calls; that one's */
    ps_core_lock_times lo_times;
    int64_t lo_entered_ns; /* when it was taken last; 0: nobody asks how long it is held */
    bool lo_timed;
    ps_call *lo_calls[PS_CALLERS]; /* NULL: there is no such caller */
    int32_t lo_callers;            /* one more than the last of them */
    void *lo_threads[PS_CALLERS];  /* network threads by their number: net/ */
    struct ps_grave *lo_graves;
} ps_core_lock;

/* What the core was made with: nobody changes it, so no lock is needed. Owner: conn.c. */
typedef struct ps_core_settings {
    char *se_extra; /* MSG_REGION, TRACE_ON and CLUSTER, encoded: a property list */
    int32_t se_extra_len;
    char *se_region, *se_broker; /* broker: its name, in handles */
    bool se_trace_on;
    int64_t se_frame_max;
    bool se_long_polling;
    int32_t se_short_polling_ms, se_parked_max;
    bool se_slave_reads, se_slave;
} ps_core_settings;

/* In what follows, who is alone changes, and who shares the core reads: lock.h. */

/* Bounds of connections. Owner: conn.c. */
typedef struct ps_core_limits {
    int64_t li_first_max;     /* of connections that are not known yet; 0: the same */
    int64_t li_first_refused; /* frames that were larger */
    int64_t li_turn_ns;       /* so long a call goes on; 0: to the end */
} ps_core_limits;

/* What Python decides although the tables know all of it. Owner: delegate.c. */
typedef struct ps_core_delegated {
    int32_t dg_what;                /* PS_DELEGATE_ */
    int64_t dg_sends_from_ms;       /* sends are until then; 0: they are served */
    bool dg_no_lite;                /* LITE_PULL_MESSAGE is */
    _Atomic int64_t dg_leads_until; /* monotonic ms */
} ps_core_delegated;

/* What the broker has published. Owner: tables/. */
typedef struct ps_core_tables {
    ps_chains tc_topics, tc_pairs; /* of ps_topic_entry, of ps_pair */
    ps_pair *tc_all_pairs, *tc_light_pairs; /* but for those of light queues, and those */
    uint32_t tc_light_count;                /* of the latter */
    ps_light_offsets tc_light;
    ps_chains tc_lags, tc_bound; /* of ps_lag, by group and by the queues that it counts */
    ps_marks tc_marks;
    int64_t tc_rules;      /* counts changes of topics and groups */
    uint32_t tc_withdrawn; /* counts what heartbeats rest on and is gone: topics, grants */
} ps_core_tables;

/* Pulls and pops that wait for messages. Owner: waits/; who is alone reads it, too. */
typedef struct ps_core_parking {
    ps_parked **pg_heap; /* by deadline */
    int32_t pg_count, pg_room;
    int32_t pg_pulls; /* of them */
    ps_parked *pg_ready, **pg_ready_end;
    ps_cold_pulls *pg_cold; /* NULL: no pull has waited for the disk yet */
} ps_core_parking;

/* Answers of earlier calls that wait for the log. Owner: sent.c; the flusher ends waits under a
 * lock of theirs (log/safe.h). */
typedef struct ps_core_late {
    ps_waits la_waits;
    int64_t la_last; /* the number that was given last */
} ps_core_late;

/* Queues that Python watches. Owner: watched.c. */
typedef struct ps_core_watched {
    ps_topic *wq_schedule, *wq_timer;
    uint64_t wq_level_news; /* watched delay levels that got messages */
    bool wq_timer_news;     /* the watched queue of timers got some */
} ps_core_watched;

/* What filters of pulls may cost. Owner: pull.c. */
typedef struct ps_core_budget {
    int64_t fb_left; /* now, PS_SQL92_WORK_MAX at most */
    int64_t fb_ms;   /* monotonic time that it was counted at */
} ps_core_budget;

/* Owners: times.c, which adds to totals and times without a lock; statistics.c has the slots. */
typedef struct ps_core_counters {
    ps_core_totals cc_totals;
    ps_core_times cc_times;
    int64_t cc_slots, cc_samples; /* of counters, so far */
    ps_buffer cc_free_slots;
    ps_count cc_gone_puts, cc_gone_gets; /* of what is counted no more */
} ps_core_counters;

struct ps_core {
    ps_core_lock co_lock;
    ps_store *co_store;
    int co_event_fd; /* readable: ps_core_next has something to do */
    ps_core_settings co_settings;
    ps_core_limits co_limits;
    ps_core_delegated co_delegated;
    ps_core_tables co_tables;
    ps_core_parking co_parking;
    ps_core_late co_late;
    ps_core_watched co_watched;
    ps_core_budget co_budget;
    ps_core_counters co_counters;
    ps_tx *co_tx;
    ps_dedup *co_dedup;          /* NULL: nothing is remembered */
    struct ps_pop_state *co_pop; /* NULL: nothing was popped */
    struct ps_lite *co_lite;     /* NULL: no topic has lite topics */
    struct ps_access *co_access; /* NULL: no access control */
};

/* Which of the callers the calling thread is: lock.h. */
extern _Thread_local int32_t ps_caller_now;
/* What it works with. */
static inline ps_call *ps_mine(const ps_core *c) {
    return c->co_lock.lo_calls[ps_caller_now];
}

/* Whether he is alone in the core: lock.h. */
static inline bool ps_is_alone(const ps_core *c) {
    return ps_mine(c)->ca_share.sh_hold != PS_HOLD_SHARED;
}

/* Whether no slave can be acting as master. */
static inline bool ps_core_leads(const ps_core *c) {
    int64_t until = atomic_load_explicit(&c->co_delegated.dg_leads_until, memory_order_relaxed);
    return until == INT64_MAX || ps_monotonic_ms() < until;
}

/* Which queue a message goes to, where a walk begins. */
static inline uint64_t ps_core_random(ps_core *c) {
    uint64_t *random = &ps_mine(c)->ca_random;
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* answer.c */
/* Appends a frame without its body to ca_answer.an_out, and leaves room for that. */
int ps_core_frame(ps_core *c, const ps_command *command, int64_t body_len);
/* The same for an answer, whose flag, language and version are set here. */
int ps_core_answer(ps_core *c, ps_command *answer, int64_t body_len);
/* zerocopy.c: whether an answer shows these records where they lie; then it does so, at the end of
 * ca_answer.an_out, and the batch is kept until the answer is written. */
bool ps_zerocopy_fits(const ps_core *c, const ps_batch_info *b);
int ps_zerocopy_add(ps_core *c, const ps_batch_info *b);
void ps_zerocopy_keep(ps_core *c, ps_batch *batch);
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

/* delegate.c: whether all of it is delegated; and whether a request of this code is the broker's,
 * whatever the tables know. */
bool ps_core_delegates(ps_core *c, int32_t what);
bool ps_conn_delegates(const ps_conn *n, int32_t code);

#endif
