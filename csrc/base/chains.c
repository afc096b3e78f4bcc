/* See chains.h. */
#include "base/chains.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define FIRST_ROOM 64

uint64_t ps_hash_key[2];

/* Both are odd, so that no product of them is 0 by their fault. A system that has no random bytes
 * leaves the time and the place of the stack. */
__attribute__((constructor)) static void draw_key(void) {
    if (getrandom(ps_hash_key, sizeof ps_hash_key, GRND_NONBLOCK) != (ssize_t)sizeof ps_hash_key) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        ps_hash_key[0] = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u;
        ps_hash_key[1] = ps_hash_key[0] ^ (uint64_t)(uintptr_t)&now;
    }
    ps_hash_key[0] |= 1;
    ps_hash_key[1] |= 1;
}

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
