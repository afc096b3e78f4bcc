/* Lite topics, as the broker decides by them: which clients there are, what they subscribe to, and
 * who is told of a message. An event is the name of a light queue in which a group has something to
 * read; one client of each group has it. Upstream: LiteSubscriptionRegistryImpl,
 * LiteEventDispatcher. docs/internals/lite.md.
 *
 * Memory: some 45 bytes and the lite topic's name for each pair of client and lite topic.
 * Everything belongs to who is alone in the core. */
#ifndef PS_LITE_H
#define PS_LITE_H

#include "core/core.h"
#include "core/decision.h"

/* cdef begin */
/* From now on light queues are served, and their news come here. PS_E_NO_MEMORY. */
int ps_lite_begin(ps_core *core, ps_error *error);
/* About so many pairs of client and queue will come: none of them moves then. */
void ps_lite_expect(ps_core *core, uint32_t pairs);
/* No more events are made, and whoever waits is answered. */
void ps_lite_end(ps_core *core);
typedef struct ps_lite_who { /* a client of a group */
    const char *group, *id;
    int32_t group_len, id_len;
} ps_lite_who;

typedef struct ps_lite_row { /* one, good until the next change */
    ps_lite_who who;
    const char *parent; /* the topic whose lite topics it reads */
    int32_t parent_len;
    int32_t queues, events, polls; /* how many it subscribes to, of events, and of pops that wait */
    int32_t wild;                  /* it reads all lite topics */
    int32_t overflowed;            /* an event found no room: its queues are to be looked at */
    int64_t version;               /* of its last set */
    int64_t updated_ms;            /* monotonic: when it last said what it subscribes to */
    int64_t accessed_ms;           /* its last pop, in the clock of timers; -1: none */
} ps_lite_row;

/* Makes a client, or notes that it is still there. room: events of a client of the group. 1: it is
 * new. PS_E_NO_MEMORY. */
int ps_lite_join(ps_core *core, const ps_lite_who *who, const char *parent, int32_t parent_len,
                 int32_t room, ps_error *error);
/* 1 and the client; 0: there is none. */
int ps_lite_get(ps_core *core, const ps_lite_who *who, ps_lite_row *row);
/* Clients before the n-th, from the last of these down: how many. Who goes on so sees each one that
 * was there when it began and has not left. */
int32_t ps_lite_list(ps_core *core, int32_t before, ps_lite_row *rows, int32_t room);
void ps_lite_set_version(ps_core *core, const ps_lite_who *who, int64_t version);
/* Forgets it, answers its pops, and gives its events to others, bit by bit. */
void ps_lite_leave(ps_core *core, const ps_lite_who *who);

/* Subscribes it to queues, whose names follow each other, each after a byte with its length; what
 * they have is an event. How many are new; PS_E_NO_MEMORY, or PS_E_ARGUMENT: there is no such
 * client. */
int32_t ps_lite_add(ps_core *core, const ps_lite_who *who, const uint8_t *names, int32_t len,
                    ps_error *error);
/* The same of lite topics of a topic, by their own names: of some of them, from *at on, where the
 * next call goes on. */
int32_t ps_lite_add_below(ps_core *core, const ps_lite_who *who, const char *parent,
                          int32_t parent_len, const uint8_t *names, int32_t len, int32_t *at,
                          ps_error *error);
/* What is added from now on, in as many calls as it takes, is a new set of it. */
void ps_lite_begin_set(ps_core *core, const ps_lite_who *who);
/* Unsubscribes it from what is not of the new set: looks at so many, and says at how many; fewer:
 * that was all. */
int32_t ps_lite_end_set(ps_core *core, const ps_lite_who *who, int32_t most);
/* Has it read all lite topics of its topic. 1: it did not before. */
int ps_lite_add_wild(ps_core *core, const ps_lite_who *who);
/* Unsubscribes it, without the event. 1; 0: it did not have the queue. */
int ps_lite_remove(ps_core *core, const ps_lite_who *who, const char *queue, int32_t len);
/* Names of what it subscribes to, as above, into `to`, which has room for one at least: the bytes.
 * begin 1: the first ones, else those after the last call's; 0: there are no more. Of one who asks
 * at a time. Names that it takes up meanwhile, again or for the first time, come at the end, and as
 * they may do so without an end, after twice the first number of names no more come; that counts
 * as a change, so that who asks after each of them asks again. */
int32_t ps_lite_names(ps_core *core, const ps_lite_who *who, int32_t begin, uint8_t *to,
                      int32_t room);
/* The same of the queues of its events, all of them: the bytes, or how many are needed. */
int64_t ps_lite_event_names(ps_core *core, const ps_lite_who *who, uint8_t *to, int64_t room);
/* Clients that subscribe to a queue, of one group or (NULL) of any; those of wildcard groups only
 * of that one. How many are in `rows`. */
int32_t ps_lite_subscribers(ps_core *core, const char *queue, int32_t len, const char *group,
                            int32_t group_len, ps_lite_row *rows, int32_t room);
/* 1: clients of this group read all lite topics. */
int32_t ps_lite_wild_clients(ps_core *core, const char *group, int32_t group_len);
typedef struct ps_lite_totals {
    int64_t pairs;   /* of client and lite topic */
    int64_t leaving; /* not freed yet, of clients that have left; they are no pairs any more */
    int64_t changes; /* how often who subscribes to what has changed */
    int64_t clients, events, polls; /* events, and pops, that wait */
    int64_t overflowed; /* clients with events that found no room */
    int64_t eventful;   /* clients with events */
} ps_lite_totals;
void ps_lite_counts(ps_core *core, ps_lite_totals *out);

/* Makes an event of a queue for a client of the group that waits, else for one with room. */
void ps_lite_give(ps_core *core, const char *group, int32_t group_len, const char *queue,
                  int32_t len);
/* The same, if the group has something to read there and nothing is out; else once that comes
 * back. After an acknowledgement, and after another invisible time. */
void ps_lite_settle(ps_core *core, const char *group, int32_t group_len, const char *queue,
                    int32_t len);
/* Has its pops look at all of its queues again, those too whose batch is out. 1; 0: there is no
 * such client. */
int ps_lite_dispatch(ps_core *core, const ps_lite_who *who);
/* Gives events of a client that does not poll to those who do, some thousand a call. */
void ps_lite_hand_over(ps_core *core, const ps_lite_who *who);
/* Deletes the queue, with its events and with what these groups (names, each after its length, a
 * byte) keep of it, before anybody pops from a new one of the name. 1; 0: there was none, or,
 * unless before_ms is 0, something was put to it at that time or later. PS_E_DISK_FULL, PS_E_IO. */
int ps_lite_delete(ps_core *core, const char *queue, int32_t len, const uint8_t *groups,
                   int32_t groups_len, int64_t before_ms, ps_error *error);
/* Gives back what is over by the clock of timers, and has events, and lags (tables/lags.h), know of
 * what has been put. 0: not of all of it yet; call again, after others had their turn. */
int ps_lite_look_now(ps_core *core);
/* cdef end */

struct ps_parked;

/* litepop.c, liteack.c: 1 served, 0 for the broker to serve. checked: it has, and found the request
 * right; then *e says why it failed. */
int ps_core_lite_pop(ps_conn *n, const ps_command *command, bool checked, ps_error *e);
int ps_core_lite_ack(ps_conn *n, const ps_command *command);
/* A pop that waits: tries again (0: it waits on), is in no list any more, is gone. */
int ps_lite_resume(ps_core *c, struct ps_parked *p, ps_step *out);
void ps_lite_unlist(struct ps_parked *p);
void ps_lite_poll_free(struct ps_parked *p);
/* Takes the news of the store, and what has come back. False: there are more news. */
bool ps_lite_look(ps_core *c);
/* ms until something comes back; -1: nothing is out. */
int64_t ps_lite_due_in(const ps_core *c);
/* Whether the store has news that nobody has taken. */
bool ps_lite_has_news(const ps_core *c);
void ps_lite_free(ps_core *c);
/* Whether the broker has found that this group may read the topic's lite topics. */
bool ps_lite_knows(const ps_core *c, ps_slice group, ps_slice topic);

#endif
