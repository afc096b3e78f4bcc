/* A hash table of chains that grows by itself, for entries that begin with a ps_chain. The table
 * owns none of them. What makes two entries equal is the caller's: it walks the chain of a hash. */
#ifndef PS_CHAINS_H
#define PS_CHAINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct ps_chain { /* the first member of an entry */
    struct ps_chain *next;
    uint32_t hash;
} ps_chain;

typedef struct ps_chains { /* all zeros: an empty table */
    ps_chain **buckets;
    uint32_t room, count; /* room: a power of two, 0 at first */
} ps_chains;

/* The first entry of this hash, and the one after it; NULL: no more. */
static inline ps_chain *ps_chain_alike(ps_chain *at, uint32_t hash) {
    while (at != NULL && at->hash != hash) at = at->next;
    return at;
}
static inline void *ps_chains_first(const ps_chains *t, uint32_t hash) {
    return t->room == 0 ? NULL : ps_chain_alike(t->buckets[hash & (t->room - 1)], hash);
}
static inline void *ps_chains_next(const void *entry) {
    const ps_chain *at = entry;
    return ps_chain_alike(at->next, at->hash);
}

/* Makes room for one entry more. False: there is no memory. */
bool ps_chains_reserve(ps_chains *t);
/* Adds an entry, after ps_chains_reserve. */
void ps_chains_add(ps_chains *t, void *entry, uint32_t hash);
void ps_chains_remove(ps_chains *t, void *entry);

/* All entries, in no order: the first for NULL. To free entries while walking, ask for the next one
 * before. */
void *ps_chains_each(const ps_chains *t, const void *entry);
/* Frees the table, and with `entries` what is in it, by free(). */
void ps_chains_free(ps_chains *t, bool entries);

/* A hash for tables of names, under a key of this process alone: whoever knew it could choose names
 * that all share a chain, and have each of them cost what all cost. */
extern uint64_t ps_hash_key[2];

static inline uint64_t ps_hash_mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}
static inline uint32_t ps_hash_more(uint32_t h, const uint8_t *text, int32_t len) {
    uint64_t state = ps_hash_key[0] ^ ((uint64_t)(uint32_t)len << 32 | h), word = 0;
    for (; len > 8; len -= 8, text += 8) {
        memcpy(&word, text, 8);
        state = ps_hash_mix(state ^ word, ps_hash_key[1]);
    }
    word = 0;
    if (len > 0) memcpy(&word, text, (size_t)len);
    state = ps_hash_mix(ps_hash_mix(state ^ word, ps_hash_key[1]), ps_hash_key[0]);
    return (uint32_t)(state ^ state >> 32);
}
static inline uint32_t ps_hash_of(const void *text, int32_t len) {
    return ps_hash_more(0, text, len);
}

#endif
