/* What the consume queues reached when they were last synced, so that a queue that is missing, or
 * shorter than it was, is found without reading the log. Derived, never needed: without the file,
 * or after another broker has run, the queues are compared with the log
 * (coverage.h). */
#ifndef PS_ENDS_H
#define PS_ENDS_H

#include "pystore.h"

/* Notes where every queue is synced to. Keep lock held, right after the sync and the checkpoint. */
int ps_ends_write_locked(ps_store *s, ps_error *e);
/* The note, to be freed; NULL: there is none, and nothing is known. *len: its bytes. Of a store
 * whose writer may be at work it is read before the queues, which may have more by then, never
 * less. */
uint8_t *ps_ends_read(ps_io *io, const char *root, int64_t *len);
/* Marks queues that lack what the note says they had (cq_hole), those that are missing altogether
 * among them. After queues and checkpoint were read; `crashed`: the last writer did not close.
 * Returns 1 when the note is that of the checkpoint, 0 when it is not and marks nothing, or is
 * NULL: then queues may lack what it does not know. */
int ps_ends_compare(ps_store *s, const uint8_t *note, int64_t len, bool crashed, ps_report *r,
                    ps_error *e);

#endif
