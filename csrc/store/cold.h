/* Reads that must not wait for the disk: they end before what is not in memory, and say what that
 * is, for a thread that may wait. */
#ifndef PS_COLD_H
#define PS_COLD_H

#include "store/store.h"

typedef struct ps_cold { /* bytes of a file, which it holds */
    ps_mapfile *file;    /* NULL: none */
    int64_t at, len;
} ps_cold;

/* Where a read with `in_memory` has ended for it; from then on the caller's. False: it has not. */
bool ps_batch_cold(ps_batch *batch, ps_cold *out);
/* Waits until it is in memory. */
void ps_cold_read(const ps_cold *cold);
void ps_cold_let_go(ps_cold *cold);

#endif
