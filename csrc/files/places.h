/* The folders of an open store: locked against a second writer by themselves, since an operator
 * may delete the file `lock`, and known again, since he may move them. The lock (flock) is on the
 * folder, not on its path: a link or another mount of it meets the same lock, a copy does not. */
#ifndef PS_PLACES_H
#define PS_PLACES_H

#include "base/error.h"
#include "files/io.h"

#define PS_PLACES_MAX 17 /* the root and PS_DIRS_MAX folders of the log */

typedef struct ps_places {
    ps_io *pl_io;
    int32_t pl_count;
    const char *pl_path[PS_PLACES_MAX]; /* which outlive this */
    int pl_fd[PS_PLACES_MAX];
} ps_places;

/* Locks a folder that is there; one that is held already, by another path, counts once.
 * PS_E_LOCKED: a writer has it. A file system without such locks leaves it to the file `lock`. */
int ps_places_take(ps_places *p, const char *folder, ps_error *e);
/* PS_E_NOT_WRITEABLE when a path leads to something else than it did. */
int ps_places_check(const ps_places *p, ps_error *e);
/* Makes a folder below them that new files go into (mkdir -p), never one of them again: when
 * one was moved, whoever moved it finds nothing new in its place. PS_E_NOT_WRITEABLE as above. */
int ps_places_folder(const ps_places *p, const char *folder, bool synced, ps_error *e);
/* What a failure `code` to make a file says: that a place was moved meanwhile, if one was. */
int ps_places_why(const ps_places *p, int code, ps_error *e);
void ps_places_release(ps_places *p);
/* Forgets them in a forked child, whose parent goes on holding them. */
void ps_places_forget(ps_places *p);

#endif
