/* See border.h. */
#include "log/border.h"

#include "base/bytes.h"
#include "format/record.h"

/* Where what stands at `at` of a mapping ends, which goes on to `end`; -1: no record stands there.
 * Heads alone are read: what lies below the end of the log was checked when it came. */
static int64_t end_of_one(const ps_mapfile *mf, int64_t at, int64_t end) {
    const uint8_t *p = mf->mf_map + (at - mf->mf_base);
    if (end - at < PS_HEAD_LEN) return -1;
    int32_t size = (int32_t)be32_get(p + PS_AT_SIZE);
    uint32_t magic = be32_get(p + PS_AT_MAGIC);
    if (magic == PS_MAGIC_BLANK) return mf->mf_base + mf->mf_size;
    if (magic != PS_MAGIC_V1 && magic != PS_MAGIC_V2) return -1;
    return size < PS_RECORD_FIXED || size > end - at ? -1 : at + size;
}

static int64_t base_of(const ps_log *l, int64_t place) {
    return place - place % l->lg_files.ss_file_size;
}

/* The last border of a segment at or before `place`, from the border `from` on; *record: where the
 * last record begins that was passed. */
static int64_t walk_segment(const ps_mapfile *mf, int64_t from, int64_t place, int64_t end,
                            int64_t look, int64_t *record, bool *more) {
    int64_t at = from;
    if (end > mf->mf_base + mf->mf_size) end = mf->mf_base + mf->mf_size;
    while (at < place) {
        if (at - from >= look) {
            *more = true;
            break;
        }
        int64_t next = end_of_one(mf, at, end);
        if (next < 0 || next > place) break;
        if (be32_get(mf->mf_map + (at - mf->mf_base) + PS_AT_MAGIC) != PS_MAGIC_BLANK) *record = at;
        at = next;
    }
    return at;
}

ps_border ps_border_before(ps_log *l, ps_border known, int64_t place, int64_t look, bool *more) {
    ps_border end = ps_border_end(l);
    int64_t record = -1;
    *more = false;
    if (place >= end.bd_at) return end;
    int64_t min = atomic_load(&l->lg_min);
    if (place <= min) return (ps_border){min};
    int64_t from = base_of(l, place);
    if (known.bd_at > from && known.bd_at <= place) from = known.bd_at;
    ps_mapfile *mf = ps_segments_find(&l->lg_files, from, NULL);
    if (mf == NULL) return (ps_border){from};
    from = walk_segment(mf, from, place, end.bd_at, look, &record, more);
    ps_mapfile_unref(mf);
    return (ps_border){from};
}

int64_t ps_border_record(ps_log *l, int64_t place, ps_border *end) {
    int64_t min = atomic_load(&l->lg_min), record = -1;
    bool more = false;
    *end = ps_border_end(l);
    if (place < min) return -1;
    if (place > end->bd_at) place = end->bd_at;
    int64_t base = base_of(l, place), upto = place;
    *end = (ps_border){-1};
    /* A border between two segments is the end of what the first one holds. */
    for (; record < 0 && base >= min; base -= l->lg_files.ss_file_size) {
        ps_mapfile *mf = ps_segments_find(&l->lg_files, base, NULL);
        int64_t at = base;
        if (mf != NULL) at = walk_segment(mf, base, upto, INT64_MAX, INT64_MAX, &record, &more);
        ps_mapfile_unref(mf);
        if (end->bd_at < 0) *end = (ps_border){at};
        upto = base;
    }
    return record;
}
