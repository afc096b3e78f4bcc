/* The queues that are on the disk. */
#ifndef PS_FOLDERS_H
#define PS_FOLDERS_H

#include "queues/topics.h"

/* Opens the queues that are not known yet. deep: every unit is looked at. r: names those that have
 * a hole; may be NULL. */
int ps_queues_load(ps_topics *tt, bool deep, ps_report *r, ps_progress *progress, ps_error *e);
/* Readers: what another process has appended to the queues that are known. */
int ps_queues_refresh(ps_topics *tt, ps_error *e);
/* Brings the entries of files and folders of queues that came or went to the disk. Writers only;
 * nobody deletes a topic meanwhile. */
int ps_queues_sync_folders(ps_topics *tt, ps_error *e);

#endif
