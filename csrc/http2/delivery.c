/* See delivery.h. Field numbers: broker/grpc/messaging.proto. The reply is written from its end to
 * its beginning, so that the length of each part is known when it is put before that part. */
#include "http2/delivery.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/md5.h"
#include "format/record.h"
#include "format/utf8.h"
#include "http2/proto.h"

#define PROPERTIES_MAX 64
#define KEYS_MAX 64
#define HOST_MAX 28
#define DIGITS_MAX 14 /* of ms that a Timestamp can hold */
#define FIXED_ROOM 1024 /* all that does not grow with the texts */

enum { DIGEST_MD5 = 2, ENCODING_IDENTITY = 1 };
enum { TYPE_NORMAL = 1, TYPE_FIFO, TYPE_DELAY, TYPE_TRANSACTION };

/* ---- properties ---- */

typedef struct properties {
    int32_t count;
    ps_property each[PROPERTIES_MAX];
} properties;

static bool is_named(const ps_property *p, const void *name, int32_t len) {
    return p->name_len == len && memcmp(p->name, name, (size_t)len) == 0;
}

/* NULL: it has none. */
static const ps_property *find(const properties *all, const char *name) {
    int32_t len = (int32_t)strlen(name);
    for (int32_t i = 0; i < all->count; i++)
        if (is_named(&all->each[i], name, len)) return &all->each[i];
    return NULL;
}

/* False: they are not plain. */
static bool read_properties(const ps_record *r, properties *all) {
    ps_property p;
    int32_t at = 0;
    all->count = 0;
    if (!ps_utf8_valid(r->properties, r->properties_len)) return false;
    while (ps_property_next(r->properties, r->properties_len, &at, &p)) {
        if (all->count == PROPERTIES_MAX) return false;
        for (int32_t i = 0; i < all->count; i++)
            if (is_named(&all->each[i], p.name, p.name_len)) return false;
        all->each[all->count++] = p;
    }
    return true;
}

static bool is_blank(uint8_t c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
}

typedef struct keys {
    int32_t count;
    ps_property each[KEYS_MAX]; /* value alone */
} keys;

/* The words of KEYS. False: not plain, since other characters may be blanks, too. */
static bool read_keys(const ps_property *p, keys *out) {
    out->count = 0;
    for (int32_t i = 0, from = 0; p != NULL && i <= p->value_len; i++) {
        bool ends = i == p->value_len || is_blank(p->value[i]);
        if (!ends && p->value[i] > '~') return false;
        if (!ends) continue;
        if (i > from) {
            if (out->count == KEYS_MAX) return false;
            out->each[out->count++] =
                (ps_property){.value = p->value + from, .value_len = i - from};
        }
        from = i + 1;
    }
    return true;
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

static int type_of(const properties *all) {
    static const char *const delays[] = {"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC",
                                         "TIMER_DELAY_MS"};
    const ps_property *half = find(all, "TRAN_MSG");
    if (half != NULL && half->value_len == 4 &&
        strncasecmp((const char *)half->value, "true", 4) == 0)
        return TYPE_TRANSACTION;
    for (size_t i = 0; i < sizeof delays / sizeof *delays; i++)
        if (find(all, delays[i]) != NULL) return TYPE_DELAY;
    return find(all, "__SHARDINGKEY") != NULL ? TYPE_FIFO : TYPE_NORMAL;
}

/* ---- writing, from the end ---- */

typedef struct writer {
    uint8_t *start, *at;
} writer;

static void put(writer *w, const void *data, int64_t len) {
    w->at -= len;
    if (len > 0) memcpy(w->at, data, (size_t)len);
}

static void put_varint(writer *w, uint64_t value) {
    uint8_t bytes[PS_PROTO_VARINT_MAX];
    put(w, bytes, ps_proto_put_varint(bytes, value) - bytes);
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
    put(w, data, len);
    close_part(w, field, end);
}

static void put_value(writer *w, uint32_t field, const ps_property *p) {
    if (p != NULL) put_text(w, field, p->value, p->value_len);
}

static void put_time(writer *w, uint32_t field, int64_t ms) {
    const uint8_t *end = w->at;
    if (ms % 1000 > 0) put_number(w, 2, (uint64_t)(ms % 1000) * 1000000);
    if (ms >= 1000) put_number(w, 1, (uint64_t)(ms / 1000));
    close_part(w, field, end);
}

static void put_digest(writer *w, const ps_record *r) {
    static const char hex[] = "0123456789ABCDEF";
    uint8_t sum[PS_MD5_LEN];
    char digits[2 * PS_MD5_LEN];
    const uint8_t *end = w->at;
    ps_md5(r->body, r->body_len, sum);
    for (int i = 0; i < PS_MD5_LEN; i++) {
        digits[2 * i] = hex[sum[i] >> 4];
        digits[2 * i + 1] = hex[sum[i] & 15];
    }
    put_text(w, 2, digits, sizeof digits);
    put_number(w, 1, DIGEST_MD5);
    close_part(w, 4, end);
}

/* An address of IPv4 and a port. */
static void put_host(writer *w, uint32_t field, const uint8_t *p) {
    char text[HOST_MAX];
    int len = snprintf(text, sizeof text, "%u.%u.%u.%u:%u", p[0], p[1], p[2], p[3],
                       be32_get(p + 4));
    put_text(w, field, text, len);
}

static void put_id(writer *w, const ps_record *r, const ps_property *unique) {
    char id[57];
    int len = ps_offset_msg_id(r->store_host, r->store_host_len, r->physical_offset, id);
    if (unique != NULL)
        put_value(w, 3, unique);
    else
        put_text(w, 3, id, len);
}

static void put_system(writer *w, const ps_record *r, const properties *all, const keys *words,
                       const ps_h2_delivery *d) {
    const uint8_t *end = w->at;
    const ps_property *at = find(all, "TIMER_DELIVER_MS"), *host = find(all, "__BORNHOST");
    int64_t deliver_ms = number_of(at != NULL ? at : find(all, "TIMER_OUT_MS"), 0);
    put_value(w, 18, find(all, "TRACE_CONTEXT"));
    put_value(w, 17, find(all, "__SHARDINGKEY"));
    put_number(w, 16, (uint64_t)d->attempt);
    put_number(w, 14, (uint64_t)r->queue_offset);
    if (r->queue_id > 0) put_number(w, 13, (uint64_t)r->queue_id);
    put_text(w, 12, d->receipt, d->receipt_len);
    if (deliver_ms > 0) put_time(w, 11, deliver_ms);
    put_host(w, 10, r->store_host);
    put_time(w, 9, r->store_timestamp);
    if (host != NULL)
        put_value(w, 8, host);
    else
        put_host(w, 8, r->born_host);
    put_time(w, 7, number_of(find(all, "BORN_TIMESTAMP"), r->born_timestamp));
    put_number(w, 6, (uint64_t)type_of(all));
    put_number(w, 5, ENCODING_IDENTITY);
    put_digest(w, r);
    put_id(w, r, find(all, "UNIQ_KEY"));
    for (int32_t i = words->count - 1; i >= 0; i--) put_value(w, 2, &words->each[i]);
    put_value(w, 1, find(all, "TAGS"));
    close_part(w, 3, end);
}

static void put_user(writer *w, const ps_property *p) {
    const uint8_t *end = w->at;
    put_text(w, 2, p->value, p->value_len);
    put_text(w, 1, p->name, p->name_len);
    close_part(w, 2, end);
}

static bool is_plain(const ps_record *r) {
    int32_t unusual = PS_SYS_COMPRESSED | PS_SYS_BORN_V6 | PS_SYS_STORE_V6;
    return (r->sys_flag & unusual) == 0 && r->born_timestamp >= 0 && r->store_timestamp >= 0 &&
           r->queue_id >= 0 && r->queue_offset >= 0 && r->physical_offset >= 0;
}

int64_t ps_h2_delivery_room(int64_t record_len, const ps_h2_delivery *d) {
    /* A property has four bytes at least and grows by twelve, a word of KEYS two and by three. */
    int64_t properties = record_len < PS_PROPERTIES_MAX ? record_len : PS_PROPERTIES_MAX;
    return FIXED_ROOM + record_len + 4 * properties + d->topic_len + d->receipt_len;
}

int64_t ps_h2_delivery_write(const uint8_t *record, int64_t len, const ps_h2_names *hidden,
                             const ps_h2_delivery *d, uint8_t *to, int64_t room) {
    ps_record r;
    properties all;
    keys words;
    if (room < ps_h2_delivery_room(len, d) || d->attempt < 0 || d->topic_len == 0) return 0;
    if (ps_record_decode(record, len, &r) != PS_REC_OK || !is_plain(&r) ||
        !read_properties(&r, &all) || !read_keys(find(&all, "KEYS"), &words))
        return 0;
    writer w = {to, to + room};
    const uint8_t *end = w.at;
    if (r.body_len > 0) put_text(&w, 4, r.body, r.body_len);
    put_system(&w, &r, &all, &words, d);
    for (int32_t i = all.count - 1; i >= 0; i--)
        if (!ps_h2_names_have(hidden, all.each[i].name, all.each[i].name_len))
            put_user(&w, &all.each[i]);
    const uint8_t *topic_end = w.at;
    put_text(&w, 2, d->topic, d->topic_len);
    close_part(&w, 1, topic_end);
    close_part(&w, 2, end);
    return to + room - w.at;
}
