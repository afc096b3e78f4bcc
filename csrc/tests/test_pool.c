/* A pool against a plain list of what was added: what is there is found with its bytes, however
 * many come and go, and what is gone leaves no memory. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { ENTRIES = 20000, STEPS = 200000, HASHES = 7000 };

typedef struct item {
    ps_entry entry;
    int32_t id, size;
    uint8_t bytes[];
} item;

static ps_ref refs[ENTRIES]; /* by id; 0: it is not there */

static uint32_t hash_of(int id) { /* some share one */
    return (uint32_t)(id % HASHES) * 2654435761U;
}

static uint32_t hash_of_item(const void *owner, const void *entry) {
    CHECK(owner == NULL);
    return hash_of(((const item *)entry)->id);
}

static bool is_found(const ps_pool *p, int id) {
    for (ps_ref at = ps_pool_first(p, hash_of(id)); at != 0; at = ps_pool_next(p, at))
        if (((item *)ps_pool_at(p, at))->id == id) return at == refs[id];
    return false;
}

static void add(ps_pool *p, int id) {
    size_t size = sizeof(item) + (size_t)check_below(PS_POOL_ENTRY_MAX - (int)sizeof(item) + 1);
    refs[id] = ps_pool_add(p, size, hash_of(id));
    if (!CHECK(refs[id] != 0)) return;
    item *made = ps_pool_at(p, refs[id]);
    for (size_t i = sizeof(ps_entry); i < size; i++)
        if (!CHECK_EQ(0, ((uint8_t *)made)[i])) return;
    made->id = id;
    made->size = (int32_t)size;
    memset(made->bytes, id, size - sizeof(item));
}

static void drop(ps_pool *p, int id) {
    const item *it = ps_pool_at(p, refs[id]);
    for (size_t i = 0; i < (size_t)it->size - sizeof(item); i++)
        if (!CHECK_EQ((uint8_t)id, it->bytes[i])) break;
    ps_pool_drop(p, refs[id]);
    refs[id] = 0;
    CHECK(!is_found(p, id));
}

static void campaign(uint32_t reserved) {
    ps_pool p = {.pl_hash = hash_of_item};
    uint32_t there = 0;
    memset(refs, 0, sizeof refs);
    ps_pool_reserve(&p, reserved);
    CHECK_EQ(0, ps_pool_first(&p, 1));
    CHECK_EQ(0, ps_pool_add(&p, PS_POOL_ENTRY_MAX + 1, 1));
    for (int i = 0; i < STEPS; i++) {
        int id = (int)check_below(ENTRIES);
        if (refs[id] == 0) {
            add(&p, id);
            there++;
        } else if (check_below(3) == 0) {
            drop(&p, id);
            there--;
        }
        CHECK_EQ(there, p.pl_count);
    }
    for (int id = 0; id < ENTRIES; id++) CHECK_EQ(refs[id] != 0, is_found(&p, id));
    uint32_t seen = 0;
    for (ps_ref at = 0; (at = ps_pool_each(&p, at)) != 0;)
        seen += at == refs[((item *)ps_pool_at(&p, at))->id];
    CHECK_EQ(there, seen);
    uint32_t pages = p.pl_page_count;
    for (int id = 0; id < ENTRIES; id++)
        if (refs[id] != 0) drop(&p, id);
    uint32_t spare = 0;
    for (uint32_t at = p.pl_spare; at != 0; at = (uint32_t)(uintptr_t)p.pl_pages[at - 1]) spare++;
    CHECK_EQ(pages, spare);
    add(&p, 1); /* and begins again */
    CHECK(is_found(&p, 1));
    CHECK_EQ(pages, p.pl_page_count);
    ps_pool_free(&p);
}

/* A bucket has an entry or a few, as if it had grown to that, and stays where it is. */
static void test_who_reserves_moves_nothing(void) {
    ps_pool p = {.pl_hash = hash_of_item};
    memset(refs, 0, sizeof refs);
    ps_pool_reserve(&p, ENTRIES);
    const ps_ref *buckets = p.pl_buckets;
    for (int id = 0; id < ENTRIES; id++) add(&p, id);
    CHECK(buckets != NULL && buckets == p.pl_buckets);
    uint32_t count = p.pl_bucket_count;
    CHECK_EQ(ENTRIES / PS_POOL_SHARE + 1, count);
    ps_pool_reserve(&p, 2 * ENTRIES); /* it is not empty */
    CHECK_EQ(count, p.pl_bucket_count);
    for (int id = 0; id < ENTRIES; id++) CHECK(is_found(&p, id));
    ps_pool_free(&p);
}

/* The last page that a reference can name is used like the first; then there is no memory, and all
 * entries are found. */
static void test_the_last_reference_is_the_last_entry(void) {
    ps_pool p = {.pl_hash = hash_of_item, .pl_page_count = PS_POOL_PAGES_MAX - 2};
    p.pl_page_room = p.pl_page_count;
    p.pl_pages = calloc(p.pl_page_room, sizeof *p.pl_pages);
    int id = 0;
    memset(refs, 0, sizeof refs);
    for (; id < ENTRIES; id++) {
        refs[id] = ps_pool_add(&p, PS_POOL_ENTRY_MAX, hash_of(id));
        if (refs[id] == 0) break;
        ((item *)ps_pool_at(&p, refs[id]))->id = id;
    }
    CHECK(id > 2 && id < ENTRIES);
    CHECK_EQ(PS_POOL_PAGES_MAX, p.pl_page_count);
    CHECK_EQ(PS_POOL_PAGES_MAX - 1, refs[id - 1] >> PS_POOL_PAGE_BITS);
    CHECK_EQ(id, p.pl_count);
    for (int i = 0; i < id; i++) CHECK(is_found(&p, i));
    ps_pool_drop(&p, refs[0]); /* and its room is given again */
    CHECK_EQ(refs[0], ps_pool_add(&p, PS_POOL_ENTRY_MAX, hash_of(0)));
    ps_pool_free(&p);
}

int main(void) {
    check_begin();
    campaign(0);
    campaign(1);
    campaign(ENTRIES / 3); /* and more come than were expected */
    test_who_reserves_moves_nothing();
    test_the_last_reference_is_the_last_entry();
    return check_end("pool");
}
