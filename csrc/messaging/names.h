/* A set of names: of properties that consumers do not see, that users may not set; of headers. */
#ifndef PS_HTTP2_NAMES_H
#define PS_HTTP2_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#define PS_H2_NAMES_SLOTS 256
#define PS_H2_NAMES_MAX 128

typedef struct ps_h2_names {
    int32_t count;
    const char *names[PS_H2_NAMES_SLOTS]; /* by hash, the next free slot when taken; borrowed */
    uint8_t lens[PS_H2_NAMES_SLOTS];
} ps_h2_names;

/* False: there are too many, or it is too long. */
bool ps_h2_names_add(ps_h2_names *all, const char *name, int64_t len);
bool ps_h2_names_have(const ps_h2_names *all, const void *name, int64_t len);

#endif
