/* Bisection over a row of which some items are damaged: an item that says nothing, or says what its
 * neighbour denies, must not send the search to the wrong half. */
#ifndef PS_BISECT_H
#define PS_BISECT_H

#include <stdint.h>

#include "pystore.h"

/* What an item says of the place looked for: it comes before it, it does not, or nothing. */
enum { PS_SIDE_BEFORE = 0, PS_SIDE_AFTER = 1, PS_SIDE_UNKNOWN = 2 };

/* One of the above, or an error code with *e filled in. */
typedef int (*ps_side_of)(void *arg, int64_t at, ps_error *e);

/* The first item of [low, high) that does not come before the place; `high` when all do. Where
 * items say nothing, the one that begins such a run: nothing that may belong is left out. */
int64_t ps_bisect(ps_side_of side, void *arg, int64_t low, int64_t high, ps_error *e);

#endif
