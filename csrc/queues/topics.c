/* The table of topics and their queues. Topics and queues are never freed before the store's
 * handle, so a pointer once got stays good without a lock. Lookups of a queue take no lock at
 * all. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "format/multi.h"
#include "queues/topics.h"

void ps_topics_init(ps_topics *tt, struct ps_store *store, ps_io *io, const char *root,
                    int64_t file_size, bool readonly) {
    tt->tt_store = store;
    tt->tt_shared.qs_io = io;
    tt->tt_shared.qs_root = root;
    tt->tt_shared.qs_file_size = (file_size + PS_UNIT - 1) / PS_UNIT * PS_UNIT;
    tt->tt_shared.qs_readonly = readonly;
    pthread_rwlock_init(&tt->tt_shared.qs_lock, NULL);
}

static ps_topic *find_locked(ps_topics *tt, const char *name, int32_t len, uint32_t hash) {
    ps_topic *t = ps_chains_first(&tt->tt_topics, hash);
    while (t != NULL && (t->tp_len != len || memcmp(t->tp_name, name, (size_t)len) != 0))
        t = ps_chains_next(t);
    return t;
}

ps_topic *ps_topic_find(ps_topics *tt, const char *name, int32_t len) {
    pthread_rwlock_rdlock(&tt->tt_shared.qs_lock);
    ps_topic *t = find_locked(tt, name, len, ps_hash_of(name, len));
    pthread_rwlock_unlock(&tt->tt_shared.qs_lock);
    return t;
}

static ps_topic *make_locked(ps_topics *tt, const char *name, int32_t len, uint32_t hash) {
    if (!ps_chains_reserve(&tt->tt_topics)) return NULL;
    ps_topic *t = calloc(1, sizeof *t + (size_t)len + 1);
    if (t == NULL) return NULL;
    t->tp_table = tt;
    t->tp_store = tt->tt_store;
    t->tp_len = len;
    memcpy(t->tp_name, name, (size_t)len);
    t->tp_schedule = strcmp(t->tp_name, PS_SCHEDULE_TOPIC) == 0;
    if (ps_name_is_lmq((const uint8_t *)name, len)) atomic_store(&tt->tt_lmq, true);
    ps_chains_add(&tt->tt_topics, t, hash);
    return t;
}

ps_topic *ps_topic_get(ps_topics *tt, const char *name, int32_t len) {
    uint32_t hash = ps_hash_of(name, len);
    if (len < 0 || len > PS_TOPIC_MAX) return NULL;
    pthread_rwlock_wrlock(&tt->tt_shared.qs_lock);
    ps_topic *t = find_locked(tt, name, len, hash);
    if (t == NULL) t = make_locked(tt, name, len, hash);
    pthread_rwlock_unlock(&tt->tt_shared.qs_lock);
    return t;
}

_Static_assert(PS_QUEUE_BLOCK << (PS_QUEUE_BLOCKS - 1) == PS_QUEUE_ID_MAX + 1,
               "the blocks of a topic hold every queue id");

/* The block of a queue id. All blocks but the first begin at the id that is their own size. */
static inline int block_of(int32_t id) {
    return id < PS_QUEUE_BLOCK ? 0 : 32 - __builtin_clz((uint32_t)id / PS_QUEUE_BLOCK);
}

static inline int32_t block_size(int block) {
    return block == 0 ? PS_QUEUE_BLOCK : PS_QUEUE_BLOCK << (block - 1);
}

static inline int32_t place_in(int block, int32_t id) {
    return block == 0 ? id : id - block_size(block);
}

ps_queue *ps_topic_queue(ps_topic *t, int32_t id) {
    if (id < 0 || id > PS_QUEUE_ID_MAX) return NULL;
    int at = block_of(id);
    _Atomic(ps_queue *) *block = atomic_load_explicit(&t->tp_blocks[at], memory_order_acquire);
    if (block == NULL) return NULL;
    return atomic_load_explicit(&block[place_in(at, id)], memory_order_acquire);
}

int ps_topic_queue_add_locked(ps_topic *t, ps_queue *q) {
    ps_topics *tt = t->tp_table;
    int at = block_of(q->cq_id);
    _Atomic(ps_queue *) *block = atomic_load(&t->tp_blocks[at]);
    if (block == NULL) {
        block = calloc((size_t)block_size(at), sizeof *block);
        if (block == NULL) return PS_E_NO_MEMORY;
        atomic_store(&t->tp_blocks[at], block);
    }
    int32_t n = atomic_load(&tt->tt_queue_count);
    if (!PS_GROW(tt->tt_queues, tt->tt_queue_room, n + 1, 64)) return PS_E_NO_MEMORY;
    tt->tt_queues[n] = q;
    atomic_store(&tt->tt_queue_count, n + 1);
    atomic_store_explicit(&block[place_in(at, q->cq_id)], q, memory_order_release);
    return 0;
}

ps_queue *ps_topic_queue_get_locked(ps_topic *t, int32_t id) {
    ps_queue *q = ps_topic_queue(t, id);
    if (q != NULL || id < 0 || id > PS_QUEUE_ID_MAX) return q;
    q = ps_queue_new(&t->tp_table->tt_shared, t, t->tp_name, id);
    if (q != NULL && ps_topic_queue_add_locked(t, q) < 0) {
        ps_queue_free(q);
        q = NULL;
    }
    return q;
}

ps_queue *ps_topic_queue_get(ps_topic *t, int32_t id) {
    ps_queue *q = ps_topic_queue(t, id);
    if (q != NULL) return q;
    pthread_rwlock_wrlock(&t->tp_table->tt_shared.qs_lock);
    q = ps_topic_queue_get_locked(t, id);
    pthread_rwlock_unlock(&t->tp_table->tt_shared.qs_lock);
    return q;
}

int32_t ps_queues_snapshot(ps_topics *tt, ps_queue ***out) {
    pthread_rwlock_rdlock(&tt->tt_shared.qs_lock);
    int32_t n = atomic_load(&tt->tt_queue_count);
    *out = malloc((size_t)(n ? n : 1) * sizeof **out);
    if (*out == NULL)
        n = 0;
    else if (n > 0)
        memcpy(*out, tt->tt_queues, (size_t)n * sizeof **out);
    pthread_rwlock_unlock(&tt->tt_shared.qs_lock);
    return n;
}

void ps_topics_free(ps_topics *tt) {
    for (int32_t i = 0; i < atomic_load(&tt->tt_queue_count); i++) ps_queue_free(tt->tt_queues[i]);
    free(tt->tt_queues);
    ps_queues_shared_free(&tt->tt_shared);
    for (ps_topic *t = NULL; (t = ps_chains_each(&tt->tt_topics, t)) != NULL;)
        for (int b = 0; b < PS_QUEUE_BLOCKS; b++) free(atomic_load(&t->tp_blocks[b]));
    ps_chains_free(&tt->tt_topics, true);
    tt->tt_queues = NULL;
    pthread_rwlock_destroy(&tt->tt_shared.qs_lock);
}
