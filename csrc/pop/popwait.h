/* Pops that wait for messages, whoever asks. docs/internals/pop.md#long-polling. Private to
 * csrc/remoting/. */
#ifndef PS_POPWAIT_H
#define PS_POPWAIT_H

#include "pop/popplace.h"

/* Waits for so many ms at most. found: of the try that found nothing. False: it may not wait, since
 * too many do, or there is no memory. */
bool ps_pop_wait(const ps_pop_asker *who, const ps_pop_ask *ask, int64_t wait_ms,
                 const ps_pop_found *found);
/* One that is ready tries again. 1: it is done with, and *out has what is to be given; 0: it waits
 * on. */
int ps_pop_resume(ps_core *c, ps_parked *ready, ps_step *out);

#endif
