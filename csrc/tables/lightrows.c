/* See lightrows.h. */
#define _GNU_SOURCE
#include "tables/lightrows.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"

#define READERS_FIRST 16

static ps_slice group_of(const ps_light_reader *r) {
    return (ps_slice){(const uint8_t *)r->rd_names, r->rd_group_len};
}

static ps_slice name_of(const ps_light_offset *row) {
    return (ps_slice){(const uint8_t *)row->ro_name, row->ro_len};
}

void ps_light_split(ps_slice queue, ps_slice *family, ps_slice *rest) {
    const uint8_t *last = queue.len > 0 ? memrchr(queue.data, '$', (size_t)queue.len) : NULL;
    int32_t head = last != NULL ? (int32_t)(last + 1 - queue.data) : 0;
    if (head == queue.len) head = 0;
    *family = (ps_slice){queue.data, head};
    *rest = (ps_slice){queue.data + head, queue.len - head};
}

ps_slice ps_light_join(const ps_light_reader *r, const ps_light_offset *row, char room[UINT8_MAX]) {
    char *to = mempcpy(room, r->rd_names + r->rd_group_len, (size_t)r->rd_family_len);
    memcpy(to, row->ro_name, row->ro_len);
    return (ps_slice){(const uint8_t *)room, r->rd_family_len + row->ro_len};
}

/* ---- readers ---- */

ps_light_reader *ps_light_reader_at(const ps_core *c, const ps_light_offset *row) {
    return c->co_tables.tc_light.ot_readers[row->ro_reader];
}

static ps_light_reader *make_reader(ps_light_offsets *t, ps_slice group, ps_slice family,
                                    uint32_t hash) {
    while (t->ot_free < t->ot_numbers && t->ot_readers[t->ot_free] != NULL) t->ot_free++;
    if (!PS_GROW(t->ot_readers, t->ot_reader_room, t->ot_free + 1, READERS_FIRST)) return NULL;
    ps_light_reader *r = ps_chains_reserve(&t->ot_by_name)
                             ? calloc(1, sizeof *r + (size_t)group.len + (size_t)family.len)
                             : NULL;
    if (r == NULL) return NULL;
    r->rd_number = t->ot_free;
    r->rd_group_len = group.len;
    r->rd_family_len = family.len;
    memcpy(mempcpy(r->rd_names, group.data, (size_t)group.len), family.data, (size_t)family.len);
    ps_chains_add(&t->ot_by_name, r, hash);
    t->ot_readers[t->ot_free] = r;
    if (t->ot_free == t->ot_numbers) t->ot_numbers++;
    return r;
}

ps_light_reader *ps_light_reader_of(ps_core *c, ps_slice group, ps_slice family, bool make) {
    ps_light_offsets *t = &c->co_tables.tc_light;
    uint32_t hash = ps_hash_more(ps_hash_of(group.data, group.len), family.data, family.len);
    ps_light_reader *r = ps_chains_first(&t->ot_by_name, hash);
    while (r != NULL &&
           !(ps_slice_same(group_of(r), group) && ps_slice_same(ps_light_reader_family(r), family)))
        r = ps_chains_next(r);
    return r != NULL || !make ? r : make_reader(t, group, family, hash);
}

void ps_light_reader_drop(ps_core *c, ps_light_reader *r) {
    ps_light_offsets *t = &c->co_tables.tc_light;
    if (r->rd_rows > 0 || r->rd_lag != NULL) return;
    ps_chains_remove(&t->ot_by_name, r);
    t->ot_readers[r->rd_number] = NULL;
    if (r->rd_number < t->ot_free) t->ot_free = r->rd_number;
    free(r);
}

/* ---- rows ---- */

static uint32_t hash_of_row(const void *core, const void *entry) {
    const ps_light_offset *row = entry;
    return ps_light_row_hash(ps_light_reader_at(core, row), name_of(row));
}

static ps_pool *rows_of(ps_core *c) {
    ps_pool *rows = &c->co_tables.tc_light.ot_rows;
    rows->pl_hash = hash_of_row;
    rows->pl_owner = c;
    return rows;
}

void ps_light_offsets_expect(ps_core *c, uint32_t count) {
    ps_pool_reserve(rows_of(c), count);
}

uint32_t ps_light_row_hash(const ps_light_reader *r, ps_slice rest) {
    return ps_hash_more(r->rd_number, rest.data, rest.len);
}

ps_ref ps_light_offset_of(const ps_core *c, const ps_light_reader *r, ps_slice rest) {
    const ps_pool *rows = &c->co_tables.tc_light.ot_rows;
    ps_ref at = ps_pool_first(rows, ps_light_row_hash(r, rest));
    while (at != 0 && (ps_light_offset_at(c, at)->ro_reader != r->rd_number ||
                       !ps_slice_same(name_of(ps_light_offset_at(c, at)), rest)))
        at = ps_pool_next(rows, at);
    return at;
}

ps_ref ps_light_offset_find(const ps_core *c, ps_slice group, ps_slice queue) {
    ps_slice family, rest;
    ps_light_split(queue, &family, &rest);
    const ps_light_reader *r = ps_light_reader_of((ps_core *)c, group, family, false);
    return r != NULL ? ps_light_offset_of(c, r, rest) : 0;
}

ps_ref ps_light_offset_make(ps_core *c, ps_light_reader *r, ps_slice rest) {
    size_t size = offsetof(ps_light_offset, ro_name) + (size_t)rest.len;
    ps_pool *rows = rows_of(c);
    ps_ref made = ps_pool_add(rows, size, ps_light_row_hash(r, rest));
    if (made == 0) return 0;
    ps_light_offset *row = ps_light_offset_at(c, made);
    row->ro_reader = r->rd_number;
    row->ro_offset = -1;
    row->ro_len = (uint8_t)rest.len;
    memcpy(row->ro_name, rest.data, row->ro_len);
    r->rd_rows++;
    return made;
}

void ps_light_offset_drop(ps_core *c, ps_ref ref) {
    ps_light_reader *r = ps_light_reader_at(c, ps_light_offset_at(c, ref));
    ps_pool_drop(&c->co_tables.tc_light.ot_rows, ref);
    r->rd_rows--;
    ps_light_reader_drop(c, r);
}

/* ---- walks ---- */

static bool is_asked(const ps_light_reader *r, const ps_light_offset *row, ps_slice group,
                     ps_slice queue) {
    ps_slice family, rest;
    if (group.data != NULL && !ps_slice_same(group, group_of(r))) return false;
    if (queue.data == NULL) return true;
    ps_light_split(queue, &family, &rest);
    return ps_slice_same(rest, name_of(row)) && ps_slice_same(family, ps_light_reader_family(r));
}

ps_ref ps_light_offset_next(const ps_core *c, ps_ref at, ps_slice group, ps_slice queue) {
    const ps_pool *rows = &c->co_tables.tc_light.ot_rows;
    if (group.data != NULL && queue.data != NULL)
        return at == 0 ? ps_light_offset_find(c, group, queue) : 0;
    for (at = ps_pool_each(rows, at); at != 0; at = ps_pool_each(rows, at)) {
        const ps_light_offset *row = ps_light_offset_at(c, at);
        if (is_asked(ps_light_reader_at(c, row), row, group, queue)) break;
    }
    return at;
}

void ps_light_offsets_free(ps_core *c) {
    ps_light_offsets *t = &c->co_tables.tc_light;
    ps_chains_free(&t->ot_by_name, true);
    ps_pool_free(&t->ot_rows);
    ps_buffer_free(&t->ot_names);
    free(t->ot_readers);
    free(t->ot_changed);
}
