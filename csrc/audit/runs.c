/* Records that no unit leads to. See runs.h. */
#define _GNU_SOURCE
#include "audit/runs.h"

#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "queues/consumequeue.h"

void au_rivals_init(au_rivals *rv) {
    pthread_mutex_init(&rv->rv_lock, NULL);
}

void au_rivals_free(au_rivals *rv) {
    for (au_claims *c = NULL; (c = ps_chains_each(&rv->rv_table, c)) != NULL;) {
        for (int32_t i = 0; i < c->cl_count; i++) free(c->cl_runs[i].places);
        free(c->cl_runs);
    }
    ps_chains_free(&rv->rv_table, true);
    pthread_mutex_destroy(&rv->rv_lock);
}

static au_claims *claims_of(au_rivals *rv, const uint8_t *topic, int32_t len, int32_t id) {
    uint32_t h = ps_queue_hash(topic, len, id);
    au_claims *c = ps_chains_first(&rv->rv_table, h);
    while (c != NULL && (c->cl_id != id || c->cl_topic_len != len ||
                         memcmp(c->cl_topic, topic, (size_t)len) != 0))
        c = ps_chains_next(c);
    if (c != NULL || !ps_chains_reserve(&rv->rv_table)) return c;
    c = calloc(1, sizeof *c + (size_t)len);
    if (c == NULL) return NULL;
    c->cl_id = id;
    c->cl_topic_len = len;
    memcpy(c->cl_topic, topic, (size_t)len);
    ps_chains_add(&rv->rv_table, c, h);
    return c;
}

void au_rivals_add(au_rivals *rv, const uint8_t *topic, int32_t topic_len, int32_t queue_id,
                   const au_run *run) {
    pthread_mutex_lock(&rv->rv_lock);
    au_claims *c = claims_of(rv, topic, topic_len, queue_id);
    if (c != NULL && PS_GROW(c->cl_runs, c->cl_room, c->cl_count + 1, 1))
        c->cl_runs[c->cl_count++] = *run;
    pthread_mutex_unlock(&rv->rv_lock);
}
