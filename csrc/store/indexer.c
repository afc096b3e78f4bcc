/* The index beside the scan of a recovery. See indexer.h. */
#define _GNU_SOURCE
#include "store/indexer.h"

#include <stdlib.h>

/* Batches are handed over under the lock; their places are written and read without it. */
static int64_t wait_for_batch(ps_indexer *x) {
    pthread_mutex_lock(&x->id_lock);
    while (x->id_given == x->id_done && !x->id_ended) pthread_cond_wait(&x->id_news, &x->id_lock);
    int64_t number = x->id_given == x->id_done ? -1 : x->id_done;
    pthread_mutex_unlock(&x->id_lock);
    return number;
}

static int index_one(ps_indexer *x, int64_t physical, ps_mapfile **mf, ps_error *e) {
    ps_record r;
    if (*mf == NULL || physical < (*mf)->mf_base || physical >= (*mf)->mf_base + (*mf)->mf_size) {
        ps_mapfile_unref(*mf);
        *mf = ps_segments_find(&x->id_store->st_log.lg_files, physical, e);
        if (*mf == NULL) return e->code < 0 ? e->code : PS_E_IO;
    }
    int64_t at = physical - (*mf)->mf_base;
    /* The scan has found it whole; it is not any more when another process cut the file off. */
    if (ps_record_decode((*mf)->mf_map + at, (*mf)->mf_size - at, &r) != PS_REC_OK)
        return ps_mapfile_whole(*mf, e);
    int code = ps_index_put(x->id_store->st_index, &r, e);
    if (code > 0) x->id_entries += code;
    return code < 0 ? code : 0;
}

static void *indexer_main(void *arg) {
    ps_indexer *x = arg;
    ps_mapfile *mf = NULL;
    ps_error why = {0};
    int code = 0;
    for (int64_t number; (number = wait_for_batch(x)) >= 0;) {
        int32_t slot = (int32_t)(number % PS_INDEXER_BATCHES);
        for (int32_t i = 0; i < x->id_batches[slot].count && code == 0; i++)
            code = index_one(x, x->id_batches[slot].at[i], &mf, &why);
        pthread_mutex_lock(&x->id_lock);
        x->id_done++;
        if (code < 0 && x->id_code == 0) {
            x->id_code = code;
            x->id_why = why;
        }
        pthread_cond_signal(&x->id_news);
        pthread_mutex_unlock(&x->id_lock);
    }
    ps_mapfile_unref(mf);
    return NULL;
}

ps_indexer *ps_indexer_start(ps_store *s) {
    ps_indexer *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    x->id_store = s;
    pthread_mutex_init(&x->id_lock, NULL);
    pthread_cond_init(&x->id_news, NULL);
    x->id_running = pthread_create(&x->id_thread, NULL, indexer_main, x) == 0;
    if (x->id_running) return x;
    ps_indexer_end(x, &x->id_entries, NULL);
    return NULL;
}

/* Hands over the batch that is being filled, and waits for a free one. */
static int hand_over(ps_indexer *x, ps_error *e) {
    x->id_batches[x->id_given % PS_INDEXER_BATCHES].count = x->id_filled;
    x->id_filled = 0;
    pthread_mutex_lock(&x->id_lock);
    x->id_given++;
    pthread_cond_signal(&x->id_news);
    while (x->id_given - x->id_done >= PS_INDEXER_BATCHES)
        pthread_cond_wait(&x->id_news, &x->id_lock);
    int code = x->id_code;
    if (code < 0 && e != NULL) *e = x->id_why;
    pthread_mutex_unlock(&x->id_lock);
    return code;
}

int ps_indexer_give(ps_indexer *x, int64_t physical, ps_error *e) {
    x->id_batches[x->id_given % PS_INDEXER_BATCHES].at[x->id_filled++] = physical;
    return x->id_filled < PS_INDEXER_BATCH ? 0 : hand_over(x, e);
}

int ps_indexer_end(ps_indexer *x, int64_t *entries, ps_error *e) {
    if (x->id_running && x->id_filled > 0) hand_over(x, NULL);
    pthread_mutex_lock(&x->id_lock);
    x->id_ended = true;
    pthread_cond_signal(&x->id_news);
    pthread_mutex_unlock(&x->id_lock);
    if (x->id_running) pthread_join(x->id_thread, NULL);
    int code = x->id_code;
    if (code < 0 && e != NULL) *e = x->id_why;
    *entries = x->id_entries;
    pthread_cond_destroy(&x->id_news);
    pthread_mutex_destroy(&x->id_lock);
    free(x);
    return code;
}
