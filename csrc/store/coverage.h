/* Whether every record of the log has its unit, where no note says how far the queues had come
 * (ends.h): another broker closed the store, or the note is gone. Derived files are not believed
 * over the log, and what somebody took away from them leaves no other trace. */
#ifndef PS_COVERAGE_H
#define PS_COVERAGE_H

#include "pystore.h"

/* Marks queues that lack units of records below `until` (cq_hole), those that are missing
 * altogether among them. After queues were opened, before anything is written. It reads the units,
 * and of the log only segments that have something else than records with units; all of it where
 * light queues have folders. A record of a topic without any queue counts if the configuration has
 * the topic (ps_conf.topics), or of a light queue without a folder, if a group has an offset. */
int ps_coverage_check(ps_store *s, int64_t until, ps_report *r, ps_progress *progress, ps_error *e);

#endif
