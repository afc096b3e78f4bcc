/* See names.h. */
#include "messaging/names.h"

#include <string.h>

/* FNV-1a. It has no key (base/chains.h): one library of the process fills the table, and another
 * one asks it. Who asks cannot add a name. */
static uint32_t hash_of(const uint8_t *text, int64_t len) {
    uint32_t h = 2166136261u;
    for (int64_t i = 0; i < len; i++) h = (h ^ text[i]) * 16777619u;
    return h;
}

static int32_t slot_of(const ps_h2_names *all, const void *name, int64_t len) {
    int32_t at = (int32_t)(hash_of(name, len) % PS_H2_NAMES_SLOTS);
    while (all->names[at] != NULL &&
           (all->lens[at] != len || memcmp(all->names[at], name, (size_t)len) != 0))
        at = (at + 1) % PS_H2_NAMES_SLOTS;
    return at;
}

bool ps_h2_names_add(ps_h2_names *all, const char *name, int64_t len) {
    if (len > UINT8_MAX || all->count == PS_H2_NAMES_MAX) return false;
    int32_t at = slot_of(all, name, len);
    if (all->names[at] != NULL) return true;
    all->names[at] = name;
    all->lens[at] = (uint8_t)len;
    all->count++;
    return true;
}

bool ps_h2_names_have(const ps_h2_names *all, const void *name, int64_t len) {
    return len <= UINT8_MAX && all->names[slot_of(all, name, len)] != NULL;
}
