/* Delivery of messages whose time has come, for delay levels and timers alike. */
#ifndef PS_DELIVER_H
#define PS_DELIVER_H

#include "store/placement.h"
#include "store/store.h"

/* Where a message that waited goes, by its REAL_TOPIC; NULL: nowhere. */
ps_topic *ps_deliver_topic(ps_store *s, ps_text name);
/* Puts it there with these properties. by_level: it comes from a delay level, and is counted so.
 * 0 and *end, its end in the log; or an error. */
int ps_deliver(ps_store *s, const ps_record *r, ps_text properties, ps_topic *topic,
               int32_t queue_id, bool by_level, int64_t *end, ps_error *e);
/* Whether the disk is so far behind that deliveries wait for it. */
bool ps_deliver_waits(ps_store *s);
/* The record that a queue's unit leads to, when it is whole and of that place; NULL: there is none.
 * Unref *mf either way. */
const ps_record *ps_deliver_record(ps_store *s, ps_queue *q, int64_t offset, const ps_unit *u,
                                   ps_mapfile **mf, ps_record *out);
/* Counts the message at `offset` of the queue (NULL: it is gone) as one that cannot be delivered:
 * 0. PS_E_FILE_SIZE, and it is not counted, when its file was cut off: opening the store again may
 * bring it back. */
int ps_deliver_skip(ps_store *s, ps_queue *q, int64_t offset, int64_t *skipped, ps_error *e);

#endif
