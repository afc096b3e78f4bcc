/* The handler of SIGBUS, and the table of mappings that it looks into. See sigbus.h.
 *
 * The handler may look at memory and store flags, nothing else: the table is therefore read without
 * a lock. Whoever meets the end of a file holds its mapping, so that the place that is looked for
 * does not change meanwhile; any other place may. */
#define _GNU_SOURCE
#include "base/sigbus.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "pystore.h"

#define CHUNK 1024
#define CHUNKS 1024 /* a million mappings: the kernel allows fewer */

typedef struct watched {
    _Atomic uintptr_t wt_start; /* 0: free */
    size_t wt_len;
    bool wt_writable;
    _Atomic bool *wt_cut;
    _Atomic int32_t *wt_err;
    int32_t wt_next; /* the next free place, while this one is free */
} watched;

static struct {
    atomic_int gd_state; /* 0 not installed, 1 about to be, 2 installed */
    uintptr_t gd_page;
    struct sigaction gd_before;
    pthread_mutex_t gd_lock; /* of the places; the handler does not take it */
    _Atomic(watched *) gd_chunks[CHUNKS];
    atomic_int gd_count; /* places that were ever used */
    int32_t gd_free;     /* the first free one, -1 none */
    uint8_t gd_met;      /* ps_sigbus_met; by the handler alone, atomically */
} guard = {.gd_lock = PTHREAD_MUTEX_INITIALIZER, .gd_free = -1};

static watched *place_at(int32_t i) {
    watched *chunk = atomic_load_explicit(&guard.gd_chunks[i / CHUNK], memory_order_acquire);
    return chunk + i % CHUNK;
}

static int32_t take_place_locked(void) {
    int32_t i = guard.gd_free;
    if (i >= 0) {
        guard.gd_free = place_at(i)->wt_next;
        return i;
    }
    i = atomic_load(&guard.gd_count);
    if (i == CHUNK * CHUNKS) return -1;
    if (i % CHUNK == 0) {
        watched *chunk = calloc(CHUNK, sizeof *chunk);
        if (chunk == NULL) return -1;
        atomic_store_explicit(&guard.gd_chunks[i / CHUNK], chunk, memory_order_release);
    }
    atomic_store(&guard.gd_count, i + 1);
    return i;
}

int32_t ps_sigbus_watch(const void *start, size_t len, bool writable, _Atomic bool *cut,
                        _Atomic int32_t *err) {
    pthread_mutex_lock(&guard.gd_lock);
    int32_t i = take_place_locked();
    if (i >= 0) {
        watched *w = place_at(i);
        w->wt_len = len;
        w->wt_writable = writable;
        w->wt_cut = cut;
        w->wt_err = err;
        atomic_store_explicit(&w->wt_start, (uintptr_t)start, memory_order_release);
    }
    pthread_mutex_unlock(&guard.gd_lock);
    return i;
}

void ps_sigbus_unwatch(int32_t place) {
    if (place < 0) return;
    pthread_mutex_lock(&guard.gd_lock);
    watched *w = place_at(place);
    atomic_store_explicit(&w->wt_start, 0, memory_order_release);
    w->wt_next = guard.gd_free;
    guard.gd_free = place;
    pthread_mutex_unlock(&guard.gd_lock);
}

static const watched *find_watched(uintptr_t at) {
    int32_t count = atomic_load(&guard.gd_count);
    for (int32_t i = 0; i < count; i++) {
        const watched *w = place_at(i);
        uintptr_t start = atomic_load_explicit(&w->wt_start, memory_order_acquire);
        if (start != 0 && at >= start && at - start < w->wt_len) return w;
    }
    return NULL;
}

/* mmap is not a listed async-signal-safe function, but a bare system call on Linux, and the signal
 * comes of a load of our own, never in the midst of malloc. It is not of the I/O table, since no
 * file is touched. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    int kept = errno;
    void *page = (void *)((uintptr_t)info->si_addr & ~(guard.gd_page - 1));
    const watched *w = find_watched((uintptr_t)info->si_addr);
    int prot = w != NULL && w->wt_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    (void)number;
    (void)context;
    if (w != NULL) {
        atomic_store(w->wt_err, EIO);
        atomic_store(w->wt_cut, true);
        __atomic_store_n(&guard.gd_met, 1, __ATOMIC_RELEASE);
    }
    if (w == NULL || mmap(page, guard.gd_page, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                          0) == MAP_FAILED)
        /* The load is tried again, and the signal then goes to who had it before. */
        sigaction(SIGBUS, &guard.gd_before, NULL);
    errno = kept;
}

const uint8_t *ps_sigbus_met(void) {
    return &guard.gd_met;
}

int ps_sigbus_install(ps_error *e) {
    int fresh = 0;
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (!atomic_compare_exchange_strong(&guard.gd_state, &fresh, 1)) return 0;
    guard.gd_page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &guard.gd_before) < 0) {
        atomic_store(&guard.gd_state, 0);
        return ps_fail(e, PS_E_IO, errno, -1, NULL, "cannot install the SIGBUS handler");
    }
    atomic_store(&guard.gd_state, 2);
    return 0;
}
