/* How many segment files of a store are mapped at once. A process may have 65,530 mappings
 * (vm.max_map_count), and a store may have more files than that: those that nobody has looked at
 * for longest are unmapped, and mapped again when they are asked for. */
#ifndef PS_MAPPINGS_H
#define PS_MAPPINGS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "files/mapfile.h"

/* A clock over the files that the sets of one store keep mapped (ps_segments). A file that somebody
 * holds beyond its set is passed over, so that the number exceeds mp_max only by what is held. */
typedef struct ps_mappings {
    pthread_mutex_t mp_lock;
    ps_mapfile **mp_files;
    int32_t mp_count, mp_room, mp_hand;
    int32_t mp_coming; /* places reserved by threads that are about to map a file */
    int32_t mp_max;
    /* Takes a file out of its set, whose reference is then the caller's. False when somebody holds
     * it, when its set is in use, or when it must stay. */
    bool (*mp_let_go)(ps_mapfile *mf);
} ps_mappings;

/* Every function takes NULL for a set whose files are not counted. */
void ps_mappings_init(ps_mappings *m, int32_t max, bool (*let_go)(ps_mapfile *mf));
void ps_mappings_free(ps_mappings *m);
/* Unmaps until there is room for one more, and keeps that room for the caller, who then calls
 * ps_mappings_add or ps_mappings_cancel. 0 or PS_E_NO_MEMORY. */
int ps_mappings_make_room(ps_mappings *m);
void ps_mappings_add(ps_mappings *m, ps_mapfile *mf);
void ps_mappings_cancel(ps_mappings *m);
/* The set is about to drop the file. A file that was never added is passed over. */
void ps_mappings_remove(ps_mappings *m, ps_mapfile *mf);
/* The kernel refuses more: unmaps an eighth. False when there was nothing to unmap. */
bool ps_mappings_shrink(ps_mappings *m);
/* Whether three quarters of the room are taken: housekeeping that looks into thousands of files
 * then reads them and maps none. */
bool ps_mappings_crowded(ps_mappings *m);

#endif
