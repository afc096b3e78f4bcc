/* Cursors of one walk through a segment: where each queue stands, and where the index stands.
 * Private to csrc/audit/. */
#ifndef PS_AUDIT_CURSOR_H
#define PS_AUDIT_CURSOR_H

#include "audit/table.h"
#include "queues/consumequeue.h"

/* One queue: a stretch of its units, read ahead, since the records of a queue ask for them in
 * order. */
typedef struct au_cursor {
    ps_chain cu_chain;
    au_queue *cu_queue; /* NULL: the folder is missing */
    uint8_t *cu_units;
    int64_t cu_from, cu_count, cu_room;
    int64_t cu_matched;
    au_run cu_run;      /* records without a unit that follow on each other; to 0: none */
    int64_t cu_missing; /* number of the open finding of missing units, -1 none */
    int64_t cu_stays;   /* a record without a unit that claims this offset can have it, as the one
                         * before it could; -1 none */
    int32_t cu_id, cu_topic_len;
    int32_t cu_topic_hash; /* "topic#" for index keys */
    uint8_t cu_topic[];
} au_cursor;

typedef struct au_cursors {
    ps_audit *cs_audit;
    ps_chains cs_table;
    au_cursor *cs_recent;
} au_cursors;

/* A record of the queue that no unit leads to. */
void au_cursor_claims(au_cursors *cs, au_cursor *c, const ps_record *r);
/* Adds what was matched to the queues and frees all. */
void au_cursors_end(au_cursors *cs);
/* The cursor of the record's queue; NULL: no memory. */
au_cursor *au_cursor_of(au_cursors *cs, const ps_record *r);
/* The unit at a queue offset; false when the files hold none there. */
bool au_cursor_unit(au_cursors *cs, au_cursor *c, int64_t offset, ps_unit *out);
/* The offset of the last unit before another offset that leads to a record, -1 none; of a queue
 * that au_cursor_unit has looked at. */
int64_t au_cursor_before(au_cursors *cs, au_cursor *c, int64_t offset, ps_unit *out);

typedef struct au_entry {
    int64_t physical;
    int32_t hash;
} au_entry;

/* The index entries as one row over all files, read in the order in which they were put. */
typedef struct au_entries {
    ps_audit *en_audit;
    ps_window en_file;
    int32_t en_open;   /* number of the file that is open, -1 none */
    int32_t en_number; /* next file */
    int32_t en_at;     /* next entry of it */
    bool en_ready;     /* it is in en_entry */
    au_entry en_entry;
} au_entries;

/* Puts the row at the first entry whose record is at or after `physical`. */
void au_entries_seek(au_entries *es, ps_audit *a, int64_t physical);
/* Brings the next entry to en_entry; false at the end. */
bool au_entries_bring(au_entries *es);
void au_entries_close(au_entries *es);

/* The next entry without taking it; false at the end. */
static inline bool au_entries_peek(au_entries *es, au_entry *out) {
    if (!es->en_ready && !au_entries_bring(es)) return false;
    *out = es->en_entry;
    return true;
}

static inline void au_entries_take(au_entries *es) {
    es->en_at++;
    es->en_ready = false;
}

#endif
