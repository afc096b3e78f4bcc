/* Numbers as Java reads them. A decimal is brought into the form DIGITS "e" EXPONENT, a hexadecimal
 * into "0x" DIGITS "p" EXPONENT, neither with a point, so that strtod rounds it correctly whatever
 * the locale. Digits beyond DIGITS_MAX cannot change the nearest double unless they decide between
 * two halves, for which one more digit that is not zero stands in. */
#include "format/javanum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 800 /* a decimal needs at most 767, a hexadecimal 14 */
#define EXPONENT_MAX 100000000
#define EXACT_DIGITS 15 /* an integer of that many digits is a double, and so is 10^22 */
#define EXACT_POWER 22

/* The zeros of the digits that Java 17 knows in the basic plane, beside ASCII's; the nine others
 * follow each. */
static const uint16_t zeros[] = {
    0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66,
    0x0DE6, 0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90,
    0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10};

static const double powers[EXACT_POWER + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                               1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                               1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static inline bool is_digit(uint8_t c) {
    return c >= '0' && c <= '9';
}

static inline int hex_digit(uint8_t c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Digit at *at, which moves on; -1 when there is none. */
static int digit_next(const uint8_t *p, int32_t len, int32_t *at) {
    int32_t left = len - *at, wide;
    uint32_t c = p[*at];
    if (c < 0x80) {
        ++*at;
        return is_digit((uint8_t)c) ? (int)c - '0' : -1;
    }
    if (c >= 0xC0 && c < 0xE0 && left >= 2) {
        c = (c & 0x1F) << 6 | (p[*at + 1] & 0x3F);
        wide = 2;
    } else if (c >= 0xE0 && c < 0xF0 && left >= 3) {
        c = (c & 0x0F) << 12 | (uint32_t)(p[*at + 1] & 0x3F) << 6 | (p[*at + 2] & 0x3F);
        wide = 3;
    } else {
        return -1;
    }
    for (int32_t i = 1; i < wide; i++)
        if ((p[*at + i] & 0xC0) != 0x80) return -1;
    if (wide == 3 && c < 0x800) return -1;
    *at += wide;
    for (size_t i = 0; i < sizeof zeros / sizeof zeros[0]; i++)
        if (c >= zeros[i] && c < zeros[i] + 10u) return (int)(c - zeros[i]);
    return -1;
}

bool ps_java_integer(const uint8_t *p, int32_t len, int64_t min, int64_t max, int64_t *out) {
    bool negative = len > 0 && p[0] == '-';
    int32_t at = negative || (len > 0 && p[0] == '+');
    uint64_t limit = negative ? (uint64_t)-(min + 1) + 1 : (uint64_t)max, value = 0;
    if (at == len) return false;
    while (at < len) {
        int digit = digit_next(p, len, &at);
        if (digit < 0 || value > (limit - (uint64_t)digit) / 10) return false;
        value = value * 10 + (uint64_t)digit;
    }
    *out = (int64_t)(negative ? 0 - value : value);
    return true;
}

/* The digits of a number in one line, without the zeros before them and without a point. */
typedef struct digits {
    char text[DIGITS_MAX + 32];
    int32_t count; /* of text */
    int32_t first; /* of them: what stands before is a prefix */
    int32_t seen;  /* digits in all, zeros too */
    int64_t scale; /* digits after the point, less those that found no room */
    bool point, more;
} digits;

static void digit_add(digits *d, uint8_t c) {
    d->seen++;
    d->scale += d->point;
    if (d->count == d->first && c == '0') return;
    if (d->count < DIGITS_MAX) {
        d->text[d->count++] = (char)c;
    } else {
        d->scale--;
        d->more |= c != '0';
    }
}

/* Digits with at most one point among them; where they end. */
static int32_t digits_read(digits *d, const uint8_t *p, int32_t at, int32_t len, bool hex) {
    for (; at < len; at++) {
        if (p[at] == '.' && !d->point)
            d->point = true;
        else if (hex ? hex_digit(p[at]) >= 0 : is_digit(p[at]))
            digit_add(d, p[at]);
        else
            break;
    }
    return at;
}

/* The exponent after its letter: where it ends, or -1 when it has no digits. */
static int32_t exponent_read(const uint8_t *p, int32_t at, int32_t len, int64_t *out) {
    bool negative = at < len && p[at] == '-';
    int64_t value = 0;
    if (at < len && (p[at] == '-' || p[at] == '+')) at++;
    int32_t first = at;
    for (; at < len && is_digit(p[at]); at++)
        if (value < EXPONENT_MAX) value = value * 10 + (p[at] - '0');
    *out = negative ? -value : value;
    return at == first ? -1 : at;
}

static double digits_value(digits *d, int64_t exponent, bool hex) {
    char *p = d->text;
    int32_t n = d->count;
    uint64_t value = 0;
    if (n == 0) return 0.0;
    if (!hex && n <= EXACT_DIGITS && exponent >= -EXACT_POWER && exponent <= EXACT_POWER) {
        for (int32_t i = 0; i < n; i++) value = value * 10 + (uint64_t)(p[i] - '0');
        return exponent < 0 ? (double)value / powers[-exponent] : (double)value * powers[exponent];
    }
    if (d->more) {
        p[n++] = '1';
        exponent -= hex ? 4 : 1;
    }
    p[n++] = hex ? 'p' : 'e';
    if (exponent < 0) p[n++] = '-';
    char back[24];
    int32_t back_len = 0;
    for (uint64_t left = (uint64_t)(exponent < 0 ? -exponent : exponent); left > 0; left /= 10)
        back[back_len++] = (char)('0' + left % 10);
    if (back_len == 0) back[back_len++] = '0';
    while (back_len > 0) p[n++] = back[--back_len];
    p[n] = 0;
    return strtod(p, NULL);
}

/* What follows the sign of a decimal. */
static bool decimal_read(const uint8_t *p, int32_t at, int32_t len, double *out) {
    digits d;
    int64_t exponent = 0;
    d.count = d.first = d.seen = 0;
    d.scale = 0;
    d.point = d.more = false;
    at = digits_read(&d, p, at, len, false);
    if (d.seen == 0) return false;
    if (at < len && (p[at] | 0x20) == 'e') {
        at = exponent_read(p, at + 1, len, &exponent);
        if (at < 0) return false;
    }
    if (at < len && ((p[at] | 0x20) == 'f' || (p[at] | 0x20) == 'd')) at++;
    if (at != len) return false;
    *out = digits_value(&d, exponent - d.scale, false);
    return true;
}

/* What follows 0x; the exponent is a must. */
static bool hex_read(const uint8_t *p, int32_t at, int32_t len, double *out) {
    digits d;
    int64_t exponent;
    d.text[0] = '0', d.text[1] = 'x', d.text[2] = '0'; /* strtod wants it told */
    d.count = d.first = 3;
    d.seen = 0;
    d.scale = 0;
    d.point = d.more = false;
    at = digits_read(&d, p, at, len, true);
    if (d.seen == 0 || at >= len || (p[at] | 0x20) != 'p') return false;
    at = exponent_read(p, at + 1, len, &exponent);
    if (at < 0) return false;
    if (at < len && ((p[at] | 0x20) == 'f' || (p[at] | 0x20) == 'd')) at++;
    if (at != len) return false;
    *out = digits_value(&d, exponent - 4 * d.scale, true);
    return true;
}

static bool is_word(const uint8_t *p, int32_t at, int32_t len, const char *word) {
    size_t n = strlen(word);
    return (size_t)(len - at) == n && memcmp(p + at, word, n) == 0;
}

bool ps_java_double(const uint8_t *p, int32_t len, double *out) {
    while (len > 0 && p[len - 1] <= ' ') len--;
    while (len > 0 && p[0] <= ' ') p++, len--;
    bool negative = len > 0 && p[0] == '-', ok;
    int32_t at = negative || (len > 0 && p[0] == '+');
    if (at == len) return false;
    if (p[at] == 'N' || p[at] == 'I') {
        *out = p[at] == 'N' ? NAN : INFINITY;
        ok = is_word(p, at, len, p[at] == 'N' ? "NaN" : "Infinity");
    } else if (p[at] == '0' && at + 1 < len && (p[at + 1] | 0x20) == 'x') {
        ok = hex_read(p, at + 2, len, out);
    } else {
        ok = decimal_read(p, at, len, out);
    }
    if (ok && negative) *out = -*out;
    return ok;
}

int ps_java_double_compare(double a, double b) {
    if (a < b) return -1;
    if (a > b) return 1;
    if (isnan(a) || isnan(b)) return (isnan(a) != 0) - (isnan(b) != 0);
    return (signbit(b) != 0) - (signbit(a) != 0);
}
