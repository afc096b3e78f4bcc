/* See ack.h. Field numbers: broker/grpc/messaging.proto. */
#include "messaging/ack.h"

#define ENTRY_OVERHEAD 64 /* of a reply's entry: tags, lengths, its status */

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
    return ps_handle_read(a->handle.data, a->handle.len, &a->read);
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
        uint8_t entry[PS_H2_TEXT_MAX + PS_HANDLE_MAX + ENTRY_OVERHEAD], *end = entry;
        if (each->id.len > 0) end = ps_proto_put_bytes(end, 1, each->id.data, each->id.len);
        end = ps_proto_put_bytes(end, 2, each->handle.data, each->handle.len);
        end = ps_proto_put_ok(end, 3);
        at = ps_proto_put_bytes(at, 2, entry, end - entry);
    }
    return at - to;
}
