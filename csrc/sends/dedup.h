/* Idempotent produce, which upstream does not have: the last so many messages are remembered by
 * topic and key, and a send that brings one of them again is answered with the first one's place
 * instead of being stored.
 *
 * Derived from the log, and never believed over it: an entry is a hash and a place, and a send is a
 * repeat only when the record at that place has the same topic and the same key and its queue still
 * shows it. What is remembered is rebuilt from the end of the log, so a crash forgets nothing
 * that the log has kept.
 *
 * Memory: 24 bytes a message and 4 to 8 for the table of buckets, all of it with ps_core_dedup_set.
 * Everything belongs to the thread of the core. */
#ifndef PS_DEDUP_H
#define PS_DEDUP_H

#include "core/core.h"

/* cdef begin */
#define PS_DEDUP_MAX 16777216 /* messages that may be remembered */

/* Remembers `window` messages from now on, 0: none, by the property `key`. Forgets all. */
int ps_core_dedup_set(ps_core *core, int64_t window, const char *key, ps_error *error);
/* Remembers what lies at the end of the log, of topics published with PS_SEND_ONCE. Before the
 * first send, and after the open transactions are there. */
int ps_core_dedup_build(ps_core *core, ps_error *error);

typedef struct ps_dedup_state {
    int64_t window, remembered, bytes; /* bytes: of memory, all in all */
    int64_t repeats;                   /* messages that were not stored again */
} ps_dedup_state;
void ps_core_dedup_get_state(ps_core *core, ps_dedup_state *out);
/* cdef end */

typedef struct ps_first { /* the message that a send repeats */
    int64_t physical_offset, queue_offset;
    int32_t size, queue_id; /* queue_id: as it was asked for */
} ps_first;
/* 1 and *out when a message of the topic with this key is remembered, else 0. */
int ps_core_dedup_find(ps_core *core, const char *topic, int32_t topic_len, const char *key,
                      int32_t key_len, ps_first *out);
void ps_core_dedup_add(ps_core *core, const char *topic, int32_t topic_len, const char *key,
                      int32_t key_len, int64_t physical_offset);
/* A client's batch, which is stored as a whole or not at all: how many messages it has when each of
 * them is remembered (out: theirs, in its order), else 0. */
int32_t ps_core_dedup_find_batch(ps_core *core, const char *topic, int32_t topic_len,
                                const uint8_t *body, int64_t body_len, ps_first *out, int32_t room);
void ps_core_dedup_add_batch(ps_core *core, const char *topic, int32_t topic_len,
                            const uint8_t *body, int64_t body_len, const int64_t *physical_offsets,
                            int64_t count);

void ps_dedup_free(ps_core *c);
/* The key among a message's properties, those that are added first; empty: none, or nothing is
 * remembered. */
ps_slice ps_dedup_key(const ps_core *c, const char *add, int32_t add_len, ps_slice properties);

#endif
