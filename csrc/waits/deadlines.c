/* The heap of deadlines of all that is parked: see parked.h. */
#include "base/grow.h"
#include "waits/parked.h"

static bool is_sooner(const ps_parked *a, const ps_parked *b) {
    return a->pk_deadline < b->pk_deadline;
}

static void heap_place(ps_core_parking *g, ps_parked *h, int32_t i) {
    g->pg_heap[i] = h;
    h->pk_heap = i;
}

static void heap_sift(ps_core_parking *g, ps_parked *h, int32_t i) {
    for (int32_t up = (i - 1) / 2; i > 0 && is_sooner(h, g->pg_heap[up]); up = (i - 1) / 2) {
        heap_place(g, g->pg_heap[up], i);
        i = up;
    }
    for (int32_t down = 2 * i + 1; down < g->pg_count; down = 2 * i + 1) {
        if (down + 1 < g->pg_count && is_sooner(g->pg_heap[down + 1], g->pg_heap[down])) down++;
        if (!is_sooner(g->pg_heap[down], h)) break;
        heap_place(g, g->pg_heap[down], i);
        i = down;
    }
    heap_place(g, h, i);
}

bool ps_deadline_add(ps_core *c, ps_parked *h) {
    ps_core_parking *g = &c->co_parking;
    if (!PS_GROW(g->pg_heap, g->pg_room, g->pg_count + 1, 64)) return false;
    heap_sift(g, h, g->pg_count++);
    return true;
}

void ps_deadline_remove(ps_core *c, ps_parked *h) {
    ps_core_parking *g = &c->co_parking;
    int32_t i = h->pk_heap;
    ps_parked *last = g->pg_heap[--g->pg_count];
    if (last != h) heap_sift(g, last, i);
}

void ps_parked_until(ps_core *c, ps_parked *h, int64_t deadline_ms) {
    h->pk_deadline = deadline_ms;
    heap_sift(&c->co_parking, h, h->pk_heap);
}

int64_t ps_parked_deadline_in(const ps_core *c) {
    const ps_core_parking *g = &c->co_parking;
    if (g->pg_count == 0 || g->pg_heap[0]->pk_deadline == INT64_MAX) return -1;
    int64_t left = g->pg_heap[0]->pk_deadline - ps_monotonic_ms();
    return left > 0 ? left : 0;
}

int64_t ps_core_deadline_in(ps_core *c) {
    return ps_sooner(ps_parked_deadline_in(c), ps_waits_deadline_in(&c->co_late.la_waits));
}
