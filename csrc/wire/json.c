/* JSON of command headers: what json.h promises. Upstream: fastjson 1.2.83, whose writer is
 * followed byte by byte; its parser also takes comments, bare names, single quotes and the like,
 * which no client sends and which are refused here. */
#include "wire/json.h"

#include "format/utf8.h"

/* ---- reading ---- */

static uint8_t *utf8_put(uint8_t *to, uint32_t c) {
    if (c < 0x80) {
        *to++ = (uint8_t)c;
    } else if (c < 0x800) {
        *to++ = (uint8_t)(0xC0 | c >> 6);
        *to++ = (uint8_t)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *to++ = (uint8_t)(0xE0 | c >> 12);
        *to++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (c & 0x3F));
    } else {
        *to++ = (uint8_t)(0xF0 | c >> 18);
        *to++ = (uint8_t)(0x80 | (c >> 12 & 0x3F));
        *to++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        *to++ = (uint8_t)(0x80 | (c & 0x3F));
    }
    return to;
}

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits at p, or -1. */
static int32_t read_hex4(const uint8_t *p, const uint8_t *end) {
    if (end - p < 4) return -1;
    int32_t a = hex_digit(p[0]), b = hex_digit(p[1]), c = hex_digit(p[2]), d = hex_digit(p[3]);
    return (a | b | c | d) < 0 ? -1 : a << 12 | b << 8 | c << 4 | d;
}

/* \uXXXX, two of them for a character beyond the first plane. Half of such a pair is malformed;
 * it becomes the question mark that Java writes when it stores one. */
static bool read_unicode_escape(ps_json *j, const uint8_t **p, uint8_t **to) {
    int32_t unit = read_hex4(*p + 2, j->end);
    if (unit < 0) return ps_json_fail(j, "\\u without four hexadecimal digits");
    *p += 6;
    if (unit >= 0xD800 && unit <= 0xDFFF) {
        int32_t low = -1;
        if (unit < 0xDC00 && j->end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u')
            low = read_hex4(*p + 2, j->end);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
            *p += 6;
        } else {
            unit = '?';
        }
    }
    *to = utf8_put(*to, (uint32_t)unit);
    return true;
}

static bool read_escape(ps_json *j, const uint8_t **p, uint8_t **to) {
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    int name = j->end - *p < 2 ? 0 : (*p)[1];
    if (name == 'u') return read_unicode_escape(j, p, to);
    const char *found = name == 0 ? NULL : strchr(NAMES, name);
    if (found == NULL) return ps_json_fail(j, "invalid escape sequence");
    *(*to)++ = (uint8_t)VALUES[found - NAMES];
    *p += 2;
    return true;
}

/* Copies the text to the scratch space. A whole block may be stored where only its beginning is
 * text: as many bytes are left there as in the input, since unescaping makes no text longer. */
static bool unescape_text(ps_json *j, const uint8_t *p, ps_slice *out) {
    uint8_t *start = j->scratch, *to = start + (p - j->at);
    memcpy(start, j->at, (size_t)(p - j->at));
    while (p < j->end && *p != '"') {
        if (*p == '\\') {
            if (!read_escape(j, &p, &to)) return false;
        } else if (j->end - p >= PS_JSON_BLOCK) {
            ps_json_block block = ps_json_look(p);
            int64_t clean = block.stop != 0 ? PS_JSON_INDEX(block.stop) : PS_JSON_BLOCK;
            memcpy(to, p, PS_JSON_BLOCK);
            p += clean;
            to += clean;
        } else {
            *to++ = *p++;
        }
    }
    if (p == j->end) return ps_json_fail(j, "unterminated string");
    *out = (ps_slice){start, (int32_t)(to - start)};
    j->scratch = to;
    j->at = p + 1;
    return true;
}

bool ps_json_text_rest(ps_json *j, const uint8_t *clean, ps_slice *out) {
    const uint8_t *p = clean;
    while (p < j->end && *p != '"' && *p != '\\') p++;
    if (p == j->end) return ps_json_fail(j, "unterminated string");
    if (*p == '"') {
        *out = (ps_slice){j->at, (int32_t)(p - j->at)};
        j->at = p + 1;
    } else if (!unescape_text(j, p, out)) {
        return false;
    }
    return ps_utf8_valid(out->data, out->len) || ps_json_fail(j, "a string is not valid UTF-8");
}

static const uint8_t *skip_digits(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p >= '0' && *p <= '9') p++;
    return p;
}

static bool read_number(ps_json *j, ps_slice *out) {
    const uint8_t *p = j->at, *end = j->end, *whole;
    if (p < end && *p == '-') p++;
    whole = p;
    p = skip_digits(p, end);
    if (p == whole || (*whole == '0' && p - whole > 1)) return ps_json_fail(j, "no number");
    if (p < end && *p == '.') {
        const uint8_t *fraction = ++p;
        p = skip_digits(p, end);
        if (p == fraction) return ps_json_fail(j, "a number ends after its decimal point");
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        if (++p < end && (*p == '+' || *p == '-')) p++;
        const uint8_t *exponent = p;
        p = skip_digits(p, end);
        if (p == exponent) return ps_json_fail(j, "a number has no exponent digits");
    }
    *out = (ps_slice){j->at, (int32_t)(p - j->at)};
    j->at = p;
    return true;
}

static bool read_word(ps_json *j, const char *text, size_t len) {
    if ((size_t)(j->end - j->at) < len || memcmp(j->at, text, len) != 0)
        return ps_json_fail(j, "expected a value");
    j->at += len;
    return true;
}

bool ps_json_scalar(ps_json *j, ps_slice *out) {
    int byte = ps_json_peek(j);
    const uint8_t *from = j->at;
    switch (byte) {
    case '"':
        j->at++;
        return ps_json_text(j, out);
    case 'n':
        *out = (ps_slice){NULL, 0};
        return read_word(j, "null", 4);
    case 't':
        *out = (ps_slice){from, 4};
        return read_word(j, "true", 4);
    case 'f':
        *out = (ps_slice){from, 5};
        return read_word(j, "false", 5);
    case '{':
    case '[':
        return ps_json_fail(j, "expected a string, not an object or array");
    default:
        return read_number(j, out);
    }
}

bool ps_json_int32(ps_json *j, int32_t *out) {
    ps_slice text;
    if (!ps_json_scalar(j, &text)) return false;
    if (text.data == NULL) return true;
    const uint8_t *p = text.data, *end = p + text.len;
    bool negative = p < end && *p == '-';
    p += negative;
    int64_t value = 0;
    if (p == end || end - p > 10) return ps_json_fail(j, "not a 32-bit integer");
    for (; p < end; p++) {
        if (*p < '0' || *p > '9') return ps_json_fail(j, "not a 32-bit integer");
        value = value * 10 + (*p - '0');
    }
    if (negative) value = -value;
    if (value < INT32_MIN || value > INT32_MAX)
        return ps_json_fail(j, "not a 32-bit integer");
    *out = (int32_t)value;
    return true;
}

bool ps_json_skip(ps_json *j) {
    uint64_t objects = 0; /* the lowest bit: what was opened last is an object, not an array */
    int depth = 0;
    ps_slice text;
    for (;;) {
        int byte = ps_json_peek(j);
        if (byte == '{' || byte == '[') {
            if (++depth > PS_JSON_DEPTH_MAX) return ps_json_fail(j, "nested too deeply");
            objects = objects << 1 | (byte == '{');
            j->at++;
            if (ps_json_peek(j) != (byte == '{' ? '}' : ']')) {
                if (byte == '{' && !ps_json_key(j, &text)) return false;
                continue;
            }
        } else if (!ps_json_scalar(j, &text)) {
            return false;
        }
        /* A value has ended, and with it perhaps what it stood in. */
        for (;;) {
            if (depth == 0) return true;
            byte = ps_json_peek(j);
            if (byte == ',') break;
            if (byte != ((objects & 1) != 0 ? '}' : ']'))
                return ps_json_fail(j, "expected a comma");
            j->at++;
            depth--;
            objects >>= 1;
        }
        j->at++;
        if ((objects & 1) != 0 && !ps_json_key(j, &text)) return false;
    }
}

/* ---- writing ---- */

/* What fastjson writes for a byte: 0 itself, 1 \u00XX, 2 a look at what follows; else the letter
 * behind the backslash. */
enum { PLAIN = 0, HEX = 1, LOOK = 2 };
static const uint8_t FORM[256] = {
    [0 ... 7] = HEX, ['\b'] = 'b',  ['\t'] = 't',      ['\n'] = 'n', [11] = HEX,
    ['\f'] = 'f',    ['\r'] = 'r',  [14 ... 31] = HEX, ['"'] = '"',  ['\\'] = '\\',
    [127] = HEX,     [0xC2] = LOOK, [0xE2] = LOOK,
};

/* The character to write as \uXXXX of those that begin with a byte to LOOK at, or 0. */
static uint32_t escaped_wide(const uint8_t *p, const uint8_t *end) {
    if (p[0] == 0xC2 && end - p >= 2 && p[1] >= 0x80 && p[1] <= 0x9F) return p[1];
    if (p[0] == 0xE2 && end - p >= 3 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9))
        return 0x2000u | (p[2] & 0x3F);
    return 0;
}

static uint8_t *hex_put(uint8_t *to, uint32_t c) {
    static const char HEX_DIGITS[] = "0123456789ABCDEF";
    to[0] = '\\';
    to[1] = 'u';
    for (int i = 0; i < 4; i++) to[2 + i] = (uint8_t)HEX_DIGITS[c >> (12 - 4 * i) & 15];
    return to + 6;
}

int64_t ps_json_measure(const uint8_t *text, int64_t len) {
    int64_t size = len;
    for (const uint8_t *p = text, *end = text + len; p < end; p++) {
        uint8_t form = FORM[*p];
        if (form == PLAIN) continue;
        if (form == HEX)
            size += 5;
        else if (form != LOOK)
            size += 1;
        else if (escaped_wide(p, end) != 0)
            size += *p == 0xC2 ? 4 : 3;
    }
    return size;
}

/* Writes what stands at p and returns where reading goes on. */
static const uint8_t *write_one(uint8_t **to, const uint8_t *p, const uint8_t *end) {
    uint8_t form = FORM[*p];
    uint32_t wide;
    if (form == PLAIN) {
        *(*to)++ = *p;
    } else if (form == HEX) {
        *to = hex_put(*to, *p);
    } else if (form != LOOK) {
        *(*to)++ = '\\';
        *(*to)++ = form;
    } else if ((wide = escaped_wide(p, end)) != 0) {
        *to = hex_put(*to, wide);
        return p + (*p == 0xC2 ? 2 : 3);
    } else {
        *(*to)++ = *p;
    }
    return p + 1;
}

#ifdef __SSE2__
/* A bit for each byte whose FORM is not PLAIN. */
static uint32_t special_mask(__m128i v) {
    __m128i found = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(31)), v);
    found = _mm_or_si128(found, _mm_cmpeq_epi8(v, _mm_set1_epi8('"')));
    found = _mm_or_si128(found, _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    found = _mm_or_si128(found, _mm_cmpeq_epi8(v, _mm_set1_epi8(127)));
    found = _mm_or_si128(found, _mm_cmpeq_epi8(v, _mm_set1_epi8((char)0xC2)));
    found = _mm_or_si128(found, _mm_cmpeq_epi8(v, _mm_set1_epi8((char)0xE2)));
    return (uint32_t)_mm_movemask_epi8(found);
}

/* Blocks are stored whole although only their beginning may be right: what is left of the text
 * takes at least as much room as it is long, so that the block fits. */
uint8_t *ps_json_write(uint8_t *to, const uint8_t *text, int64_t len) {
    const uint8_t *p = text, *end = text + len;
    while (end - p >= 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)p);
        uint32_t bits = special_mask(v);
        int clean = bits != 0 ? __builtin_ctz(bits) : 16;
        _mm_storeu_si128((__m128i *)to, v);
        to += clean;
        p += clean;
        if (bits != 0) p = write_one(&to, p, end);
    }
    if (end - p >= 8) {
        __m128i v = _mm_loadl_epi64((const __m128i *)p);
        if ((special_mask(v) & 0xFF) == 0) {
            _mm_storel_epi64((__m128i *)to, v);
            to += 8;
            p += 8;
        }
    }
    while (p < end) p = write_one(&to, p, end);
    return to;
}
#else
uint8_t *ps_json_write(uint8_t *to, const uint8_t *text, int64_t len) {
    const uint8_t *p = text, *end = text + len;
    while (p < end) p = write_one(&to, p, end);
    return to;
}
#endif
