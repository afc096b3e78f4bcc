/* See receive.h. Field numbers: broker/grpc/messaging.proto. */
#include "messaging/receive.h"

#include <string.h>

#define SECONDS_MAX (INT64_C(1) << 32) /* of a Duration; a longer one is not plain */

enum { FILTER_SQL = 2 };

/* The topic alone counts. */
static bool read_queue(const ps_proto_field *in, ps_h2_receive *out) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f)) return false;
        if (f.number == 1 &&
            (f.is_number || !ps_proto_first(&r, &f) || !ps_proto_resource(&f, &out->topic)))
            return false;
    }
    return true;
}

/* Tags that are nothing but bars are wrong, and those with blanks at an end are looked at as they
 * would be without. */
static bool read_filter(const ps_proto_field *in, ps_h2_receive *out) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    ps_h2_text text = {0};
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2 ||
            f.is_number != (f.number == 1))
            return false;
        if (f.number == 1)
            out->sql = f.value == FILTER_SQL;
        else if (!ps_proto_text(&f, &text))
            return false;
    }
    int32_t bars = 0;
    while (bars < text.len && text.data[bars] == '|') bars++;
    if (out->sql ? text.len == 0 : text.len > 0 && bars == text.len) return false;
    if (text.len > 0 && (text.data[0] == ' ' || text.data[text.len - 1] == ' ')) return false;
    if (out->sql || (text.len > 0 && !(text.len == 1 && *text.data == '*'))) out->filter = text;
    return true;
}

static bool read_duration(const ps_proto_field *in, int64_t *ms) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    uint64_t parts[3] = {0};
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2 || !f.is_number)
            return false;
        parts[f.number] = f.value;
    }
    if (parts[1] > SECONDS_MAX || parts[2] >= 1000000000) return false;
    *ms = (int64_t)parts[1] * 1000 + (int64_t)parts[2] / 1000000;
    return true;
}

static bool read_field(const ps_proto_field *f, ps_h2_receive *out) {
    if (f->is_number != (f->number == 4 || f->number == 6)) return false;
    switch (f->number) {
    case 1:
        return ps_proto_resource(f, &out->group);
    case 2:
        return read_queue(f, out);
    case 3:
        return read_filter(f, out);
    case 4:
        out->batch = f->value < INT32_MAX ? (int32_t)f->value : 0;
        return true;
    case 5:
        return read_duration(f, &out->invisible_ms);
    case 6:
        out->renews = f->value != 0;
        return true;
    case 7:
        return read_duration(f, &out->poll_ms);
    default:
        return f->number == 8 && ps_proto_text(f, &out->attempt);
    }
}

bool ps_h2_receive_read(const uint8_t *data, int64_t len, ps_h2_receive *out) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    ps_proto_field f;
    *out = (ps_h2_receive){.poll_ms = -1};
    while (r.at < r.end)
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || !read_field(&f, out)) return false;
    return out->group.len > 0 && out->topic.len > 0 && out->batch > 0;
}

int64_t ps_h2_receive_end(int64_t now_ms, uint8_t to[PS_H2_RECEIVED_MAX]) {
    uint8_t time[2 + 2 * PS_PROTO_VARINT_MAX], *at = time;
    *at++ = 1 << 3;
    at = ps_proto_put_varint(at, (uint64_t)(now_ms / 1000));
    if (now_ms % 1000 > 0) {
        *at++ = 2 << 3;
        at = ps_proto_put_varint(at, (uint64_t)(now_ms % 1000) * 1000000);
    }
    return ps_proto_put_bytes(to, 3, time, at - time) - to;
}
