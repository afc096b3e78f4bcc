/* A hash table of very many small entries, which it owns: an entry is named by 32 bits instead of a
 * pointer, and takes its own bytes, 4 of which are the table's, and some 2 in the table. Entries of
 * a size share pages; a page with none is freed. The table has a bucket for two entries, and grows
 * by one bucket (Litwin, "Linear hashing", 1980), so that nobody waits while all of them move. An
 * entry does not have its hash: the owner works it out again when the entry moves or goes. What
 * makes two entries equal is the owner's, too: it walks those that may have a hash. For fewer
 * entries, or with pointers: chains.h. */
#ifndef PS_POOL_H
#define PS_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PS_POOL_GRAIN 4      /* an entry is aligned to this */
#define PS_POOL_PAGE_BITS 12 /* of its grains: 16 KiB */
#define PS_POOL_PAGES_MAX (1U << (32 - PS_POOL_PAGE_BITS)) /* 16 GiB: then there is no memory */
#define PS_POOL_GRAINS_MAX 96
#define PS_POOL_ENTRY_MAX (PS_POOL_GRAINS_MAX * PS_POOL_GRAIN)

typedef uint32_t ps_ref; /* of an entry; 0: none */

typedef struct ps_entry { /* the first member of one */
    ps_ref en_next;
} ps_entry;

/* The hash that an entry was added with. */
typedef uint32_t ps_pool_hash(const void *owner, const void *entry);

typedef struct ps_pool { /* an empty one: these two, and else zeros */
    ps_pool_hash *pl_hash;
    const void *pl_owner;
    uint8_t **pl_pages;
    uint32_t pl_page_count, pl_page_room;
    uint32_t pl_spare; /* a page number that is free, plus 1, whose place has the next; 0: none */
    uint32_t pl_open[PS_POOL_GRAINS_MAX + 1]; /* by size: a page with room, plus 1; 0: none */
    ps_ref *pl_buckets;
    uint32_t pl_bucket_count, pl_bucket_room, pl_wide; /* wide: mask of more than these buckets */
    uint32_t pl_count;
} ps_pool;

/* Buckets of an empty pool for so many entries, which are then made without moving others. Without
 * memory they are made one by one. */
void ps_pool_reserve(ps_pool *p, uint32_t count);
/* Stays where it is until it is dropped. */
static inline void *ps_pool_at(const ps_pool *p, ps_ref ref) {
    return p->pl_pages[ref >> PS_POOL_PAGE_BITS] +
           (size_t)(ref & ((1U << PS_POOL_PAGE_BITS) - 1)) * PS_POOL_GRAIN;
}

/* A new entry of so many bytes, all 0 but for the table's. Before the next one is added it is to be
 * such that it has this hash. 0: no memory, or it is too large. */
ps_ref ps_pool_add(ps_pool *p, size_t size, uint32_t hash);
void ps_pool_drop(ps_pool *p, ps_ref ref);
/* The first entry that may have this hash, and the one after it; 0: no more. */
ps_ref ps_pool_first(const ps_pool *p, uint32_t hash);
ps_ref ps_pool_next(const ps_pool *p, ps_ref ref);
/* Has the processor fetch what a search for this hash begins with, while others are looked for:
 * their bucket, and in a call after that the first of its entries. */
#define PS_POOL_SHARE 2 /* entries a bucket */
#define PS_POOL_AHEAD 16 /* searches that this is done for at once */
void ps_pool_fetch(const ps_pool *p, uint32_t hash, bool entry);
/* All entries, in no order: the first for 0. None is added or dropped meanwhile. */
ps_ref ps_pool_each(const ps_pool *p, ps_ref ref);
/* Frees all entries, of which there are none then. */
void ps_pool_free(ps_pool *p);

#endif
