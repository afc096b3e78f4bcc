/* The clock of mapped segment files. See mappings.h.
 *
 * mp_lock is taken while the lock of a set is held, so that the hand may only try the lock of the
 * set whose file it wants: a set that is in use just now is passed over. */
#define _GNU_SOURCE
#include "files/mappings.h"

#include <stdlib.h>

#include "base/grow.h"

void ps_mappings_init(ps_mappings *m, int32_t max, bool (*let_go)(ps_mapfile *mf)) {
    *m = (ps_mappings){.mp_max = max, .mp_let_go = let_go};
    pthread_mutex_init(&m->mp_lock, NULL);
}

void ps_mappings_free(ps_mappings *m) {
    free(m->mp_files);
    pthread_mutex_destroy(&m->mp_lock);
}

static void remove_locked(ps_mappings *m, ps_mapfile *mf) {
    ps_mapfile *last = m->mp_files[--m->mp_count];
    m->mp_files[mf->mf_slot] = last;
    last->mf_slot = mf->mf_slot;
    mf->mf_slot = -1;
}

/* The next file that was not looked at since the hand passed it, taken out of its set with the
 * set's reference; NULL when all of them are held. */
static ps_mapfile *take_idle_locked(ps_mappings *m) {
    for (int64_t steps = 2LL * m->mp_count; steps > 0; steps--) {
        if (m->mp_hand >= m->mp_count) m->mp_hand = 0;
        ps_mapfile *mf = m->mp_files[m->mp_hand];
        bool used = atomic_exchange_explicit(&mf->mf_used, false, memory_order_relaxed);
        if (!used && m->mp_let_go(mf)) {
            remove_locked(m, mf);
            return mf;
        }
        m->mp_hand++;
    }
    return NULL;
}

int ps_mappings_make_room(ps_mappings *m) {
    ps_mapfile *idle = NULL;
    if (m == NULL) return 0;
    pthread_mutex_lock(&m->mp_lock);
    while (m->mp_count + m->mp_coming >= m->mp_max && (idle = take_idle_locked(m)) != NULL) {
        pthread_mutex_unlock(&m->mp_lock);
        ps_mapfile_unref(idle); /* a system call: not under the lock */
        pthread_mutex_lock(&m->mp_lock);
    }
    bool good = PS_GROW(m->mp_files, m->mp_room, m->mp_count + m->mp_coming + 1, 64);
    if (good) m->mp_coming++;
    pthread_mutex_unlock(&m->mp_lock);
    return good ? 0 : PS_E_NO_MEMORY;
}

void ps_mappings_add(ps_mappings *m, ps_mapfile *mf) {
    if (m == NULL) return;
    pthread_mutex_lock(&m->mp_lock);
    m->mp_coming--;
    mf->mf_slot = m->mp_count;
    m->mp_files[m->mp_count++] = mf;
    pthread_mutex_unlock(&m->mp_lock);
}

void ps_mappings_cancel(ps_mappings *m) {
    if (m == NULL) return;
    pthread_mutex_lock(&m->mp_lock);
    m->mp_coming--;
    pthread_mutex_unlock(&m->mp_lock);
}

void ps_mappings_remove(ps_mappings *m, ps_mapfile *mf) {
    if (m == NULL || mf == NULL) return;
    pthread_mutex_lock(&m->mp_lock);
    if (mf->mf_slot >= 0) remove_locked(m, mf);
    pthread_mutex_unlock(&m->mp_lock);
}

bool ps_mappings_shrink(ps_mappings *m) {
    bool any = false;
    if (m == NULL) return false;
    pthread_mutex_lock(&m->mp_lock);
    for (int32_t i = m->mp_count / 8; i >= 0; i--) {
        ps_mapfile *idle = take_idle_locked(m);
        if (idle == NULL) break;
        ps_mapfile_unref(idle);
        any = true;
    }
    pthread_mutex_unlock(&m->mp_lock);
    return any;
}

bool ps_mappings_crowded(ps_mappings *m) {
    if (m == NULL) return false;
    pthread_mutex_lock(&m->mp_lock);
    bool crowded = m->mp_count >= m->mp_max - m->mp_max / 4;
    pthread_mutex_unlock(&m->mp_lock);
    return crowded;
}
