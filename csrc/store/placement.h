/* Where a message is placed and with which properties: the one set of rules for sends of clients,
 * send-backs, replies, halves and their final messages, delayed messages and embedded puts.
 * docs/internals/services.md#transactions, docs/internals/services.md#delays; upstream
 * HookUtils.handleScheduleMessage,
 * TransactionalMessageBridge.parseHalfMessageInner. */
#ifndef PS_PLACEMENT_H
#define PS_PLACEMENT_H

#include <stdbool.h>

#include "format/record.h"
#include "format/timer.h"

typedef struct ps_text { /* borrowed bytes */
    const uint8_t *data;
    int64_t len;
} ps_text;

/* The properties of a message that is to be stored, and what changes in them. Order of the result:
 * those that stay, `add`, `light`, `stamp`, then what the placement adds. */
typedef struct ps_placement {
    ps_text properties; /* as they came, encoded */
    ps_text drop;       /* names, each ended by PS_NAME_SEPARATOR */
    bool unranked;      /* its priority goes, since a message of its kind has none */
    ps_text add;        /* encoded; replace those of the same name */
    ps_text light;      /* encoded: the queue of its lite topic */
    bool relit;         /* some of `properties` have that name, and go */
    ps_text stamp;      /* encoded: what the broker says of each message */
    bool restamped;     /* some of `properties` have a name of `stamp`, and go */
    bool pop;           /* a POP_CK is among them, and goes: only the broker sets it */
    /* Where it is to go in the end. Used when it is delayed or a half. */
    ps_text topic;
    int32_t queue_id;
    int32_t level; /* as ps_delay_level answers; 0: it is not delayed */
    bool timed;    /* it waits for a time */
    int64_t out_ms; /* TIMER_OUT_MS, when it is timed */
    bool half;     /* it waits for its transaction's decision; a level then waits, too */
    ps_text uniq;  /* a half's UNIQ_KEY */
} ps_placement;

/* Room that ps_place_properties may need, in bytes. */
int64_t ps_place_room(const ps_placement *p);
/* Writes the properties as stored; returns their length. */
int64_t ps_place_properties(const ps_placement *p, uint8_t *to);

/* Where a half or a delayed message is to go, by REAL_TOPIC and REAL_QID. False when they do not
 * name a queue. */
bool ps_real_place(const uint8_t *properties, int32_t len, ps_text *topic, int32_t *queue_id);
/* The same, from the two properties; an absent one has no value. */
bool ps_real_place_said(const ps_property *name, const ps_property *queue, ps_text *topic,
                        int32_t *queue_id);

bool ps_text_is(const uint8_t *data, int64_t len, const char *text);

#endif
