/* See ack.h. Field numbers: broker/grpc/messaging.proto. A handle is eight or nine fields with a
 * blank between: docs/internals/pop.md#handles. */
#include "http2/ack.h"

#include <string.h>

#define HANDLE_MAX 1024
#define DIGITS_MAX 18
#define ENTRY_OVERHEAD 64 /* of a reply's entry: tags, lengths, its status */

/* ---- handles ---- */

typedef struct words {
    const char *at, *end;
} words;

/* The next field, which is not empty. */
static bool next_word(words *w, ps_h2_text *out) {
    const char *blank = w->at < w->end ? memchr(w->at, ' ', (size_t)(w->end - w->at)) : NULL;
    const char *end = blank != NULL ? blank : w->end;
    *out = (ps_h2_text){w->at, (int32_t)(end - w->at)};
    /* After the last blank one more field begins, even if it is empty. */
    w->at = blank != NULL && end + 1 < w->end ? end + 1 : w->end;
    return out->len > 0 && (blank == NULL || blank + 1 < w->end);
}

static bool next_number(words *w, int64_t *out) {
    ps_h2_text text;
    if (!next_word(w, &text) || text.len > DIGITS_MAX) return false;
    *out = 0;
    for (int32_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        *out = *out * 10 + (text.data[i] - '0');
    }
    return true;
}

static bool read_handle(ps_h2_ack *a) {
    words w = {a->handle.data, a->handle.data + a->handle.len};
    ps_h2_text retry;
    if (a->handle.len == 0 || a->handle.len > HANDLE_MAX) return false;
    if (!next_number(&w, &a->start) || !next_number(&w, &a->pop_ms) ||
        !next_number(&w, &a->invisible_ms) || !next_number(&w, &a->revive_queue) ||
        !next_word(&w, &retry) || retry.len != 1 || retry.data[0] < '0' || retry.data[0] > '2' ||
        !next_word(&w, &a->broker) || !next_number(&w, &a->queue) ||
        !next_number(&w, &a->offset))
        return false;
    a->retry = retry.data[0];
    a->physical = -1;
    return w.at == w.end || (next_number(&w, &a->physical) && w.at == w.end);
}

/* ---- the request ---- */

static bool read_entry(const ps_proto_field *in, ps_h2_ack *a) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    *a = (ps_h2_ack){0};
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2 ||
            !ps_proto_text(&f, f.number == 1 ? &a->id : &a->handle))
            return false;
    }
    return read_handle(a);
}

bool ps_h2_acks_read(const uint8_t *data, int64_t len, ps_h2_acks *out) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    ps_proto_field f;
    out->group = out->topic = (ps_h2_text){0};
    out->count = 0;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || f.is_number || f.number > 3) return false;
        if (f.number == 3) {
            if (out->count == PS_H2_ACKS_MAX || !read_entry(&f, &out->each[out->count++]))
                return false;
        } else if (!ps_proto_first(&r, &f) ||
                   !ps_proto_resource(&f, f.number == 1 ? &out->group : &out->topic)) {
            return false;
        }
    }
    return out->count > 0 && out->group.len > 0 && out->topic.len > 0;
}

/* ---- the reply ---- */

int64_t ps_h2_acks_room(const ps_h2_acks *a) {
    int64_t room = ENTRY_OVERHEAD;
    for (int32_t i = 0; i < a->count; i++)
        room += ENTRY_OVERHEAD + a->each[i].id.len + a->each[i].handle.len;
    return room;
}

int64_t ps_h2_acks_reply(const ps_h2_acks *a, uint8_t *to) {
    uint8_t *at = ps_proto_put_ok(to, 1);
    for (int32_t i = 0; i < a->count; i++) {
        const ps_h2_ack *each = &a->each[i];
        uint8_t entry[PS_H2_TEXT_MAX + HANDLE_MAX + ENTRY_OVERHEAD], *end = entry;
        if (each->id.len > 0) end = ps_proto_put_bytes(end, 1, each->id.data, each->id.len);
        end = ps_proto_put_bytes(end, 2, each->handle.data, each->handle.len);
        end = ps_proto_put_ok(end, 3);
        at = ps_proto_put_bytes(at, 2, entry, end - entry);
    }
    return at - to;
}
