/* Commands with their texts in one run: for Python, to which every call and every slice costs more
 * than the decoding does. */
#ifndef PS_PACKED_H
#define PS_PACKED_H

#include "wire/command.h"

/* cdef begin */
/* The texts are: the remark if there is one, then name and value of each field, a NUL after each
 * of them. */
typedef struct ps_packed {
    int32_t serialize, code, language, version, opaque, flag;
    int32_t header_len;
    int32_t has_remark;
    int32_t field_count;
    int32_t text_len;
    int32_t nul;       /* a text holds a NUL itself: the texts must be cut at `ends` */
    int32_t ends[513]; /* where each text ends, its NUL not counted */
} ps_packed;

/* Decodes as ps_command_decode does. The texts go to `texts`, which has room for as many bytes as
 * the header has, and `scratch` too. */
int64_t ps_packed_decode(const uint8_t *in, int64_t avail, int64_t frame_max, uint8_t *scratch,
                         uint8_t *texts, ps_packed *out, ps_error *error);

/* Encodes as ps_command_encode does; packed->header_len is not looked at. With `nul` 0 the texts
 * are cut at their NULs, otherwise at `ends`. PS_E_ARGUMENT: the texts are not as described. */
int64_t ps_packed_encode(const ps_packed *packed, const uint8_t *texts, int64_t body_len,
                         uint8_t *out, int64_t room, ps_error *error);
/* cdef end */

#endif
