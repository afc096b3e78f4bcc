/* The rule of timer.h. Of several asking properties the first of these counts, the others stay in
 * the properties unused, as upstream leaves them. */
#define _GNU_SOURCE
#include "format/timer.h"

#include <string.h>

typedef struct asking {
    const char *name;
    int64_t unit_ms; /* 0: a time since 1970, else a delay in this unit */
} asking;

static const asking ASKING[] = {
    {"TIMER_DELAY_SEC", 1000}, {"TIMER_DELAY_MS", 1}, {"TIMER_DELIVER_MS", 0}};

static bool find(const uint8_t *p, int32_t len, const char *name, ps_property *out) {
    return ps_property_find(p, len, name, (int32_t)strlen(name), out);
}

bool ps_timer_number(const uint8_t *text, int32_t len, int64_t *out) {
    int32_t at = len > 0 && (text[0] == '-' || text[0] == '+');
    int64_t n = 0;
    if (at == len) return false;
    for (; at < len; at++) {
        if (text[at] < '0' || text[at] > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_sub_overflow(n, text[at] - '0', &n)) /* negative: INT64_MIN is one, too */
            return false;
    }
    if (text[0] == '-') {
        *out = n;
        return true;
    }
    return !__builtin_sub_overflow((int64_t)0, n, out);
}

/* The time asked for. A sum beyond an i64 is as far away as can be. */
static bool time_asked(const asking *a, const ps_property *p, int64_t from_ms, int64_t *due) {
    int64_t value;
    if (!ps_timer_number(p->value, p->value_len, &value)) return false;
    if (a->unit_ms > 0 && (__builtin_mul_overflow(value, a->unit_ms, &value) ||
                           __builtin_add_overflow(value, from_ms, &value)))
        value = p->value[0] == '-' ? INT64_MIN : INT64_MAX;
    *due = value;
    return true;
}

static const asking *asked(const uint8_t *properties, int32_t len, ps_property *p) {
    for (size_t i = 0; i < sizeof ASKING / sizeof *ASKING; i++)
        if (find(properties, len, ASKING[i].name, p)) return &ASKING[i];
    return NULL;
}

ps_timer_outcome ps_timer_ask(const uint8_t *properties, int32_t len, const ps_timer_rules *rules,
                              int64_t now_ms, int64_t *out_ms) {
    ps_property p, other;
    int64_t due, p_ms = rules->precision_ms;
    const asking *a = asked(properties, len, &p);
    if (a == NULL || find(properties, len, "TIMER_OUT_MS", &other)) return PS_TIMER_NONE;
    if (!rules->on) return PS_TIMER_OFF;
    if (!time_asked(a, &p, now_ms, &due)) return PS_TIMER_NO_NUMBER;
    if (due <= now_ms)
        return find(properties, len, "TIMER_DEL_UNIQKEY", &other) ? PS_TIMER_LATE_DELETE
                                                                 : PS_TIMER_DUE;
    if (due - now_ms > rules->max_delay_ms) return PS_TIMER_TOO_FAR;
    *out_ms = due % p_ms == 0 ? due - p_ms : due - due % p_ms;
    return PS_TIMER_SET;
}

bool ps_timer_asks(const uint8_t *properties, int32_t len) {
    ps_property p;
    return memmem(properties, (size_t)len, "TIMER_DEL", 9) != NULL &&
           asked(properties, len, &p) != NULL &&
           !find(properties, len, "TIMER_OUT_MS", &p);
}

const char *ps_timer_refusal(ps_timer_outcome outcome) {
    switch (outcome) {
    case PS_TIMER_NO_NUMBER:
        return "the time is not a number";
    case PS_TIMER_TOO_FAR:
        return "the time lies beyond timerMaxDelaySec";
    case PS_TIMER_LATE_DELETE:
        return "the time of the message to delete has passed";
    default:
        return NULL;
    }
}

bool ps_timer_due(const ps_record *r, int64_t precision_ms, int64_t *out_ms, int64_t *due_ms) {
    ps_property p;
    int64_t due;
    if (!find(r->properties, r->properties_len, "TIMER_OUT_MS", &p) ||
        !ps_timer_number(p.value, p.value_len, out_ms) || *out_ms > INT64_MAX - precision_ms)
        return false;
    const asking *a = asked(r->properties, r->properties_len, &p);
    bool said = a != NULL && time_asked(a, &p, r->store_timestamp, &due) && due > *out_ms &&
                due <= *out_ms + precision_ms;
    *due_ms = said ? due : *out_ms + precision_ms;
    return true;
}
