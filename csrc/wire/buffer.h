/* Growing buffers, slices of text, and the fields of a request. */
#ifndef PS_BUFFER_H
#define PS_BUFFER_H

#include <stdbool.h>

#include "wire/command.h"

typedef struct ps_buffer {
    uint8_t *data;
    int64_t len, room;
} ps_buffer;

uint8_t *ps_buffer_room(ps_buffer *b, int64_t more); /* behind len; NULL: no memory */
bool ps_buffer_add(ps_buffer *b, const void *data, int64_t len); /* false: no memory */
void ps_buffer_free(ps_buffer *b);
/* Text of a number into `to` (24 bytes), as a slice. */
ps_slice ps_slice_of_number(int64_t value, char *to);
ps_slice ps_slice_of(const char *text);
bool ps_slice_is(ps_slice s, const char *text);
bool ps_slice_number(ps_slice s, int64_t *out); /* decimal, within i64 */
bool ps_slice_true(ps_slice s);
typedef struct ps_member { /* of a request, as text or as a number */
    const char *name;
    ps_slice *text;
    int64_t *number;
} ps_member;
/* Fields that a request has, by name; what it has not, and a number that is empty, stays as it was.
 * False: another number is none. */
bool ps_command_read(const ps_command *command, const ps_member *members, int32_t count);

#endif
