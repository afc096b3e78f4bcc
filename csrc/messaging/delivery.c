/* See delivery.h. Field numbers: broker/grpc/messaging.proto. The reply is written from its end to
 * its beginning, so that the length of each part is known when it is put before that part. */
#include "messaging/delivery.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/md5.h"
#include "format/messagetype.h"
#include "format/record.h"
#include "format/utf8.h"
#include "messaging/proto.h"

#define HOST_MAX 64
#define DIGITS_MAX 14   /* of ms that a Timestamp can hold */
#define FIXED_ROOM 1024 /* all that does not grow with the texts */
/* Bytes for each of the properties: what is ill-formed grows by three, and is written once for us
 * and twice for clients, with its lengths. */
#define PROPERTY_ROOM 16

enum { DIGEST_MD5 = 2 };

/* ---- properties ---- */

typedef struct source { /* of a reply */
    ps_record r;
    const uint8_t *properties; /* UTF-8 */
    int32_t properties_len;
    const ps_h2_delivery *d;
} source;

/* The last one of this name counts. NULL: there is none. */
static const ps_property *find_property(const source *s, const char *name, ps_property *out) {
    return ps_property_find(s->properties, s->properties_len, name, (int32_t)strlen(name), out)
               ? out
               : NULL;
}

static bool has_property(const source *s, const char *name) {
    ps_property p;
    return find_property(s, name, &p) != NULL;
}

static bool is_blank(uint8_t c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
}

/* A property as a number of ms; any other text counts as absent. */
static int64_t number_of(const ps_property *p, int64_t otherwise) {
    int64_t value = 0;
    if (p == NULL || p->value_len > DIGITS_MAX) return otherwise;
    for (int32_t i = 0; i < p->value_len; i++) {
        if (p->value[i] < '0' || p->value[i] > '9') return otherwise;
        value = value * 10 + (p->value[i] - '0');
    }
    return value;
}

/* ---- writing, from the end ---- */

typedef struct writer {
    uint8_t *at;
} writer;

static void put_bytes(writer *w, const void *data, int64_t len) {
    w->at -= len;
    if (len > 0) memcpy(w->at, data, (size_t)len);
}

static void put_varint(writer *w, uint64_t value) {
    uint8_t bytes[PS_PROTO_VARINT_MAX];
    put_bytes(w, bytes, ps_proto_put_varint(bytes, value) - bytes);
}

static void put_number(writer *w, uint32_t field, uint64_t value) {
    put_varint(w, value);
    put_varint(w, field << 3);
}

/* What was written since `end` was the beginning becomes a part. */
static void close_part(writer *w, uint32_t field, const uint8_t *end) {
    put_varint(w, (uint64_t)(end - w->at));
    put_varint(w, field << 3 | 2);
}

static void put_text(writer *w, uint32_t field, const void *data, int64_t len) {
    const uint8_t *end = w->at;
    put_bytes(w, data, len);
    close_part(w, field, end);
}

static void put_value(writer *w, uint32_t field, const source *s, const char *name) {
    ps_property p;
    if (find_property(s, name, &p) != NULL) put_text(w, field, p.value, p.value_len);
}

/* The words of KEYS. */
static void put_words(writer *w, uint32_t field, const source *s) {
    ps_property p = {.value_len = 0};
    find_property(s, "KEYS", &p);
    for (int32_t end = p.value_len, from; end > 0; end = from) {
        for (from = end; from > 0 && !is_blank(p.value[from - 1]);) from--;
        if (from < end) put_text(w, field, p.value + from, end - from);
        while (from > 0 && is_blank(p.value[from - 1])) from--;
    }
}

static void put_time(writer *w, uint32_t field, int64_t ms) {
    const uint8_t *end = w->at;
    int64_t rest = (ms % 1000 + 1000) % 1000, seconds = ms / 1000 - (ms % 1000 < 0);
    if (rest > 0) put_number(w, 2, (uint64_t)rest * 1000000);
    if (seconds != 0) put_number(w, 1, (uint64_t)seconds);
    close_part(w, field, end);
}

static void put_digest(writer *w, const uint8_t *body, int64_t len) {
    static const char hex[] = "0123456789ABCDEF";
    uint8_t sum[PS_MD5_LEN];
    char digits[2 * PS_MD5_LEN];
    const uint8_t *end = w->at;
    ps_md5(body, len, sum);
    for (int i = 0; i < PS_MD5_LEN; i++) {
        digits[2 * i] = hex[sum[i] >> 4];
        digits[2 * i + 1] = hex[sum[i] & 15];
    }
    put_text(w, 2, digits, sizeof digits);
    put_number(w, 1, DIGEST_MD5);
    close_part(w, 4, end);
}

/* An address of 4 or 16 bytes, and a port. */
static void put_host(writer *w, uint32_t field, const uint8_t *host, int32_t len) {
    char text[HOST_MAX], address[INET6_ADDRSTRLEN];
    bool wide = len == 20;
    inet_ntop(wide ? AF_INET6 : AF_INET, host, address, sizeof address);
    int size = snprintf(text, sizeof text, wide ? "[%s]:%u" : "%s:%u", address,
                        be32_get(host + len - 4));
    put_text(w, field, text, size);
}

static void put_id(writer *w, const source *s) {
    const ps_record *r = &s->r;
    char id[57];
    if (has_property(s, "UNIQ_KEY")) {
        put_value(w, 3, s, "UNIQ_KEY");
        return;
    }
    int len = ps_offset_msg_id(r->store_host, r->store_host_len, r->physical_offset, id);
    put_text(w, 3, id, len);
}

static void put_system(writer *w, const source *s) {
    const ps_record *r = &s->r;
    const ps_h2_delivery *d = s->d;
    const uint8_t *end = w->at;
    ps_property p;
    const char *at = has_property(s, "TIMER_DELIVER_MS") ? "TIMER_DELIVER_MS" : "TIMER_OUT_MS";
    int64_t deliver_ms = number_of(find_property(s, at, &p), 0);
    const ps_property *rank = find_property(s, PS_PROPERTY_PRIORITY, &p);
    int32_t priority = rank != NULL ? ps_priority_of(rank->value, rank->value_len) : -1;
    if (priority >= 0) put_number(w, 22, (uint64_t)priority);
    put_value(w, 21, s, PS_PROPERTY_LITE_TOPIC);
    put_value(w, 18, s, "TRACE_CONTEXT");
    put_value(w, 17, s, "__SHARDINGKEY");
    put_number(w, 16, (uint64_t)(int64_t)d->attempt);
    put_number(w, 14, (uint64_t)r->queue_offset);
    if (r->queue_id != 0) put_number(w, 13, (uint64_t)(int64_t)r->queue_id);
    if (d->receipt_len > 0) put_text(w, 12, d->receipt, d->receipt_len);
    if (deliver_ms > 0) put_time(w, 11, deliver_ms);
    put_host(w, 10, r->store_host, r->store_host_len);
    put_time(w, 9, r->store_timestamp);
    if (has_property(s, "__BORNHOST"))
        put_value(w, 8, s, "__BORNHOST");
    else
        put_host(w, 8, r->born_host, r->born_host_len);
    put_time(w, 7, number_of(find_property(s, "BORN_TIMESTAMP", &p), r->born_timestamp));
    put_number(w, 6, (uint64_t)ps_message_type(s->properties, s->properties_len));
    put_number(w, 5, (uint64_t)d->encoding);
    put_digest(w, d->body, d->body_len);
    put_id(w, s);
    put_words(w, 2, s);
    put_value(w, 1, s, "TAGS");
    close_part(w, 3, end);
}

static int64_t text_size(int64_t len) {
    uint8_t bytes[PS_PROTO_VARINT_MAX];
    return 1 + (ps_proto_put_varint(bytes, (uint64_t)len) - bytes) + len;
}

/* The user's properties, in their order, since the last of a name counts. `to` NULL: only how long
 * they are. */
static int64_t put_users(const source *s, const ps_h2_names *hidden, uint8_t *to) {
    int64_t all = 0;
    ps_property p;
    for (int32_t at = 0; ps_property_next(s->properties, s->properties_len, &at, &p);) {
        if (ps_h2_names_have(hidden, p.name, p.name_len)) continue;
        int64_t entry = text_size(p.name_len) + text_size(p.value_len);
        all += text_size(entry);
        if (to == NULL) continue;
        *to++ = 2 << 3 | 2;
        to = ps_proto_put_varint(to, (uint64_t)entry);
        to = ps_proto_put_bytes(to, 1, p.name, p.name_len);
        to = ps_proto_put_bytes(to, 2, p.value, p.value_len);
    }
    return all;
}

int64_t ps_h2_delivery_room(int64_t record_len, const ps_h2_delivery *d) {
    int64_t properties = record_len < UINT16_MAX ? record_len : UINT16_MAX;
    return FIXED_ROOM + record_len + d->body_len + PROPERTY_ROOM * properties + d->topic_len +
           d->receipt_len;
}

int64_t ps_h2_delivery_write(const uint8_t *record, int64_t len, const ps_h2_names *hidden,
                             const ps_h2_delivery *given, uint8_t *to, int64_t room) {
    ps_h2_delivery d = *given;
    source s = {.d = &d};
    if (room < ps_h2_delivery_room(len, given) ||
        ps_record_decode(record, len, &s.r) != PS_REC_OK)
        return 0;
    if (d.body == NULL) {
        d.body = s.r.body;
        d.body_len = s.r.body_len;
    }
    s.properties = s.r.properties;
    s.properties_len = s.r.properties_len;
    if (!ps_utf8_valid(s.properties, s.properties_len)) {
        s.properties_len = (int32_t)ps_utf8_mend(to, s.properties, s.properties_len);
        s.properties = to;
    }
    writer w = {to + room};
    const uint8_t *end = w.at;
    if (d.body_len > 0) put_text(&w, 4, d.body, d.body_len);
    put_system(&w, &s);
    w.at -= put_users(&s, hidden, NULL);
    put_users(&s, hidden, w.at);
    const uint8_t *topic_end = w.at;
    put_text(&w, 2, d.topic, d.topic_len);
    close_part(&w, 1, topic_end);
    close_part(&w, 2, end);
    return to + room - w.at;
}
