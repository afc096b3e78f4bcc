/* The rule of timer.h. Of several asking properties the first of these counts, the others stay in
 * the properties unused, as upstream leaves them. */
#define _GNU_SOURCE
#include "format/timer.h"

#include <stddef.h>
#include <string.h>

typedef struct word {
    const char *name;
    int32_t len;
    size_t at; /* in ps_timer_words */
} word;

#define WORD(name, field) {name, (int32_t)sizeof(name) - 1, offsetof(ps_timer_words, field)}
static const word WORDS[] = {
    WORD("TIMER_DELAY_SEC", delay_sec),    WORD("TIMER_DELAY_MS", delay_ms),
    WORD("TIMER_DELIVER_MS", deliver_ms),  WORD("TIMER_OUT_MS", out_ms),
    WORD("TIMER_DEL_UNIQKEY", delete_key), WORD("TIMER_ROLL_TIMES", roll_times),
    WORD("UNIQ_KEY", uniq_key),            WORD("REAL_TOPIC", real_topic),
    WORD("REAL_QID", real_queue)};

void ps_timer_read_words(const uint8_t *properties, int32_t len, ps_timer_words *out) {
    ps_property p;
    int32_t at = 0;
    memset(out, 0, sizeof *out);
    while (ps_property_next(properties, len, &at, &p)) {
        if (p.name[0] != 'T' && p.name[0] != 'U' && p.name[0] != 'R') continue;
        for (const word *w = WORDS; w < WORDS + sizeof WORDS / sizeof *WORDS; w++)
            if (w->len == p.name_len && memcmp(w->name, p.name, (size_t)w->len) == 0)
                memcpy((uint8_t *)out + w->at, &p, sizeof p);
    }
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

/* The property that counts, and its unit: 0 for a time since 1970. NULL: none asks. */
static const ps_property *asked_time(const ps_timer_words *w, int64_t *unit_ms) {
    *unit_ms = 1000;
    if (w->delay_sec.value != NULL) return &w->delay_sec;
    *unit_ms = 1;
    if (w->delay_ms.value != NULL) return &w->delay_ms;
    *unit_ms = 0;
    return w->deliver_ms.value != NULL ? &w->deliver_ms : NULL;
}

/* The time asked for. A sum beyond an i64 is as far away as can be. */
static bool time_asked(const ps_property *p, int64_t unit_ms, int64_t from_ms, int64_t *due) {
    int64_t value;
    if (!ps_timer_number(p->value, p->value_len, &value)) return false;
    if (unit_ms > 0 && (__builtin_mul_overflow(value, unit_ms, &value) ||
                        __builtin_add_overflow(value, from_ms, &value)))
        value = p->value[0] == '-' ? INT64_MIN : INT64_MAX;
    *due = value;
    return true;
}

ps_timer_outcome ps_timer_ask(const ps_timer_words *w, const ps_timer_rules *rules, int64_t now_ms,
                              int64_t *out_ms) {
    int64_t due, unit_ms, p_ms = rules->precision_ms;
    const ps_property *p = asked_time(w, &unit_ms);
    if (p == NULL || w->out_ms.value != NULL) return PS_TIMER_NONE;
    if (!rules->on) return PS_TIMER_OFF;
    if (!time_asked(p, unit_ms, now_ms, &due)) return PS_TIMER_NO_NUMBER;
    if (due <= now_ms) return w->delete_key.value != NULL ? PS_TIMER_LATE_DELETE : PS_TIMER_DUE;
    if (due - now_ms > rules->max_delay_ms) return PS_TIMER_TOO_FAR;
    *out_ms = due % p_ms == 0 ? due - p_ms : due - due % p_ms;
    return PS_TIMER_SET;
}

bool ps_timer_asks(const uint8_t *properties, int32_t len) {
    ps_timer_words w;
    int64_t unit_ms;
    if (memmem(properties, (size_t)len, "TIMER_DEL", 9) == NULL) return false;
    ps_timer_read_words(properties, len, &w);
    return asked_time(&w, &unit_ms) != NULL && w.out_ms.value == NULL;
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

bool ps_timer_due(const ps_timer_words *w, int64_t stored_ms, int64_t precision_ms,
                  int64_t *out_ms, int64_t *due_ms) {
    int64_t due, unit_ms;
    if (w->out_ms.value == NULL ||
        !ps_timer_number(w->out_ms.value, w->out_ms.value_len, out_ms) ||
        *out_ms > INT64_MAX - precision_ms)
        return false;
    const ps_property *p = asked_time(w, &unit_ms);
    bool said = p != NULL && time_asked(p, unit_ms, stored_ms, &due) && due > *out_ms &&
                due <= *out_ms + precision_ms;
    *due_ms = said ? due : *out_ms + precision_ms;
    return true;
}
