/* FNV-1a, for the tables of names. */
#ifndef PS_HASH_H
#define PS_HASH_H

#include <stdint.h>

static inline uint32_t ps_hash_more(uint32_t h, const uint8_t *text, int32_t len) {
    for (int32_t i = 0; i < len; i++) h = (h ^ text[i]) * 16777619u;
    return h;
}

static inline uint32_t ps_hash_of(const uint8_t *text, int32_t len) {
    return ps_hash_more(2166136261u, text, len);
}

#endif
