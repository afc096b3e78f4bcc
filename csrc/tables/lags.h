/* How far groups are behind in the lite topics that they read, and in which most: kept at each
 * message and each commit, so that nobody walks over light queues to know it. Nothing of it is
 * stored: it follows from the ends of queues and from offsets, anew at each open. Upstream:
 * LiteConsumerLagCalculator, which walks over all offsets at each scrape. */
#ifndef PS_LAGS_H
#define PS_LAGS_H

#include "core/core.h"

/* cdef begin */
/* From now on it is counted how far the group is behind in lite topics of `parent` (length 0: of
 * none). What it was counted in before counts no more. PS_E_NO_MEMORY. */
int ps_lag_bind(ps_core *core, const char *group, int32_t group_len, const char *parent,
                int32_t parent_len, ps_error *error);

typedef struct ps_lag_row { /* good until the next ps_lag_bind */
    const char *group, *parent;
    int32_t group_len, parent_len;
    int64_t messages; /* after its offsets; of lite topics in which it has one */
    int64_t queues;   /* lite topics that have some */
    int64_t read;     /* lite topics of which it has read, or was to read, anything */
} ps_lag_row;
/* Returns how many groups are bound; rows beyond `room` are not filled. */
int32_t ps_lag_list(ps_core *core, ps_lag_row *rows, int32_t room);
/* Fills the row of this group: 1; 0: it is not bound. */
int32_t ps_lag_get(ps_core *core, const char *group, int32_t group_len, ps_lag_row *row);

typedef struct ps_lag_queue {
    int64_t messages;
    int32_t len;
    char name[256];
} ps_lag_queue;
/* Light queues in which a group is furthest behind, in descending order of messages: how many, or
 * PS_E_NO_MEMORY. */
int32_t ps_lag_top(ps_core *core, const char *group, int32_t group_len, ps_lag_queue *rows,
                   int32_t room, ps_error *error);
/* When the oldest message was stored (ms) that a group has not read; INT64_MAX: not known. The
 * first time, and after each commit, the time of the message is looked up: in some lite topics a
 * call, from place *at on. *at: where the next call goes on; -1: this is the answer.
 * PS_E_NO_MEMORY. */
int64_t ps_lag_oldest(ps_core *core, const char *group, int32_t group_len, int32_t *at,
                      ps_error *error);
/* cdef end */

struct ps_lag;

/* The row (lightrows.h) of a reader that is bound is so much behind from now on. moved:
 * since its offset has changed. */
void ps_lag_count(ps_core *c, struct ps_lag *g, ps_ref row, int64_t messages, bool moved);
/* Room for so many rows, so that what moves later always has some. */
bool ps_lag_reserve(struct ps_lag *g, int32_t rows);
/* The light queue has got messages; the same of all queues, and of offsets that were loaded since
 * the last look, which counts for nothing until then; it is gone. */
void ps_lag_grew(ps_core *c, ps_slice queue);
void ps_lag_look(ps_core *c);
void ps_lag_end(ps_core *c, ps_slice queue);
void ps_lag_free(ps_core *c);

#endif
