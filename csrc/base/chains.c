/* See chains.h. */
#include "base/chains.h"

#include <stdlib.h>

#define FIRST_ROOM 64

bool ps_chains_reserve(ps_chains *t) {
    if (t->count < t->room) return true;
    uint32_t room = t->room > 0 ? 2 * t->room : FIRST_ROOM;
    ps_chain **buckets = calloc(room, sizeof *buckets);
    if (buckets == NULL) return false;
    for (uint32_t i = 0; i < t->room; i++) {
        for (ps_chain *at = t->buckets[i], *next; at != NULL; at = next) {
            next = at->next;
            at->next = buckets[at->hash & (room - 1)];
            buckets[at->hash & (room - 1)] = at;
        }
    }
    free(t->buckets);
    t->buckets = buckets;
    t->room = room;
    return true;
}

void ps_chains_add(ps_chains *t, void *entry, uint32_t hash) {
    ps_chain *at = entry, **bucket = &t->buckets[hash & (t->room - 1)];
    *at = (ps_chain){*bucket, hash};
    *bucket = at;
    t->count++;
}

void ps_chains_remove(ps_chains *t, void *entry) {
    ps_chain *at = entry, **link = &t->buckets[at->hash & (t->room - 1)];
    while (*link != at) link = &(*link)->next;
    *link = at->next;
    t->count--;
}

void *ps_chains_each(const ps_chains *t, const void *entry) {
    const ps_chain *at = entry;
    if (at != NULL && at->next != NULL) return at->next;
    uint32_t bucket = at != NULL ? (at->hash & (t->room - 1)) + 1 : 0;
    while (bucket < t->room && t->buckets[bucket] == NULL) bucket++;
    return bucket < t->room ? t->buckets[bucket] : NULL;
}

void ps_chains_free(ps_chains *t, bool entries) {
    for (void *at = entries ? ps_chains_each(t, NULL) : NULL, *next; at != NULL; at = next) {
        next = ps_chains_each(t, at);
        free(at);
    }
    free(t->buckets);
    *t = (ps_chains){NULL, 0, 0};
}
