/* Replication of the log: upstream's stream, both ends. A slave reports the end of its log, in 8
 * bytes; the master sends frames of a place in the log (8 bytes), a length (4) and so many bytes of
 * the log; no bytes are a heartbeat. Integers are big-endian. docs/internals/ha.md; upstream
 * DefaultHAConnection, DefaultHAClient.
 *
 * Under a controller (epochs_len > 0) both have more in front of them, upstream's
 * AutoSwitchHAConnection: what is said before the first report is Python's.
 *
 *   report      0  4  state, 2: transfer          header  0  4  state, 2
 *               4  8  end of the slave's log              4  4  bytes of the log that follow
 *                                                         8  8  their place
 *                                                        16  4  epoch that they are of
 *                                                        20  8  where it begins
 *                                                        28  8  confirm offset: what readers see
 *
 * Each end has a thread of its own. It moves bytes between the log and sockets, and never takes
 * Python's lock. docs/locking.md. */
#ifndef PS_HA_H
#define PS_HA_H

#include "pystore.h"

/* cdef begin */
typedef struct ps_ha_master ps_ha_master;
typedef struct ps_ha_slave ps_ha_slave;

/* An epoch of one master: what its log has from `start` on, until the next one's. */
typedef struct ps_ha_epoch {
    int64_t start;
    int32_t epoch;
} ps_ha_epoch;

typedef struct ps_ha_conf {
    int64_t heartbeat_ms; /* haSendHeartbeatInterval */
    int64_t idle_ms;      /* haHousekeepingInterval: a peer that is silent for so long is gone */
    int32_t batch_bytes;  /* haTransferBatchSize */
    int64_t bytes_s;      /* maxHaTransferByteInSecond, to each slave; 0: as fast as may be */
    /* Of a master: slaves that must have a record before its answer; 0: none. copies_min: with
     * fewer of them near, what waits for them is refused. adapts: `copies` becomes as many as are
     * near, but not fewer than copies_min. near_bytes: who is behind by less is near. */
    int32_t copies, copies_min, adapts;
    int64_t near_bytes;
    /* Under a controller: all epochs of this log, in their order; copied. 0: there is none. */
    const ps_ha_epoch *epochs;
    int32_t epochs_len;
} ps_ha_conf;

#define PS_HA_EPOCHS_MAX 4096
#define PS_HA_MEMBERS_MAX 64

/* Why a connection ended. */
#define PS_HA_GOES_ON 0
#define PS_HA_CLOSED 1 /* by the peer */
#define PS_HA_SILENT 2 /* for idle_ms */
#define PS_HA_FAILED 3 /* detail: errno of the socket */
#define PS_HA_BELOW 4  /* detail: the slave asks for a place that the log does not have any more */
#define PS_HA_BEYOND 5 /* detail: the slave reports more than the log has; its log is another */
#define PS_HA_REFUSED 6 /* of a slave: what the master sent does not fit; the error says why */
#define PS_HA_BACK 7   /* detail: the slave reports less than before: its log was cut */
#define PS_HA_EPOCH 9  /* of a slave: an epoch that was not among those told when it connected */
#define PS_HA_OTHER 8  /* detail: its log up to there is another one, as was found when compared */

/* A slave, as its master sees it. Times are ms of the monotonic clock. */
typedef struct ps_ha_peer {
    int64_t id, host;       /* as it was taken */
    int64_t began;          /* its first report: what it had before anything was sent; -1: none */
    int64_t acked;          /* end of its log, as it reported; -1: not yet */
    int64_t sent;           /* where the next frame begins */
    int64_t bytes;          /* sent to it, headers included */
    int64_t silent_ms;      /* since it was heard */
    int32_t compared;       /* what it had at the beginning is known to be this log: before that it
                             * is sent nothing, and is a copy of nothing */
    int32_t over;           /* PS_HA_ */
    int64_t detail;
} ps_ha_peer;

/* A slave, as it sees itself. */
typedef struct ps_ha_state {
    int64_t end;       /* of what it has */
    int64_t bytes;     /* received, headers included */
    int64_t silent_ms; /* since the master was heard */
    int32_t over;      /* PS_HA_; the thread has ended */
    ps_error error;    /* with PS_HA_REFUSED and PS_HA_FAILED */
} ps_ha_state;

/* It keeps the store's memory until it is stopped; of a closed store nothing is sent, and nothing
 * taken. NULL: PS_E_NO_MEMORY, PS_E_IO. */
ps_ha_master *ps_ha_master_start(ps_store *store, const ps_ha_conf *conf, ps_error *error);
/* So many that say nothing stay: the oldest gives way to who comes. */
#define PS_HA_STRANGERS_MAX 16
/* A connected socket, which is its own from then on, also when it fails: PS_E_NO_MEMORY, PS_E_IO.
 * It does not block. host: a number of the slave's host; all connections of one count as one copy.
 * compared: what it has is known to be this log. */
int ps_ha_master_take(ps_ha_master *master, int fd, int64_t id, int64_t host, int32_t compared,
                      ps_error *error);
/* Whether what a slave had at its first report is this log. Before that is known it gets heartbeats
 * alone, and is a copy of nothing; another one is closed. */
void ps_ha_master_compared(ps_ha_master *master, int64_t id, int32_t same);
/* Under a controller: answers wait for all of these hosts from now on, and readers see what all of
 * them have; 0: for none. need: below it what waits is refused; itself counted. Returns the end of
 * what those who read may have seen so far: a new member must have reported it before it may
 * become the master. Never calls back. */
int64_t ps_ha_master_require(ps_ha_master *master, const int64_t *hosts, int32_t count,
                             int32_t refuses);
/* Who is waited for has changed, and how long: copies, copies_min, adapts and near_bytes of `conf`;
 * under a controller timeout_ms alone. What waits goes by it at once. Never calls back. */
void ps_ha_master_wait_for(ps_ha_master *master, const ps_ha_conf *conf, int32_t timeout_ms);
/* Its slaves, at most `room`; those that are gone are shown once. */
int32_t ps_ha_master_peers(ps_ha_master *master, ps_ha_peer *out, int32_t room);
void ps_ha_master_stop(ps_ha_master *master);

/* Follows the master at the other end of a connected socket, which is its own from then on. The
 * store follows (ps_follow_begin). told_fd: an eventfd that is written to when it is over. */
ps_ha_slave *ps_ha_slave_start(ps_store *store, const ps_ha_conf *conf, int fd, int told_fd,
                               ps_error *error);
void ps_ha_slave_show(ps_ha_slave *slave, ps_ha_state *out);
void ps_ha_slave_stop(ps_ha_slave *slave);
/* cdef end */

#define PS_HA_REPORT 8
#define PS_HA_HEADER 12
#define PS_HA_EPOCH_REPORT 12
#define PS_HA_EPOCH_HEADER 36
#define PS_HA_TRANSFER 2

/* The place in the list of the epoch that byte `at` of the log is of; 0 before the first. */
static inline int32_t ps_ha_epoch_at(const ps_ha_epoch *epochs, int32_t len, int64_t at) {
    int32_t i = len - 1;
    while (i > 0 && epochs[i].start > at) i--;
    return i;
}

#endif
