/* What follows an append: whoever reads on in the log and sleeps is woken. */
#ifndef PS_APPENDED_H
#define PS_APPENDED_H

#include "base/threads.h"
#include "store/store.h"

/* The dispatcher, and who sends the log to slaves. */
static inline void ps_wake_those_who_read_on(ps_store *s) {
    if (__builtin_expect(atomic_load(&s->st_dispatcher.ds_napping), 0)) ps_dispatch_wake(s);
    if (__builtin_expect(atomic_load(&s->st_dispatcher.ds_sender_naps), 0) &&
        atomic_exchange(&s->st_dispatcher.ds_sender_naps, false))
        ps_eventfd_tell(s->st_sender_fd);
}

#endif
