/* See message.h. Field numbers: broker/grpc/messaging.proto. */
#include "http2/message.h"

#include <stdio.h>
#include <string.h>

#define KEYS_MAX 64
#define ID_MAX 1024
#define SECONDS_MAX ((int64_t)1 << 40)
#define TYPE_NORMAL 1
#define ENCODING_IDENTITY 1
#define STATUS_OK 20000

typedef struct field {
    uint32_t number;
    bool is_number;
    uint64_t value;
    const uint8_t *data;
    int64_t len;
} field;

typedef struct reader { /* of one message of protobuf */
    const uint8_t *at, *end;
    uint32_t seen; /* a bit for each number: what comes twice is not plain */
} reader;

static reader reader_of(const uint8_t *data, int64_t len) {
    return (reader){data, data + len, 0};
}

static bool read_varint(reader *r, uint64_t *out) {
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

/* False: it is not plain. */
static bool read_field(reader *r, field *out) {
    uint64_t key, len;
    if (!read_varint(r, &key) || key >> 3 == 0 || key >> 3 > 31) return false;
    *out = (field){.number = (uint32_t)(key >> 3)};
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

static bool is_first(reader *r, const field *f) {
    uint32_t bit = 1u << f->number;
    bool first = !(r->seen & bit);
    r->seen |= bit;
    return first;
}

/* A text of printable ASCII, and not of blanks alone. An empty one is none. */
static bool take_text(const field *f, ps_h2_text *out) {
    bool blank = true;
    if (f->is_number || f->len > PS_H2_PROPERTIES_MAX) return false;
    for (int64_t i = 0; i < f->len; i++) {
        if (f->data[i] < ' ' || f->data[i] > '~') return false;
        blank &= f->data[i] == ' ';
    }
    *out = (ps_h2_text){f->len > 0 ? (const char *)f->data : NULL, (int32_t)f->len};
    return f->len == 0 || !blank;
}

typedef struct draft {
    ps_h2_text topic, id, tag, host, trace, keys[KEYS_MAX];
    int32_t key_count;
    int64_t texts; /* bytes of tag and keys */
    uint64_t seconds, nanos, attempt;
    bool normal;
    const uint8_t *body;
    int64_t body_len;
} draft;

static bool read_topic(const field *in, draft *d) {
    reader r = reader_of(in->data, in->len);
    field f;
    while (r.at < r.end) {
        ps_h2_text ignored;
        if (!read_field(&r, &f) || !is_first(&r, &f) || f.number > 2 ||
            !take_text(&f, f.number == 2 ? &d->topic : &ignored))
            return false;
    }
    return true;
}

static bool read_born(const field *in, draft *d) {
    reader r = reader_of(in->data, in->len);
    field f;
    while (r.at < r.end) {
        if (!read_field(&r, &f) || !is_first(&r, &f) || !f.is_number || f.number > 2) return false;
        *(f.number == 1 ? &d->seconds : &d->nanos) = f.value;
    }
    return d->seconds > 0 && d->seconds < (uint64_t)SECONDS_MAX && d->nanos < 1000000000;
}

static bool read_key(const field *f, draft *d) {
    if (d->key_count == KEYS_MAX || !take_text(f, &d->keys[d->key_count])) return false;
    d->texts += f->len;
    return d->keys[d->key_count++].len > 0;
}

/* Nobody looks at it, but a malformed one is no message. */
static bool read_digest(const field *in) {
    reader r = reader_of(in->data, in->len);
    ps_h2_text ignored;
    field f;
    while (r.at < r.end) {
        if (!read_field(&r, &f) || !is_first(&r, &f) || f.number > 2) return false;
        if (f.number == 1 ? !f.is_number : !take_text(&f, &ignored)) return false;
    }
    return true;
}

static bool read_system_field(const field *f, draft *d) {
    ps_h2_text ignored;
    switch (f->number) {
    case 1:
        d->texts += f->len;
        return take_text(f, &d->tag) && (d->tag.len == 0 || !memchr(d->tag.data, '|', f->len));
    case 3:
        return take_text(f, &d->id);
    case 4:
        return !f->is_number && read_digest(f);
    case 10: /* store host */
        return take_text(f, &ignored);
    case 5:
        return f->is_number && f->value <= ENCODING_IDENTITY;
    case 6:
        d->normal = f->value == TYPE_NORMAL;
        return f->is_number;
    case 7:
        return !f->is_number && read_born(f, d);
    case 8:
        return take_text(f, &d->host);
    case 13: /* queue id */
        return f->is_number;
    case 16:
        d->attempt = f->value;
        return f->is_number && f->value <= INT32_MAX;
    case 18:
        return take_text(f, &d->trace);
    default:
        return false;
    }
}

static bool read_system(const field *in, draft *d) {
    reader r = reader_of(in->data, in->len);
    field f;
    while (r.at < r.end) {
        if (!read_field(&r, &f)) return false;
        bool plain = f.number == 2 ? !f.is_number && read_key(&f, d)
                                   : is_first(&r, &f) && read_system_field(&f, d);
        if (!plain) return false;
    }
    return true;
}

static bool read_message(const uint8_t *data, int64_t len, draft *d) {
    reader r = reader_of(data, len);
    field f;
    while (r.at < r.end) {
        if (!read_field(&r, &f) || !is_first(&r, &f) || f.is_number) return false;
        bool plain = f.number == 4 || (f.number == 1 && read_topic(&f, d)) ||
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
    reader r = reader_of(data, len);
    draft d = {0};
    field f;
    if (!read_field(&r, &f) || f.number != 1 || f.is_number || r.at != r.end) return false;
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

static uint8_t *put_varint(uint8_t *to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *to++ = (uint8_t)(value | 0x80);
    *to++ = (uint8_t)value;
    return to;
}

static uint8_t *put_bytes(uint8_t *to, uint8_t number, const void *data, int64_t len) {
    *to++ = (uint8_t)(number << 3 | 2);
    to = put_varint(to, (uint64_t)len);
    memcpy(to, data, (size_t)len);
    return to + len;
}

int64_t ps_h2_message_reply(ps_h2_text id, int64_t offset, uint8_t to[PS_H2_REPLY_MAX]) {
    uint8_t status[16], entry[PS_H2_REPLY_MAX];
    uint8_t *at = status;
    if (id.len > ID_MAX || offset < 0) return 0;
    *at++ = 1 << 3;
    at = put_varint(at, STATUS_OK);
    int64_t status_len = put_bytes(at, 2, "OK", 2) - status;
    at = put_bytes(entry, 1, status, status_len);
    at = put_bytes(at, 2, id.data, id.len);
    at = put_bytes(at, 3, id.data, id.len); /* no transaction: its id is the message's */
    if (offset > 0) {
        *at++ = 4 << 3;
        at = put_varint(at, (uint64_t)offset);
    }
    int64_t entry_len = at - entry;
    at = put_bytes(to, 1, status, status_len);
    return put_bytes(at, 2, entry, entry_len) - to;
}
