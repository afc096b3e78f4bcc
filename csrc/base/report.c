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
