/* Pulls of messages that are not in memory: they are parked, and threads of their own read these
 * from the disk, so that neither a network thread nor the core's lock waits for it. */
#ifndef PS_COLDPULL_H
#define PS_COLDPULL_H

#include "store/cold.h"
#include "waits/parked.h"

#define PS_COLD_TRIPS 8 /* of one pull; what memory loses again is waited for after that */

/* A parked pull, ready or in no list, has to wait for the disk: it is in no list now, and ready
 * once that is read. Takes what `cold` holds. False: no memory, or no thread. */
bool ps_cold_wait(ps_core *c, ps_parked *p, ps_cold *cold);
/* Makes ready whatever has been read. */
void ps_cold_look(ps_core *c);
/* Ends the threads. Nothing may be parked any more. */
void ps_cold_free(ps_core *c);

#endif
