/* The checkpoint, abort and lock files of a store root. docs/internals/format.md#checkpoint;
 * upstream StoreCheckpoint, DefaultMessageStore.createTempFile / lockFile. */
#ifndef PS_CHECKPOINT_H
#define PS_CHECKPOINT_H

#include "base/error.h"
#include "files/io.h"

/* cdef begin */
#define PS_CHECKPOINT_SIZE 4096
#define PS_CHECKPOINT_MARGIN_MS 3000 /* recovery goes so far behind the times that it says */

typedef struct ps_checkpoint {
    int64_t physic_msg_timestamp; /* ms: store time of data known to be on the disk */
    int64_t logics_msg_timestamp; /* ms: same for consume queues */
    int64_t index_msg_timestamp;  /* ms: same for index files */
    int64_t master_flushed_offset;
    int64_t confirm_phy_offset;
} ps_checkpoint;

/* The values in the bytes of a checkpoint; zeros when they are too few. */
void ps_checkpoint_parse(const uint8_t *p, int64_t len, ps_checkpoint *out);
/* cdef end */

/* A missing or short file reads as zeros: recovery then starts at the first file. */
int ps_checkpoint_read(ps_io *io, const char *root, ps_checkpoint *out, ps_error *e);
/* Overwrites the first 40 bytes in place and syncs, keeping the file 4096 bytes long. */
int ps_checkpoint_write(ps_io *io, const char *root, const ps_checkpoint *c, ps_error *e);

int ps_abort_present(ps_io *io, const char *root); /* 1, 0 */
/* Before anything changes: PS_E_STRAY_FILE when something else than a file stands in its place. */
int ps_abort_check(ps_io *io, const char *root, ps_error *e);
int ps_abort_create(ps_io *io, const char *root,
                    ps_error *e); /* holds the process id; synced, folder too */
int ps_abort_remove(ps_io *io, const char *root, ps_error *e); /* and syncs the folder */

/* Takes the exclusive lock that upstream takes (bytes [0,1) of `lock`, content "lock"), both as a
 * record lock, which a Java broker sees, and against a second open in this process. PS_E_LOCKED
 * with error.pid of the holder, PS_E_STRAY_FILE where no file stands. *fd is what ps_lock_release
 * needs. */
int ps_lock_take(ps_io *io, const char *root, int *fd, ps_error *e);
void ps_lock_release(ps_io *io, int fd);
/* Takes it again where the file was deleted or replaced meanwhile: *fd is then another one.
 * PS_E_LOCKED: another process has taken it. 1: it was taken again, 0: all is as it was. */
int ps_lock_keep(ps_io *io, const char *root, int *fd, ps_error *e);

#endif
