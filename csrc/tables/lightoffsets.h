/* Where groups read on in light queues, of which there may be a million: each has a row here
 * (lightrows.h), and a pair (tables.h) only while a batch of it is out or a reset waits. */
#ifndef PS_LIGHTOFFSETS_H
#define PS_LIGHTOFFSETS_H

#include "core/core.h"

/* The offset of a group in a light queue; -1: none. */
int64_t ps_light_offset_get(const ps_core *c, ps_slice group, ps_slice queue);
/* See ps_pool_fetch(). */
void ps_light_offset_fetch(ps_core *c, ps_slice group, ps_slice queue, bool entry);
/* False: no memory, and nothing has changed. */
bool ps_light_offset_set(ps_core *c, ps_slice group, ps_slice queue, int64_t offset);
/* See ps_core_expect_offsets(). */
void ps_light_offsets_expect(ps_core *c, uint32_t count);
/* Forgets those of one group, of one queue, or of both; a name without data: of any. */
void ps_light_offsets_forget(ps_core *c, ps_slice group, ps_slice queue);
/* The next ones that have changed, as ps_core_take_offsets() says. */
void ps_light_offsets_begin(ps_core *c);
int64_t ps_light_offsets_take(ps_core *c, ps_offset_row *out, int64_t room);
/* Blocks of ps_core_offsets_of(): how many bytes they have, written as far as there is room. */
int64_t ps_light_offsets_put(const ps_core *c, ps_slice group, ps_slice queue, bool names_only,
                             uint8_t *out, int64_t room);

#endif
