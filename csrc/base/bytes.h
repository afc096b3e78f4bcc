/* Big-endian integers at any address, one byte order for every file and frame
 * (docs/internals/format.md#conventions). memcpy plus a swap compiles to one load and never reads
 * through a cast pointer. */
#ifndef PS_BYTES_H
#define PS_BYTES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Between what is written and what makes it valid, where another process reads it through a
 * mapping of its own; and there, between looking at that and reading the rest. The thread sanitizer
 * knows no fences: threads of one process go by atomics. */
static inline void ps_fence_before_valid(void) {
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_release);
#endif
}
static inline void ps_fence_once_valid(void) {
#ifndef __SANITIZE_THREAD__
    atomic_thread_fence(memory_order_acquire);
#endif
}

static inline uint16_t be16_get(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap16(v);
}
static inline uint32_t be32_get(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap32(v);
}
static inline uint64_t be64_get(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap64(v);
}
static inline void be16_put(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, sizeof v);
}
static inline void be32_put(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, sizeof v);
}
static inline void be64_put(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, sizeof v);
}

#define PS_DIGITS_MAX 20 /* of an int64, with its sign */

/* Writes the number in decimal so that it ends before `end`. Returned: where it begins. */
static inline char *ps_digits_before(char *end, int64_t number) {
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do {
        *--end = (char)('0' + left % 10);
        left /= 10;
    } while (left != 0);
    if (number < 0) *--end = '-';
    return end;
}

/* Each writes, and returns where that ends. */
static inline uint8_t *ps_bytes_put(uint8_t *to, const void *data, int64_t len) {
    if (len > 0) memcpy(to, data, (size_t)len);
    return to + len;
}
static inline uint8_t *ps_text_put(uint8_t *to, const char *text) {
    return ps_bytes_put(to, text, (int64_t)strlen(text));
}
static inline uint8_t *ps_number_put(uint8_t *to, int64_t number) {
    char digits[PS_DIGITS_MAX], *end = digits + PS_DIGITS_MAX;
    const char *begin = ps_digits_before(end, number);
    return ps_bytes_put(to, begin, end - begin);
}

static inline bool all_zero(const uint8_t *p, int64_t len) {
    return len <= 0 || (p[0] == 0 && memcmp(p, p + 1, (size_t)len - 1) == 0);
}

#endif
