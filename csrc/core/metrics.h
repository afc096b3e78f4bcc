/* What the core counts for the metrics of a broker: messages by topic, kind and group, and how long
 * requests take. docs/metrics.md; upstream BrokerMetricsManager, RemotingMetricsManager. */
#ifndef PS_METRICS_H
#define PS_METRICS_H

#include "queues/inflow.h"
#include "core/remoting.h"

/* cdef begin */
#define PS_RPC_ROWS 96 /* of codes that the core serves, by outcome */
#define PS_RPC_HELD 1  /* how: it waited for messages */
#define PS_RPC_ONEWAY 2

typedef struct ps_rpc_row {
    int32_t request, response, how; /* codes; PS_RPC_ */
    int32_t untimed;                /* of the call under way */
    int64_t sum_us;
    int64_t buckets[10]; /* up to 1, 3, 5, 7, 10, 100, 1000, 2000, 3000 ms, and more */
} ps_rpc_row;
/* Requests that the core has answered, those of each network thread by themselves; returns how many
 * rows there are. */
int32_t ps_core_rpc_rows(ps_core *core, ps_rpc_row *out, int32_t room);
/* cdef end */

#define PS_RPC_NONE -1 /* no answer yet */

#define PS_KINDS 5 /* of messages that were put */
#define PS_KIND_NORMAL 0
#define PS_KIND_FIFO 1
#define PS_KIND_DELAY 2
#define PS_KIND_TRANSACTION 3
#define PS_KIND_AGAIN 4 /* known before: repeats, and messages that were counted as a half */

/* Messages that a group was given, by the way they went. */
#define PS_WAYS 3
#define PS_WAY_PULLED 0
#define PS_WAY_POPPED 1
#define PS_WAY_RETRIED 2 /* popped from a retry topic of the group */

typedef struct ps_count {
    int64_t messages, bytes;
} ps_count;

/* The place of a counter in samples from sample `since` on: before, this slot was another's.
 * Slot 0: none yet. */
typedef struct ps_slot {
    int64_t slot, since;
} ps_slot;

struct ps_topic_entry;
struct ps_pair;

/* What a topic got: a delayed message counts when it comes, too, as upstream. */
ps_count ps_topic_put(const struct ps_topic_entry *t);
/* What a group was given of a topic. */
ps_count ps_pair_got(const struct ps_pair *p);
/* Counts what sends have put; threads that share the core may do so at the same time. */
void ps_count_inflow(struct ps_topic_entry *to, int32_t kind, const ps_inflow *more);
void ps_inflows_free(struct ps_topic_entry *t);
/* The counters end: what they have counted is part of what is counted no more, and the slot is for
 * another. */
void ps_topic_count_end(ps_core *c, struct ps_topic_entry *t);
void ps_pair_count_end(ps_core *c, struct ps_pair *p);

/* A request was answered; it is timed when the call ends, as all that began with it. */
void ps_rpc_answered(ps_core *c, int32_t request, int32_t response, int32_t how);
/* One that waited since `began_ns`, monotonic. */
void ps_rpc_waited(ps_core *c, int32_t request, int32_t response, int32_t how, int64_t began_ns);
/* The call ends now. */
struct ps_call;
void ps_rpc_time(struct ps_call *call, int64_t now_ns);

#endif
