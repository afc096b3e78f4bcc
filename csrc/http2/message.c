/* See message.h. Field numbers: broker/grpc/messaging.proto. */
#include "http2/message.h"

#include <stdio.h>
#include <string.h>

#define KEYS_MAX 64
#define ID_MAX 1024
#define SECONDS_MAX ((int64_t)1 << 40)
#define TYPE_NORMAL 1
#define ENCODING_IDENTITY 1

typedef struct draft {
    ps_h2_text topic, id, tag, host, trace, keys[KEYS_MAX];
    int32_t key_count;
    int64_t texts; /* bytes of tag and keys */
    uint64_t seconds, nanos, attempt;
    bool normal;
    const uint8_t *body;
    int64_t body_len;
} draft;

static bool read_born(const ps_proto_field *in, draft *d) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || !f.is_number || f.number > 2)
            return false;
        *(f.number == 1 ? &d->seconds : &d->nanos) = f.value;
    }
    return d->seconds > 0 && d->seconds < (uint64_t)SECONDS_MAX && d->nanos < 1000000000;
}

static bool read_key(const ps_proto_field *f, draft *d) {
    if (d->key_count == KEYS_MAX || !ps_proto_text(f, &d->keys[d->key_count])) return false;
    d->texts += f->len;
    return d->keys[d->key_count++].len > 0;
}

/* Nobody looks at it, but a malformed one is no message. */
static bool read_digest(const ps_proto_field *in) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_h2_text ignored;
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2) return false;
        if (f.number == 1 ? !f.is_number : !ps_proto_text(&f, &ignored)) return false;
    }
    return true;
}

static bool read_system_field(const ps_proto_field *f, draft *d) {
    ps_h2_text ignored;
    switch (f->number) {
    case 1:
        d->texts += f->len;
        return ps_proto_text(f, &d->tag) && (d->tag.len == 0 || !memchr(d->tag.data, '|', f->len));
    case 3:
        return ps_proto_text(f, &d->id);
    case 4:
        return !f->is_number && read_digest(f);
    case 10: /* store host */
        return ps_proto_text(f, &ignored);
    case 5:
        return f->is_number && f->value <= ENCODING_IDENTITY;
    case 6:
        d->normal = f->value == TYPE_NORMAL;
        return f->is_number;
    case 7:
        return !f->is_number && read_born(f, d);
    case 8:
        return ps_proto_text(f, &d->host);
    case 13: /* queue id */
        return f->is_number;
    case 16:
        d->attempt = f->value;
        return f->is_number && f->value <= INT32_MAX;
    case 18:
        return ps_proto_text(f, &d->trace);
    default:
        return false;
    }
}

static bool read_system(const ps_proto_field *in, draft *d) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f)) return false;
        bool plain = f.number == 2 ? !f.is_number && read_key(&f, d)
                                   : ps_proto_first(&r, &f) && read_system_field(&f, d);
        if (!plain) return false;
    }
    return true;
}

static bool read_message(const uint8_t *data, int64_t len, draft *d) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.is_number) return false;
        bool plain = f.number == 4 || (f.number == 1 && ps_proto_resource(&f, &d->topic)) ||
                     (f.number == 3 && read_system(&f, d));
        if (!plain) return false;
        if (f.number == 4) {
            d->body = f.data;
            d->body_len = f.len;
        }
    }
    return true;
}

/* ---- properties ---- */

static bool put(ps_h2_message *m, const char *text, int32_t len) {
    if (len > PS_H2_PROPERTIES_MAX - m->properties_len) return false;
    memcpy(m->properties + m->properties_len, text, (size_t)len);
    m->properties_len += len;
    return true;
}

static bool put_property(ps_h2_message *m, const char *name, ps_h2_text value) {
    return put(m, name, (int32_t)strlen(name)) && put(m, "\x01", 1) &&
           put(m, value.data, value.len) && put(m, "\x02", 1);
}

static bool put_number(ps_h2_message *m, const char *name, int64_t value) {
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)value);
    return put_property(m, name, (ps_h2_text){digits, len});
}

static bool put_keys(ps_h2_message *m, const draft *d) {
    bool fits = put(m, "KEYS\x01", 5);
    for (int32_t i = 0; i < d->key_count && fits; i++)
        fits = (i == 0 || put(m, " ", 1)) && put(m, d->keys[i].data, d->keys[i].len);
    return fits && put(m, "\x02", 1);
}

static bool put_all(ps_h2_message *m, const draft *d, ps_h2_text host) {
    return put_property(m, "UNIQ_KEY", d->id) &&
           (d->tag.len == 0 || put_property(m, "TAGS", d->tag)) &&
           (d->key_count == 0 || put_keys(m, d)) &&
           (d->trace.len == 0 || put_property(m, "TRACE_CONTEXT", d->trace)) &&
           put_property(m, "PGROUP", d->topic) &&
           put_number(m, "RECONSUME_TIME", (int64_t)d->attempt) &&
           put_property(m, "__BORNHOST", d->host.len > 0 ? d->host : host) &&
           put_number(m, "BORN_TIMESTAMP", m->born_ms);
}

bool ps_h2_message_read(const uint8_t *data, int64_t len, int64_t body_max, int64_t texts_max,
                        ps_h2_text host, ps_h2_message *out) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    draft d = {0};
    ps_proto_field f;
    if (!ps_proto_next(&r, &f) || f.number != 1 || f.is_number || r.at != r.end) return false;
    if (!read_message(f.data, f.len, &d) || !d.normal || d.topic.len == 0 || d.id.len == 0 ||
        d.body_len == 0 || d.body_len > body_max || d.texts > texts_max || d.seconds == 0)
        return false;
    out->topic = d.topic;
    out->id = d.id;
    out->body = d.body;
    out->body_len = d.body_len;
    out->born_ms = (int64_t)(d.seconds * 1000 + d.nanos / 1000000);
    out->properties_len = 0;
    return put_all(out, &d, host);
}

/* ---- the reply ---- */

int64_t ps_h2_message_reply(ps_h2_text id, int64_t offset, uint8_t to[PS_H2_REPLY_MAX]) {
    uint8_t entry[PS_H2_REPLY_MAX];
    if (id.len > ID_MAX || offset < 0) return 0;
    uint8_t *at = ps_proto_put_ok(entry, 1);
    at = ps_proto_put_bytes(at, 2, id.data, id.len);
    at = ps_proto_put_bytes(at, 3, id.data, id.len); /* no transaction: its id is the message's */
    if (offset > 0) {
        *at++ = 4 << 3;
        at = ps_proto_put_varint(at, (uint64_t)offset);
    }
    return ps_proto_put_bytes(ps_proto_put_ok(to, 1), 2, entry, at - entry) - to;
}
