/* The heap of deadlines of all that is parked: see parked.h. */
#include <stdlib.h>

#include "waits/parked.h"

static bool is_sooner(const ps_parked *a, const ps_parked *b) {
    return a->pk_deadline < b->pk_deadline;
}

static void heap_place(ps_core *c, ps_parked *h, int32_t i) {
    c->co_heap[i] = h;
    h->pk_heap = i;
}

static void heap_sift(ps_core *c, ps_parked *h, int32_t i) {
    for (int32_t up = (i - 1) / 2; i > 0 && is_sooner(h, c->co_heap[up]); up = (i - 1) / 2) {
        heap_place(c, c->co_heap[up], i);
        i = up;
    }
    for (int32_t down = 2 * i + 1; down < c->co_heap_count; down = 2 * i + 1) {
        if (down + 1 < c->co_heap_count && is_sooner(c->co_heap[down + 1], c->co_heap[down]))
            down++;
        if (!is_sooner(c->co_heap[down], h)) break;
        heap_place(c, c->co_heap[down], i);
        i = down;
    }
    heap_place(c, h, i);
}

bool ps_deadline_add(ps_core *c, ps_parked *h) {
    if (c->co_heap_count == c->co_heap_room) {
        int32_t room = c->co_heap_room ? c->co_heap_room * 2 : 64;
        ps_parked **heap = realloc(c->co_heap, (size_t)room * sizeof *heap);
        if (heap == NULL) return false;
        c->co_heap = heap;
        c->co_heap_room = room;
    }
    heap_sift(c, h, c->co_heap_count++);
    return true;
}

void ps_deadline_remove(ps_core *c, ps_parked *h) {
    int32_t i = h->pk_heap;
    ps_parked *last = c->co_heap[--c->co_heap_count];
    if (last != h) heap_sift(c, last, i);
}

void ps_parked_until(ps_core *c, ps_parked *h, int64_t deadline_ms) {
    h->pk_deadline = deadline_ms;
    heap_sift(c, h, h->pk_heap);
}

int64_t ps_parked_deadline_in(const ps_core *c) {
    if (c->co_heap_count == 0 || c->co_heap[0]->pk_deadline == INT64_MAX) return -1;
    int64_t left = c->co_heap[0]->pk_deadline - ps_monotonic_ms();
    return left > 0 ? left : 0;
}

int64_t ps_core_deadline_in(ps_core *c) {
    int64_t pull = ps_parked_deadline_in(c), wait = ps_waits_deadline_in(&c->co_waits);
    return pull < 0 || (wait >= 0 && wait < pull) ? wait : pull;
}
