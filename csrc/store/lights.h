/* Light queues of an open store: which records are in them, and what a message that names some gets
 * when it is put. The queues themselves: light/light.h. */
#ifndef PS_LIGHTS_H
#define PS_LIGHTS_H

#include "store/placement.h"
#include "store/store.h"

/* cdef begin */
/* ---- light queues (lite topics) ----
 * A message with the property INNER_MULTI_DISPATCH is also in the queues %LMQ%... that it names,
 * once ps_lights_begin was called; it then gets INNER_MULTI_QUEUE_OFFSET under the append lock. */

/* Serves light queues from now on. What is not in their files is read from the log first. */
int ps_lights_begin(ps_store *store, ps_error *error);
int64_t ps_lights_count(ps_store *store); /* -1: they are not served */
/* Those whose names begin with `head`, "%LMQ%$TOPIC$", and have no '$' after it. */
int64_t ps_lights_below(ps_store *store, const char *head, int32_t len);
/* Names in records that can be no queue's, since the store was opened. */
int64_t ps_lights_skipped(ps_store *store);
/* 1 and the offsets that may be read, 0: no such queue. */
int32_t ps_lights_range(ps_store *store, const char *name, int32_t len, int64_t *low,
                        int64_t *high);
/* Offset of its next message, without a look at its files; 0: no such queue. */
int64_t ps_lights_end(ps_store *store, const char *name, int32_t len);
/* Drops from such blocks (format/offsetblock.h) those of light queues whose offset is not past the
 * end, while light queues are served: the bytes that are left, which another look is for. */
int64_t ps_lights_beyond(ps_store *store, uint8_t *blocks, int64_t len);
/* Store time (ms) of the last record of a queue; 0: not known. */
int64_t ps_lights_last_ms(ps_store *store, const char *name, int32_t len);
/* The same of the first one from the offset on that is there. */
int64_t ps_lights_ms_from(ps_store *store, const char *name, int32_t len, int64_t offset);

typedef struct ps_light_record {
    int64_t offset, physical, store_ms;
    int32_t size; /* in `to`; 0: it is damaged, and passed over */
} ps_light_record;
/* Whole records from the offset on, one after the other into `to`; *need: what the first one takes
 * when there is no room for it. How many, or an error. */
int32_t ps_lights_read(ps_store *store, const char *name, int32_t len, int64_t from,
                       ps_light_record *out, int32_t count, uint8_t *to, int64_t room,
                       int64_t *need, ps_error *error);

typedef struct ps_light_place { /* what a unit of a consume queue says, and its offset */
    int64_t offset, physical, tags_code;
    int32_t size;
} ps_light_place;
/* Units from the offset on, ascending, 64 at most: how many, or an error. */
int32_t ps_lights_places(ps_store *store, const char *name, int32_t len, int64_t from,
                         ps_light_place *out, int32_t count, ps_error *error);

typedef struct ps_light_row {
    int64_t low, high, last_ms;
    uint32_t number;
    int32_t len;
    char name[256];
} ps_light_row;
/* Queues by number, from this one on: how many. */
int32_t ps_lights_list(ps_store *store, uint32_t from, ps_light_row *out, int32_t room);
/* Names of queues that begin with `head`, "%LMQ%$TOPIC$", and whose last record is older than
 * age_ms: those that have been so for longest, each name after its length (one byte), as far as
 * there is room: the bytes. */
int32_t ps_lights_expired(ps_store *store, const char *head, int32_t len, int64_t now_ms,
                          int64_t age_ms, uint8_t *to, int32_t room);
/* Writes much of what waits, for who holds a lock while deleting, so that none of the next hundred
 * deletions has to. */
int ps_lights_make_room(ps_store *store, ps_error *error);
/* 1: the queue is gone; 0: there was none, or, unless before_ms is 0, something was put to it at
 * that time or later. */
int32_t ps_lights_delete(ps_store *store, const char *name, int32_t len, int64_t before_ms,
                         ps_error *error);

/* From now on `fd` (an eventfd; -1: none) becomes readable when light queues get units. */
void ps_lights_listen(ps_store *store, int32_t fd);
/* Takes names of queues with new units, each with its length (one byte) before it: the bytes. */
int32_t ps_lights_news(ps_store *store, uint8_t *to, int32_t room);
/* cdef end */

/* Whether the store has files of light queues: they have the units of all. */
bool ps_has_light_files(const ps_store *s);
/* Has the processor fetch what a search for each of these queues reads, PS_POOL_AHEAD at most. */
void ps_lights_fetch(ps_store *s, const ps_text *names, int32_t count);

/* The name (PS_TOPIC_MAX bytes at most) of the queue with this number or the next one there is: the
 * number to go on with; -1: there is none. */
int64_t ps_lights_next(ps_store *s, uint32_t from, char *name, int32_t *len);
/* Whether who listens was told of news that he has not taken. */
bool ps_lights_have_news(ps_store *s);
/* Whether there are some, told or not. */
bool ps_lights_untaken(const ps_store *s);
/* So many more (negative: fewer) wait for what who listens makes of news, and he is told at once.
 * Whether there are some already, of which he may not have been told. */
bool ps_lights_wait(ps_store *s, int32_t more);

#define PS_LIGHT_NAMES_MAX 8

/* What a message that is put asks for. */
typedef struct ps_light_ask {
    int32_t count;
    ps_text names[PS_LIGHT_NAMES_MAX];
    ps_light_queue *queues[PS_LIGHT_NAMES_MAX];
    uint8_t *properties; /* as they are stored, with a gap for the offsets */
    int32_t before, after, room;
} ps_light_ask;

/* 1: the draft names light queues; its properties are then those of *out, which is freed by
 * free(out->properties). 0: it does not. An error: the names are refused. */
int ps_light_asked(ps_store *s, ps_draft *d, ps_light_ask *out, ps_error *e);
/* Gives it its offsets, which are taken then. Append lock, after ps_draft_measure. */
int ps_light_place_locked(ps_store *s, ps_draft *d, ps_light_ask *a, ps_error *e);
/* It is not put after all. Append lock, under which they were taken. */
void ps_light_give_back_locked(ps_store *s, ps_light_ask *a);
/* The units of one record; dispatch lock. */
int ps_lights_dispatch(ps_store *s, const ps_record *r, ps_error *e);
/* After records were dispatched: notes how far, and wakes who listens; at times, if nobody waits.
 * Dispatch lock. */
int ps_lights_told(ps_store *s, ps_error *e);
/* When nothing has come for a while: wakes him, if he has not been told of all. */
void ps_lights_tell_rest(ps_store *s);
/* The same for a reader, of what the log has shown since; dispatch lock. */
int ps_lights_follow_locked(ps_store *s, ps_error *e);
/* What is in the files is on the disk. */
int ps_lights_sync(ps_store *s, ps_error *e);
/* The log begins here: what is gone from it leaves the files, too. */
int ps_lights_trim(ps_store *s, int64_t log_min, ps_error *e);
/* A store that followed gives out offsets from now on; append lock. */
void ps_lights_lead_locked(ps_store *s);

#endif
