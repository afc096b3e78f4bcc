/* One index file, from the segments that hold its keys. See derive.h. */
#define _GNU_SOURCE
#include <errno.h>

#include "derive/part.h"
#include "files/mapfile.h"
#include "index/indexfile.h"
#include "index/keys.h"

/* The file that is being made. */
typedef struct dv_index {
    uint8_t *in_map;
    int32_t in_slots;
    ix_head in_head;
    int64_t in_skip; /* keys of the files before that are still to come */
    int32_t in_left; /* keys that are still wanted */
    ix_topic in_topic;
} dv_index;

static int take_keys(void *arg, const ps_record *r, ps_error *e) {
    dv_index *x = arg;
    int32_t hash;
    ix_keys k;
    (void)e;
    if (!ix_record_keys(r, false, &k)) return 1;
    int32_t topic = ix_topic_hash_cached(&x->in_topic, r);
    for (; x->in_skip > 0 && ix_key_next(&k, topic, &hash); x->in_skip--)
        if (x->in_skip == 1) x->in_head = ix_head_after(r->physical_offset, r->store_timestamp);
    if (x->in_skip > 0) return 1;
    for (; x->in_left > 0 && ix_key_next(&k, topic, &hash); x->in_left--)
        ix_put(x->in_map, x->in_slots, &x->in_head, hash, r->physical_offset, r->store_timestamp);
    return x->in_left > 0;
}

int32_t ps_derive_index(ps_derive *d, const char *path, const ps_derive_keys *wanted,
                        ps_error *e) {
    int32_t slots = d->dv_conf.index_slots, entries = d->dv_conf.index_entries;
    int64_t end = ix_entry_at(slots, wanted->keys + 1);
    ps_mapfile *mf;
    if (slots < 1 || wanted->keys < 1 || wanted->keys >= entries)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, path,
                       "an index file has at least 1 slot and 2 entries, not %d and %d", slots,
                       entries);
    int code = ps_mapfile_open(d->dv_io, path, 0, ix_size(slots, entries),
                               PS_MAP_WRITE | PS_MAP_CREATE, &mf, e);
    if (code < 0) return code;
    dv_index x = {.in_map = mf->mf_map, .in_slots = slots, .in_head = ix_head_after(0, 0),
                  .in_skip = wanted->skip, .in_left = wanted->keys, .in_topic = {.to_len = -1}};
    code = ps_mapfile_reserve(mf, end, end, e);
    for (int32_t i = 0; i < wanted->count && code == 0; i++) {
        bool last = wanted->last && i == wanted->count - 1;
        code = dv_walk(d, wanted->paths[i], wanted->bases[i], wanted->sizes[i], last, take_keys,
                       &x, e);
        if (code == 0) break; /* it has all, or the log is not plain */
        if (code > 0) code = 0;
    }
    if (code == 0 && d->dv_io->msync(d->dv_io, mf->mf_map, (size_t)end) < 0)
        code = ps_fail(e, PS_E_FLUSH_FAILED, errno, -1, path, "the file could not be synced");
    ps_mapfile_unref(mf);
    return code < 0 ? code : wanted->keys - x.in_left;
}
