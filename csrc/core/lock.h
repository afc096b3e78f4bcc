/* Who may touch the core. Callers are the event loop and the network threads; each function of the
 * interface begins with PS_CORE_HELD, and is alone then, or with PS_CORE_SHARED. Network threads
 * that share the core read tables, put plain messages and count them, all at the same time; whoever
 * is alone changes tables. A thread that shares it holds a lock of its own, and who wants to be
 * alone takes all of them: so sharing costs the same with any number of threads.
 *
 * What a call leaves behind for its caller (answers, frames, texts) belongs to this caller alone,
 * and stays as it is until he calls again, whatever others do meanwhile. docs/locking.md. */
#ifndef PS_LOCK_H
#define PS_LOCK_H

#include "core/core.h"

#define PS_CALLER_LOOP 0 /* threads that never said who they are */

/* For the rest of the block the caller is alone; it may be entered again within. */
#define PS_CORE_HELD(c)                                                                           \
    __attribute__((cleanup(ps_core_leave), unused)) ps_core *ps_held = ps_core_enter(c)
/* For the rest of the block he shares it, if he is not alone already: the loop always is. */
#define PS_CORE_SHARED(c)                                                                        \
    __attribute__((cleanup(ps_core_unshare), unused)) ps_core *ps_shared = ps_core_share(c)

/* Whoever shares it is alone from here on, to the end of the block: what he has read before may be
 * gone. */
void ps_be_alone(ps_core *c);

/* The calling thread is this caller from now on: 1 to PS_CALLERS - 1. */
void ps_core_call_as(int32_t caller);
/* Room for what calls of this caller leave behind. PS_E_NO_MEMORY. */
int ps_core_add_caller(ps_core *c, int32_t caller, ps_error *e);

bool ps_core_lock_make(ps_core *c, uint64_t random); /* false: no memory */
void ps_core_lock_free(ps_core *c);
ps_core *ps_core_enter(ps_core *c);
void ps_core_leave(ps_core **held);
ps_core *ps_core_share(ps_core *c);
void ps_core_unshare(ps_core **held);
/* Frees it, when the loop has no row left that may point at it: at its next call. */
void ps_core_bury(ps_core *c, void *gone);

#endif
