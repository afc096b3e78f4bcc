/* Receipt handles: how a consumer that pops names one delivery of one message (POP_CK, extraInfo).
 * startOffset popTime invisibleTime reviveQid kind broker queue offset, and what proxies add, whose
 * last is the place in the log. docs/internals/pop.md#handles; upstream ExtraInfoUtil. */
#ifndef PS_HANDLE_H
#define PS_HANDLE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PS_HANDLE_MAX 1024 /* bytes */
#define PS_ORDER_QUEUE 999 /* the revive queue of ordered consumption, which has no check points */

typedef struct ps_handle {
    int64_t start, pop_ms, invisible_ms, revive_queue;
    char retry; /* which topic, a digit */
    const char *broker; /* borrowed */
    int32_t broker_len;
    int64_t queue, offset;
    int64_t physical; /* -1: it has none */
} ps_handle;

#define PS_HANDLE_DIGITS_MAX 18

typedef struct ps_handle_words {
    const char *at, *end;
} ps_handle_words;

/* The next field, which is not empty. */
static inline bool ps_handle_word(ps_handle_words *w, const char **out, int32_t *len) {
    const char *blank = w->at < w->end ? memchr(w->at, ' ', (size_t)(w->end - w->at)) : NULL;
    const char *end = blank != NULL ? blank : w->end;
    *out = w->at;
    *len = (int32_t)(end - w->at);
    /* After the last blank one more field begins, even if it is empty. */
    w->at = blank != NULL && end + 1 < w->end ? end + 1 : w->end;
    return *len > 0 && (blank == NULL || blank + 1 < w->end);
}

static inline bool ps_handle_number(ps_handle_words *w, int64_t *out) {
    const char *text;
    int32_t len;
    if (!ps_handle_word(w, &text, &len) || len > PS_HANDLE_DIGITS_MAX) return false;
    *out = 0;
    for (int32_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *out = *out * 10 + (text[i] - '0');
    }
    return true;
}

/* False: it is not of the usual form: eight fields and numbers after them, none empty, with a blank
 * between. */
static inline bool ps_handle_read(const char *text, int64_t len, ps_handle *out) {
    ps_handle_words w = {text, text + len};
    const char *retry;
    int32_t retry_len;
    if (len <= 0 || len > PS_HANDLE_MAX) return false;
    if (!ps_handle_number(&w, &out->start) || !ps_handle_number(&w, &out->pop_ms) ||
        !ps_handle_number(&w, &out->invisible_ms) || !ps_handle_number(&w, &out->revive_queue) ||
        !ps_handle_word(&w, &retry, &retry_len) || retry_len != 1 || *retry < '0' || *retry > '2' ||
        !ps_handle_word(&w, &out->broker, &out->broker_len) || !ps_handle_number(&w, &out->queue) ||
        !ps_handle_number(&w, &out->offset))
        return false;
    out->retry = *retry;
    out->physical = -1;
    while (w.at < w.end)
        if (!ps_handle_number(&w, &out->physical)) return false;
    return true;
}

#endif

