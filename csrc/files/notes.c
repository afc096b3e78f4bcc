/* See notes.h. */
#include "files/notes.h"

#include <string.h>

#include "base/bytes.h"
#include "base/crc.h"

int32_t ps_note_good(const uint8_t *p, int64_t len, uint32_t magic) {
    return len >= PS_NOTE_HEAD && be32_get(p) == magic &&
           be32_get(p + 4) == ps_crc32(0, p + PS_NOTE_HEAD, (size_t)(len - PS_NOTE_HEAD));
}

void ps_note_seal(uint8_t *p, int64_t len, uint32_t magic) {
    be32_put(p, magic);
    be32_put(p + 4, ps_crc32(0, p + PS_NOTE_HEAD, (size_t)(len - PS_NOTE_HEAD)));
}

int32_t ps_tombstone_next(const uint8_t *p, int64_t len, int64_t *at, ps_tombstone *out) {
    if (*at == len) return 0;
    if (len - *at < PS_TOMBSTONE_FIXED) return -1;
    out->below = (int64_t)be64_get(p + *at);
    out->name_len = (int32_t)be32_get(p + *at + 8);
    out->name_at = *at + PS_TOMBSTONE_FIXED;
    if (out->name_len <= 0 || out->name_len > len - out->name_at) return -1;
    *at = out->name_at + out->name_len;
    return 1;
}

int64_t ps_tombstone_put(uint8_t *to, int64_t below, const char *name, int32_t len) {
    be64_put(to, (uint64_t)below);
    be32_put(to + 8, (uint32_t)len);
    memcpy(to + PS_TOMBSTONE_FIXED, name, (size_t)len);
    return PS_TOMBSTONE_FIXED + len;
}

int32_t ps_noted_end_next(const uint8_t *p, int64_t len, int64_t *at, ps_noted_end *out) {
    if (*at == len) return 0;
    if (len - *at < PS_NOTED_END_FIXED) return -1;
    out->first = (int64_t)be64_get(p + *at);
    out->end = (int64_t)be64_get(p + *at + 8);
    out->physical = (int64_t)be64_get(p + *at + 16);
    out->queue = (int32_t)be32_get(p + *at + 24);
    out->name_len = (int32_t)be32_get(p + *at + 28);
    out->name_at = *at + PS_NOTED_END_FIXED;
    if (out->name_len <= 0 || out->name_len > len - out->name_at || out->queue < 0 ||
        out->first < 0 || out->end < out->first)
        return -1;
    *at = out->name_at + out->name_len;
    return 1;
}

int64_t ps_noted_end_put(uint8_t *to, const ps_noted_end *end, const char *name) {
    be64_put(to, (uint64_t)end->first);
    be64_put(to + 8, (uint64_t)end->end);
    be64_put(to + 16, (uint64_t)end->physical);
    be32_put(to + 24, (uint32_t)end->queue);
    be32_put(to + 28, (uint32_t)end->name_len);
    memcpy(to + PS_NOTED_END_FIXED, name, (size_t)end->name_len);
    return PS_NOTED_END_FIXED + end->name_len;
}
