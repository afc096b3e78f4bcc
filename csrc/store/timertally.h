/* How many timers wait for each topic, and how many were read and delivered since the start. */
#ifndef PS_TIMERTALLY_H
#define PS_TIMERTALLY_H

#include "store/store.h"

typedef struct ps_tallies {
    ps_timer_tally *ta_rows; /* in order of their first timer */
    int32_t *ta_places;      /* hash table of the topics: row + 1; 0: free */
    int32_t ta_count, ta_room; /* of rows; twice as many places */
} ps_tallies;

/* The row of a topic; NULL: no memory for a new one, which is then not counted. */
ps_timer_tally *ps_tally_of(ps_tallies *t, const ps_topic *topic);
/* One more was read that asks for a time so many ms ahead. */
void ps_tally_asked(ps_timer_tally *row, int64_t delay_ms);
/* How many wait for each topic, to be kept with the saved state: free it; NULL: no memory. live: of
 * all topics; with none nothing waits, whatever was counted. */
uint8_t *ps_tallies_save(const ps_tallies *t, int64_t live, int64_t *len);
/* False: malformed, or no memory. */
bool ps_tallies_load(ps_tallies *t, ps_store *s, const uint8_t *notes, int64_t len);
void ps_tallies_free(ps_tallies *t);

#endif
