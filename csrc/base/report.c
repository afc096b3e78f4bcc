/* See report.h. */
#include "base/report.h"

#include <stdio.h>

void ps_report_add(ps_report *r, int action, int64_t from, int64_t to, int64_t records,
                   const char *what, const char *why) {
    if (r == NULL) return;
    if (r->item_count >= (int32_t)(sizeof r->items / sizeof r->items[0])) {
        r->items_dropped++;
        return;
    }
    ps_report_item *i = &r->items[r->item_count++];
    i->action = action;
    i->from_at = from;
    i->to_at = to;
    i->records = records;
    snprintf(i->what, sizeof i->what, "%.255s", what);
    snprintf(i->why, sizeof i->why, "%.127s", why);
}

void ps_report_withdraw(ps_report *r, int action, int64_t from) {
    int32_t kept = 0;
    for (int32_t i = 0; r != NULL && i < r->item_count; i++)
        if (r->items[i].action != action || r->items[i].from_at != from)
            r->items[kept++] = r->items[i];
    if (r != NULL) r->item_count = kept;
}
