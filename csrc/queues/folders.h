/* The queues that are on the disk. */
#ifndef PS_FOLDERS_H
#define PS_FOLDERS_H

#include "queues/topics.h"

/* Opens the queues that are not known yet. linear: their ends are looked for unit by unit. */
int ps_queues_load(ps_topics *tt, bool linear, ps_progress *progress, ps_error *e);
/* Readers: what another process has appended to the queues that are known. */
int ps_queues_refresh(ps_topics *tt, ps_error *e);

#endif
