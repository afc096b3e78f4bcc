/* Whether a message that is put becomes a timer, by the store's settings and the clock of
 * timers. */
#include "store/store.h"

int64_t ps_timer_now(ps_store *s) {
    return ps_now_ms() + atomic_load_explicit(&s->st_timer_shift_ms, memory_order_relaxed);
}

void ps_timers_shift_clock(ps_store *s, int64_t ms) {
    atomic_store(&s->st_timer_shift_ms, ms);
}

int ps_timer_asked(ps_store *s, const uint8_t *properties, int64_t len, int64_t *out_ms,
                   ps_error *e) {
    const ps_timer_rules *rules = &s->st_timer_rules;
    if (len > PS_PROPERTIES_MAX) return 0; /* refused for its length */
    ps_timer_words words;
    ps_timer_read_words(properties, (int32_t)len, &words);
    ps_timer_outcome asked = ps_timer_ask(&words, rules, ps_timer_now(s), out_ms);
    if (asked == PS_TIMER_SET) return 1;
    if (asked == PS_TIMER_NONE || asked == PS_TIMER_DUE) return 0;
    if (asked == PS_TIMER_OFF)
        return ps_fail(e, PS_E_TIMERS_OFF, 0, -1, NULL,
                       "accurate timer message is not enabled, timerWheelEnable is false");
    return ps_fail(e, PS_E_TIMER_ILLEGAL, 0, -1, NULL,
                   "timer message illegal, the delay time should not be bigger than the max delay "
                   "%lldms; or if set del msg, the delay time should be bigger than the current "
                   "time: %s",
                   (long long)rules->max_delay_ms, ps_timer_refusal(asked));
}
