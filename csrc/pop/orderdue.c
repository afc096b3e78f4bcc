/* When ordered batches come back: a heap of those that somebody wants to know it of. */
#include "base/grow.h"
#include "base/threads.h"
#include "core/lock.h"
#include "pop/orders.h"

#define ROOM_FIRST 64

static void place_due(ps_order_log *l, ps_order *o, int32_t i) {
    l->ol_due[i] = o;
    o->or_due_at = i + 1;
}

static void sift_due(ps_order_log *l, ps_order *o, int32_t i) {
    for (int32_t up = (i - 1) / 2; i > 0 && o->or_due_ms < l->ol_due[up]->or_due_ms;
         up = (i - 1) / 2) {
        place_due(l, l->ol_due[up], i);
        i = up;
    }
    for (int32_t down = 2 * i + 1; down < l->ol_due_count; down = 2 * i + 1) {
        if (down + 1 < l->ol_due_count &&
            l->ol_due[down + 1]->or_due_ms < l->ol_due[down]->or_due_ms)
            down++;
        if (l->ol_due[down]->or_due_ms >= o->or_due_ms) break;
        place_due(l, l->ol_due[down], i);
        i = down;
    }
    place_due(l, o, i);
}

void ps_order_undue(ps_core *c, ps_order *o) {
    ps_order_log *l = ps_order_log_of(c);
    int32_t i = o->or_due_at - 1;
    if (i < 0) return;
    o->or_due_at = 0;
    ps_order *last = l->ol_due[--l->ol_due_count];
    if (last != o) sift_due(l, last, i);
}

bool ps_order_due(ps_core *c, ps_order *o, int64_t at_ms) {
    ps_order_log *l = ps_order_log_of(c);
    o->or_due_ms = at_ms;
    if (o->or_due_at > 0) {
        sift_due(l, o, o->or_due_at - 1);
    } else {
        if (!PS_GROW(l->ol_due, l->ol_due_room, l->ol_due_count + 1, ROOM_FIRST)) return false;
        sift_due(l, o, l->ol_due_count++);
    }
    if (l->ol_due[0] == o) ps_eventfd_tell(c->co_event_fd); /* the next deadline is this one */
    return true;
}

ps_order *ps_order_due_first(const ps_core *c) {
    const ps_order_log *l = ps_order_log_of((ps_core *)c);
    return l != NULL && l->ol_due_count > 0 ? l->ol_due[0] : NULL;
}
