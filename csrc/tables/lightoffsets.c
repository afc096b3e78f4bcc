/* See lightoffsets.h. */
#define _GNU_SOURCE
#include "tables/lightoffsets.h"

#include <stdlib.h>
#include <string.h>

#include "store/lights.h"
#include "tables/lags.h"
#include "tables/lightrows.h"

/* ---- rows ---- */

/* Room for one more, so that each row can be among the changed ones. */
static bool reserve_changed(ps_light_offsets *t) {
    if (t->ot_rows.pl_count < t->ot_changed_room) return true;
    uint32_t room = t->ot_changed_room + t->ot_changed_room / 4 + 64;
    ps_ref *made = malloc(room * sizeof *made);
    if (made == NULL) return false;
    for (uint32_t i = 0; i < t->ot_changed_count; i++)
        made[i] = t->ot_changed[(t->ot_changed_at + i) % t->ot_changed_room];
    free(t->ot_changed);
    t->ot_changed = made;
    t->ot_changed_at = 0;
    t->ot_changed_room = room;
    return true;
}

static ps_ref make_row(ps_core *c, ps_light_reader *r, ps_slice rest) {
    bool room = reserve_changed(&c->co_tables.tc_light) &&
                (r->rd_lag == NULL || ps_lag_reserve(r->rd_lag, r->rd_rows + 1));
    return room ? ps_light_offset_make(c, r, rest) : 0;
}

static void note_change(ps_light_offsets *t, ps_light_offset *row, ps_ref ref) {
    if (row->ro_changed) return;
    row->ro_changed = true;
    t->ot_changed[(t->ot_changed_at + t->ot_changed_count++) % t->ot_changed_room] = ref;
}

/* What the group is behind from now on; the end of a queue in which it was not is asked for only
 * when it goes back. */
static int64_t behind_from(const ps_core *c, const ps_light_reader *r, const ps_light_offset *row,
                           int64_t offset) {
    char room[UINT8_MAX];
    const int64_t behind = row->ro_behind;
    int64_t end = row->ro_offset + behind;
    if (offset < 0 || (behind == 0 && row->ro_offset >= 0 && offset > row->ro_offset))
        return 0;
    if (behind == 0 || behind == PS_BEHIND_MAX) {
        const ps_slice queue = ps_light_join(r, row, room);
        end = ps_lights_end(c->co_store, (const char *)queue.data, queue.len);
    }
    return end > offset ? end - offset : 0;
}

static void move_row(ps_core *c, ps_ref ref, int64_t offset) {
    ps_light_offsets *t = &c->co_tables.tc_light;
    ps_light_offset *row = ps_light_offset_at(c, ref);
    ps_light_reader *r = ps_light_reader_at(c, row);
    bool counts = r->rd_lag != NULL && !(t->ot_loading && row->ro_behind == 0);
    int64_t behind = counts ? behind_from(c, r, row, offset) : 0;
    int32_t more = (offset >= 0) - (row->ro_offset >= 0);
    r->rd_read += more;
    c->co_tables.tc_marks.ms_count += more;
    row->ro_offset = offset;
    if (counts) ps_lag_count(c, r->rd_lag, ref, behind, true);
    t->ot_uncounted = t->ot_uncounted || (!counts && r->rd_lag != NULL);
}

/* ---- one offset ---- */

int64_t ps_light_offset_get(const ps_core *c, ps_slice group, ps_slice queue) {
    ps_ref at = ps_light_offset_find(c, group, queue);
    return at != 0 ? ps_light_offset_at(c, at)->ro_offset : -1;
}

void ps_light_offset_fetch(ps_core *c, ps_slice group, ps_slice queue, bool entry) {
    ps_slice family, rest;
    ps_light_split(queue, &family, &rest);
    const ps_light_reader *r = ps_light_reader_of(c, group, family, false);
    if (r != NULL) ps_pool_fetch(&c->co_tables.tc_light.ot_rows, ps_light_row_hash(r, rest), entry);
}

bool ps_light_offset_set(ps_core *c, ps_slice group, ps_slice queue, int64_t offset) {
    ps_slice family, rest;
    ps_light_split(queue, &family, &rest);
    ps_light_reader *r = ps_light_reader_of(c, group, family, true);
    ps_ref at = r != NULL ? ps_light_offset_of(c, r, rest) : 0;
    if (r != NULL && at == 0) {
        at = make_row(c, r, rest);
        if (at == 0) ps_light_reader_drop(c, r);
    }
    if (at == 0) return false;
    ps_light_offset *row = ps_light_offset_at(c, at);
    if (row->ro_offset == offset) return true;
    move_row(c, at, offset);
    note_change(&c->co_tables.tc_light, row, at);
    return true;
}

/* ---- many ---- */

/* Rows stay, as the walk goes over them, until the change is taken; then they go. */
void ps_light_offsets_forget(ps_core *c, ps_slice group, ps_slice queue) {
    bool one = group.data != NULL && queue.data != NULL;
    for (ps_ref at = 0; (at = ps_light_offset_next(c, at, group, queue)) != 0;) {
        ps_light_offset *row = ps_light_offset_at(c, at);
        if (row->ro_offset >= 0) move_row(c, at, -1);
        if (one && !row->ro_changed) {
            ps_light_offset_drop(c, at);
            return;
        }
        note_change(&c->co_tables.tc_light, row, at);
    }
}

void ps_light_offsets_begin(ps_core *c) {
    c->co_tables.tc_light.ot_round_left = c->co_tables.tc_light.ot_changed_count;
}

int64_t ps_light_offsets_take(ps_core *c, ps_offset_row *out, int64_t room) {
    ps_light_offsets *t = &c->co_tables.tc_light;
    int64_t n = 0;
    t->ot_names.len = 0;
    while (n < room && t->ot_round_left > 0) {
        ps_ref at = t->ot_changed[t->ot_changed_at];
        ps_light_offset *row = ps_light_offset_at(c, at);
        const ps_light_reader *r = ps_light_reader_at(c, row);
        uint8_t *name = ps_buffer_room(&t->ot_names, UINT8_MAX);
        if (name == NULL) break; /* it comes in the next round */
        t->ot_changed_at = (t->ot_changed_at + 1) % t->ot_changed_room;
        t->ot_changed_count--;
        t->ot_round_left--;
        row->ro_changed = false;
        if (row->ro_offset < 0) {
            ps_light_offset_drop(c, at);
            continue;
        }
        int32_t len = ps_light_join(r, row, (char *)name).len;
        t->ot_names.len += len;
        out[n++] = (ps_offset_row){.group = r->rd_names, .group_len = r->rd_group_len,
                                   .topic_len = len, .offset = row->ro_offset};
    }
    const char *name = (const char *)t->ot_names.data;
    for (int64_t i = 0; i < n; name += out[i++].topic_len) out[i].topic = name;
    return n;
}

int64_t ps_light_offsets_put(const ps_core *c, ps_slice group, ps_slice queue, bool names_only,
                             uint8_t *out, int64_t room) {
    int64_t size = 0;
    for (ps_ref at = 0; (at = ps_light_offset_next(c, at, group, queue)) != 0;) {
        char name[UINT8_MAX];
        const ps_light_offset *row = ps_light_offset_at(c, at);
        const ps_light_reader *r = ps_light_reader_at(c, row);
        if (row->ro_offset < 0) continue;
        const ps_slice topic = ps_light_join(r, row, name);
        int32_t head[3] = {r->rd_group_len, topic.len, !names_only};
        int64_t block = (int64_t)sizeof head + head[0] + head[1] +
                        (names_only ? 0 : PS_OFFSET_ROW_BYTES);
        if (block <= room - size) {
            uint8_t *to = mempcpy(out + size, head, sizeof head);
            to = mempcpy(to, r->rd_names, (size_t)head[0]);
            to = mempcpy(to, topic.data, (size_t)topic.len);
            if (!names_only) ps_offset_row_put(to, 0, row->ro_offset);
        }
        size += block;
    }
    return size;
}
