/* The index beside the scan of a recovery: a thread that puts the keys of records that the scan has
 * found whole, in their order. It touches none of what the scan writes. Memory is a few batches of
 * places in the log. */
#ifndef PS_INDEXER_H
#define PS_INDEXER_H

#include <pthread.h>

#include "store/store.h"

#define PS_INDEXER_BATCH 1024
#define PS_INDEXER_BATCHES 8

typedef struct ps_indexer {
    ps_store *id_store;
    pthread_t id_thread;
    bool id_running;
    pthread_mutex_t id_lock; /* guards the next four */
    pthread_cond_t id_news;
    int64_t id_given, id_done; /* batches */
    bool id_ended;
    int id_code;      /* the failure that ended it */
    ps_error id_why;
    int64_t id_entries; /* written */
    int32_t id_filled;  /* places in the batch that is being filled; the scan's */
    struct {
        int32_t count;
        int64_t at[PS_INDEXER_BATCH]; /* physical offsets of records */
    } id_batches[PS_INDEXER_BATCHES];
} ps_indexer;

/* NULL without memory or a thread: then the caller puts the keys by itself. */
ps_indexer *ps_indexer_start(ps_store *s);
/* The whole record at `physical` is to be indexed. 0, or the error that ended the thread. */
int ps_indexer_give(ps_indexer *x, int64_t physical, ps_error *e);
/* Waits until all is indexed; *entries: how many were written. x is freed. */
int ps_indexer_end(ps_indexer *x, int64_t *entries, ps_error *e);

#endif
