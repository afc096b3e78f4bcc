/* See message.h. Field numbers: broker/grpc/messaging.proto. */
#include "messaging/message.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "format/litename.h"
#include "format/property.h"
#include "format/utf8.h"

#define USER_MAX 1024
#define SECONDS_MAX ((int64_t)1 << 40)
#define ENCODING_GZIP 2

typedef struct moment { /* a Timestamp or a Duration */
    int64_t seconds;
    int32_t nanos; /* of any size */
} moment;

typedef struct user_property {
    ps_h2_text name, value;
} user_property;

typedef struct draft {
    ps_h2_text topic, id, tag, host, trace, group, lite;
    int32_t user_count;
    int64_t texts; /* bytes of tag, keys and the user's properties */
    moment born, recovery, delivery;
    uint64_t type, encoding;
    int32_t attempt;
    bool recovers; /* it says within which time */
    bool delayed;
    bool ranked; /* it has a priority */
    int32_t priority;
    const uint8_t *body;
    int64_t body_len;
    ps_proto_field system;        /* where the keys are */
    user_property user[USER_MAX]; /* user_count of them are set */
} draft;

/* Not before 1970. */
static bool read_moment(const ps_proto_field *in, moment *out) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    if (in->is_number) return false;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || !f.is_number || f.number > 2)
            return false;
        if (f.number == 1)
            out->seconds = (int64_t)f.value;
        else
            out->nanos = (int32_t)f.value;
    }
    return out->seconds >= 0 && out->seconds < SECONDS_MAX;
}

static int64_t in_ms(const moment *m) {
    return m->seconds * 1000 + m->nanos / 1000000 - (m->nanos % 1000000 < 0);
}

static bool read_key(const ps_proto_field *f, draft *d) {
    ps_h2_text key;
    d->texts += f->len;
    return ps_proto_text(f, &key) && !ps_proto_blank(key);
}

static bool is_utf8(const ps_proto_field *f) {
    return !f->is_number && ps_utf8_valid(f->data, f->len);
}

/* Nobody looks at it, but a malformed one is not a message. */
static bool read_digest(const ps_proto_field *in) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2) return false;
        if (f.number == 1 ? !f.is_number : !is_utf8(&f)) return false;
    }
    return true;
}

/* How long it may be, is_within says; an empty one is not a lite topic. */
static bool may_be_lite(ps_h2_text t) {
    return t.len == 0 || ps_lite_name_problem((const uint8_t *)t.data, t.len, t.len) == 0;
}

static bool read_system_field(const ps_proto_field *f, draft *d) {
    moment ignored = {0, 0};
    switch (f->number) {
    case 1:
        d->texts += f->len;
        return ps_proto_text(f, &d->tag) &&
               (d->tag.len == 0 ||
                (!ps_proto_blank(d->tag) && !memchr(d->tag.data, '|', (size_t)d->tag.len)));
    case 3:
        return ps_proto_text(f, &d->id);
    case 4:
        return !f->is_number && read_digest(f);
    case 10: /* store host */
    case 12: /* receipt handle */
        return is_utf8(f);
    case 9:  /* store time */
    case 15: /* invisible duration */
        return read_moment(f, &ignored);
    case 5:
        d->encoding = f->value;
        return f->is_number;
    case 6:
        d->type = f->value;
        return f->is_number;
    case 7:
        return read_moment(f, &d->born);
    case 8:
        return ps_proto_text(f, &d->host);
    case 11:
        d->delayed = true;
        return read_moment(f, &d->delivery);
    case 13: /* queue id */
    case 14: /* queue offset */
        return f->is_number;
    case 16:
        d->attempt = (int32_t)f->value;
        return f->is_number;
    case 17:
        return ps_proto_text(f, &d->group) && (d->group.len == 0 || !ps_proto_blank(d->group));
    case 18:
        return ps_proto_text(f, &d->trace);
    case 19:
        d->recovers = true;
        return read_moment(f, &d->recovery);
    case 21:
        return ps_proto_text(f, &d->lite) && may_be_lite(d->lite);
    case 22:
        d->ranked = true;
        d->priority = (int32_t)f->value;
        return f->is_number && d->priority >= 0;
    default:
        return false;
    }
}

static bool read_system(const ps_proto_field *in, draft *d) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    d->system = *in;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f)) return false;
        bool plain = f.number == 2 ? !f.is_number && read_key(&f, d)
                                   : ps_proto_first(&r, &f) && read_system_field(&f, d);
        if (!plain) return false;
    }
    return true;
}

/* An entry of a map: its key and its value. */
static bool read_user(const ps_proto_field *in, const ps_h2_limits *limits, draft *d) {
    ps_proto_reader r = ps_proto_reader_of(in->data, in->len);
    ps_proto_field f;
    if (d->user_count == USER_MAX || d->user_count == limits->user_max) return false;
    user_property *p = &d->user[d->user_count++];
    *p = (user_property){0};
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || f.number > 2 ||
            !ps_proto_text(&f, f.number == 1 ? &p->name : &p->value))
            return false;
        d->texts += f.len;
    }
    if (p->name.len == 0 ||
        (p->name.len >= 6 && memcmp(p->name.data, "TIMER_", 6) == 0) ||
        ps_h2_names_have(&limits->reserved, p->name.data, p->name.len))
        return false;
    for (const user_property *other = d->user; other < p; other++)
        if (other->name.len == p->name.len &&
            memcmp(other->name.data, p->name.data, (size_t)p->name.len) == 0)
            return false;
    return true;
}

static bool read_message(const uint8_t *data, int64_t len, const ps_h2_limits *limits, draft *d) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    ps_proto_field f;
    while (r.at < r.end) {
        if (!ps_proto_next(&r, &f) || f.is_number) return false;
        if (f.number == 2) {
            if (!read_user(&f, limits, d)) return false;
            continue;
        }
        bool plain = ps_proto_first(&r, &f) &&
                     (f.number == 4 || (f.number == 1 && ps_proto_resource(&f, &d->topic)) ||
                      (f.number == 3 && read_system(&f, d)));
        if (!plain) return false;
        if (f.number == 4) {
            d->body = f.data;
            d->body_len = f.len;
        }
    }
    return true;
}

static bool is_within(const draft *d, const ps_h2_limits *limits) {
    return d->topic.len > 0 && !ps_proto_blank(d->id) && d->body_len >= limits->body_min &&
           d->body_len <= limits->body_max && d->texts <= limits->texts_max &&
           d->group.len < limits->group_max && d->lite.len <= limits->lite_max &&
           (!d->delayed || (d->type != PS_TYPE_TRANSACTION &&
                            in_ms(&d->delivery) <= ps_now_ms() + limits->delay_max_ms)) &&
           (!d->recovers || d->recovery.seconds <= limits->recovery_max_s);
}

/* ---- properties ---- */

/* Room for so many bytes more; NULL: they do not fit. */
static uint8_t *room_for(ps_h2_message *m, int64_t len) {
    if (len > PS_PROPERTIES_MAX - m->properties_len) return NULL;
    uint8_t *to = (uint8_t *)m->properties + m->properties_len;
    m->properties_len += (int32_t)len;
    return to;
}

static bool put_pair(ps_h2_message *m, ps_h2_text name, ps_h2_text value) {
    uint8_t *to = room_for(m, (int64_t)name.len + value.len + PS_PROPERTY_FIXED);
    if (to == NULL) return false;
    to = ps_bytes_put(ps_property_begin(to, name.data, name.len), value.data, value.len);
    ps_property_end(to);
    return true;
}

static bool put_property(ps_h2_message *m, const char *name, ps_h2_text value) {
    return put_pair(m, (ps_h2_text){name, (int32_t)strlen(name)}, value);
}

static bool put_number(ps_h2_message *m, const char *name, int64_t value) {
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)value);
    return put_property(m, name, (ps_h2_text){digits, len});
}

static bool put_keys(ps_h2_message *m, const draft *d) {
    static const char name[] = "KEYS";
    int32_t begin = m->properties_len;
    ps_proto_reader r = ps_proto_reader_of(d->system.data, d->system.len);
    ps_proto_field f;
    while (r.at < r.end && ps_proto_next(&r, &f)) {
        if (f.number != 2) continue;
        bool first = m->properties_len == begin;
        uint8_t *to = room_for(m, f.len + (first ? (int64_t)sizeof name : 1));
        if (to == NULL) return false;
        if (first) to = ps_property_begin(to, name, sizeof name - 1);
        else *to++ = ' ';
        ps_bytes_put(to, f.data, f.len);
    }
    if (m->properties_len == begin) return true;
    uint8_t *to = room_for(m, 1);
    if (to != NULL) ps_property_end(to);
    return to != NULL;
}

static bool put_user(ps_h2_message *m, const draft *d) {
    bool fits = true;
    for (const user_property *p = d->user; p < d->user + d->user_count && fits; p++)
        fits = put_pair(m, p->name, p->value);
    return fits;
}

static bool put_half(ps_h2_message *m, const draft *d) {
    return put_property(m, "TRAN_MSG", (ps_h2_text){"true", 4}) &&
           (!d->recovers || put_number(m, "CHECK_IMMUNITY_TIME_IN_SECONDS",
                                       d->recovery.seconds));
}

static bool put_all(ps_h2_message *m, const draft *d, ps_h2_text host) {
    return put_property(m, "UNIQ_KEY", d->id) &&
           (d->tag.len == 0 || put_property(m, "TAGS", d->tag)) &&
           put_keys(m, d) && put_user(m, d) &&
           (d->group.len == 0 || put_property(m, "__SHARDINGKEY", d->group)) &&
           (d->trace.len == 0 || put_property(m, "TRACE_CONTEXT", d->trace)) &&
           put_property(m, "PGROUP", d->topic) &&
           put_number(m, "RECONSUME_TIME", d->attempt) &&
           put_property(m, "__BORNHOST", d->host.len > 0 ? d->host : host) &&
           put_number(m, "BORN_TIMESTAMP", m->born_ms) &&
           (!d->delayed || put_number(m, "TIMER_DELIVER_MS", in_ms(&d->delivery))) &&
           (!d->ranked || put_number(m, PS_PROPERTY_PRIORITY, d->priority)) &&
           (d->lite.len == 0 || put_property(m, PS_PROPERTY_LITE_TOPIC, d->lite)) &&
           (m->kind != PS_TYPE_TRANSACTION || put_half(m, d));
}

bool ps_h2_message_read(const uint8_t *data, int64_t len, const ps_h2_limits *limits,
                        ps_h2_text host, ps_h2_message *out) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    ps_proto_field f;
    draft d;
    memset(&d, 0, offsetof(draft, user));
    if (!ps_proto_next(&r, &f) || f.number != 1 || f.is_number || r.at != r.end) return false;
    if (!read_message(f.data, f.len, limits, &d) || !is_within(&d, limits))
        return false;
    out->topic = d.topic;
    out->id = d.id;
    out->key = d.group.len > 0 ? d.group : d.lite;
    out->kind = d.type == PS_TYPE_TRANSACTION ? PS_TYPE_TRANSACTION
                : d.delayed                 ? PS_TYPE_DELAY
                : d.group.len > 0           ? PS_TYPE_FIFO
                : d.ranked                  ? PS_TYPE_PRIORITY
                : d.lite.len > 0            ? PS_TYPE_LITE
                                            : PS_TYPE_NORMAL;
    out->zipped = d.encoding == ENCODING_GZIP;
    out->body = d.body;
    out->body_len = d.body_len;
    out->born_ms = in_ms(&d.born);
    if (out->born_ms == 0) out->born_ms = ps_now_ms();
    out->properties_len = 0;
    return put_all(out, &d, host);
}

/* ---- the reply ---- */

int64_t ps_h2_message_reply(ps_h2_text id, ps_h2_text transaction, ps_h2_text recall,
                            int64_t offset, uint8_t to[PS_H2_REPLY_MAX]) {
    uint8_t entry[PS_H2_REPLY_MAX];
    uint8_t *at = ps_proto_put_ok(entry, 1);
    at = ps_proto_put_bytes(at, 2, id.data, id.len);
    at = ps_proto_put_bytes(at, 3, transaction.data, transaction.len);
    if (offset > 0) {
        *at++ = 4 << 3;
        at = ps_proto_put_varint(at, (uint64_t)offset);
    }
    if (recall.len > 0) at = ps_proto_put_bytes(at, 5, recall.data, recall.len);
    return ps_proto_put_bytes(ps_proto_put_ok(to, 1), 2, entry, at - entry) - to;
}
