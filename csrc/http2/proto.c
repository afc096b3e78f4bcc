/* See proto.h. */
#include "http2/proto.h"

#include <string.h>

static bool read_varint(ps_proto_reader *r, uint64_t *out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && r->at < r->end; shift += 7) {
        uint8_t byte = *r->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

bool ps_proto_next(ps_proto_reader *r, ps_proto_field *out) {
    uint64_t key, len;
    if (!read_varint(r, &key) || key >> 3 == 0 || key >> 3 > 31) return false;
    *out = (ps_proto_field){.number = (uint32_t)(key >> 3)};
    if ((key & 7) == 0) {
        out->is_number = true;
        return read_varint(r, &out->value);
    }
    if ((key & 7) != 2 || !read_varint(r, &len) || len > (uint64_t)(r->end - r->at)) return false;
    out->data = r->at;
    out->len = (int64_t)len;
    r->at += len;
    return true;
}

bool ps_proto_text(const ps_proto_field *f, ps_h2_text *out) {
    bool blank = true;
    if (f->is_number || f->len > PS_H2_TEXT_MAX) return false;
    for (int64_t i = 0; i < f->len; i++) {
        if (f->data[i] < ' ' || f->data[i] > '~') return false;
        blank &= f->data[i] == ' ';
    }
    *out = (ps_h2_text){f->len > 0 ? (const char *)f->data : NULL, (int32_t)f->len};
    return f->len == 0 || !blank;
}

bool ps_proto_resource(const ps_proto_field *in, ps_h2_text *name) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    while (r.at < r.end) {
        ps_h2_text ignored;
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2 ||
            !ps_proto_text(&f, f.number == 2 ? name : &ignored))
            return false;
    }
    return true;
}

uint8_t *ps_proto_put_varint(uint8_t *to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *to++ = (uint8_t)(value | 0x80);
    *to++ = (uint8_t)value;
    return to;
}

uint8_t *ps_proto_put_bytes(uint8_t *to, uint8_t number, const void *data, int64_t len) {
    *to++ = (uint8_t)(number << 3 | 2);
    to = ps_proto_put_varint(to, (uint64_t)len);
    memcpy(to, data, (size_t)len);
    return to + len;
}

uint8_t *ps_proto_put_ok(uint8_t *to, uint8_t number) {
    uint8_t status[PS_PROTO_OK_MAX], *at = status;
    *at++ = 1 << 3;
    at = ps_proto_put_varint(at, PS_GRPC_CODE_OK);
    at = ps_proto_put_bytes(at, 2, "OK", 2);
    return ps_proto_put_bytes(to, number, status, at - status);
}
