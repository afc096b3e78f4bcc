/* Who may touch the core: one caller at a time. Callers are the event loop and the network threads;
 * each function of the interface begins with PS_CORE_HELD. What a call leaves behind for its caller
 * (answers, frames, texts) belongs to this caller alone, and stays as it is until he calls again,
 * whatever others do meanwhile. docs/locking.md. */
#ifndef PS_GUARD_H
#define PS_GUARD_H

#include "remoting/core.h"

#define PS_CALLER_LOOP 0 /* threads that never said who they are */

/* The rest of the block belongs to the caller; it may be entered again within. */
#define PS_CORE_HELD(c)                                                                           \
    __attribute__((cleanup(ps_core_leave), unused)) ps_core *ps_held = ps_core_enter(c)

/* The calling thread is this caller from now on: 1 to PS_CALLERS - 1. */
void ps_core_call_as(int32_t caller);
/* Room for what calls of this caller leave behind. PS_E_NO_MEMORY. */
int ps_core_add_caller(ps_core *c, int32_t caller, ps_error *e);

bool ps_guard_make(ps_core *c); /* false: no memory */
void ps_guard_free(ps_core *c);
ps_core *ps_core_enter(ps_core *c);
void ps_core_leave(ps_core **held);
/* Frees it, when the loop has no row left that may point at it: at its next call. */
void ps_core_bury(ps_core *c, void *gone);

#endif
