/* See ending.h. Field numbers: broker/grpc/messaging.proto. */
#include "messaging/ending.h"

#include <stdio.h>
#include <string.h>

#define DIGITS_MAX 16 /* of an offset */

enum { COMMIT = 1, ROLLBACK = 2 };  /* TransactionResolution */
enum { SOURCE_SERVER_CHECK = 2 };   /* TransactionSource */

typedef struct draft {
    ps_h2_text topic, message_id, transaction_id, trace;
    uint64_t resolution, source;
} draft;

static bool read_field(const ps_proto_field *f, draft *d) {
    switch (f->number) {
    case 1:
        return !f->is_number && ps_proto_resource(f, &d->topic);
    case 2:
        return ps_proto_text(f, &d->message_id);
    case 3:
        return ps_proto_text(f, &d->transaction_id);
    case 4:
        d->resolution = f->value;
        return f->is_number;
    case 5:
        d->source = f->value;
        return f->is_number;
    default:
        return f->number == 6 && ps_proto_text(f, &d->trace);
    }
}

/* ---- the id ---- */

/* The last word before `end`, and where the one before it ends; false: there is none. */
static bool word_before(const char *text, int32_t *end, ps_h2_text *out) {
    int32_t at = *end;
    while (at > 0 && text[at - 1] != '-') at--;
    if (at == 0) return false;
    *out = (ps_h2_text){text + at, *end - at};
    *end = at - 1;
    return true;
}

/* Small letters alone: this is how the service writes them. */
static int32_t digit_of(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_offset(ps_h2_text word, int64_t *out) {
    uint64_t value = 0;
    for (int32_t i = 0; i < word.len; i++) {
        int32_t digit = digit_of(word.data[i]);
        if (digit < 0) return false;
        value = value << 4 | (uint64_t)digit;
    }
    *out = (int64_t)value;
    return word.len > 0 && word.len <= DIGITS_MAX && *out >= 0;
}

static bool is_hexadecimal(ps_h2_text word) {
    for (int32_t i = 0; i < word.len; i++)
        if (digit_of(word.data[i]) < 0) return false;
    return word.len % 2 == 0;
}

/* id-offset-place-broker, then -c when a check named it. *id: that of the message. */
static bool read_id(ps_h2_text text, ps_h2_ending *out, ps_h2_text *id) {
    ps_h2_text broker, place, offset;
    int32_t end = text.len;
    if (!word_before(text.data, &end, &broker)) return false;
    out->from_check = broker.len == 1 && *broker.data == 'c';
    if (out->from_check && !word_before(text.data, &end, &broker)) return false;
    if (!word_before(text.data, &end, &place) || !word_before(text.data, &end, &offset))
        return false;
    *id = (ps_h2_text){text.data, end};
    return is_hexadecimal(broker) && read_offset(place, &out->physical) &&
           read_offset(offset, &out->offset);
}

int32_t ps_h2_transaction_id(ps_h2_text id, int64_t offset, int64_t physical, const char *broker,
                             char *to) {
    static const char digits[] = "0123456789abcdef";
    char *at = to + id.len;
    memcpy(to, id.data, (size_t)id.len);
    at += snprintf(at, PS_H2_TRANSACTION_ROOM(0, 0), "-%llx-%llx-", (unsigned long long)offset,
                   (unsigned long long)physical);
    for (const char *b = broker; *b != 0; b++) { /* names have hyphens */
        *at++ = digits[(unsigned char)*b >> 4];
        *at++ = digits[(unsigned char)*b & 15];
    }
    return (int32_t)(at - to);
}

/* ---- the request ---- */

bool ps_h2_ending_read(const uint8_t *data, int64_t len, ps_h2_ending *out) {
    ps_proto_reader r = ps_proto_reader_of(data, len);
    ps_proto_field f;
    ps_h2_text id;
    draft d = {0};
    while (r.at < r.end)
        if (!ps_proto_next(&r, &f) || !ps_proto_first(&r, &f) || !read_field(&f, &d)) return false;
    if (d.topic.len == 0 || (d.resolution != COMMIT && d.resolution != ROLLBACK) ||
        !read_id(d.transaction_id, out, &id))
        return false;
    if (d.message_id.len > 0 && (d.message_id.len != id.len ||
                                 memcmp(d.message_id.data, id.data, (size_t)id.len) != 0))
        return false;
    out->topic = d.topic;
    out->commits = d.resolution == COMMIT;
    out->from_check = out->from_check || d.source == SOURCE_SERVER_CHECK;
    return true;
}
