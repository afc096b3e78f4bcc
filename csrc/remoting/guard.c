/* See guard.h. */
#define _GNU_SOURCE
#include "remoting/guard.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "remoting/popped.h"

static _Thread_local int32_t caller_now = PS_CALLER_LOOP;

/* Lies in the memory of what is buried. */
typedef struct ps_grave {
    struct ps_grave *next;
} ps_grave;

void ps_core_call_as(int32_t caller) {
    caller_now = caller;
}

/* ---- what calls leave behind ---- */

static bool make_call(ps_call *call) {
    *call = (ps_call){.co_in = {malloc(PS_READ_ROOM), 0, PS_READ_ROOM},
                      .co_scratch = malloc(PS_HEADER_MAX),
                      .co_pulled = {.code = -1}};
    return call->co_in.data != NULL && call->co_scratch != NULL;
}

static void free_call(ps_call *call) {
    ps_deferred_free(call->co_deferred);
    ps_buffer *all[] = {&call->co_in,       &call->co_out,      &call->co_props,
                        &call->co_places,   &call->co_handle,   &call->co_pop_text,
                        &call->co_pop_body, &call->co_pop_seen};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ps_buffer_free(all[i]);
    free(call->co_open);
    free(call->co_scratch);
    free(call->co_frames);
}

int ps_core_add_caller(ps_core *c, int32_t caller, ps_error *e) {
    PS_CORE_HELD(c);
    if (caller < 1 || caller >= PS_CALLERS)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "a core has no caller %d", caller);
    if (c->co_calls[caller] != NULL) return 0;
    ps_call *made = calloc(1, sizeof *made);
    if (made != NULL && make_call(made)) {
        c->co_calls[caller] = made;
        return 0;
    }
    if (made != NULL) free_call(made);
    free(made);
    return ps_fail(e, PS_E_NO_MEMORY, ENOMEM, -1, NULL, "no memory for a network thread");
}

/* ---- entering ---- */

static void free_graves(ps_core *c) {
    for (ps_grave *g = c->co_graves, *next; g != NULL; g = next) {
        next = g->next;
        free(g);
    }
    c->co_graves = NULL;
}

/* The fields of the call become those of this caller. */
static void change_caller(ps_core *c, int32_t to) {
    ps_call *old = c->co_calls[to], now = c->co_call;
    c->co_call = *old;
    *old = now;
    c->co_calls[c->co_caller] = old;
    c->co_calls[to] = NULL;
    c->co_caller = to;
}

static void wait_for_lock(ps_core *c) {
    int64_t began = ps_monotonic_ns();
    pthread_mutex_lock(&c->co_lock);
    c->co_lock_times.waits++;
    c->co_lock_times.waited_ns += ps_monotonic_ns() - began;
}

ps_core *ps_core_enter(ps_core *c) {
    if (pthread_mutex_trylock(&c->co_lock) != 0) wait_for_lock(c);
    if (c->co_depth++ > 0) return c;
    c->co_lock_times.takes++;
    c->co_entered_ns = c->co_times_lock ? ps_monotonic_ns() : 0;
    if (c->co_caller != caller_now) change_caller(c, caller_now);
    if (caller_now == PS_CALLER_LOOP && c->co_graves != NULL) free_graves(c);
    return c;
}

void ps_core_leave(ps_core **held) {
    ps_core *c = *held;
    if (--c->co_depth == 0 && c->co_entered_ns != 0)
        c->co_lock_times.held_ns += ps_monotonic_ns() - c->co_entered_ns;
    pthread_mutex_unlock(&c->co_lock);
}

void ps_core_time_lock(ps_core *c) {
    PS_CORE_HELD(c);
    c->co_times_lock = true;
}

void ps_core_get_lock_times(ps_core *c, ps_core_lock_times *out) {
    PS_CORE_HELD(c);
    *out = c->co_lock_times;
}

void ps_core_bury(ps_core *c, void *gone) {
    if (c->co_caller == PS_CALLER_LOOP) {
        free(gone);
        return;
    }
    ps_grave *g = gone;
    g->next = c->co_graves;
    c->co_graves = g;
}

/* ---- the beginning and the end ---- */

bool ps_guard_make(ps_core *c) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_settype(&how, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&c->co_lock, &how);
    pthread_mutexattr_destroy(&how);
    return make_call(&c->co_call);
}

void ps_guard_free(ps_core *c) {
    free_call(&c->co_call);
    for (int i = 0; i < PS_CALLERS; i++) {
        if (c->co_calls[i] != NULL) free_call(c->co_calls[i]);
        free(c->co_calls[i]);
    }
    free_graves(c);
    pthread_mutex_destroy(&c->co_lock);
}
