/* Looking past damage: where the next whole record stands. Used by recovery, readers and tools. */
#ifndef PS_RESYNC_H
#define PS_RESYNC_H

#include <stdbool.h>
#include <stdint.h>

#include "files/mapfile.h"
#include "format/record.h"

/* The next part of the file at or after `from` that is not a hole: [*data, *end), both places in
 * the file. False when there is none. Where the file system cannot tell, all of it counts. */
bool ps_log_next_data(const ps_mapfile *mf, int64_t from, int64_t *data, int64_t *end);

/* The first place of the file at or after `from` (a place in the file) where a whole record stands:
 * it says that it stands there, its sums are right, and it was stored at `stamp` (ms) or later.
 * Bytes that an earlier run left after its end can look whole; they are older than what follows
 * them in time. A `stamp` far ahead of the clock is damage: then any record counts. -1 when there
 * is none; *out is set otherwise. */
int64_t ps_log_next_whole(const ps_mapfile *mf, int64_t from, int64_t stamp, ps_record *out);

/* Whether a whole record follows the blank at `at` (a place in the file), which should close its
 * file, and is not older than the last one before it. */
bool ps_log_blank_hides(const ps_mapfile *mf, int64_t at);

/* ps_log_base_of and ps_log_misnamed, which tell where segments belong: pystore.h. */

#endif
