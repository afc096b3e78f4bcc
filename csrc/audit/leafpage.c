/* Leaf pages of LMDB (pystore/meta/_pages.py has the format): the plain ones, which are nearly all
 * pages of a large database. */
#include <stdbool.h>

#include "audit/audit.h"

#define PAGE_HEAD 16
#define NODE_HEAD 8
#define KEY_MAX 511

static uint32_t le16_get(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

/* Integer keys are in the order of the machine: of their bytes from the last to the first. */
static int compare_keys(const uint8_t *a, int32_t a_len, const uint8_t *b, int32_t b_len,
                        bool reversed) {
    int32_t least = a_len < b_len ? a_len : b_len;
    for (int32_t i = 0; i < least; i++) {
        int difference = reversed ? a[a_len - 1 - i] - b[b_len - 1 - i] : a[i] - b[i];
        if (difference != 0) return difference;
    }
    return a_len - b_len;
}

int32_t ps_audit_leaf(const uint8_t *page, int32_t size, const uint8_t *before, int32_t before_len,
                      int32_t reversed, int32_t last[2]) {
    uint32_t lower = le16_get(page + 12), upper = le16_get(page + 14), most = (uint32_t)size;
    if (lower <= PAGE_HEAD || lower > upper || upper > most || lower % 2 != 0) return -1;
    int32_t count = (int32_t)(lower - PAGE_HEAD) / 2;
    for (int32_t i = 0; i < count; i++) {
        uint32_t at = le16_get(page + PAGE_HEAD + 2 * i);
        if (at < upper || at % 2 != 0 || at + NODE_HEAD > most) return -1;
        const uint8_t *node = page + at, *key = node + NODE_HEAD;
        uint32_t len = le16_get(node) | le16_get(node + 2) << 16, key_len = le16_get(node + 6);
        if (le16_get(node + 4) != 0 || key_len == 0 || key_len > KEY_MAX) return -1;
        if (len > most || at + NODE_HEAD + key_len + len > most) return -1;
        if ((i > 0 || before_len >= 0) &&
            compare_keys(key, (int32_t)key_len, before, before_len, reversed != 0) <= 0)
            return -1;
        before = key;
        before_len = (int32_t)key_len;
    }
    last[0] = (int32_t)(before - page);
    last[1] = before_len;
    return count;
}
