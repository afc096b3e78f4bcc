/* UTF-8 as Java decodes it. */
#ifndef PS_UTF8_H
#define PS_UTF8_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Length of the character at p, which is not ASCII; when it is ill-formed, of the part that Java's
 * decoder makes one U+FFFD of, so that a mended tag hashes like the original (ps_java_hash). */
int64_t ps_utf8_step(const uint8_t *p, const uint8_t *end, bool *good);
/* The code point of the character of `len` bytes at p, which is not ASCII. */
static inline uint32_t ps_utf8_code(const uint8_t *p, int64_t len) {
    uint32_t code = p[0] & 0x7Fu >> len;
    for (int64_t i = 1; i < len; i++) code = code << 6 | (p[i] & 0x3Fu);
    return code;
}
/* Whether all bytes are well-formed UTF-8. */
bool ps_utf8_valid(const uint8_t *text, int64_t len);
/* Copies text, each ill-formed part as U+FFFD, to at most 3 * len bytes. Returns the bytes
 * written. */
int64_t ps_utf8_mend(uint8_t *to, const uint8_t *text, int64_t len);

static inline uint8_t *ps_utf8_put_replacement(uint8_t *to) {
    memcpy(to, "\xEF\xBF\xBD", 3);
    return to + 3;
}

#endif
