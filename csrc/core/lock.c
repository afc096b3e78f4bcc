/* See lock.h. */
#define _GNU_SOURCE
#include "core/lock.h"

#include <stdlib.h>

#include "base/clock.h"

_Thread_local int32_t ps_caller_now = PS_CALLER_LOOP;

/* Lies in the memory of what is buried. */
typedef struct ps_grave {
    struct ps_grave *next;
} ps_grave;

void ps_core_call_as(int32_t caller) {
    ps_caller_now = caller;
}

/* ---- what calls leave behind ---- */

static void free_call(ps_call *call) {
    if (call == NULL) return;
    ps_call_answer *answer = &call->ca_answer;
    ps_call_send *send = &call->ca_send;
    ps_call_pop *pop = &call->ca_pop;
    ps_buffer *all[] = {&call->ca_in,      &answer->an_out,  &answer->an_pieces, &pop->cp_text,
                        &send->sd_props,   &send->sd_places, &pop->cp_seen,      &pop->cp_ranks,
                        &send->sd_handle,  &answer->an_piece_batches};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ps_buffer_free(all[i]);
    free(call->ca_send.sd_command);
    free(call->ca_scratch);
    free(call->ca_frames.fs_first);
    pthread_mutex_destroy(&call->ca_share.sh_lock);
    free(call);
}

static ps_call *make_call(uint64_t random) {
    ps_call *call = calloc(1, sizeof *call);
    if (call == NULL) return NULL;
    pthread_mutex_init(&call->ca_share.sh_lock, NULL);
    call->ca_in = (ps_buffer){malloc(PS_READ_ROOM), 0, PS_READ_ROOM};
    call->ca_scratch = malloc(PS_HEADER_MAX);
    call->ca_work.wk_pulled.code = -1;
    call->ca_random = random;
    if (call->ca_in.data != NULL && call->ca_scratch != NULL) return call;
    free_call(call);
    return NULL;
}

int ps_core_add_caller(ps_core *c, int32_t caller, ps_error *e) {
    PS_CORE_HELD(c);
    if (caller < 1 || caller >= PS_CALLERS)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "a core has no caller %d", caller);
    if (c->co_lock.lo_calls[caller] != NULL) return 0;
    ps_call *made = make_call(ps_core_random(c) | 1);
    if (made == NULL) return ps_no_memory(e, NULL, "no memory for a network thread");
    /* As those of all others are while somebody is alone. */
    pthread_mutex_lock(&made->ca_share.sh_lock);
    c->co_lock.lo_calls[caller] = made;
    if (caller >= c->co_lock.lo_callers) c->co_lock.lo_callers = caller + 1;
    return 0;
}

/* ---- alone ---- */

static void free_graves(ps_core *c) {
    for (ps_grave *g = c->co_lock.lo_graves, *next; g != NULL; g = next) {
        next = g->next;
        free(g);
    }
    c->co_lock.lo_graves = NULL;
}

/* Takes it, and adds what that took to *waited_ns, if it took any time. */
static void lock_timed(pthread_mutex_t *lock, int64_t *waited_ns) {
    if (pthread_mutex_trylock(lock) == 0) return;
    int64_t began = ps_monotonic_ns();
    pthread_mutex_lock(lock);
    *waited_ns += ps_monotonic_ns() - began;
}

static void add_wait(ps_core *c, int64_t waited_ns) {
    if (waited_ns == 0) return;
    __atomic_fetch_add(&c->co_lock.lo_times.waits, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&c->co_lock.lo_times.waited_ns, waited_ns, __ATOMIC_RELAXED);
}

/* What a network thread has of the core; the loop does without, as it never shares. */
static void note_hold(ps_core *c, int32_t hold) {
    if (ps_caller_now != PS_CALLER_LOOP) ps_mine(c)->ca_share.sh_hold = hold;
}

ps_core *ps_core_enter(ps_core *c) {
    int64_t waited_ns = 0;
    ps_core_lock *l = &c->co_lock;
    ps_be_alone(c);
    lock_timed(&l->lo_alone, &waited_ns);
    if (l->lo_depth++ > 0) return c;
    for (int32_t i = 1; i < l->lo_callers; i++)
        if (l->lo_calls[i] != NULL) lock_timed(&l->lo_calls[i]->ca_share.sh_lock, &waited_ns);
    note_hold(c, PS_HOLD_ALONE);
    add_wait(c, waited_ns);
    l->lo_times.takes++;
    l->lo_entered_ns = l->lo_timed ? ps_monotonic_ns() : 0;
    if (ps_caller_now == PS_CALLER_LOOP && l->lo_graves != NULL) free_graves(c);
    return c;
}

void ps_core_leave(ps_core **held) {
    ps_core *c = *held;
    ps_core_lock *l = &c->co_lock;
    if (--l->lo_depth == 0) {
        note_hold(c, PS_HOLD_NONE);
        if (l->lo_entered_ns != 0) l->lo_times.held_ns += ps_monotonic_ns() - l->lo_entered_ns;
        for (int32_t i = 1; i < l->lo_callers; i++)
            if (l->lo_calls[i] != NULL) pthread_mutex_unlock(&l->lo_calls[i]->ca_share.sh_lock);
    }
    pthread_mutex_unlock(&l->lo_alone);
}

/* ---- together ---- */

ps_core *ps_core_share(ps_core *c) {
    ps_call *call = ps_mine(c);
    int64_t waited_ns = 0;
    if (ps_caller_now == PS_CALLER_LOOP || call->ca_share.sh_hold != PS_HOLD_NONE)
        return ps_core_enter(c);
    lock_timed(&call->ca_share.sh_lock, &waited_ns);
    add_wait(c, waited_ns);
    call->ca_share.sh_hold = PS_HOLD_SHARED;
    call->ca_share.sh_since_ns = c->co_lock.lo_timed ? ps_monotonic_ns() : 0;
    return c;
}

static void end_share(ps_core *c) {
    ps_call *call = ps_mine(c);
    ps_count_add(c);
    if (call->ca_share.sh_since_ns != 0) {
        int64_t ns = ps_monotonic_ns() - call->ca_share.sh_since_ns;
        __atomic_fetch_add(&c->co_lock.lo_times.shared_ns, ns, __ATOMIC_RELAXED);
    }
    call->ca_share.sh_hold = PS_HOLD_NONE;
    pthread_mutex_unlock(&call->ca_share.sh_lock);
}

void ps_core_unshare(ps_core **held) {
    ps_core *c = *held;
    if (ps_is_alone(c))
        ps_core_leave(held);
    else
        end_share(c);
}

void ps_be_alone(ps_core *c) {
    if (ps_is_alone(c)) return;
    end_share(c);
    ps_core_enter(c);
}

/* ---- what is gone, and what it costs ---- */

void ps_core_time_lock(ps_core *c) {
    PS_CORE_HELD(c);
    c->co_lock.lo_timed = true;
}

void ps_core_get_lock_times(ps_core *c, ps_core_lock_times *out) {
    PS_CORE_HELD(c);
    *out = c->co_lock.lo_times;
}

void ps_core_bury(ps_core *c, void *gone) {
    if (ps_caller_now == PS_CALLER_LOOP) {
        free(gone);
        return;
    }
    ps_grave *g = gone;
    g->next = c->co_lock.lo_graves;
    c->co_lock.lo_graves = g;
}

/* ---- the beginning and the end ---- */

bool ps_core_lock_make(ps_core *c, uint64_t random) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_settype(&how, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&c->co_lock.lo_alone, &how);
    pthread_mutexattr_destroy(&how);
    c->co_lock.lo_callers = 1;
    return (c->co_lock.lo_calls[PS_CALLER_LOOP] = make_call(random)) != NULL;
}

void ps_core_lock_free(ps_core *c) {
    for (int i = 0; i < PS_CALLERS; i++) free_call(c->co_lock.lo_calls[i]);
    free_graves(c);
    pthread_mutex_destroy(&c->co_lock.lo_alone);
}
