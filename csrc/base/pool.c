/* See pool.h. */
#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define PAGE_GRAINS (1U << PS_POOL_PAGE_BITS)
#define HEAD_GRAINS (sizeof(page_head) / PS_POOL_GRAIN)
#define FIRST_BUCKETS 64

/* What a page begins with: no entry is at its grain 0, so that no reference is 0. */
typedef struct page_head {
    uint32_t next, before; /* pages of this size with room, plus 1; 0: none */
    uint16_t grains;       /* of an entry */
    uint16_t live;
    uint16_t free;  /* an entry that was dropped, whose first bytes name the next; 0: none */
    uint16_t fresh; /* from here on nothing was given out yet */
} page_head;

static page_head *head_of(const ps_pool *p, uint32_t page) {
    return (page_head *)p->pl_pages[page];
}

static bool has_room(const page_head *h) {
    return h->free != 0 || h->fresh + h->grains <= (int32_t)PAGE_GRAINS;
}

/* ---- pages ---- */

static void open_page(ps_pool *p, uint32_t page) {
    page_head *h = head_of(p, page);
    h->before = 0;
    h->next = p->pl_open[h->grains];
    if (h->next != 0) head_of(p, h->next - 1)->before = page + 1;
    p->pl_open[h->grains] = page + 1;
}

static void shut_page(ps_pool *p, uint32_t page) {
    page_head *h = head_of(p, page);
    if (h->before != 0)
        head_of(p, h->before - 1)->next = h->next;
    else
        p->pl_open[h->grains] = h->next;
    if (h->next != 0) head_of(p, h->next - 1)->before = h->before;
}

/* A number for one more page. */
static bool number_page(ps_pool *p, uint32_t *page) {
    if (p->pl_spare != 0) {
        *page = p->pl_spare - 1;
        p->pl_spare = (uint32_t)(uintptr_t)p->pl_pages[*page];
        return true;
    }
    if (p->pl_page_count == p->pl_page_room) {
        uint32_t room = p->pl_page_room + p->pl_page_room / 4 + 16;
        if (room > PS_POOL_PAGES_MAX) room = PS_POOL_PAGES_MAX;
        uint8_t **grown = room > p->pl_page_count
                              ? realloc(p->pl_pages, (size_t)room * sizeof *grown)
                              : NULL;
        if (grown == NULL) return false;
        p->pl_pages = grown;
        p->pl_page_room = room;
    }
    *page = p->pl_page_count++;
    return true;
}

static void spare_page(ps_pool *p, uint32_t page) {
    p->pl_pages[page] = (uint8_t *)(uintptr_t)p->pl_spare;
    p->pl_spare = page + 1;
}

static bool make_page(ps_pool *p, uint32_t grains) {
    uint32_t page;
    if (!number_page(p, &page)) return false;
    page_head *h = malloc((size_t)PAGE_GRAINS * PS_POOL_GRAIN);
    if (h == NULL) {
        spare_page(p, page);
        return false;
    }
    *h = (page_head){.grains = (uint16_t)grains, .fresh = HEAD_GRAINS};
    p->pl_pages[page] = (uint8_t *)h;
    open_page(p, page);
    return true;
}

static ps_ref take_entry(ps_pool *p, uint32_t grains) {
    if (p->pl_open[grains] == 0 && !make_page(p, grains)) return 0;
    uint32_t page = p->pl_open[grains] - 1;
    page_head *h = head_of(p, page);
    uint32_t at = h->free != 0 ? h->free : h->fresh;
    uint8_t *entry = (uint8_t *)h + (size_t)at * PS_POOL_GRAIN;
    ASAN_UNPOISON_MEMORY_REGION(entry, grains * PS_POOL_GRAIN);
    if (h->free != 0)
        memcpy(&h->free, entry, sizeof h->free);
    else
        h->fresh = (uint16_t)(h->fresh + grains);
    h->live++;
    if (!has_room(h)) shut_page(p, page);
    memset(entry, 0, (size_t)grains * PS_POOL_GRAIN);
    return page << PS_POOL_PAGE_BITS | at;
}

static void give_entry(ps_pool *p, ps_ref ref) {
    uint32_t page = ref >> PS_POOL_PAGE_BITS;
    page_head *h = head_of(p, page);
    uint8_t *entry = ps_pool_at(p, ref);
    if (!has_room(h)) open_page(p, page);
    memcpy(entry, &h->free, sizeof h->free);
    h->free = (uint16_t)(ref & (PAGE_GRAINS - 1));
    ASAN_POISON_MEMORY_REGION(entry, h->grains * PS_POOL_GRAIN);
    if (--h->live > 0) return;
    shut_page(p, page);
    ASAN_UNPOISON_MEMORY_REGION(h, PAGE_GRAINS * PS_POOL_GRAIN);
    free(h);
    spare_page(p, page);
}

/* ---- the table ---- */

static ps_entry *entry_at(const ps_pool *p, ps_ref ref) {
    return ps_pool_at(p, ref);
}

static uint32_t hash_of(const ps_pool *p, ps_ref ref) {
    return p->pl_hash(p->pl_owner, ps_pool_at(p, ref));
}

static ps_ref *bucket_of(const ps_pool *p, uint32_t hash) {
    uint32_t at = hash & p->pl_wide;
    return &p->pl_buckets[at < p->pl_bucket_count ? at : at & p->pl_wide >> 1];
}

/* One bucket more, which takes its share of the one that it is split from. Without memory the table
 * stays as it is, and is slower; without a first bucket: false. */
static bool grow_table(ps_pool *p) {
    if (p->pl_bucket_count == p->pl_bucket_room) {
        uint32_t room = p->pl_bucket_room + p->pl_bucket_room / 4 + FIRST_BUCKETS;
        ps_ref *grown = realloc(p->pl_buckets, (size_t)room * sizeof *grown);
        if (grown == NULL) return p->pl_bucket_count > 0;
        p->pl_buckets = grown;
        p->pl_bucket_room = room;
    }
    uint32_t made = p->pl_bucket_count++;
    p->pl_buckets[made] = 0;
    if (made == 0) return true;
    if (made > p->pl_wide) p->pl_wide = 2 * p->pl_wide + 1;
    ps_ref *from = &p->pl_buckets[made & p->pl_wide >> 1], *to = &p->pl_buckets[made];
    for (ps_ref at = *from; at != 0; at = *from) {
        ps_entry *e = entry_at(p, at);
        if ((hash_of(p, at) & p->pl_wide) != made) {
            from = &e->en_next;
            continue;
        }
        *from = e->en_next;
        e->en_next = *to;
        *to = at;
    }
    return true;
}

void ps_pool_reserve(ps_pool *p, uint32_t count) {
    uint32_t buckets = count / PS_POOL_SHARE + 1;
    if (p->pl_count > 0 || buckets <= p->pl_bucket_count) return;
    ps_ref *made = calloc(buckets, sizeof *made);
    if (made == NULL) return;
    free(p->pl_buckets);
    p->pl_buckets = made;
    p->pl_bucket_count = p->pl_bucket_room = buckets;
    p->pl_wide = 0;
    while (p->pl_wide < buckets - 1) p->pl_wide = 2 * p->pl_wide + 1;
}

ps_ref ps_pool_first(const ps_pool *p, uint32_t hash) {
    return p->pl_bucket_count > 0 ? *bucket_of(p, hash) : 0;
}

ps_ref ps_pool_next(const ps_pool *p, ps_ref ref) {
    return entry_at(p, ref)->en_next;
}

static void fetch_first(const ps_pool *p, const ps_ref *bucket) {
    if (*bucket != 0) __builtin_prefetch(entry_at(p, *bucket));
}

void ps_pool_fetch(const ps_pool *p, uint32_t hash, bool entry) {
    if (p->pl_bucket_count == 0) return;
    const ps_ref *bucket = bucket_of(p, hash);
    if (entry)
        fetch_first(p, bucket);
    else
        __builtin_prefetch(bucket);
}

ps_ref ps_pool_each(const ps_pool *p, ps_ref ref) {
    const ps_ref *bucket = p->pl_buckets, *end = bucket + p->pl_bucket_count;
    if (ref != 0 && entry_at(p, ref)->en_next != 0) return entry_at(p, ref)->en_next;
    if (ref != 0) bucket = bucket_of(p, hash_of(p, ref)) + 1;
    while (bucket < end && *bucket == 0) bucket++;
    if (end - bucket > PS_POOL_AHEAD) fetch_first(p, bucket + PS_POOL_AHEAD);
    return bucket < end ? *bucket : 0;
}

ps_ref ps_pool_add(ps_pool *p, size_t size, uint32_t hash) {
    if (size > PS_POOL_ENTRY_MAX) return 0;
    if (p->pl_count / PS_POOL_SHARE >= p->pl_bucket_count && !grow_table(p)) return 0;
    ps_ref made = take_entry(p, (uint32_t)((size + PS_POOL_GRAIN - 1) / PS_POOL_GRAIN));
    if (made == 0) return 0;
    ps_ref *bucket = bucket_of(p, hash);
    entry_at(p, made)->en_next = *bucket;
    *bucket = made;
    p->pl_count++;
    return made;
}

void ps_pool_drop(ps_pool *p, ps_ref ref) {
    ps_ref *at = bucket_of(p, hash_of(p, ref));
    while (*at != ref) at = &entry_at(p, *at)->en_next;
    *at = entry_at(p, ref)->en_next;
    p->pl_count--;
    give_entry(p, ref);
}

void ps_pool_free(ps_pool *p) {
    while (p->pl_spare != 0) { /* their places have numbers of others */
        uint32_t page = p->pl_spare - 1;
        p->pl_spare = (uint32_t)(uintptr_t)p->pl_pages[page];
        p->pl_pages[page] = NULL;
    }
    for (uint32_t i = 0; i < p->pl_page_count; i++) {
        if (p->pl_pages[i] == NULL) continue;
        ASAN_UNPOISON_MEMORY_REGION(p->pl_pages[i], PAGE_GRAINS * PS_POOL_GRAIN);
        free(p->pl_pages[i]);
    }
    free(p->pl_pages);
    free(p->pl_buckets);
    *p = (ps_pool){.pl_hash = p->pl_hash, .pl_owner = p->pl_owner};
}
