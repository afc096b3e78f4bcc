/* Bisection over damaged rows. See bisect.h. */
#include "base/bisect.h"

#define NEIGHBOURS 8 /* looked at, to find two that say something */

/* The next item in [at, high) that says something; `high` when none does. *said: what. */
static int64_t next_telling(ps_side_of side, void *arg, int64_t at, int64_t high, int *said,
                            ps_error *e) {
    *said = PS_SIDE_UNKNOWN;
    while (at < high && (*said = side(arg, at, e)) == PS_SIDE_UNKNOWN) at++;
    return at;
}

/* A run that says nothing is walked once: the search then ends where it begins, or after it. */
static int64_t halve_row(ps_side_of side, void *arg, int64_t low, int64_t high, ps_error *e) {
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        int said;
        int64_t at = next_telling(side, arg, mid, high, &said, e);
        if (said < 0) return said;
        if (said == PS_SIDE_BEFORE)
            low = at + 1;
        else
            high = mid;
    }
    return low;
}

/* The item before the found one says that it comes before the place. When the one before that
 * denies it, it is odd, and the place lies before both: 1. */
static int is_odd(ps_side_of side, void *arg, int64_t low, int64_t found, ps_error *e) {
    int64_t at = found - 1, last = found - NEIGHBOURS > low ? found - NEIGHBOURS : low;
    int before = 0;
    for (; at >= last; at--) {
        int said = side(arg, at, e);
        if (said < 0) return said;
        if (said == PS_SIDE_BEFORE && before++ > 0) return 0;
        if (said == PS_SIDE_AFTER) return 1;
    }
    return 0;
}

int64_t ps_bisect(ps_side_of side, void *arg, int64_t low, int64_t high, ps_error *e) {
    int64_t found = halve_row(side, arg, low, high, e);
    while (found > low) {
        int odd = is_odd(side, arg, low, found, e);
        if (odd < 0) return odd;
        if (odd == 0) break;
        found = halve_row(side, arg, low, found - 1, e);
    }
    return found;
}
