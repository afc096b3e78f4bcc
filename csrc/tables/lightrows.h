/* The table of lightoffsets.h: readers and rows. A reader is a group in the light queues whose
 * names begin alike, up to the last '$': in the lite topics of a topic. Rows have neither name, and
 * are counted in the lag of a reader that is bound (lags.h).
 *
 * Memory: 30 to 55 bytes a row, with what its queue's name has after that '$'. */
#ifndef PS_LIGHTROWS_H
#define PS_LIGHTROWS_H

#include "core/core.h"

typedef struct ps_light_reader {
    ps_chain rd_chain; /* hash of group and family */
    uint32_t rd_number;
    int32_t rd_rows, rd_read; /* read: of them that have an offset */
    struct ps_lag *rd_lag;    /* NULL: the group is not bound to that topic */
    int32_t rd_group_len, rd_family_len;
    char rd_names[]; /* group, then what names of its queues begin with */
} ps_light_reader;

typedef struct ps_light_offset {
    ps_entry ro_entry; /* by reader and name */
    uint32_t ro_reader;
    int32_t ro_at; /* where it stands in the heap of a lag, when it is behind */
    struct __attribute__((packed)) {
        int64_t ro_offset; /* -1: it was forgotten, and the change is not taken yet */
        uint64_t ro_behind : 39; /* messages after it, as they are counted in the lag */
        bool ro_changed : 1;     /* since it was taken */
        uint8_t ro_len;
        char ro_name[];
    };
} ps_light_offset;

#define PS_BEHIND_MAX ((1LL << 39) - 1) /* that a row says: it stands for more, too */

/* Family and rest of the name of a queue, and the other way round, into `room`. */
void ps_light_split(ps_slice queue, ps_slice *family, ps_slice *rest);
ps_slice ps_light_join(const ps_light_reader *r, const ps_light_offset *row, char room[UINT8_MAX]);
/* NULL: there is none, or, with `make`, no memory. */
ps_light_reader *ps_light_reader_of(ps_core *c, ps_slice group, ps_slice family, bool make);
ps_light_reader *ps_light_reader_at(const ps_core *c, const ps_light_offset *row);
void ps_light_reader_drop(ps_core *c, ps_light_reader *r); /* when nothing is left of it */
uint32_t ps_light_row_hash(const ps_light_reader *r, ps_slice rest);
/* 0: there is none. */
ps_ref ps_light_offset_of(const ps_core *c, const ps_light_reader *r, ps_slice rest);
ps_ref ps_light_offset_find(const ps_core *c, ps_slice group, ps_slice queue);
/* Those of one group, of one queue, or of both; a name without data: of any. The first for 0. */
ps_ref ps_light_offset_next(const ps_core *c, ps_ref at, ps_slice group, ps_slice queue);
/* A new one without an offset; 0: no memory. */
ps_ref ps_light_offset_make(ps_core *c, ps_light_reader *r, ps_slice rest);
void ps_light_offset_drop(ps_core *c, ps_ref ref);
void ps_light_offsets_free(ps_core *c);

static inline ps_light_offset *ps_light_offset_at(const ps_core *c, ps_ref ref) {
    return ps_pool_at(&c->co_tables.tc_light.ot_rows, ref);
}
static inline ps_slice ps_light_reader_family(const ps_light_reader *r) {
    return (ps_slice){(const uint8_t *)r->rd_names + r->rd_group_len, r->rd_family_len};
}

#endif
