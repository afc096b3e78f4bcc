/* Frames and command headers of the remoting protocol: bytes in, bytes out, no I/O, no allocation.
 * The format stands as a table at the top of command.c. docs/internals/wire.md#frames; upstream
 * RemotingCommand, RocketMQSerializable. */
#ifndef PS_COMMAND_H
#define PS_COMMAND_H

#include <stdbool.h>
#include <string.h>

#include "pystore.h"

/* cdef begin */
#define PS_SERIALIZE_JSON 0
#define PS_SERIALIZE_ROCKETMQ 1

#define PS_FLAG_RESPONSE 1
#define PS_FLAG_ONEWAY 2

#define PS_FIELDS_MAX 256     /* ext fields of a command; real ones have some thirty */
#define PS_HEADER_MAX 1048576 /* bytes; the longest properties, every byte escaped, are 196,602 */

typedef struct ps_slice { /* borrowed bytes; data NULL: absent */
    const uint8_t *data;
    int32_t len;
} ps_slice;

typedef struct ps_field {
    ps_slice name, value;
} ps_field;

/* A command, decoded or to be encoded. Texts are UTF-8 without escapes. */
typedef struct ps_command {
    int32_t serialize; /* PS_SERIALIZE_ */
    int32_t code, language, version, opaque, flag;
    ps_slice remark;
    ps_slice body;
    int32_t no_fields;   /* a JSON header without extFields, which is not one with none in it; when
                            encoding, looked at only if field_count is 0 */
    int32_t field_count; /* in the order of the frame; of two with one name the last one counts */
    ps_field fields[256];
} ps_command;

/* How many bytes the frame takes whose first four these are. Errors: PS_E_FRAME: no frame can be so
 * long. */
int64_t ps_frame_size(const uint8_t *in, int64_t frame_max, ps_error *error);

/* Decodes the frame at `in`. Returns the bytes it takes (0: more are needed; *wanted then says how
 * many in all, 0 when not even that is known), or an error code: PS_E_FRAME, after which the
 * connection cannot go on. A frame is refused as soon as its first eight bytes show that it cannot
 * be right. Slices point into `in`, or into `scratch` where a text had to be unescaped; scratch has
 * room for as many bytes as the header has, PS_HEADER_MAX at most. All texts that come out are
 * valid UTF-8 and may hold NULs. A field without value (null, or of length 0 in a binary header) is
 * left out, and those of its name before it too. */
int64_t ps_command_decode(const uint8_t *in, int64_t avail, int64_t frame_max, uint8_t *scratch,
                          ps_command *out, int64_t *wanted, ps_error *error);

/* Encodes the frame's lengths and header for a body of body_len bytes, which the caller sends
 * after it. Returns the bytes written; more than `room`: nothing was written and so many are
 * enough; or an error code (PS_E_FRAME: a code that the binary header cannot hold, a text too
 * long). Texts are not checked to be UTF-8; fields whose value is NULL are left out. */
int64_t ps_command_encode(const ps_command *command, int64_t body_len, uint8_t *out, int64_t room,
                          ps_error *error);
/* cdef end */

static inline ps_slice ps_slice_from(const char *text, int32_t len) {
    return (ps_slice){(const uint8_t *)text, len};
}
static inline bool ps_slice_same(ps_slice a, ps_slice b) {
    return a.len == b.len && memcmp(a.data, b.data, (size_t)a.len) == 0;
}

/* The last field of that name, or one whose data is NULL. */
ps_slice ps_command_field(const ps_command *command, const char *name);

#endif
