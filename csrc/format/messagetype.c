/* See messagetype.h. */
#include "format/messagetype.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "format/javanum.h"
#include "format/record.h"

static bool is_delay(const ps_property *p) {
    static const char *const names[] = {"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC",
                                        "TIMER_DELAY_MS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ps_property_is(p, names[i])) return true;
    return false;
}

int ps_message_type(const uint8_t *properties, int32_t len) {
    bool half = false, delayed = false, ordered = false, ranked = false, lite = false;
    ps_property p;
    for (int32_t at = 0; ps_property_next(properties, len, &at, &p);) {
        switch (p.name_len > 0 ? *p.name : 0) {
        case 'T':
            if (ps_property_is(&p, "TRAN_MSG"))
                half = p.value_len == 4 && strncasecmp((const char *)p.value, "true", 4) == 0;
            delayed |= is_delay(&p);
            break;
        case 'D':
            delayed |= is_delay(&p);
            break;
        case '_':
            ordered |= ps_property_is(&p, "__SHARDINGKEY");
            ranked |= ps_property_is(&p, PS_PROPERTY_PRIORITY);
            lite |= ps_property_is(&p, PS_PROPERTY_LITE_TOPIC);
            break;
        default:
            break;
        }
    }
    if (half) return PS_TYPE_TRANSACTION;
    if (delayed) return PS_TYPE_DELAY;
    if (ordered) return PS_TYPE_FIFO;
    if (ranked) return PS_TYPE_PRIORITY;
    return lite ? PS_TYPE_LITE : PS_TYPE_NORMAL;
}

int32_t ps_priority_of(const uint8_t *value, int32_t len) {
    int64_t asked;
    bool is_number = ps_java_integer(value, len, INT32_MIN, INT32_MAX, &asked);
    return is_number && asked >= 0 ? (int32_t)asked : -1;
}
