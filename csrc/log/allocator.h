/* What is made ahead of the writer of the log, by a thread of its own: the next file, the next
 * reserved window, the pages that come next. Upstream: AllocateMappedFileService. */
#ifndef PS_ALLOCATOR_H
#define PS_ALLOCATOR_H

#include "log/commitlog.h"

typedef struct ps_allocator {
    ps_log *al_log;
    bool al_running; /* its thread runs; without it the writer does everything itself */
    pthread_mutex_t al_lock;
    pthread_cond_t al_wake;      /* for the thread: something is asked for */
    pthread_cond_t al_done;      /* for the writer: the next file is there, or cannot be made */
    _Atomic bool al_ended;       /* set under al_lock */
    ps_mapfile *al_next_file;    /* made ahead; al_lock */
    int64_t al_next_wanted;      /* base of the file to be made, -1: none; al_lock */
    ps_error al_next_error;      /* why the last one could not be made; al_lock */
    ps_mapfile *al_reserve_file; /* file that wants its next window; al_lock, referenced */
    ps_mapfile *al_touch_file;   /* file whose next pages are wanted; al_lock, referenced */
    int64_t al_touch_from, al_touch_to; /* bytes of it; al_lock */
    bool al_touch_calm;                 /* little is appended; al_lock */
    int64_t al_touched;                 /* log offset up to which that was done; the thread's */
    _Atomic bool al_touch_asked;        /* a request waits */
    _Atomic bool al_asked;              /* so that the append path asks once */
    int64_t al_touch_at;                /* the writer asks again when it gets here; append lock */
    int64_t al_touch_ms[2];             /* when it asked last, and before that; append lock */
} ps_allocator;

void ps_allocator_init(ps_allocator *a, ps_log *log);
/* The thread: works until it is stopped, also while the store stops, since a put that is under way
 * may wait for its next file. */
void *ps_allocator_main(void *allocator);
void ps_allocator_stop(ps_allocator *a);
/* After the thread has ended: what was made ahead is closed, and deleted unless `keep`. */
void ps_allocator_free(ps_allocator *a, bool keep);

/* ---- the writer's side; append lock held ---- */

/* The file that begins at `base`: made ahead, or waited for. */
int ps_allocator_next_file(ps_allocator *a, int64_t base, ps_mapfile **out, ps_error *e);
/* Asks for the next window of the active file, or for the next file. */
void ps_allocator_ask(ps_allocator *a, ps_mapfile *active, int64_t wrote);
/* Asks for the pages after `wrote`, once in a while. */
void ps_allocator_ask_touch(ps_allocator *a, ps_mapfile *active, int64_t wrote);
/* A new file is the active one. */
void ps_allocator_new_file(ps_allocator *a);

#endif
