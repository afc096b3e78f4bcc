/* A pull parser and a writer for the JSON of command headers: strict JSON with the escapes of the
 * standard, UTF-8 checked, no allocation. The caller drives it token by token, so that no tree is
 * built. Each function returns false after it has set `why`; `at` then stands near the fault. */
#ifndef PS_JSON_H
#define PS_JSON_H

#include <stdbool.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "wire/command.h"

/* Nesting that is skipped in members nobody knows; real headers have none. */
#define PS_JSON_DEPTH_MAX 32

typedef struct ps_json {
    const uint8_t *at, *end;
    uint8_t *scratch; /* the next unescaped text goes here; texts never grow by unescaping */
    const char *why;  /* what was wrong, NULL while nothing is */
    int32_t fields;   /* seen so far, for the caller's limit */
} ps_json;

/* A block of bytes looked at at once. `stop` has a bit for each quote and backslash, exact at least
 * up to the first; `high` has one for each byte beyond ASCII. */
typedef struct ps_json_block {
    uint64_t stop, high;
} ps_json_block;

#ifdef __SSE2__
#define PS_JSON_BLOCK 16
#define PS_JSON_INDEX(bits) (__builtin_ctzll(bits))

static inline ps_json_block ps_json_look(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m128i stop = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                                _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    return (ps_json_block){(uint32_t)_mm_movemask_epi8(stop), (uint32_t)_mm_movemask_epi8(bytes)};
}
#else
#define PS_JSON_BLOCK 8
#define PS_JSON_INDEX(bits) (__builtin_ctzll(bits) >> 3)

/* The high bit of each byte that is zero: the lowest one found is right, those above may be not. */
static inline uint64_t ps_json_zeros(uint64_t v) {
    return (v - 0x0101010101010101u) & ~v & 0x8080808080808080u;
}

static inline ps_json_block ps_json_look(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return (ps_json_block){ps_json_zeros(v ^ 0x2222222222222222u) |
                               ps_json_zeros(v ^ 0x5C5C5C5C5C5C5C5Cu),
                           v & 0x8080808080808080u};
}
#endif

static inline bool ps_json_fail(ps_json *j, const char *why) {
    j->why = why;
    return false;
}

/* The byte of the next token, 0 at the end: no token begins with a NUL. */
static inline int ps_json_peek(ps_json *j) {
    while (j->at < j->end && *j->at <= ' ') {
        if (*j->at != ' ' && *j->at != '\t' && *j->at != '\n' && *j->at != '\r') return 0;
        j->at++;
    }
    return j->at < j->end ? *j->at : 0;
}

/* Takes that byte, or fails with `why`. */
static inline bool ps_json_take(ps_json *j, int byte, const char *why) {
    if (ps_json_peek(j) != byte) return ps_json_fail(j, why);
    j->at++;
    return true;
}

/* A text with an escape, with bytes beyond ASCII, or near the end; `clean`: there is no quote and
 * no backslash before it. */
bool ps_json_text_rest(ps_json *j, const uint8_t *clean, ps_slice *out);

/* The text whose opening quote was just taken. */
static inline bool ps_json_text(ps_json *j, ps_slice *out) {
    const uint8_t *p = j->at;
    uint64_t high = 0;
    for (; j->end - p >= PS_JSON_BLOCK; p += PS_JSON_BLOCK) {
        ps_json_block block = ps_json_look(p);
        if (block.stop == 0) {
            high |= block.high;
            continue;
        }
        high |= block.high & ((block.stop & -block.stop) - 1);
        p += PS_JSON_INDEX(block.stop);
        if (*p != '"' || high != 0) break;
        *out = (ps_slice){j->at, (int32_t)(p - j->at)};
        j->at = p + 1;
        return true;
    }
    return ps_json_text_rest(j, p, out);
}

/* A member's name and its colon. */
static inline bool ps_json_key(ps_json *j, ps_slice *out) {
    return ps_json_take(j, '"', "expected a name") && ps_json_text(j, out) &&
           ps_json_take(j, ':', "expected a colon");
}

/* A text, or a number or a boolean as the text it is written with; null is a slice whose data is
 * NULL. Objects and arrays fail. */
bool ps_json_scalar(ps_json *j, ps_slice *out);
/* A whole number of 32 bits, also between quotes; null leaves *out as it is. */
bool ps_json_int32(ps_json *j, int32_t *out);
/* Any value. */
bool ps_json_skip(ps_json *j);

/* Bytes that the text takes between quotes, the quotes left out. */
int64_t ps_json_measure(const uint8_t *text, int64_t len);
/* Writes so many bytes; returns their end. What fastjson escapes is escaped: controls up to U+001F,
 * U+007F to U+009F, U+2028 and U+2029, quote and backslash. */
uint8_t *ps_json_write(uint8_t *to, const uint8_t *text, int64_t len);

#endif
