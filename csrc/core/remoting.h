/* The protocol core of a broker: whole read buffers in, answers out, no I/O of its own. It answers
 * plain sends and pulls against the store and against tables that the broker publishes; every other
 * frame is delegated. docs/internals/wire.md#sending, docs/internals/wire.md#pull.
 *
 * Callers are the event loop and network threads (net/). One is in it at a time, or several network
 * threads that put plain messages; what a call leaves for its caller is good until the same caller
 * calls again: lock.h. The store's dispatcher and its flusher write to the eventfd. */
#ifndef PS_REMOTING_H
#define PS_REMOTING_H

#include "format/offsetblock.h"
#include "wire/command.h"

/* cdef begin */
struct ps_pop_found; /* pop/popcheckpoint.h */
typedef struct ps_core ps_core; /* the tables, and the pulls that are held */
typedef struct ps_conn ps_conn; /* one connection */

typedef struct ps_core_conf {
    const char *cluster;      /* CLUSTER of stored messages */
    const char *region;       /* MSG_REGION */
    int32_t trace_on;         /* TRACE_ON */
    int64_t frame_max;        /* bytes of a frame */
    int32_t long_polling;     /* longPollingEnable */
    int32_t short_polling_ms; /* shortPollingTimeMills: how long without it */
    int32_t parked_max;       /* pulls held at once; more are answered at once */
    int64_t offsets_max;      /* of groups in queues, that clients make, and pairs of group and
                               * topic; 0: any */
    const char *broker;       /* name of the broker, for handles; NULL: empty */
    int32_t slave_reads;      /* slaveReadEnable: who is far behind is sent to a slave */
    int32_t slave;            /* it follows a master, which may have more */
    uint64_t seed;            /* of the queues that the core chooses; 0: the clock */
} ps_core_conf;

/* The store must outlive the core. */
ps_core *ps_core_new(ps_store *store, const ps_core_conf *conf, ps_error *error);
void ps_core_free(ps_core *core);    /* after its connections */
int ps_core_event_fd(ps_core *core); /* readable: call ps_core_next */
/* Up to this time of the monotonic clock (ms) the broker is the master for sure. After it pops,
 * acknowledgements and decisions are delegated, since a slave may do the same in its place; a
 * process that was stopped for long serves none of them first. At the beginning there is no end. */
void ps_core_leads_until(ps_core *core, int64_t until_ms);

/* ---- tables; names are copied ---- */
#define PS_SEND_HOT 1  /* sends to the topic are answered here */
#define PS_SEND_ONCE 2 /* and repeats of them are not stored: dedup.h */
#define PS_TOPIC_PRIORITY 4 /* pops look at its queues by priority */
#define PS_TOPIC_MAPPED 8   /* static: its numbers are those of logical queues, but with lo=false */
#define PS_TOPIC_LITE 16    /* it has lite topics */

int ps_core_topic(ps_core *core, const char *name, int32_t len, int32_t read_queues,
                  int32_t write_queues, int32_t perm, int32_t flags, ps_error *error);
void ps_core_forget_topic(ps_core *core, const char *name, int32_t len);
/* Messages that were sent to a PS_TOPIC_LITE without a lite topic since it was published. */
int64_t ps_core_plain_sends(ps_core *core, const char *topic, int32_t topic_len);

#define PS_SUB_GROUP 1 /* pulls without a subscription use this one */
#define PS_SUB_OWN 2   /* pulls may bring their own, of type TAG */
#define PS_SUB_SQL 4   /* and of type SQL92 */

/* The subscription of a group to a topic; pulls of pairs that are not here are delegated. tags:
 * each ended by 0x00, tag_count 0: every message. sql: an SQL92 expression instead, NULL: none;
 * PS_E_EXPRESSION_ILLEGAL when it is malformed. */
int ps_core_subscription(ps_core *core, const char *group, int32_t group_len, const char *topic,
                         int32_t topic_len, int32_t flags, const char *tags, int32_t tags_len,
                         int32_t tag_count, const char *sql, int32_t sql_len, int64_t sub_version,
                         ps_error *error);
void ps_core_forget_group(ps_core *core, const char *group, int32_t group_len);
void ps_core_forget_subscription(ps_core *core, const char *group, int32_t group_len,
                                 const char *topic, int32_t topic_len);

/* ---- consumer offsets ---- */
typedef struct ps_offset_row {
    const char *group, *topic; /* until something is forgotten */
    int32_t group_len, topic_len;
    int32_t queue_id;
    int64_t offset;
} ps_offset_row;

/* Negative queue ids or offsets: PS_E_ARGUMENT. 1: ignored, since a reset is pending. */
int ps_core_commit(ps_core *core, const char *group, int32_t group_len, const char *topic,
                   int32_t topic_len, int32_t queue_id, int64_t offset, ps_error *error);
int64_t ps_core_offset(ps_core *core, const char *group, int32_t group_len, const char *topic,
                       int32_t topic_len, int32_t queue_id); /* -1: none */
/* Where the group's last pull ended, its committed offset at least; -1: neither. In memory alone,
 * as upstream's pullOffsetTable. */
int64_t ps_core_pulled(ps_core *core, const char *group, int32_t group_len, const char *topic,
                       int32_t topic_len, int32_t queue_id);
/* Commits `offset`; the next pull is answered with it and PULL_OFFSET_MOVED. */
int ps_core_reset(ps_core *core, const char *group, int32_t group_len, const char *topic,
                  int32_t topic_len, int32_t queue_id, int64_t offset, ps_error *error);
/* The next offsets that were committed since they were last taken, up to `room`; 0: no more. What
 * is committed after the call that began (begin 1) is for the next round, so that a round ends. */
int64_t ps_core_take_offsets(ps_core *core, int32_t begin, ps_offset_row *out, int64_t room);
/* How often a client was refused one more than offsets_max, since the last call of this. */
int64_t ps_core_offsets_refused(ps_core *core);
/* 1: a client may commit there, which has an offset already, or for which there is room. */
int32_t ps_core_may_commit(ps_core *core, const char *group, int32_t group_len, const char *topic,
                           int32_t topic_len, int32_t queue_id);
/* Commits what blocks (format/offsetblock.h) say. Returns how many rows were refused, as those that
 * are negative are, and in `error` why the first was; PS_E_ARGUMENT: the blocks end in the
 * middle. */
int64_t ps_core_load_offsets(ps_core *core, const uint8_t *blocks, int64_t len, ps_error *error);
/* About so many will be loaded, most of them of light queues: none of their rows moves then. */
void ps_core_expect_offsets(ps_core *core, uint32_t count);
/* The offsets of one group, of one topic or of both (NULL: any), copied, so that whoever reads them
 * takes their time: a block each. names_only 1: blocks without rows; 2: and without light queues.
 * Returns how long all blocks are; if that is more than `room`, `out` is not to be read. */
int64_t ps_core_offsets_of(ps_core *core, const char *group, int32_t group_len, const char *topic,
                           int32_t topic_len, int32_t names_only, uint8_t *out, int64_t room);
int64_t ps_core_pair_count(ps_core *core); /* of group and topic, with or without an offset */
void ps_core_forget_offsets(ps_core *core, const char *group, int32_t group_len, const char *topic,
                            int32_t topic_len); /* a NULL name: any */

/* ---- what Python serves: for hooks, and at the end ---- */
#define PS_DELEGATE_PULLS 1 /* pulls are all delegated: Python serves them */
#define PS_DELEGATE_SENDS 2 /* sends are: the broker decides each of them, see decision.h */
#define PS_DELEGATE_POPS 4  /* pops and acknowledgements are */
#define PS_DELEGATE_ALL 15  /* everything is */
/* From now on, beside what is delegated already; ps_conn_serve serves pulls that are given back. */
void ps_core_delegate(ps_core *core, int32_t what);
/* The same for one connection. */
void ps_conn_delegate(ps_conn *conn, int32_t what);
/* Sends are delegated until then (ms since 1970; 0: they are not), and so are requests of
 * LITE_PULL_MESSAGE unless they are served: the broker refuses them. */
void ps_core_admit(ps_core *core, int64_t sends_from_ms, int32_t lite_pulls);
typedef struct ps_pulled {
    int32_t opaque, code, count; /* code -1: no pull was answered */
    int64_t bytes;
} ps_pulled;
/* The last pull that was answered since the last call of this. */
void ps_core_take_pulled(ps_core *core, ps_pulled *out);

/* ---- delays ---- */
/* 1: queue level - 1 of SCHEDULE_TOPIC_XXXX reaches beyond `offset`; 0: not yet, and
 * ps_core_take_level_news will say when. */
int ps_core_watch_level(ps_core *core, int32_t level, int64_t offset, ps_error *error);
/* Bit level - 1 for each watched level that got messages; forgets them. ps_core_next learns of it.
 */
uint64_t ps_core_take_level_news(ps_core *core);

/* The same of the queue of timers; ps_core_take_timer_news says once whether it got messages. */
int ps_core_watch_timers(ps_core *core, int64_t offset, ps_error *error);
int ps_core_take_timer_news(ps_core *core);

/* ---- statistics, since the core was made ---- */
typedef struct ps_stat_row {
    const char *topic, *group; /* group NULL: puts of the topic, else gets of the pair */
    int32_t topic_len, group_len;
    int64_t messages, bytes;
} ps_stat_row;
int64_t ps_core_statistics(ps_core *core, ps_stat_row *out, int64_t room);

/* All counters at once: messages and bytes by slot, which a counter has from the first sample on
 * that finds it above 0. Returns how many numbers there are; `out` has all of them if there is room
 * for as many; NULL: `about` alone is wanted, and no sample is counted. */
typedef struct ps_sample {
    int64_t number; /* they are counted */
    /* Of all counters, those of topics and groups that are gone, too. */
    int64_t puts, put_bytes, gets, get_bytes;
} ps_sample;
int64_t ps_core_sample(ps_core *core, int64_t *out, int64_t room, ps_sample *about);
typedef struct ps_counter {
    int64_t slot;  /* -1: none yet */
    int64_t since; /* the first sample that has it there: before, the slot was another's */
    int64_t messages, bytes;
} ps_counter;
/* One of them now. group NULL: puts of the topic. Counters of a topic end with
 * ps_core_forget_topic, and those of pairs with ps_core_forget_offsets. */
void ps_core_counter(ps_core *core, const char *group, int32_t group_len, const char *topic,
                     int32_t topic_len, ps_counter *out);

typedef struct ps_core_totals {
    int64_t put_failures, pulls, misses, held, found;
} ps_core_totals;
void ps_core_get_totals(ps_core *core, ps_core_totals *out);

#define PS_TIMES 1011
typedef struct ps_core_times {
    /* messages by how many ms it took to put them: 0 to 1000, then by whole seconds: 1, 2, to 9, 10
     * and more */
    int64_t puts[1011];
    int64_t put_max_ms, get_max_ms;
    int64_t put_ns; /* of all of them */
} ps_core_times;
void ps_core_get_times(ps_core *core, ps_core_times *out);

/* How often somebody was alone in the core, how often somebody had to wait for it, and for how long
 * all of them; how long it was held, alone and shared, from ps_core_time_lock on. */
typedef struct ps_core_lock_times {
    int64_t takes, waits, waited_ns, held_ns, shared_ns;
} ps_core_lock_times;
void ps_core_time_lock(ps_core *core);
void ps_core_get_lock_times(ps_core *core, ps_core_lock_times *out);

/* ---- connections ---- */
typedef struct ps_frame {
    const uint8_t *data;
    int64_t len;
} ps_frame;

/* Bytes that belong into the answers at a place, and lie elsewhere. */
typedef struct ps_piece {
    int64_t at; /* before this byte of `out`, after the pieces before */
    const uint8_t *data;
    int64_t len;
} ps_piece;

/* What one call has brought about. Pointers are good until the next call with the same core. */
typedef struct ps_step {
    int32_t frame_count; /* frames for the broker to serve */
    const ps_frame *frames;
    const uint8_t *out; /* answers, to be written now */
    int64_t out_len;
    const ps_piece *pieces; /* of them, until ps_core_written: network threads alone get any */
    int64_t piece_count;
    int64_t wait;       /* some answers wait until the log is safe, under this number; 0: none do.
                           From ps_core_next: the wait that is over */
    int32_t by_loop;    /* from ps_core_next: the wait began in a call of the event loop */
    int32_t outcome;    /* of that wait: 0, PS_FLUSH_DISK_TIMEOUT or an error code */
    int64_t conn_id;    /* whose answers they are */
    int32_t news;       /* 1: ps_core_next has something to do */
    int64_t look_in_ms; /* a pull or an answer was held: in how many ms to call ps_core_next at the
                           latest, to end the first of all that are; -1: none by this call */
    /* From ps_core_next: what a pop has waited for, the caller's to free, with nothing in it when
     * its time was over; NULL: none is done. number: of ps_conn_pop_wait; `out` is its group, a
     * line feed and its topic then. */
    struct ps_pop_found *found;
    int64_t number; /* without `found`: of ps_conn_wait, whose wait is over; 0: of none */
    int64_t pop_due_ms; /* what was popped is back at this time, before all others; 0: it is not */
    int32_t more;       /* 1: whole frames are left: there is much to write, or the time is over;
                           call ps_conn_received with 0 after it */
    int32_t part;       /* 1: part of a frame is kept: the next room is the connection's own */
    int32_t rare;       /* 0: nothing of all this but `out`, as of most reads */
} ps_step;

/* host: address bytes and i32 port as on disk, 8 or 20 bytes: the born host of its messages. */
ps_conn *ps_conn_new(ps_core *core, int64_t id, const uint8_t *host, int32_t host_len,
                     ps_error *error);
int64_t ps_conn_id(const ps_conn *conn);
void ps_conn_free(ps_conn *conn); /* drops the pulls held for it */
void ps_conn_end_waits(ps_conn *conn); /* drops them before: nobody reads their answers */
/* The room that connections share which keep no part of a frame. */
int64_t ps_core_room(ps_core *core, uint8_t **at);
/* Room to read into: returns its size, > 0, or an error code. Good for one ps_conn_received. */
/* Bytes that are held for the frame whose end is still to come. */
int64_t ps_conn_unfinished(const ps_conn *conn);
int64_t ps_conn_room(ps_conn *conn, uint8_t **at, ps_error *error);
/* `len` bytes were read there; 0 to go on with what was read before (more in the last step).
 * PS_E_FRAME: the connection cannot go on. */
int ps_conn_received(ps_conn *conn, int64_t len, ps_step *out, ps_error *error);
/* The same bytes are kept for a later call, and nothing is served now. */
int ps_conn_keep(ps_conn *conn, int64_t len, ps_step *out, ps_error *error);
/* From now on ps_conn_received ends after so many nanoseconds and the frame under way, or with many
 * frames to hand on; 0: with the last frame. */
void ps_core_turn(ps_core *core, int64_t ns);
struct ps_proof; /* access.h: what the headers of a gRPC call say of who calls; NULL: nothing */
/* A message of a gRPC client, plain and in a queue of the topic's, which has been found fit for it
 * (ps_core_takes). 1: it is stored, and *out is where. 0: nothing has happened, the broker serves
 * it. */
typedef struct ps_plain_put {
    const char *topic;
    int32_t topic_len, queue_id;
    const uint8_t *properties, *body; /* properties: as stored */
    int32_t properties_len;
    int64_t body_len, born_ms;
} ps_plain_put;
typedef struct ps_plain_place { /* physical, end: of its record, in the log */
    int64_t offset, physical;
    int64_t end;        /* which its answer waits for (ps_conn_wait) */
    const char *recall; /* the handle of a timer, until the next call; NULL: it is none */
    int32_t recall_len;
} ps_plain_place;
int ps_conn_put(ps_conn *conn, const struct ps_proof *proof, const ps_plain_put *put,
                ps_plain_place *out);
/* Kinds of messages (bits of MessageType) that gRPC clients may send to a topic, as they were last
 * found; ps_core_topic forgets them. -1 from ps_core_kinds: there is no such topic. */
void ps_core_takes(ps_core *core, const char *topic, int32_t topic_len, int32_t kinds);
/* And the queues that are written to. */
int32_t ps_core_kinds(ps_core *core, const char *topic, int32_t topic_len, int32_t *queues);
/* Acknowledges messages of a topic that a group has popped, each in a delivery that is open;
 * handles: of theirs, which name the topic itself. 1: they are, and *end is what the answer waits
 * for (ps_conn_wait). 0: nothing has happened, or some of them are, and the broker does it. */
struct ps_handle; /* format/handle.h */
int ps_conn_ack(ps_conn *conn, const struct ps_proof *proof, const char *group,
                int32_t group_len, const char *topic, int32_t topic_len,
                const struct ps_handle *handles, int32_t count, int64_t *end);
/* Pops for a gRPC client from any queue of a topic, as a request of the remoting protocol that says
 * the same, which may wait so long (ps_conn_pop_wait). PS_POP_FOUND: *found is the caller's, who
 * frees it; its messages wait for its `end` (ps_conn_wait). *due_ms: when they end, if that is
 * before all others, which the service of POP wants to know; else 0. PS_POP_DELEGATED: nothing has
 * happened, the broker serves it. */
#define PS_POP_DELEGATED 0
#define PS_POP_FOUND 1
#define PS_POP_WAITS 2
typedef struct ps_plain_pop {
    const char *topic, *group, *filter; /* filter: tags or SQL92; NULL: every message */
    int32_t topic_len, group_len, filter_len, sql, most;
    int64_t invisible_ms;
    int32_t ordered, attempt_len;
    const char *attempt; /* of an ordered group; NULL: it names none */
} ps_plain_pop;
int ps_conn_pop(ps_conn *conn, const struct ps_proof *proof, const ps_plain_pop *pop,
                int64_t wait_ms, int64_t number, struct ps_pop_found *found, int64_t *due_ms);
/* One whole frame that was delegated before: 1 served, 0 not. */
int ps_conn_serve(ps_conn *conn, const uint8_t *frame, int64_t len, ps_step *out);

/* Ends the next wait that is over, or answers the next held pull that has news or whose time is
 * over: 1 and *out, or 0. The caller repeats it until 0; *next_ms then says in how many ms to call
 * again, -1: only when the eventfd says so. all 1: every held pull is answered now. */
int ps_core_next(ps_core *core, int32_t all, ps_step *out, int64_t *next_ms);

/* A wait of the caller's own until the log is safe up to `position`, with no answers: out->wait is
 * its number, with which ps_core_next tells its outcome. PS_E_NO_MEMORY. */
int ps_core_wait(ps_core *core, int64_t position, ps_step *out);
/* A call of the connection waits until the log is safe up to `position`: 1, and ps_core_next tells
 * its outcome with this number, above 0, for the connection; 0: it need not; PS_E_NO_MEMORY. puts:
 * messages that it has put, whose time lasts until then. */
int ps_conn_wait(ps_conn *conn, int64_t position, int64_t number, int64_t puts);
int32_t ps_core_waiting(const ps_core *core); /* waits that ps_core_next has not told */
/* cdef end */

/* The pieces of the caller's last step are written, or copied. False: a file was cut off under one,
 * and what was copied of it is not what was stored. */
bool ps_core_written(ps_core *core);

#endif
