/* See proto.h. */
#include "messaging/proto.h"

#include <string.h>

#include "format/utf8.h"

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

/* The kind of message in a field; PS_PROTO_PACKED; or -2. */
static int32_t kind_of(const int32_t *shapes, int32_t kind, uint64_t number) {
    for (int32_t i = shapes[kind]; i < shapes[kind + 1]; i += 2)
        if ((uint64_t)shapes[i] == number) return shapes[i + 1];
    return -2;
}

static bool skip_field(ps_proto_reader *r, uint64_t key, uint64_t *len) {
    uint64_t ignored;
    *len = 0;
    switch (key & 7) {
    case 0:
        return read_varint(r, &ignored);
    case 1:
        *len = 8;
        break;
    case 2:
        if (!read_varint(r, len)) return false;
        break;
    case 5:
        *len = 4;
        break;
    default: /* the ends of groups */
        return true;
    }
    if (*len > (uint64_t)(r->end - r->at)) return false;
    r->at += *len;
    return true;
}

#define DEEPEST 16

int64_t ps_proto_count(const uint8_t *data, int64_t len, const int32_t *shapes, int32_t kind,
                       int64_t most) {
    struct {
        ps_proto_reader r;
        int32_t kind;
    } all[DEEPEST] = {{ps_proto_reader_of(data, len), kind}};
    int64_t count = 0;
    for (int deep = 0; deep >= 0 && count <= most;) {
        ps_proto_reader *r = &all[deep].r;
        uint64_t key, size;
        if (r->at >= r->end) {
            deep--;
            continue;
        }
        if (!read_varint(r, &key) || !skip_field(r, key, &size)) return count;
        count++;
        int32_t inner = (key & 7) == 2 ? kind_of(shapes, all[deep].kind, key >> 3) : -2;
        if (inner == PS_PROTO_PACKED) count += (int64_t)size;
        if (inner < 0 || deep + 1 == DEEPEST) continue;
        const uint8_t *from = r->at - size;
        all[++deep].r = ps_proto_reader_of(from, (int64_t)size);
        all[deep].kind = inner;
    }
    return count;
}

/* Of a character of 2 or 3 bytes. */
static bool is_wide_blank(const uint8_t *p, int64_t len) {
    if (len == 2) return p[0] == 0xC2 && p[1] == 0xA0;
    if (len != 3) return false;
    uint32_t c = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
    return c == 0xE19A80 || (c >= 0xE28080 && c <= 0xE2808A) || c == 0xE280A8 || c == 0xE280A9 ||
           c == 0xE280AF || c == 0xE2819F || c == 0xE38080;
}

bool ps_proto_text(const ps_proto_field *f, ps_h2_text *out) {
    if (f->is_number || f->len > PS_H2_TEXT_MAX) return false;
    for (const uint8_t *p = f->data, *end = p + f->len; p < end;) {
        bool good = *p >= ' ' && *p != 0x7F;
        int64_t len = *p < 0x80 ? 1 : ps_utf8_step(p, end, &good);
        if (!good || (p[0] == 0xC2 && p[1] < 0xA0)) return false;
        p += len;
    }
    *out = (ps_h2_text){f->len > 0 ? (const char *)f->data : NULL, (int32_t)f->len};
    return true;
}

bool ps_proto_blank(ps_h2_text text) {
    const uint8_t *p = (const uint8_t *)text.data, *end = p + text.len;
    while (text.len > 0 && p < end) {
        bool good;
        int64_t len = *p < 0x80 ? 1 : ps_utf8_step(p, end, &good);
        if (len == 1 ? *p != ' ' : !is_wide_blank(p, len)) return false;
        p += len;
    }
    return true;
}

bool ps_proto_resource(const ps_proto_field *in, ps_h2_text *name) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2 || f.is_number ||
            !(f.number == 2 ? ps_proto_text(&f, name) : ps_utf8_valid(f.data, f.len)))
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
