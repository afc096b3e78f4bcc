/* The one writer of properties: NAME 0x01 VALUE 0x02, as records and frames hold them
 * (layout.h; docs/internals/format.md#properties). Reading: record.h. Nobody else writes a
 * separator; whether there is room is the caller's affair. */
#ifndef PS_PROPERTY_H
#define PS_PROPERTY_H

#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "format/record.h"

/* One that is known when this is compiled, or a format for snprintf. Both are literals. */
#define PS_PROPERTY(name, value) name "\x01" value "\x02"
/* What precedes the value of one, to be looked for. */
#define PS_PROPERTY_NAME(name) name "\x01"

/* The bytes of a property beside its name and value. */
#define PS_PROPERTY_FIXED 2

/* What precedes a value, for one that is written in parts. */
static inline uint8_t *ps_property_begin(uint8_t *to, const void *name, int64_t len) {
    to = ps_bytes_put(to, name, len);
    *to = PS_NAME_SEPARATOR;
    return to + 1;
}

static inline uint8_t *ps_property_end(uint8_t *to) {
    *to = PS_PROPERTY_SEPARATOR;
    return to + 1;
}

static inline uint8_t *ps_property_put(uint8_t *to, const char *name, const void *value,
                                       int64_t len) {
    to = ps_property_begin(to, name, (int64_t)strlen(name));
    return ps_property_end(ps_bytes_put(to, value, len));
}

static inline uint8_t *ps_property_put_number(uint8_t *to, const char *name, int64_t number) {
    to = ps_property_begin(to, name, (int64_t)strlen(name));
    return ps_property_end(ps_number_put(to, number));
}

/* One that was read, as it is. */
static inline uint8_t *ps_property_copy(uint8_t *to, const ps_property *p) {
    to = ps_property_begin(to, p->name, p->name_len);
    return ps_property_end(ps_bytes_put(to, p->value, p->value_len));
}

/* Encoded ones, whose last separator is made up for. */
static inline uint8_t *ps_properties_copy(uint8_t *to, const uint8_t *encoded, int64_t len) {
    to = ps_bytes_put(to, encoded, len);
    return len > 0 && encoded[len - 1] != PS_PROPERTY_SEPARATOR ? ps_property_end(to) : to;
}

#endif
