/* What the two kinds of parts share. Private to csrc/derive/. */
#ifndef PS_DERIVE_PART_H
#define PS_DERIVE_PART_H

#include "base/chains.h"
#include "derive/derive.h"
#include "files/io.h"
#include "format/record.h"

struct dv_queue;

struct ps_derive {
    ps_io *dv_io;
    char *dv_into;
    int dv_folder; /* dv_into, open since before the first write: what fails to reach the disk
                    * since then is told to whoever syncs by it. -1: it is not there */
    ps_derive_conf dv_conf; /* into: above */
    ps_levels dv_levels;
    ps_chains dv_table;
    struct dv_queue **dv_queues; /* all of them */
    int32_t dv_queue_count, dv_queue_room;
    struct dv_queue *dv_recent;
};

/* What a walk does with each record: 1 to go on, 0 or an error code to end. */
typedef int (*dv_visit)(void *arg, const ps_record *r, ps_error *e);

/* Walks through a segment; last: the log may end in it. 1; 0 where the log is not plain or `visit`
 * says so; or an error code. */
int dv_walk(ps_derive *d, const char *path, int64_t base, int64_t size, bool last, dv_visit visit,
            void *arg, ps_error *e);

#endif
