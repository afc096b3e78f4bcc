/* A segment of the cold tier from a batch: flat.h has the format. */
#include "flat/flat.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc.h"
#include "index/keys.h"
#include "queues/consumequeue.h"

typedef struct flat_key {
    uint32_t crc;
    int32_t number;
} flat_key;

uint32_t ps_flat_crc(uint32_t crc, const uint8_t *data, int64_t len) {
    return ps_crc32(crc, data, (size_t)len);
}

uint32_t ps_flat_join(uint32_t first, uint32_t second, int64_t len) {
    return ps_crc32_join(first, second, (uint64_t)len);
}

uint32_t ps_flat_joined(const uint8_t *sums, int64_t len) {
    uint32_t crc = 0, mover = ps_crc32_mover(PS_FLAT_BLOCK);
    for (; len >= PS_FLAT_BLOCK; len -= PS_FLAT_BLOCK, sums += PS_FLAT_SUM)
        crc = ps_crc32_moved(crc, be32_get(sums), mover);
    return len > 0 ? ps_crc32_join(crc, be32_get(sums), (uint64_t)len) : crc;
}

static const uint8_t *record_of_view(const ps_batch_info *b, const ps_view *v) {
    return b->segments[v->segment].map + v->start;
}

/* The keys of a record whose fields the batch knows. */
static ix_keys keys_of_view(const ps_batch_info *b, const ps_view *v) {
    ps_record r = {.properties = record_of_view(b, v) + v->properties_start,
                   .properties_len = v->properties_len};
    ix_keys keys;
    ix_keys_of(&r, &keys);
    return keys;
}

/* Bytes of a table of so many keys and their sums. */
static int64_t table_size(int32_t keys) {
    int64_t sums = ((int64_t)keys + PS_FLAT_KEYS - 1) / PS_FLAT_KEYS;
    return keys * (int64_t)PS_FLAT_KEY + sums * PS_FLAT_SUM;
}

/* Bytes of the sums of so many bytes of records. */
static int64_t sums_size(int64_t records) {
    return (records + PS_FLAT_BLOCK - 1) / PS_FLAT_BLOCK * PS_FLAT_SUM;
}

int ps_flat_measure(const ps_batch_info *b, ps_flat *out) {
    *out = (ps_flat){.time_min = INT64_MAX};
    if (b->count == 0) return -1;
    out->first = b->views[0].queue_offset;
    for (int32_t i = 0; i < b->count; i++) {
        const ps_view *v = &b->views[i];
        if (v->queue_offset != out->first + i) break;
        const uint8_t *key;
        int32_t len;
        ix_keys keys = keys_of_view(b, v);
        while (ix_word_next(&keys, &key, &len)) out->keys++;
        if (v->store_timestamp < out->time_min) out->time_min = v->store_timestamp;
        if (v->store_timestamp > out->time_max) out->time_max = v->store_timestamp;
        out->records += v->size;
        out->count++;
    }
    out->size = out->records + (int64_t)out->count * PS_UNIT + table_size(out->keys) +
                sums_size(out->records) + PS_FLAT_TAIL;
    return 0;
}

static int by_crc(const void *a, const void *b) {
    const flat_key *x = a, *y = b;
    if (x->crc != y->crc) return x->crc < y->crc ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Puts the sum of the keys that end at `to`; returns what follows it. */
static uint8_t *put_sum(uint8_t *to, int64_t base, int32_t first, int32_t count) {
    uint8_t which[12];
    be64_put(which, (uint64_t)base);
    be32_put(which + 8, (uint32_t)first);
    size_t size = (size_t)count * PS_FLAT_KEY;
    be32_put(to, ps_crc32(ps_crc32(0, which, sizeof which), to - size, size));
    return to + PS_FLAT_SUM;
}

static void put_keys(const ps_batch_info *b, const ps_flat *f, int64_t base, flat_key *found,
                     uint8_t *to) {
    int32_t n = 0;
    for (int32_t i = 0; i < f->count; i++) {
        const uint8_t *key;
        int32_t len;
        ix_keys keys = keys_of_view(b, &b->views[i]);
        while (n < f->keys && ix_word_next(&keys, &key, &len))
            found[n++] = (flat_key){ps_crc32(0, key, (size_t)len), i};
    }
    qsort(found, (size_t)n, sizeof *found, by_crc);
    for (int32_t i = 0; i < n; i++) {
        be32_put(to, found[i].crc);
        be32_put(to + 4, (uint32_t)found[i].number);
        to += PS_FLAT_KEY;
        int32_t count = i % PS_FLAT_KEYS + 1;
        if (count == PS_FLAT_KEYS || i == n - 1) to = put_sum(to, base, i + 1 - count, count);
    }
}

/* Puts the sums of all blocks that end at or before `end`; returns what follows them. A block whose
 * last record was just copied is in the cache still. */
static uint8_t *put_sums(uint8_t *sum, const uint8_t **from, const uint8_t *end, int64_t least) {
    while (end - *from >= least && end > *from) {
        int64_t size = end - *from < PS_FLAT_BLOCK ? end - *from : PS_FLAT_BLOCK;
        be32_put(sum, ps_crc32(0, *from, (size_t)size));
        *from += size;
        sum += PS_FLAT_SUM;
    }
    return sum;
}

int ps_flat_write(const ps_batch_info *b, int64_t base, uint8_t *to, ps_flat *f) {
    flat_key *found = malloc(((size_t)f->keys + 1) * sizeof *found);
    if (found == NULL) return PS_E_NO_MEMORY;
    uint8_t *record = to, *behind = to + f->records, *unit = behind;
    uint8_t *tail = to + f->size - PS_FLAT_TAIL, *sums = tail - sums_size(f->records), *sum = sums;
    const uint8_t *summed = to;
    for (int32_t i = 0; i < f->count; i++) {
        const ps_view *v = &b->views[i];
        int64_t place = base + (record - to);
        memcpy(record, record_of_view(b, v), (size_t)v->size);
        ps_record_move(record, v->size, place);
        be64_put(unit, (uint64_t)place);
        be32_put(unit + 8, (uint32_t)v->size);
        be64_put(unit + 12, (uint64_t)v->tags_code);
        record += v->size;
        unit += PS_UNIT;
        sum = put_sums(sum, &summed, record, PS_FLAT_BLOCK);
    }
    put_keys(b, f, base, found, unit);
    free(found);
    put_sums(sum, &summed, record, 1);
    be64_put(tail, (uint64_t)base);
    be64_put(tail + 8, (uint64_t)f->first);
    be32_put(tail + 16, (uint32_t)f->count);
    be32_put(tail + 20, (uint32_t)f->keys);
    be32_put(tail + 24, ps_crc32(0, behind, (size_t)(tail + 24 - behind)));
    be32_put(tail + 28, (uint32_t)(tail + PS_FLAT_TAIL - behind));
    be32_put(tail + 32, PS_MAGIC_BLANK);
    be64_put(tail + 36, (uint64_t)f->time_max);
    size_t rest = (size_t)(f->size - f->records);
    f->crc = ps_crc32_join(ps_flat_joined(sums, f->records), ps_crc32(0, behind, rest), rest);
    return 0;
}
