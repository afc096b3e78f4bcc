/* Consumer offsets as LMDB has them (pystore/meta/_database.py), out of its leaf pages: of a
 * million pairs no object of Python's is made. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/grow.h"
#include "files/io.h"
#include "format/names.h"
#include "format/offsetblock.h"
#include "format/utf8.h"

#define PAGE_HEAD 16
#define NODE_HEAD 8
#define BIG 1 /* the value is the number of a page */
#define DIGEST 16
#define ROW_KEY (DIGEST + 4)
#define PIECE (256 << 10) /* of blocks or text, that is given at once */
#define ESCAPE_MAX 6       /* bytes of JSON that one of a name becomes */
#define TEXT_ROW_MAX 40    /* of a queue and its offset */

typedef struct leaf_node {
    const uint8_t *key, *value;
    int64_t key_len, len;
    bool big;
} leaf_node;

/* The entries of a table, in order. */
typedef struct leaf_row {
    const int64_t *numbers;
    int32_t count, at;
    int32_t node, nodes; /* of the page that is read */
    bool has;
    leaf_node now; /* if it has one */
    uint8_t *page;
} leaf_row;

typedef struct buffer {
    uint8_t *bytes;
    int64_t len, room;
} buffer;

struct ps_audit_offsets {
    int32_t ao_fd, ao_size;
    leaf_row ao_pairs, ao_rows;
    uint8_t *ao_long;         /* a name that has pages of its own */
    buffer ao_out, ao_queues; /* queues: of a pair that becomes text, as in a block */
    bool ao_light, ao_ascii, ao_half;
};

static uint32_t le16_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static int bad_page(ps_error *e, int64_t page, const char *why) {
    return ps_fail(e, PS_E_DAMAGED, 0, page, NULL, "cannot read a row: page %lld %s",
                   (long long)page, why);
}

/* The page that is read. */
static int bad_page_of(const leaf_row *r, ps_error *e, const char *why) {
    return bad_page(e, r->numbers[r->at - 1], why);
}

static int no_memory(ps_error *e) {
    return ps_no_memory(e, NULL, "no memory for consumer offsets");
}

/* ---- pages ---- */

static int read_bytes(const ps_audit_offsets *o, void *to, int64_t len, int64_t page, int64_t from,
                      ps_error *e) {
    ps_io *io = ps_io_system();
    ssize_t n = io->pread(io, o->ao_fd, to, (size_t)len, page * o->ao_size + from);
    if (n < 0)
        return ps_fail(e, ps_errno_code(errno), errno, page, NULL, "cannot read the metadata");
    return n == len ? 0 : bad_page(e, page, "is not in the file");
}

/* False: it is not in its page. */
static bool node_at(const uint8_t *page, int32_t size, int32_t n, leaf_node *out) {
    uint32_t at = le16_at(page + PAGE_HEAD + 2 * n), room = (uint32_t)size;
    if (at < PAGE_HEAD || at + NODE_HEAD > room) return false;
    const uint8_t *node = page + at;
    uint32_t len = le16_at(node) | le16_at(node + 2) << 16, key = le16_at(node + 6);
    *out = (leaf_node){node + NODE_HEAD, node + NODE_HEAD + key, key, len,
                       (le16_at(node + 4) & BIG) != 0};
    uint32_t inside = out->big ? 8 : len;
    return inside <= room && at + NODE_HEAD + key + inside <= room;
}

/* The next entry, if there is one. */
static int next_node(const ps_audit_offsets *o, leaf_row *r, ps_error *e) {
    while (r->node == r->nodes) {
        r->has = r->at < r->count;
        if (!r->has) return 0;
        int64_t number = r->numbers[r->at++];
        int code = read_bytes(o, r->page, o->ao_size, number, 0, e);
        if (code < 0) return code;
        int32_t lower = (int32_t)le16_at(r->page + 12);
        if (lower < PAGE_HEAD || lower > o->ao_size)
            return bad_page(e, number, "has no sound bounds");
        r->node = 0;
        r->nodes = (lower - PAGE_HEAD) / 2;
    }
    r->has = node_at(r->page, o->ao_size, r->node++, &r->now);
    return r->has ? 0 : bad_page_of(r, e, "has a node beyond its end");
}

/* The name of the pair, `topic@group`. */
static int name_of(ps_audit_offsets *o, const uint8_t **name, int64_t *len, ps_error *e) {
    const leaf_node *n = &o->ao_pairs.now;
    *name = n->value;
    *len = n->len;
    if (!n->big) return 0;
    uint64_t page;
    memcpy(&page, n->value, sizeof page);
    free(o->ao_long);
    o->ao_long = malloc((size_t)n->len);
    if (o->ao_long == NULL) return no_memory(e);
    *name = o->ao_long;
    return page < (uint64_t)INT64_MAX / (uint64_t)o->ao_size - 1
               ? read_bytes(o, o->ao_long, n->len, (int64_t)page, PAGE_HEAD, e)
               : bad_page(e, 0, "has a value beyond the file");
}

/* ---- blocks ---- */

static uint8_t *room_for(buffer *b, int64_t more) {
    return PS_GROW(b->bytes, b->room, b->len + more, 2 * PIECE) ? b->bytes + b->len : NULL;
}

/* The rows of the pair that is read, behind what is in `out`. */
static int put_rows(ps_audit_offsets *o, buffer *out, int32_t *count, ps_error *e) {
    const leaf_node *row = &o->ao_rows.now;
    const uint8_t *digest = o->ao_pairs.now.key;
    int code = 0;
    while (code == 0 && o->ao_rows.has) {
        if (row->key_len != ROW_KEY || row->len != 8 || row->big)
            return bad_page_of(&o->ao_rows, e, "has a row of another length");
        int order = memcmp(row->key, digest, DIGEST);
        if (order < 0)
            return bad_page_of(&o->ao_rows, e, "has a row of no pair");
        if (order > 0) break;
        uint8_t *to = room_for(out, PS_OFFSET_ROW_BYTES);
        if (to == NULL) return no_memory(e);
        int32_t queue = (int32_t)be32_get(row->key + DIGEST);
        int64_t offset = (int64_t)be64_get(row->value);
        out->len += ps_offset_row_put(to, queue, offset) - to;
        ++*count;
        code = next_node(o, &o->ao_rows, e);
    }
    return code;
}

/* The block of the pair that is read, unless it has no offsets. */
static int put_block(ps_audit_offsets *o, ps_error *e) {
    buffer *out = &o->ao_out;
    int64_t begin = out->len, len;
    const uint8_t *name;
    int32_t head[3] = {0};
    int code = name_of(o, &name, &len, e);
    if (code < 0) return code;
    uint8_t *to = len <= INT32_MAX / 2 ? room_for(out, len + (int64_t)sizeof head) : NULL;
    if (to == NULL) return no_memory(e);
    const uint8_t *end = memchr(name, '@', (size_t)len);
    head[1] = (int32_t)(end != NULL ? end - name : len);
    head[0] = end != NULL ? (int32_t)len - head[1] - 1 : 0;
    to += sizeof head;
    if (end != NULL) to = mempcpy(to, end + 1, (size_t)head[0]);
    memcpy(to, name, (size_t)head[1]);
    out->len += (int64_t)sizeof head + head[0] + head[1];
    code = put_rows(o, out, &head[2], e);
    if (code == 0 && head[2] > 0)
        memcpy(out->bytes + begin, head, sizeof head);
    else
        out->len = begin;
    return code;
}

/* ---- text ---- */

/* The character at p, and where it ends; NULL: it is none. Half a surrogate pair is one: a file of
 * offsets can carry it by an escape (pystore/meta/_database.py). */
static const uint8_t *char_at(const uint8_t *p, const uint8_t *end, uint32_t *c) {
    bool good = true;
    int64_t len = *p < 0x80 ? 1 : ps_utf8_step(p, end, &good);
    if (!good && (len != 3 || *p != 0xed)) return NULL;
    *c = len == 1 ? *p : ps_utf8_code(p, len);
    return p + len;
}

static bool is_half(uint32_t c) {
    return c >= 0xd800 && c < 0xe000;
}

static uint8_t *put_unit(uint8_t *to, uint32_t unit) {
    to = ps_text_put(to, "\\u");
    for (int32_t shift = 12; shift >= 0; shift -= 4)
        *to++ = (uint8_t)"0123456789abcdef"[unit >> shift & 15];
    return to;
}

static uint8_t *put_escape(uint8_t *to, uint32_t c) {
    static const char plain[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *found = c > 0 && c < 0x80 ? strchr(plain, (int)c) : NULL;
    if (found != NULL) {
        *to++ = '\\';
        *to++ = (uint8_t)names[found - plain];
        return to;
    }
    if (c < 0x10000) return put_unit(to, c);
    to = put_unit(to, 0xd7c0 + (c >> 10));
    return put_unit(to, 0xdc00 + (c & 0x3ff));
}

/* The name as a string of JSON. NULL: it is not UTF-8. */
static uint8_t *put_string(const ps_audit_offsets *o, uint8_t *to, const uint8_t *p,
                           const uint8_t *end) {
    *to++ = '"';
    while (p < end) {
        uint32_t c;
        const uint8_t *next = char_at(p, end, &c);
        if (next == NULL) return NULL;
        bool plain = c >= ' ' && c != '"' && c != '\\' && (c < 0x7f || !o->ao_ascii);
        to = plain ? mempcpy(to, p, (size_t)(next - p)) : put_escape(to, c);
        p = next;
    }
    *to++ = '"';
    return to;
}

static uint8_t *put_queue(uint8_t *to, const uint8_t *row) {
    int64_t offset;
    int32_t queue = ps_offset_row_get(row, &offset);
    to = ps_text_put(to, "\n\t\t\t\"");
    to = ps_number_put(to, queue);
    to = ps_text_put(to, "\":");
    to = ps_number_put(to, offset);
    *to++ = ',';
    return to;
}

/* LMDB has those below zero, which a foreign file can name, behind all others. */
static uint8_t *put_queues(uint8_t *to, const uint8_t *rows, int32_t count) {
    if (count == 0) return ps_text_put(to, "{}");
    int32_t first = 0;
    int64_t offset;
    while (first < count && ps_offset_row_get(rows + first * PS_OFFSET_ROW_BYTES, &offset) >= 0)
        first++;
    *to++ = '{';
    for (int32_t i = 0; i < count; i++)
        to = put_queue(to, rows + (int64_t)((first + i) % count) * PS_OFFSET_ROW_BYTES);
    return ps_text_put(to - 1, "\n\t\t}");
}

static bool light_name(const uint8_t *name, int64_t len) {
    int64_t prefix = sizeof PS_LMQ_PREFIX - 1;
    return len >= prefix && memcmp(name, PS_LMQ_PREFIX, (size_t)prefix) == 0;
}

/* Whether it is UTF-8; notes half a surrogate pair. */
static bool check_name(ps_audit_offsets *o, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        uint32_t c;
        p = char_at(p, end, &c);
        if (p == NULL) return false;
        if (is_half(c)) o->ao_half = true;
    }
    return true;
}

/* The pair that is read as a member, if it is wanted. */
static int put_member(ps_audit_offsets *o, ps_error *e) {
    buffer *out = &o->ao_out, *queues = &o->ao_queues;
    const uint8_t *name;
    int64_t len;
    int32_t count = 0, head[2];
    int code = name_of(o, &name, &len, e);
    if (code < 0) return code;
    queues->len = 0;
    bool wanted = light_name(name, len) == o->ao_light;
    if (!check_name(o, name, name + len))
        return bad_page_of(&o->ao_pairs, e, "has a name that is not UTF-8");
    code = put_rows(o, queues, &count, e);
    if (code < 0 || !wanted) return code;
    uint8_t *begin = len <= INT32_MAX / (2 * ESCAPE_MAX)
                         ? room_for(out, (int64_t)sizeof head + (1 + ESCAPE_MAX) * len +
                                             (int64_t)count * TEXT_ROW_MAX + 2 * TEXT_ROW_MAX)
                         : NULL;
    if (begin == NULL) return no_memory(e);
    uint8_t *text = o->ao_light ? begin : mempcpy(begin + sizeof head, name, (size_t)len);
    uint8_t *to = put_string(o, ps_text_put(text, ",\n\t\t"), name, name + len);
    if (to == NULL) return bad_page_of(&o->ao_pairs, e, "has a name that is not UTF-8");
    *to++ = ':';
    to = put_queues(to, queues->bytes, count);
    head[0] = (int32_t)len;
    head[1] = (int32_t)(to - text);
    if (!o->ao_light) memcpy(begin, head, sizeof head);
    out->len += to - begin;
    return 0;
}

/* ---- the walk ---- */

static const uint8_t *next_piece(ps_audit_offsets *o, int (*put)(ps_audit_offsets *, ps_error *),
                                 int64_t *len, ps_error *e) {
    int code = 0;
    o->ao_out.len = 0;
    *len = 0;
    while (code == 0 && o->ao_pairs.has && o->ao_out.len < PIECE) {
        if (o->ao_pairs.now.key_len != DIGEST)
            code = bad_page_of(&o->ao_pairs, e, "has a pair of no digest");
        if (code == 0) code = put(o, e);
        if (code == 0) code = next_node(o, &o->ao_pairs, e);
    }
    if (code == 0 && !o->ao_pairs.has && o->ao_rows.has)
        code = bad_page_of(&o->ao_rows, e, "has a row of no pair");
    if (code < 0) return NULL;
    *len = o->ao_out.len;
    return room_for(&o->ao_out, 1) != NULL ? o->ao_out.bytes : NULL;
}

const uint8_t *ps_audit_offsets_next(ps_audit_offsets *o, int64_t *len, ps_error *e) {
    return next_piece(o, put_block, len, e);
}

const uint8_t *ps_audit_offsets_members(ps_audit_offsets *o, int32_t light, int32_t ascii,
                                        int64_t *len, ps_error *e) {
    o->ao_light = light != 0;
    o->ao_ascii = ascii != 0;
    return next_piece(o, put_member, len, e);
}

int32_t ps_audit_offsets_half(const ps_audit_offsets *o) {
    return o->ao_half;
}

ps_audit_offsets *ps_audit_offsets_begin(int32_t fd, int32_t size, const int64_t *pairs,
                                         int32_t pair_count, const int64_t *rows,
                                         int32_t row_count, ps_error *e) {
    ps_audit_offsets *o = calloc(1, sizeof *o);
    uint8_t *pages = malloc(2 * (size_t)size);
    if (o == NULL || pages == NULL) {
        free(o);
        free(pages);
        no_memory(e);
        return NULL;
    }
    o->ao_fd = fd;
    o->ao_size = size;
    o->ao_pairs = (leaf_row){.numbers = pairs, .count = pair_count, .page = pages};
    o->ao_rows = (leaf_row){.numbers = rows, .count = row_count, .page = pages + size};
    if (next_node(o, &o->ao_pairs, e) == 0 && next_node(o, &o->ao_rows, e) == 0) return o;
    ps_audit_offsets_free(o);
    return NULL;
}

void ps_audit_offsets_free(ps_audit_offsets *o) {
    free(o->ao_pairs.page);
    free(o->ao_out.bytes);
    free(o->ao_queues.bytes);
    free(o->ao_long);
    free(o);
}
