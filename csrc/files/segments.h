/* The ordered set of segment files that makes a logical file: the commit log, a consume queue.
 * Upstream: MappedFileQueue. */
#ifndef PS_SEGMENTS_H
#define PS_SEGMENTS_H

#include <pthread.h>

#include "files/mapfile.h"
#include "files/mappings.h"

/* An ordered set of equally long files without gaps. */
typedef struct ps_segment {
    int64_t sg_base;
    ps_mapfile *sg_file; /* NULL: not mapped now */
    char *sg_path;
    /* as they were when it was unmapped */
    int64_t sg_wrote, sg_flushed, sg_reserved;
    int32_t sg_errno;
    bool sg_was_mapped;
} ps_segment;

typedef struct ps_segments {
    ps_io *ss_io;
    pthread_rwlock_t ss_lock; /* guards the array, not the files */
    ps_segment *ss_items;
    int32_t ss_count, ss_room;
    int64_t ss_file_size;
    int ss_flags; /* for ps_mapfile_open */
    ps_mappings *ss_mappings; /* who bounds how many are mapped; NULL: nobody */
} ps_segments;

void ps_segments_init(ps_segments *ss, ps_io *io, int64_t file_size, int flags);
void ps_segments_free(ps_segments *ss);
/* Adds a file that is there (not mapped yet), keeping the order. */
int ps_segments_add(ps_segments *ss, int64_t base, const char *path, ps_mapfile *mf_or_null);
/* Makes the file of that path and adds it, with a reference for the caller. */
int ps_segments_make(ps_segments *ss, int64_t base, const char *path, ps_mapfile **out,
                     ps_error *e);
/* The file that holds `offset`, with a reference for the caller; NULL when there is none (or
 * *e), or when it was cut off. A file stays mapped as long as somebody holds it; without that it
 * may be unmapped at any time. */
ps_mapfile *ps_segments_find(ps_segments *ss, int64_t offset, ps_error *e);
/* PS_E_FILE_SIZE when the file that holds `offset` was cut off, else 0, also when no file holds it.
 * Asked when nothing sound was found there. */
int ps_segments_whole(ps_segments *ss, int64_t offset, ps_error *e);
/* Copies `len` bytes from `offset` on, all of one file, without mapping it: for a look into each of
 * thousands. 1; 0 when no file holds the offset; or an error code. */
int ps_segments_peek(ps_segments *ss, int64_t offset, void *out, int64_t len, ps_error *e);
/* The same of the file that has its name now, whatever file was mapped. */
int ps_segments_read(ps_segments *ss, int64_t offset, void *out, int64_t len, ps_error *e);
/* Syncs what was written to item i, mapped or not; as ps_mapfile_flush. */
int ps_segments_flush(ps_segments *ss, int32_t i, ps_error *e);
/* How much of [from, to) is mapped, and how much of that is in memory, in bytes: looked at in
 * `most` windows of PS_RESIDENT_WINDOW bytes at most, spread evenly. Nothing is read or mapped. */
#define PS_RESIDENT_WINDOW (256 * 1024)
void ps_segments_resident(ps_segments *ss, int64_t from, int64_t to, int32_t most, int64_t *mapped,
                          int64_t *resident);
/* For ps_mappings_init. */
bool ps_segments_let_go(ps_mapfile *mf);
int32_t ps_segments_count(ps_segments *ss);
int64_t ps_segments_base(ps_segments *ss,
                         int32_t i); /* -1 out of range; negative i counts from the end */
/* Takes item i out of the set and deletes its file; mappings in use live on. */
int ps_segments_delete(ps_segments *ss, int32_t i, ps_error *e);

/* Takes an item out of the set and leaves its file alone; negative i counts from the end. */
void ps_segments_forget(ps_segments *ss, int32_t i);
/* The same of the first: somebody else has deleted it. */
void ps_segments_forget_first(ps_segments *ss);
/* Readers: the file that begins at `base` has this inode by now. Another one that is mapped is let
 * go of, since the writer has deleted it and made it again. */
void ps_segments_renew(ps_segments *ss, int64_t base, uint64_t inode);

#endif
