/* Lists that grow: how much, and what is left where there is no memory. */
#ifndef PS_GROW_H
#define PS_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* How many items a list that has room for `room` gets room for, so that it can have `least`: twice
 * as many as before, `first` at the start. */
static inline int64_t ps_room_after(int64_t room, int64_t least, int64_t first) {
    if (room == 0) room = first;
    while (room < least) room *= 2;
    return room;
}

/* Makes room for `least` items in a list from malloc: moves `items` and sets `room`, two lvalues.
 * False: there is no memory, and both are as they were. */
#define PS_GROW(items, room, least, first)                                                         \
    ((least) <= (room) || ({                                                                       \
         int64_t more_ = ps_room_after((room), (least), (first));                                  \
         __typeof__(items) grown_ = realloc((items), (size_t)more_ * sizeof *grown_);              \
         if (grown_ != NULL) {                                                                     \
             (items) = grown_;                                                                     \
             (room) = (__typeof__(room))more_;                                                     \
         }                                                                                         \
         grown_ != NULL;                                                                           \
     }))

#endif
