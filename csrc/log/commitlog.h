/* The commit log as an object: its files, its end, and the lock of those who append. Format of the
 * records: format/record.c; rules of files: commitlog.c. */
#ifndef PS_COMMITLOG_H
#define PS_COMMITLOG_H

#include <pthread.h>
#include <stdatomic.h>

#include "files/places.h"
#include "files/segments.h"
#include "format/record.h"

#define PS_DIRS_MAX 16
/* A store time further ahead of the clock is not believed: no sum covers it. */
#define PS_STAMP_AHEAD_MS (24 * 3600 * 1000LL)

struct ps_aside;

typedef struct ps_dirs {
    char *path[PS_DIRS_MAX];
    int32_t count;
    bool made[PS_DIRS_MAX]; /* by this open */
} ps_dirs;

typedef struct ps_log {
    ps_io *lg_io;
    ps_dirs lg_dirs;           /* folders of the files, sorted */
    const ps_places *lg_places; /* of the store; NULL: nobody moves them */
    bool lg_readonly;          /* another process may be writing */
    bool lg_adopt_sizes;       /* take the file size from files that are there */
    bool lg_kept;              /* of another store: not a byte of it changes */
    int32_t lg_reserve_window; /* bytes reserved at once */
    ps_segments lg_files;      /* its file size is the log's */
    pthread_mutex_t lg_append_lock;
    bool lg_append_timed;               /* a bench wants to know how long puts hold it */
    int64_t lg_append_since;            /* append lock: when it was taken, if it is timed; else 0 */
    int64_t lg_append_waited_ns, lg_append_held_ns; /* append lock: of all puts */
    ps_mapfile *lg_active;              /* last file; append lock */
    int64_t lg_last_stamp;              /* append lock: store times never go back */
    _Atomic int64_t lg_end;             /* end of the last whole record */
    _Atomic int64_t lg_min;             /* start of the first file */
    _Atomic int64_t lg_flushed;         /* everything below is on the disk */
    _Atomic int64_t lg_published_stamp; /* ms: store time of the last record below lg_end */
    uint64_t lg_listed; /* readers: sum over the files as the last refresh found them */
    _Atomic int64_t lg_puts;            /* messages put since the store was opened */
    _Atomic int32_t lg_sync_errno; /* sticky: of a segment or folder that could not be synced */
    _Atomic bool lg_disk_full;          /* the disk had no room when the log last wanted some */
} ps_log;

/* Folders are set by the caller: lg_dirs. */
void ps_log_init(ps_log *l, ps_io *io, int64_t file_size, bool readonly);
void ps_log_free(ps_log *l); /* lists and folders' names; mapped files that are in use live on */

/* Lists the folders: PS_E_FILE_SIZE, PS_E_NOT_ADJACENT, PS_E_STRAY_FILE. */
int ps_log_open(ps_log *l, ps_error *e);
/* PS_E_NOT_ADJACENT when the records of a segment say that they belong at another place of the log,
 * where no segment has them: it was given the name of another. */
int ps_log_check_names(ps_log *l, ps_error *e);
/* A sync of one of its files or folders failed: no further one proves anything, so nothing of the
 * log counts as synced from now on, and nothing more is put. */
void ps_log_sync_failed(ps_log *l, int sys_errno);
/* Makes the file that begins at `base`, with its first window reserved. */
int ps_log_make_file(ps_log *l, int64_t base, ps_mapfile **out, ps_error *e);
/* Deletes segment i (negative: from the end), on the disk, too, before the next one may go: a power
 * loss that brought back one and not the other would leave a gap. */
int ps_log_delete(ps_log *l, int32_t i, ps_error *e);
/* Cuts everything from `end` on: keeps it aside, then zeroes it. *bytes_cut: how much of it was not
 * zero. */
int ps_log_set_end(ps_log *l, int64_t end, struct ps_aside *aside, int64_t *bytes_cut,
                   ps_error *e);
/* Bytes of the log readable at `physical`, within one file, below `bound`; a reference in *mf. */
const uint8_t *ps_log_at(ps_log *l, int64_t physical, int64_t bound, int64_t *avail,
                         ps_mapfile **mf);
/* The record there, by these checks (PS_CHECK_); PS_REC_END where the log has nothing, and *mf is
 * NULL. */
ps_rec_outcome ps_log_record(ps_log *l, int64_t physical, int64_t bound, int checks, ps_record *r,
                             ps_mapfile **mf);
/* Whether a whole record lies there in what can be read of the log. */
bool ps_log_has(ps_log *l, int64_t physical, ps_record *r, ps_mapfile **mf);
/* Readers: files that another process has made since the last look; *first: the lowest file there,
 * INT64_MAX: none. */
int ps_log_refresh(ps_log *l, int64_t *first, ps_error *e);
/* Where the last file ends that is known. */
int64_t ps_log_listed_end(ps_log *l);
/* Readers: whether files and log are as ps_log_refresh found them, and nothing stands at the end of
 * the log that was read. */
bool ps_log_stands(ps_log *l);
/* Readers: files below `first` that retention in another process has deleted. */
void ps_log_forget_below(ps_log *l, int64_t first);

#endif
