/* What a message asks of timers: the one rule for sends, committed halves, messages that are put
 * again and embedded puts. docs/internals/timers.md; upstream HookUtils.handleScheduleMessage,
 * transformTimerMessage. */
#ifndef PS_TIMER_H
#define PS_TIMER_H

#include "format/record.h"

typedef struct ps_timer_rules {
    bool on;              /* timerWheelEnable */
    int64_t max_delay_ms; /* timerMaxDelaySec */
    int64_t precision_ms; /* timerPrecisionMs: what TIMER_OUT_MS is rounded down to */
} ps_timer_rules;

typedef enum {
    PS_TIMER_NONE,       /* it asks for no time, or came through a timer before */
    PS_TIMER_DUE,        /* for one that has passed: an ordinary message */
    PS_TIMER_SET,        /* it waits */
    PS_TIMER_OFF,        /* refused: timers are off */
    PS_TIMER_NO_NUMBER,  /* refused: the time is not an i64 */
    PS_TIMER_TOO_FAR,    /* refused: beyond the horizon */
    PS_TIMER_LATE_DELETE /* refused: a delete mark for a time that has passed */
} ps_timer_outcome;

/* What properties say of timers. What is absent, or empty, has value NULL; of equal names the last
 * one counts. */
typedef struct ps_timer_words {
    ps_property delay_sec, delay_ms, deliver_ms; /* which ask for a time */
    ps_property out_ms, delete_key, roll_times;
    ps_property uniq_key, real_topic, real_queue;
} ps_timer_words;

/* Finds them all in one pass. */
void ps_timer_read_words(const uint8_t *properties, int32_t len, ps_timer_words *out);

/* out_ms: TIMER_OUT_MS when it is PS_TIMER_SET. A message with a delay level is not asked. */
ps_timer_outcome ps_timer_ask(const ps_timer_words *words, const ps_timer_rules *rules,
                              int64_t now_ms, int64_t *out_ms);
/* Whether it may ask for a time: quick, for every message of a batch. */
bool ps_timer_asks(const uint8_t *properties, int32_t len);
/* Why it is refused, to be followed by the horizon in ms; NULL: it is not. */
const char *ps_timer_refusal(ps_timer_outcome outcome);

/* When a record of PS_TIMER_TOPIC with these words is due: to the millisecond where they say it,
 * else at the end of its slot. stored_ms: a delay counts from there. False: no TIMER_OUT_MS. */
bool ps_timer_due(const ps_timer_words *words, int64_t stored_ms, int64_t precision_ms,
                  int64_t *out_ms, int64_t *due_ms);
/* An i64 as Java's Long.parseLong reads it: a sign or none, digits, nothing else. */
bool ps_timer_number(const uint8_t *text, int32_t len, int64_t *out);

#endif
