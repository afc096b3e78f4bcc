/* Queues that the broker watches: of delay levels, and of timers. */
#ifndef PS_WATCHED_H
#define PS_WATCHED_H

#include "core/core.h"

bool ps_core_has_watched_news(ps_core *c); /* of watched queues, which nobody has asked for yet */
void ps_watched_arrived(ps_core *c, ps_queue *q); /* q was watched and got messages */

#endif
