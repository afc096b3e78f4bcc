/* See utf8.h. */
#include "format/utf8.h"

#include "base/bytes.h"

#define EACH_BYTE 0x0101010101010101u

static inline bool is_continuation(const uint8_t *p, const uint8_t *end) {
    return p < end && (*p & 0xC0) == 0x80;
}

/* Java's decoder makes one U+FFFD of each longest ill-formed part, with one difference to Unicode's
 * recommendation: an encoded surrogate (ED A0..BF xx) counts as one part, not as three. */
int64_t ps_utf8_step(const uint8_t *p, const uint8_t *end, bool *good) {
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    int64_t len = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    bool surrogate = false;
    *good = false;
    if (lead < 0xC2 || lead > 0xF4) return 1;
    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    if (!is_continuation(p + 1, end) || p[1] < low || p[1] > high) return 1;
    surrogate = lead == 0xED && p[1] >= 0xA0;
    for (int64_t i = 2; i < len; i++)
        if (!is_continuation(p + i, end)) return i;
    *good = !surrogate;
    return len;
}

bool ps_utf8_valid(const uint8_t *text, int64_t len) {
    const uint8_t *p = text, *end = text + len;
    while (p < end) {
        bool good = true;
        while (end - p >= 8 && !(be64_get(p) & 0x80 * EACH_BYTE)) p += 8;
        if (p < end) p += *p < 0x80 ? 1 : ps_utf8_step(p, end, &good);
        if (!good) return false;
    }
    return true;
}

int64_t ps_utf8_mend(uint8_t *to, const uint8_t *text, int64_t len) {
    const uint8_t *p = text, *end = text + len;
    uint8_t *w = to;
    while (p < end) {
        bool good = true;
        int64_t n = *p < 0x80 ? 1 : ps_utf8_step(p, end, &good);
        if (!good) {
            w = ps_utf8_put_replacement(w);
        } else {
            memcpy(w, p, (size_t)n);
            w += n;
        }
        p += n;
    }
    return w - to;
}
