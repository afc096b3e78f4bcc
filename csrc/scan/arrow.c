/* Record batches: their memory, the values of their columns, their schema. See arrow.h. Which rows
 * go into them is scan.c's business.
 *
 *   format    buffers                   columns
 *   u         i32 ends, bytes           names, tags, keys, JSON, hosts, msgId, liteTopic
 *   z         i32 ends, bytes           body
 *   i, l      values                    numbers
 *   tsu:UTC   values                    timestamps: the store's milliseconds times 1000
 *   +m        i32 ends; struct of u, u  properties (map)
 *
 * The types must equal what PySpark makes of its own schema (to_arrow_schema in pyspark.sql.pandas
 * .types), or it refuses the batch: the names "entries", "key" and "value" are part of the
 * contract. */
#define _GNU_SOURCE
#include "scan/arrow.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/chains.h"
#include "base/error.h"
#include "base/grow.h"
#include "format/record.h"
#include "format/utf8.h"

#define POOL_SLOTS 4 /* consumers hold one or two batches while they ask for the next */
#define KEEP_BYTES_MAX (64LL << 20) /* a larger batch is not kept for reuse: it was an exception */
#define ROWS_FIRST 1024             /* least room of a batch, in rows */
#define ALIGNMENT 64                /* Arrow's recommendation */
#define HOST_TEXT_MAX 64            /* eight groups of four digits, a port, their colons */
#define PAIRS_MAX 24                /* more properties than this are compared through a table */

enum { VALIDITY, ENDS, DATA, KEY_ENDS, KEY_DATA, VALUE_ENDS, VALUE_DATA, BUFFERS };
enum { NODE, ENTRIES, KEYS, VALUES, NODES };

typedef enum shape { SHAPE_TEXT, SHAPE_INT32, SHAPE_INT64, SHAPE_MAP } shape;

static const struct {
    const char *name, *format;
    shape shape;
} kinds[PS_COL_COUNT] = {
    [PS_COL_TOPIC] = {"topic", "u", SHAPE_TEXT},
    [PS_COL_BROKER_NAME] = {"brokerName", "u", SHAPE_TEXT},
    [PS_COL_QUEUE_ID] = {"queueId", "i", SHAPE_INT32},
    [PS_COL_QUEUE_OFFSET] = {"queueOffset", "l", SHAPE_INT64},
    [PS_COL_BODY] = {"body", "z", SHAPE_TEXT},
    [PS_COL_TAGS] = {"tags", "u", SHAPE_TEXT},
    [PS_COL_KEYS] = {"keys", "u", SHAPE_TEXT},
    [PS_COL_PROPERTIES] = {"properties", "+m", SHAPE_MAP},
    [PS_COL_PROPERTIES_JSON] = {"properties", "u", SHAPE_TEXT},
    [PS_COL_FLAG] = {"flag", "i", SHAPE_INT32},
    [PS_COL_BORN_TIMESTAMP] = {"bornTimestamp", "tsu:UTC", SHAPE_INT64},
    [PS_COL_STORE_TIMESTAMP] = {"storeTimestamp", "tsu:UTC", SHAPE_INT64},
    [PS_COL_SYS_FLAG] = {"sysFlag", "i", SHAPE_INT32},
    [PS_COL_BORN_HOST] = {"bornHost", "u", SHAPE_TEXT},
    [PS_COL_STORE_HOST] = {"storeHost", "u", SHAPE_TEXT},
    [PS_COL_RECONSUME_TIMES] = {"reconsumeTimes", "i", SHAPE_INT32},
    [PS_COL_BODY_CRC] = {"bodyCRC", "i", SHAPE_INT32},
    [PS_COL_STORE_SIZE] = {"storeSize", "i", SHAPE_INT32},
    [PS_COL_COMMIT_LOG_OFFSET] = {"commitLogOffset", "l", SHAPE_INT64},
    [PS_COL_MSG_ID] = {"msgId", "u", SHAPE_TEXT},
    [PS_COL_PREPARED_TRANSACTION_OFFSET] = {"preparedTransactionOffset", "l", SHAPE_INT64},
    [PS_COL_ENVELOPE] = {"envelope", "z", SHAPE_TEXT},
    [PS_COL_LITE_TOPIC] = {"liteTopic", "u", SHAPE_TEXT},
};

typedef struct buffer {
    uint8_t *bf_data;
    int64_t bf_used; /* of data buffers; the others are counted in rows or entries */
    int64_t bf_room;
} buffer;

typedef struct column {
    int32_t cl_kind;
    bool cl_nullable;
    int32_t cl_nulls;
    int32_t cl_entries; /* of a map */
    int32_t cl_entry_room;
    int32_t cl_constant_rows; /* rows that a constant column was filled with in an earlier use */
    int32_t cl_host_len;      /* the host formatted last, and its text */
    int32_t cl_host_text_len;
    uint8_t cl_host[20];
    char cl_host_text[HOST_TEXT_MAX];
    buffer cl_buffers[BUFFERS];
    struct ArrowArray cl_nodes[NODES];
    struct ArrowArray *cl_links[NODES];
    const void *cl_views[NODES][3];
} column;

struct ps_arrow_batch {
    ps_arrow_pool *ba_pool;
    _Atomic int32_t ba_refs;
    int32_t ba_rows, ba_room;
    int32_t ba_goal; /* rows once the block being added is in */
    int32_t ba_property_room, ba_table_room;
    ps_property *ba_properties; /* of one row; name NULL: a later one has the same name */
    int32_t *ba_table;
    const void *ba_views[1];
    struct ArrowArray *ba_links[PS_COLUMNS_MAX];
    column ba_columns[];
};

struct ps_arrow_pool {
    _Atomic int32_t pl_refs; /* the stream and every batch that is not in a slot */
    _Atomic bool pl_closed;
    _Atomic(ps_arrow_batch *) pl_slots[POOL_SLOTS];
    ps_arrow_layout pl_layout;
    char *pl_topic, *pl_broker_name;
};

/* ---- buffers ---- */

static int buffer_grow(buffer *b, int64_t keep, int64_t room) {
    room = (room + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint8_t *data = aligned_alloc(ALIGNMENT, (size_t)room);
    if (data == NULL) return PS_E_NO_MEMORY;
    if (keep > 0) memcpy(data, b->bf_data, (size_t)keep);
    free(b->bf_data);
    b->bf_data = data;
    b->bf_room = room;
    return 0;
}

/* Room for `more` bytes of values, and by the average so far for a whole batch of them. One byte
 * more than asked for, so that even a buffer of no bytes has an address. */
static __attribute__((noinline)) int data_grow(ps_arrow_batch *ba, buffer *b, int64_t more) {
    const ps_arrow_layout *ly = &ba->ba_pool->pl_layout;
    int64_t need = b->bf_used + more + 1;
    double guess = (double)need / ba->ba_goal * ly->ly_rows * 1.125;
    int64_t room = guess < (double)ly->ly_bytes ? (int64_t)guess : ly->ly_bytes;
    if (room < b->bf_room + b->bf_room / 2) room = b->bf_room + b->bf_room / 2;
    return buffer_grow(b, b->bf_used, room > need ? room : need);
}

static inline int data_room(ps_arrow_batch *ba, buffer *b, int64_t more) {
    if (__builtin_expect(b->bf_used + more < b->bf_room, 1)) return 0;
    return data_grow(ba, b, more);
}

/* Bytes that `rows` rows take in the buffer next to the validity bitmap. */
static int64_t row_bytes(const column *c, int64_t rows) {
    switch (kinds[c->cl_kind].shape) {
    case SHAPE_INT32:
        return rows * 4;
    case SHAPE_INT64:
        return rows * 8;
    default:
        return (rows + 1) * 4;
    }
}

static int rows_room(ps_arrow_batch *ba, int32_t need) {
    const ps_arrow_layout *ly = &ba->ba_pool->pl_layout;
    int64_t room = ba->ba_room ? 2LL * ba->ba_room : ROWS_FIRST;
    if (need <= ba->ba_room) return 0;
    if (room < need) room = need;
    if (room > ly->ly_rows) room = ly->ly_rows > need ? ly->ly_rows : need;
    for (int32_t i = 0; i < ly->ly_count; i++) {
        column *c = &ba->ba_columns[i];
        buffer *validity = &c->cl_buffers[VALIDITY], *ends = &c->cl_buffers[ENDS];
        int64_t was = validity->bf_room;
        if (buffer_grow(ends, ends->bf_room, row_bytes(c, room)) < 0 ||
            buffer_grow(validity, was, room / 8 + 1) < 0)
            return PS_E_NO_MEMORY;
        memset(validity->bf_data + was, 0xFF, (size_t)(validity->bf_room - was));
    }
    ba->ba_room = (int32_t)room;
    return 0;
}

/* ---- text ---- */

#define EACH_BYTE 0x0101010101010101u

/* Copies n bytes and says whether all are ASCII. The last step overlaps the one before, so nothing
 * is read or written beyond the n bytes. */
static inline bool ascii_copy(uint8_t *to, const uint8_t *from, int32_t n) {
    uint64_t word, seen = 0;
    uint32_t head, tail;
    if (n >= 8) {
        for (int32_t i = 0; i < n - 8; i += 8) {
            memcpy(&word, from + i, 8);
            memcpy(to + i, &word, 8);
            seen |= word;
        }
        memcpy(&word, from + n - 8, 8);
        memcpy(to + n - 8, &word, 8);
        seen |= word;
    } else if (n >= 4) {
        memcpy(&head, from, 4);
        memcpy(&tail, from + n - 4, 4);
        memcpy(to, &head, 4);
        memcpy(to + n - 4, &tail, 4);
        seen = head | tail;
    } else {
        for (int32_t i = 0; i < n; i++) seen |= to[i] = from[i];
    }
    return (seen & 0x80 * EACH_BYTE) == 0;
}

static __attribute__((noinline)) int text_put_wide(ps_arrow_batch *ba, buffer *d,
                                                   const uint8_t *text, int32_t len) {
    if (ps_utf8_valid(text, len)) {
        d->bf_used += len;
        return 0;
    }
    if (data_room(ba, d, 3LL * len) < 0) return PS_E_NO_MEMORY;
    d->bf_used += ps_utf8_mend(d->bf_data + d->bf_used, text, len);
    return 0;
}

static inline int text_put(ps_arrow_batch *ba, buffer *d, const uint8_t *text, int32_t len) {
    if (data_room(ba, d, len) < 0) return PS_E_NO_MEMORY;
    if (__builtin_expect(!ascii_copy(d->bf_data + d->bf_used, text, len), 0))
        return text_put_wide(ba, d, text, len);
    d->bf_used += len;
    return 0;
}

/* ---- properties ---- */

/* Drops all but the last of equal names, through a table since a hostile record holds thousands. */
static int drop_repeated_many(ps_arrow_batch *ba, int32_t count) {
    int32_t room = 64;
    while (room < 2 * count) room *= 2;
    if (!PS_GROW(ba->ba_table, ba->ba_table_room, room, room)) return PS_E_NO_MEMORY;
    memset(ba->ba_table, 0xFF, (size_t)room * sizeof *ba->ba_table);
    for (int32_t i = count - 1; i >= 0; i--) {
        ps_property *p = &ba->ba_properties[i];
        uint32_t at = ps_hash_of(p->name, p->name_len) & (uint32_t)(room - 1);
        while (ba->ba_table[at] >= 0 &&
               !ps_property_same_name(&ba->ba_properties[ba->ba_table[at]], p))
            at = (at + 1) & (uint32_t)(room - 1);
        if (ba->ba_table[at] >= 0)
            p->name = NULL;
        else
            ba->ba_table[at] = i;
    }
    return 0;
}

static int drop_repeated(ps_arrow_batch *ba, int32_t count) {
    ps_property *list = ba->ba_properties;
    uint64_t seen = 0;
    for (int32_t i = 0; i < count; i++) {
        const uint8_t *name = list[i].name;
        int32_t len = list[i].name_len;
        seen |= 1ULL << ((name[0] * 5 + name[len - 1] * 3 + name[len / 2] + len * 11) & 63);
    }
    if (__builtin_popcountll(seen) == count) return 0;
    if (count > PAIRS_MAX) return drop_repeated_many(ba, count);
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = i + 1; j < count && list[i].name != NULL; j++)
            if (ps_property_same_name(&list[i], &list[j])) list[i].name = NULL;
    return 0;
}

/* Splits a row's properties into ba_properties. Returns how many, or PS_E_NO_MEMORY. */
static int32_t properties_split(ps_arrow_batch *ba, const ps_row *row) {
    int32_t count = 0, at = 0, most = row->rw_properties_len / 3 + 1;
    if (!PS_GROW(ba->ba_properties, ba->ba_property_room, most, most)) return PS_E_NO_MEMORY;
    while (count < most && ps_property_next(row->rw_properties, row->rw_properties_len, &at,
                                            &ba->ba_properties[count]))
        count++;
    int code = drop_repeated(ba, count);
    return code < 0 ? code : count;
}

static uint8_t *json_escape(uint8_t *w, uint8_t byte) {
    static const char digits[] = "0123456789abcdef", special[] = "\b\t\n\f\r\"\\",
                      names[] = "btnfr\"\\";
    const char *found = byte != 0 ? strchr(special, byte) : NULL;
    *w++ = '\\';
    if (found != NULL) {
        *w++ = (uint8_t)names[found - special];
        return w;
    }
    memcpy(w, "u00", 3);
    w[3] = (uint8_t)digits[byte >> 4];
    w[4] = (uint8_t)digits[byte & 15];
    return w + 5;
}

/* High bits set where a byte of w is not plain: below 0x20, a quote, a backslash or not ASCII.
 * Exact in telling whether there is one. */
static inline uint64_t not_plain(uint64_t w) {
    uint64_t quote = w ^ 0x22 * EACH_BYTE, slash = w ^ 0x5C * EACH_BYTE;
    uint64_t low = (w - 0x20 * EACH_BYTE) & ~w;
    return (w | low | ((quote - EACH_BYTE) & ~quote) | ((slash - EACH_BYTE) & ~slash)) &
           0x80 * EACH_BYTE;
}

/* Writes a JSON string: at most 6 * len + 2 bytes. */
static uint8_t *json_string(uint8_t *w, const uint8_t *p, int32_t len) {
    const uint8_t *end = p + len;
    *w++ = '"';
    while (p < end) {
        uint64_t word;
        bool good = true;
        if (end - p >= 8) {
            memcpy(&word, p, 8);
            if (!not_plain(word)) {
                memcpy(w, &word, 8);
                p += 8;
                w += 8;
                continue;
            }
        }
        if (*p < 0x80) {
            if (*p < 0x20 || *p == '"' || *p == '\\')
                w = json_escape(w, *p);
            else
                *w++ = *p;
            p++;
            continue;
        }
        int64_t n = ps_utf8_step(p, end, &good);
        if (good) memcpy(w, p, (size_t)n);
        w = good ? w + n : ps_utf8_put_replacement(w);
        p += n;
    }
    *w++ = '"';
    return w;
}

static int json_put(ps_arrow_batch *ba, buffer *d, const ps_row *row) {
    int32_t count = properties_split(ba, row);
    /* A byte becomes six at worst; a property brings four quotes, a colon and a comma. */
    if (count < 0 || data_room(ba, d, 6LL * row->rw_properties_len + 6LL * count + 2) < 0)
        return PS_E_NO_MEMORY;
    uint8_t *start = d->bf_data + d->bf_used, *w = start;
    *w++ = '{';
    for (int32_t i = 0; i < count; i++) {
        const ps_property *p = &ba->ba_properties[i];
        if (p->name == NULL) continue;
        if (w != start + 1) *w++ = ',';
        w = json_string(w, p->name, p->name_len);
        *w++ = ':';
        w = json_string(w, p->value, p->value_len);
    }
    *w++ = '}';
    d->bf_used += w - start;
    return 0;
}

static int entries_room(column *c, int32_t need) {
    int64_t room = 2LL * c->cl_entry_room;
    buffer *keys = &c->cl_buffers[KEY_ENDS], *values = &c->cl_buffers[VALUE_ENDS];
    if (need <= c->cl_entry_room) return 0;
    room = room > need ? room : need + ROWS_FIRST;
    if (buffer_grow(keys, keys->bf_room, (room + 1) * 4) < 0 ||
        buffer_grow(values, values->bf_room, (room + 1) * 4) < 0)
        return PS_E_NO_MEMORY;
    if (c->cl_entry_room == 0) {
        memset(keys->bf_data, 0, 4);
        memset(values->bf_data, 0, 4);
    }
    c->cl_entry_room = (int32_t)room;
    return 0;
}

static int map_put(ps_arrow_batch *ba, column *c, const ps_row *row) {
    int32_t count = properties_split(ba, row);
    if (count < 0 || entries_room(c, c->cl_entries + count) < 0) return PS_E_NO_MEMORY;
    buffer *keys = &c->cl_buffers[KEY_DATA], *values = &c->cl_buffers[VALUE_DATA];
    int32_t *key_ends = (int32_t *)c->cl_buffers[KEY_ENDS].bf_data;
    int32_t *value_ends = (int32_t *)c->cl_buffers[VALUE_ENDS].bf_data;
    for (int32_t i = 0; i < count; i++) {
        const ps_property *p = &ba->ba_properties[i];
        if (p->name == NULL) continue;
        if (text_put(ba, keys, p->name, p->name_len) < 0 ||
            text_put(ba, values, p->value, p->value_len) < 0)
            return PS_E_NO_MEMORY;
        c->cl_entries++;
        key_ends[c->cl_entries] = (int32_t)keys->bf_used;
        value_ends[c->cl_entries] = (int32_t)values->bf_used;
    }
    return 0;
}

/* ---- values ---- */

/* As Java prints them: four decimal numbers, or eight groups without leading zeros and without
 * "::"; an IPv4 address mapped into IPv6 becomes IPv4, as InetAddress.getByAddress does. */
static int32_t host_format(const uint8_t *host, int32_t len, char out[HOST_TEXT_MAX]) {
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    const uint8_t *a = host;
    int32_t port = (int32_t)be32_get(host + len - 4);
    if (len == 20 && memcmp(host, mapped, sizeof mapped) == 0) a = host + sizeof mapped;
    if (len == 8 || a != host)
        return snprintf(out, HOST_TEXT_MAX, "%u.%u.%u.%u:%d", a[0], a[1], a[2], a[3], port);
    return snprintf(out, HOST_TEXT_MAX, "%x:%x:%x:%x:%x:%x:%x:%x:%d", be16_get(a), be16_get(a + 2),
                    be16_get(a + 4), be16_get(a + 6), be16_get(a + 8), be16_get(a + 10),
                    be16_get(a + 12), be16_get(a + 14), port);
}

/* Neighbours mostly come from the same host: its text is made once. */
static int host_put(ps_arrow_batch *ba, column *c, const uint8_t *host, int32_t len) {
    if (len != c->cl_host_len || memcmp(host, c->cl_host, (size_t)len) != 0) {
        memcpy(c->cl_host, host, (size_t)len);
        c->cl_host_len = len;
        c->cl_host_text_len = host_format(host, len, c->cl_host_text);
    }
    return text_put(ba, &c->cl_buffers[DATA], (const uint8_t *)c->cl_host_text,
                    c->cl_host_text_len);
}

static int id_put(ps_arrow_batch *ba, buffer *d, const ps_row *row) {
    char id[57];
    if (row->rw_uniq != NULL) return text_put(ba, d, row->rw_uniq, row->rw_uniq_len);
    int32_t len = (int32_t)(row->rw_late - row->rw_middle) - PS_MIDDLE_STORE_HOST;
    int n = ps_offset_msg_id(row->rw_middle + PS_MIDDLE_STORE_HOST, len, row->rw_physical, id);
    return text_put(ba, d, (const uint8_t *)id, n);
}

static int fill_bodies(ps_arrow_batch *ba, column *c, const ps_row *rows, int32_t count) {
    buffer *d = &c->cl_buffers[DATA];
    int32_t *ends = (int32_t *)c->cl_buffers[ENDS].bf_data + ba->ba_rows + 1;
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) total += rows[i].rw_body_len;
    if (data_room(ba, d, total) < 0) return PS_E_NO_MEMORY;
    uint8_t *w = d->bf_data + d->bf_used;
    for (int32_t i = 0; i < count; i++) {
        memcpy(w, rows[i].rw_body, (size_t)rows[i].rw_body_len);
        w += rows[i].rw_body_len;
        ends[i] = (int32_t)(w - d->bf_data);
    }
    d->bf_used = w - d->bf_data;
    return 0;
}

static inline __attribute__((always_inline)) int
fill_optional(ps_arrow_batch *ba, column *c, const ps_row *rows, int32_t count, int32_t kind) {
    buffer *d = &c->cl_buffers[DATA];
    int32_t *ends = (int32_t *)c->cl_buffers[ENDS].bf_data + ba->ba_rows + 1;
    uint8_t *validity = c->cl_buffers[VALIDITY].bf_data;
    for (int32_t i = 0; i < count; i++) {
        const ps_row *r = &rows[i];
        const uint8_t *text = kind == PS_COL_TAGS   ? r->rw_tags
                              : kind == PS_COL_KEYS ? r->rw_keys
                                                    : r->rw_lite;
        int32_t len = kind == PS_COL_TAGS   ? r->rw_tags_len
                      : kind == PS_COL_KEYS ? r->rw_keys_len
                                            : r->rw_lite_len;
        int32_t at = ba->ba_rows + i;
        if (text != NULL) {
            if (text_put(ba, d, text, len) < 0) return PS_E_NO_MEMORY;
        } else if (c->cl_nullable) {
            validity[at >> 3] &= (uint8_t)~(1u << (at & 7));
            c->cl_nulls++;
        }
        ends[i] = (int32_t)d->bf_used;
    }
    return 0;
}

/* What lies before the body and after it, as it lies there; the body may have been inflated. */
static int envelope_put(ps_arrow_batch *ba, buffer *d, const ps_row *row) {
    int32_t head = (int32_t)(row->rw_late - row->rw_start) + PS_LATE_BODY;
    int32_t body = (int32_t)be32_get(row->rw_late + PS_LATE_BODY_LEN);
    int32_t tail = row->rw_size - head - body;
    if (data_room(ba, d, (int64_t)head + tail) < 0) return PS_E_NO_MEMORY;
    memcpy(d->bf_data + d->bf_used, row->rw_start, (size_t)head);
    memcpy(d->bf_data + d->bf_used + head, row->rw_start + head + body, (size_t)tail);
    d->bf_used += head + tail;
    return 0;
}

static int text_of(ps_arrow_batch *ba, column *c, const ps_row *row) {
    buffer *d = &c->cl_buffers[DATA];
    switch (c->cl_kind) {
    case PS_COL_TOPIC:
        return text_put(ba, d, row->rw_topic, row->rw_topic_len);
    case PS_COL_PROPERTIES:
        return map_put(ba, c, row);
    case PS_COL_PROPERTIES_JSON:
        return json_put(ba, d, row);
    case PS_COL_BORN_HOST:
        return host_put(ba, c, row->rw_start + PS_AT_BORN_HOST,
                        (int32_t)(row->rw_middle - row->rw_start) - PS_AT_BORN_HOST);
    case PS_COL_STORE_HOST:
        return host_put(ba, c, row->rw_middle + PS_MIDDLE_STORE_HOST,
                        (int32_t)(row->rw_late - row->rw_middle) - PS_MIDDLE_STORE_HOST);
    case PS_COL_ENVELOPE:
        return envelope_put(ba, d, row);
    default:
        return id_put(ba, d, row);
    }
}

static int fill_texts(ps_arrow_batch *ba, column *c, const ps_row *rows, int32_t count) {
    int32_t *ends = (int32_t *)c->cl_buffers[ENDS].bf_data + ba->ba_rows + 1;
    bool map = c->cl_kind == PS_COL_PROPERTIES;
    for (int32_t i = 0; i < count; i++) {
        if (text_of(ba, c, &rows[i]) < 0) return PS_E_NO_MEMORY;
        ends[i] = map ? c->cl_entries : (int32_t)c->cl_buffers[DATA].bf_used;
    }
    return 0;
}

static void fill_int32(column *c, const ps_row *rows, int32_t count, int32_t *out) {
#define FILL(value)                                                                                \
    for (int32_t i = 0; i < count; i++) out[i] = (int32_t)(value);                                 \
    break
    switch (c->cl_kind) {
    case PS_COL_QUEUE_ID:
        FILL(be32_get(rows[i].rw_start + PS_AT_QUEUE_ID));
    case PS_COL_FLAG:
        FILL(be32_get(rows[i].rw_start + PS_AT_FLAG));
    case PS_COL_SYS_FLAG:
        FILL(rows[i].rw_sys_flag);
    case PS_COL_RECONSUME_TIMES:
        FILL(be32_get(rows[i].rw_late + PS_LATE_RECONSUME_TIMES));
    case PS_COL_BODY_CRC:
        FILL(be32_get(rows[i].rw_start + PS_AT_BODY_CRC));
    default:
        FILL(rows[i].rw_size);
    }
#undef FILL
}

/* Milliseconds become microseconds; a hostile value wraps. */
static void fill_int64(column *c, const ps_row *rows, int32_t count, int64_t *out) {
#define FILL(value)                                                                                \
    for (int32_t i = 0; i < count; i++) out[i] = (int64_t)(value);                                 \
    break
    switch (c->cl_kind) {
    case PS_COL_QUEUE_OFFSET:
        FILL(rows[i].rw_offset);
    case PS_COL_BORN_TIMESTAMP:
        FILL(be64_get(rows[i].rw_start + PS_AT_BORN_TIMESTAMP) * 1000);
    case PS_COL_STORE_TIMESTAMP:
        FILL(be64_get(rows[i].rw_middle + PS_MIDDLE_STORE_TIMESTAMP) * 1000);
    case PS_COL_PREPARED_TRANSACTION_OFFSET:
        FILL(be64_get(rows[i].rw_late + PS_LATE_PREPARED_OFFSET));
    default:
        FILL(rows[i].rw_physical);
    }
#undef FILL
}

/* Whether every row of the stream has the same value there. */
static bool is_constant(const ps_arrow_layout *ly, int32_t kind) {
    if (kind == PS_COL_BROKER_NAME) return true;
    return ly->ly_topic != NULL && (kind == PS_COL_TOPIC || kind == PS_COL_QUEUE_ID);
}

static int fill_column(ps_arrow_batch *ba, column *c, const ps_row *rows, int32_t count) {
    uint8_t *values = c->cl_buffers[ENDS].bf_data;
    if (is_constant(&ba->ba_pool->pl_layout, c->cl_kind))
        return 0; /* filled once, when the batch is full */
    switch (kinds[c->cl_kind].shape) {
    case SHAPE_INT32:
        fill_int32(c, rows, count, (int32_t *)values + ba->ba_rows);
        return 0;
    case SHAPE_INT64:
        fill_int64(c, rows, count, (int64_t *)values + ba->ba_rows);
        return 0;
    default:
        break;
    }
    if (c->cl_kind == PS_COL_BODY) return fill_bodies(ba, c, rows, count);
    if (c->cl_kind == PS_COL_TAGS) return fill_optional(ba, c, rows, count, PS_COL_TAGS);
    if (c->cl_kind == PS_COL_KEYS) return fill_optional(ba, c, rows, count, PS_COL_KEYS);
    if (c->cl_kind == PS_COL_LITE_TOPIC)
        return fill_optional(ba, c, rows, count, PS_COL_LITE_TOPIC);
    return fill_texts(ba, c, rows, count);
}

/* A batch that was used before still holds the values, which are the same for the whole stream. */
static int fill_constant(ps_arrow_batch *ba, column *c, const char *text, int32_t len) {
    int32_t *ends = (int32_t *)c->cl_buffers[ENDS].bf_data;
    buffer *d = &c->cl_buffers[DATA];
    int64_t total = (int64_t)len * ba->ba_rows, have = len;
    if (ba->ba_rows <= c->cl_constant_rows) return 0;
    if (c->cl_kind == PS_COL_QUEUE_ID) {
        for (int32_t i = 0; i < ba->ba_rows; i++) ends[i] = ba->ba_pool->pl_layout.ly_queue_id;
        c->cl_constant_rows = ba->ba_rows;
        return 0;
    }
    if (total > d->bf_room && buffer_grow(d, 0, total) < 0) return PS_E_NO_MEMORY;
    c->cl_constant_rows = ba->ba_rows;
    for (int32_t i = 0; i < ba->ba_rows; i++) ends[i + 1] = (i + 1) * len;
    if (total == 0) return 0;
    memcpy(d->bf_data, text, (size_t)len);
    for (; have < total; have *= 2)
        memcpy(d->bf_data + have, d->bf_data, (size_t)(have * 2 <= total ? have : total - have));
    return 0;
}

/* ---- batches ---- */

static void batch_destroy(ps_arrow_batch *ba, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < BUFFERS; k++) free(ba->ba_columns[i].cl_buffers[k].bf_data);
    free(ba->ba_properties);
    free(ba->ba_table);
    free(ba);
}

ps_arrow_pool *ps_arrow_pool_new(const ps_arrow_layout *ly) {
    ps_arrow_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->pl_layout = *ly;
    pool->pl_topic = malloc(3 * (size_t)ly->ly_topic_len + 1);
    pool->pl_broker_name = malloc(3 * (size_t)ly->ly_broker_name_len + 1);
    atomic_init(&pool->pl_refs, 1);
    if (pool->pl_topic == NULL || pool->pl_broker_name == NULL) {
        ps_arrow_pool_close(pool);
        return NULL;
    }
    /* Folder names need not be UTF-8, Arrow's text must be. */
    pool->pl_layout.ly_topic_len = (int32_t)ps_utf8_mend(
        (uint8_t *)pool->pl_topic, (const uint8_t *)ly->ly_topic, ly->ly_topic_len);
    pool->pl_layout.ly_broker_name_len =
        (int32_t)ps_utf8_mend((uint8_t *)pool->pl_broker_name, (const uint8_t *)ly->ly_broker_name,
                              ly->ly_broker_name_len);
    pool->pl_layout.ly_topic = ly->ly_topic != NULL ? pool->pl_topic : NULL;
    pool->pl_layout.ly_broker_name = pool->pl_broker_name;
    return pool;
}

static void pool_unref(ps_arrow_pool *pool) {
    if (atomic_fetch_sub_explicit(&pool->pl_refs, 1, memory_order_acq_rel) != 1) return;
    for (int32_t i = 0; i < POOL_SLOTS; i++) {
        ps_arrow_batch *ba = atomic_load(&pool->pl_slots[i]);
        if (ba != NULL) batch_destroy(ba, pool->pl_layout.ly_count);
    }
    free(pool->pl_topic);
    free(pool->pl_broker_name);
    free(pool);
}

void ps_arrow_pool_close(ps_arrow_pool *pool) {
    atomic_store(&pool->pl_closed, true);
    for (int32_t i = 0; i < POOL_SLOTS; i++) {
        ps_arrow_batch *ba = atomic_exchange(&pool->pl_slots[i], NULL);
        if (ba != NULL) batch_destroy(ba, pool->pl_layout.ly_count);
    }
    pool_unref(pool);
}

/* Back into the pool, or freed when the pool is full, closed, or the batch was an unusually large
 * one. */
static void batch_return(ps_arrow_batch *ba) {
    ps_arrow_pool *pool = ba->ba_pool;
    int32_t count = pool->pl_layout.ly_count;
    int64_t bytes = 0;
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = 0; k < BUFFERS; k++) bytes += ba->ba_columns[i].cl_buffers[k].bf_room;
    bool keep = bytes <= KEEP_BYTES_MAX && !atomic_load(&pool->pl_closed);
    for (int32_t i = 0; keep && i < POOL_SLOTS; i++) {
        ps_arrow_batch *none = NULL;
        if (atomic_compare_exchange_strong(&pool->pl_slots[i], &none, ba)) {
            pool_unref(pool);
            return;
        }
    }
    batch_destroy(ba, count);
    pool_unref(pool);
}

ps_arrow_batch *ps_arrow_begin(ps_arrow_pool *pool) {
    const ps_arrow_layout *ly = &pool->pl_layout;
    ps_arrow_batch *ba = NULL;
    for (int32_t i = 0; ba == NULL && i < POOL_SLOTS; i++)
        ba = atomic_exchange(&pool->pl_slots[i], NULL);
    if (ba == NULL) ba = calloc(1, sizeof *ba + (size_t)ly->ly_count * sizeof *ba->ba_columns);
    if (ba == NULL) return NULL;
    atomic_fetch_add_explicit(&pool->pl_refs, 1, memory_order_relaxed);
    ba->ba_pool = pool;
    ba->ba_rows = 0;
    for (int32_t i = 0; i < ly->ly_count; i++) {
        column *c = &ba->ba_columns[i];
        c->cl_kind = ly->ly_columns[i];
        c->cl_nullable = ly->ly_nullable[i];
        c->cl_entries = 0;
        c->cl_buffers[DATA].bf_used = 0;
        c->cl_buffers[KEY_DATA].bf_used = 0;
        c->cl_buffers[VALUE_DATA].bf_used = 0;
        if (c->cl_nulls > 0)
            memset(c->cl_buffers[VALIDITY].bf_data, 0xFF, (size_t)c->cl_buffers[VALIDITY].bf_room);
        c->cl_nulls = 0;
    }
    return ba;
}

int ps_arrow_add(ps_arrow_batch *ba, const ps_row *rows, int32_t count) {
    const ps_arrow_layout *ly = &ba->ba_pool->pl_layout;
    ba->ba_goal = ba->ba_rows + count;
    if (rows_room(ba, ba->ba_goal) < 0) return PS_E_NO_MEMORY;
    for (int32_t i = 0; i < ly->ly_count; i++)
        if (fill_column(ba, &ba->ba_columns[i], rows, count) < 0) return PS_E_NO_MEMORY;
    ba->ba_rows += count;
    return 0;
}

void ps_arrow_drop(ps_arrow_batch *ba) {
    batch_return(ba);
}

/* For every node. The consumer may have moved children out; then it releases them by itself. */
static void array_release(struct ArrowArray *a) {
    ps_arrow_batch *ba = a->private_data;
    for (int64_t i = 0; i < a->n_children; i++)
        if (a->children[i]->release != NULL) a->children[i]->release(a->children[i]);
    a->release = NULL;
    if (atomic_fetch_sub_explicit(&ba->ba_refs, 1, memory_order_acq_rel) == 1) batch_return(ba);
}

/* A node with its buffers; a data buffer that was never needed still gets an address. */
static void node_set(ps_arrow_batch *ba, column *c, int node, int64_t length, int32_t ends,
                     int32_t data) {
    static const uint64_t nothing[8];
    const void **views = c->cl_views[node];
    int32_t n = 0;
    views[n++] = node == NODE && c->cl_nulls > 0 ? c->cl_buffers[VALIDITY].bf_data : NULL;
    if (ends >= 0)
        views[n++] =
            c->cl_buffers[ends].bf_data != NULL ? (void *)c->cl_buffers[ends].bf_data : nothing;
    if (data >= 0)
        views[n++] =
            c->cl_buffers[data].bf_data != NULL ? (void *)c->cl_buffers[data].bf_data : nothing;
    c->cl_nodes[node] = (struct ArrowArray){.length = length,
                                            .null_count = node == NODE ? c->cl_nulls : 0,
                                            .n_buffers = n,
                                            .buffers = views,
                                            .release = array_release,
                                            .private_data = ba};
}

static int32_t column_finish(ps_arrow_batch *ba, column *c) {
    shape s = kinds[c->cl_kind].shape;
    int32_t *ends = (int32_t *)c->cl_buffers[ENDS].bf_data;
    if (s == SHAPE_TEXT || s == SHAPE_MAP) ends[0] = 0;
    node_set(ba, c, NODE, ba->ba_rows, ENDS, s == SHAPE_TEXT ? DATA : -1);
    if (s != SHAPE_MAP) return 1;
    node_set(ba, c, ENTRIES, c->cl_entries, -1, -1);
    node_set(ba, c, KEYS, c->cl_entries, KEY_ENDS, KEY_DATA);
    node_set(ba, c, VALUES, c->cl_entries, VALUE_ENDS, VALUE_DATA);
    c->cl_links[0] = &c->cl_nodes[ENTRIES];
    c->cl_links[1] = &c->cl_nodes[KEYS];
    c->cl_links[2] = &c->cl_nodes[VALUES];
    c->cl_nodes[NODE].n_children = 1;
    c->cl_nodes[NODE].children = &c->cl_links[0];
    c->cl_nodes[ENTRIES].n_children = 2;
    c->cl_nodes[ENTRIES].children = &c->cl_links[1];
    return NODES;
}

int ps_arrow_finish(ps_arrow_batch *ba, struct ArrowArray *out) {
    const ps_arrow_layout *ly = &ba->ba_pool->pl_layout;
    int32_t refs = 1;
    for (int32_t i = 0; i < ly->ly_count; i++) {
        column *c = &ba->ba_columns[i];
        bool topic = c->cl_kind == PS_COL_TOPIC;
        if (is_constant(ly, c->cl_kind) &&
            fill_constant(ba, c, topic ? ly->ly_topic : ly->ly_broker_name,
                          topic ? ly->ly_topic_len : ly->ly_broker_name_len) < 0) {
            ps_arrow_drop(ba);
            return PS_E_NO_MEMORY;
        }
        refs += column_finish(ba, c);
        ba->ba_links[i] = &c->cl_nodes[NODE];
    }
    atomic_store(&ba->ba_refs, refs);
    *out = (struct ArrowArray){.length = ba->ba_rows,
                               .n_buffers = 1,
                               .n_children = ly->ly_count,
                               .buffers = ba->ba_views,
                               .children = ba->ba_links,
                               .release = array_release,
                               .private_data = ba};
    return 0;
}

/* ---- schema ---- */

/* Children and the array of pointers to them lie in one block, which private_data holds: a child
 * that the consumer moved out keeps its own block and can outlive the parent. */
static void schema_release(struct ArrowSchema *s) {
    for (int64_t i = 0; i < s->n_children; i++)
        if (s->children[i]->release != NULL) s->children[i]->release(s->children[i]);
    free(s->private_data);
    s->release = NULL;
}

static int schema_set(struct ArrowSchema *s, const char *name, const char *format, bool nullable,
                      int32_t children) {
    *s = (struct ArrowSchema){.format = format,
                              .name = name,
                              .flags = nullable ? ARROW_FLAG_NULLABLE : 0,
                              .release = schema_release};
    if (children == 0) return 0;
    size_t links = (size_t)children * sizeof(struct ArrowSchema *);
    struct ArrowSchema **block = calloc(1, links + (size_t)children * sizeof *s);
    if (block == NULL) return PS_E_NO_MEMORY;
    struct ArrowSchema *nodes = (struct ArrowSchema *)(void *)((uint8_t *)block + links);
    for (int32_t i = 0; i < children; i++) block[i] = &nodes[i];
    s->children = block;
    s->private_data = block;
    s->n_children = children;
    return 0;
}

static int schema_map(struct ArrowSchema *s, const char *name, bool nullable) {
    int code = schema_set(s, name, "+m", nullable, 1);
    if (code == 0) code = schema_set(s->children[0], "entries", "+s", false, 2);
    if (code == 0) code = schema_set(s->children[0]->children[0], "key", "u", false, 0);
    if (code == 0) code = schema_set(s->children[0]->children[1], "value", "u", true, 0);
    return code;
}

int ps_arrow_schema(const ps_arrow_layout *ly, struct ArrowSchema *out) {
    int code = schema_set(out, "", "+s", false, ly->ly_count);
    for (int32_t i = 0; code == 0 && i < ly->ly_count; i++) {
        int32_t kind = ly->ly_columns[i];
        if (kinds[kind].shape == SHAPE_MAP)
            code = schema_map(out->children[i], kinds[kind].name, ly->ly_nullable[i]);
        else
            code = schema_set(out->children[i], kinds[kind].name, kinds[kind].format,
                              ly->ly_nullable[i], 0);
    }
    if (code < 0 && out->release != NULL) out->release(out);
    return code;
}
